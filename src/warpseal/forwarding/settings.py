"""Settings of the calls that the daemon forwards to nodes, also by the gateway."""

from __future__ import annotations

import re
from typing import Any, Final

from warpseal.forwarding.primary.methods import SERVICES
from warpseal.node.settings import endpoint, method
from warpseal.runtime.settings import (
    MEBIBYTE,
    Group,
    Settings,
    invalid_setting,
    list_of,
    one_or_more,
    setting,
    text,
)
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.limits import NodeLimits

DENIED_METHODS: Final = ("admin_*", "debug_*", "personal_*", "miner_*", "avax_*")
_GATEWAY_METHOD: Final = re.compile(rf"!?(?:{'|'.join(SERVICES)})\.(?:[a-z][A-Za-z0-9]*\*?|\*)")
_NODES: Final = one_or_more(endpoint("http", "https"))


class EvmRpcSettings(Settings, frozen=True):
    """Limits of every EVM chain; those of one HTTP call hold for the gateway as well.

    Durations are in seconds.

    deny_methods: methods denied on all chains; the entry of a chain may name more.
    connections_per_node: concurrent HTTP connections to one node.
    retry_after_s, poll_s: cooldown_s and poll_s of NodeLimits.
    max_answer_bytes: largest response of a node.
    max_message_bytes: largest WebSocket message.
    max_queued, max_queued_bytes: messages queued for one slow client.
    max_total_queued_bytes: messages queued for all clients of a chain.
    max_sockets: WebSocket clients of one chain.
    max_subscriptions, max_in_flight: subscriptions and open calls of one WebSocket client.
    """

    deny_methods: tuple[str, ...] = setting(
        DENIED_METHODS,
        "evm-deny-methods",
        list_of(method),
        "RPC methods that are refused on every EVM chain; a trailing * stands for any ending",
        "NAMES",
        group=Group.EVM,
    )
    connect_timeout_s: float = 3.0
    call_timeout_s: float = 30.0
    connections_per_node: int = 256
    retry_after_s: float = 5.0
    poll_s: float = 2.0
    max_answer_bytes: int = 64 * MEBIBYTE
    max_sockets: int = 4_096
    max_subscriptions: int = 100
    max_message_bytes: int = 15 * MEBIBYTE
    max_queued: int = 256
    max_queued_bytes: int = 32 * MEBIBYTE
    max_total_queued_bytes: int = 256 * MEBIBYTE
    max_in_flight: int = 4_096

    @property
    def limits(self) -> NodeLimits:
        """The limits of the calls to each node."""
        return NodeLimits(
            timeout_s=self.call_timeout_s,
            connect_timeout_s=self.connect_timeout_s,
            max_bytes=self.max_answer_bytes,
            max_pause_s=60.0,
            has_default_pauses=False,
            cooldown_s=self.retry_after_s,
            caller_cooldown_s=self.retry_after_s,
            check_timeout_s=self.connect_timeout_s,
            poll_s=self.poll_s,
        )


def gateway_nodes(value: Any, path: str) -> tuple[NodeEndpoint, ...]:
    """Accept one node or several, as p-chain-api does; an empty text or list stands for none."""
    if value in ("", None, []):
        return ()
    return _NODES(value, path)


def gateway_method(value: Any, path: str) -> str:
    """Accept the name of a method of a forwarded service.

    A leading ! denies the method, a trailing * stands for any ending.
    """
    name = text(value, path)
    if not _GATEWAY_METHOD.fullmatch(name):
        services = ", ".join(SERVICES)
        reason = f'expected a method, such as "platform.getTx" or "!info.*", of {services}'
        raise invalid_setting(path, reason)
    return name


class GatewaySettings(Settings, frozen=True):
    """Nodes of the primary network in order of preference, and the methods forwarded to them.

    methods: names of further methods; a name after a ! is denied, also if it is allowed.
    """

    nodes: tuple[NodeEndpoint, ...] = setting(
        (),
        "gateway-nodes",
        gateway_nodes,
        "nodes to which calls of the primary network's P-, X- and C-Chain, info and index APIs are"
        " forwarded",
        "URL|JSON",
        group=Group.NETWORK,
    )
    methods: tuple[str, ...] = setting(
        (),
        "gateway-methods",
        list_of(gateway_method),
        "methods that gateway-nodes serve besides the known ones, or do not serve (!NAME); a"
        " trailing * is any ending",
        "NAMES",
        group=Group.NETWORK,
    )
