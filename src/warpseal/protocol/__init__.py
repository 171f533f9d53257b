"""The peer protocol without sockets, clocks or tasks: bytes and `now` in, events and bytes out."""
