"""Pages of ICM messages of one chain, and messages by id, against the model of the histories."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from tests.chains.evm.icm_logs import Message
from tests.index.evm.fixtures import small_settings
from tests.index.evm.histories import made_block
from tests.index.evm.icm_histories import ABSENT, PEOPLE, A, B, IcmHistory, block_of, expected_sends
from tests.index.evm.icm_rows import icm_writers, join
from warpseal.chains.evm.icm_events import IcmReceive, IcmSend
from warpseal.index.evm import icm_queries
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.icm_queries import MAX_CHANGES
from warpseal.index.evm.keys import block_key
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import IcmKeys, IcmPosition, IcmQuery, ReceivedMessage, SentMessage
from warpseal.resources.evm import IcmStatus
from warpseal.resources.queries import TimeRange
from warpseal.warp.ids import ChainID

INDEXED = frozenset((A, B))
TIMES = [
    TimeRange(made_block(20).time, made_block(35).time),
    TimeRange(since=made_block(30).time + 1),
    TimeRange(until=made_block(9).time - 1),
    TimeRange(0, 5),
    TimeRange(2**53, 2**53),
]
QUERIES = [
    IcmQuery(),
    *(IcmQuery(chain=chain_id) for chain_id in (A, B, ABSENT, ChainID(bytes(32)))),
    *(
        IcmQuery(source=source, destination=destination)
        for source, destination in product((None, A, ABSENT), repeat=2)
    ),
    IcmQuery(chain=B, source=A),
    IcmQuery(chain=B, source=A, destination=ABSENT),
    *(IcmQuery(times=times) for times in TIMES),
    IcmQuery(address=PEOPLE[1], times=TIMES[0]),
    *(IcmQuery(address=person) for person in PEOPLE),
    IcmQuery(address=bytes(20)),
    IcmQuery(sender=PEOPLE[1]),
    IcmQuery(recipient=PEOPLE[2], destination=B),
    IcmQuery(sender=PEOPLE[1], recipient=PEOPLE[2], chain=A),
    IcmQuery(sender=PEOPLE[1], recipient=PEOPLE[1], source=ABSENT),
]
STUCK_S = 20
SINCE = {A: made_block(0).time, B: made_block(9).time}
STATE_QUERIES = [
    *(IcmQuery(status=status) for status in IcmStatus),
    *(IcmQuery(is_stuck=is_stuck) for is_stuck in (True, False)),
    *(IcmQuery(is_stuck=True, status=status) for status in IcmStatus),
    *(IcmQuery(is_stuck=is_stuck, destination=B, sender=PEOPLE[0]) for is_stuck in (True, False)),
    IcmQuery(is_stuck=True, destination=ABSENT),
    IcmQuery(is_stuck=True, address=PEOPLE[1], times=TIMES[2]),
    IcmQuery(is_stuck=False, source=ABSENT),
    IcmQuery(status=IcmStatus.PENDING, destination=A),
    IcmQuery(status=IcmStatus.DELIVERED, address=PEOPLE[1], times=TIMES[0]),
]


@pytest.fixture(scope="module")
def history() -> IcmHistory:
    history = IcmHistory(31)
    history.add_blocks(60)
    return history


def open_index(url: str, chain_id: ChainID) -> EvmIndex:
    settings = small_settings(url)
    return EvmIndex(evm_index_url(settings, None, chain_id), settings, lambda: 0.0)


def write(url: str, history: IcmHistory) -> None:
    """Write both chains and join their deliveries."""
    with icm_writers(url) as writers:
        for chain_id, chain in history.chains.items():
            writers[chain_id].write(chain.blocks)
        join(writers)


def positions(history: IcmHistory, chain_id: ChainID) -> dict[bytes, IcmPosition]:
    """Return where the messages of a chain's list are, newest first."""
    chain, places = history.chains[chain_id], dict[bytes, IcmPosition]()
    for block in chain.blocks:
        for event in block.icm:
            position = IcmPosition(block.time, chain_id, block_key(block.number, event.position))
            if isinstance(event, IcmSend) and event.message_id in chain.outgoing:
                places.setdefault(event.message_id, position)
            elif (
                isinstance(event, IcmReceive)
                and event.message_id in chain.incoming
                and event.source not in INDEXED
            ):
                places[event.message_id] = position
    return dict(sorted(places.items(), key=lambda item: item[1], reverse=True))


def expected(
    history: IcmHistory, chain_id: ChainID, query: IcmQuery
) -> list[tuple[IcmPosition, bytes]]:
    chain = history.chains[chain_id]
    rows = expected_sends(history, chain)
    outcomes, states = ({row[0]: row[place] for row in rows} for place in (-2, -1))

    def status_of(id_: bytes) -> IcmStatus:
        if id_ not in outcomes:
            return IcmStatus.DELIVERED_SOURCE_NOT_INDEXED
        return IcmStatus.DELIVERED if outcomes[id_] else IcmStatus.PENDING

    def is_stuck(id_: bytes, time: int) -> bool:
        destination = (chain.outgoing.get(id_) or chain.incoming[id_]).message.destination
        if states.get(id_) not in ("open", "failed") or destination not in query.indexed_since:
            return False
        return (
            query.indexed_since[destination]
            <= time
            < history.chains[destination].blocks[-1].time - STUCK_S
        )

    def is_wanted(id_: bytes, time: int) -> bool:
        message = (chain.outgoing.get(id_) or chain.incoming[id_]).message
        return (
            query.status in (None, status_of(id_))
            and query.is_stuck in (None, is_stuck(id_, time))
            and (query.times.since or 0)
            <= time
            <= (2**63 if query.times.until is None else query.times.until)
            and query.chain in (None, message.source, message.destination)
            and query.source in (None, message.source)
            and query.destination in (None, message.destination)
            and query.sender in (None, message.sender)
            and query.recipient in (None, message.recipient)
            and query.address in (None, message.sender, message.recipient)
        )

    return [
        (position, id_)
        for id_, position in positions(history, chain_id).items()
        if is_wanted(id_, position.time)
    ]


async def read_all(index: EvmIndex, query: IcmQuery, size: int) -> list[tuple[IcmPosition, bytes]]:
    """Return all messages of a chain's list, page by page."""
    messages: list[tuple[IcmPosition, bytes]] = []
    before: IcmPosition | None = None
    while True:
        page = await index.icm_page(query, before, size)
        assert len(page.items) <= size
        by_key = await index.icm_messages([item.position.key for item in page.items])
        for item in page.items:
            message = by_key[item.position.key]
            assert item.size == len(message.tail) + len(message.body or b"")
            assert item.position.time == message.time
            messages.append((item.position, message.message_id))
        if page.read_to is None:
            return messages
        assert before is None or page.read_to < before
        before = page.read_to


@pytest.mark.parametrize("most", [2_000, 3])
async def test_pages_are_those_of_the_model(
    any_index_url: str, history: IcmHistory, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a page ends because there were too many candidates."""
    monkeypatch.setattr(icm_queries, "MAX_SCANNED", most)
    write(any_index_url, history)
    for chain_id in (A, B):
        async with open_index(any_index_url, chain_id) as index:
            for query in QUERIES:
                for size in (1, 4, 100):
                    messages = await read_all(index, replace(query, indexed=INDEXED), size)
                    assert messages == expected(history, chain_id, query), (query, size)
    assert all(
        any(expected(history, chain_id, query) for chain_id in (A, B))
        for query in (QUERIES[0], *QUERIES[-3:])
    )


@pytest.mark.parametrize("most", [2_000, 3])
async def test_messages_are_listed_by_status_and_by_being_stuck(
    any_index_url: str, history: IcmHistory, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent before it is known what its destination received is not stuck."""
    monkeypatch.setattr(icm_queries, "MAX_SCANNED", most)
    monkeypatch.setattr(icm_queries, "STUCK_S", STUCK_S)
    write(any_index_url, history)
    filled = set()
    for chain_id in (A, B):
        async with open_index(any_index_url, chain_id) as index:
            for number, query in enumerate(STATE_QUERIES):
                whole = replace(query, indexed=INDEXED, indexed_since=SINCE)
                for size in (2, 100):
                    messages = await read_all(index, whole, size)
                    assert messages == expected(history, chain_id, whole), (whole, size)
                    filled |= {number} if messages else set()
    assert len(filled) >= len(STATE_QUERIES) - 3


async def test_receives_of_indexed_sources_end_no_page(
    any_index_url: str, history: IcmHistory
) -> None:
    write(any_index_url, history)
    async with open_index(any_index_url, B) as index:
        page = await index.icm_page(IcmQuery(source=A, indexed=INDEXED), None, 1)
    assert page == IcmKeys([], None)


async def test_a_page_begins_behind_a_message_of_another_chain(
    any_index_url: str, history: IcmHistory
) -> None:
    write(any_index_url, history)
    query = IcmQuery(indexed=INDEXED)
    entries = sorted(
        ((*entry, chain_id) for chain_id in (A, B) for entry in expected(history, chain_id, query)),
        reverse=True,
    )
    async with open_index(any_index_url, A) as a, open_index(any_index_url, B) as b:
        for number, (position, _, _) in enumerate(entries):
            for index, chain_id in ((a, A), (b, B)):
                page = await index.icm_page(query, position, 2)
                behind = [entry[0] for entry in entries[number + 1 :] if entry[2] == chain_id]
                assert [item.position for item in page.items] == behind[:2]


async def test_messages_are_found_by_their_ids_with_both_sides(
    any_index_url: str, history: IcmHistory
) -> None:
    write(any_index_url, history)
    async with open_index(any_index_url, A) as a, open_index(any_index_url, B) as b:
        indexes = {A: a, B: b}
        for chain_id, index in indexes.items():
            chain = history.chains[chain_id]
            for id_ in positions(history, chain_id):
                message = await index.find_icm_message(id_)
                assert message is not None
                entry = chain.outgoing.get(id_) or chain.incoming[id_]
                assert message.message_id == id_
                assert message.body == entry.message.body
                if isinstance(message, ReceivedMessage):
                    assert message.is_executed == (entry.outcome == "executed")
                    continue
                fee = [change for change in entry.changes if change == "fee"]
                assert bool(fee) or message.reward == entry.message.fee
                assert message.has_receipt == ("receipt" in entry.changes)
                assert message.asset == entry.message.asset
                other = history.chains.get(message.destination)
                arrival = None if other is None else other.incoming.get(id_)
                assert (message.receive is None) == (arrival is None)
                if arrival is not None and message.receive is not None:
                    (receive,) = (
                        await indexes[message.destination].icm_messages([message.receive])
                    ).values()
                    assert isinstance(receive, ReceivedMessage)
                    assert receive.message_id == id_
                    assert receive.body is None
                    assert receive.is_executed == (arrival.outcome == "executed")
            assert await index.find_icm_message(bytes(32)) is None


@pytest.mark.parametrize(("later", "reward"), [(MAX_CHANGES - 1, 9), (MAX_CHANGES, 2)])
async def test_only_the_newest_changes_of_a_message_are_read(
    any_index_url: str, later: int, reward: int
) -> None:
    """Any account may add to a fee, so that a message may have any number of changes."""
    message = Message(A, B, 1, PEOPLE[0], PEOPLE[1], fee=2)
    blocks = [
        block_of(0, [message.sent(), *[message.fee_added(fee) for fee in range(3, 10)]]),
        block_of(1, [message.sent() for _ in range(later)]),
    ]
    with icm_writers(any_index_url) as writers:
        writers[A].write(blocks)
    async with open_index(any_index_url, A) as index:
        stored_message = await index.find_icm_message(message.id)
    assert isinstance(stored_message, SentMessage)
    assert stored_message.reward == reward


@pytest.mark.parametrize("first_block", [0, 25])
async def test_messages_are_stuck_if_their_destination_went_on_without_them(
    any_index_url: str, history: IcmHistory, monkeypatch: pytest.MonkeyPatch, first_block: int
) -> None:
    write(any_index_url, history)
    monkeypatch.setattr(icm_queries, "STUCK_S", 20)
    start = made_block(0).time
    for chain_id, other in ((A, B), (B, A)):
        chain, arrivals = history.chains[chain_id], history.chains[other].incoming
        until = history.chains[other].blocks[-1].time - 20
        places, stuck = positions(history, chain_id), 0
        for id_, entry in chain.outgoing.items():
            is_open = (
                arrivals[id_].outcome == "failed"
                if id_ in arrivals
                else "receipt" not in entry.changes
            )
            is_between = start + 2 * first_block <= places[id_].time < until
            stuck += entry.message.destination == other and is_open and is_between
        assert stuck > 1 or first_block
        async with open_index(any_index_url, chain_id) as index:
            assert await index.icm_since() == start
            # What a destination may have received before its messages are known is not stuck.
            counts = await index.icm_stuck(dict.fromkeys((other, ABSENT), start + 2 * first_block))
            assert counts == ({other: stuck} if stuck else {})
            assert await index.icm_stuck({}) == {}
            with monkeypatch.context() as patch:
                patch.setattr(icm_queries, "_MAX_STUCK", 1)
                assert max((await index.icm_stuck({other: start})).values()) <= 1
    async with open_index(any_index_url, ABSENT) as index:
        assert (await index.icm_since(), await index.icm_stuck({A: start})) == (None, {})
