"""The checks of `warpseal doctor`, with clients of their own. Start reading at `doctor.py`."""
