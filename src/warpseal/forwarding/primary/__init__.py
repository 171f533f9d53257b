"""The RPC gateway of the primary network: which routes and methods are forwarded, and to which
node.

Start reading at `gateway.py`.
"""
