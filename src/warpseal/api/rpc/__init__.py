"""Calls that are forwarded to nodes: the routes of EVM chains and of the primary network, by HTTP
and WebSocket.
"""
