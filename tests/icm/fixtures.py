"""Obstacles of messages without the services that know signatures and destinations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from warpseal.icm.obstacles import MessageObstacles
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID


class SilentServices:
    """Stands for all services: nothing was signed, and no node replies."""

    def open_message_ids(self) -> frozenset[bytes]:
        return frozenset()

    def last_shortfall(self, message_id: bytes) -> None:
        return None

    async def find_signed(self, message_ids: Sequence[bytes]) -> frozenset[bytes]:
        return frozenset()

    async def find_message(self, message_id: bytes) -> None:
        return None

    async def fail(self, *_: Any, **__: Any) -> NoReturn:
        raise NodeUnavailable("a call")

    call = sign = check = fail

    def denies_calls(self, chain_id: ChainID) -> bool:
        return False


def silent_obstacles(
    chain_rpc: Any = None, preflight: Any = None, **options: Any
) -> MessageObstacles:
    """Return the obstacles over services that fail.

    chain_rpc: client of nodes that reply; None for nodes that fail.
    """
    silent: Any = SilentServices()
    return MessageObstacles(
        silent, silent, silent, preflight or silent, chain_rpc or silent, 12_345, **options
    )
