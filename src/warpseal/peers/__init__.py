"""The asyncio client of the peer network: it dials validators and sends them requests.

Start reading at `network.PeerNetwork`. `dial_schedule` and `dialer` make connections, `connection`
and `tls` run one connection each around `protocol.PeerProtocol`, `connection_registry` holds all of
them, `request_fanout` writes requests, `addresses` knows where nodes listen, `identity` holds the
TLS identity of the daemon.
"""
