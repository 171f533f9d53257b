"""The Unix socket over which the daemon sends commands to its other processes. Start reading at `server.py`."""
