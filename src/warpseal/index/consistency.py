"""Whether the index agrees with itself: what follows from its parts is worked out again and compared.

Balances, supply and L1 balances are worked out from the rows alone, so that they can be held against a node's too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from sqlalchemy import Connection

from warpseal.chains.ids import Address, AssetID, utxo_id
from warpseal.history.chains import PrimaryChain
from warpseal.history.outputs import Utxo
from warpseal.index import bulk
from warpseal.index.details import TxDetail, decode_tx
from warpseal.index.keys import CHAINS, NUMBERS, P, block_key, first_key, from_column, last_key, prefix_of
from warpseal.index.output_reader import OutputReader
from warpseal.index.read_session import ReadCache, ReadSession
from warpseal.index.schema import ALL_SPENDS, ALL_UNSPENT
from warpseal.warp.ids import PRIMARY_NETWORK, ValidationID

_AT_ONCE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """One thing that is wrong: what it is about, and how it is instead of how it should be."""

    subject: str
    reason: str


@dataclass(slots=True)
class Balances:
    """What an address holds a part of on one chain, worked out from all outputs that it ever had.

    by_asset: of outputs that hold amounts, without those that are still staked; staked: nAVAX and others, too.
    """

    utxos: list[Utxo] = field(default_factory=list)
    by_asset: dict[AssetID, int] = field(default_factory=dict)
    staked: dict[AssetID, int] = field(default_factory=dict)


def balances(connection: Connection, address: Address, held_on: PrimaryChain, created_on: PrimaryChain) -> Balances:
    """Work out what an address holds on a chain, of what another (or the same) has made for it."""
    reading = ReadSession(connection, ReadCache())
    found = Balances()
    key = reading.keys_of([address]).get(address)
    if key is None:
        return found
    number = NUMBERS[created_on]
    for keys in _outputs_touching(reading, key, first_key(number), last_key(number)):
        values = OutputReader(reading)
        values.load(keys)
        locked = _still_staked(reading, keys)
        for one_key, utxo in zip(keys, values.of(keys), strict=True):
            if address in utxo.addresses and utxo.consumed_on is held_on and utxo.spent is None:
                _add_to_balances(found, utxo, is_locked=one_key in locked)
    return found


def l1_balance(connection: Connection, validation_id: ValidationID) -> int | None:
    """Work out the balance of an L1 validator, nAVAX, after the last indexed block; None: it is not indexed."""
    reading = ReadSession(connection, ReadCache())
    key = reading.keys_of([validation_id]).get(validation_id)
    if key is None:
        return None
    last = reading.rows("SELECT tx FROM validation_txs WHERE validation = ? ORDER BY tx DESC LIMIT 1", key)
    if not last:
        return None
    height, detail = reading.rows("SELECT height, detail FROM txs WHERE key = ?", last[0][0])[0]
    block = block_key(P, height)
    # What was left and did not pay another second is forfeited.
    ended = "SELECT 1 FROM validation_stops WHERE validation = ? AND (block > ? OR (block = ? AND is_behind = 1))"
    if reading.rows(ended, key, block, block):
        return 0
    balance = next(change[2] for change in decode_tx(detail).l1 if change[0] == key)
    then = reading.rows("SELECT fees FROM blocks WHERE key = ?", block)[0][0]
    now = reading.rows("SELECT fees FROM blocks WHERE chain = ? ORDER BY key DESC LIMIT 1", P)[0][0]
    return int(max(0, balance - (now - then)))


def find_supply_errors(connection: Connection) -> Iterator[Inconsistency]:
    """Work out the supply of the last block from the first one's, and all stakings since; yield what differs."""
    reading = ReadSession(connection, ReadCache())
    ends = [
        reading.rows(f"SELECT key, supply FROM blocks WHERE chain = ? ORDER BY key {order} LIMIT 1", P)
        for order in ("ASC", "DESC")
    ]
    primary = reading.keys_of([PRIMARY_NETWORK]).get(PRIMARY_NETWORK)
    if not all(ends) or ends[0][0][1] is None or primary is None:
        return
    (_, before), (_, now) = ends[0][0], ends[1][0]
    first = _first_supply(reading, primary, before)
    minted = reading.rows(
        "SELECT coalesce(sum(CASE WHEN state < 2 THEN potential ELSE paid END), 0) FROM"
        " (SELECT s.state, coalesce(s.potential, 0) AS potential, CASE WHEN EXISTS (SELECT 1 FROM txs t"
        " WHERE t.key = s.closed_by AND t.outcome = 2) THEN coalesce(s.potential, 0) ELSE 0 END AS paid"
        " FROM stakings s WHERE s.subnet = ?) AS counted",
        primary,
    )[0][0]
    if first + int(minted) != now:
        yield Inconsistency("supply", f"the last block says {now}, its stakings {first + int(minted)}")


def _first_supply(reading: ReadSession, primary: int, after_first: int) -> int:
    """Return the supply before the stakings of block 0, which its own row counts."""
    of_genesis = reading.rows(
        "SELECT coalesce(sum(s.potential), 0) FROM stakings s JOIN txs t ON t.key = s.tx"
        " WHERE s.subnet = ? AND t.height = 0",
        primary,
    )[0][0]
    return after_first - int(of_genesis)


def find_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Compare rows that must agree; yield what does not. It reads everything once."""
    reading = ReadSession(connection, ReadCache())
    yield from _check_unspent(reading)
    yield from _check_flows(reading)
    yield from _check_blocks(reading)
    yield from _check_stakings(reading)
    yield from find_supply_errors(connection)


def _check_unspent(reading: ReadSession) -> Iterator[Inconsistency]:
    """Hold the outputs that can be spent against all outputs, less those that were spent or are staked."""
    last, counted = 0, 0
    while rows := reading.rows("SELECT key FROM outputs WHERE key > ? ORDER BY key LIMIT ?", last, _AT_ONCE):
        keys = [row[0] for row in rows]
        last = keys[-1]
        values = OutputReader(reading)
        values.load(keys)
        kept = _unspent_rows(reading, keys)
        locked = _still_staked(reading, keys)
        for key, utxo in zip(keys, values.of(keys), strict=True):
            can_be_spent = utxo.spent is None and key not in locked
            row = kept.pop(key, None)
            counted += row is not None
            yield from _compare(utxo, row, can_be_spent=can_be_spent)
    total = reading.rows(f"SELECT count(*) FROM {ALL_UNSPENT} AS u")[0][0]
    if total != counted:
        yield Inconsistency("unspent", f"{total} rows, and {counted} outputs that they are of")


def _check_flows(reading: ReadSession) -> Iterator[Inconsistency]:
    """Hold what the P-Chain's transactions burned against what they consumed and made."""
    last, end = first_key(P), last_key(P)
    text = "SELECT key, tx_id, first_out, outs, detail FROM txs WHERE key > ? AND key <= ? AND height > 0 ORDER BY key"
    while rows := reading.rows(text + " LIMIT ?", last, end, _AT_ONCE):
        last = rows[-1][0]
        read = [(bytes(row[1]), range(row[2], row[2] + row[3]), decode_tx(row[4])) for row in rows]
        values = OutputReader(reading)
        values.load(key for _, emitted, detail in read for key in (*emitted, *detail.inputs))
        reading.load_assets(asset for _, _, detail in read for asset, _ in detail.burned)
        for tx_id, emitted, detail in read:
            burned = {reading.asset_of(asset).asset_id: amount for asset, amount in detail.burned}
            flow = _flow(values, emitted, detail)
            if {asset: amount for asset, amount in flow.items() if amount} != burned:
                yield Inconsistency(f"transaction {tx_id.hex()}", f"it burned {flow}, and {burned} is told")


def _flow(values: OutputReader, emitted: Sequence[int], detail: TxDetail) -> dict[AssetID, int]:
    """Return inputs less outputs, without what the chain itself pays: rewards, and balances of L1 validators."""
    flow: dict[AssetID, int] = {}
    made = [utxo for utxo in values.of(emitted) if utxo.reward is None]
    for sign, utxos in ((1, values.of(detail.inputs)), (-1, made)):
        for utxo in utxos:
            if utxo.kind in ("TRANSFER", "STAKE"):
                flow[utxo.asset.asset_id] = flow.get(utxo.asset.asset_id, 0) + sign * utxo.amount
    _add_l1(flow, values, emitted, detail)
    return flow


def _add_l1(flow: dict[AssetID, int], values: OutputReader, emitted: Sequence[int], detail: TxDetail) -> None:
    funded = detail.l1_funded[1] if detail.l1_funded is not None else 0
    refunded = -sum(change for *_, change in detail.l1 if change < 0)
    if not funded and not refunded:
        return
    # The fee is paid in AVAX as well; what is refunded is the last output.
    paid = values.of(detail.inputs) if funded else values.of(emitted[-1:])
    in_avax = [utxo.asset for utxo in paid if utxo.asset.symbol == "AVAX"]
    asset_id = (in_avax[0] if in_avax else paid[-1].asset).asset_id
    flow[asset_id] = flow.get(asset_id, 0) + refunded - funded


def _compare(utxo: Utxo, row: tuple[Any, ...] | None, *, can_be_spent: bool) -> Iterator[Inconsistency]:
    name = f"output {utxo.utxo_id.hex()}"
    if (row is not None) != can_be_spent:
        yield Inconsistency(name, "it can be spent, and was" if row is not None else "it cannot be spent, and was not")
    elif row is not None:
        told = (prefix_of(utxo.utxo_id), utxo.utxo_id[8:], utxo.amount, NUMBERS[utxo.consumed_on])
        if told != row:
            yield Inconsistency(name, f"it is kept twice, as {told[2:]} and {row[2:]}, or under another id")
    if not utxo.is_incomplete and utxo.utxo_id != utxo_id(utxo.tx_id, utxo.output_index):
        yield Inconsistency(name, "its id is not its own")


def _unspent_rows(reading: ReadSession, keys: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    text = f"SELECT output, prefix, rest, amount, held_on FROM {ALL_UNSPENT} AS u WHERE output BETWEEN ? AND ?"
    rows = reading.rows(text, keys[0], keys[-1])
    return {row[0]: (row[1], bytes(row[2]), from_column(row[3]), row[4]) for row in rows}


def _still_staked(reading: ReadSession, keys: Sequence[int]) -> set[int]:
    """Return those outputs that are locked by a staking which is not over."""
    text = (
        "SELECT o.key FROM outputs o JOIN stakings s ON s.tx = o.tx"
        " WHERE o.key IN {keys} AND o.flags & 128 <> 0 AND s.state < 2"
    )
    return {row[0] for row in reading.by_keys(text, keys)}


def _check_blocks(reading: ReadSession) -> Iterator[Inconsistency]:
    """Hold each chain's blocks against its last height, and the transactions against the blocks that hold them."""
    for number, chain in enumerate(CHAINS):
        rows = reading.rows("SELECT first_height, height, next_tx FROM chains WHERE chain = ?", number)
        if not rows or rows[0][1] < rows[0][0]:
            continue
        first, last, next_tx = rows[0]
        bounds = (first_key(number), last_key(number))
        count = reading.rows("SELECT count(*) FROM blocks WHERE key BETWEEN ? AND ?", *bounds)[0][0]
        if count != last - first + 1:
            yield Inconsistency(chain, f"{count} blocks from {first} to {last}")
        newest = reading.rows("SELECT coalesce(max(key), ?) FROM txs WHERE key BETWEEN ? AND ?", bounds[0], *bounds)
        if newest[0][0] != next_tx - 1:
            yield Inconsistency(chain, f"the last transaction is {newest[0][0]}, not {next_tx - 1}")
        lost = reading.rows(
            "SELECT count(*) FROM txs t WHERE t.key BETWEEN ? AND ? AND t.height IS NOT NULL"
            f" AND NOT EXISTS (SELECT 1 FROM blocks b WHERE b.key = {bounds[0]} + t.height)",
            *bounds,
        )[0][0]
        if lost:
            yield Inconsistency(chain, f"{lost} transactions of blocks that are not there")


def _check_stakings(reading: ReadSession) -> Iterator[Inconsistency]:
    """Hold the counters of validators against their delegations, and the stake of subnets against their stakers."""
    counted: Mapping[int, tuple[int, int]] = {
        row[0]: (row[1], int(row[2] or 0))
        for row in reading.rows(
            "SELECT validator, count(*), sum(weight) FROM stakings"
            " WHERE is_delegation = 1 AND state = 1 AND validator IS NOT NULL GROUP BY validator"
        )
    }
    for tx, count, weight in reading.rows(
        "SELECT tx, active_count, active_weight FROM stakings WHERE is_delegation = 0"
    ):
        if (count, weight) != counted.get(tx, (0, 0)):
            yield Inconsistency(f"staking {tx}", f"{count} delegations of {weight}, not {counted.get(tx, (0, 0))}")
    total = "SELECT coalesce(sum(weight), 0) FROM stakings s WHERE s.subnet = n.subnet AND s.state = 1"
    for subnet, told, stake in reading.rows(f"SELECT n.subnet, n.total_stake, ({total}) FROM subnets n"):
        if told != int(stake):
            yield Inconsistency(f"subnet {subnet}", f"a stake of {told}, not {stake}")


def _outputs_touching(reading: ReadSession, address: int, low: int, high: int) -> Iterator[list[int]]:
    """Yield the keys of the outputs of all transactions of a chain that touch an address, some at a time."""
    text = (
        "SELECT t.key, t.first_out, t.outs FROM address_txs a JOIN txs t ON t.key = a.tx"
        " WHERE a.address = ? AND a.tx BETWEEN ? AND ? ORDER BY a.tx LIMIT ?"
    )
    while rows := reading.rows(text, address, low, high, _AT_ONCE):
        low = rows[-1][0] + 1
        yield [key for _, first, outs in rows for key in range(first, first + outs)]


def _add_to_balances(found: Balances, utxo: Utxo, *, is_locked: bool) -> None:
    asset = utxo.asset.asset_id
    sums = found.staked if is_locked else found.by_asset
    if not is_locked:
        found.utxos.append(utxo)
    if utxo.kind in ("TRANSFER", "STAKE"):
        sums[asset] = sums.get(asset, 0) + utxo.amount


_ADDRESS_BYTES: Final = 20


def indexed_height(connection: Connection, chain: PrimaryChain) -> int | None:
    """Return the last indexed height of a chain; None: nothing of it is indexed."""
    rows = bulk.fetch(connection, "SELECT height FROM chains WHERE chain = ? AND height >= 0", NUMBERS[chain])
    return int(rows[0][0]) if rows else None


def current_supply(connection: Connection) -> int | None:
    """Return the Primary Network's supply after the last indexed block; None where it is not known."""
    rows = bulk.fetch(connection, "SELECT supply FROM blocks WHERE chain = ? ORDER BY key DESC LIMIT 1", P)
    return None if not rows or rows[0][0] is None else int(rows[0][0])


def sample_addresses(connection: Connection, count: int, random: Random) -> list[Address]:
    """Draw at most `count` addresses: half of all that are known, half of those that hold something now."""
    keys = _sample_keys(connection, "address_parts", "address", count // 2, random)
    owners = bulk.fetch(connection, "SELECT min(key), max(key) FROM outputs")
    low, high = owners[0]
    for _ in range(count - count // 2 if low is not None else 0):
        text = (
            "SELECT o.owner FROM outputs o WHERE o.key >= ? AND o.owner IS NOT NULL"
            f" AND NOT EXISTS (SELECT 1 FROM {ALL_SPENDS} s WHERE s.output = o.key) ORDER BY o.key LIMIT 1"
        )
        keys += [row[0] for row in bulk.fetch(connection, text, random.randint(low, high))]
    found = [bulk.fetch(connection, "SELECT id FROM ids WHERE key = ?", key) for key in dict.fromkeys(keys)]
    ids = [bytes(rows[0][0]) for rows in found if rows]
    return [Address(one) for one in ids if len(one) == _ADDRESS_BYTES]


def sample_validations(connection: Connection, count: int, random: Random) -> list[ValidationID]:
    """Draw at most `count` L1 validations."""
    keys = _sample_keys(connection, "validations", "validation", count, random)
    found = [bulk.fetch(connection, "SELECT id FROM ids WHERE key = ?", key) for key in keys]
    return [ValidationID(bytes(rows[0][0])) for rows in found if rows]


def _sample_keys(connection: Connection, table: str, column: str, count: int, random: Random) -> list[int]:
    """Return keys at random places of a column that has an index."""
    low, high = bulk.fetch(connection, f"SELECT min({column}), max({column}) FROM {table}")[0]
    if low is None:
        return []
    text = f"SELECT {column} FROM {table} WHERE {column} >= ? ORDER BY {column} LIMIT 1"
    return list(dict.fromkeys(bulk.fetch(connection, text, random.randint(low, high))[0][0] for _ in range(count)))
