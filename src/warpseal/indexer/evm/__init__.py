"""Fills the index of each EVM chain: reads blocks and receipts from its nodes, checks them, writes
what pages show.

Start reading at `indexer.py`, then `chain.py` and `block_reader.py`.
"""
