"""Every default, unit and bound of the node interfaces under `/ext`; docs/node-interfaces.md tells what they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeApiSettings:
    """What an operator may set about the node interfaces; keys and meanings are the node's where it has them.

    admin_token: who has it may administrate, from anywhere; empty: this machine only. allowed_hosts: names by which
    clients may call the daemon; "*" is any.
    """

    admin_enabled: bool = False
    admin_token: str = field(default="", repr=False)
    health_enabled: bool = True
    allowed_hosts: tuple[str, ...] = ("localhost",)
    chain_aliases_file: Path | None = None
