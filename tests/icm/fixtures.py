"""Obstacles of messages without the services that know signatures and destinations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from warpseal.icm.obstacles import MessageObstacles
from warpseal.upstream.errors import NodeUnavailable


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

    call = fail


def silent_obstacles(chain_rpc: Any = None) -> MessageObstacles:
    """Return the obstacles.

    chain_rpc: of nodes that reply.
    """
    silent: Any = SilentServices()
    chain_rpc = chain_rpc or silent
    return MessageObstacles(
        silent, silent, silent.fail, silent.fail, chain_rpc, lambda chain_id: False, 12_345
    )
