"""Calls of EVM chains, forwarded to the chains' nodes or answered by the daemon itself.

Start with `build.py`, then `forwarder.py` (which node gets a call) and `pool.py` (which nodes are usable).
"""
