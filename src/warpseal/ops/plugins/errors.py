"""Why virtual machines cannot be loaded, in the node's words where clients know them.

Source of truth: api-level texts of avalanchego `vms/registry` and `vms/rpcchainvm/runtime`.
"""

from __future__ import annotations

import os
from json import dumps
from pathlib import Path

from warpseal.errors.base import CallRefused


class InvalidVMID(CallRefused):
    """A file whose name is neither an alias nor an id of a virtual machine. name: without its extension."""

    def __init__(self, name: str) -> None:
        super().__init__(f"invalid vmID: {dumps(name, ensure_ascii=False)}")
        self.name = name


class PluginDirUnreadable(CallRefused):
    """The plugin directory cannot be listed."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(f"open {folder}: {os_text(error)}")


class PluginFailed(Exception):
    """One virtual machine does not run; the text is what `failedVMs` says of it."""


class NotStarted(PluginFailed):
    """The operating system does not run the file."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"failed to start process: fork/exec {path}: {os_text(error)}")


class NoHandshake(PluginFailed):
    """The process did not say in time where it serves, or ended before."""

    def __init__(self) -> None:
        super().__init__("handshake failed: vm process not found")


class WrongProtocol(PluginFailed):
    """The virtual machine was made for another version of the protocol."""

    def __init__(self, path: Path, ours: int, theirs: int) -> None:
        super().__init__(
            "handshake failed: RPCChainVM protocol version mismatch between AvalancheGo and Virtual Machine plugin. "
            f"Expected is version {ours}, and {path} has version {theirs}: the two must be equal"
        )
        self.ours = ours
        self.theirs = theirs


class UnusableAddress(PluginFailed):
    """The process says that it serves somewhere else than on this machine."""

    def __init__(self, address: str) -> None:
        super().__init__(f"handshake failed: no address of this machine with a port: {dumps(address[:64])}")


class CallFailed(PluginFailed):
    """The virtual machine did not answer a call. code, reason: of gRPC."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"rpc error: code = {code} desc = {reason[:512]}")


def os_text(error: OSError) -> str:
    """Return what the operating system says, without the names that Python adds."""
    return os.strerror(error.errno).lower() if error.errno else str(error)
