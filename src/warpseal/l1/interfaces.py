"""The interfaces that signed messages by transaction need; each names the class that implements and
documents it.

The tests implement each of them in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from warpseal.l1.errors import FollowerProgress
from warpseal.node.p_chain import FoundTransaction, ValidationAt
from warpseal.store.values import L1Transaction, Origin
from warpseal.warp.ids import ChainID, ValidationID

if TYPE_CHECKING:
    from warpseal.forwarding.evm.log_filter import EvmLog, LogFilter

ReadProgress = Callable[[], FollowerProgress]
"""Returns the progress of the P-Chain follower."""
FindQuorum = Callable[[ChainID], Awaitable[int | None]]
"""Returns the quorum that a chain demands, in percent; None if it is not known. Raises nothing."""


class L1Platform(Protocol):
    """The P-Chain (`node.platform.PlatformClient`)."""

    async def transaction(self, tx_id: bytes) -> FoundTransaction | None: ...
    async def l1_validator(
        self, validation_id: ValidationID, at_least: int = 0
    ) -> ValidationAt | None: ...
    async def l1_validator_each(self, validation_id: ValidationID) -> tuple[ValidationAt, ...]: ...
    async def indexed_l1_validator(self, validation_id: ValidationID) -> ValidationAt | None: ...


class L1TransactionIndex(Protocol):
    """The stored L1 transactions and origins of validations (`store.l1_records.L1Records`).

    Raises StoreDown.
    """

    async def transaction(self, tx_id: bytes) -> L1Transaction | None: ...
    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]: ...
    async def origin(self, validation_id: ValidationID) -> Origin | None: ...
    async def store_origin(self, origin: Origin, source: str) -> None: ...


class EvmLogReader(Protocol):
    """The nodes of one EVM chain (`forwarding.evm.logs.EvmLogClient`).

    Raises NodeUnavailable, LogsRefused.
    """

    async def block_number(self) -> int: ...
    async def logs(self, log_filter: LogFilter) -> tuple[EvmLog, ...]: ...
