"""Lookups for a message: the transaction, its validity, the height, and the cancellation of
superseded work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256

import pytest

from tests.chains.p_vectors import transaction
from tests.eventually import until
from tests.l1.test_validity import HISTORY, NETWORK_ID, attestation_of, validation_at
from warpseal.l1.errors import TransactionNotFound
from warpseal.l1.heights import PROPOSED, HeightChooser
from warpseal.l1.request import PresentStatement
from warpseal.l1.settings import L1Settings
from warpseal.l1.transactions import TransactionFinder
from warpseal.l1.validity import (
    NO_NODE_ANSWERED,
    Superseded,
    Unknown,
    Valid,
    Validity,
    ValidityLookup,
    cancel_when_superseded,
)
from warpseal.messages.errors import NoMessage, UndecodableTransaction
from warpseal.node.p_chain import FoundTransaction, TxStatus, ValidationAt
from warpseal.store.errors import StoreDown
from warpseal.store.values import L1Transaction, Origin
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID, ValidationID

CHAIN = ChainID(b"\x07" * 32)
SETTINGS = L1Settings(lookup_timeout_s=0.05)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class PChainNodes:
    """P-Chain nodes with the reply_count of a test.

    calls: the number of requests.
    """

    transactions: dict[bytes, FoundTransaction] = field(default_factory=dict)
    on_x_chain: dict[bytes, bytes] = field(default_factory=dict)
    validations: tuple[ValidationAt, ...] = ()
    is_away: bool = False
    hangs: bool = False
    indexed: ValidationAt | None = None
    calls: int = 0

    async def _called(self) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.is_away:
            raise NodeUnavailable("platform")

    async def transaction(self, tx_id: bytes) -> FoundTransaction | None:
        await self._called()
        return self.transactions.get(tx_id)

    async def l1_validator(
        self, validation_id: ValidationID, at_least: int = 0
    ) -> ValidationAt | None:
        await self._called()
        return next((item for item in self.validations if item.height >= at_least), None)

    async def l1_validator_each(self, validation_id: ValidationID) -> tuple[ValidationAt, ...]:
        await self._called()
        return self.validations

    async def indexed_l1_validator(self, validation_id: ValidationID) -> ValidationAt | None:
        return self.indexed


@dataclass
class XChainNodes:
    """X-Chain nodes with the reply_count of a test."""

    raw_transactions: dict[bytes, bytes] = field(default_factory=dict)
    is_away: bool = False

    async def transaction(self, tx_id: bytes) -> bytes | None:
        if self.is_away:
            raise NodeUnavailable("avm.getTx")
        return self.raw_transactions.get(tx_id)


@dataclass
class MemoryIndex:
    """An index of L1 transactions in memory."""

    rows: tuple[L1Transaction, ...] = ()
    is_down: bool = False

    async def transaction(self, tx_id: bytes) -> L1Transaction | None:
        self._check()
        return next((row for row in self.rows if row.tx_id == tx_id), None)

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        self._check()
        return tuple(row for row in self.rows if row.validation_id == validation_id)

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        self._check()
        return None

    async def store_origin(self, origin: Origin, source: str) -> None:
        self._check()

    def _check(self) -> None:
        if self.is_down:
            raise StoreDown("a test")


def build_finder(
    nodes: PChainNodes,
    rows: MemoryIndex | None = None,
    x_chain: XChainNodes | None = None,
    clock: Clock | None = None,
) -> TransactionFinder:
    return TransactionFinder(
        nodes,
        (x_chain or XChainNodes()).transaction,
        rows or MemoryIndex(),
        NETWORK_ID,
        SETTINGS,
        now=clock or Clock(),
    )


def committed(raw: bytes, status: TxStatus = TxStatus.COMMITTED) -> dict[bytes, FoundTransaction]:
    return {sha256(raw).digest(): FoundTransaction(raw, status, 99)}


async def test_a_transaction_is_read_from_the_index_with_its_exact_height_before_any_node() -> None:
    nodes = PChainNodes()
    located = await build_finder(nodes, MemoryIndex((HISTORY.row(HISTORY.first),))).find(
        HISTORY.first.tx_id
    )
    assert (located.height, located.is_exact, located.kind) == (
        HISTORY.first.height,
        True,
        "SetL1ValidatorWeightTx",
    )
    assert located.message().message == attestation_of(HISTORY.first).message
    assert nodes.calls == 0


async def test_a_transaction_is_requested_from_nodes_once_if_the_index_is_down() -> None:
    nodes = PChainNodes(committed(HISTORY.first.raw))
    transactions = build_finder(nodes, MemoryIndex(is_down=True))
    for _ in range(3):
        located = await transactions.find(HISTORY.first.tx_id)
    assert (located.height, located.is_exact) == (99, False)
    assert nodes.calls == 1


@pytest.mark.parametrize(
    "status", [TxStatus.PROCESSING, TxStatus.DROPPED, TxStatus.UNKNOWN, TxStatus.ABORTED]
)
async def test_an_uncommitted_transaction_is_not_found_until_it_is_committed(
    status: TxStatus,
) -> None:
    clock, nodes = Clock(), PChainNodes(committed(HISTORY.first.raw, status))
    transactions = build_finder(nodes, clock=clock)
    for _ in range(2):
        with pytest.raises(TransactionNotFound, match="is not accepted yet") as error:
            await transactions.find(HISTORY.first.tx_id)
        assert error.value.detail["status"] == status.value
    assert nodes.calls == 1
    clock.now, nodes.transactions = 1.5, committed(HISTORY.first.raw)
    assert (await transactions.find(HISTORY.first.tx_id)).attestation is not None


async def test_a_transaction_is_not_found_if_x_chain_nodes_are_unavailable() -> None:
    with pytest.raises(TransactionNotFound, match="is not known to the P-Chain"):
        await build_finder(PChainNodes(), x_chain=XChainNodes(is_away=True)).find(bytes(32))


async def test_unknown_transaction_bytes_raise_an_undecodable_transaction() -> None:
    raw = b"\x00\x00" + (77).to_bytes(4, "big") + bytes(8)
    tx_id = sha256(raw).digest()
    with pytest.raises(UndecodableTransaction):
        await build_finder(PChainNodes(committed(raw))).find(tx_id)
    with pytest.raises(UndecodableTransaction):
        await build_finder(PChainNodes(), x_chain=XChainNodes({tx_id: raw})).find(tx_id)


async def test_a_transaction_without_a_message_is_found() -> None:
    raw = HISTORY.row(HISTORY.removal).raw
    nodes = PChainNodes(committed(raw))
    assert (await build_finder(nodes).find(sha256(raw).digest())).message().needs_origin
    disabled = transaction("DisableL1ValidatorTx")
    located = await build_finder(PChainNodes(committed(disabled))).find(sha256(disabled).digest())
    with pytest.raises(NoMessage):
        located.message()


def build_lookup(
    nodes: PChainNodes, rows: MemoryIndex | None = None, clock: Clock | None = None
) -> ValidityLookup:
    return ValidityLookup(nodes, rows or MemoryIndex(), SETTINGS, now=clock or Clock())


async def test_one_validity_lookup_a_second_serves_all_requests() -> None:
    clock, nodes = Clock(), PChainNodes(validations=(validation_at(9, min_nonce=1, weight=2_000),))
    lookup = build_lookup(nodes, clock=clock)
    outcomes = await asyncio.gather(
        *(lookup.current(attestation_of(HISTORY.first), 5) for _ in range(10))
    )
    assert set(outcomes) == {Valid(9)}
    assert await lookup.current(attestation_of(HISTORY.first), 5) == Valid(9)
    assert nodes.calls == 1
    clock.now = 1.1
    nodes.validations = (validation_at(10, min_nonce=2, weight=3_000),)
    assert isinstance(await lookup.current(attestation_of(HISTORY.first), 5), Superseded)


async def test_a_superseded_message_becomes_valid_only_by_a_node_at_a_greater_height() -> None:
    clock, nodes = Clock(), PChainNodes(validations=(validation_at(9),))
    lookup = build_lookup(nodes, clock=clock)
    assert isinstance(await lookup.current(attestation_of(HISTORY.first), 5), Superseded)
    clock.now, nodes.is_away = 5.0, True
    assert isinstance(await lookup.current(attestation_of(HISTORY.first), 5), Superseded)
    clock.now, nodes.is_away, nodes.validations = (
        10.0,
        False,
        (validation_at(8, min_nonce=1, weight=2_000),),
    )
    assert isinstance(await lookup.current(attestation_of(HISTORY.first), 5), Superseded)
    clock.now, nodes.validations = 12.0, (validation_at(9, min_nonce=1, weight=2_000),)
    assert isinstance(await lookup.current(attestation_of(HISTORY.first), 5), Superseded)
    clock.now, nodes.validations = 15.0, (validation_at(10, min_nonce=1, weight=2_000),)
    assert await lookup.current(attestation_of(HISTORY.first), 5) == Valid(10)


async def test_the_validity_is_unknown_if_nodes_are_unavailable_hang_or_lag() -> None:
    for nodes in (
        PChainNodes(is_away=True),
        PChainNodes(hangs=True),
        PChainNodes(validations=(validation_at(4),)),
    ):
        assert isinstance(
            await build_lookup(nodes).current(attestation_of(HISTORY.first), 5), Unknown
        )
        if not nodes.is_away:
            assert isinstance(
                await build_lookup(nodes).refresh(attestation_of(HISTORY.first), 5), Unknown
            )


async def test_the_index_proves_a_supersession_that_nodes_do_not_know_yet() -> None:
    rows = MemoryIndex((HISTORY.row(HISTORY.second), HISTORY.row(HISTORY.first)))
    for nodes in (
        PChainNodes(validations=(validation_at(9, min_nonce=1, weight=2_000),)),
        PChainNodes(is_away=True),
    ):
        validity = await build_lookup(nodes, rows).current(attestation_of(HISTORY.first), 5)
        assert isinstance(validity, Superseded)
        assert validity.by == HISTORY.second.tx_id
    validity = await build_lookup(PChainNodes(validations=(validation_at(9),)), rows).current(
        attestation_of(HISTORY.first), 5
    )
    assert isinstance(validity, Superseded)
    assert (validity.is_removal, validity.by) == (True, None)


async def test_a_refresh_uses_the_node_with_the_greatest_height() -> None:
    result = (
        validation_at(9, min_nonce=1, weight=2_000),
        validation_at(11, min_nonce=2, weight=3_000),
        validation_at(2),
    )
    validity = await build_lookup(PChainNodes(validations=result)).refresh(
        attestation_of(HISTORY.first), 5
    )
    assert isinstance(validity, Superseded)
    assert validity.now == PresentStatement(nonce="1", weight="3000")


async def test_the_index_states_the_validity_while_nodes_hang() -> None:
    first, registration = attestation_of(HISTORY.first), attestation_of(HISTORY.registration)
    for attestation, indexed, expected in (
        (registration, validation_at(5, weight=9), Valid(5)),
        (registration, validation_at(4, weight=9), NO_NODE_ANSWERED),
        (registration, None, NO_NODE_ANSWERED),
        (first, validation_at(5, min_nonce=1, weight=2_000), Valid(5)),
        (first, validation_at(5, min_nonce=0), NO_NODE_ANSWERED),
    ):
        lookup = build_lookup(PChainNodes(hangs=True, indexed=indexed))
        assert await lookup.current(attestation, 5) == expected
    lookup = build_lookup(PChainNodes(hangs=True, indexed=validation_at(9)))
    assert isinstance(await lookup.current(first, 5), Superseded)
    # Nodes that reply and disagree outweigh the index.
    lookup = build_lookup(PChainNodes(is_away=True, indexed=validation_at(5, weight=9)))
    assert await lookup.current(registration, 5) == NO_NODE_ANSWERED


async def test_the_validity_of_a_conversion_needs_no_request() -> None:
    nodes = PChainNodes(is_away=True)
    assert await build_lookup(nodes).current(attestation_of(HISTORY.conversion), 5) == Valid(None)
    assert await build_lookup(nodes).refresh(attestation_of(HISTORY.conversion), 5) == Valid(None)
    assert nodes.calls == 0


@dataclass
class ChainEpochs:
    """Epoch heights with the reply_count of a test."""

    reply: int | None = None
    is_away: bool = False
    hangs: bool = False
    gate: asyncio.Event | None = None
    reply_count: int = 0
    calls: int = 0

    async def height(self, chain_id: ChainID) -> int | None:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise NodeUnavailable("proposervm.getCurrentEpoch")
        self.reply_count += 1
        return self.reply


async def test_the_height_comes_from_the_request_then_the_epoch_then_the_proposed_height() -> None:
    chooser = HeightChooser(ChainEpochs(77).height, SETTINGS, now=Clock())
    assert await chooser.choose(0, CHAIN) == PROPOSED
    chosen = await chooser.choose(5, CHAIN)
    assert (chosen.height, chosen.source, chosen.is_epoch) == (5, "request", False)
    chosen = await chooser.choose(None, CHAIN)
    assert (chosen.height, chosen.source, chosen.is_epoch) == (77, "epoch", True)
    assert (
        await HeightChooser(ChainEpochs().height, SETTINGS, now=Clock()).choose(None, CHAIN)
        == PROPOSED
    )


async def test_an_unavailable_epoch_is_requested_once_a_second() -> None:
    for epochs in (ChainEpochs(is_away=True), ChainEpochs(hangs=True)):
        clock = Clock()
        chooser = HeightChooser(epochs.height, SETTINGS, now=clock)
        for _ in range(3):
            assert await chooser.choose(None, CHAIN) == PROPOSED
        assert epochs.calls == 1
    clock, epochs = Clock(), ChainEpochs(is_away=True)
    chooser = HeightChooser(epochs.height, SETTINGS, now=clock)
    await chooser.choose(None, CHAIN)
    clock.now, epochs.is_away, epochs.reply = 1.1, False, 5
    assert (await chooser.choose(None, CHAIN)).height == 5


async def test_a_slow_epoch_request_continues_and_serves_the_next_request() -> None:
    clock, epochs = Clock(), ChainEpochs(reply=7, gate=asyncio.Event())
    chooser = HeightChooser(epochs.height, SETTINGS, now=clock)
    assert await chooser.choose(None, CHAIN) == PROPOSED
    assert epochs.gate is not None
    epochs.gate.set()
    await until(lambda: epochs.reply_count == 1)
    clock.now = 0.1
    assert (await chooser.choose(None, CHAIN)).height == 7
    assert epochs.calls == 1


SUPERSEDED = Superseded(PresentStatement(registered=False), None)


async def test_work_is_cancelled_when_its_message_is_superseded() -> None:
    validities: list[Validity] = [Valid(1), Unknown("x"), SUPERSEDED]
    ended = asyncio.Event()

    async def check() -> Validity:
        return validities.pop(0)

    async def sign() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "done"

    assert await cancel_when_superseded(sign(), check, 0.01) is SUPERSEDED
    assert ended.is_set()


async def test_no_check_goes_on_after_the_work() -> None:
    checked = asyncio.Event()

    async def check() -> Validity:
        checked.set()
        return Valid(1)

    assert await cancel_when_superseded(checked.wait(), check, 0.01)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_that_returns_or_raises_first_is_not_checked() -> None:
    checks = 0

    async def check() -> Validity:
        nonlocal checks
        checks += 1
        return SUPERSEDED

    async def sign() -> str:
        await asyncio.sleep(0)
        return "done"

    async def failing() -> str:
        raise NodeUnavailable("x")

    async def timing_out() -> str:
        raise TimeoutError

    assert await cancel_when_superseded(sign(), check, 60) == "done"
    with pytest.raises(NodeUnavailable):
        await cancel_when_superseded(failing(), check, 60)
    with pytest.raises(TimeoutError):
        await cancel_when_superseded(timing_out(), check, 60)
    cancelled = asyncio.create_task(cancel_when_superseded(asyncio.sleep(60), check, 60))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert checks == 0
