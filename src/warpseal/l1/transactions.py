"""Finds a transaction by its hash: in the own index, else at a node, and says what became of it.

What was found is kept, because it never changes; what was not found is forgotten within a second, because callers
wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_txs import parse_p_tx
from warpseal.chains.x_txs import parse_x_tx
from warpseal.errors import NodeUnavailable, NoMessage, StoreDown, TransactionNotFound, UndecodableTransaction
from warpseal.l1.attestation import Attestation, derive_attestation
from warpseal.l1.ports import Index, Platform, XChain
from warpseal.l1.settings import L1Settings
from warpseal.node.p_chain import FoundTransaction, TxStatus
from warpseal.runtime.single_flight import SingleFlight
from warpseal.store.values import L1Transaction
from warpseal.validators.recent import RecentCache
from warpseal.warp.ids import id_text

log = logging.getLogger(__name__)

P_CHAIN_NAME: Final = "P-Chain"
X_CHAIN_NAME: Final = "X-Chain"
_MAX_MISSED: Final = 4_096


@dataclass(frozen=True, slots=True)
class LocatedTransaction:
    """A transaction that was accepted. height: at or below it, exactly it where is_exact; None on the X-Chain.

    derived: None where a transaction of this kind has no message.
    """

    tx_id: bytes
    kind: str
    chain: str
    height: int | None
    is_exact: bool
    derived: Attestation | None

    def message(self) -> Attestation:
        """Return what follows from the transaction. Raises NoMessage."""
        if self.derived is None:
            raise NoMessage(self.kind, self.chain)
        return self.derived


class TransactionFinder:
    """Used from one event loop; one look-up per transaction, whoever asks."""

    def __init__(
        self,
        platform: Platform,
        x_chain: XChain,
        index: Index,
        network_id: int,
        settings: L1Settings,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._platform = platform
        self._x_chain = x_chain
        self._index = index
        self._network_id = network_id
        self._miss_kept_s = settings.miss_ttl_s
        self._found: RecentCache[bytes, LocatedTransaction] = RecentCache(settings.max_cached_transactions, now)
        self._missed: RecentCache[bytes, TxStatus | None] = RecentCache(_MAX_MISSED, now)
        self._flights: SingleFlight[bytes, LocatedTransaction] = SingleFlight()

    async def find(self, tx_id: bytes) -> LocatedTransaction:
        """Return an accepted transaction. Raises TransactionNotFound, UndecodableTransaction, NodeUnavailable."""
        found = self._found.get(tx_id)
        if found is not None:
            return found.value
        missed = self._missed.get(tx_id)
        if missed is not None:
            raise _not_found(tx_id, missed.value)
        return await self._flights.run(tx_id, lambda: self._look(tx_id))

    async def _look(self, tx_id: bytes) -> LocatedTransaction:
        row = await self._indexed(tx_id)
        located = self._of_row(row) if row is not None else await self._at_node(tx_id)
        self._found.put(tx_id, located)
        return located

    async def _indexed(self, tx_id: bytes) -> L1Transaction | None:
        try:
            return await self._index.transaction(tx_id)
        except StoreDown:
            return None

    def _of_row(self, row: L1Transaction) -> LocatedTransaction:
        return LocatedTransaction(
            row.tx_id, row.kind, P_CHAIN_NAME, row.height, True, self._derived(row.tx_id, row.raw)[1]
        )

    async def _at_node(self, tx_id: bytes) -> LocatedTransaction:
        found = await self._platform.transaction(tx_id)
        if found is None:
            return await self._on_x_chain(tx_id)
        if found.status in (TxStatus.COMMITTED, TxStatus.ABORTED):
            kind, derived = self._derived(tx_id, found.raw)
            if found.status is TxStatus.COMMITTED or derived is None:
                return LocatedTransaction(tx_id, kind, P_CHAIN_NAME, found.height, False, derived)
        raise self._miss(tx_id, found)

    def _miss(self, tx_id: bytes, found: FoundTransaction | None) -> TransactionNotFound:
        status = found.status if found else None
        self._missed.put(tx_id, status, keep_s=self._miss_kept_s)
        return _not_found(tx_id, status)

    async def _on_x_chain(self, tx_id: bytes) -> LocatedTransaction:
        """Return a transaction of the X-Chain, so that its caller learns that waiting is in vain."""
        try:
            raw = await self._x_chain.transaction(tx_id)
        except NodeUnavailable:
            raw = None
        if raw is None:
            raise self._miss(tx_id, None)
        try:
            kind = parse_x_tx(raw).kind
        except MalformedChainBytes as error:
            raise UndecodableTransaction(id_text(tx_id), str(error)) from None
        return LocatedTransaction(tx_id, kind, X_CHAIN_NAME, None, False, None)

    def _derived(self, tx_id: bytes, raw: bytes) -> tuple[str, Attestation | None]:
        try:
            tx = parse_p_tx(raw)
        except MalformedChainBytes as error:
            log.error("an accepted transaction cannot be read", extra={"tx_id": id_text(tx_id), "reason": str(error)})
            raise UndecodableTransaction(id_text(tx_id), str(error)) from None
        try:
            return tx.kind, derive_attestation(tx, self._network_id)
        except NoMessage:
            return tx.kind, None


def _not_found(tx_id: bytes, status: TxStatus | None) -> TransactionNotFound:
    return TransactionNotFound(id_text(tx_id), status.value if status else None)
