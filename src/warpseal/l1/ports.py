"""The interfaces of nodes, store and validators' lookups that signed messages by transaction need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from warpseal.forwarding.evm.logs import EvmLog, LogFilter
from warpseal.node.p_chain import FoundTransaction, ValidationAt
from warpseal.store.values import L1Transaction, Origin
from warpseal.warp.ids import ChainID, SubnetID, ValidationID

ReadProgress = Callable[[], Mapping[str, Any]]
"""Returns the progress of the P-Chain follower, JSON-ready."""
ListSubnets = Callable[[], Awaitable[tuple[SubnetID, ...]]]
"""Returns the ids of all subnets. Raises NodeUnavailable."""
ReadXChainTx = Callable[[bytes], Awaitable[bytes | None]]
"""Returns the signed bytes of a transaction of the X-Chain; None: no node has it. Raises NodeUnavailable."""
FindSubnet = Callable[[ChainID], Awaitable[SubnetID]]
"""Returns the validating subnet of a chain. Raises UnknownChain, NodeUnavailable."""
FindEpochHeight = Callable[[ChainID], Awaitable[int | None]]
"""Returns the epoch height of a chain; None: no node runs it, or it has no epochs. Raises NodeUnavailable."""

FindQuorum = Callable[[ChainID], Awaitable[int | None]]
"""Returns the quorum in percent that a chain demands; None if it is not known now. Raises nothing."""


class L1Platform(Protocol):
    """The P-Chain."""

    async def transaction(self, tx_id: bytes) -> FoundTransaction | None:
        """Return a transaction with its status; None: no node has it. Raises NodeUnavailable."""
        ...

    async def l1_validator(self, validation_id: ValidationID, at_least: int = 0) -> ValidationAt | None:
        """Return the validation as a node at the height `at_least` or above has it; None: all nodes lag.

        Raises NodeUnavailable.
        """
        ...

    async def l1_validator_each(self, validation_id: ValidationID) -> tuple[ValidationAt, ...]:
        """Return the validation as every available node has it; raises nothing."""
        ...


class L1TransactionIndex(Protocol):
    """The stored L1 transactions and origins of validations. Methods raise StoreDown."""

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        """Return an accepted L1 transaction."""
        ...

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        """Return the transactions that change a validation, newest first."""
        ...

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return the origin of a validation."""
        ...

    async def store_origin(self, origin: Origin, source: str) -> None:
        """Store an origin that was not found by the follower."""
        ...


class EvmLogReader(Protocol):
    """The nodes of one EVM chain. Methods raise NodeUnavailable."""

    async def block_number(self) -> int:
        """Return the number of the last accepted block."""
        ...

    async def logs(self, log_filter: LogFilter) -> tuple[EvmLog, ...]:
        """Return logs in the order of the chain. Raises LogsRefused if the range is too long."""
        ...
