"""Checks that the index is consistent: derived numbers are computed again from other rows and compared.

Balances, supply and L1 balances are computed from the rows alone, so that `index verify` can compare them with a
node's. Addresses and validations to compare are drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from sqlalchemy import Connection

from warpseal.chains.ids import Address, AssetID, UtxoID
from warpseal.history.chains import PrimaryChain
from warpseal.index import bulk, type_codes
from warpseal.index.details import TxDetail, decode_tx
from warpseal.index.keys import CHAINS, NUMBERS, P, block_key, first_key, from_column, last_key, prefix_of
from warpseal.index.output_reader import OutputReader, OutputRow
from warpseal.index.read_session import ReadCache, ReadSession
from warpseal.index.schema import ALL_SPENDS, ALL_UNSPENT
from warpseal.ledger.outputs import OutputKind
from warpseal.warp.ids import PRIMARY_NETWORK, ValidationID

_BATCH_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """One inconsistency: its subject, and the found value beside the expected one."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class HeldOutput:
    """An unspent output. is_transfer: it holds an amount; locktime, stakeable_locktime: unix seconds."""

    utxo_id: UtxoID
    asset_id: AssetID
    amount: int
    owner_count: int
    is_transfer: bool
    locktime: int
    stakeable_locktime: int


@dataclass(slots=True)
class Balances:
    """The outputs of which an address is an owner on one chain, from all outputs that it ever had.

    by_asset: amounts that are not staked any more; staked: amounts that are.
    """

    outputs: list[HeldOutput] = field(default_factory=list)
    by_asset: dict[AssetID, int] = field(default_factory=dict)
    staked: dict[AssetID, int] = field(default_factory=dict)


def balances(connection: Connection, address: Address, held_on: PrimaryChain, created_on: PrimaryChain) -> Balances:
    """Compute what an address holds on a chain, of the outputs that another (or the same) chain made."""
    session = ReadSession(connection, ReadCache())
    found = Balances()
    owner = session.keys_of([address]).get(address)
    if owner is None:
        return found
    number = NUMBERS[created_on]
    for keys in _outputs_touching(session, owner, first_key(number), last_key(number)):
        outputs = OutputReader(session)
        outputs.load(keys)
        locked = _still_staked(session, keys)
        for key in keys:
            row = outputs.rows[key]
            is_held = owner in row.addresses and type_codes.held_on(row.flags) == NUMBERS[held_on]
            if is_held and key not in outputs.spenders:
                _add_to_balances(found, _held_output(session, outputs, row), is_locked=key in locked)
    return found


def l1_balance(connection: Connection, validation_id: ValidationID) -> int | None:
    """Compute the balance of an L1 validator, nAVAX, after the last indexed block; None: it is not indexed."""
    session = ReadSession(connection, ReadCache())
    key = session.keys_of([validation_id]).get(validation_id)
    if key is None:
        return None
    last = session.rows("SELECT tx FROM validation_txs WHERE validation = ? ORDER BY tx DESC LIMIT 1", key)
    if not last:
        return None
    height, detail = session.rows("SELECT height, detail FROM txs WHERE key = ?", last[0][0])[0]
    block = block_key(P, height)
    # A rest that does not pay for another second is forfeited.
    ended = "SELECT 1 FROM validation_stops WHERE validation = ? AND (block > ? OR (block = ? AND is_behind = 1))"
    if session.rows(ended, key, block, block):
        return 0
    balance = next(change[2] for change in decode_tx(detail).l1 if change[0] == key)
    then = session.rows("SELECT fees FROM blocks WHERE key = ?", block)[0][0]
    now = session.rows("SELECT fees FROM blocks WHERE chain = ? ORDER BY key DESC LIMIT 1", P)[0][0]
    return int(max(0, balance - (now - then)))


def find_supply_errors(connection: Connection) -> Iterator[Inconsistency]:
    """Compute the supply of the last block from the first block's and all stakings since; yield a difference."""
    session = ReadSession(connection, ReadCache())
    ends = [
        session.rows(f"SELECT key, supply FROM blocks WHERE chain = ? ORDER BY key {order} LIMIT 1", P)
        for order in ("ASC", "DESC")
    ]
    primary = session.keys_of([PRIMARY_NETWORK]).get(PRIMARY_NETWORK)
    if not all(ends) or ends[0][0][1] is None or primary is None:
        return
    (_, before), (_, now) = ends[0][0], ends[1][0]
    first = _first_supply(session, primary, before)
    minted = session.rows(
        "SELECT coalesce(sum(CASE WHEN state < 2 THEN potential ELSE paid END), 0) FROM"
        " (SELECT s.state, coalesce(s.potential, 0) AS potential, CASE WHEN EXISTS (SELECT 1 FROM txs t"
        " WHERE t.key = s.closed_by AND t.outcome = 2) THEN coalesce(s.potential, 0) ELSE 0 END AS paid"
        " FROM stakings s WHERE s.subnet = ?) AS counted",
        primary,
    )[0][0]
    if first + int(minted) != now:
        yield Inconsistency("supply", f"the last block has {now}, the stakings add up to {first + int(minted)}")


def _first_supply(session: ReadSession, primary: int, after_first: int) -> int:
    """Return the supply before the stakings of block 0, which its own row counts."""
    of_genesis = session.rows(
        "SELECT coalesce(sum(s.potential), 0) FROM stakings s JOIN txs t ON t.key = s.tx"
        " WHERE s.subnet = ? AND t.height = 0",
        primary,
    )[0][0]
    return after_first - int(of_genesis)


def find_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Compare rows that must agree and yield the differences. It reads every row once."""
    session = ReadSession(connection, ReadCache())
    yield from _check_unspent(session)
    yield from _check_flows(session)
    yield from _check_blocks(session)
    yield from _check_stakings(session)
    yield from find_supply_errors(connection)


def _check_unspent(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare the unspent outputs with all outputs, less those that were spent or are staked."""
    last, counted = 0, 0
    while rows := session.rows("SELECT key FROM outputs WHERE key > ? ORDER BY key LIMIT ?", last, _BATCH_ROWS):
        keys = [row[0] for row in rows]
        last = keys[-1]
        outputs = OutputReader(session)
        outputs.load(keys)
        unspent = _unspent_rows(session, keys)
        locked = _still_staked(session, keys)
        for key in keys:
            is_unspent = key not in outputs.spenders and key not in locked
            columns = unspent.pop(key, None)
            counted += columns is not None
            yield from _compare(outputs, outputs.rows[key], columns, is_unspent=is_unspent)
    total = session.rows(f"SELECT count(*) FROM {ALL_UNSPENT} AS u")[0][0]
    if total != counted:
        yield Inconsistency("unspent", f"{total} rows, but {counted} of them belong to outputs")


def _check_flows(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare the amounts that the P-Chain's transactions burned with their inputs and outputs."""
    last, end = first_key(P), last_key(P)
    text = "SELECT key, tx_id, first_out, outs, detail FROM txs WHERE key > ? AND key <= ? AND height > 0 ORDER BY key"
    while rows := session.rows(text + " LIMIT ?", last, end, _BATCH_ROWS):
        last = rows[-1][0]
        read = [(bytes(row[1]), range(row[2], row[2] + row[3]), decode_tx(row[4])) for row in rows]
        outputs = OutputReader(session)
        outputs.load(key for _, emitted, detail in read for key in (*emitted, *detail.inputs))
        session.load_assets(asset for _, _, detail in read for asset, _ in detail.burned)
        for tx_id, emitted, detail in read:
            burned = {session.asset_of(asset).asset_id: amount for asset, amount in detail.burned}
            flow = _flow(session, outputs, emitted, detail)
            if {asset: amount for asset, amount in flow.items() if amount} != burned:
                yield Inconsistency(
                    f"transaction {tx_id.hex()}", f"its row has {burned} burned, its inputs and outputs {flow}"
                )


def _flow(session: ReadSession, outputs: OutputReader, emitted: Sequence[int], detail: TxDetail) -> dict[AssetID, int]:
    """Return inputs less outputs, without what the chain itself pays: rewards, and balances of L1 validators."""
    flow: dict[AssetID, int] = {}
    made = [key for key in emitted if type_codes.reward_of(outputs.rows[key].flags) is None]
    for sign, keys in ((1, detail.inputs), (-1, made)):
        for key in keys:
            row = outputs.rows[key]
            if _is_transfer(row):
                asset_id = session.asset_of(row.asset).asset_id
                flow[asset_id] = flow.get(asset_id, 0) + sign * row.amount
    _add_l1(flow, session, outputs, emitted, detail)
    return flow


def _add_l1(
    flow: dict[AssetID, int], session: ReadSession, outputs: OutputReader, emitted: Sequence[int], detail: TxDetail
) -> None:
    funded = detail.l1_funded[1] if detail.l1_funded is not None else 0
    refunded = -sum(change for *_, change in detail.l1 if change < 0)
    if not funded and not refunded:
        return
    # The fee is paid in AVAX as well; a refund is the last output.
    keys = detail.inputs if funded else emitted[-1:]
    assets = [session.asset_of(outputs.rows[key].asset) for key in keys]
    avax = [asset for asset in assets if asset.symbol == "AVAX"]
    asset_id = (avax[0] if avax else assets[-1]).asset_id
    flow[asset_id] = flow.get(asset_id, 0) + refunded - funded


def _compare(
    outputs: OutputReader, row: OutputRow, unspent: tuple[Any, ...] | None, *, is_unspent: bool
) -> Iterator[Inconsistency]:
    """Compare an output with its row among the unspent ones. is_unspent: whether it must have one."""
    own_id = outputs.utxo_id(row)
    name = f"output {own_id.hex()}"
    if (unspent is not None) != is_unspent:
        reason = "listed as unspent, but a spend is recorded" if unspent is not None else "unspent, but not listed so"
        yield Inconsistency(name, reason)
    elif unspent is not None:
        expected = (prefix_of(own_id), own_id[8:], row.amount, type_codes.held_on(row.flags))
        if unspent != expected:
            yield Inconsistency(name, f"unspent row {unspent[2:]}, output {expected[2:]}, or the ids differ")


def _unspent_rows(session: ReadSession, keys: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    text = f"SELECT output, prefix, rest, amount, held_on FROM {ALL_UNSPENT} AS u WHERE output BETWEEN ? AND ?"
    rows = session.rows(text, keys[0], keys[-1])
    return {row[0]: (row[1], bytes(row[2]), from_column(row[3]), row[4]) for row in rows}


def _still_staked(session: ReadSession, keys: Sequence[int]) -> set[int]:
    """Return the outputs that an unfinished staking locks."""
    text = (
        "SELECT o.key FROM outputs o JOIN stakings s ON s.tx = o.tx"
        " WHERE o.key IN {keys} AND o.flags & 128 <> 0 AND s.state < 2"
    )
    return {row[0] for row in session.by_keys(text, keys)}


def _check_blocks(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare each chain's blocks with its last height, and the transactions with the blocks that hold them."""
    for number, chain in enumerate(CHAINS):
        rows = session.rows("SELECT first_height, height, next_tx FROM chains WHERE chain = ?", number)
        if not rows or rows[0][1] < rows[0][0]:
            continue
        first, last, next_tx = rows[0]
        bounds = (first_key(number), last_key(number))
        count = session.rows("SELECT count(*) FROM blocks WHERE key BETWEEN ? AND ?", *bounds)[0][0]
        if count != last - first + 1:
            yield Inconsistency(chain, f"{count} blocks from {first} to {last}")
        newest = session.rows("SELECT coalesce(max(key), ?) FROM txs WHERE key BETWEEN ? AND ?", bounds[0], *bounds)
        if newest[0][0] != next_tx - 1:
            yield Inconsistency(chain, f"the last transaction is {newest[0][0]}, not {next_tx - 1}")
        lost = session.rows(
            "SELECT count(*) FROM txs t WHERE t.key BETWEEN ? AND ? AND t.height IS NOT NULL"
            f" AND NOT EXISTS (SELECT 1 FROM blocks b WHERE b.key = {bounds[0]} + t.height)",
            *bounds,
        )[0][0]
        if lost:
            yield Inconsistency(chain, f"{lost} transactions whose blocks are missing")


def _check_stakings(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare the counters of validators with their delegations, and the stake of subnets with their stakers."""
    counted: Mapping[int, tuple[int, int]] = {
        row[0]: (row[1], int(row[2] or 0))
        for row in session.rows(
            "SELECT validator, count(*), sum(weight) FROM stakings"
            " WHERE is_delegation = 1 AND state = 1 AND validator IS NOT NULL GROUP BY validator"
        )
    }
    for tx, count, weight in session.rows(
        "SELECT tx, active_count, active_weight FROM stakings WHERE is_delegation = 0"
    ):
        if (count, weight) != counted.get(tx, (0, 0)):
            yield Inconsistency(f"staking {tx}", f"{count} delegations of {weight}, not {counted.get(tx, (0, 0))}")
    total = "SELECT coalesce(sum(weight), 0) FROM stakings s WHERE s.subnet = n.subnet AND s.state = 1"
    for subnet, total_stake, stake in session.rows(f"SELECT n.subnet, n.total_stake, ({total}) FROM subnets n"):
        if total_stake != int(stake):
            yield Inconsistency(f"subnet {subnet}", f"a stake of {total_stake}, not {stake}")


def _outputs_touching(session: ReadSession, address: int, low: int, high: int) -> Iterator[list[int]]:
    """Yield the keys of the outputs of all transactions of a chain that touch an address, some at a time."""
    text = (
        "SELECT t.key, t.first_out, t.outs FROM address_txs a JOIN txs t ON t.key = a.tx"
        " WHERE a.address = ? AND a.tx BETWEEN ? AND ? ORDER BY a.tx LIMIT ?"
    )
    while rows := session.rows(text, address, low, high, _BATCH_ROWS):
        low = rows[-1][0] + 1
        yield [key for _, first, outs in rows for key in range(first, first + outs)]


def _held_output(session: ReadSession, outputs: OutputReader, row: OutputRow) -> HeldOutput:
    detail = row.detail
    return HeldOutput(
        utxo_id=outputs.utxo_id(row),
        asset_id=session.asset_of(row.asset).asset_id,
        amount=row.amount,
        owner_count=len(row.addresses),
        is_transfer=_is_transfer(row),
        locktime=detail.locktime,
        stakeable_locktime=detail.stakeable_locktime,
    )


def _is_transfer(row: OutputRow) -> bool:
    return type_codes.output_kind(row.flags) is OutputKind.TRANSFER


def _add_to_balances(found: Balances, output: HeldOutput, *, is_locked: bool) -> None:
    sums = found.staked if is_locked else found.by_asset
    if not is_locked:
        found.outputs.append(output)
    if output.is_transfer:
        sums[output.asset_id] = sums.get(output.asset_id, 0) + output.amount


_ADDRESS_BYTES: Final = 20


def indexed_height(connection: Connection, chain: PrimaryChain) -> int | None:
    """Return the last indexed height of a chain; None if it is not indexed."""
    rows = bulk.fetch(connection, "SELECT height FROM chains WHERE chain = ? AND height >= 0", NUMBERS[chain])
    return int(rows[0][0]) if rows else None


def current_supply(connection: Connection) -> int | None:
    """Return the Primary Network's supply after the last indexed block; None if it is not known."""
    rows = bulk.fetch(connection, "SELECT supply FROM blocks WHERE chain = ? ORDER BY key DESC LIMIT 1", P)
    return None if not rows or rows[0][0] is None else int(rows[0][0])


def sample_addresses(connection: Connection, count: int, random: Random) -> list[Address]:
    """Draw at most `count` addresses: half of all known ones, half of those that hold an output now."""
    keys = _sample_keys(connection, "address_partitions", "address", count // 2, random)
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
    return [Address(raw) for raw in ids if len(raw) == _ADDRESS_BYTES]


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
