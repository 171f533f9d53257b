"""Calls of EVM chains, forwarded to the chains' nodes or answered by the daemon itself.

Start with `forwarder.py` (which node gets a call); `upstream/pool.py` knows which nodes are usable.
"""
