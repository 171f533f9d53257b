"""Every default, unit and bound of forwarding to EVM nodes."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
DENIED_METHODS = ("admin_*", "debug_*", "personal_*", "miner_*", "avax_*")


@dataclass(frozen=True, slots=True)
class EvmRpcSettings:
    """What holds for every forwarded chain.

    deny_methods: RPC methods that nobody may call, a trailing * stands for any ending; a chain may name more.
    connections_per_node: HTTP connections to one node at once. retry_after_s: how long a node that failed is used
    only where no other is. poll_s: how often heads are compared where a chain has several nodes. max_answer_bytes:
    of one answer of a node. max_sockets: WebSocket clients of one chain; max_subscriptions: of one client;
    max_message_bytes: of one WebSocket message of a node; max_queued, max_queued_bytes: what may wait for a slow
    reader; max_queued_in_all_bytes: for all of a chain. max_under_way: calls of one WebSocket client.
    """

    deny_methods: tuple[str, ...] = DENIED_METHODS
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
