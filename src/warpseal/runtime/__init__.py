"""Small primitives that every package may use: single flight, backoff, retry, request ids.

No I/O.
"""
