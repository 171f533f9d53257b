"""Errors of loading virtual machines, with the error texts of avalanchego.

Source of truth: api-level texts of avalanchego `vms/registry` and `vms/rpcchainvm/runtime`.
"""

from __future__ import annotations

import os
from json import dumps
from pathlib import Path

from warpseal.errors import CallRefused


class InvalidVMID(CallRefused):
    """The name of a file is neither an alias nor an id of a virtual machine. name: the name without its extension."""

    def __init__(self, name: str) -> None:
        super().__init__(f"invalid vmID: {dumps(name, ensure_ascii=False)}")
        self.name = name


class PluginDirUnreadable(CallRefused):
    """The plugin directory cannot be listed."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(f"open {folder}: {os_text(error)}")


class PluginFailed(Exception):
    """A plugin could not be loaded; the text is its entry in `failedVMs`."""


class NotStarted(PluginFailed):
    """The operating system could not start the file."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"failed to start process: fork/exec {path}: {os_text(error)}")


class NoHandshake(PluginFailed):
    """The process ended, or the timeout passed, before the process reported its address."""

    def __init__(self) -> None:
        super().__init__("handshake failed: vm process not found")


class WrongProtocol(PluginFailed):
    """The plugin speaks another version of the protocol."""

    def __init__(self, path: Path, ours: int, theirs: int) -> None:
        super().__init__(
            "handshake failed: RPCChainVM protocol version mismatch between AvalancheGo and Virtual Machine plugin. "
            f"Expected is version {ours}, and {path} has version {theirs}: the two must be equal"
        )
        self.ours = ours
        self.theirs = theirs


class UnusableAddress(PluginFailed):
    """The process reported an address that is not on this machine."""

    def __init__(self, address: str) -> None:
        super().__init__(f"handshake failed: no address of this machine with a port: {dumps(address[:64])}")


class CallFailed(PluginFailed):
    """A gRPC call to the plugin failed. code, reason: status code and details of gRPC."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"rpc error: code = {code} desc = {reason[:512]}")


def os_text(error: OSError) -> str:
    """Return the error text of the operating system, without the file names that Python adds."""
    return os.strerror(error.errno).lower() if error.errno else str(error)
