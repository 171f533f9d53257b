"""The P-Chain as the rows of the index have it, for lookups that no node answers.

A row proves that something exists at the height of the index; a missing row proves nothing, since
the index may lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.p_txs import ConvertSubnetToL1Tx, PSignedTx, SetL1ValidatorWeightTx
from warpseal.chains.proposervm import inner_block
from warpseal.index.columns import ABORTED, PROPOSED, UNKNOWN, tx_number
from warpseal.index.keys import P, from_column, partition_of, prefix_of
from warpseal.index.l1_rows import L1ValidatorRow, read_l1_rows
from warpseal.index.read_session import ReadSession
from warpseal.index.stakings import ACTIVE
from warpseal.node.p_chain import (
    CurrentValidation,
    FoundTransaction,
    L1ValidatorState,
    Subnet,
    TxStatus,
    ValidationAt,
)
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID

T = TypeVar("T")

_TIP: Final = (
    "SELECT height, time, first_height, next_tx FROM chains WHERE chain = ? AND height >= 0"
)
_STAKES: Final = (
    "SELECT t.tx_id, t.kind, s.node, s.start_s, s.end_s, s.weight, s.active_weight"
    " FROM stakings s JOIN txs t ON t.key = s.tx"
    " WHERE s.state < 2 AND s.state = ? AND s.is_delegation = 0 AND s.subnet = ?"
)
_CONVERSION: Final = tx_number(ConvertSubnetToL1Tx.__name__)
_CHANGE: Final = tx_number(SetL1ValidatorWeightTx.__name__)


class ChainTip(NamedTuple):
    """The last indexed block.

    is_complete: the index begins with the genesis.
    next_tx: key that the next transaction gets.
    """

    height: int
    time_s: int
    is_complete: bool
    next_tx: int


def read_rows(session: ReadSession, query: Callable[[PChainRows], T | None]) -> T | None:
    """Return the result of a query; None also if no block is indexed."""
    tips = session.rows(_TIP, P)
    if not tips:
        return None
    height, time_s, first_height, next_tx = tips[0]
    return query(PChainRows(session, ChainTip(height, time_s, not first_height, next_tx)))


class PChainRows:
    """The rows of one snapshot. Methods return None if the rows do not decide.

    tip: last block of the chain in the snapshot.
    """

    def __init__(self, session: ReadSession, tip: ChainTip) -> None:
        self.tip = tip
        self._session = session

    def subnet_of(self, chain_id: ChainID) -> SubnetID | None:
        """Return the subnet that validates a chain."""
        rows = self._by_id("SELECT subnet FROM blockchains WHERE chain = ?", chain_id)
        self._session.load_ids(subnet for (subnet,) in rows)
        return SubnetID(self._session.id_of(rows[0][0])) if rows else None

    def blockchains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...] | None:
        """Return the chains that a subnet validates."""
        chains = [
            chain
            for (chain,) in self._by_id("SELECT chain FROM blockchains WHERE subnet = ?", subnet_id)
        ]
        self._session.load_ids(chains)
        return tuple([ChainID(self._session.id_of(chain)) for chain in chains]) or None

    def subnet(self, subnet_id: SubnetID) -> Subnet | None:
        """Return the record of a subnet."""
        text = (
            "SELECT min(t.tx)"
            " FROM validations v JOIN validation_txs t ON t.validation = v.validation"
            f" WHERE v.subnet = ? AND t.kind = {_CONVERSION}"
        )
        rows = self._by_id(text, subnet_id)
        conversion = None
        if rows and rows[0][0] is not None:
            conversion = self._tx(rows[0][0])
        if conversion is not None:
            unsigned = conversion.unsigned
            assert isinstance(unsigned, ConvertSubnetToL1Tx)
            return Subnet(
                subnet_id,
                unsigned.conversion_id,
                unsigned.manager_chain_id,
                unsigned.manager_address,
            )
        # A subnet's ID is the ID of the transaction that created it. Without the genesis a
        # conversion may be missing.
        if self.tip.is_complete and self._tx_key(subnet_id) is not None:
            return Subnet(subnet_id)
        return None

    def converted_subnets(self) -> tuple[SubnetID, ...]:
        """Return the subnets that were converted to L1s, also those without validators."""
        keys = [
            subnet for (subnet,) in self._session.rows("SELECT DISTINCT subnet FROM validations")
        ]
        self._session.load_ids(keys)
        return tuple([SubnetID(self._session.id_of(key)) for key in keys])

    def current_validations(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...] | None:
        """Return the validations of a subnet at the tip, if the index begins with the genesis."""
        if not self.tip.is_complete:
            return None
        stakes = self._by_id(_STAKES, subnet_id, ACTIVE)
        members = [row for row in self._l1_rows("subnet", subnet_id) if row.weight]
        self._session.load_ids(
            [*(row.node for row in members), *(row.validation for row in members)]
        )
        self._session.load_ids(row[2] for row in stakes)
        id_of = self._session.id_of
        of_stakes = [
            CurrentValidation(
                bytes(tx_id),
                NodeID(id_of(node)),
                from_column(weight),
                start_s,
                # The type of stakes that renew themselves has no number yet.
                end_unix_s=None if kind == UNKNOWN else end_s,
                delegated=from_column(delegated),
            )
            for tx_id, kind, node, start_s, end_s, weight, delegated in stakes
        ]
        of_l1 = [
            CurrentValidation(
                id_of(row.validation), NodeID(id_of(row.node)), row.weight, row.start_s, row.balance
            )
            for row in members
        ]
        return (*of_stakes, *of_l1) or None

    def l1_validator(self, validation_id: ValidationID) -> ValidationAt | None:
        """Return the state of a validation at the tip, if it ever existed."""
        row = next(iter(self._l1_rows("validation", validation_id)), None)
        if row is None:
            return None
        if not row.weight:
            return ValidationAt(self.tip.height, None)
        self._session.load_ids([row.subnet])
        text = f"SELECT max(tx) FROM validation_txs WHERE validation = ? AND kind = {_CHANGE}"
        key = self._session.rows(text, row.validation)[0][0]
        nonce = 0
        if key is not None:
            change = self._tx(key)
            if change is None or not isinstance(change.unsigned, SetL1ValidatorWeightTx):
                return None
            nonce = change.unsigned.change().nonce + 1
        state = L1ValidatorState(
            SubnetID(self._session.id_of(row.subnet)), row.weight, nonce, row.balance
        )
        return ValidationAt(self.tip.height, state)

    def transaction(self, tx_id: bytes) -> FoundTransaction | None:
        """Return a transaction."""
        key = self._tx_key(tx_id)
        tx = None if key is None else self._tx(key)
        if tx is None:
            return None
        ((outcome, height),) = self._session.rows(
            "SELECT outcome, height FROM txs WHERE key = ?", key
        )
        status = {ABORTED: TxStatus.ABORTED, PROPOSED: TxStatus.PROCESSING}.get(
            outcome, TxStatus.COMMITTED
        )
        return FoundTransaction(tx.raw, status, height)

    def _l1_rows(self, column: str, raw_id: bytes) -> Iterable[L1ValidatorRow]:
        """Return the L1 validators of a subnet, or one of them, as they are at the tip."""
        key = self._session.keys_of([raw_id]).get(raw_id)
        if key is None:
            return ()
        return read_l1_rows(self._session, self.tip.height, f"v.{column} = ?", key)

    def _tx_key(self, tx_id: bytes) -> int | None:
        partitions = range(partition_of(self.tip.next_tx) + 1)
        text = (
            "SELECT t.key, t.tx_id FROM tx_ids i JOIN txs t ON t.key = i.tx"
            " WHERE i.partition IN {keys} AND i.prefix = ?"
        )
        rows = self._session.by_keys(text, partitions, prefix_of(tx_id))
        return next((key for key, other_id in rows if bytes(other_id) == tx_id), None)

    def _tx(self, key: int) -> PSignedTx | None:
        """Return a transaction from its block."""
        ((tx_id, height),) = self._session.rows("SELECT tx_id, height FROM txs WHERE key = ?", key)
        if height is None:
            return None
        block = parse_p_block(inner_block(self._session.raw_block(P, height)))
        return next((tx for tx in block.txs if tx.id == bytes(tx_id)), None)

    def _by_id(self, text: str, raw_id: bytes, *values: int) -> Sequence[Any]:
        """Return the rows of a statement whose last value is the key of an ID.

        The result is empty if the index has no such ID.
        """
        key = self._session.keys_of([raw_id]).get(raw_id)
        return () if key is None else self._session.rows(text, *values, key)
