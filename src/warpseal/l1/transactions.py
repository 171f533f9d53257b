"""Finds an accepted transaction by its hash, in the store, else at a node.

A transaction is cached, because it never changes. A miss is cached for a second only, because
callers wait for the transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cachetools import LRUCache
from msgspec import Struct

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_txs import parse_p_tx
from warpseal.chains.x_txs import parse_x_tx
from warpseal.l1.errors import TransactionNotFound
from warpseal.l1.interfaces import L1Platform, L1TransactionIndex
from warpseal.l1.settings import L1Settings
from warpseal.messages.attestation import Attestation, derive_attestation
from warpseal.messages.errors import NoMessage, UndecodableTransaction
from warpseal.node.p_chain import TxStatus
from warpseal.runtime.single_flight import SingleFlight
from warpseal.runtime.ttl_cache import TtlCache
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import id_text

log = logging.getLogger(__name__)

P_CHAIN_NAME: Final = "P-Chain"
X_CHAIN_NAME: Final = "X-Chain"
_MAX_MISSED: Final = 4_096


class LocatedTransaction(Struct, frozen=True):
    """An accepted transaction.

    height: height of its block if `is_exact`, else an upper bound; None on the X-Chain.
    attestation: message of the transaction, None if its kind has none.
    """

    tx_id: bytes
    kind: str
    chain: str
    height: int | None
    is_exact: bool
    attestation: Attestation | None

    def message(self) -> Attestation:
        """Return the attestation. Raises NoMessage."""
        if self.attestation is None:
            raise NoMessage(self.kind, self.chain)
        return self.attestation


class TransactionFinder:
    """Used from one event loop. Concurrent requests for one transaction share one lookup."""

    def __init__(
        self,
        platform: L1Platform,
        read_x_chain_tx: Callable[[bytes], Awaitable[bytes | None]],
        index: L1TransactionIndex,
        network_id: int,
        settings: L1Settings,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._platform = platform
        self._read_x_chain_tx = read_x_chain_tx
        self._index = index
        self._network_id = network_id
        self._located: LRUCache[bytes, LocatedTransaction] = LRUCache(
            settings.max_cached_transactions
        )
        self._miss_ttl_s = settings.miss_ttl_s
        self._missed: TtlCache[bytes, TxStatus | None] = TtlCache(_MAX_MISSED, now)
        self._flights: SingleFlight[bytes, LocatedTransaction] = SingleFlight()

    async def find(self, tx_id: bytes) -> LocatedTransaction:
        """Return an accepted transaction.

        Raises TransactionNotFound, UndecodableTransaction, NodeUnavailable.
        """
        located = self._located.get(tx_id)
        if located is not None:
            return located
        missed = self._missed.get(tx_id)
        if missed is not None:
            raise _not_found(tx_id, missed.value)
        return await self._flights.run(tx_id, lambda: self._look_up(tx_id))

    async def _look_up(self, tx_id: bytes) -> LocatedTransaction:
        try:
            row = await self._index.transaction(tx_id)
        except StoreDown:
            row = None
        if row is None:
            located = await self._fetch(tx_id)
        else:
            _, attestation = self._derive(tx_id, row.raw)
            located = LocatedTransaction(
                tx_id, row.kind, P_CHAIN_NAME, row.height, True, attestation
            )
        self._located[tx_id] = located
        return located

    async def _fetch(self, tx_id: bytes) -> LocatedTransaction:
        transaction = await self._platform.transaction(tx_id)
        if transaction is None:
            return await self._fetch_from_x_chain(tx_id)
        if transaction.status in (TxStatus.COMMITTED, TxStatus.ABORTED):
            kind, attestation = self._derive(tx_id, transaction.raw)
            if transaction.status is TxStatus.COMMITTED or attestation is None:
                return LocatedTransaction(
                    tx_id, kind, P_CHAIN_NAME, transaction.height, False, attestation
                )
        raise self._note_miss(tx_id, transaction.status)

    def _note_miss(self, tx_id: bytes, status: TxStatus | None) -> TransactionNotFound:
        self._missed.put(tx_id, status, self._miss_ttl_s)
        return _not_found(tx_id, status)

    async def _fetch_from_x_chain(self, tx_id: bytes) -> LocatedTransaction:
        """Return a transaction of the X-Chain, so that its caller learns that it has no message."""
        try:
            raw = await self._read_x_chain_tx(tx_id)
        except NodeUnavailable:
            raw = None
        if raw is None:
            raise self._note_miss(tx_id, None)
        try:
            kind = parse_x_tx(raw).kind
        except MalformedChainBytes as error:
            raise UndecodableTransaction(id_text(tx_id), str(error)) from None
        return LocatedTransaction(tx_id, kind, X_CHAIN_NAME, None, False, None)

    def _derive(self, tx_id: bytes, raw: bytes) -> tuple[str, Attestation | None]:
        try:
            tx = parse_p_tx(raw)
        except MalformedChainBytes as error:
            log.error(
                "an accepted transaction is undecodable",
                extra={"tx_id": id_text(tx_id), "reason": str(error)},
            )
            raise UndecodableTransaction(id_text(tx_id), str(error)) from None
        try:
            return tx.kind, derive_attestation(tx, self._network_id)
        except NoMessage:
            return tx.kind, None


def _not_found(tx_id: bytes, status: TxStatus | None) -> TransactionNotFound:
    return TransactionNotFound(id_text(tx_id), status.value if status else None)
