"""The RPC gateway of the primary network: its routes and methods, and the choice of a node.

Start reading at `gateway.py`.
"""
