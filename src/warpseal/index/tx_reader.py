"""Transactions as they are told to callers, from their rows: a page of them in a dozen statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import zstandard

from warpseal.chains.ids import Address, BlockID, TxID
from warpseal.history.chains import PrimaryChains
from warpseal.history.outputs import Amount
from warpseal.history.transactions import (
    AssetCreation,
    BlsKey,
    CTransaction,
    EvmInput,
    EvmOutput,
    L1Change,
    Manager,
    NewBlockchain,
    Owner,
    PTransaction,
    Transaction,
    Vertex,
    XTransaction,
)
from warpseal.index import type_codes
from warpseal.index.details import BLS_KEY_BYTES, ChainRef, StakeDetail, TxDetail, decode_stake, decode_tx
from warpseal.index.keys import CHAINS, C, P, block_key, chain_of
from warpseal.index.output_reader import OutputReader, amounts, signers
from warpseal.index.raw_blocks import MAX_BODY_BYTES
from warpseal.index.read_session import ReadSession
from warpseal.index.stakings import COMPLETED
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID

_ROWS: Final = "SELECT key, tx_id, height, time, kind, first_out, outs, moved, detail FROM txs WHERE key IN {keys}"
_STAKINGS: Final = (
    "SELECT tx, start_s, end_s, shares, state, potential, closed_by, detail, node, subnet FROM stakings"
    " WHERE tx IN {keys}"
)


@dataclass(slots=True)
class _Tx:
    key: int
    tx_id: TxID
    height: int | None
    time: int
    kind: int
    first_out: int
    outs: int
    moved: int
    raw_detail: bytes
    detail: TxDetail = field(init=False)

    def __post_init__(self) -> None:
        self.tx_id = TxID(bytes(self.tx_id))
        self.detail = decode_tx(self.raw_detail)

    @property
    def emitted(self) -> tuple[int, ...]:
        return (*self.detail.released, *range(self.first_out, self.first_out + self.outs))


@dataclass(slots=True)
class _Staking:
    tx: int
    start_s: int
    end_s: int
    shares: int | None
    state: int
    potential: int | None
    closed_by: int | None
    raw_detail: bytes
    node: int
    subnet: int
    detail: StakeDetail = field(init=False)

    def __post_init__(self) -> None:
        self.detail = decode_stake(self.raw_detail)


class TxReader:
    """The transactions of one page."""

    def __init__(self, reading: ReadSession, chains: PrimaryChains) -> None:
        self._reading = reading
        self._ids = [chains.id_of(chain) for chain in CHAINS]
        self._outputs = OutputReader(reading)
        self._rows: dict[int, _Tx] = {}
        self._stakings: dict[int, _Staking] = {}
        self._blocks: dict[int, BlockID] = {}
        self._validations: dict[int, tuple[int, int, bytes]] = {}
        self._made_chains: dict[int, tuple[str, bytes, bytes]] = {}
        self._assets: dict[int, tuple[int, int]] = {}

    def load_rows(self, keys: Sequence[int]) -> None:
        """Find the transactions themselves."""
        for row in self._reading.by_keys(_ROWS, keys):
            self._rows[row[0]] = _Tx(*row)

    def moved(self, key: int) -> int:
        """Return how many outputs a transaction consumes, makes and releases."""
        return self._rows[key].moved

    def of(self, keys: Sequence[int]) -> tuple[Transaction, ...]:
        """Return transactions whose rows were loaded."""
        rows = [self._rows[key] for key in keys]
        self._load(rows)
        return tuple([self._value(row) for row in rows])

    def _load(self, rows: Sequence[_Tx]) -> None:
        reading = self._reading
        for row in reading.by_keys(_STAKINGS, (row.key for row in rows if row.kind in _STAKES)):
            self._stakings[row[0]] = _Staking(*row)
        more = {one.closed_by for one in self._stakings.values() if one.closed_by is not None}
        more.update(row.detail.closes for row in rows if isinstance(row.detail.closes, int))
        self._outputs.load((key for row in rows for key in (*row.detail.inputs, *row.emitted)), more)
        blocks = {block_key(chain_of(row.key), row.height) for row in rows if row.height is not None}
        for key, block_id in reading.by_keys("SELECT key, block_id FROM blocks WHERE key IN {keys}", blocks):
            self._blocks[key] = BlockID(bytes(block_id))
        self._load_l1(rows)
        self._load_made(rows)
        reading.load_ids(_ids_of(rows, self._stakings.values(), self._validations.values()))
        reading.load_assets(_assets_of(rows))

    def _load_l1(self, rows: Sequence[_Tx]) -> None:
        keys = {change[0] for row in rows for change in row.detail.l1}
        text = "SELECT validation, node, subnet, bls FROM validations WHERE validation IN {keys}"
        for key, node, subnet, bls in self._reading.by_keys(text, keys):
            self._validations[key] = (node, subnet, bytes(bls))

    def _load_made(self, rows: Sequence[_Tx]) -> None:
        chains = (row.detail.blockchain for row in rows if row.detail.blockchain is not None)
        text = "SELECT chain, name, vm_id, genesis FROM blockchains WHERE chain IN {keys}"
        for key, name, vm_id, genesis in self._reading.by_keys(text, chains):
            self._made_chains[key] = (name, bytes(vm_id), decompress_genesis(genesis))
        assets = (row.detail.asset for row in rows if row.detail.asset is not None)
        text = "SELECT asset, is_fixed, made_at FROM assets WHERE asset IN {keys}"
        for key, is_fixed, made_at in self._reading.by_keys(text, assets):
            self._assets[key] = (is_fixed, made_at)

    def _value(self, row: _Tx) -> Transaction:
        chain = chain_of(row.key)
        return self._p(row) if chain == P else self._c(row) if chain == C else self._x(row)

    def _p(self, row: _Tx) -> PTransaction:
        detail, reading, emitted = row.detail, self._reading, row.emitted
        made = {
            **self._common(row),
            "value": self._outputs.sums(emitted),
            "burned": amounts(reading, dict(detail.burned)),
            "memo": detail.memo,
        }
        if detail.l1_funded is not None:
            made["l1_funded"] = amounts(reading, dict([detail.l1_funded]))
        if detail.source is not None or detail.destination is not None:
            made["source_chain"], made["destination_chain"] = (
                self._chain(detail.source),
                self._chain(detail.destination),
            )
        if detail.node is not None:
            made["node_id"] = NodeID(reading.id_of(detail.node))
        if detail.subnet is not None:
            made["subnet_id"] = SubnetID(reading.id_of(detail.subnet))
        if detail.closes is not None:
            closes = detail.closes
            made["staking_tx_id"] = self._outputs.tx(closes).tx_id if isinstance(closes, int) else TxID(closes)
        if row.kind in _STAKES:
            made["staked"] = self._outputs.sums(emitted, staked_only=True)
            self._tell_staking(row.key, made)
        if row.kind in _RARE:
            self._tell_rare(detail, made)
        return PTransaction(**made)

    def _tell_staking(self, key: int, made: dict[str, Any]) -> None:
        made["bls"] = bls_of(self._rows[key].detail.bls)
        staking = self._stakings.get(key)
        if staking is None:
            return
        made["start"], made["end"] = staking.start_s, staking.end_s
        made["delegation_fee_shares"], made["estimated_reward"] = staking.shares, staking.potential
        if staking.state == COMPLETED and staking.closed_by is not None:
            made["reward_tx_id"] = self._outputs.tx(staking.closed_by).tx_id
        made["reward_addresses"] = addresses_of(self._reading, staking.detail)

    def _tell_rare(self, detail: TxDetail, made: dict[str, Any]) -> None:
        if detail.manager is not None:
            made["manager"] = Manager(ChainID(detail.manager[0]), detail.manager[1])
        if detail.owner is not None:
            locktime, threshold, addresses = detail.owner
            made["subnet_owner"] = Owner(locktime, threshold, self._addresses(addresses))
        if detail.blockchain is not None:
            made["blockchain"] = NewBlockchain(*self._made_chains[detail.blockchain])
        made["l1_changes"] = tuple([self._l1(*change) for change in detail.l1])

    def _l1(self, validation: int, weight: int, balance: int, change: int) -> L1Change:
        node, subnet, bls = self._validations[validation]
        id_of = self._reading.id_of
        return L1Change(
            validation_id=ValidationID(id_of(validation)),
            node_id=NodeID(id_of(node)),
            subnet_id=SubnetID(id_of(subnet)),
            weight=weight,
            remaining_navax=balance,
            change_navax=change or None,
            bls=bls_of(bls),
        )

    def _x(self, row: _Tx) -> XTransaction:
        detail = row.detail
        return XTransaction(
            **self._common(row),
            memo=detail.memo,
            source_chain=self._chain(detail.source),
            destination_chain=self._chain(detail.destination),
            asset_created=None if detail.asset is None else self._asset(detail.asset),
            vertices=tuple([Vertex(*vertex) for vertex in detail.vertices]),
            is_time_approximate=detail.is_approximate,
        )

    def _asset(self, key: int) -> AssetCreation:
        is_fixed, made_at = self._assets[key]
        return AssetCreation(self._reading.asset_of(key), made_at, bool(is_fixed))

    def _c(self, row: _Tx) -> CTransaction:
        detail, reading = row.detail, self._reading
        is_export = not detail.inputs
        moved = [
            (reading.id_of(account)[1:], Amount(reading.asset_of(asset), amount), signers(detail, signed))
            for account, asset, amount, signed in detail.accounts
        ]
        return CTransaction(
            **self._common(row),
            source_chain=self._known_chain(detail.source),
            destination_chain=self._known_chain(detail.destination),
            evm_inputs=tuple([EvmInput(*one) for one in moved]) if is_export else (),
            evm_outputs=() if is_export else tuple([EvmOutput(*one[:2]) for one in moved]),
        )

    def _common(self, row: _Tx) -> dict[str, Any]:
        place = None if row.height is None else self._blocks[block_key(chain_of(row.key), row.height)]
        return {
            "tx_id": row.tx_id,
            "kind": type_codes.tx_name(row.kind),
            "time": row.time,
            "height": row.height,
            "block_id": place,
            "consumed": self._outputs.of(row.detail.inputs),
            "emitted": self._outputs.of(row.emitted),
        }

    def _chain(self, ref: ChainRef | None) -> ChainID | None:
        return None if ref is None else self._known_chain(ref)

    def _known_chain(self, ref: ChainRef | None) -> ChainID:
        assert ref is not None
        return self._ids[ref] if isinstance(ref, int) else ChainID(ref)

    def _addresses(self, keys: Iterable[int]) -> tuple[Address, ...]:
        return tuple([Address(self._reading.id_of(key)) for key in keys])


def addresses_of(reading: ReadSession, detail: StakeDetail) -> tuple[Address, ...]:
    """Return whom a staking's rewards go to, each once; their keys were loaded."""
    keys = dict.fromkeys((*detail.own, *detail.of_delegations))
    return tuple([Address(reading.id_of(key)) for key in keys])


def bls_of(raw: bytes) -> BlsKey | None:
    """Return a key and its proof of possession, from both joined; None of nothing."""
    return BlsKey(raw[:BLS_KEY_BYTES], raw[BLS_KEY_BYTES:]) if raw else None


def decompress_genesis(genesis: bytes) -> bytes:
    """Return the genesis of a blockchain as it was given."""
    return zstandard.ZstdDecompressor().decompress(bytes(genesis), max_output_size=MAX_BODY_BYTES)


def _ids_of(
    rows: Iterable[_Tx], stakings: Iterable[_Staking], validations: Iterable[tuple[int, int, bytes]]
) -> set[int]:
    keys: set[int] = set()
    for row in rows:
        detail = row.detail
        keys.update(key for key in (detail.node, detail.subnet) if key is not None)
        keys.update(change[0] for change in detail.l1)
        keys.update(account[0] for account in detail.accounts)
        if detail.owner is not None:
            keys.update(detail.owner[2])
    for staking in stakings:
        keys.update((*staking.detail.own, *staking.detail.of_delegations))
    for node, subnet, _ in validations:
        keys.update((node, subnet))
    return keys


def _assets_of(rows: Iterable[_Tx]) -> set[int]:
    keys: set[int] = set()
    for row in rows:
        detail = row.detail
        keys.update(asset for asset, _ in detail.burned)
        keys.update(account[1] for account in detail.accounts)
        keys.update(key for key in (detail.asset, detail.l1_funded and detail.l1_funded[0]) if key is not None)
    return keys


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(map(type_codes.tx_number, names))


# Of types without a name only stakings are known (Helicon); they are told as such where they are.
_STAKES: Final = _numbers(
    *("AddValidatorTx", "AddDelegatorTx", "AddSubnetValidatorTx", "AddPermissionlessValidatorTx"),
    *("AddPermissionlessDelegatorTx", "UNKNOWN"),
)
_RARE: Final = _numbers(
    *("CreateSubnetTx", "CreateChainTx", "TransferSubnetOwnershipTx", "ConvertSubnetToL1Tx", "RegisterL1ValidatorTx"),
    *("SetL1ValidatorWeightTx", "IncreaseL1ValidatorBalanceTx", "DisableL1ValidatorTx"),
)
