"""Reads accepted blocks of a chain in order, for consumers that write them.

Start reading at `chain_follower.py`.
"""
