"""The database of what cannot be rebuilt: messages, shares, signatures, L1 transactions, addresses,
keys and uptime.

Start reading at `store.py`; writes go through `writer.py`, reads through `reader.py`.
"""
