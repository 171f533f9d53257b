"""Pages of holders by falling balance, then address, as they were after the first page's block.

A holder is shown by its newest row if that is not newer than the block, else by a former one. The
position of a page is the rank, the position of the address and the key of the last examined holder;
a fourth number says that the balances of this holder are yet to be examined from that block back.
Rows are stored by rank, position and key; rows with equal ranks and positions are read together and
sorted by the whole address.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from warpseal.index.evm.holders import DROPPED
from warpseal.index.evm.keys import balance_of, nft_asset, rank_of, unpack
from warpseal.index.evm.queries import EvmIndexState, first_block, read_state
from warpseal.index.evm.records import HolderPage, MissingResults
from warpseal.index.evm.resources import ContractRow, read_contracts
from warpseal.index.read_session import ReadSession
from warpseal.resources.evm import ErcType, Holder, HolderQuery
from warpseal.resources.queries import PageRequest, Position

MAX_HOLDERS: Final = 20_000
"""Holders that one page examines."""
MAX_HISTORIES: Final = 2_000
"""Holders of one page whose earlier balances are examined."""
MAX_BALANCES: Final = 20_000
"""Earlier balances that one page examines."""
MAX_EQUAL: Final = 1_000
"""Holders with equal balances, and equal first 8 bytes, that are sorted by the whole address."""

# Rows that are read at a time, if one page of rows is not enough.
_MORE_ROWS: Final = 2_000
# Behind all keys of holders.
_LAST_HOLDER: Final = 2**63 - 1
# Where a range of newest rows ends, and its rows above the threshold: only rows that may be shown
# become Python objects.
_LAST_NEWEST: Final = """
    SELECT rank, position, holder
    FROM ranks
    WHERE asset = ?
        AND (rank, position, holder) > (?, ?, ?)
        AND (rank, position, holder) <= (?, ?, ?)
    ORDER BY rank, position, holder
    LIMIT 1 OFFSET ?
"""
_NEWEST_ABOVE: Final = """
    SELECT rank, position, holder, changed, maximum
    FROM ranks
    WHERE asset = ?
        AND (rank, position, holder) > (?, ?, ?)
        AND (rank, position, holder) <= (?, ?, ?)
        AND changed <= ?
        AND (rank < ? OR maximum < ?)
"""
# The same of the former rows of one partition.
_LAST_FORMER: Final = """
    SELECT rank, position, holder
    FROM past_ranks
    WHERE partition = ?
        AND asset = ?
        AND (rank, position, holder) > (?, ?, ?)
        AND (rank, position, holder) <= (?, ?, ?)
        AND until > ?
        AND changed <= ?
    ORDER BY rank, position, holder
    LIMIT 1 OFFSET ?
"""
_FORMER_ABOVE: Final = """
    SELECT rank, position, holder, changed, maximum
    FROM past_ranks
    WHERE partition = ?
        AND asset = ?
        AND (rank, position, holder) > (?, ?, ?)
        AND (rank, position, holder) <= (?, ?, ?)
        AND until > ?
        AND changed <= ?
        AND changed <= ?
        AND (rank < ? OR maximum < ?)
"""
# The partitions with rows that were superseded after a block.
_PARTITIONS: Final = """
    SELECT number
    FROM past_partitions
    WHERE number >= 0 AND until > ?
    ORDER BY number
"""
_DROPPED_UNTIL: Final = "SELECT until FROM past_partitions WHERE number = ?"
_BALANCES: Final = """
    SELECT block, balance, previous
    FROM balances
    WHERE partition = ? AND asset = ? AND holder = ? AND block <= ?
    ORDER BY block DESC
    LIMIT ?
"""
_FIRST_BALANCE: Final = """
    SELECT previous
    FROM balances
    WHERE partition = ? AND asset = ? AND holder = ?
    ORDER BY block
    LIMIT 1
"""
_BALANCE_PARTITIONS: Final = "SELECT first FROM balance_partitions ORDER BY number"
_HAS_BALANCES: Final = "SELECT 1 FROM holders WHERE asset = ? LIMIT 1"
_IS_INCONSISTENT: Final = "SELECT 1 FROM inconsistent_assets WHERE asset = ?"
_COLLECTION: Final = """
    SELECT c.number, i.collection
    FROM collections c
    LEFT JOIN inconsistent i ON i.collection = c.number
    WHERE c.contract = ?
"""
_TOTALS: Final = """
    SELECT holders, tokens
    FROM nft_totals
    WHERE collection = ? AND changed <= ?
"""
_FORMER_TOTALS: Final = """
    SELECT holders, tokens
    FROM past_nft_totals
    WHERE partition = ? AND collection = ? AND changed <= ? AND until > ?
"""
# Rows of one statement for the earlier balances of a holder: most have few, and some very many.
_FIRST_BALANCE_ROWS: Final = 16
_MORE_BALANCE_ROWS: Final = 1_000
_NOT_CALLED: Final = ContractRow(True, None, None, None, None, None)


class _Row(NamedTuple):
    """A row of `ranks` or `past_ranks`; a page may examine 20,000."""

    rank: bytes
    position: int
    holder: int
    changed: int
    maximum: bytes | None


class _Place(NamedTuple):
    """A place in the order of rows, at a row or between two."""

    rank: bytes
    position: int
    holder: int


_BEGIN: Final = _Place(b"", -(2**63), _LAST_HOLDER)
_END: Final = _Place(b"\xff\xff", 0, 0)


class _Source(NamedTuple):
    """A table of rows of holders, or one partition of it.

    last: statement for the end of a range.
    above: statement for the rows of a range above a threshold.
    before, behind: the values in front of the range, and behind it.
    """

    last: str
    above: str
    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


_NEWEST: Final = _Source(_LAST_NEWEST, _NEWEST_ABOVE)


class _PageExhausted(Exception):
    """A page has examined as much as it may.

    block: the block from which back the balances of the page's last holder are left.
    """

    def __init__(self, block: int) -> None:
        super().__init__(block)
        self.block = block


def holders_above(
    session: ReadSession,
    query: HolderQuery,
    page: PageRequest,
    at_block: int | None = None,
) -> HolderPage | None:
    """Return holders of an ERC-20 token as they were after a block. A page may be short.

    at_block: the block; None: the last one. The page names it.
    Returns None if the index keeps no balances, or no longer has those of the block.
    """
    state = read_state(session)
    if state is None:
        return HolderPage(())
    block = state.height if at_block is None else at_block
    if not state.chain.has_balances or not _has_state(session, state, block):
        return None
    asset = session.keys_of([query.contract]).get(query.contract)
    contract = None if asset is None else read_contracts(session, [asset]).get(asset)
    # A contract without results is one that was created before the index begins.
    if asset is None or (contract is not None and contract.erc_type not in (ErcType.ERC20, None)):
        return HolderPage((), block=block)
    since, until = query.times.since, query.times.until
    low = 0 if since is None else first_block(session, 0, block, since)
    # The last block may be the one before the first.
    high = block if until is None else max(first_block(session, 0, block, until + 1), low) - 1
    if high < 0:
        return HolderPage((), block=block)
    window = _Window(session, asset, query.threshold, low, high)
    rows = _HolderRows(session, asset, block, rank_of(query.threshold))
    selected, more = _select(rows, page, window.includes)
    is_inconsistent = bool(session.rows(_IS_INCONSISTENT, asset))
    return HolderPage(_holders(session, selected), more, block, events_inconsistent=is_inconsistent)


def unlisted_kind(session: ReadSession, contract: bytes) -> ErcType | None:
    """Return the kind that keeps ERC-20 balances of a contract from being listed, else None."""
    asset = session.keys_of([contract]).get(contract)
    row = None if asset is None else read_contracts(session, [asset]).get(asset)
    if row is None or row.erc_type in (ErcType.ERC20, None):
        return None
    has_balances = bool(session.rows(_HAS_BALANCES, asset))
    return row.erc_type if has_balances else None


def nft_holders(
    session: ReadSession,
    now: float,
    contract: bytes,
    page: PageRequest,
    at_block: int | None = None,
) -> HolderPage | None:
    """Return holders of a collection, and their numbers of NFTs, as they were after a block.

    at_block: the block; None: the last one. A page may be short.
    Returns None if the index no longer has the holders as they were after the block.
    """
    state = read_state(session)
    if state is None:
        return HolderPage(())
    block = state.height if at_block is None else at_block
    if not _has_state(session, state, block):
        return None
    key = session.keys_of([contract]).get(contract)
    collections = () if key is None else session.rows(_COLLECTION, key)
    if key is None or not collections:
        return HolderPage((), block=block)
    ((number, inconsistent),) = collections
    rows = _HolderRows(session, nft_asset(number), block)
    selected, more = _select(rows, page, lambda *_: True)
    holders, tokens = rows.totals(number)
    row = read_contracts(session, [key]).get(key, _NOT_CALLED)
    is_old = row.is_old(now) and not row.is_due
    return HolderPage(
        _holders(session, selected),
        more,
        block,
        events_inconsistent=inconsistent is not None,
        name=row.name or "",
        symbol=row.symbol or "",
        total_holders=holders,
        total_tokens=tokens,
        missing=MissingResults(
            frozenset((key,) if row.is_due else ()),
            old_contracts=frozenset((key,) if is_old else ()),
        ),
    )


class _HolderRows:
    """The rows of the holders of an asset, as they were after a block.

    limit: rank below which the balance, or the largest balance, of a row is; by default of any row.
    """

    def __init__(
        self, session: ReadSession, asset: int, block: int, limit: bytes = _END.rank
    ) -> None:
        self._session = session
        self._asset = asset
        self._block = block
        self._limit = limit
        self._partitions = [number for (number,) in session.rows(_PARTITIONS, block)]
        self._sources = [_NEWEST]
        for partition in self._partitions:
            self._sources.append(_Source(_LAST_FORMER, _FORMER_ABOVE, (partition,), (block, block)))

    def behind(
        self, place: _Place, count: int, *, includes_place: bool
    ) -> tuple[list[_Row], _Place | None]:
        """Return the rows behind a place in order, and the place up to which they are read.

        At most `count` rows of each table are examined, and those that equal the last one except
        for the address. The place is None if there are no more rows.
        includes_place: the row at the place is examined again.
        """
        # The tables sort equal rows, those with one rank and position, by the key of the holder,
        # but pages sort them by address. So a place within equal rows says nothing about those that
        # are left in the order of a table: all of them are read again, sorted, and those behind the
        # holder's address come first (`rest`). Then the tables are read from behind the equal rows
        # on (`begin`). Events of a contract may name any addresses, also a million that begin with
        # the same 8 bytes. Too many equal rows stay in the order of the tables, which a page can
        # continue without reading all of them.
        rank, position, holder = place
        rest: list[_Row] = []
        unsorted = set[tuple[bytes, int]]()
        if holder == _LAST_HOLDER:
            begin = place
        elif (equal := self._equal_rows(rank, position)) is None:
            unsorted.add((rank, position))
            begin = _Place(rank, position, holder - includes_place)
        else:
            rest = self._behind_address(equal, holder, includes_holder=includes_place)
            begin = _Place(rank, position, _LAST_HOLDER)
        # The end is chosen before rows are read, by all tables: a row of one table may belong
        # between two of another, so every table is read up to the same place. It is moved behind
        # the rows that equal the last one.
        end = self._end(begin, count)
        if end is not None:
            if self._equal_rows(end.rank, end.position) is None:
                unsorted.add((end.rank, end.position))
            else:
                end = _Place(end.rank, end.position, _LAST_HOLDER)
        rows = sorted(self._rows(begin, end or _END))
        return [*rest, *self._by_address(rows, unsorted)], end

    def _end(self, begin: _Place, count: int) -> _Place | None:
        """Return the place up to which no table has more than `count` rows; None: of all rows."""
        end: _Place | None = None
        for source in self._sources:
            between = (*source.before, self._asset, *begin, *(end or _END), *source.behind)
            for rank, position, holder in self._session.rows(source.last, *between, count - 1):
                end = _Place(bytes(rank), position, holder)
        return end

    def _rows(self, begin: _Place, end: _Place, count: int | None = None) -> list[_Row]:
        """Return the rows behind a place and up to another, in no order.

        count: the most rows of each table.
        """
        rows: list[_Row] = []
        limit = "" if count is None else f" LIMIT {count}"
        bounds = (self._block, self._limit, self._limit)
        for source in self._sources:
            between = (*source.before, self._asset, *begin, *end, *source.behind)
            rows += map(_Row._make, self._session.rows(source.above + limit, *between, *bounds))
        return rows

    def _equal_rows(self, rank: bytes, position: int) -> list[_Row] | None:
        """Return the rows with a rank and a position; None if they are too many to be sorted."""
        rows = self._rows(
            _Place(rank, position, -1), _Place(rank, position, _LAST_HOLDER), MAX_EQUAL + 1
        )
        return rows if len(rows) <= MAX_EQUAL else None

    def _behind_address(
        self, equal: list[_Row], holder: int, *, includes_holder: bool
    ) -> list[_Row]:
        """Return the rows among equal ones whose addresses are behind a holder's, in order."""
        session = self._session
        session.load_ids([holder, *(row.holder for row in equal)])
        first = session.id_of(holder)
        behind = [row for row in equal if session.id_of(row.holder) > first]
        if includes_holder:
            behind += [row for row in equal if row.holder == holder]
        return sorted(behind, key=lambda row: session.id_of(row.holder))

    def _by_address(self, rows: Iterable[_Row], unsorted: set[tuple[bytes, int]]) -> Iterator[_Row]:
        """Yield sorted rows, equal ones by address.

        unsorted: ranks and positions that too many rows have.
        """
        session = self._session
        for key, group in groupby(rows, itemgetter(0, 1)):
            equal = list(group)
            if 1 < len(equal) <= MAX_EQUAL and key not in unsorted:
                session.load_ids(row.holder for row in equal)
                equal.sort(key=lambda row: session.id_of(row.holder))
            yield from equal

    def totals(self, collection: int) -> tuple[int, int]:
        """Return the numbers of holders and of held tokens."""
        block = self._block
        rows = self._session.rows(_TOTALS, collection, block)
        for partition in self._partitions:
            if rows:
                break
            rows = self._session.rows(_FORMER_TOTALS, partition, collection, block, block)
        return tuple(rows[0]) if rows else (0, 0)


class _Window:
    """The blocks from `low` to `high`, perhaps none, and a threshold.

    It counts what a page examines.
    """

    def __init__(
        self, session: ReadSession, asset: int, threshold: int, low: int, high: int
    ) -> None:
        self._session = session
        self._asset = asset
        self._threshold = threshold
        self._limit = rank_of(threshold)
        self._low = low
        self._high = high
        self._histories = 0
        self._balances = 0

    def includes(self, row: _Row, back_from: int | None) -> bool:
        """Return whether a balance was above the threshold in the window.

        It is if it was after a block of the window, or before its first block.

        row: row of a holder whose balance was above the threshold at some time.
        back_from: the block from which back balances are left; None: none is examined yet.
        Raises _PageExhausted.
        """
        # The row alone decides if its balance has not changed since the window began, or if it
        # changed for the last time inside the window. Only the others cost a look at their past.
        is_above = row.rank < self._limit
        if row.changed < self._low:
            return is_above
        if row.changed <= self._high and (is_above or self._low == 0):
            return True
        begin = row.changed if back_from is None else back_from
        if self._histories == MAX_HISTORIES:
            raise _PageExhausted(begin)
        self._histories += 1
        return self._was_above(row.holder, begin)

    def _was_above(self, holder: int, begin: int) -> bool:
        """Return whether a balance was above the threshold, from one of its changes back.

        The last change before the window is examined as well: it is the balance at its beginning.
        """
        session, asset = self._session, self._asset
        last, block, limit = max(self._high, self._low - 1), begin, _FIRST_BALANCE_ROWS
        while True:
            partition = bisect_right(self._partitions, block) - 1
            rows = session.rows(_BALANCES, partition, asset, holder, min(block, last), limit)
            for changed, raw, _ in rows:
                if self._balances == MAX_BALANCES:
                    raise _PageExhausted(changed)
                self._balances += 1
                if unpack(raw) > self._threshold:
                    return True
                if changed < self._low:
                    return False
            if len(rows) == limit:
                # The next change may be in this partition or in an earlier one.
                changed, _, link = rows[-1]
                block = changed - 1 if link is None else link
                limit = _MORE_BALANCE_ROWS
                continue
            if not rows:
                if self._balances == MAX_BALANCES:
                    raise _PageExhausted(block)
                self._balances += 1
                rows = session.rows(_FIRST_BALANCE, partition, asset, holder)
            # The oldest row of a partition links to the holder's change before the partition.
            link = rows[-1][-1] if rows else None
            if link is None:
                return False
            block = link

    @cached_property
    def _partitions(self) -> Sequence[int]:
        """The first block of each partition of balances."""
        return [first for (first,) in self._session.rows(_BALANCE_PARTITIONS)]


def _select(
    rows: _HolderRows, page: PageRequest, includes: Callable[[_Row, int | None], bool]
) -> tuple[list[_Row], Position | None]:
    """Return the included rows of a page, and the position of the next one."""
    rank, position, holder, *back = page.after or _BEGIN
    assert isinstance(rank, bytes)
    assert isinstance(position, int)
    assert isinstance(holder, int)
    back_from = int(back[0]) if back else None
    end: _Place | None = _Place(rank, position, holder)
    selected: list[_Row] = []
    limit, examined = page.size + 1, 0
    while end is not None and examined < MAX_HOLDERS:
        batch, end = rows.behind(end, limit, includes_place=back_from is not None)
        examined += max(limit, len(batch))
        for count, row in enumerate(batch, 1):
            try:
                is_included = includes(row, back_from)
            except _PageExhausted as error:
                return selected, (*row[:3], error.block)
            back_from = None
            if is_included:
                selected.append(row)
                if len(selected) == page.size:
                    is_last = count == len(batch) and end is None
                    return selected, None if is_last else row[:3]
        # Most rows were left out: larger reads reach the next included row sooner.
        limit = min(_MORE_ROWS, max(1, MAX_HOLDERS - examined))
    return selected, end


def _has_state(session: ReadSession, state: EvmIndexState, block: int) -> bool:
    """Return whether the index knows all rows of holders as they were after a block."""
    first = state.chain.first_height
    for (until,) in session.rows(_DROPPED_UNTIL, DROPPED):
        first = max(first, until)
    return max(first, 0) <= block <= state.height


def _holders(session: ReadSession, rows: Sequence[_Row]) -> tuple[Holder, ...]:
    session.load_ids(row.holder for row in rows)
    return tuple([Holder(session.id_of(row.holder), balance_of(row.rank)) for row in rows])
