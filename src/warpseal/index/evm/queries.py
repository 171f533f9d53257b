"""The queries of an EVM chain's index: keys in order from the position of a page on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from warpseal.errors import DAY_S
from warpseal.index.checkpoint import ProgressRow, decode_status
from warpseal.index.evm.keys import (
    BLOCK_PARTITION_BITS,
    MAX_HEIGHT,
    RequestKind,
    block_key,
    collection_of,
    first_token,
    number_of,
    short_id,
    unpack,
)
from warpseal.index.evm.records import NOTHING_MISSING, MissingResults
from warpseal.index.evm.resources import ResourceReader, block_resource
from warpseal.index.evm.rows import (
    SELECT_CHAIN,
    BlockRow,
    CreationRow,
    EvmChainRow,
    HoldingRow,
    OwnerRow,
    TransferRow,
)
from warpseal.index.key_streams import KeyRange
from warpseal.index.keys import prefix_of
from warpseal.index.read_session import ReadSession
from warpseal.resources import evm
from warpseal.resources.base import SortOrder
from warpseal.resources.progress import NOT_BEGUN, EvmChainProgress
from warpseal.resources.queries import Heights, Page, PageRequest

T_co = TypeVar("T_co", covariant=True)

MAX_SCANNED: Final = 2_000
"""Candidates that are read for one page if transfers of hidden contracts are among them."""

_ZERO_ADDRESS: Final = bytes(20)
_ID_DIGITS: Final = 16
_LAST_KEY: Final = (1 << 63) - 1
_HEIGHTS: Final = """
    SELECT c.chain_id, CASE WHEN d.height < c.height THEN d.height ELSE c.height END
    FROM chain c
    CROSS JOIN derived_state d
    WHERE c.height >= 0
"""
_DERIVED_HEIGHT: Final = "SELECT height FROM derived_state"
_FIRST_GAP: Final = "SELECT first FROM trace_gaps ORDER BY first LIMIT 1"
_BLOCK_TIME: Final = "SELECT time FROM blocks WHERE number = ?"
_BLOCK_HASH: Final = "SELECT hash FROM blocks WHERE number = ?"
_BLOCK: Final = "SELECT * FROM blocks WHERE number = ?"
_FIRST_DAY: Final = "SELECT time, txs - tx_count FROM blocks WHERE number = ?"
_LAST_BLOCK_BEFORE: Final = """
    SELECT time, txs
    FROM days
    WHERE day < ? AND number >= ?
    ORDER BY day DESC
    LIMIT 1
"""
_LAST_BLOCKS: Final = """
    SELECT day, time, txs
    FROM days
    WHERE day BETWEEN ? AND ? AND number >= ?
    ORDER BY day
"""
# The first block at a time or after it, by bisection: times rise with the numbers, and no index has
# them.
_FIRST_BLOCK: Final = """
    WITH RECURSIVE s(low, high) AS (
        SELECT CAST(? AS BIGINT), CAST(? AS BIGINT)
        UNION ALL
        SELECT
            CASE WHEN b.time < ? THEN b.number + 1 ELSE s.low END,
            CASE WHEN b.time < ? THEN s.high ELSE b.number END
        FROM s
        JOIN blocks b ON b.number = (s.low + s.high) / 2
        WHERE s.low < s.high
    )
    SELECT low
    FROM s
    WHERE low = high
"""
# The partitions of blocks, newest first: a prefix is looked up in each.
_BY_HASH: Final = """
    WITH RECURSIVE p(n) AS (
        SELECT CAST(? AS BIGINT)
        UNION ALL
        SELECT n - 1
        FROM p
        WHERE n > ?
    )
    SELECT b.*
    FROM p
    JOIN block_hashes h ON h.partition = p.n AND h.prefix = ?
    JOIN blocks b ON b.number = h.block
    WHERE b.hash = ?
"""
_TRANSFERS: Final = """
    SELECT key, tx_index, log_index, token, sender, recipient, amount
    FROM transfers
    WHERE key IN {keys}
"""
# The partition with a transfer, or the last one before it.
_PARTITION_OF: Final = """
    SELECT number
    FROM transfer_partitions
    WHERE first <= ?
    ORDER BY number DESC
    LIMIT 1
"""
_HOLDINGS: Final = """
    SELECT token, balance
    FROM holdings
    WHERE owner = ? AND token > ? AND token < ?
    ORDER BY token
    LIMIT ?
"""
_OWNERS: Final = """
    SELECT token, holder
    FROM owners
    WHERE token > ? AND token < ?
    ORDER BY token
    LIMIT ?
"""
_OWNERS_OF: Final = "SELECT token, holder FROM owners WHERE token IN {keys}"
_CREATIONS: Final = """
    SELECT c.tx, c.position, c.contract, c.sender, c.factory
    FROM address_creations a
    JOIN creations c ON c.tx = a.tx AND c.position = a.position
    WHERE a.address = ? AND (a.tx, a.position) < (?, ?)
    ORDER BY a.tx DESC, a.position DESC
    LIMIT ?
"""
_TOKEN_KEYS: Final = "SELECT token FROM token_ids WHERE collection = ? AND short = ?"
_TOKEN_IDS: Final = "SELECT number, id FROM tokens WHERE number IN {keys}"
_COLLECTION_NUMBERS: Final = "SELECT number FROM collections WHERE contract IN {keys}"


class EvmPage(Page[T_co], frozen=True):
    """A page of items. It is read again once the indexer has the missing results."""

    missing: MissingResults = NOTHING_MISSING


class EvmIndexState(Struct, frozen=True):
    """How far the chain is written and derived.

    height, time: the last block whose rows are derived.
    traced: the height up to which creations are complete; None while no node traces.
    trace_gap: the lowest height that no node could trace; None without such a height.
    """

    chain: EvmChainRow
    height: int
    time: int
    traced: int | None
    trace_gap: int | None

    @property
    def chain_id_text(self) -> str:
        """The chain's `chainId` in resources."""
        return str(unpack(self.chain.evm_chain_id))


def read_state(session: ReadSession) -> EvmIndexState | None:
    """Return the state; None without blocks."""
    rows = session.rows(SELECT_CHAIN)
    chain = EvmChainRow(*rows[0]) if rows else None
    derived = session.rows(_DERIVED_HEIGHT)
    if chain is None or not chain.hash or not derived:
        return None
    height, time = chain.height, chain.time
    ((derived_height,),) = derived
    if derived_height < height:
        # Rows are derived again.
        height = derived_height
        ((time,),) = session.rows(_BLOCK_TIME, height)
    last_traced, gap = chain.traced, None
    for (first_gap,) in session.rows(_FIRST_GAP):
        last_traced = first_gap - 1
        if first_gap <= height:
            gap = first_gap
    traced = min(height, last_traced)
    return EvmIndexState(chain, height, time, traced if traced >= chain.first_height else None, gap)


def first_block(session: ReadSession, first: int, last: int, time: int) -> int:
    """Return the first block at or after a time from `first` to `last`; `last + 1` without one."""
    time = min(max(time, -1), _LAST_KEY)
    ((number,),) = session.rows(_FIRST_BLOCK, first, last + 1, time, time)
    return int(number)


def read_heights(session: ReadSession) -> Heights:
    """Return the height that `read_state` has; empty without blocks.

    The key is the start of the blockchain id.
    """
    return {bytes(raw).hex()[:_ID_DIGITS]: height for raw, height in session.rows(_HEIGHTS)}


def read_status(session: ReadSession) -> ProgressRow | None:
    """Return the status that the indexer wrote last."""
    rows = session.rows("SELECT body FROM chain_status")
    return decode_status(rows[0][0]) if rows else None


def count_requests(session: ReadSession) -> Mapping[str, int]:
    """Return the number of waiting requests of each kind; a bounded number waits."""
    counts = dict(session.rows("SELECT kind, count(*) FROM requests GROUP BY kind"))
    return {kind.name.lower(): counts.get(kind, 0) for kind in RequestKind}


def read_progress(session: ReadSession, oldest: float) -> EvmChainProgress | None:
    """Return the progress of the chain; None without a block and a status.

    oldest: unix seconds before which a report of a node proves nothing.
    """
    state, status = read_state(session), read_status(session)
    if status is None:
        progress = EvmChainProgress(chain="", waiting=NOT_BEGUN)
    else:
        common = asdict(status.as_progress())
        progress = EvmChainProgress(**common, documents=status.documents)
    if state is None:
        return None if status is None else progress
    return replace(
        progress,
        first_height=state.chain.first_height,
        height=state.height,
        block_time=state.time,
        node_height=max(state.height, progress.node_height or 0),
        is_node_behind=(status is None or status.is_node_behind or status.reported_at < oldest),
        evm_chain_id=unpack(state.chain.evm_chain_id),
        traced_height=state.traced,
        trace_gap=state.trace_gap,
        icm_first=state.chain.icm_first,
    )


def block(session: ReadSession, number_or_hash: int | bytes) -> evm.EvmBlock | None:
    """Return a block."""
    state = read_state(session)
    if state is None:
        return None
    chain = state.chain
    if isinstance(number_or_hash, bytes):
        partitions = (
            state.height >> BLOCK_PARTITION_BITS,
            chain.first_height >> BLOCK_PARTITION_BITS,
        )
        rows = session.rows(_BY_HASH, *partitions, prefix_of(number_or_hash), number_or_hash)
    else:
        is_written = 0 <= number_or_hash <= min(state.height, MAX_HEIGHT)
        rows = session.rows(_BLOCK, number_or_hash if is_written else -1)
    if not rows or rows[0][0] > state.height:
        return None
    row = BlockRow._make(rows[0])
    parent_hash = chain.first_parent
    if row.number > chain.first_height:
        ((parent_hash,),) = session.rows(_BLOCK_HASH, row.number - 1)
    earlier = chain.counted_txs if chain.counted_to >= chain.first_height else None
    return block_resource(row, parent_hash, state.chain_id_text, earlier)


def daily_tps(session: ReadSession, first_day: int, last_day: int) -> evm.DailyTps | None:
    """Return the transactions per second of days with blocks; None before the first block.

    A day lasts from the last block before it to its last block. The first day lasts from block 1,
    since the time of block 0 may be 0. The first day of an index that begins later is left out.
    """
    state = read_state(session)
    if state is None:
        return None
    ((advanced_at,),) = session.rows("SELECT advanced_at FROM derived_state")
    begin = max(1, state.chain.first_height)
    if state.height < begin:
        return evm.DailyTps(None, state.time // DAY_S, {}, advanced_at)
    ((time, txs),) = session.rows(_FIRST_DAY, begin)
    complete_from = time // DAY_S + (begin > 1)
    low = max(first_day, complete_from)
    # The block from which the first day lasts: without a row, the first block is it.
    for last_time, last_txs in session.rows(_LAST_BLOCK_BEFORE, low, begin):
        time, txs = last_time, last_txs
    values: dict[int, float] = {}
    for day, day_time, day_txs in session.rows(_LAST_BLOCKS, low, last_day, begin):
        seconds = day_time - time
        values[day] = max(0, day_txs - txs) / seconds if seconds > 0 else 0.0
        time, txs = day_time, day_txs
    return evm.DailyTps(complete_from, state.time // DAY_S, values, advanced_at)


def erc1155_transfers(
    session: ReadSession, now: float, query: evm.Erc1155Query, page: PageRequest
) -> EvmPage[evm.Erc1155Transfer]:
    """Return ERC-1155 transfers of an address by block, log index and position.

    A transfer from the address to itself is returned once.
    """
    address = _address_key(session, query.address)
    low = 0 if query.start is None else block_key(min(max(query.start, 0), MAX_HEIGHT))
    high = _LAST_KEY if query.end is None else block_key(min(max(query.end, 0), MAX_HEIGHT)) - 1
    key_range = KeyRange(low, high, query.order is SortOrder.DESC)
    if page.after_key is not None:
        key_range = key_range.behind(page.after_key)
    if address is None or key_range.low > key_range.high:
        return EvmPage(())
    hidden = _collections(session, query.hidden)
    transfers: list[TransferRow] = []
    scanned = 0
    last: int | None = None
    while len(transfers) <= page.size and scanned < MAX_SCANNED:
        limit = page.size + 1
        keys = _transfer_keys(session, address, key_range, limit)
        rows = {row[0]: TransferRow._make(row) for row in session.by_keys(_TRANSFERS, keys)}
        transfers += [rows[key] for key in keys if collection_of(rows[key].token) not in hidden]
        scanned += len(keys)
        if len(keys) < limit:
            last = None
            break
        last = keys[-1]
        key_range = key_range.behind(last)
    reader = ResourceReader(session, now)
    first = reader.within_page(transfers, page.size)
    more = first[-1].key if len(first) < len(transfers) else last
    return EvmPage(reader.transfers(first), None if more is None else (more,), reader.missing)


def collectibles(
    session: ReadSession, now: float, query: evm.CollectibleQuery, page: PageRequest
) -> EvmPage[evm.CollectibleBalance]:
    """Return the NFTs of an address, by first appearance of the contract, then of the token.

    If the index begins above block 0, ERC-1155 tokens whose balance may be 0 are among them: only a
    node knows.
    """
    state, owner = read_state(session), _address_key(session, query.owner)
    low, end = page.after_key or 0, _LAST_KEY
    if query.contract is not None:
        low, end = _range_of(session, query.contract, low)
    # The zero address holds nothing.
    if state is None or not owner or low >= end:
        return EvmPage(())
    hidden = _collections(session, query.hidden)
    holdings: list[HoldingRow] = []
    while len(holdings) <= page.size:
        limit = page.size + 1
        rows = list(map(HoldingRow._make, session.rows(_HOLDINGS, owner, low, end, limit)))
        first_hidden = _find_hidden(rows, hidden)
        holdings += rows[:first_hidden]
        if first_hidden is not None:
            # Tokens of a contract are neighbours: continue behind all tokens of the hidden one.
            low = first_token(collection_of(rows[first_hidden].token) + 1) - 1
        elif len(rows) < limit:
            break
        else:
            low = rows[-1].token
    reader = ResourceReader(session, now)
    first = reader.within_page(holdings, page.size)
    more = (first[-1].token,) if len(first) < len(holdings) else None
    return EvmPage(
        reader.collectibles(state.chain_id_text, query.owner, first), more, reader.missing
    )


def tokens(
    session: ReadSession, now: float, contract: bytes, page: PageRequest
) -> EvmPage[evm.NftToken]:
    """Return the tokens of a collection that are held, by first appearance."""
    low, end = _range_of(session, contract, page.after_key or 0)
    rows: list[OwnerRow] = []
    if low < end:
        rows = list(map(OwnerRow._make, session.rows(_OWNERS, low, end, page.size + 1)))
    reader = ResourceReader(session, now)
    first = reader.within_page(rows, page.size)
    more = (first[-1].token,) if len(first) < len(rows) else None
    return EvmPage(reader.tokens(first), more, reader.missing)


def token(
    session: ReadSession, now: float, contract: bytes, token_id: int
) -> EvmPage[evm.NftToken]:
    """Return one token, held or not; an empty page if the token is unknown.

    Of two tokens with the id, one of each standard, the held one is returned.
    """
    keys = token_keys(session, contract, token_id)
    holders = dict(session.by_keys(_OWNERS_OF, keys))
    by_preference = sorted(keys, key=lambda key: (key not in holders, key))
    rows = [OwnerRow(key, holders.get(key, 0)) for key in by_preference[:1]]
    reader = ResourceReader(session, now)
    return EvmPage(reader.tokens(rows), None, reader.missing)


def deployments(
    session: ReadSession, now: float, address: bytes, page: PageRequest
) -> EvmPage[evm.DeployedContract]:
    """Return the creations by an address, as sender or as creating contract, newest first."""
    key = _address_key(session, address)
    if key is None:
        return EvmPage(())
    before = (_LAST_KEY, 0) if page.after is None else page.after
    rows = list(map(CreationRow._make, session.rows(_CREATIONS, key, *before, page.size + 1)))
    first = rows[: page.size]
    reader = ResourceReader(session, now)
    more = (first[-1].tx, first[-1].position) if len(first) < len(rows) else None
    return EvmPage(reader.deployments(first), more, reader.missing)


def token_keys(session: ReadSession, contract: bytes, token_id: int) -> Sequence[int]:
    """Return the keys of the tokens with an id: at most one of each standard."""
    number = _collection(session, contract)
    if number is None:
        return ()
    rows = session.rows(_TOKEN_KEYS, number, short_id(token_id))
    keys = {number_of(key): key for (key,) in rows}
    # Other ids may have the same short one, if it is a hash.
    return [
        keys[token_number]
        for token_number, raw in session.by_keys(_TOKEN_IDS, keys)
        if raw is None or unpack(raw) == token_id
    ]


def keep_epoch(session: ReadSession) -> None:
    """Forget the cached keys if the index was made again."""
    for (epoch,) in session.rows("SELECT epoch FROM chain"):
        session.keep_epoch(epoch)


def _find_hidden(rows: Sequence[HoldingRow], hidden: frozenset[int]) -> int | None:
    """Return the place of the first row of a hidden contract; None without one."""
    for place, row in enumerate(rows):
        if collection_of(row.token) in hidden:
            return place
    return None


def _transfer_keys(
    session: ReadSession, address: int, key_range: KeyRange, limit: int
) -> Sequence[int]:
    """Return the first keys of ERC-1155 transfers of an address, from partition to partition."""
    low, high, order = key_range.low, key_range.high, key_range.order
    partitions_text = f"""
        SELECT partition
        FROM address_partitions
        WHERE address = ? AND partition BETWEEN ? AND ?
        ORDER BY 1 {order}
    """
    transfers_text = f"""
        SELECT transfer
        FROM address_transfers
        WHERE partition = ? AND address = ? AND transfer BETWEEN ? AND ?
        ORDER BY transfer {order}
        LIMIT ?
    """
    bounds = (_partition_of(session, low), _partition_of(session, high))
    keys: list[int] = []
    for (partition,) in session.rows(partitions_text, address, *bounds):
        values = (partition, address, low, high, limit - len(keys))
        keys += [key for (key,) in session.rows(transfers_text, *values)]
        if len(keys) == limit:
            break
    return keys


def _partition_of(session: ReadSession, transfer: int) -> int:
    rows = session.rows(_PARTITION_OF, transfer)
    return rows[0][0] if rows else 0


def _range_of(session: ReadSession, contract: bytes, after: int) -> tuple[int, int]:
    """Return the keys between which the tokens of a contract are, both excluded.

    The range of an unknown contract is empty.
    """
    number = _collection(session, contract)
    if number is None:
        return 0, 0
    return max(after, first_token(number) - 1), first_token(number + 1)


def _collection(session: ReadSession, contract: bytes) -> int | None:
    return next(iter(_collections(session, [contract])), None)


def _collections(session: ReadSession, contracts: Iterable[bytes]) -> frozenset[int]:
    """Return the numbers of contracts with NFTs."""
    keys = session.keys_of(contracts).values()
    return frozenset(number for (number,) in session.by_keys(_COLLECTION_NUMBERS, keys))


def _address_key(session: ReadSession, address: bytes) -> int | None:
    """Return the key of an address, 0 of the zero address; None if no row names it."""
    if address == _ZERO_ADDRESS:
        return 0
    return session.keys_of([address]).get(address)
