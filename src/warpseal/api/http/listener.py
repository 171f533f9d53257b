"""A port of this process, which listens before the server behind it is built.

Clients can connect while the server starts.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from warpseal.errors import StartupError
from warpseal.runtime.process import find_listener, os_error_text

_BACKLOG: Final = 2_048


class Listener:
    """A port that listens from the start; connections wait until a server accepts them.

    port: the port to listen on; 0 takes a free port.
    name: the first word of the settings of host and port, for error texts.
    Raises StartupError.
    """

    def __init__(self, host: str, port: int, *, name: str = "api") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        dual = host == "::" and socket.has_dualstack_ipv6()
        self.host = host
        try:
            self.socket = socket.create_server(
                (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual
            )
        except OSError as error:
            raise StartupError(_bind_error(error, host, port, name)) from error

    @property
    def address(self) -> str:
        """The address for people, such as `127.0.0.1:8080`, or `0.0.0.0:8080 (all interfaces)`."""
        host, port = self.socket.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return f"{address} (all interfaces)" if host in ("0.0.0.0", "::") else address

    @property
    def port(self) -> int:
        """The port, also if 0 was requested."""
        port: int = self.socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        return local_url(self.host, self.port)

    def close(self) -> None:
        """Stop listening, and reset connections that no server has accepted."""
        self.socket.close()


def local_url(host: str, port: int) -> str:
    """Return the URL of a port for clients on this machine.

    host: the address that the port listens on.
    """
    address = f"[{host}]" if ":" in host else host
    loopback = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}
    return f"http://{loopback.get(host, address)}:{port}"


def _bind_error(error: OSError, host: str, port: int, name: str) -> str:
    """Return why the port cannot be taken, and which setting to change."""
    if error.errno == errno.EADDRINUSE:
        pid = find_listener(port)
        holder = f"process {pid}" if pid else "another process"
        return (
            f"{name}-port {port} on {host} is in use by {holder}: stop it, or set another"
            f" {name}-port"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{name}-port {port} needs privileges that this user does not have: set another"
            f" {name}-port, above 1023"
        )
    # An unknown name has a number of the resolver, which is negative.
    reason = "unknown name" if (error.errno or -1) < 0 else os_error_text(error)
    return f"api-host {host} is no address of this machine ({reason}): set another api-host"
