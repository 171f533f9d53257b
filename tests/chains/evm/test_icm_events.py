"""Events of ICM: recorded ones byte for byte, made-up ones against the ABI library, and those of
hostile contracts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from tests import paths
from tests.chains.evm import icm_logs
from tests.chains.evm.evm_values import NETWORKS, account, decoded, recorded_blocks, rules
from tests.chains.evm.icm_logs import (
    MESSAGE,
    MESSAGE_V2,
    PRECOMPILE,
    Message,
    raw_warp_log,
    version_log,
    warp_log,
)
from tests.indexer.evm_chains import Log, MadeUpChain, Tx, erc20_transfer, recorded_chain, word
from warpseal.chains.evm.checks import BlockRules, block_facts
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.chains.evm.icm_events import (
    ChangeKind,
    IcmChange,
    IcmReceive,
    IcmSend,
    MessageFields,
    NewMessenger,
    Outcome,
    PayloadKind,
    WarpSend,
    decode_message,
    decode_tail,
    encode_message,
    message_id,
)
from warpseal.chains.evm.receipts_root import receipts_root
from warpseal.messages.teleporter import parse_teleporter
from warpseal.warp.ids import ChainID, ValidationID, id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    SubnetToL1Conversion,
)
from warpseal.warp.message import AddressedCall, Hash, UnsignedMessage

RECORDED_MESSENGER = bytes.fromhex("68d42653c8455969edae4f89281f4b9ed3e9080d")
RULES = BlockRules(has_icm=True)
A, B = ChainID(b"\xaa" * 32), ChainID(b"\xbb" * 32)
ANN, BOB, RELAYER, COIN, LIAR = map(account, (1, 2, 3, 4, 0xBAD))
VALIDATION = ValidationID(b"v" * 32)
FROM_A = Message(A, B, 7, ANN, BOB, asset=COIN, fee=9)
TO_A = Message(B, A, 3, BOB, ANN)

addresses = st.binary(min_size=20, max_size=20)
numbers = st.integers(0, 2**256 - 1)
messages = st.builds(
    Message,
    st.just(A),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**63 - 1),
    addresses,
    addresses,
    numbers,
    st.lists(addresses, max_size=3),
    st.lists(st.tuples(numbers, addresses), max_size=3),
    st.binary(max_size=70),
    addresses,
    st.none() | addresses,
    addresses,
    numbers,
)


def facts_of(*txs: Sequence[Log], rules: BlockRules = RULES) -> EvmBlockFacts:
    """Return the facts of a block whose transactions have these logs."""
    chain = MadeUpChain()
    chain.add([Tx(ANN, BOB, logs) for logs in txs])
    return block_facts(*decoded(chain.chain.headers[1], chain.chain.receipts[1]), rules)


def names(facts: EvmBlockFacts) -> list[str]:
    """Return the types of the events."""
    return [type(event).__name__ for event in facts.icm]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("chain", ["c-chain", "l1-0", "l1-1"])
def test_recorded_messages_give_their_ids_and_their_bytes_back(network: str, chain: str) -> None:
    source = recorded_chain(network, chain).blockchain_id
    messages, kinds = [], []
    for header, receipts in recorded_blocks(network, chain):
        facts = block_facts(
            header, receipts, BlockRules(rules(network, chain).asynchronous_from, has_icm=True)
        )
        assert facts.unknown_logs == 0
        assert facts.tx_fees.keys() <= facts.tx_hashes.keys()
        events = iter(facts.icm)
        for event in events:
            if isinstance(event, WarpSend):
                kinds.append(event.kind)
                continue
            if isinstance(event, NewMessenger):
                assert (event.version, event.messenger) == (1, RECORDED_MESSENGER)
                continue
            assert isinstance(event, IcmSend)
            assert event.message_id == message_id(
                event.messenger, source, event.message.destination, event.message.nonce
            )
            warp = next(events)
            assert isinstance(warp, WarpSend)
            assert (warp.kind, warp.position) == (PayloadKind.TELEPORTER, event.position + 1)
            assert rebuilt(event, UnsignedMessage.parse(warp.message)) == warp.message
            messages.append((id_text(event.message_id), event.message.nonce, event.message.body))
    assert [(nonce, body) for _, nonce, body in messages] == [
        (nonce, b"\1\2\3\4") for nonce in range(1, 1 + len(messages))
    ]
    expected_kinds = [PayloadKind.L1_VALIDATOR_WEIGHT, PayloadKind.REGISTER_L1_VALIDATOR]
    assert sorted(kinds) == (sorted(expected_kinds) if chain == "l1-0" else [])
    if network == "localnet":
        recorded = json.loads((paths.LOCALNET / "icm.json").read_text())["messages"]
        ids = {
            item["teleporterMessageId"]
            for item in recorded
            if UnsignedMessage.parse(bytes.fromhex(item["unsigned"])).source_chain_id == source
        }
        assert {name for name, _, _ in messages} == ids


def rebuilt(event: IcmSend, message: UnsignedMessage) -> bytes:
    """Return the Warp message of a sent message from its fields."""
    call = AddressedCall(event.warp_sender, word(32) + encode_message(event.message))
    return UnsignedMessage.build(message.network_id, message.source_chain_id, call.encode()).raw


@given(messages)
@settings(max_examples=100)
def test_a_message_is_read_as_the_abi_library_wrote_it(message: Message) -> None:
    facts = facts_of(message.sent())
    event, warp = facts.icm
    assert isinstance(event, IcmSend)
    assert isinstance(warp, WarpSend)
    assert event == IcmSend(
        0, 0, message.messenger, message.id, event.message, message.asset, message.fee,
        message.adapter or message.messenger,
    )  # fmt: skip
    assert values(event.message) == values_of(message)
    assert decode_tail(event.message.tail) == (tuple(message.relayers), tuple(message.receipts))
    assert bool(event.message.tail) == bool(message.relayers or message.receipts)
    assert rebuilt(event, UnsignedMessage.parse(warp.message)) == warp.message
    parsed = parse_teleporter(event.warp_sender, message.payload)
    assert parsed is not None
    assert (parsed.messenger, parsed.fields) == (message.messenger, event.message)


@given(messages, st.data())
@settings(max_examples=100)
def test_every_other_encoding_is_refused(message: Message, data: st.DataObject) -> None:
    payload, is_v2 = message.payload, message.adapter is not None
    fields = decode_message(payload, 32, is_v2=is_v2)
    assert fields is not None
    assert encode_message(fields) == payload[32:]
    assert decode_message(payload[:-1], 32, is_v2=is_v2) is None
    assert decode_message(payload + b"\0", 32, is_v2=is_v2) is None
    assert (
        decode_message(payload[: data.draw(st.integers(0, len(payload) - 1))], 32, is_v2=is_v2)
        is None
    )
    at = data.draw(st.integers(32, len(payload) - 1))
    changed = (
        payload[:at] + bytes([payload[at] ^ data.draw(st.integers(1, 255))]) + payload[at + 1 :]
    )
    other = decode_message(changed, 32, is_v2=is_v2)
    # Either another message, whose only encoding it is, or none.
    assert other is None or (
        other != fields and encode([MESSAGE_V2 if is_v2 else MESSAGE], [values(other)]) == changed
    )


def values(fields: MessageFields) -> tuple[Any, ...]:
    """Return the values of the struct of a message."""
    relayers, receipts = decode_tail(fields.tail)
    origin = () if fields.origin is None else (fields.origin,)
    return (
        fields.nonce,
        fields.sender,
        *origin,
        fields.destination,
        fields.recipient,
        fields.gas_limit,
        relayers,
        receipts,
        fields.body,
    )


def values_of(message: Message) -> tuple[Any, ...]:
    """Return the values of the struct of a made-up message."""
    *fields, relayers, receipts, body = message.fields
    origin = () if message.adapter is None else (message.messenger,)
    return (*fields[:2], *origin, *fields[2:], tuple(relayers), tuple(receipts), body)


@pytest.mark.parametrize("word_at", range(13))
def test_a_message_with_a_huge_or_odd_word_is_read_at_once_or_not_at_all(word_at: int) -> None:
    payload = Message(A, B, 1, ANN, BOB, relayers=[ANN], receipts=[(1, BOB)]).payload
    for value in (2**256 - 1, 2**63, 2**32, 0x121, 1):
        changed = payload[: 32 * word_at] + word(value) + payload[32 * word_at + 32 :]
        fields = decode_message(changed, 32)
        assert fields is None or encode_message(fields) == changed[32:]


def test_the_life_of_a_message_is_read_in_the_order_of_its_logs() -> None:
    receipt = FROM_A.receipt(RELAYER, 9)
    facts = facts_of(
        FROM_A.sent(),
        FROM_A.fee_added(20),
        TO_A.received(RELAYER, BOB, is_executed=False, receipts=receipt),
        TO_A.executed(),
        TO_A._replace(nonce=4).received(RELAYER, BOB),
        TO_A._replace(nonce=5, body=b"").received(RELAYER, BOB, is_executed=None),
    )
    assert facts.icm == (
        facts.icm[0],
        facts.icm[1],
        IcmChange(2, 1, FROM_A.messenger, FROM_A.id, ChangeKind.FEE, COIN, 20),
        IcmChange(3, 2, FROM_A.messenger, FROM_A.id, ChangeKind.RECEIPT, RELAYER, 9),
        received(4, 2, TO_A, Outcome.FAILED),
        IcmChange(5, 3, TO_A.messenger, TO_A.id, ChangeKind.EXECUTED, bytes(20), 0),
        received(6, 4, TO_A._replace(nonce=4), Outcome.EXECUTED),
        received(7, 5, TO_A._replace(nonce=5, body=b""), Outcome.NONE),
    )
    assert facts.unknown_logs == 0
    assert set(facts.tx_hashes) == set(facts.tx_fees) == set(range(6))
    assert sum(facts.tx_fees.values()) == facts.fees_spent


def received(position: int, tx_index: int, message: Message, outcome: Outcome) -> IcmReceive:
    """Return the event of a message that RELAYER delivered for BOB."""
    fields = decode_message(message.payload, 32)
    assert fields is not None
    return IcmReceive(
        position,
        tx_index,
        message.messenger,
        message.id,
        message.source,
        fields,
        RELAYER,
        BOB,
        outcome,
    )


def test_a_retry_in_the_transaction_of_the_failure_is_a_later_execution() -> None:
    facts = facts_of([*TO_A.received(RELAYER, BOB, is_executed=False), *TO_A.executed()])
    assert names(facts) == ["IcmReceive", "IcmChange"]
    assert isinstance(facts.icm[0], IcmReceive)
    assert facts.icm[0].outcome is Outcome.FAILED


def test_a_registry_names_a_messenger() -> None:
    facts = facts_of([version_log(LIAR, 2, ANN)])
    assert facts.icm == (NewMessenger(0, 0, LIAR, 2, ANN),)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (Hash(b"h" * 32), PayloadKind.HASH),
        (
            AddressedCall(ANN, L1ValidatorWeight(VALIDATION, 1, 2).encode()),
            PayloadKind.L1_VALIDATOR_WEIGHT,
        ),
        (
            AddressedCall(ANN, L1ValidatorRegistration(VALIDATION, True).encode()),
            PayloadKind.L1_VALIDATOR_REGISTRATION,
        ),
        (
            AddressedCall(ANN, SubnetToL1Conversion(b"c" * 32).encode()),
            PayloadKind.SUBNET_TO_L1_CONVERSION,
        ),
        (AddressedCall(ANN, b"hello"), PayloadKind.ADDRESSED_CALL),
        (AddressedCall(ANN, FROM_A.payload), PayloadKind.ADDRESSED_CALL),
    ],
)
def test_other_warp_messages_have_their_kind(payload: Any, kind: PayloadKind) -> None:
    raw = UnsignedMessage.build(1, A, payload.encode()).raw
    assert facts_of([raw_warp_log(raw, ANN)]).icm == (WarpSend(0, 0, ANN, kind, raw),)
    unknown = UnsignedMessage.build(1, A, b"\0\0\0\0\0\7").raw
    assert facts_of([raw_warp_log(unknown, ANN)]).icm == (
        WarpSend(0, 0, ANN, PayloadKind.UNKNOWN, unknown),
    )


@pytest.mark.parametrize(
    "logs",
    [
        # Of another transaction, of another sender, with another body, before the message.
        [FROM_A.sent()[:1], FROM_A.sent()[1:]],
        [[FROM_A.sent()[0], warp_log(AddressedCall(LIAR, FROM_A.payload), A)]],
        [[FROM_A.sent()[0], FROM_A._replace(body=b"x").sent()[1]]],
        [FROM_A.sent()[::-1]],
    ],
)
def test_a_warp_message_belongs_only_to_the_message_that_it_carries(logs: list[list[Log]]) -> None:
    facts = facts_of(*logs)
    assert {event.kind for event in facts.icm if isinstance(event, WarpSend)} == {
        PayloadKind.ADDRESSED_CALL
    }
    assert [event.warp_sender for event in facts.icm if isinstance(event, IcmSend)] == [b""]


def unknown_logs() -> list[Log]:
    """Return logs with the topic of an event and another shape."""
    send, warp = FROM_A.sent()
    (executed,), (failed,) = TO_A.executed(), TO_A.failed()
    (fee,), (receipt,) = FROM_A.fee_added(1), FROM_A.receipt(RELAYER)
    delivered = TO_A.received(RELAYER, BOB)[0]
    version_2 = FROM_A._replace(adapter=ANN).sent()[0]
    logs = [
        Log(log.address, topics, log.data)
        for log in (
            send,
            warp,
            executed,
            failed,
            fee,
            receipt,
            delivered,
            version_2,
            version_log(LIAR, 1, ANN),
        )
        for topics in (log.topics[:-1], (*log.topics, bytes(32)))
    ]
    logs += [
        Log(log.address, log.topics, log.data + b"\0")
        for log in (send, warp, executed, fee, receipt, delivered)
    ]
    logs += [
        Log(log.address, log.topics, log.data[:-1]) for log in (send, warp, fee, receipt, delivered)
    ]
    return [
        *logs,
        Log(send.address, (send.topics[0], send.topics[1], A), send.data),
        Log(LIAR, version_2.topics, version_2.data),
        Log(LIAR, warp.topics, warp.data),
        Log(PRECOMPILE, (*warp.topics[:2], bytes(32)), warp.data),
        # Only in the transaction that received the message.
        failed,
        FROM_A._replace(nonce=2**63).sent()[0],
        Log(delivered.address, (*delivered.topics[:3], b"\1" * 32), delivered.data),
        raw_warp_log(b"no message", ANN),
        version_log(LIAR, 2**63, ANN),
    ]


def test_logs_of_another_shape_are_counted() -> None:
    for log in unknown_logs():
        facts = facts_of([log])
        assert (facts.icm, facts.unknown_logs) == ((), 1), log


def test_a_chain_without_icm_reads_none() -> None:
    facts = facts_of([*FROM_A.sent(), unknown_logs()[0]], rules=BlockRules())
    assert (facts.icm, facts.unknown_logs, facts.tx_hashes, facts.tx_fees) == ((), 0, {}, {})


def test_events_are_proven_by_the_receipts_root_also_if_a_node_hides_them() -> None:
    chain = MadeUpChain()
    chain.add([Tx(ANN, BOB, FROM_A.sent())])
    header, receipts = decoded(chain.chain.headers[1], chain.chain.receipts[1])
    facts = block_facts(header, receipts, RULES)
    assert RULES.needs_proof(header, receipts, facts)
    assert receipts_root(receipts).hex() == header.receipts_root[2:]
    chain.add([Tx(ANN, BOB, [erc20_transfer(COIN, ANN, BOB, 1)])])
    hidden = decoded(chain.chain.headers[2], chain.chain.receipts[2])
    _, other = hidden
    header = type(header)(*[*astuple(hidden[0])[:6], header.logs_bloom, *astuple(hidden[0])[7:]])
    assert RULES.needs_proof(header, other, block_facts(hidden[0], other, RULES))


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of calls of functions, also of those in C, that work makes."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_the_work_for_look_alikes_grows_with_their_number_alone() -> None:
    """A block of look-alikes, all in one transaction, costs as much a log as one of a few."""

    def block_of(count: int) -> Callable[[], object]:
        logs: list[Log] = []
        for nonce in range(count):
            message = Message(A, A, nonce, LIAR, LIAR, messenger=LIAR)
            logs += message.sent()
            logs += message.received(LIAR, LIAR, is_executed=False)
            logs += message.executed()
            logs += [*message.failed(), *message.receipt(LIAR), *message.fee_added(5)]
        chain = MadeUpChain(has_roots=False)
        chain.add([Tx(ANN, BOB, logs)])
        block = decoded(chain.chain.headers[1], chain.chain.receipts[1])
        return lambda: block_facts(*block, RULES)

    few, many = calls_of(block_of(10)), calls_of(block_of(300))
    assert many < 30 * few
    transfers = MadeUpChain(has_roots=False)
    transfers.add([Tx(ANN, BOB, [icm_erc721(number) for number in range(80)])])
    nfts = decoded(transfers.chain.headers[1], transfers.chain.receipts[1])
    # 80 logs each: a look-alike takes at most twice the calls of an NFT transfer.
    assert few < 2 * calls_of(lambda: block_facts(*nfts, RULES))


def icm_erc721(number: int) -> Log:
    """Return an NFT transfer."""
    return Log(
        COIN,
        (icm_logs.topic("Transfer(address,address,uint256)"), word(ANN), word(BOB), word(number)),
    )
