"""Export and import: what goes out comes in again, damaged lines never do, and neither needs much
memory.
"""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.signed import (
    KEYS,
    complete_writer,
    create_store,
    message,
    message_writer,
    read_messages,
    share,
    signature,
    write_rows,
    wrong_share,
)
from warpseal.store.access import open_exclusive, open_read_only
from warpseal.store.errors import StoreNetworkMismatch
from warpseal.store.export_import import Importer, Selection, TransferStats, export_lines
from warpseal.store.integrity import IntegrityCheck
from warpseal.store.jsonl import BadLine, numbered_lines, open_lines, read_header, read_line
from warpseal.store.migrate import HEAD
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import id_text
from warpseal.warp.message import UnsignedMessage

HEADER = b'{"format":"warpseal-store","version":1}\n'


def export_records(place: StoreUrl, selection: Selection | None = None) -> list[dict[str, Any]]:
    with open_read_only(place) as connection:
        lines = list(export_lines(connection, HEAD, selection or Selection(), TransferStats()))
    return [json.loads(line) for line in lines]


def text_of(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def import_text(
    place: StoreUrl, text: bytes, *, for_ever: bool = False
) -> tuple[TransferStats, dict[int, str]]:
    """Return the statistics, and the errors by line number."""
    complaints: dict[int, str] = {}
    with open_exclusive(place) as engine:
        importer = Importer(engine, complaints.__setitem__, for_ever)
        moved = importer.run(open_lines(io.BytesIO(text))[1], lambda _: None)
    return moved, complaints


@pytest.fixture
def second_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('second')}/store.db"


def test_an_export_has_the_format_then_each_message_with_its_shares_and_signatures(
    any_store_url: str,
) -> None:
    first, second = message(1), message(2)
    place = create_store(
        any_store_url,
        complete_writer(first),
        message_writer(second, [share(second, 2)]),
    )
    header, *records = export_records(place)
    assert header == {
        "format": "warpseal-store",
        "version": 1,
        "schemaVersion": HEAD,
        "networkId": 12345,
    }
    assert [record["type"] for record in records] == [
        "message",
        "signature",
        "share",
        "share",
        "message",
        "share",
    ]
    assert records[0] == {
        "type": "message",
        "messageId": "0x" + first.id.hex(),
        "unsignedMessage": "0x" + first.raw.hex(),
        "forEver": True,
    }
    assert records[1]["publicKeys"] == ["0x" + key.hex() for key in KEYS[:2]]
    assert {(record["publicKey"], record["verified"]) for record in records[2:4]} == {
        ("0x" + KEYS[0].hex(), True),
        ("0x" + KEYS[1].hex(), False),
    }
    assert records[5]["messageId"] == records[4]["messageId"] == "0x" + second.id.hex()
    assert records[4]["forEver"] is False


def test_an_export_can_be_imported_and_no_share_counts_as_verified(
    any_store_url: str, second_url: str
) -> None:
    first, second = message(1), message(2)
    place = create_store(
        any_store_url,
        complete_writer(first),
        message_writer(second, [share(second, 2)], [signature(second, [2, 3, 4])]),
    )
    text = text_of(export_records(place))
    target = create_store(second_url)
    moved, complaints = import_text(target, text)
    assert not complaints
    assert (moved.messages, moved.shares, moved.signatures) == (2, 3, 2)
    expected = read_messages(place)
    for message_id, (for_ever, shares, signatures) in expected.items():
        unverified = {(key, signed, False) for key, signed, _ in shares}
        expected[message_id] = (for_ever, unverified, signatures)
    assert read_messages(target) == expected
    assert import_text(target, text)[1] == {}
    assert read_messages(target) == expected


def test_a_share_is_imported_from_a_message_a_key_and_a_signature(any_store_url: str) -> None:
    stored_message = message(1)
    place = create_store(any_store_url)
    lines = [
        {
            "type": "share",
            "unsignedMessage": stored_message.raw.hex(),
            **_share_fields(share(stored_message, index)),
        }
        for index in range(3)
    ]
    moved, complaints = import_text(place, HEADER + text_of(lines), for_ever=True)
    assert not complaints
    assert (moved.messages, moved.shares) == (1, 3)
    assert read_messages(place)[stored_message.id] == (
        True,
        {(KEYS[i], share(stored_message, i).signature, False) for i in range(3)},
        set(),
    )


def test_a_share_of_a_stored_message_is_named_by_its_id_and_replaces_a_wrong_candidate(
    any_store_url: str,
) -> None:
    stored_message = message(1)
    place = create_store(
        any_store_url,
        message_writer(stored_message, [wrong_share(0), share(stored_message, 1, verified=False)]),
    )
    lines = [
        {
            "type": "share",
            "messageId": stored_message.id.hex(),
            **_share_fields(share(stored_message, index)),
        }
        for index in (0, 1)
    ]
    assert import_text(place, HEADER + text_of(lines))[1] == {}
    assert read_messages(place)[stored_message.id][1] == {
        (KEYS[i], share(stored_message, i).signature, False) for i in (0, 1)
    }
    with open_read_only(place) as connection:
        assert connection.fetch("SELECT candidates FROM messages") == [(2,)]


def test_an_import_replaces_no_verified_share(any_store_url: str) -> None:
    stored_message = message(1)
    place = create_store(any_store_url, message_writer(stored_message, [share(stored_message, 0)]))
    before = read_messages(place)
    line = {
        "type": "share",
        "unsignedMessage": stored_message.raw.hex(),
        **_share_fields(wrong_share(0)),
    }
    assert import_text(place, HEADER + text_of([line]))[1] == {}
    assert read_messages(place) == before


def test_imported_signatures_displace_no_signature_of_the_store(any_store_url: str) -> None:
    stored_message = message(1)
    own = [signature(stored_message, indices) for indices in ([0, 1], [1, 2], [2, 3])]
    place = create_store(any_store_url, message_writer(stored_message, [], own))
    lines = [_signature_of(message(2), [index]) for index in range(5)]
    for line in lines:
        line["unsignedMessage"] = stored_message.raw.hex()
    assert import_text(place, HEADER + text_of(lines))[1] == {}
    stored = {signed for _, signed in read_messages(place)[stored_message.id][2]}
    assert {signed.signature for signed in own} < stored
    assert len(stored) == 4


def test_a_signature_of_the_daemon_corrects_the_keys_of_an_imported_one(
    any_store_url: str,
) -> None:
    stored_message = message(1)
    right = signature(stored_message, [0, 1])
    place = create_store(any_store_url)
    line = _signature_of(stored_message, [0, 1])
    line["publicKeys"] = [KEYS[3].hex(), KEYS[4].hex()]
    assert import_text(place, HEADER + text_of([line]))[1] == {}
    write_rows(place, message_writer(stored_message, [], [right]))
    assert read_messages(place)[stored_message.id][2] == {
        (b"".join(right.public_keys), right.signature)
    }


def test_a_check_names_the_imported_signatures_that_are_wrong(any_store_url: str) -> None:
    stored_message = message(1)
    place = create_store(any_store_url)
    lines = [
        {
            "type": "share",
            "unsignedMessage": stored_message.raw.hex(),
            **_share_fields(wrong_share(0)),
        },
        {**_signature_of(stored_message, [0, 1]), "publicKeys": [KEYS[0].hex(), KEYS[2].hex()]},
    ]
    assert import_text(place, HEADER + text_of(lines))[1] == {}
    errors: list[str] = []
    wrong_candidates: list[str] = []
    with open_read_only(place) as connection:
        IntegrityCheck(connection, errors.append, on_wrong_candidate=wrong_candidates.append).run()
    name = f"message {id_text(stored_message.id)}"
    assert errors == [f"{name}: a signature of 2 keys: it does not verify"]
    assert wrong_candidates == [f"{name}: the unverified share of key 0x{KEYS[0].hex()} is invalid"]


def test_bad_lines_are_reported_by_number_and_skipped(any_store_url: str) -> None:
    stored_message, unknown = message(1), message(9)
    place = create_store(any_store_url)
    good = {
        "type": "share",
        "unsignedMessage": "0x" + stored_message.raw.hex(),
        **_share_fields(share(stored_message, 0)),
    }
    bad: list[tuple[Any, str]] = [
        ({**good, "signature": "0x00"}, "1 bytes, not 96"),
        ({**good, "signature": "zz" * 96}, "not hex"),
        ({**good, "signature": "00" * 96}, "signature: not a compressed point"),
        ({**good, "publicKey": "0x" + "ff" * 48}, "publicKey: not a compressed point"),
        ({**good, "publicKey": "0x" + "80" * 47}, "publicKey: 47 bytes, not 48"),
        ({**good, "publicKey": None}, "publicKey is needed"),
        ({**good, "unsignedMessage": "0x0000"}, "unsignedMessage"),
        ({**good, "messageId": unknown.id.hex()}, "not that of unsignedMessage"),
        (
            {"type": "share", "messageId": unknown.id.hex(), **_share_fields(share(unknown, 0))},
            "neither a line above nor",
        ),
        ({"type": "share", "messageId": "xyz", **_share_fields(share(unknown, 0))}, "messageId"),
        ({"type": "share", **_share_fields(share(unknown, 0))}, "messageId or unsignedMessage"),
        ({"type": "secret"}, 'expected "message", "share" or "signature"'),
        ([1, 2], "not a record"),
        (
            {
                "type": "signature",
                "unsignedMessage": stored_message.raw.hex(),
                **_share_fields(share(stored_message, 0)),
            },
            "publicKeys",
        ),
        (
            {**_signature_of(stored_message, [0, 1]), "publicKeys": [KEYS[0].hex(), "00" * 48]},
            "publicKey: not a compressed point",
        ),
        ({**_signature_of(stored_message, [0]), "publicKeys": [KEYS[0].hex()] * 2}, "each once"),
        ("not json", "not a record"),
    ]
    text = HEADER + b"\n" + text_of([item for item, _ in bad]) + text_of([good]) + b"\xff\xfe\n{"
    moved, complaints = import_text(place, text)
    assert moved.bad_lines == len(complaints) == len(bad) + 2
    for number, (_, words) in enumerate(bad, start=3):
        assert words in complaints[number], (number, complaints[number])
    assert read_messages(place) == {
        stored_message.id: (False, {(KEYS[0], share(stored_message, 0).signature, False)}, set())
    }


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"", "begins with"),
        (b'{"type":"share"}\n', "begins with"),
        (b'{"format":"other","version":1}\n', "begins with"),
        (b'{"format":"warpseal-store","version":2}\n', "knows version 1"),
        (b"\x00\x01", "begins with"),
    ],
)
def test_a_file_of_another_format_or_version_is_refused(
    first: bytes, words: str, tmp_path: Any
) -> None:
    place = create_store(f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(BadLine, match=words):
        import_text(place, first)
    assert read_messages(place) == {}


def test_a_message_without_signatures_is_not_imported(any_store_url: str) -> None:
    place = create_store(any_store_url)
    line = {"type": "message", "unsignedMessage": message(1).raw.hex(), "forEver": True}
    moved, complaints = import_text(place, HEADER + text_of([line]))
    assert (moved.messages, complaints) == (0, {})
    assert read_messages(place) == {}


def test_an_export_selects_one_message_or_permanent_messages_or_recent_changes(
    any_store_url: str,
) -> None:
    old, new, lasting = message(1), message(2), message(3)
    place = create_store(
        any_store_url,
        message_writer(old, [share(old, 0)], at_unix_s=1_000.0),
        message_writer(new, [share(new, 0)], at_unix_s=2_000.0),
        message_writer(lasting, [share(lasting, 0)], for_ever=True, at_unix_s=1_500.0),
    )

    def ids(**which: Any) -> list[str]:
        records = export_records(place, Selection(**which))
        return [record["messageId"][2:] for record in records if record.get("type") == "message"]

    assert ids() == [old.id.hex(), new.id.hex(), lasting.id.hex()]
    assert ids(message_id=new.id) == [new.id.hex()]
    assert ids(for_ever=True) == [lasting.id.hex()]
    assert ids(since_unix_s=1_500.0) == [new.id.hex(), lasting.id.hex()]
    assert ids(message_id=old.id, for_ever=True) == []


def test_many_messages_are_exported_page_by_page_and_imported_batch_by_batch(
    any_store_url: str, second_url: str
) -> None:
    messages = [message(number) for number in range(250)]
    place = create_store(
        any_store_url,
        *(
            message_writer(item, [share(item, 0, verified=False), share(item, 1, verified=False)])
            for item in messages
        ),
    )
    text = text_of(export_records(place))
    target = create_store(second_url)
    moved, complaints = import_text(target, text)
    assert not complaints
    assert (moved.messages, moved.shares) == (250, 500)
    assert read_messages(target) == read_messages(place)


def test_memory_does_not_grow_with_the_file(tmp_path: Any) -> None:
    place = create_store(f"sqlite:///{tmp_path}/store.db")
    stored_message = message(1)
    line = text_of(
        [{"type": "share", "messageId": stored_message.id.hex(), **_share_fields(wrong_share(0))}]
    )
    long_line = b'{"type":"share","signature":"' + b"0" * 5_000_000 + b'"}\n'
    first = text_of([{"type": "message", "unsignedMessage": stored_message.raw.hex()}])
    signed_lines = [
        text_of([_signature_of_many_keys(stored_message, number)]) for number in range(20)
    ]
    complaints: list[int] = []
    tracemalloc.start()
    with open_exclusive(place) as engine:
        importer = Importer(engine, lambda number, _: complaints.append(number))
        _, lines = open_lines(
            io.BufferedReader(_Endless([HEADER, first, long_line * 3, *signed_lines, line * 50]))
        )
        moved = importer.run(lines, lambda _: None)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert moved.bad_lines == len(complaints) == 3
    assert (moved.signatures, moved.shares) == (20, 50)
    assert peak_bytes < 40_000_000


def test_a_line_beyond_the_bound_is_skipped_and_the_next_one_read() -> None:
    long = b"x" * 9_000_000
    lines = list(numbered_lines(io.BytesIO(b"\n" + long + b"\n{}\n" + long)))
    assert lines == [(2, None), (3, b"{}\n"), (4, None)]


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_line_is_imported_or_reported(raw: bytes) -> None:
    for read in (read_line, read_header):
        with pytest.raises(BadLine):
            read(raw)


@settings(max_examples=100)
@given(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message", "share", "signature", "", None, 3])},
        optional={
            name: st.none()
            | st.text(max_size=20)
            | st.integers()
            | st.lists(st.text(max_size=4), max_size=3)
            for name in (
                "messageId",
                "unsignedMessage",
                "publicKey",
                "publicKeys",
                "signature",
                "forEver",
                "verified",
            )
        },
    )
)
def test_any_record_is_imported_or_reported(record: dict[str, Any]) -> None:
    with pytest.raises(BadLine):
        read_line(json.dumps(record).encode())


def _share_fields(item: Any) -> dict[str, str]:
    return {"publicKey": "0x" + item.public_key.hex(), "signature": item.signature.hex()}


def _signature_of(of: Any, indices: list[int]) -> dict[str, Any]:
    signed = signature(of, indices)
    keys = [key.hex() for key in signed.public_keys]
    return {
        "type": "signature",
        "unsignedMessage": of.raw.hex(),
        "publicKeys": keys,
        "signature": signed.signature.hex(),
    }


def _signature_of_many_keys(of: Any, number: int) -> dict[str, Any]:
    keys = [b"\x80" + index.to_bytes(47, "big") for index in range(20_000)]
    return {
        "type": "signature",
        "messageId": of.id.hex(),
        "publicKeys": [key.hex() for key in keys],
        "signature": (b"\x80" + number.to_bytes(95, "big")).hex(),
    }


class _Endless(io.RawIOBase):
    """A stream of parts that are never all in memory."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._parts:
            return 0
        part = self._parts[0][: len(buffer)]
        buffer[: len(part)] = part
        self._parts[0] = self._parts[0][len(part) :]
        if not self._parts[0]:
            self._parts.pop(0)
        return len(part)


def test_messages_of_another_network_end_an_import(second_url: str) -> None:
    place = create_store(second_url, message_writer(message(1), [share(message(1), 0)]))
    other = UnsignedMessage.build(5, message(1).source_chain_id, b"payload")
    mixed = [
        {"type": "message", "unsignedMessage": message(2).raw.hex()},
        {"type": "share", "unsignedMessage": other.raw.hex(), **_share_fields(share(other, 1))},
    ]
    for lines in (mixed, [{"type": "message", "unsignedMessage": other.raw.hex()}, mixed[0]]):
        with pytest.raises(StoreNetworkMismatch):
            import_text(place, HEADER + text_of(lines))
    assert list(read_messages(place)) == [message(1).id]
