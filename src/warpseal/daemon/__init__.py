"""The daemon: its services, the order in which they start, and its shutdown. Start reading at `app.py`."""
