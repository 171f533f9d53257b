"""Transactions as resources, from their rows: a page of them in a dozen statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import zstandard

from warpseal.chains.ids import Address, BlockID, TxID
from warpseal.history.evm_genesis import evm_genesis, genesis_text
from warpseal.history.outputs import AssetAmount, asset_amount, asset_amounts
from warpseal.history.resources import (
    C_CHAIN_TX_TYPES,
    UNSET,
    X_CHAIN_TX_TYPES,
    PrimaryNetworkAssetCap,
    PrimaryNetworkTxType,
    UnsetType,
    or_unset,
    tx_type,
)
from warpseal.history.text import (
    NetworkText,
    account_text,
    hex_text,
    node_text,
    percent_text,
    shared_id_text,
)
from warpseal.history.transactions import (
    AssetCreated,
    BlockchainInfo,
    BlsCredentials,
    CChainTransaction,
    EvmInput,
    EvmOutput,
    L1ValidatorDetails,
    L1ValidatorManagerDetails,
    PChainTransaction,
    SubnetOwnershipInfo,
    Transaction,
    XChainTransaction,
    XChainVertex,
)
from warpseal.index import type_codes
from warpseal.index.details import BLS_KEY_BYTES, ChainRef, StakeDetail, TxDetail, decode_stake, decode_tx
from warpseal.index.keys import CHAINS, C, P, block_key, chain_of
from warpseal.index.output_reader import OutputReader, amounts_by_id, credentials
from warpseal.index.raw_blocks import MAX_BODY_BYTES
from warpseal.index.read_session import ReadSession
from warpseal.index.stakings import COMPLETED
from warpseal.warp.ids import ChainID, NodeID, id_text

_ROWS: Final = "SELECT key, tx_id, height, time, kind, first_out, outs, moved, detail FROM txs WHERE key IN {keys}"
_STAKINGS: Final = (
    "SELECT tx, start_s, end_s, shares, state, potential, closed_by, detail, node, subnet FROM stakings"
    " WHERE tx IN {keys}"
)


@dataclass(slots=True)
class _TxRow:
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
class _StakingRow:
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

    def __init__(self, session: ReadSession, text: NetworkText) -> None:
        self._session = session
        self._text = text
        self._outputs = OutputReader(session)
        self._rows: dict[int, _TxRow] = {}
        self._stakings: dict[int, _StakingRow] = {}
        self._block_ids: dict[int, BlockID] = {}
        self._validations: dict[int, tuple[int, int, bytes]] = {}
        self._blockchains: dict[int, tuple[str, bytes, bytes]] = {}
        self._assets: dict[int, tuple[int, int]] = {}

    def load_rows(self, keys: Sequence[int]) -> None:
        """Load the transactions themselves."""
        for columns in self._session.by_keys(_ROWS, keys):
            self._rows[columns[0]] = _TxRow(*columns)

    def count_outputs(self, key: int) -> int:
        """Return how many outputs a transaction consumes, makes and releases."""
        return self._rows[key].moved

    def transactions(self, keys: Sequence[int]) -> tuple[Transaction, ...]:
        """Return transactions whose rows were loaded."""
        rows = [self._rows[key] for key in keys]
        self._load(rows)
        return tuple([self._transaction(row) for row in rows])

    def _load(self, rows: Sequence[_TxRow]) -> None:
        session = self._session
        for columns in session.by_keys(_STAKINGS, (row.key for row in rows if row.kind in _STAKING_TYPES)):
            self._stakings[columns[0]] = _StakingRow(*columns)
        more = {staking.closed_by for staking in self._stakings.values() if staking.closed_by is not None}
        more.update(row.detail.closes for row in rows if isinstance(row.detail.closes, int))
        self._outputs.load((key for row in rows for key in (*row.detail.inputs, *row.emitted)), more)
        blocks = {block_key(chain_of(row.key), row.height) for row in rows if row.height is not None}
        for key, block_id in session.by_keys("SELECT key, block_id FROM blocks WHERE key IN {keys}", blocks):
            self._block_ids[key] = BlockID(bytes(block_id))
        self._load_l1(rows)
        self._load_created(rows)
        session.load_ids(_ids_in(rows, self._stakings.values(), self._validations.values()))
        session.load_assets(_assets_in(rows))

    def _load_l1(self, rows: Sequence[_TxRow]) -> None:
        keys = {change[0] for row in rows for change in row.detail.l1}
        text = "SELECT validation, node, subnet, bls FROM validations WHERE validation IN {keys}"
        for key, node, subnet, bls in self._session.by_keys(text, keys):
            self._validations[key] = (node, subnet, bytes(bls))

    def _load_created(self, rows: Sequence[_TxRow]) -> None:
        chains = (row.detail.blockchain for row in rows if row.detail.blockchain is not None)
        text = "SELECT chain, name, vm_id, genesis FROM blockchains WHERE chain IN {keys}"
        for key, name, vm_id, genesis in self._session.by_keys(text, chains):
            self._blockchains[key] = (name, bytes(vm_id), decompress_genesis(genesis))
        assets = (row.detail.asset for row in rows if row.detail.asset is not None)
        text = "SELECT asset, is_fixed, made_at FROM assets WHERE asset IN {keys}"
        for key, is_fixed, made_at in self._session.by_keys(text, assets):
            self._assets[key] = (is_fixed, made_at)

    def _transaction(self, row: _TxRow) -> Transaction:
        chain = chain_of(row.key)
        return self._p(row) if chain == P else self._c(row) if chain == C else self._x(row)

    def _p(self, row: _TxRow) -> PChainTransaction:
        assert row.height is not None
        detail, emitted = row.detail, row.emitted
        source, destination = self._ends(row)
        fields: dict[str, Any] = {
            "tx_hash": id_text(row.tx_id),
            "tx_type": tx_type(type_codes.tx_name(row.kind)),
            "block_timestamp": row.time,
            "block_number": str(row.height),
            "block_hash": id_text(self._block_ids[block_key(P, row.height)]),
            "consumed_utxos": self._outputs.p_utxos(detail.inputs, self._text),
            "emitted_utxos": self._outputs.p_utxos(emitted, self._text),
            "value": self._amounts(self._outputs.sums(emitted)),
            "amount_burned": self._amounts(dict(detail.burned)),
            "amount_staked": (),
            "amount_l1_validator_balance_burned": (),
            "source_chain": source,
            "destination_chain": destination,
            "memo": hex_text(detail.memo),
        }
        if detail.l1_funded is not None:
            fields["amount_l1_validator_balance_burned"] = self._amounts(dict([detail.l1_funded]))
        if detail.node is not None:
            fields["node_id"] = node_text(NodeID(self._session.id_of(detail.node)))
        if detail.subnet is not None:
            fields["subnet_id"] = shared_id_text(self._session.id_of(detail.subnet))
        if detail.closes is not None:
            closes = detail.closes
            fields["staking_tx_hash"] = id_text(self._outputs.tx(closes).tx_id if isinstance(closes, int) else closes)
        if row.kind in _STAKING_TYPES:
            fields["amount_staked"] = self._amounts(self._outputs.sums(emitted, staked_only=True))
            self._add_staking(row, fields)
        if row.kind in _RARE_TYPES:
            self._add_rare(detail, fields)
        return PChainTransaction(**fields)

    def _add_staking(self, row: _TxRow, fields: dict[str, Any]) -> None:
        fields["bls_credentials"] = bls_credentials(row.detail.bls)
        staking = self._stakings.get(row.key)
        if staking is None:
            return
        fields["start_timestamp"], fields["end_timestamp"] = staking.start_s, staking.end_s
        if staking.shares is not None:
            fields["delegation_fee_percent"] = percent_text(staking.shares)
        # Subnets without a token of their own pay nothing.
        if staking.potential is not None and fields["tx_type"] is not PrimaryNetworkTxType.ADD_SUBNET_VALIDATOR:
            fields["estimated_reward"] = str(staking.potential)
        if staking.state == COMPLETED and staking.closed_by is not None:
            fields["reward_tx_hash"] = id_text(self._outputs.tx(staking.closed_by).tx_id)
        fields["reward_addresses"] = self._text.addresses(reward_addresses(self._session, staking.detail)) or UNSET

    def _add_rare(self, detail: TxDetail, fields: dict[str, Any]) -> None:
        if detail.manager is not None:
            chain_id, address = detail.manager
            fields["l1_validator_manager_details"] = L1ValidatorManagerDetails(
                blockchain_id=shared_id_text(chain_id), contract_address=account_text(address)
            )
        if detail.owner is not None:
            locktime, threshold, owners = detail.owner
            addresses = tuple([Address(self._session.id_of(key)) for key in owners])
            fields["subnet_ownership_info"] = SubnetOwnershipInfo(
                locktime=locktime, threshold=threshold, addresses=self._text.addresses(addresses)
            )
        if detail.blockchain is not None:
            name, vm_id, genesis = self._blockchains[detail.blockchain]
            fields["blockchain_info"] = BlockchainInfo(
                chain_name=name,
                vm_id=shared_id_text(vm_id),
                genesis_data=evm_genesis(genesis) or genesis_text(genesis),
            )
        fields["l1_validator_details"] = tuple([self._l1_details(*change) for change in detail.l1]) or UNSET

    def _l1_details(self, validation: int, weight: int, balance: int, change: int) -> L1ValidatorDetails:
        node, subnet, bls = self._validations[validation]
        id_of = self._session.id_of
        return L1ValidatorDetails(
            validation_id=id_text(id_of(validation)),
            validation_id_hex=hex_text(id_of(validation)),
            node_id=node_text(NodeID(id_of(node))),
            subnet_id=shared_id_text(id_of(subnet)),
            weight=weight,
            remaining_balance=balance,
            balance_change=change or UNSET,
            bls_credentials=bls_credentials(bls),
        )

    def _x(self, row: _TxRow) -> XChainTransaction:
        detail = row.detail
        block_id = None if row.height is None else self._block_ids[block_key(chain_of(row.key), row.height)]
        taken, made = self._outputs.sums(detail.inputs), self._outputs.sums(row.emitted)
        source, destination = self._ends(row)
        created = self._ordered_amounts(made)
        return XChainTransaction(
            tx_hash=id_text(row.tx_id),
            tx_type=tx_type(type_codes.tx_name(row.kind), X_CHAIN_TX_TYPES),
            block_timestamp=row.time,
            timestamp=row.time,
            chain_format="non-linear" if block_id is None else "linear",
            block_number=UNSET if row.height is None else str(row.height),
            block_height=or_unset(row.height),
            block_hash=UNSET if block_id is None else id_text(block_id),
            vertices=UNSET if block_id is not None else tuple([_vertex(*vertex) for vertex in detail.vertices]),
            consumed_utxos=self._outputs.avm_utxos(detail.inputs, self._text),
            emitted_utxos=self._outputs.avm_utxos(row.emitted, self._text),
            amount_unlocked=self._ordered_amounts(taken),
            amount_created=created,
            value=created,
            amount_burned=self._ordered_amounts(_burned(taken, made)),
            amount_staked=(),
            amount_l1_validator_balance_burned=(),
            source_chain=source,
            destination_chain=destination,
            memo=hex_text(detail.memo),
            asset_created=UNSET if detail.asset is None else self._asset_created(detail.asset),
            approximate=detail.is_approximate or UNSET,
        )

    def _asset_created(self, key: int) -> AssetCreated:
        asset = self._session.asset_of(key)
        is_fixed, created_at = self._assets[key]
        return AssetCreated(
            asset_id=id_text(asset.asset_id),
            name=asset.name,
            symbol=asset.symbol,
            denomination=asset.denomination,
            type=asset.type,
            created_at_timestamp=created_at,
            cap=PrimaryNetworkAssetCap.FIXED if is_fixed else PrimaryNetworkAssetCap.VARIABLE,
        )

    def _c(self, row: _TxRow) -> CChainTransaction:
        assert row.height is not None
        detail = row.detail
        is_export = not detail.inputs
        taken, made = self._outputs.sums(detail.inputs), self._outputs.sums(row.emitted)
        for _, asset, amount, _ in detail.accounts:
            sums = taken if is_export else made
            sums[asset] = sums.get(asset, 0) + amount
        source, destination = self._ends(row)
        created = self._ordered_amounts(made)
        return CChainTransaction(
            tx_hash=id_text(row.tx_id),
            tx_type=tx_type(type_codes.tx_name(row.kind), C_CHAIN_TX_TYPES),
            block_timestamp=row.time,
            timestamp=row.time,
            block_number=str(row.height),
            block_height=row.height,
            block_hash=hex_text(self._block_ids[block_key(C, row.height)]),
            consumed_utxos=self._outputs.avm_utxos(detail.inputs, self._text),
            emitted_utxos=self._outputs.avm_utxos(row.emitted, self._text),
            amount_unlocked=self._ordered_amounts(taken),
            amount_created=created,
            value=created,
            amount_burned=self._ordered_amounts(_burned(taken, made)),
            amount_staked=(),
            amount_l1_validator_balance_burned=(),
            source_chain=source,
            destination_chain=destination,
            memo="0x",
            evm_inputs=self._evm_inputs(detail) if is_export and detail.accounts else UNSET,
            evm_outputs=self._evm_outputs(detail) if not is_export and detail.accounts else UNSET,
        )

    def _evm_inputs(self, detail: TxDetail) -> tuple[EvmInput, ...]:
        return tuple(
            [
                EvmInput(
                    from_address=account_text(self._session.id_of(account)[1:]),
                    asset=asset_amount(self._session.asset_of(asset), amount),
                    credentials=credentials(detail, signed),
                )
                for account, asset, amount, signed in detail.accounts
            ]
        )

    def _evm_outputs(self, detail: TxDetail) -> tuple[EvmOutput, ...]:
        return tuple(
            [
                EvmOutput(
                    to_address=account_text(self._session.id_of(account)[1:]),
                    asset=asset_amount(self._session.asset_of(asset), amount),
                )
                for account, asset, amount, _ in detail.accounts
            ]
        )

    def _amounts(self, sums: Mapping[int, int]) -> tuple[AssetAmount, ...]:
        return asset_amounts(amounts_by_id(self._session, sums))

    def _ordered_amounts(self, sums: Mapping[int, int]) -> tuple[AssetAmount, ...]:
        """Return sums by key of their assets as they come, those that are 0 among them."""
        return tuple([asset_amount(self._session.asset_of(asset), amount) for asset, amount in sums.items()])

    def _ends(self, row: _TxRow) -> tuple[str | UnsetType, str | UnsetType]:
        """Return from which chain to which an import or export goes, one of them its own; left out of all others."""
        source, destination = row.detail.source, row.detail.destination
        if source is None and destination is None:
            return UNSET, UNSET
        own = chain_of(row.key)
        return self._chain(own if source is None else source), self._chain(own if destination is None else destination)

    def _chain(self, chain: ChainRef) -> str:
        return self._text.chain_id(CHAINS[chain]) if isinstance(chain, int) else shared_id_text(ChainID(chain))


def reward_addresses(session: ReadSession, detail: StakeDetail) -> tuple[Address, ...]:
    """Return the owners of a staking's rewards, each once; their keys were loaded."""
    keys = dict.fromkeys((*detail.own, *detail.of_delegations))
    return tuple([Address(session.id_of(key)) for key in keys])


def bls_credentials(raw: bytes) -> BlsCredentials | UnsetType:
    """Return a key and its proof of possession, from both joined; left out if there is none."""
    if not raw:
        return UNSET
    return BlsCredentials(public_key=hex_text(raw[:BLS_KEY_BYTES]), proof_of_possession=hex_text(raw[BLS_KEY_BYTES:]))


def decompress_genesis(genesis: bytes) -> bytes:
    """Return the genesis of a blockchain as it was given."""
    return zstandard.ZstdDecompressor().decompress(bytes(genesis), max_output_size=MAX_BODY_BYTES)


def _vertex(vertex_id: bytes, height: int, time: int) -> XChainVertex:
    return XChainVertex(hash=id_text(vertex_id), height=height, timestamp=time)


def _burned(taken: Mapping[int, int], made: Mapping[int, int]) -> dict[int, int]:
    """Return the amounts that were taken and not made again."""
    left = {asset: amount - made.get(asset, 0) for asset, amount in taken.items()}
    return {asset: amount for asset, amount in left.items() if amount > 0}


def _ids_in(
    rows: Iterable[_TxRow], stakings: Iterable[_StakingRow], validations: Iterable[tuple[int, int, bytes]]
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


def _assets_in(rows: Iterable[_TxRow]) -> set[int]:
    keys: set[int] = set()
    for row in rows:
        detail = row.detail
        keys.update(asset for asset, _ in detail.burned)
        keys.update(account[1] for account in detail.accounts)
        keys.update(key for key in (detail.asset, detail.l1_funded and detail.l1_funded[0]) if key is not None)
    return keys


def _type_numbers(*names: str) -> frozenset[int]:
    return frozenset(map(type_codes.tx_number, names))


# Of the types without a name only the stakings of Helicon are known; a row in `stakings` shows which they are.
_STAKING_TYPES: Final = _type_numbers(
    *("AddValidatorTx", "AddDelegatorTx", "AddSubnetValidatorTx", "AddPermissionlessValidatorTx"),
    *("AddPermissionlessDelegatorTx", "UNKNOWN"),
)
_RARE_TYPES: Final = _type_numbers(
    *("CreateSubnetTx", "CreateChainTx", "TransferSubnetOwnershipTx", "ConvertSubnetToL1Tx", "RegisterL1ValidatorTx"),
    *("SetL1ValidatorWeightTx", "IncreaseL1ValidatorBalanceTx", "DisableL1ValidatorTx"),
)
