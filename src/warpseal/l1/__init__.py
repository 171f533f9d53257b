"""Signed messages of P-Chain transactions about L1s, which L1 managers need; and what Warp messages
and signatures say.

Start reading at `service.py`. `follower.py` reads the P-Chain for these messages.
"""
