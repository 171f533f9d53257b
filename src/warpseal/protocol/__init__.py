"""The peer protocol without sockets, clocks or tasks.

Bytes and `now` go in, events and bytes come out.

Start reading at `peer.PeerProtocol`, one connection after its TLS handshake. `messages` and
`framing` are the wire format, `handshake`, `addresses` and `certificate` the checks, `requests` the
requests in flight, and `limits` the constants of nodes.
"""
