"""Transactions as resources, from their rows: a page of them in a dozen statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from warpseal.chains.ids import Address, BlockID
from warpseal.index.columns import (
    BLS_KEY_BYTES,
    TX_NAMES,
    ChainRef,
    StakeDetail,
    TxDetail,
    decode_stake,
    tx_number,
)
from warpseal.index.key_streams import transaction_keys
from warpseal.index.keys import CHAINS, C, P, X, block_key, chain_of
from warpseal.index.output_reader import OutputReader, TxRow, credentials
from warpseal.index.raw_blocks import decompress
from warpseal.index.read_session import ReadSession
from warpseal.index.stakings import COMPLETED, Staking
from warpseal.resources import base
from warpseal.resources import transactions as resources
from warpseal.resources.base import UNSET, UnsetType, or_unset
from warpseal.resources.evm_genesis import evm_genesis, genesis_text
from warpseal.resources.outputs import AssetAmount, asset_amount
from warpseal.resources.queries import Page, PageRequest, TransactionQuery
from warpseal.resources.text import (
    NetworkText,
    account_text,
    hex_text,
    node_text,
    percent_text,
    shared_id_text,
)
from warpseal.warp.ids import ChainID, NodeID, id_text

MAX_PAGE_OUTPUTS: Final = 1_000
"""The outputs of all transactions of a page; a single transaction may have more."""
# By the number of the chain.
_TX_TYPES: Final = (base.P_CHAIN_TX_TYPES, base.X_CHAIN_TX_TYPES, base.C_CHAIN_TX_TYPES)
_VALIDATIONS: Final = (
    "SELECT validation, node, subnet, bls FROM validations WHERE validation IN {keys}"
)
_BLOCKCHAINS: Final = "SELECT chain, name, vm_id, genesis FROM blockchains WHERE chain IN {keys}"
_ASSETS: Final = "SELECT asset, is_fixed, made_at FROM assets WHERE asset IN {keys}"


def transactions(
    session: ReadSession, text: NetworkText, query: TransactionQuery, page: PageRequest
) -> Page[resources.Transaction]:
    """Return transactions in order; a page ends early when its outputs reach 1,000."""
    batch = transaction_keys(session, query, page.after_key, page.size + 1)
    outputs = OutputReader(session)
    outputs.load_txs(batch.keys)
    rows: list[TxRow] = []
    total = 0
    for row in map(outputs.tx, batch.keys[: page.size]):
        total += row.moved
        if rows and total > MAX_PAGE_OUTPUTS:
            break
        rows.append(row)
    more = rows[-1].key if len(rows) < len(batch.keys) else batch.scanned_to
    items = _TxReader(session, text, outputs, rows).transactions(rows)
    return Page(items, None if more is None else (more,))


class _TxReader:
    """Transactions as resources.

    outputs: reader that has the rows of the transactions, and loads their outputs.
    """

    def __init__(
        self, session: ReadSession, text: NetworkText, outputs: OutputReader, rows: Sequence[TxRow]
    ) -> None:
        self._session = session
        self._text = text
        self._outputs = outputs
        staking_keys = (row.key for row in rows if row.kind in _STAKING_TYPES)
        staking_rows = session.by_keys("SELECT * FROM stakings WHERE tx IN {keys}", staking_keys)
        self._stakings = {values[0]: Staking.from_row(values) for values in staking_rows}
        more = {
            staking.closed_by
            for staking in self._stakings.values()
            if staking.closed_by is not None
        }
        more.update(row.detail.closes for row in rows if isinstance(row.detail.closes, int))
        self._outputs.load(
            (key for row in rows for key in (*row.detail.inputs, *row.emitted)), more
        )
        blocks = {
            block_key(chain_of(row.key), row.height) for row in rows if row.height is not None
        }
        block_ids = session.by_keys("SELECT key, block_id FROM blocks WHERE key IN {keys}", blocks)
        self._block_ids = {key: BlockID(bytes(block_id)) for key, block_id in block_ids}
        validations = {change[0] for row in rows for change in row.detail.l1}
        self._validations: dict[int, tuple[int, int, bytes]] = {
            key: (node, subnet, bytes(bls))
            for key, node, subnet, bls in session.by_keys(_VALIDATIONS, validations)
        }
        chains = (row.detail.blockchain for row in rows if row.detail.blockchain is not None)
        self._blockchains: dict[int, tuple[str, bytes, bytes]] = {
            key: (name, bytes(vm_id), decompress(bytes(genesis)))
            for key, name, vm_id, genesis in session.by_keys(_BLOCKCHAINS, chains)
        }
        created = (row.detail.asset for row in rows if row.detail.asset is not None)
        self._assets: dict[int, tuple[int, int]] = {
            key: (is_fixed, made_at) for key, is_fixed, made_at in session.by_keys(_ASSETS, created)
        }
        self._load_ids(rows)

    def transactions(self, rows: Sequence[TxRow]) -> tuple[resources.Transaction, ...]:
        """Return transactions."""
        builders = (self._p, self._x, self._c)
        return tuple([builders[chain_of(row.key)](row) for row in rows])

    def _load_ids(self, rows: Sequence[TxRow]) -> None:
        ids: set[int | None] = set()
        assets: set[int | None] = set()
        for row in rows:
            detail = row.detail
            ids.update((detail.node, detail.subnet))
            ids.update(change[0] for change in detail.l1)
            ids.update(() if detail.owner is None else detail.owner[2])
            assets.update((detail.asset, *(asset for asset, _ in detail.burned)))
            assets.update(() if detail.l1_funded is None else detail.l1_funded[:1])
            for account, asset, *_ in detail.accounts:
                ids.add(account)
                assets.add(asset)
        for staking in self._stakings.values():
            rewards = decode_stake(staking.detail)
            ids.update((*rewards.own, *rewards.of_delegations))
        for node, subnet, _ in self._validations.values():
            ids.update((node, subnet))
        self._session.load_ids(key for key in ids if key is not None)
        self._session.load_assets(key for key in assets if key is not None)

    def _p(self, row: TxRow) -> resources.PChainTransaction:
        assert row.height is not None
        detail, emitted = row.detail, row.emitted
        fields = self._common_fields(row) | {
            "block_number": str(row.height),
            "block_hash": id_text(self._block_ids[block_key(P, row.height)]),
            "consumed_utxos": self._outputs.p_utxos(detail.inputs, self._text),
            "emitted_utxos": self._outputs.p_utxos(emitted, self._text),
            "value": self._amounts(self._outputs.sums(emitted)),
            "amount_burned": self._amounts(dict(detail.burned)),
        }
        if detail.l1_funded is not None:
            fields["amount_l1_validator_balance_burned"] = self._amounts(dict([detail.l1_funded]))
        if detail.node is not None:
            fields["node_id"] = node_text(NodeID(self._session.id_of(detail.node)))
        if detail.subnet is not None:
            fields["subnet_id"] = shared_id_text(self._session.id_of(detail.subnet))
        if detail.closes is not None:
            closes = detail.closes
            fields["staking_tx_hash"] = id_text(
                self._outputs.tx(closes).tx_id if isinstance(closes, int) else closes
            )
        if row.kind in _STAKING_TYPES:
            fields["amount_staked"] = self._amounts(self._outputs.sums(emitted, staked_only=True))
            self._add_staking(row, fields)
        self._add_created(detail, fields)
        return resources.PChainTransaction(**fields)

    def _add_staking(self, row: TxRow, fields: dict[str, Any]) -> None:
        fields["bls_credentials"] = bls_credentials(row.detail.bls)
        staking = self._stakings.get(row.key)
        if staking is None:
            return
        fields["start_timestamp"], fields["end_timestamp"] = staking.start_s, staking.end_s
        if staking.shares is not None:
            fields["delegation_fee_percent"] = percent_text(staking.shares)
        # Subnets without a token of their own pay nothing.
        if (
            staking.potential is not None
            and fields["tx_type"] is not base.PrimaryNetworkTxType.ADD_SUBNET_VALIDATOR
        ):
            fields["estimated_reward"] = str(staking.potential)
        if staking.state == COMPLETED and staking.closed_by is not None:
            fields["reward_tx_hash"] = id_text(self._outputs.tx(staking.closed_by).tx_id)
        owners = reward_addresses(self._session, decode_stake(staking.detail))
        fields["reward_addresses"] = self._text.addresses(owners) or UNSET

    def _add_created(self, detail: TxDetail, fields: dict[str, Any]) -> None:
        if detail.manager is not None:
            chain_id, address = detail.manager
            fields["l1_validator_manager_details"] = resources.L1ValidatorManagerDetails(
                blockchain_id=shared_id_text(chain_id), contract_address=account_text(address)
            )
        if detail.owner is not None:
            locktime, threshold, owners = detail.owner
            addresses = tuple([Address(self._session.id_of(key)) for key in owners])
            fields["subnet_ownership_info"] = resources.SubnetOwnershipInfo(
                locktime=locktime, threshold=threshold, addresses=self._text.addresses(addresses)
            )
        if detail.blockchain is not None:
            name, vm_id, genesis = self._blockchains[detail.blockchain]
            fields["blockchain_info"] = resources.BlockchainInfo(
                chain_name=name,
                vm_id=shared_id_text(vm_id),
                genesis_data=evm_genesis(genesis) or genesis_text(genesis),
            )
        fields["l1_validator_details"] = (
            tuple([self._l1_details(*change) for change in detail.l1]) or UNSET
        )

    def _l1_details(
        self, validation: int, weight: int, balance: int, change: int
    ) -> resources.L1ValidatorDetails:
        node, subnet, bls = self._validations[validation]
        id_of = self._session.id_of
        return resources.L1ValidatorDetails(
            validation_id=id_text(id_of(validation)),
            validation_id_hex=hex_text(id_of(validation)),
            node_id=node_text(NodeID(id_of(node))),
            subnet_id=shared_id_text(id_of(subnet)),
            weight=weight,
            remaining_balance=balance,
            balance_change=change or UNSET,
            bls_credentials=bls_credentials(bls),
        )

    def _x(self, row: TxRow) -> resources.XChainTransaction:
        detail = row.detail
        block_id = None if row.height is None else self._block_ids[block_key(X, row.height)]
        spent, created = self._outputs.sums(detail.inputs), self._outputs.sums(row.emitted)
        return resources.XChainTransaction(
            **self._avm_fields(row, spent, created),
            chain_format="non-linear" if block_id is None else "linear",
            block_number=UNSET if row.height is None else str(row.height),
            block_height=or_unset(row.height),
            block_hash=UNSET if block_id is None else id_text(block_id),
            # No source of blocks has the vertices.
            vertices=UNSET if block_id is not None else (),
            asset_created=UNSET if detail.asset is None else self._asset_created(detail.asset),
            approximate=detail.is_approximate or UNSET,
        )

    def _asset_created(self, key: int) -> resources.AssetCreated:
        asset = self._session.asset_of(key)
        is_fixed, created_at = self._assets[key]
        cap = base.PrimaryNetworkAssetCap.VARIABLE
        if is_fixed:
            cap = base.PrimaryNetworkAssetCap.FIXED
        return resources.AssetCreated(
            asset_id=id_text(asset.asset_id),
            name=asset.name,
            symbol=asset.symbol,
            denomination=asset.denomination,
            type=asset.type,
            created_at_timestamp=created_at,
            cap=cap,
        )

    def _c(self, row: TxRow) -> resources.CChainTransaction:
        assert row.height is not None
        detail = row.detail
        is_export = not detail.inputs
        spent, created = self._outputs.sums(detail.inputs), self._outputs.sums(row.emitted)
        moved = []
        for account, asset, amount, signed in detail.accounts:
            sums = spent if is_export else created
            sums[asset] = sums.get(asset, 0) + amount
            text, value = (
                account_text(self._session.id_of(account)[1:]),
                self._amount(asset, amount),
            )
            moved.append((text, value, signed))
        inputs = tuple(
            resources.EvmInput(
                from_address=text, asset=value, credentials=credentials(detail, signed)
            )
            for text, value, signed in moved
            if is_export
        )
        outputs = tuple(
            resources.EvmOutput(to_address=text, asset=value)
            for text, value, _ in moved
            if not is_export
        )
        return resources.CChainTransaction(
            **self._avm_fields(row, spent, created),
            block_number=str(row.height),
            block_height=row.height,
            block_hash=hex_text(self._block_ids[block_key(C, row.height)]),
            evm_inputs=inputs or UNSET,
            evm_outputs=outputs or UNSET,
        )

    def _common_fields(self, row: TxRow) -> dict[str, Any]:
        """Return the fields of all chains' transactions; imports and exports name two chains."""
        detail, chain = row.detail, chain_of(row.key)
        fields = {
            "tx_hash": id_text(row.tx_id),
            "tx_type": base.tx_type(TX_NAMES[row.kind], _TX_TYPES[chain]),
            "block_timestamp": row.time,
            "amount_staked": (),
            "amount_l1_validator_balance_burned": (),
            "memo": hex_text(detail.memo),
        }
        if detail.source is not None or detail.destination is not None:
            fields["source_chain"] = self._chain(chain if detail.source is None else detail.source)
            fields["destination_chain"] = self._chain(
                chain if detail.destination is None else detail.destination
            )
        return fields

    def _avm_fields(
        self, row: TxRow, spent: Mapping[int, int], created: Mapping[int, int]
    ) -> dict[str, Any]:
        """Return the fields that transactions of X and C have.

        spent, created: amounts by key of the asset.
        """
        burned = {asset: amount - created.get(asset, 0) for asset, amount in spent.items()}
        amounts = self._ordered_amounts(created)
        return self._common_fields(row) | {
            "timestamp": row.time,
            "consumed_utxos": self._outputs.avm_utxos(row.detail.inputs, self._text),
            "emitted_utxos": self._outputs.avm_utxos(row.emitted, self._text),
            "amount_unlocked": self._ordered_amounts(spent),
            "amount_created": amounts,
            "value": amounts,
            "amount_burned": self._ordered_amounts(
                {asset: amount for asset, amount in burned.items() if amount > 0}
            ),
        }

    def _amounts(self, sums: Mapping[int, int]) -> tuple[AssetAmount, ...]:
        """Return sums by key of their assets without those that are 0, sorted by asset id."""
        assets = sorted(sums, key=lambda asset: self._session.asset_of(asset).asset_id)
        return tuple([self._amount(asset, sums[asset]) for asset in assets if sums[asset]])

    def _ordered_amounts(self, sums: Mapping[int, int]) -> tuple[AssetAmount, ...]:
        """Return sums by key of their assets as they come, those that are 0 among them."""
        return tuple([self._amount(asset, amount) for asset, amount in sums.items()])

    def _amount(self, asset: int, amount: int) -> AssetAmount:
        return asset_amount(self._session.asset_of(asset), amount)

    def _chain(self, chain: ChainRef) -> str:
        if isinstance(chain, int):
            return self._text.chain_id(CHAINS[chain])
        return shared_id_text(ChainID(chain))


def reward_addresses(session: ReadSession, detail: StakeDetail) -> tuple[Address, ...]:
    """Return the owners of a staking's rewards, each once; their keys were loaded."""
    keys = dict.fromkeys((*detail.own, *detail.of_delegations))
    return tuple([Address(session.id_of(key)) for key in keys])


def bls_credentials(raw: bytes) -> resources.BlsCredentials | UnsetType:
    """Return a BLS key and its proof of possession from `raw`, which may be empty."""
    if not raw:
        return UNSET
    return resources.BlsCredentials(
        public_key=hex_text(raw[:BLS_KEY_BYTES]), proof_of_possession=hex_text(raw[BLS_KEY_BYTES:])
    )


# Only the stakings of Helicon are known among the types without a name; a row in `stakings` shows
# which they are.
_STAKING_TYPES: Final = frozenset(
    tx_number(name)
    for name in (
        *(
            "AddValidatorTx",
            "AddDelegatorTx",
            "AddSubnetValidatorTx",
            "AddPermissionlessValidatorTx",
        ),
        *("AddPermissionlessDelegatorTx", "UNKNOWN"),
    )
)
