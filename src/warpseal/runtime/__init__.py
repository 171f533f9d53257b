"""Small primitives that every package may use: locks, single flight, backoff, request ids, stack
samples.

No I/O.
"""
