"""The daemon: what it starts, in which order, and what ends it. Start reading at `app.py`."""
