"""What all APIs share: servers, HTTP and WebSocket protocols, request bodies, limits, keys, and the
error table.
"""
