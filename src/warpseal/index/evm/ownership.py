"""Owners and balances of tokens, from transfers in their order.

The last receiver of an ERC-721 token owns it. Owners and balances of NFTs are derived. ERC-20
balances after the blocks that changed them are facts, since those transfers are not kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.index import bulk
from warpseal.index.evm.holders import NO_NFT_CHANGES, Holders, HolderState, NftChanges, Pair
from warpseal.index.evm.keys import (
    MAX_BALANCE,
    SQL_COLLECTION,
    balance_of,
    block_key,
    collection_of,
    first_token,
    height_of,
    is_erc1155,
    nft_asset,
    pack,
    rank_of,
    tx_key_of,
    unpack,
)
from warpseal.index.evm.recent_rows import RecentRows, find_held, forget_oldest
from warpseal.index.evm.rows import BalanceRow, BatchRows, Recreation, TransferRow
from warpseal.index.evm.schema import (
    BALANCE_PARTITIONS,
    BALANCES,
    HOLDINGS,
    INCONSISTENT,
    INCONSISTENT_ASSETS,
    OWNERS,
)
from warpseal.store.connection import Connection

_PARTITION_ROWS: Final = 1 << 18
# Rows of one statement, while holdings of a contract are derived again or ended.
_RENEWED_TRANSFERS: Final = 20_000
_ENDED_HOLDERS: Final = 1_000

_StoredBalance = tuple[int, int, int, int, bytes, int | None]
"""A row of `balances`."""
_Transfer = tuple[int, int, int, int]
"""Keys of asset, sender and recipient, 0 for the zero address, and the amount."""

_ROWS_OF_BLOCKS: Final = """
    SELECT asset, holder, block, balance
    FROM balances
    WHERE partition BETWEEN ? AND ? AND block BETWEEN ? AND ?
    ORDER BY asset, holder, block
"""
_LAST_PARTITION: Final = """
    SELECT number, first
    FROM balance_partitions
    ORDER BY number DESC
    LIMIT 1
"""
_PARTITION_OF: Final = "SELECT max(number) FROM balance_partitions WHERE first <= ?"
_FIRST_BLOCKS: Final = "SELECT first FROM balance_partitions ORDER BY number"
_COUNT_ROWS: Final = "SELECT count(*) FROM balances WHERE partition = ?"
_HISTORY: Final = """
    SELECT block, balance
    FROM balances
    WHERE partition IN (SELECT number FROM balance_partitions)
        AND asset = ?
        AND holder = ?
    ORDER BY block
"""
_DELETE_FROM: Final = """
    DELETE FROM balances
    WHERE partition IN (SELECT number FROM balance_partitions)
        AND asset = ?
        AND holder = ?
        AND block >= ?
"""
_HOLDERS_FROM: Final = """
    SELECT DISTINCT holder
    FROM balances
    WHERE partition IN (SELECT number FROM balance_partitions WHERE number >= ?)
        AND asset = ?
        AND block >= ?
"""
_HAS_HOLDERS: Final = "SELECT 1 FROM holders WHERE asset = ? LIMIT 1"
# Holders of a balance above 0 that has not changed since.
_RESTING: Final = """
    SELECT holder, rank, maximum, changed
    FROM ranks
    WHERE asset = ? AND rank < ? AND changed < ?
"""
_LATER_TRANSFERS: Final = f"""
    SELECT *
    FROM transfers
    WHERE {SQL_COLLECTION.format("token")} IN {{keys}}
        AND key > ?
        AND key < ?
    ORDER BY key
    LIMIT ?
"""
_NEXT_HOLDERS: Final = """
    SELECT holder
    FROM holders
    WHERE asset = ? AND holder > ?
    ORDER BY holder
    LIMIT ?
"""
_HOLDINGS_OF: Final = """
    SELECT owner, token
    FROM holdings
    WHERE owner IN {keys} AND token >= ? AND token < ?
"""
_RECENT_OWNERS: Final = "SELECT token, holder FROM recent_owners WHERE token IN {keys}"
_OLDER_OWNERS: Final = "SELECT token, holder FROM older_owners WHERE token IN {keys}"


class Ownership:
    """Owners and balances in the database.

    cached: number of owners, and number of balances, in memory.
    capacity: number of rows in each of the small tables.
    """

    def __init__(self, cached: int, capacity: int) -> None:
        self._cached = cached
        # Those that changed last: by token, see _Batch, and by owner and token of ERC-1155.
        self._cached_holders: dict[int, int] = {}
        self._cached_balances: dict[tuple[int, int], int] = {}
        self._owners = RecentRows(OWNERS, capacity)
        self._holdings = RecentRows(HOLDINGS, capacity)

    def apply(self, connection: Connection, rows: BatchRows) -> NftChanges:
        """Change owners and balances by transfers; return the changes of the numbers of tokens.

        If the index does not begin at block 0, no contradiction is certain, and a balance of 0 may
        be a positive one: earlier transfers are missing.
        """
        if not rows.transfers:
            return NO_NFT_CHANGES
        batch = _Batch(connection, rows, self._cached_holders, self._cached_balances)
        batch.apply(rows.transfers)
        owners, holdings, nft_changes = batch.changes()
        self._owners.put(connection, owners)
        self._holdings.put(connection, holdings)
        if rows.is_complete:
            bulk.insert_new(
                connection, INCONSISTENT, [(number,) for number in sorted(batch.inconsistent)]
            )
        batch.remember()
        forget_oldest(self._cached_holders, self._cached)
        forget_oldest(self._cached_balances, self._cached)
        return nft_changes

    def renew(
        self, connection: Connection, begins: Mapping[int, int], height: int, *, is_complete: bool
    ) -> NftChanges:
        """Derive the holdings of collections again, whose contracts were destroyed and created.

        Only the transfers from the second creation on count. Returns the changes of the numbers of
        tokens.

        begins: the key of the transaction that created the contract again, by the number of the
            collection.
        """
        counts: Counter[tuple[int, int]] = Counter()
        tokens: Counter[int] = Counter()
        # All holdings end before any transfer is applied again: a transfer finds the state that
        # the destroyed contract left to the new one, which is none.
        for collection in begins:
            self._end(connection, collection, counts, tokens)
        # Contradictions were those of the former contract; the transfers below mark new ones.
        bulk.delete(connection, INCONSISTENT, sorted(begins))
        end = block_key(height + 1)
        # From the first block on that has such a creation, all collections in one order.
        place = block_key(height_of(min(begins.values()))) - 1
        while rows := bulk.run(
            connection, _LATER_TRANSFERS, begins, place, end, _RENEWED_TRANSFERS
        ):
            transfers = list(map(TransferRow._make, rows))
            place = transfers[-1].key
            renewed = [
                row
                for row in transfers
                if tx_key_of(row.key, row.tx_index) >= begins[collection_of(row.token)]
            ]
            batch = BatchRows(
                height=height,
                blocks=(),
                transfers=renewed,
                creations=(),
                balances=(),
                new_tokens=set(),
                is_complete=is_complete,
            )
            changes = self.apply(connection, batch)
            counts.update(changes.counts)
            tokens.update(changes.tokens)
        return NftChanges(counts, tokens)

    def _end(
        self,
        connection: Connection,
        collection: int,
        counts: Counter[tuple[int, int]],
        tokens: Counter[int],
    ) -> None:
        """End all holdings of a collection, and count them."""
        asset = nft_asset(collection)
        bounds = (first_token(collection), first_token(collection + 1))
        ended: set[int] = set()
        # The rows of holders name the owners: holdings have no index by token. They change only
        # after this, by the counts.
        last_holder = 0
        while holders := connection.fetch(_NEXT_HOLDERS, asset, last_holder, _ENDED_HOLDERS):
            owners = [holder for (holder,) in holders]
            pairs = sorted(map(tuple, bulk.run(connection, _HOLDINGS_OF, owners, *bounds)))
            self._holdings.put(connection, [(owner, token, None, 0) for owner, token in pairs])
            for owner, token in pairs:
                # A cached balance would be taken for the one before the next transfer.
                self._cached_balances.pop((owner, token), None)
                counts[collection, owner] -= 1
                ended.add(token)
            last_holder = owners[-1]
        tokens[collection] -= len(ended)
        for token in ended:
            self._cached_holders.pop(token, None)
        self._owners.put(connection, [(token, 0) for token in sorted(ended)])


class Balances:
    """Writes the balances of blocks.

    holders: the holders with their balances after the last block.
    capacity: number of rows in a small table; a partition has twice as many, so that the newest
        partition stays in memory.
    """

    def __init__(self, connection: Connection, holders: Holders, capacity: int) -> None:
        self._holders = holders
        self._partition_rows = min(_PARTITION_ROWS, 2 * capacity)
        self._partition = -1
        self._first = 0
        for number, first in connection.fetch(_LAST_PARTITION):
            self._partition, self._first = number, first
        ((self._rows,),) = connection.fetch(_COUNT_ROWS, self._partition)

    def write(
        self, connection: Connection, blocks: Sequence[EvmBlockFacts], keys: Mapping[bytes, int]
    ) -> list[BalanceRow]:
        """Write the balances after the next blocks; return them sorted by asset, holder and block.

        keys: the key of each address of the transfers; 0 of the zero address.
        """
        # Plain tuples: a million transfers pass here in a minute, and one with names takes 4 % of
        # the whole write.
        moves: list[tuple[int, list[_Transfer]]] = []
        pairs: set[Pair] = set()
        for block in blocks:
            transfers = [
                (
                    keys[transfer.contract],
                    keys[transfer.sender],
                    keys[transfer.recipient],
                    transfer.amount,
                )
                for transfer in block.erc20_transfers
            ]
            if transfers:
                moves.append((block.number, transfers))
                pairs.update(
                    [
                        (asset, party)
                        for asset, first, second, _ in transfers
                        for party in (first, second)
                        if party
                    ]
                )
        if not pairs:
            return []
        states = self._holders.find(connection, pairs)
        balances = {pair: balance_of(state.rank) for pair, state in states.items()}
        changed = {pair: state.changed for pair, state in states.items()}
        rows: list[BalanceRow] = []
        stored: list[_StoredBalance] = []
        inconsistent: set[int] = set()
        for number, block_moves in moves:
            before = _apply_moves(balances, block_moves, inconsistent)
            after = [
                (pair, balances[pair])
                for pair, balance in before.items()
                if balances[pair] != balance
            ]
            if after and (self._partition < 0 or self._rows >= self._partition_rows):
                self._partition += 1
                self._first, self._rows = number, 0
                bulk.insert(connection, BALANCE_PARTITIONS, [(self._partition, number)])
            for pair, balance in after:
                # The first row of a holder in a partition names its change before: readers follow
                # these links back and open no partition without a row of the holder.
                last = changed.get(pair)
                previous = last if last is not None and last < self._first else None
                changed[pair] = number
                rows.append(BalanceRow(*pair, number, balance))
                stored.append((self._partition, *pair, number, pack(balance), previous))
            self._rows += len(after)
        bulk.insert(connection, BALANCES, sorted(stored, key=itemgetter(0, 1, 2, 3)))
        bulk.insert_new(
            connection, INCONSISTENT_ASSETS, [(asset,) for asset in sorted(inconsistent)]
        )
        rows.sort()
        return rows

    def end(self, connection: Connection, recreation: Recreation, height: int) -> None:
        """End the balances of a contract that was destroyed and created again.

        They end in the block of the second creation. The transfers are not stored: the balance
        before the block is taken off all later ones. Later recreations of a contract come first:
        each takes its balances off up to the next one, whose balances are right by then.
        """
        asset, begin = recreation.contract, height_of(recreation.tx)
        if not connection.fetch(_HAS_HOLDERS, asset):
            return
        until = height + 1 if recreation.until is None else height_of(recreation.until)
        firsts = [first for (first,) in connection.fetch(_FIRST_BLOCKS)]
        states: dict[Pair, HolderState] = {}
        rows: list[_StoredBalance] = []
        # Holders whose balance changed since then have later rows, which are written again.
        partition = bisect_right(firsts, begin) - 1
        changed_holders = {
            holder for (holder,) in connection.fetch(_HOLDERS_FROM, partition, asset, begin)
        }
        for holder in changed_holders:
            history = [
                (block, unpack(bytes(raw)))
                for block, raw in connection.fetch(_HISTORY, asset, holder)
            ]
            ended = _end_balance(history, begin, until)
            if ended != history:
                connection.run(_DELETE_FROM, asset, holder, begin)
                rows += _stored_balances(firsts, asset, holder, ended, begin)
                largest = max(balance for _, balance in ended)
                states[asset, holder] = _holder_state(ended[-1], largest)
        # All others get one row more: nothing from the block on.
        resting = connection.fetch(_RESTING, asset, rank_of(0), begin)
        for holder, raw_rank, raw_maximum, changed in resting:
            if holder not in changed_holders:
                largest = balance_of(bytes(raw_rank if raw_maximum is None else raw_maximum))
                history = [(changed, largest), (begin, 0)]
                rows += _stored_balances(firsts, asset, holder, history, begin)
                states[asset, holder] = _holder_state((begin, 0), largest)
        bulk.insert(connection, BALANCES, sorted(rows, key=itemgetter(0, 1, 2, 3)))
        ((self._rows,),) = connection.fetch(_COUNT_ROWS, self._partition)
        # The states of holders come last: the rows of `_RESTING` are read from them.
        self._holders.rewrite(connection, asset, states, height)


class _Batch:
    """Owners and balances that one batch touches, before and after it.

    cached_holders, cached_balances: the caches of Ownership.
    """

    def __init__(
        self,
        connection: Connection,
        rows: BatchRows,
        cached_holders: dict[int, int],
        cached_balances: dict[tuple[int, int], int],
    ) -> None:
        self._is_complete = rows.is_complete
        self._cached_holders = cached_holders
        self._cached_balances = cached_balances
        # The numbers of contracts whose events contradict each other.
        self.inconsistent: set[int] = set()
        holders = {row.token: cached_holders.get(row.token, 0) for row in rows.transfers}
        missing = holders.keys() - rows.new_tokens - cached_holders.keys()
        # A row of the small table counts before the large table's, also if it says that there is no
        # owner.
        recent = dict(bulk.fetch_by_keys(connection, _RECENT_OWNERS, missing))
        holders.update(recent)
        holders.update(dict(bulk.fetch_by_keys(connection, _OLDER_OWNERS, missing - recent.keys())))
        # By token: its owner, or the number of its holders. 0: none.
        self._holders, self._holders_before = holders, holders.copy()
        moved = [
            row
            for row in rows.transfers
            if is_erc1155(row.token) and row.token not in rows.new_tokens
        ]
        balances = self._find_balances(
            connection, {(row.sender, row.token) for row in moved if row.sender}
        )
        # Senders come first: a recipient needs no lookup if the senders are already all holders of
        # the token, as with tokens of a single holder. Every sender is looked up, since a balance
        # that is missing is a contradiction.
        sender_counts = Counter(token for _, token in balances)
        recipients = {
            (row.recipient, row.token)
            for row in moved
            if row.recipient and sender_counts[row.token] < holders[row.token]
        }
        balances |= self._find_balances(connection, recipients - balances.keys())
        # By owner and token of ERC-1155; absent: none.
        self._balances, self._balances_before = balances, balances.copy()

    def apply(self, transfers: Sequence[TransferRow]) -> None:
        """Apply transfers in their order."""
        holders, inconsistent = self._holders, self.inconsistent
        for row in transfers:
            token = row.token
            if is_erc1155(token):
                self._move(row, 1 if row.amount is None else unpack(row.amount))
            else:
                if holders[token] != row.sender:
                    inconsistent.add(collection_of(token))
                holders[token] = row.recipient

    def changes(
        self,
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int, bytes | None, int]], NftChanges]:
        """Return the changed rows of owners and holdings, in order, and the numbers of tokens.

        A row that is gone has 0 in its last column.
        """
        owners: list[tuple[int, int]] = []
        holdings: dict[tuple[int, int], tuple[bytes | None, int]] = {}
        counts: Counter[tuple[int, int]] = Counter()
        tokens: Counter[int] = Counter()
        for token, holder in self._holders.items():
            previous = self._holders_before[token]
            if holder == previous:
                continue
            owners.append((token, holder))
            collection = collection_of(token)
            tokens[collection] += bool(holder) - bool(previous)
            # The holdings of ERC-721 follow from the owner. Those of ERC-1155 have balances, which
            # come below.
            if not is_erc1155(token):
                if previous:
                    holdings[previous, token] = (None, 0)
                    counts[collection, previous] -= 1
                if holder:
                    holdings[holder, token] = (None, 1)
                    counts[collection, holder] += 1
        for pair, balance in self._balances.items():
            if balance != self._balances_before.get(pair):
                holdings[pair] = (pack(balance), 1)
        holdings.update(
            (pair, (None, 0)) for pair in self._balances_before if pair not in self._balances
        )
        for holder, token in self._balances.keys() ^ self._balances_before.keys():
            counts[collection_of(token), holder] += 1 if (holder, token) in self._balances else -1
        rows = sorted((*pair, *row) for pair, row in holdings.items())
        return sorted(owners), rows, NftChanges(counts, tokens)

    def remember(self) -> None:
        """Put owners and balances behind the cached ones: the oldest are forgotten first."""
        for token, holder in self._holders.items():
            self._cached_holders.pop(token, None)
            self._cached_holders[token] = holder
        for pair in self._balances_before:
            self._cached_balances.pop(pair, None)
        self._cached_balances.update(self._balances)

    def _find_balances(
        self, connection: Connection, pairs: set[tuple[int, int]]
    ) -> dict[tuple[int, int], int]:
        """Return the balances of those owners and tokens that are held."""
        cached = self._cached_balances
        balances = {pair: cached[pair] for pair in pairs if pair in cached}
        for pair, raw in find_holdings(connection, pairs - balances.keys()).items():
            balances[pair] = unpack(raw or b"")
        return balances

    def _move(self, row: TransferRow, amount: int) -> None:
        """Move an amount of an ERC-1155 token. The zero address, 0, has no balance."""
        token, sender, recipient = row.token, row.sender, row.recipient
        if sender:
            balance = self._balances.get((sender, token), 0) - amount
            if balance < 0:
                self.inconsistent.add(collection_of(token))
            self._set(sender, token, max(0, balance))
        if recipient:
            balance = self._balances.get((recipient, token), 0) + amount
            if balance > MAX_BALANCE:
                self.inconsistent.add(collection_of(token))
            self._set(recipient, token, min(MAX_BALANCE, balance))

    def _set(self, owner: int, token: int, balance: int) -> None:
        pair = (owner, token)
        # An index that begins later knows no balance for certain.
        if balance or not self._is_complete:
            if pair not in self._balances:
                self._holders[token] += 1
            self._balances[pair] = balance
        elif pair in self._balances:
            del self._balances[pair]
            self._holders[token] -= 1


def read_balances(connection: Connection, first: int, last: int) -> list[BalanceRow]:
    """Return the balances after blocks, sorted by asset, holder and block."""
    low, high = (connection.fetch(_PARTITION_OF, bound)[0][0] for bound in (first, last))
    if high is None:
        return []
    rows = connection.fetch(_ROWS_OF_BLOCKS, low or 0, high, first, last)
    return [BalanceRow(asset, holder, block, unpack(raw)) for asset, holder, block, raw in rows]


def find_holdings(
    connection: Connection, pairs: set[tuple[int, int]]
) -> dict[tuple[int, int], bytes | None]:
    """Return the balances, None for ERC-721, of those owners and tokens that are held."""
    return {
        (owner, token): balance for owner, token, balance in find_held(connection, HOLDINGS, pairs)
    }


def _end_balance(
    history: Sequence[tuple[int, int]], begin: int, until: int
) -> list[tuple[int, int]]:
    """Return the changes of a balance, as blocks and balances, of a contract that began again.

    begin: the block in which the contract was created again.
    until: the block of the next creation, from which on balances are right already.
    """
    ended = [change for change in history if change[0] < begin]
    # The former contract's balance, which all balances of the next contract wrongly contain.
    residue = ended[-1][1] if ended else 0
    later: list[tuple[int, int]] = []
    for block, balance in history:
        if block >= until:
            later.append((block, balance))
        elif block >= begin:
            # Below 0 only if the events of the contract contradict each other.
            later.append((block, max(0, balance - residue)))
    if not later or later[0][0] > begin:
        later.insert(0, (begin, 0))
    # Only changes have rows: a block in which the balance stays the same has none.
    last_balance = residue
    for block, balance in later:
        if balance != last_balance:
            ended.append((block, balance))
            last_balance = balance
    return ended


def _stored_balances(
    firsts: Sequence[int], asset: int, holder: int, history: Sequence[tuple[int, int]], begin: int
) -> list[_StoredBalance]:
    """Return the rows of a history from block `begin` on.

    firsts: the first block of each partition.
    history: blocks and the balances after them, also before `begin`: rows link to them.
    """
    rows: list[_StoredBalance] = []
    last: int | None = None
    for block, balance in history:
        partition = bisect_right(firsts, block) - 1
        previous = last if last is not None and last < firsts[partition] else None
        if block >= begin:
            rows.append((partition, asset, holder, block, pack(balance), previous))
        last = block
    return rows


def _holder_state(change: tuple[int, int], largest: int) -> HolderState:
    """Return the state of a holder after its last change.

    largest: the largest balance after any block.
    """
    block, balance = change
    return HolderState(rank_of(balance), None if largest == balance else rank_of(largest), block)


def _apply_moves(
    balances: dict[Pair, int], moves: Sequence[_Transfer], inconsistent: set[int]
) -> dict[Pair, int]:
    """Apply the transfers of a block in their order; return the balances before them.

    inconsistent: gets the assets whose transfers take more than there is, or add beyond 2^256-1.
    """
    before: dict[Pair, int] = {}
    for asset, sender, recipient, amount in moves:
        for holder, change in ((sender, -amount), (recipient, amount)):
            if holder:
                pair = (asset, holder)
                balance = balances.get(pair, 0)
                before.setdefault(pair, balance)
                balance += change
                if not 0 <= balance <= MAX_BALANCE:
                    inconsistent.add(asset)
                    balance = 0 if balance < 0 else MAX_BALANCE
                balances[pair] = balance
    return before
