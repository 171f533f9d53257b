"""Signing blocks: which messages they name, and what a daemon knows of them without and with its
store.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from tests.chains.evm.icm_logs import NETWORK_ID, Message
from tests.eventually import until
from tests.store.conftest import any_store_url, postgres_server, postgres_url
from tests.store.fixtures import sqlite_url, store_at
from warpseal.messages.errors import SigningBlocked
from warpseal.messages.signing_blocks import check_allowed, subjects
from warpseal.store import signing_blocks
from warpseal.store.errors import StoreDown
from warpseal.store.settings import StoreSettings
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.store.store import open_store
from warpseal.store.url import OFF
from warpseal.store.values import SigningBlock, SigningBlockKind, StoreStatus
from warpseal.warp.ids import P_CHAIN, ChainID, id_text
from warpseal.warp.l1_messages import SubnetToL1Conversion, build_p_chain_message
from warpseal.warp.message import PAYLOAD_LIMIT_BYTES, AddressedCall, Hash, UnsignedMessage

__all__ = ["any_store_url", "postgres_server", "postgres_url"]

SOURCE, DESTINATION, OTHER = (ChainID(bytes([number]) * 32) for number in (1, 2, 3))
ACCOUNT, ADAPTER = b"\xaa" * 20, b"\xbb" * 20
V1 = Message(SOURCE, DESTINATION, 7, ACCOUNT, b"\xcc" * 20)
V2 = V1._replace(adapter=ADAPTER)
KINDS = SigningBlockKind


def warp_message(message: Message) -> UnsignedMessage:
    call = AddressedCall(message.adapter or message.messenger, message.payload)
    return UnsignedMessage.build(NETWORK_ID, message.source, call.encode())


def hex_of(raw: bytes) -> str:
    return "0x" + raw.hex()


def block(
    kind: SigningBlockKind, value: str, reason: str = "a bug", created_at: int = 5
) -> SigningBlock:
    return SigningBlock(kind, value, reason, created_at)


class MemoryDatabase:
    """The rows of a store in memory, which may be down."""

    settings = StoreSettings()

    def __init__(self, *blocks: SigningBlock) -> None:
        self.blocks = list(blocks)
        self.is_down = False

    def status(self) -> StoreStatus:
        return StoreStatus("memory", True)

    async def records(self, text: str, *, wait_s: float) -> list[tuple[object, ...]]:
        if self.is_down:
            raise StoreDown("set by the test")
        return list(map(astuple, self.blocks))


async def with_blocks(*blocks: SigningBlock) -> SigningBlocks:
    database: Any = MemoryDatabase(*blocks)
    loaded = SigningBlocks(database)
    await loaded.load()
    return loaded


@pytest.mark.parametrize("message", [V1, V2], ids=["version 1", "version 2"])
async def test_a_message_is_blocked_by_its_chain_its_destination_its_senders_and_both_ids(
    message: Message,
) -> None:
    unsigned = warp_message(message)
    for kind, value in (
        (KINDS.SOURCE_CHAIN, id_text(SOURCE)),
        (KINDS.DESTINATION, id_text(DESTINATION)),
        (KINDS.SENDER, hex_of(ACCOUNT)),
        (KINDS.SENDER, hex_of(message.adapter or message.messenger)),
        (KINDS.MESSAGE_ID, hex_of(unsigned.id)),
        (KINDS.MESSAGE_ID, hex_of(message.id)),
    ):
        blocks = await with_blocks(block(kind, value))
        with pytest.raises(SigningBlocked) as caught:
            check_allowed(blocks, unsigned)
        assert caught.value.detail == {"kind": kind, "value": value, "reason": "a bug"}
        assert str(caught.value) == f"the operator has disabled signing for {kind} {value}: a bug"
        # The same message to another chain, from another one and by another account.
        other = message._replace(
            source=OTHER, destination=OTHER, sender=b"\xdd" * 20, messenger=b"\xee" * 20
        )
        check_allowed(
            blocks, warp_message(other._replace(adapter=message.adapter and b"\xff" * 20))
        )


async def test_a_value_counts_for_its_kind_alone() -> None:
    chains = (SOURCE, KINDS.DESTINATION), (DESTINATION, KINDS.SOURCE_CHAIN)
    rules = [block(kind, id_text(chain_id)) for chain_id, kind in chains]
    rules += [block(KINDS.MESSAGE_ID, hex_of(SOURCE)), block(KINDS.SENDER, hex_of(V1.recipient))]
    check_allowed(await with_blocks(*rules), warp_message(V1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 40,
        Hash(bytes(32)).encode(),
        AddressedCall(b"", b"").encode(),
        AddressedCall(ACCOUNT, V1.payload[:-1]).encode(),
        AddressedCall(ACCOUNT, b"\0" * 31 + b"\x20" + b"\xff" * 320).encode(),
        AddressedCall(b"\xaa" * 19, V1.payload).encode(),
        bytes(6) + b"\xff" * PAYLOAD_LIMIT_BYTES,
    ],
    ids=[
        "empty",
        "no type",
        "hash",
        "empty call",
        "cut off",
        "wrong words",
        "short sender",
        "too long",
    ],
)
async def test_any_payload_is_blocked_by_its_chain_and_its_id_and_is_no_error(
    payload: bytes,
) -> None:
    unsigned = UnsignedMessage.build(NETWORK_ID, SOURCE, payload)
    check_allowed(await with_blocks(block(KINDS.DESTINATION, id_text(DESTINATION))), unsigned)
    for rule in (
        block(KINDS.SOURCE_CHAIN, id_text(SOURCE)),
        block(KINDS.MESSAGE_ID, hex_of(unsigned.id)),
    ):
        with pytest.raises(SigningBlocked):
            check_allowed(await with_blocks(rule), unsigned)


async def test_messages_of_the_p_chain_are_blocked_by_its_id() -> None:
    unsigned = build_p_chain_message(NETWORK_ID, SubnetToL1Conversion(bytes(32)).encode())
    with pytest.raises(SigningBlocked):
        check_allowed(await with_blocks(block(KINDS.SOURCE_CHAIN, id_text(P_CHAIN))), unsigned)


async def test_nothing_is_signed_before_the_blocks_were_read_and_they_hold_while_the_store_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signing_blocks, "POLL_S", 0.001)
    database, unsigned = MemoryDatabase(block(KINDS.SENDER, hex_of(ACCOUNT))), warp_message(V1)
    database.is_down = True
    blocks = SigningBlocks(database)  # type: ignore[arg-type]
    polling = asyncio.create_task(blocks.run())
    await asyncio.sleep(0.01)
    with pytest.raises(StoreDown):
        check_allowed(blocks, warp_message(V1._replace(sender=b"\xdd" * 20)))
    assert "not read yet" in str(blocks.blocking_error())
    database.is_down = False
    await until(lambda: blocks.blocking_error() is None)
    database.is_down = True
    database.blocks.clear()
    await asyncio.sleep(0.01)
    with pytest.raises(SigningBlocked):
        check_allowed(blocks, unsigned)
    database.is_down = False
    await until(lambda: blocks.find(subjects(unsigned)) is None)
    polling.cancel()


async def test_without_a_store_nothing_is_blocked() -> None:
    async with open_store(StoreSettings(url=OFF), None) as store:
        check_allowed(store.signing_blocks, warp_message(V1))
        assert store.signing_blocks.blocking_error() is None


async def test_a_change_is_in_force_at_once_logged_once_and_seen_by_others(
    any_store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "warpseal.store.signing_blocks")
    unsigned, rule = warp_message(V1), block(KINDS.SENDER, hex_of(ACCOUNT))
    async with store_at(any_store_url) as store:
        first, other = store.signing_blocks, SigningBlocks(store.database)
        await first.load()
        await other.load()
        await first.add(rule)
        await first.add(with_reason(rule, "another reason"))
        assert first.find(subjects(unsigned)) == with_reason(rule, "another reason")
        assert other.find(subjects(unsigned)) is None
        await other.load()
        assert other.find(subjects(unsigned)) == first.find(subjects(unsigned))
    # Another process on the same store, later.
    async with store_at(any_store_url) as store:
        again = store.signing_blocks
        assert await again.load() == [with_reason(rule, "another reason")]
        caplog.clear()
        await again.load()
        await again.remove(rule)
        assert again.find(subjects(unsigned)) is None
    assert [(record.getMessage(), vars(record)["value"]) for record in caplog.records] == [
        ("signing unblocked", rule.value)
    ]


def with_reason(rule: SigningBlock, reason: str) -> SigningBlock:
    return SigningBlock(rule.kind, rule.value, reason, rule.created_at)


async def test_a_read_that_began_before_a_change_does_not_undo_it(tmp_path: Path) -> None:
    rule = block(KINDS.SENDER, hex_of(ACCOUNT))
    async with store_at(sqlite_url(tmp_path)) as store:
        blocks = store.signing_blocks
        await blocks.load()
        reading = [asyncio.create_task(blocks.load()) for _ in range(20)]
        await asyncio.sleep(0)
        await blocks.add(rule)
        assert blocks.find(subjects(warp_message(V1))) == rule
        await asyncio.gather(*reading)
        assert blocks.find(subjects(warp_message(V1))) == rule
