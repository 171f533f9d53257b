"""Lookups of what hinders a message: they are bounded in time and number, and a failure leaves out
its keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import pytest
from eth_hash.auto import keccak

from tests.chains.evm.icm_logs import MESSENGER, Message
from tests.eventually import until
from tests.icm.fixtures import SilentServices, silent_obstacles
from tests.icm.test_retry import MESSAGE_V1, OLD, sent
from tests.index.evm.icm_histories import PEOPLE, B
from warpseal.chains.evm.icm_events import ChangeKind
from warpseal.errors import CallRefused
from warpseal.icm import obstacles
from warpseal.icm.obstacles import MessageObstacles
from warpseal.icm.resources import IcmSignature
from warpseal.icm.retry import JoinedMessage
from warpseal.index.evm.records import MessageChange, ReceivedMessage
from warpseal.resources.base import UNSET
from warpseal.resources.text import account_text, hex_text
from warpseal.store.values import SigningBlock, SigningBlockKind
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID
from warpseal.warp.message import AddressedCall, UnsignedMessage

PENDING = JoinedMessage(sent(), None)
CHANGES = [MessageChange(ChangeKind.FEE, 1_000, 3), MessageChange(ChangeKind.RESENT, 1_100, 0)]


class HangingServices(SilentServices):
    """Stands for a destination that never replies."""

    def __init__(self) -> None:
        self.calls = 0

    async def sign(self, *_: Any) -> NoReturn:
        self.calls += 1
        await asyncio.Event().wait()
        raise AssertionError


def hanging_obstacles() -> tuple[MessageObstacles, HangingServices]:
    services: Any = HangingServices()
    return MessageObstacles(services, services, services, services, services, 12_345), services


@pytest.mark.parametrize("message", [MESSAGE_V1, OLD])
async def test_the_warp_message_is_built_from_its_row_once(
    message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[JoinedMessage] = []
    build = MessageObstacles._build_unsigned

    def count(self: MessageObstacles, joined: JoinedMessage) -> UnsignedMessage | None:
        built.append(joined)
        return build(self, joined)

    monkeypatch.setattr(MessageObstacles, "_build_unsigned", count)
    block = await silent_obstacles().describe(
        JoinedMessage(sent(message), None), CHANGES, 15_000_000
    )
    call = AddressedCall(message.adapter or message.messenger, message.payload)
    unsigned = UnsignedMessage.build(12_345, message.source, call.encode())
    assert len(built) == 1
    assert block is not UNSET
    assert (block.unsigned_message, block.warp_message_id) == (
        hex_text(unsigned.raw),
        hex_text(unsigned.id),
    )
    assert block.delivery_gas is not UNSET
    # The relayer's formula, without signers: 32-byte chunks of the message and its end, the
    # payload, one receipt.
    expected = (
        50_000
        + 375_750
        + 1_024 * (len(unsigned.raw) // 32 + 1)
        + 35 * len(unsigned.payload)
        + 2_500
    )
    assert block.delivery_gas.required == str(expected)
    assert (block.delivery_gas.block_limit, block.resent_at) == ("15000000", 1_100)


class OneBlock:
    """Stands for signing blocks that name every message."""

    def __init__(self, rule: SigningBlock) -> None:
        self.rule = rule

    def find(self, subjects: Iterable[tuple[str, str]]) -> SigningBlock:
        return self.rule


async def test_a_blocked_message_says_so_and_why() -> None:
    rule = SigningBlock(SigningBlockKind.SENDER, "0x00", "the bridge has a bug", 1)
    lookups = silent_obstacles(blocks=OneBlock(rule))
    for block in (
        *await lookups.outline([PENDING]),
        await lookups.describe(PENDING, CHANGES, None),
    ):
        assert block is not UNSET
        assert block.signature == IcmSignature(state="blocked", reason="the bridge has a bug")
        assert block.retry is not UNSET
        assert (block.retry.action, rule.reason in block.retry.text) == ("none", True)


async def test_a_destination_that_hangs_costs_its_own_keys_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(obstacles, "LOOKUP_S", 0.05)
    lookups, services = hanging_obstacles()
    blocks = await asyncio.gather(*(lookups.describe(PENDING, CHANGES, None) for _ in range(3)))
    assert services.calls == 1
    for block in blocks:
        assert block is not UNSET
        assert (block.state, block.delivery) == ("sent", UNSET)
        assert block.signature is not UNSET
        assert block.signature.state == "not_asked"
        assert block.fees is not UNSET
        assert [fee.value for fee in block.fees] == ["3"]


async def test_beyond_a_bound_messages_have_what_lists_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(obstacles, "MAX_LOOKUPS", 1)
    lookups, services = hanging_obstacles()
    first = asyncio.create_task(lookups.describe(PENDING, CHANGES, None))
    await until(lambda: services.calls == 1)
    other = JoinedMessage(sent(MESSAGE_V1._replace(nonce=8)), None)
    assert [await lookups.describe(other, CHANGES, None)] == await lookups.outline([other])
    first.cancel()
    assert services.calls == 1


class StoreIsDown(SilentServices):
    """Stands for a store that cannot be read."""

    async def find_signed(self, message_ids: Sequence[bytes]) -> None:  # type: ignore[override]
        return None


async def test_a_signature_is_left_out_while_the_store_is_down() -> None:
    services: Any = StoreIsDown()
    lookups = MessageObstacles(services, services, services, services, services, 12_345)
    (block,) = await lookups.outline([PENDING])
    assert block is not UNSET
    assert (block.state, block.signature, block.retry) == ("sent", UNSET, UNSET)


class NodeOfCalls:
    """Stands for a node of a chain, of which each call has the same reply, or hangs."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies = replies
        self.calls: list[tuple[ChainID, str, Any]] = []

    async def call(
        self, chain_id: ChainID, method: str, params: Any, decode: Any, *, is_refusal_final: bool
    ) -> Any:
        self.calls.append((chain_id, method, params))
        reply = self.replies.get(method)
        if reply is None:
            await asyncio.Event().wait()
        if isinstance(reply, Exception):
            raise reply
        return decode(reply)


RECEIVE = ReceivedMessage(
    **{
        name: getattr(sent(), name)
        for name in ReceivedMessage.__struct_fields__
        if hasattr(sent(), name)
    },
    deliverer=PEOPLE[2],
    redeemer=PEOPLE[3],
    is_executed=False,
    has_failed=True,
)
FAILED = JoinedMessage(sent(), RECEIVE)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        (b'"0x"', "retry_execution"),
        (CallRefused("execution reverted", keccak(b"NotNow()")[:4]), "none"),
        (CallRefused("too many requests"), "retry_execution"),
        (NodeUnavailable("eth_call"), "retry_execution"),
        (None, "retry_execution"),
    ],
)
async def test_a_retry_is_tried_once_at_its_latest_block_and_in_the_time_of_the_lookups(
    reply: Any, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstacles, "LOOKUP_S", 0.2)
    node: Any = NodeOfCalls(
        {"eth_call": reply, "eth_estimateGas": b'"0x1234"', "eth_getCode": b'"0x60"'}
    )
    block = await silent_obstacles(node).describe(FAILED, CHANGES, 8_000_000)
    assert block is not UNSET
    assert block.retry is not UNSET
    assert block.retry.action == action
    assert (block.retry.call is not UNSET) == (reply == b'"0x"')
    calls = [
        params for _, method, params in node.calls if method == "eth_call" and params[1] == "latest"
    ]
    if reply is not None:
        ((transaction, _),) = calls
        account, contract = hex_text(PEOPLE[2]), account_text(MESSENGER)
        assert (transaction["from"], transaction["to"], transaction["gas"]) == (
            account,
            contract,
            hex(8_000_000),
        )
    assert len(node.calls) <= 5


class DenyingPreflight(SilentServices):
    """Stands for a preflight to which the operator denies calls of chain B."""

    def denies_calls(self, chain_id: ChainID) -> bool:
        return chain_id == B


async def test_a_chain_whose_calls_are_denied_has_no_trial() -> None:
    node: Any = NodeOfCalls({})
    lookups = silent_obstacles(node, DenyingPreflight())
    block = await lookups.describe(FAILED, CHANGES, None)
    assert block is not UNSET
    assert block.retry is not UNSET
    assert (block.retry.action, block.retry.call, node.calls) == ("retry_execution", UNSET, [])
