"""JSON-RPC clients of upstream nodes: frozen values out, never dicts.

Start with `upstream.py`, which builds all clients, then `pool.py` (failover) and `rpc.py` (one call to one node).
"""
