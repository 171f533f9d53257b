"""Fills the index of each EVM chain with the checked blocks and receipts of its nodes.

Start reading at `indexer.py`, then `chain.py` and `block_reader.py`.
"""
