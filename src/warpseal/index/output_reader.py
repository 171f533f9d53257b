"""Outputs as resources, from their rows: some hundred of them in five statements.

Source of truth for their bytes: chains/components.py and chains/x_txs.py, which read them; a test
compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from warpseal.chains.ids import Address, AssetID, TxID, UtxoID, utxo_id
from warpseal.index import columns
from warpseal.index.columns import (
    OutputDetail,
    OutputFlags,
    TxDetail,
    decode_output,
    decode_owners,
    parse_flags,
)
from warpseal.index.keys import CHAINS, P, chain_of, from_column
from warpseal.index.read_session import ReadSession
from warpseal.ledger.outputs import OutputKind
from warpseal.resources.base import UNSET, or_unset
from warpseal.resources.outputs import AvmUtxo, PrimaryNetworkUtxo, UtxoCredential, asset_amount
from warpseal.resources.text import NetworkText, hex_text
from warpseal.warp.ids import id_text

_OUTPUTS: Final = (
    'SELECT key, tx, origin, "position", asset, amount, flags, owner, owners, detail'
    " FROM outputs"
    " WHERE key IN {keys}"
)
_SPENDS: Final = tuple(
    f"SELECT output, tx FROM {table} WHERE output IN {{keys}}"
    for table in ("spends", "recent_spends")
)
_TXS: Final = (
    "SELECT key, tx_id, height, time, kind, outcome, first_out, outs, moved, detail"
    " FROM txs"
    " WHERE key IN {keys}"
)
_TIMES: Final = "SELECT tx, start_s, end_s FROM stakings WHERE tx IN {keys}"
_KIND_NAMES: Final = {kind: kind.value.upper().replace("-", "_") for kind in OutputKind}
_NO_DETAIL: Final = OutputDetail()


@dataclass(slots=True)
class OutputRow:
    """A row of `outputs`.

    tx, asset, addresses: keys.
    origin: key of another transaction whose id the output has.
    """

    key: int
    tx: int | None
    origin: int | None
    position: int
    asset: int
    amount: int
    flags: OutputFlags
    owner: int | None
    owners: bytes | None
    raw_detail: bytes | None
    threshold: int = 1
    addresses: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.amount = from_column(self.amount)
        if self.owners is not None:
            self.threshold, self.addresses = decode_owners(self.owners)
        elif self.owner is not None:
            self.addresses = (self.owner,)

    @property
    def detail(self) -> OutputDetail:
        """The part of the row that few outputs have."""
        return _NO_DETAIL if self.raw_detail is None else decode_output(self.raw_detail)


@dataclass(slots=True)
class TxRow:
    """A row of `txs`.

    moved: number of outputs that it consumes, makes and releases.
    """

    key: int
    tx_id: TxID
    height: int | None
    time: int
    kind: int
    outcome: int
    first_out: int
    outs: int
    moved: int
    raw_detail: bytes
    decoded: TxDetail | None = None

    def __post_init__(self) -> None:
        self.tx_id = TxID(bytes(self.tx_id))

    @property
    def detail(self) -> TxDetail:
        """The rare fields, decoded once."""
        if self.decoded is None:
            self.decoded = columns.decode_tx(self.raw_detail)
        return self.decoded

    @property
    def made(self) -> range:
        """The outputs that it makes."""
        return range(self.first_out, self.first_out + self.outs)

    @property
    def emitted(self) -> tuple[int, ...]:
        """The outputs that it releases and makes."""
        return (*self.detail.released, *self.made)


class OutputReader:
    """Outputs by key, once they were loaded, and the transactions that made and spent them."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session
        self.rows: dict[int, OutputRow] = {}
        self.spenders: dict[int, int] = {}
        self._txs: dict[int, TxRow] = {}
        self._stakes: dict[int, tuple[int, int]] = {}

    def load_txs(self, keys: Iterable[int]) -> None:
        """Load transactions for `tx`."""
        for values in self._session.by_keys(_TXS, (key for key in keys if key not in self._txs)):
            self._txs[values[0]] = TxRow(*values)

    def load(self, keys: Iterable[int], more_txs: Iterable[int] = ()) -> None:
        """Load outputs and everything that they show.

        more_txs: keys of further transactions for `tx`.
        """
        session = self._session
        key_list = list(keys)
        rows = self.rows
        for values in session.by_keys(_OUTPUTS, key_list):
            rows[values[0]] = OutputRow(*(*values[:6], parse_flags(values[6]), *values[7:]))
        for text in _SPENDS:
            self.spenders.update(
                {values[0]: values[1] for values in session.by_keys(text, key_list)}
            )
        txs = {*more_txs, *self.spenders.values()}
        staked: set[int] = set()
        for row in rows.values():
            if row.tx is not None:
                txs.add(row.tx)
                if row.flags.is_staked:
                    staked.add(row.tx)
            if row.origin is not None:
                txs.add(row.origin)
        self.load_txs(txs)
        for key, start, end in session.by_keys(_TIMES, staked):
            self._stakes[key] = (start, from_column(end))
        session.load_ids({address for row in rows.values() for address in row.addresses})
        session.load_assets({row.asset for row in rows.values()})

    def tx(self, key: int) -> TxRow:
        """Return a transaction that was loaded."""
        return self._txs[key]

    def addresses(self, row: OutputRow) -> tuple[Address, ...]:
        """Return the owners of an output."""
        return tuple([Address(self._session.id_of(address)) for address in row.addresses])

    def tx_id(self, row: OutputRow) -> TxID:
        """Return the id that the output has as its transaction's."""
        if row.origin is not None:
            return self._txs[row.origin].tx_id
        made_by = row.detail.tx_id
        if made_by is not None:
            return TxID(made_by)
        assert row.tx is not None
        return self._txs[row.tx].tx_id

    def utxo_id(self, row: OutputRow) -> UtxoID:
        """Return the id of an output."""
        return utxo_id(self.tx_id(row), row.position)

    def sums(self, keys: Iterable[int], *, staked_only: bool = False) -> dict[int, int]:
        """Return the amounts of outputs by key of their asset, in the order of the outputs."""
        sums: dict[int, int] = {}
        for key in keys:
            row = self.rows[key]
            if not staked_only or row.flags.is_staked:
                sums[row.asset] = sums.get(row.asset, 0) + row.amount
        return sums

    def p_utxos(self, keys: Iterable[int], text: NetworkText) -> tuple[PrimaryNetworkUtxo, ...]:
        """Return outputs of the P-Chain."""
        utxos = []
        for key in keys:
            row, fields = self.rows[key], self._fields(self.rows[key], text)
            is_staked = row.flags.is_staked
            stake = self._stakes.get(row.tx or 0) if is_staked else None
            utxos.append(
                PrimaryNetworkUtxo(
                    **fields,
                    stakeable_locktime=row.detail.stakeable_locktime or UNSET,
                    reward_type=row.flags.reward or UNSET,
                    staked=is_staked or UNSET,
                    utxo_start_timestamp=UNSET if stake is None else stake[0],
                    utxo_end_timestamp=UNSET if stake is None else stake[1],
                )
            )
        return tuple(utxos)

    def avm_utxos(self, keys: Iterable[int], text: NetworkText) -> tuple[AvmUtxo, ...]:
        """Return outputs of the X-Chain, or atomic ones of the C-Chain."""
        utxos = []
        for key in keys:
            row, fields = self.rows[key], self._fields(self.rows[key], text)
            detail = row.detail
            utxos.append(
                AvmUtxo(
                    **fields,
                    creation_tx_hash=fields["tx_hash"],
                    locktime=detail.locktime,
                    timestamp=fields["block_timestamp"],
                    consuming_tx_timestamp=fields["consuming_block_timestamp"],
                    credentials=self._credentials(key) or UNSET,
                    group_id=or_unset(detail.group_id),
                    payload=UNSET if detail.payload is None else hex_text(detail.payload),
                )
            )
        return tuple(utxos)

    def _fields(self, row: OutputRow, text: NetworkText) -> dict[str, Any]:
        """Return the fields that outputs of all chains have."""
        detail, flags, addresses, tx_id = (
            row.detail,
            row.flags,
            self.addresses(row),
            self.tx_id(row),
        )
        maker = None if row.tx is None else self._txs[row.tx]
        height = 0 if maker is None else maker.height or 0
        if maker is not None and maker.outcome >= columns.COMMITTED:
            # A proposal takes effect in the block that decided it.
            height += 1
        spender_key = self.spenders.get(row.key)
        spender = None if spender_key is None else self._txs[spender_key]
        asset = self._session.asset_of(row.asset)
        amount = asset_amount(asset, row.amount)
        is_incomplete = flags.is_incomplete
        kind = flags.kind
        place, owners = (tx_id, row.position, asset.asset_id), (row.threshold, addresses)
        return {
            "addresses": text.addresses(addresses),
            "asset": amount,
            "consumed_on_chain_id": text.chain_id(CHAINS[flags.held_on]),
            "created_on_chain_id": text.chain_id(CHAINS[flags.created_on]),
            "utxo_id": id_text(utxo_id(tx_id, row.position)),
            "amount": amount.amount,
            "asset_id": amount.asset_id,
            "block_number": str(height),
            "block_timestamp": 0 if maker is None else maker.time,
            "output_index": row.position,
            "tx_hash": id_text(tx_id),
            "utxo_type": "STAKE" if flags.is_staked else _KIND_NAMES[kind],
            "platform_locktime": detail.locktime,
            "threshold": row.threshold,
            "consuming_tx_hash": UNSET if spender is None else id_text(spender.tx_id),
            "consuming_block_number": UNSET if spender is None else str(spender.height or 0),
            "consuming_block_timestamp": UNSET if spender is None else spender.time,
            "utxo_bytes": UNSET
            if is_incomplete
            else hex_text(encode_utxo(place, kind, row.amount, owners, detail)),
            "incomplete": is_incomplete or UNSET,
        }

    def _credentials(self, key: int) -> tuple[UtxoCredential, ...]:
        """Return the signatures of the input that spent an output, none on the P-Chain."""
        spender = self.spenders.get(key)
        if spender is None or chain_of(spender) == P:
            return ()
        detail = self._txs[spender].detail
        if key not in detail.inputs or not detail.signed:
            return ()
        return credentials(detail, detail.signed[detail.inputs.index(key)])


def credentials(detail: TxDetail, signed: Sequence[int]) -> tuple[UtxoCredential, ...]:
    """Return signatures of a transaction by their places, with their public keys."""
    return tuple(
        [
            UtxoCredential(
                signature=hex_text(detail.signatures[place]),
                public_key=hex_text(detail.signers[place]) if detail.signers[place] else UNSET,
            )
            for place in signed
        ]
    )


_HEAD: Final = Struct(">H32sI32s")
_TRANSFER: Final = Struct(">IQQII")
_LOCKED: Final = Struct(">IQ")
_OWNERS: Final = Struct(">QII")
_NUMBER: Final = Struct(">I")
_TRANSFER_TYPE: Final = 7
_LOCK_TYPE: Final = 22
_TYPES: Final[Mapping[OutputKind, int]] = {
    OutputKind.MINT: 6,
    OutputKind.NFT_MINT: 10,
    OutputKind.NFT: 11,
    OutputKind.PROPERTY_MINT: 15,
    OutputKind.PROPERTY: 16,
}


def encode_utxo(
    place: tuple[TxID, int, AssetID],
    kind: OutputKind,
    amount: int,
    owners: tuple[int, tuple[Address, ...]],
    detail: OutputDetail = _NO_DETAIL,
) -> bytes:
    """Return the bytes of an output as a node returns them, with the codec version in front.

    place: transaction, index and asset of the output.
    owners: threshold and addresses.
    """
    threshold, addresses = owners
    head = _HEAD.pack(0, *place)
    if kind is OutputKind.TRANSFER:
        if detail.stakeable_locktime:
            head += _LOCKED.pack(_LOCK_TYPE, detail.stakeable_locktime)
        head += _TRANSFER.pack(_TRANSFER_TYPE, amount, detail.locktime, threshold, len(addresses))
        return head + b"".join(addresses)
    tail = _OWNERS.pack(detail.locktime, threshold, len(addresses)) + b"".join(addresses)
    fields = b""
    if kind in (OutputKind.NFT_MINT, OutputKind.NFT):
        fields = _NUMBER.pack(detail.group_id or 0)
    if kind is OutputKind.NFT:
        payload = detail.payload or b""
        fields += _NUMBER.pack(len(payload)) + payload
    return head + _NUMBER.pack(_TYPES[kind]) + fields + tail
