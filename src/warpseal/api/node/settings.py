"""Settings of the node API under `/ext`. docs/node-interfaces.md describes its endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warpseal.runtime.settings import Group, boolean, list_of, optional_path, secret, setting, text


@dataclass(frozen=True, slots=True)
class NodeApiSettings:
    """Settings of the node API. Keys that avalanchego has keep its name and meaning."""

    admin_enabled: bool = setting(
        False,
        "api-admin-enabled",
        boolean,
        "administration endpoint, /ext/admin",
        "BOOL",
        group=Group.HTTP,
        is_node=True,
    )
    admin_token: str = setting(
        "",
        "admin-token",
        secret,
        "bearer token for /ext/admin; unset: this machine only (never a flag)",
        "TOKEN",
        group=Group.HTTP,
        is_secret=True,
    )
    health_enabled: bool = setting(
        True, "api-health-enabled", boolean, "health endpoint, /ext/health", "BOOL", group=Group.HTTP, is_node=True
    )
    allowed_hosts: tuple[str, ...] = setting(
        ("localhost",),
        "http-allowed-hosts",
        list_of(text),
        "host names by which clients may call /ext; IP addresses always pass, * is any",
        "NAMES",
        group=Group.HTTP,
        is_node=True,
    )
    chain_aliases_file: Path | None = setting(
        None,
        "chain-aliases-file",
        optional_path,
        "JSON file: blockchain id to aliases",
        "FILE",
        group=Group.HTTP,
        is_node=True,
    )
