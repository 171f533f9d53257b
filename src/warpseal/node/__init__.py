"""JSON-RPC clients of upstream nodes: frozen values out, never dicts.

Start with `upstream.py`, which builds all clients on `warpseal.upstream`.
"""
