"""Settings of the gateway; docs/gateway.md describes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from warpseal.forwarding.primary.methods import SERVICES
from warpseal.node.settings import endpoint
from warpseal.runtime.settings import Group, fault, list_of, one_or_more, setting, text
from warpseal.upstream.endpoint import NodeEndpoint

_METHOD: Final = re.compile(rf"(?:{'|'.join(SERVICES)})\.(?:[a-z][A-Za-z0-9]*\*?|\*)")
_NODES: Final = one_or_more(endpoint("http", "https"))


def gateway_nodes(value: Any, path: str) -> tuple[NodeEndpoint, ...]:
    """Accept one node or several, as p-chain-api does; an empty text or list: none."""
    return () if value in ("", None, []) else _NODES(value, path)


def gateway_method(value: Any, path: str) -> str:
    """Accept the name of a method of a forwarded service; a trailing * stands for any ending."""
    if not _METHOD.fullmatch(name := text(value, path)):
        raise fault(path, f'expected a method, such as "platform.getTx" or "info.*", of {", ".join(SERVICES)}')
    return name


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Nodes of the primary network in order of preference, and the methods that are forwarded to them."""

    nodes: tuple[NodeEndpoint, ...] = setting(
        (),
        "gateway-nodes",
        gateway_nodes,
        "nodes to which calls of the primary network's P-, X- and C-Chain, info and index APIs are forwarded",
        "URL|JSON",
        group=Group.NETWORK,
    )
    allow_methods: tuple[str, ...] = setting(
        (),
        "gateway-allow-methods",
        list_of(gateway_method),
        "methods that gateway-nodes serve besides the known ones; a trailing * stands for any ending",
        "NAMES",
        group=Group.NETWORK,
    )
    deny_methods: tuple[str, ...] = setting(
        (),
        "gateway-deny-methods",
        list_of(gateway_method),
        "methods that are not forwarded to gateway-nodes; a trailing * stands for any ending",
        "NAMES",
        group=Group.NETWORK,
    )
