"""Settings of the node API under `/ext`. docs/node-interfaces.md describes its endpoints."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from warpseal.runtime.settings import (
    Group,
    Settings,
    boolean,
    choice,
    list_of,
    optional_path,
    secret,
    setting,
    text,
)
from warpseal.usage.credits import CreditOverrides, credit_overrides


class RpcUnit(StrEnum):
    """The units that a forwarded call costs its caller.

    CALLS: A call costs one unit.
    CREDITS: A call costs the credits of its method.
    """

    CALLS = "calls"
    CREDITS = "credits"


class NodeApiSettings(Settings, frozen=True):
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
        "bearer token for /ext/admin and usage-readers admin (unset: this machine), webhooks and"
        " blocks; never a flag",
        "TOKEN",
        group=Group.HTTP,
        is_secret=True,
    )
    health_enabled: bool = setting(
        True,
        "api-health-enabled",
        boolean,
        "health endpoint, /ext/health",
        "BOOL",
        group=Group.HTTP,
        is_node=True,
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
    rate_limit_rpc: RpcUnit = setting(
        RpcUnit.CALLS,
        "rate-limit-rpc",
        choice(RpcUnit),
        "units that a forwarded call costs its caller: calls (one unit) or credits (those of its"
        " method)",
        "UNITS",
        group=Group.LIMITS,
    )
    method_credits: CreditOverrides = setting(
        (),
        "method-credits",
        credit_overrides,
        "credits of RPC methods that differ from the defaults; a trailing * stands for any ending",
        "JSON",
        group=Group.LIMITS,
        display=dict,
    )
