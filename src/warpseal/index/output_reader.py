"""Outputs as they are told to callers, from their rows: some hundred of them in five statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from warpseal.chains.ids import Address, AssetID, TxID, utxo_id
from warpseal.history.outputs import Amount, Signer, Spending, Utxo
from warpseal.index import type_codes
from warpseal.index.details import OutputDetail, TxDetail, decode_output, decode_owners, decode_tx
from warpseal.index.keys import CHAINS, P, chain_of, from_column
from warpseal.index.read_session import ReadSession
from warpseal.ledger.outputs import OutputKind

_OUTPUTS: Final = (
    'SELECT key, tx, origin, "position", asset, amount, flags, owner, owners, detail FROM outputs WHERE key IN {keys}'
)
_SPENDS: Final = tuple(
    f"SELECT output, tx FROM {table} WHERE output IN {{keys}}" for table in ("spends", "spent_lately")
)
_TXS: Final = "SELECT key, tx_id, height, time, outcome, detail FROM txs WHERE key IN {keys}"
_TIMES: Final = "SELECT tx, start_s, end_s FROM stakings WHERE tx IN {keys}"
_NAMES: Final = {kind: kind.value.upper().replace("-", "_") for kind in OutputKind}
_NOTHING: Final = OutputDetail()
_SETTLED: Final = 2


@dataclass(slots=True)
class _Output:
    key: int
    tx: int | None
    origin: int | None
    position: int
    asset: int
    amount: int
    flags: int
    owner: int | None
    owners: bytes | None
    raw_detail: bytes | None
    threshold: int = 1
    addresses: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.owners is not None:
            self.threshold, self.addresses = decode_owners(self.owners)
        elif self.owner is not None:
            self.addresses = (self.owner,)


@dataclass(frozen=True, slots=True)
class TxRef:
    """What outputs tell of a transaction."""

    tx_id: TxID
    height: int | None
    time: int
    outcome: int
    raw_detail: bytes

    @property
    def made_at(self) -> int:
        """The height at which it took effect: what was proposed, in the block that decided."""
        height = self.height or 0
        return height + 1 if self.outcome >= _SETTLED else height


class OutputReader:
    """Outputs by key, once they were loaded, and the transactions that made and spent them."""

    def __init__(self, reading: ReadSession) -> None:
        self._reading = reading
        self._rows: dict[int, _Output] = {}
        self._spends: dict[int, int] = {}
        self._txs: dict[int, TxRef] = {}
        self._stakes: dict[int, tuple[int, int]] = {}
        self._details: dict[int, TxDetail] = {}
        self._values: dict[int, Utxo] = {}

    def load(self, keys: Iterable[int], more_txs: Iterable[int] = ()) -> None:
        """Find outputs, and everything that is told with them. more_txs: transactions that are asked for beside."""
        reading = self._reading
        listed = list(keys)
        rows = self._rows
        for row in reading.by_keys(_OUTPUTS, listed):
            rows[row[0]] = _Output(*row)
        for text in _SPENDS:
            self._spends.update({row[0]: row[1] for row in reading.by_keys(text, listed)})
        wanted = {*more_txs, *self._spends.values()}
        staked: set[int] = set()
        for one in rows.values():
            if one.tx is not None:
                wanted.add(one.tx)
                if type_codes.is_staked(one.flags):
                    staked.add(one.tx)
            if one.origin is not None:
                wanted.add(one.origin)
        for key, tx_id, height, time, outcome, detail in reading.by_keys(_TXS, wanted):
            self._txs[key] = TxRef(TxID(bytes(tx_id)), height, time, outcome, detail)
        for key, start, end in reading.by_keys(_TIMES, staked):
            self._stakes[key] = (start, from_column(end))
        reading.load_ids({address for one in rows.values() for address in one.addresses})
        reading.load_assets({one.asset for one in rows.values()})

    def tx(self, key: int) -> TxRef:
        """Return a transaction that was loaded."""
        return self._txs[key]

    def of(self, keys: Iterable[int]) -> tuple[Utxo, ...]:
        """Return outputs that were loaded."""
        return tuple([self._values.get(key) or self._value(key) for key in keys])

    def sums(self, keys: Iterable[int], *, staked_only: bool = False) -> tuple[Amount, ...]:
        """Return what outputs hold together, by asset id."""
        sums: dict[int, int] = {}
        for key in keys:
            one = self._rows[key]
            if not staked_only or type_codes.is_staked(one.flags):
                sums[one.asset] = sums.get(one.asset, 0) + from_column(one.amount)
        return amounts(self._reading, sums)

    def _value(self, key: int) -> Utxo:
        one = self._rows[key]
        reading, flags = self._reading, one.flags
        detail = _NOTHING if one.raw_detail is None else decode_output(one.raw_detail)
        maker = None if one.tx is None else self._txs[one.tx]
        tx_id = self._origin(one, maker, detail)
        asset, amount = reading.asset_of(one.asset), from_column(one.amount)
        addresses = tuple([Address(reading.id_of(address)) for address in one.addresses])
        kind, is_incomplete, is_staked = (
            type_codes.output_kind(flags),
            type_codes.is_incomplete(flags),
            type_codes.is_staked(flags),
        )
        stake = self._stakes.get(one.tx or 0) if is_staked else None
        place: tuple[TxID, int, AssetID] = (tx_id, one.position, asset.asset_id)
        value = Utxo(
            utxo_id=utxo_id(tx_id, one.position),
            tx_id=tx_id,
            output_index=one.position,
            asset=asset,
            amount=amount,
            addresses=addresses,
            threshold=one.threshold,
            created_on=CHAINS[type_codes.created_on(flags)],
            consumed_on=CHAINS[type_codes.held_on(flags)],
            height=0 if maker is None else maker.made_at,
            time=0 if maker is None else maker.time,
            kind="STAKE" if is_staked else _NAMES[kind],
            locktime=detail.locktime,
            stakeable_locktime=detail.stakeable_locktime,
            spent=self._spending(key),
            staked=is_staked,
            stake_start=None if stake is None else stake[0],
            stake_end=None if stake is None else stake[1],
            reward=type_codes.reward_of(flags),
            raw=None if is_incomplete else utxo_bytes(place, kind, amount, (one.threshold, addresses), detail),
            group_id=detail.group_id,
            payload=detail.payload,
            is_incomplete=is_incomplete,
        )
        self._values[key] = value
        return value

    def _origin(self, one: _Output, maker: TxRef | None, detail: OutputDetail) -> TxID:
        """Return the id that the output has as its transaction's."""
        if one.origin is not None:
            return self._txs[one.origin].tx_id
        if detail.tx_id is not None:
            return TxID(detail.tx_id)
        assert maker is not None
        return maker.tx_id

    def _spending(self, key: int) -> Spending | None:
        spender = self._spends.get(key)
        if spender is None:
            return None
        tx = self._txs[spender]
        signers = () if chain_of(spender) == P else self._signers(spender, tx, key)
        return Spending(tx.tx_id, tx.height or 0, tx.time, signers)

    def _signers(self, spender: int, tx: TxRef, key: int) -> tuple[Signer, ...]:
        detail = self._details.get(spender)
        if detail is None:
            detail = self._details[spender] = decode_tx(tx.raw_detail)
        if key not in detail.inputs or not detail.signed:
            return ()
        return signers(detail, detail.signed[detail.inputs.index(key)])


def signers(detail: TxDetail, signed: Sequence[int]) -> tuple[Signer, ...]:
    """Return who signed, by the places of their signatures."""
    return tuple([Signer(detail.signatures[place], detail.signers[place] or None) for place in signed])


def amounts(reading: ReadSession, sums: Mapping[int, int]) -> tuple[Amount, ...]:
    """Return sums by key of their assets, which were loaded, without those that are 0; by asset id."""
    if len(sums) == 1:
        ((asset, amount),) = sums.items()
        return (Amount(reading.asset_of(asset), amount),) if amount else ()
    told = [Amount(reading.asset_of(asset), amount) for asset, amount in sums.items() if amount]
    return tuple(sorted(told, key=lambda one: one.asset.asset_id))


_HEAD: Final = Struct(">H32sI32s")
_TRANSFER: Final = Struct(">IQQII")
_LOCKED: Final = Struct(">IQ")
_OWNERS: Final = Struct(">QII")
_TYPE: Final = Struct(">I")
_TRANSFER_TYPE: Final = 7
_LOCK_TYPE: Final = 22
_TYPES: Final[Mapping[OutputKind, int]] = {
    OutputKind.MINT: 6,
    OutputKind.NFT_MINT: 10,
    OutputKind.NFT: 11,
    OutputKind.PROPERTY_MINT: 15,
    OutputKind.PROPERTY: 16,
}
_NONE: Final = OutputDetail()


def utxo_bytes(
    place: tuple[TxID, int, AssetID],
    kind: OutputKind,
    amount: int,
    owners: tuple[int, tuple[Address, ...]],
    detail: OutputDetail = _NONE,
) -> bytes:
    """Return an output's bytes. place: transaction, index and asset; owners: threshold and addresses."""
    threshold, addresses = owners
    head = _HEAD.pack(0, *place)
    if kind is OutputKind.TRANSFER:
        if detail.stakeable_locktime:
            head += _LOCKED.pack(_LOCK_TYPE, detail.stakeable_locktime)
        head += _TRANSFER.pack(_TRANSFER_TYPE, amount, detail.locktime, threshold, len(addresses))
        return head + b"".join(addresses)
    tail = _OWNERS.pack(detail.locktime, threshold, len(addresses)) + b"".join(addresses)
    return head + _TYPE.pack(_TYPES[kind]) + _MARKS.get(kind, _nothing)(detail) + tail


def _nothing(detail: OutputDetail) -> bytes:
    return b""


def _group(detail: OutputDetail) -> bytes:
    return _TYPE.pack(detail.group_id or 0)


def _nft(detail: OutputDetail) -> bytes:
    payload = detail.payload or b""
    return _group(detail) + _TYPE.pack(len(payload)) + payload


_MARKS: Final[Mapping[OutputKind, Callable[[OutputDetail], bytes]]] = {
    OutputKind.NFT_MINT: _group,
    OutputKind.NFT: _nft,
}
