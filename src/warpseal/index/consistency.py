"""Checks of the index: derived numbers are computed again from other rows and compared.

Balances, supply and L1 balances are computed from the rows alone, so that `index verify` can
compare them with a node's. Addresses and validations to compare are drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final

from msgspec import Struct

from warpseal.chains.ids import Address, AssetID, UtxoID
from warpseal.index.errors import IndexDamaged
from warpseal.index.keys import CHAINS, NUMBERS, P, first_key, from_column, last_key, prefix_of
from warpseal.index.l1_rows import read_l1_rows
from warpseal.index.output_reader import OutputReader, TxRow
from warpseal.index.read_session import ReadSession
from warpseal.index.schema import ALL_SPENDS, ALL_UNSPENT
from warpseal.index.validator_sets import decode_weights
from warpseal.ledger.outputs import OutputKind
from warpseal.resources.chains import PrimaryChain
from warpseal.store.connection import Connection
from warpseal.warp.ids import PRIMARY_NETWORK, ValidationID

_BATCH_ROWS: Final = 2_000
_ADDRESS_BYTES: Final = 20


class Inconsistency(Struct, frozen=True):
    """One inconsistency: its subject, and the stored value next to the expected one."""

    subject: str
    reason: str


class HeldOutput(Struct, frozen=True):
    """An unspent output.

    is_transfer: the output holds an amount.
    locktime, stakeable_locktime: unix seconds.
    """

    utxo_id: UtxoID
    asset_id: AssetID
    amount: int
    owner_count: int
    is_transfer: bool
    locktime: int
    stakeable_locktime: int


def held_outputs(connection: Connection, address: Address, chain: PrimaryChain) -> list[HeldOutput]:
    """Return the unspent outputs of an address on a chain, except exported and staked ones."""
    session = ReadSession(connection)
    unspent: list[HeldOutput] = []
    owner = session.keys_of([address]).get(address)
    if owner is None:
        return unspent
    number = NUMBERS[chain]
    low, high = first_key(number), last_key(number)
    text = (
        "SELECT t.key, t.first_out, t.outs"
        " FROM address_txs a"
        " JOIN txs t ON t.key = a.tx"
        " WHERE a.address = ? AND a.tx BETWEEN ? AND ?"
        " ORDER BY a.tx"
        " LIMIT ?"
    )
    while rows := session.rows(text, owner, low, high, _BATCH_ROWS):
        low = rows[-1][0] + 1
        keys = [key for _, first, outs in rows for key in range(first, first + outs)]
        outputs = OutputReader(session)
        outputs.load(keys)
        unavailable = outputs.spenders.keys() | _still_staked(session, keys)
        for row in (outputs.rows[key] for key in keys if key not in unavailable):
            if owner in row.addresses and row.flags.held_on == number:
                output = HeldOutput(
                    utxo_id=outputs.utxo_id(row),
                    asset_id=session.asset_of(row.asset).asset_id,
                    amount=row.amount,
                    owner_count=len(row.addresses),
                    is_transfer=row.flags.kind is OutputKind.TRANSFER,
                    locktime=row.detail.locktime,
                    stakeable_locktime=row.detail.stakeable_locktime,
                )
                unspent.append(output)
    return unspent


def l1_balance(connection: Connection, validation_id: ValidationID) -> int | None:
    """Return the balance of an L1 validator after the last block, nAVAX; None without a row."""
    session = ReadSession(connection)
    key = session.keys_of([validation_id]).get(validation_id)
    if key is None:
        return None
    ((height,),) = session.rows("SELECT height FROM chains WHERE chain = ?", P)
    rows = read_l1_rows(session, height, "v.validation = ?", key)
    return rows[0].balance if rows else None


def incomplete_chains(connection: Connection) -> frozenset[PrimaryChain]:
    """Return the chains whose beginning, such as the genesis, the index lacks."""
    session = ReadSession(connection)
    return frozenset(
        CHAINS[row[0]]
        for row in session.rows("SELECT chain FROM chain_origin WHERE is_complete = 0")
    )


def check_file(connection: Connection) -> None:
    """Check the pages of a SQLite file. Raises IndexDamaged."""
    if not connection.is_postgresql:
        result = connection.value("PRAGMA quick_check(1)")
        if result != "ok":
            raise IndexDamaged(" ".join(str(result).split()))


def find_inconsistencies(connection: Connection) -> Iterator[Inconsistency]:
    """Compare rows that must agree and yield the differences. It reads every row once."""
    session = ReadSession(connection)
    for check in (
        _check_unspent,
        _check_flows,
        _check_blocks,
        _check_stakings,
        _check_supply,
        _check_sets,
    ):
        yield from check(session)


def _check_unspent(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare the unspent outputs with all outputs, less those that were spent or are staked."""
    last, counted = 0, 0
    text = (
        "SELECT output, prefix, rest, amount, held_on"
        f" FROM {ALL_UNSPENT} AS u"
        " WHERE output BETWEEN ? AND ?"
    )
    while rows := session.rows(
        "SELECT key FROM outputs WHERE key > ? ORDER BY key LIMIT ?", last, _BATCH_ROWS
    ):
        keys = [row[0] for row in rows]
        last = keys[-1]
        outputs = OutputReader(session)
        outputs.load(keys)
        columns = session.rows(text, keys[0], keys[-1])
        unspent = {row[0]: (row[1], bytes(row[2]), from_column(row[3]), row[4]) for row in columns}
        locked = _still_staked(session, keys)
        for key in keys:
            row, unspent_row = outputs.rows[key], unspent.get(key)
            output_id = outputs.utxo_id(row)
            subject = f"output {output_id.hex()}"
            expected = (prefix_of(output_id), output_id[8:], row.amount, row.flags.held_on)
            is_unspent = key not in outputs.spenders and key not in locked
            counted += unspent_row is not None
            if unspent_row is None:
                if is_unspent:
                    yield Inconsistency(subject, "unspent, but not listed so")
            elif not is_unspent:
                yield Inconsistency(subject, "listed as unspent, but a spend is recorded")
            elif unspent_row != expected:
                reason = f"unspent row {unspent_row[2:]}, output {expected[2:]}, or the ids differ"
                yield Inconsistency(subject, reason)
    total = session.rows(f"SELECT count(*) FROM {ALL_UNSPENT} AS u")[0][0]
    if total != counted:
        yield Inconsistency("unspent", f"{total} rows, but {counted} of them belong to outputs")


def _check_flows(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare the amounts that the P-Chain's transactions burned with their inputs and outputs."""
    last, end = first_key(P), last_key(P)
    text = "SELECT key FROM txs WHERE key > ? AND key <= ? AND height > 0 ORDER BY key LIMIT ?"
    while rows := session.rows(text, last, end, _BATCH_ROWS):
        last = rows[-1][0]
        outputs = OutputReader(session)
        outputs.load_txs(row[0] for row in rows)
        txs = [outputs.tx(row[0]) for row in rows]
        outputs.load(key for tx in txs for key in (*tx.made, *tx.detail.inputs))
        session.load_assets(asset for tx in txs for asset, _ in tx.detail.burned)
        for tx in txs:
            burned = {
                session.asset_of(asset).asset_id: amount for asset, amount in tx.detail.burned
            }
            flow = _flow(session, outputs, tx)
            if {asset: amount for asset, amount in flow.items() if amount} != burned:
                reason = f"its row has {burned} burned, its inputs and outputs {flow}"
                yield Inconsistency(f"transaction {tx.tx_id.hex()}", reason)


def _flow(session: ReadSession, outputs: OutputReader, tx: TxRow) -> dict[AssetID, int]:
    """Return inputs less outputs, without what the chain itself pays.

    It pays rewards, and refunds balances of L1 validators.
    """
    flow: dict[AssetID, int] = {}
    detail = tx.detail
    paid = [key for key in tx.made if outputs.rows[key].flags.reward is None]
    for sign, keys in ((1, detail.inputs), (-1, paid)):
        for key in keys:
            row = outputs.rows[key]
            if row.flags.kind is OutputKind.TRANSFER:
                asset_id = session.asset_of(row.asset).asset_id
                flow[asset_id] = flow.get(asset_id, 0) + sign * row.amount
    funded = detail.l1_funded[1] if detail.l1_funded is not None else 0
    refunded = -sum(change for *_, change in detail.l1 if change < 0)
    if not funded and not refunded:
        return flow
    # The fee is paid in AVAX as well; a refund is the last output.
    payers = detail.inputs if funded else tx.made[-1:]
    assets = [session.asset_of(outputs.rows[key].asset) for key in payers]
    avax = [asset for asset in assets if asset.symbol == "AVAX"]
    asset_id = (avax[0] if avax else assets[-1]).asset_id
    flow[asset_id] = flow.get(asset_id, 0) + refunded - funded
    return flow


def _still_staked(session: ReadSession, keys: Sequence[int]) -> set[int]:
    """Return the outputs that an unfinished staking locks."""
    text = (
        "SELECT o.key"
        " FROM outputs o"
        " JOIN stakings s ON s.tx = o.tx"
        " WHERE o.key IN {keys} AND o.flags & 128 <> 0 AND s.state < 2"
    )
    return {row[0] for row in session.by_keys(text, keys)}


def _check_blocks(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare each chain's blocks with its last height, and with its transactions."""
    for number, chain in enumerate(CHAINS):
        rows = session.rows(
            "SELECT first_height, height, next_tx FROM chains WHERE chain = ?", number
        )
        if not rows or rows[0][1] < rows[0][0]:
            continue
        first, last, next_tx = rows[0]
        bounds = (first_key(number), last_key(number))
        count = session.rows("SELECT count(*) FROM blocks WHERE key BETWEEN ? AND ?", *bounds)[0][0]
        if count != last - first + 1:
            yield Inconsistency(chain, f"{count} blocks from {first} to {last}")
        newest = session.rows(
            "SELECT coalesce(max(key), ?) FROM txs WHERE key BETWEEN ? AND ?", bounds[0], *bounds
        )
        if newest[0][0] != next_tx - 1:
            yield Inconsistency(chain, f"the last transaction is {newest[0][0]}, not {next_tx - 1}")
        lost = session.rows(
            "SELECT count(*)"
            " FROM txs t"
            " WHERE t.key BETWEEN ? AND ? AND t.height IS NOT NULL"
            f" AND NOT EXISTS (SELECT 1 FROM blocks b WHERE b.key = {bounds[0]} + t.height)",
            *bounds,
        )[0][0]
        if lost:
            yield Inconsistency(chain, f"{lost} transactions whose blocks are missing")


def _check_stakings(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare counters of validators with delegations, and the stake of subnets with stakers."""
    counted: Mapping[int, tuple[int, int]] = {
        row[0]: (row[1], int(row[2] or 0))
        for row in session.rows(
            "SELECT validator, count(*), sum(weight)"
            " FROM stakings"
            " WHERE is_delegation = 1 AND state = 1 AND validator IS NOT NULL"
            " GROUP BY validator"
        )
    }
    for tx, count, weight in session.rows(
        "SELECT tx, active_count, active_weight FROM stakings WHERE is_delegation = 0"
    ):
        if (count, weight) != counted.get(tx, (0, 0)):
            yield Inconsistency(
                f"staking {tx}", f"{count} delegations of {weight}, not {counted.get(tx, (0, 0))}"
            )
    total = (
        "SELECT coalesce(sum(weight), 0) FROM stakings s WHERE s.subnet = n.subnet AND s.state = 1"
    )
    for subnet, total_stake, stake in session.rows(
        f"SELECT n.subnet, n.total_stake, ({total}) FROM subnets n"
    ):
        if total_stake != int(stake):
            yield Inconsistency(f"subnet {subnet}", f"a stake of {total_stake}, not {stake}")


def _check_supply(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare the supply of the last block with the first block's and all stakings since."""
    supplies = [
        session.rows(f"SELECT supply FROM blocks WHERE chain = ? ORDER BY key {order} LIMIT 1", P)
        for order in ("ASC", "DESC")
    ]
    primary = session.keys_of([PRIMARY_NETWORK]).get(PRIMARY_NETWORK)
    if not all(supplies) or supplies[0][0][0] is None or primary is None:
        return
    before, now = supplies[0][0][0], supplies[1][0][0]
    # The row of block 0 counts the stakings of the genesis.
    of_genesis = session.rows(
        "SELECT coalesce(sum(s.potential), 0)"
        " FROM stakings s"
        " JOIN txs t ON t.key = s.tx"
        " WHERE s.subnet = ? AND t.height = 0",
        primary,
    )[0][0]
    minted = session.rows(
        "SELECT coalesce(sum(s.potential), 0)"
        " FROM stakings s"
        " LEFT JOIN txs t ON t.key = s.closed_by"
        " WHERE s.subnet = ? AND (s.state < 2 OR t.outcome = 2)",
        primary,
    )[0][0]
    expected = before - int(of_genesis) + int(minted)
    if expected != now:
        yield Inconsistency(
            "supply", f"the last block has {now}, the stakings add up to {expected}"
        )


def _check_sets(session: ReadSession) -> Iterator[Inconsistency]:
    """Compare snapshots of validator sets with the changes, and the last set with the stake."""
    l1s = {row[0] for row in session.rows("SELECT DISTINCT subnet FROM validations")}
    stakes = dict(session.rows("SELECT subnet, total_stake FROM subnets"))
    next_snapshot = (
        "SELECT height, body"
        " FROM set_snapshots"
        " WHERE subnet = ? AND height > ?"
        " ORDER BY height"
        " LIMIT 1"
    )
    changes = (
        "SELECT member, weight"
        " FROM set_changes"
        " WHERE subnet = ? AND height > ? AND height <= ?"
        " ORDER BY height"
    )
    for (subnet,) in session.rows("SELECT DISTINCT subnet FROM set_snapshots ORDER BY subnet"):
        weights: dict[int, int] = {}
        last = -1
        while snapshots := session.rows(next_snapshot, subnet, last):
            height, body = snapshots[0]
            weights.update(session.rows(changes, subnet, last, height))
            weights = {member: weight for member, weight in weights.items() if weight}
            if decode_weights(body) != weights:
                yield Inconsistency(
                    f"subnet {subnet}",
                    f"the snapshot of height {height} is not the sum of the changes",
                )
            last = height
        weights.update(session.rows(changes, subnet, last, last_key(P)))
        total, stake = sum(map(from_column, weights.values())), from_column(stakes.get(subnet, 0))
        # An L1's validators stake nothing.
        if subnet not in l1s and total != stake:
            yield Inconsistency(
                f"subnet {subnet}", f"its validators weigh {total}, and its stake is {stake}"
            )


def indexed_height(connection: Connection, chain: PrimaryChain) -> int | None:
    """Return the last indexed height of a chain; None if it is not indexed."""
    rows = connection.fetch(
        "SELECT height FROM chains WHERE chain = ? AND height >= 0", NUMBERS[chain]
    )
    return int(rows[0][0]) if rows else None


def current_supply(connection: Connection) -> int | None:
    """Return the Primary Network's supply after the last indexed block; None if it is not known."""
    rows = connection.fetch(
        "SELECT supply FROM blocks WHERE chain = ? ORDER BY key DESC LIMIT 1", P
    )
    return None if not rows or rows[0][0] is None else int(rows[0][0])


def sample_addresses(connection: Connection, count: int, random: Random) -> list[Address]:
    """Draw at most `count` addresses, half of them from those that hold an output now."""
    addresses = "SELECT address FROM address_partitions WHERE address >= ? ORDER BY address LIMIT 1"
    owners = (
        "SELECT o.owner"
        " FROM outputs o"
        " WHERE o.key >= ? AND o.owner IS NOT NULL"
        f" AND NOT EXISTS (SELECT 1 FROM {ALL_SPENDS} s WHERE s.output = o.key)"
        " ORDER BY o.key"
        " LIMIT 1"
    )
    ids = _sample_ids(connection, addresses, ("address_partitions", "address"), count // 2, random)
    ids += _sample_ids(connection, owners, ("outputs", "key"), count - count // 2, random)
    return [Address(raw) for raw in dict.fromkeys(ids) if len(raw) == _ADDRESS_BYTES]


def sample_validations(connection: Connection, count: int, random: Random) -> list[ValidationID]:
    """Draw at most `count` L1 validations."""
    text = "SELECT validation FROM validations WHERE validation >= ? ORDER BY validation LIMIT 1"
    return [
        ValidationID(raw)
        for raw in _sample_ids(connection, text, ("validations", "validation"), count, random)
    ]


def _sample_ids(
    connection: Connection, text: str, drawn_from: tuple[str, str], count: int, random: Random
) -> list[bytes]:
    """Return the ids that a statement finds behind random places.

    drawn_from: name of a table, and of its column with the places.
    """
    session = ReadSession(connection)
    table, column = drawn_from
    low, high = session.rows(f"SELECT min({column}), max({column}) FROM {table}")[0]
    results = [
        session.rows(text, random.randint(low, high))
        for _ in range(count if low is not None else 0)
    ]
    keys = dict.fromkeys(rows[0][0] for rows in results if rows)
    session.load_ids(keys)
    return [session.id_of(key) for key in keys]
