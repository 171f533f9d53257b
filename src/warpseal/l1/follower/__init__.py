"""Follows accepted P-Chain blocks and stores their L1 transactions. Start reading at `follower.py`."""
