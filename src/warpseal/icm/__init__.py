"""What hinders an ICM message: its signature, its delivery, its execution. Start reading at `obstacles.py`."""
