"""What an operator says of one EVM chain: which it is, and where its nodes are reached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warpseal.node.endpoint import NodeEndpoint
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class EvmChain:
    """One entry of `evm-chains`. rpc: complete http(s) URLs, at least one, in the order of preference.

    ws: complete ws(s) URLs. upgrade_file: the chain's upgrade.json. deny_methods: RPC methods that nobody may call;
    a trailing * stands for any ending.
    """

    blockchain_id: ChainID
    rpc: tuple[NodeEndpoint, ...]
    ws: tuple[NodeEndpoint, ...] = ()
    upgrade_file: Path | None = None
    deny_methods: tuple[str, ...] = ()
