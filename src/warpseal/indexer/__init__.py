"""Fills the index of the primary chains: reads blocks from nodes, applies them in a worker process,
verifies the rows.

Start reading at `indexer.py`, then `consumers.py`.
"""
