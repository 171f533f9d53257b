"""Validator sets, their heights, tracked subnets, current validations and uptimes.

Start with `sets.py` (canonical sets) and `subnet_tracker.py` (the nodes to connect to).
"""
