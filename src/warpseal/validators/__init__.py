"""Validator sets, the heights at which they are taken, tracked subnets, and current validations
with their uptimes.

Start with `sets.py` (canonical sets) and `subnet_tracker.py` (the nodes to connect to).
"""
