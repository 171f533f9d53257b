"""Usage of the forwarded RPC routes: recorded in memory, kept in the metrics database, and queried.

Start reading at `calls.py`, the values that all parts share, then `recorder.py`.
"""
