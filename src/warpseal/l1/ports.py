"""What signed messages by transaction need of other rooms, no more: the real thing stands behind it, or a test's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from warpseal.aggregation.service import Aggregation, AggregationRequest
from warpseal.node.evm import EvmLog, LogFilter
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import FoundTransaction, ValidationAt
from warpseal.store.values import ArchiveEntry, EagerTask, L1Transaction, Origin
from warpseal.warp.ids import ChainID, MessageID, SubnetID, ValidationID
from warpseal.warp.validator_set import CanonicalValidatorSet

Progress = Callable[[], Mapping[str, Any]]
"""Tells how far the follower of the P-Chain is, JSON-ready."""


class Platform(Protocol):
    """The P-Chain; every method raises NodeUnavailable unless it says otherwise."""

    async def transaction(self, tx_id: bytes) -> FoundTransaction | None:
        """Return a transaction with what became of it; None: no node has it."""
        ...

    async def l1_validator(self, validation_id: ValidationID, at_least: int = 0) -> ValidationAt | None:
        """Return what a node says that is at the height `at_least` or above; None: all lag."""
        ...

    async def l1_validator_each(self, validation_id: ValidationID) -> tuple[ValidationAt, ...]:
        """Return what every node says that answers; raises nothing for a node."""
        ...

    async def subnets(self) -> tuple[SubnetID, ...]:
        """Return the ids of all subnets."""
        ...


class XChain(Protocol):
    """The X-Chain."""

    async def transaction(self, tx_id: bytes) -> bytes | None:
        """Return a transaction's signed bytes; None: no node has it. Raises NodeUnavailable."""
        ...


class Index(Protocol):
    """What the follower found; every method raises StoreDown."""

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        """Return an accepted transaction about an L1."""
        ...

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        """Return the transactions about a validation, newest first."""
        ...

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return where a validation began."""
        ...

    async def keep_origin(self, origin: Origin, source: str) -> None:
        """Keep an origin that was found otherwise."""
        ...


class EagerQueue(Protocol):
    """What is to be aggregated unasked; every method raises StoreDown."""

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        """Return an accepted transaction about an L1."""
        ...

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return where a validation began."""
        ...

    async def newest(self, limit: int) -> tuple[L1Transaction, ...]:
        """Return the accepted transactions of the highest blocks, newest first."""
        ...

    async def eager_due(self, now_unix_s: float, limit: int) -> Sequence[EagerTask]:
        """Return what is due, the longest overdue first."""
        ...

    async def eager_schedule(self, tx_id: bytes, at_unix_s: float, attempts: int) -> None:
        """Plan a transaction, or plan it anew."""
        ...

    async def eager_done(self, tx_id: bytes) -> None:
        """Forget a transaction's plan."""
        ...


class Lead(Protocol):
    """The right to do eager work, which one process has at a time."""

    @property
    def is_leader(self) -> bool:
        """Whether this process has it."""
        ...

    async def wait_until_held(self) -> None:
        """Return once this process has it."""
        ...


class Chains(Protocol):
    """Which subnet validates a chain."""

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        """Return it. Raises UnknownChain, NodeUnavailable."""
        ...


class Epochs(Protocol):
    """Epoch heights of chains."""

    async def height(self, chain_id: ChainID, origin: CallOrigin = ...) -> int | None:
        """Return a chain's; None: no node runs the chain, or it has none. Raises NodeUnavailable."""
        ...


class Heights(Protocol):
    """The proposed height."""

    async def first(self) -> int:
        """Return it, waiting for the first poll. Raises NodeUnavailable."""
        ...


class Sets(Protocol):
    """Canonical validator sets."""

    async def at(self, subnet_id: SubnetID, height: int, *, named: bool, epoch: bool = False) -> CanonicalValidatorSet:
        """Return a set. Raises HeightTooOld, HeightTooNew, NodeUnavailable."""
        ...


class Archive(Protocol):
    """What was signed before."""

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        """Return what is kept of a message; nothing while the store is down."""
        ...


class Aggregator(Protocol):
    """The aggregation core."""

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        """Return a signed message. Raises QuorumNotReached, QuorumImpossible and what the resolver raises."""
        ...


class Evm(Protocol):
    """The nodes of one EVM chain; every method raises NodeUnavailable."""

    async def block_number(self) -> int:
        """Return the number of the last accepted block."""
        ...

    async def logs(self, wanted: LogFilter) -> tuple[EvmLog, ...]:
        """Return logs in the order of the chain. Raises LogsRefused where the range is too long."""
        ...
