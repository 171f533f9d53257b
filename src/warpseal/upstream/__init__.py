"""The one way to call an upstream node.

Start with `node.py` (one HTTP call), then `pool.py` (several nodes as one).
"""
