"""Contracts whose kind, name and symbol are called, and the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from warpseal.chains.evm.facts import TokenStandard
from warpseal.index import bulk
from warpseal.index.evm.keys import ERC_TYPES, RequestKind, encode_text
from warpseal.index.evm.records import ContractFacts, ContractToCall
from warpseal.index.evm.schema import CONTRACTS, REQUESTS
from warpseal.index.evm.write_session import EvmWriteSession
from warpseal.store.connection import Connection

_STANDARDS: Final = (
    frozenset[TokenStandard](),
    frozenset({TokenStandard.ERC721}),
    frozenset({TokenStandard.ERC1155}),
    frozenset(TokenStandard),
)
_MAX_DECIMALS: Final = 255
_MAX_KEY: Final = 2**63 - 1
_DUE: Final = (
    "SELECT contract FROM contracts WHERE due_from IS NOT NULL AND contract > ? AND contract <= ?"
    " ORDER BY contract LIMIT ?"
)
_REQUESTED: Final = (
    "SELECT r.subject FROM requests r JOIN contracts c ON c.contract = r.subject WHERE r.kind = ?"
    " ORDER BY r.requested_at, r.subject LIMIT ?"
)
_TO_CALL: Final = (
    "SELECT i.key, i.id, coalesce((SELECT c.standards FROM collections c WHERE c.contract = i.key), 0)"
    " FROM ids i WHERE i.key IN {keys}"
)
_KNOWN: Final = (
    "SELECT i.id, i.key, c.due_from FROM ids i JOIN contracts c ON c.contract = i.key WHERE i.prefix IN {keys}"
)


class ContractWriter:
    """Returns contracts in turn, so that one that cannot be called does not hold up the others, and writes results."""

    def __init__(self, session: EvmWriteSession) -> None:
        self._session = session
        self._last = 0

    def forget(self) -> None:
        """Begin with the first contract again: the tables are empty."""
        self._last = 0

    def to_call(self, limit: int, *, only_requested: bool = False) -> Sequence[ContractToCall]:
        """Return contracts without results or with old ones: those that pages wait for, then the others in turn.

        A contract is returned again by later calls until `write` has its results.
        """
        with self._session.reading() as connection:
            requested = [row[0] for row in connection.fetch(_REQUESTED, int(RequestKind.CONTRACT), limit)]
            keys = dict.fromkeys(requested)
            for key in self._next_due(connection, 0 if only_requested else limit - len(requested)):
                keys[key] = None
                self._last = key
            rows = {key: (bytes(raw), standards) for key, raw, standards in bulk.run(connection, _TO_CALL, keys)}
        return [ContractToCall(rows[key][0], _STANDARDS[rows[key][1]], key in requested) for key in keys if key in rows]

    def write(self, results: Sequence[ContractFacts]) -> None:
        """Write the results of calls, after which requests for these contracts are done; skip unknown contracts."""
        by_address = {result.address: result for result in results}
        rows, done = [], []
        with self._session.adding() as connection:
            for raw, key, due_from in list(bulk.fetch_by_id(connection, _KNOWN, by_address)):
                result = by_address[raw]
                # A call that began below the height of an upgrade or a first event did not see it: it stays due.
                is_current = due_from is None or result.height >= due_from
                rows.append((key, None if is_current else due_from, *_result_columns(result)))
                done.append((int(RequestKind.CONTRACT), key))
            bulk.upsert(connection, CONTRACTS, sorted(rows))
            bulk.delete_pairs(connection, REQUESTS, done)

    def _next_due(self, connection: Connection, limit: int) -> list[int]:
        """Return the next contracts behind the last one, and then from the first one on."""
        if limit <= 0:
            return []
        rows = list(connection.fetch(_DUE, self._last, _MAX_KEY, limit))
        if len(rows) < limit:
            rows += connection.fetch(_DUE, 0, self._last, limit - len(rows))
        return [row[0] for row in rows]


def add_new(connection: Connection, contracts: Iterable[int]) -> None:
    """Add contracts that are to be called; existing rows stay."""
    rows = [(contract, 0, None, None, None, None, None) for contract in sorted(set(contracts))]
    bulk.insert_new(connection, CONTRACTS, rows)


def add_due(connection: Connection, contracts: Sequence[int], height: int) -> None:
    """Add contracts, or have existing ones called again: they have emitted the first event of a standard.

    height: height of the event or above. A call at a lower height did not see the event.
    """
    if contracts:
        add_new(connection, contracts)
        later = f"UPDATE contracts SET due_from = {height:d} WHERE contract IN {{keys}} AND coalesce(due_from, -1) < ?"
        bulk.run(connection, later, contracts, height)


def mark_upgraded(connection: Connection, upgraded: dict[bytes, int]) -> None:
    """Have contracts called again at the height of their upgrade or above."""
    for raw, key, due_from in list(bulk.fetch_by_id(connection, _KNOWN, upgraded)):
        if upgraded[raw] > (-1 if due_from is None else due_from):
            connection.run("UPDATE contracts SET due_from = ? WHERE contract = ?", upgraded[raw], key)


def _result_columns(result: ContractFacts) -> tuple[int, bytes | None, bytes | None, int | None, int]:
    name = None if result.name is None else encode_text(result.name)
    symbol = None if result.symbol is None else encode_text(result.symbol)
    decimals = result.decimals
    is_known = decimals is not None and 0 <= decimals <= _MAX_DECIMALS
    return ERC_TYPES.index(result.erc_type), name, symbol, decimals if is_known else None, result.height
