"""What stands behind an answer: the transaction, what is true of it, the height; found, over, or unknown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256

import pytest

from tests.chains.p_vectors import transaction
from tests.l1.test_truth import LIFE, NETWORK_ID, at, of
from warpseal.errors import NodeUnavailable, NoMessage, StoreDown, TransactionNotFound, UndecodableTransaction
from warpseal.l1.heights import PROPOSED, HeightChooser
from warpseal.l1.settings import L1Settings
from warpseal.l1.transactions import TransactionFinder
from warpseal.l1.validity import Superseded, Unknown, Valid, Validity
from warpseal.l1.validity_cache import ValidityLookup, cancel_when_superseded
from warpseal.node.limits import CallOrigin
from warpseal.node.p_chain import FoundTransaction, TxStatus, ValidationAt
from warpseal.store.values import L1Transaction, Origin
from warpseal.warp.ids import ChainID, SubnetID, ValidationID

CHAIN = ChainID(b"\x07" * 32)
SETTINGS = L1Settings(lookup_timeout_s=0.05)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Nodes:
    """P-Chain and X-Chain nodes that say what a test wants, and count."""

    found: dict[bytes, FoundTransaction] = field(default_factory=dict)
    on_x_chain: dict[bytes, bytes] = field(default_factory=dict)
    validations: tuple[ValidationAt, ...] = ()
    is_away: bool = False
    hangs: bool = False
    calls: int = 0

    async def _called(self) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.is_away:
            raise NodeUnavailable("platform")

    async def transaction(self, tx_id: bytes) -> FoundTransaction | None:
        await self._called()
        return self.found.get(tx_id)

    async def l1_validator(self, validation_id: ValidationID, at_least: int = 0) -> ValidationAt | None:
        await self._called()
        return next((item for item in self.validations if item.height >= at_least), None)

    async def l1_validator_each(self, validation_id: ValidationID) -> tuple[ValidationAt, ...]:
        await self._called()
        return self.validations

    async def subnets(self) -> tuple[SubnetID, ...]:
        return ()


@dataclass
class XNodes:
    """X-Chain nodes."""

    found: dict[bytes, bytes] = field(default_factory=dict)
    is_away: bool = False

    async def transaction(self, tx_id: bytes) -> bytes | None:
        if self.is_away:
            raise NodeUnavailable("avm.getTx")
        return self.found.get(tx_id)


@dataclass
class Rows:
    """An index in memory."""

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

    async def keep_origin(self, origin: Origin, source: str) -> None:
        self._check()

    def _check(self) -> None:
        if self.is_down:
            raise StoreDown("a test")


def finding(
    nodes: Nodes, rows: Rows | None = None, x_chain: XNodes | None = None, clock: Clock | None = None
) -> TransactionFinder:
    return TransactionFinder(nodes, x_chain or XNodes(), rows or Rows(), NETWORK_ID, SETTINGS, now=clock or Clock())


def committed(raw: bytes, status: TxStatus = TxStatus.COMMITTED) -> dict[bytes, FoundTransaction]:
    return {sha256(raw).digest(): FoundTransaction(raw, status, 99)}


async def test_the_index_answers_before_any_node_and_knows_the_height_exactly() -> None:
    nodes = Nodes()
    located = await finding(nodes, Rows((LIFE.row(LIFE.first),))).find(LIFE.first.tx_id)
    assert (located.height, located.is_exact, located.kind) == (LIFE.first.height, True, "SetL1ValidatorWeightTx")
    assert located.message().message == of(LIFE.first).message
    assert nodes.calls == 0


async def test_without_an_index_nodes_are_asked_once() -> None:
    nodes = Nodes(committed(LIFE.first.raw))
    transactions = finding(nodes, Rows(is_down=True))
    for _ in range(3):
        located = await transactions.find(LIFE.first.tx_id)
    assert (located.height, located.is_exact) == (99, False)
    assert nodes.calls == 1


@pytest.mark.parametrize("status", [TxStatus.PROCESSING, TxStatus.DROPPED, TxStatus.UNKNOWN, TxStatus.ABORTED])
async def test_what_is_not_committed_is_not_found_yet(status: TxStatus) -> None:
    clock, nodes = Clock(), Nodes(committed(LIFE.first.raw, status))
    transactions = finding(nodes, clock=clock)
    for _ in range(2):
        with pytest.raises(TransactionNotFound) as caught:
            await transactions.find(LIFE.first.tx_id)
        assert caught.value.detail()["status"] == status.value
    assert nodes.calls == 1
    clock.now, nodes.found = 1.5, committed(LIFE.first.raw)
    assert (await transactions.find(LIFE.first.tx_id)).attestation is not None


async def test_x_chain_nodes_that_are_away_are_no_fault() -> None:
    with pytest.raises(TransactionNotFound):
        await finding(Nodes(), x_chain=XNodes(is_away=True)).find(bytes(32))


async def test_bytes_that_nobody_can_read_are_told_as_such() -> None:
    raw = b"\x00\x00" + (77).to_bytes(4, "big") + bytes(8)
    tx_id = sha256(raw).digest()
    with pytest.raises(UndecodableTransaction):
        await finding(Nodes(committed(raw))).find(tx_id)
    with pytest.raises(UndecodableTransaction):
        await finding(Nodes(), x_chain=XNodes({tx_id: raw})).find(tx_id)


async def test_a_transaction_without_a_message_is_kept_like_one_with_it() -> None:
    raw = LIFE.row(LIFE.removal).raw
    nodes = Nodes(committed(raw))
    assert (await finding(nodes).find(sha256(raw).digest())).message().needs_origin
    disabled = transaction("DisableL1ValidatorTx")
    located = await finding(Nodes(committed(disabled))).find(sha256(disabled).digest())
    with pytest.raises(NoMessage):
        located.message()


def looking(nodes: Nodes, rows: Rows | None = None, clock: Clock | None = None) -> ValidityLookup:
    return ValidityLookup(nodes, rows or Rows(), SETTINGS, now=clock or Clock())


async def test_one_look_a_second_serves_all() -> None:
    clock, nodes = Clock(), Nodes(validations=(at(9, min_nonce=1, weight=2_000),))
    truths = looking(nodes, clock=clock)
    outcomes = await asyncio.gather(*(truths.current(of(LIFE.first), 5) for _ in range(10)))
    assert set(outcomes) == {Valid(9)}
    assert nodes.calls == 1
    clock.now = 1.1
    nodes.validations = (at(10, min_nonce=2, weight=3_000),)
    assert isinstance(await truths.current(of(LIFE.first), 5), Superseded)


async def test_what_was_superseded_stays_so_for_nodes_that_know_less() -> None:
    clock, nodes = Clock(), Nodes(validations=(at(9),))
    truths = looking(nodes, clock=clock)
    assert isinstance(await truths.current(of(LIFE.first), 5), Superseded)
    clock.now, nodes.is_away = 5.0, True
    assert isinstance(await truths.current(of(LIFE.first), 5), Superseded)
    clock.now, nodes.is_away, nodes.validations = 10.0, False, (at(8, min_nonce=1, weight=2_000),)
    assert isinstance(await truths.current(of(LIFE.first), 5), Superseded)
    clock.now, nodes.validations = 15.0, (at(10, min_nonce=1, weight=2_000),)
    assert await truths.current(of(LIFE.first), 5) == Valid(10)


async def test_nodes_that_are_away_hang_or_lag_leave_it_unknown() -> None:
    for nodes in (Nodes(is_away=True), Nodes(hangs=True), Nodes(validations=(at(4),))):
        assert isinstance(await looking(nodes).current(of(LIFE.first), 5), Unknown)
        if not nodes.is_away:
            assert isinstance(await looking(nodes).refresh(of(LIFE.first), 5), Unknown)


async def test_the_index_proves_what_nodes_do_not_know_yet() -> None:
    rows = Rows((LIFE.row(LIFE.second), LIFE.row(LIFE.first)))
    for nodes in (Nodes(validations=(at(9, min_nonce=1, weight=2_000),)), Nodes(is_away=True)):
        truth = await looking(nodes, rows).current(of(LIFE.first), 5)
        assert isinstance(truth, Superseded)
        assert truth.by == LIFE.second.tx_id
    truth = await looking(Nodes(validations=(at(9),)), rows).current(of(LIFE.first), 5)
    assert isinstance(truth, Superseded)
    assert (truth.is_removal, truth.by) == (True, None)


async def test_asked_again_the_node_that_knows_most_outdoes_the_others() -> None:
    result = (at(9, min_nonce=1, weight=2_000), at(11, min_nonce=2, weight=3_000), at(2))
    truth = await looking(Nodes(validations=result)).refresh(of(LIFE.first), 5)
    assert isinstance(truth, Superseded)
    assert truth.now == {"nonce": "1", "weight": "3000"}


async def test_a_conversion_asks_nobody() -> None:
    nodes = Nodes(is_away=True)
    assert await looking(nodes).current(of(LIFE.conversion), 5) == Valid(None)
    assert await looking(nodes).refresh(of(LIFE.conversion), 5) == Valid(None)
    assert nodes.calls == 0


@dataclass
class ChainEpochs:
    """Epochs as a test wants them."""

    answer: int | None = None
    is_away: bool = False
    hangs: bool = False
    slow_s: float = 0.0
    calls: int = 0

    async def height(self, chain_id: ChainID, origin: CallOrigin = CallOrigin.CALLER) -> int | None:
        self.calls += 1
        await asyncio.sleep(60 if self.hangs else self.slow_s)
        if self.is_away:
            raise NodeUnavailable("proposervm.getCurrentEpoch")
        return self.answer


async def test_the_request_wins_then_the_epoch_then_the_proposed_height() -> None:
    chooser = HeightChooser(ChainEpochs(77), SETTINGS, now=Clock())
    assert await chooser.choose(0, CHAIN) == PROPOSED
    chosen = await chooser.choose(5, CHAIN)
    assert (chosen.height, chosen.source, chosen.is_epoch) == (5, "request", False)
    chosen = await chooser.choose(None, CHAIN)
    assert (chosen.height, chosen.source, chosen.is_epoch) == (77, "epoch", True)
    assert await HeightChooser(ChainEpochs(), SETTINGS, now=Clock()).choose(None, CHAIN) == PROPOSED


async def test_an_epoch_that_cannot_be_had_is_asked_for_once_a_second() -> None:
    for epochs in (ChainEpochs(is_away=True), ChainEpochs(hangs=True)):
        clock = Clock()
        chooser = HeightChooser(epochs, SETTINGS, now=clock)
        for _ in range(3):
            assert await chooser.choose(None, CHAIN) == PROPOSED
        assert epochs.calls == 1
    clock, epochs = Clock(), ChainEpochs(is_away=True)
    chooser = HeightChooser(epochs, SETTINGS, now=clock)
    await chooser.choose(None, CHAIN)
    clock.now, epochs.is_away, epochs.answer = 1.1, False, 5
    assert (await chooser.choose(None, CHAIN)).height == 5


async def test_a_question_that_takes_long_is_not_given_up() -> None:
    clock, epochs = Clock(), ChainEpochs(answer=7, slow_s=0.2)
    chooser = HeightChooser(epochs, SETTINGS, now=clock)
    assert await chooser.choose(None, CHAIN) == PROPOSED
    await asyncio.sleep(0.4)
    clock.now = 0.1
    assert (await chooser.choose(None, CHAIN)).height == 7
    assert epochs.calls == 1


SUPERSEDED = Superseded({"registered": False}, None)


async def test_a_watch_ends_work_whose_point_is_gone() -> None:
    truths: list[Validity] = [Valid(1), Unknown("x"), SUPERSEDED]
    ended = asyncio.Event()

    async def look() -> Validity:
        return truths.pop(0)

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "done"

    assert await cancel_when_superseded(work(), look, 0.01) is SUPERSEDED
    assert ended.is_set()


async def test_a_watch_leaves_work_alone_that_is_quick_or_fails() -> None:
    looks = 0

    async def look() -> Validity:
        nonlocal looks
        looks += 1
        return SUPERSEDED

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def failing() -> str:
        raise NodeUnavailable("x")

    async def timing_out() -> str:
        raise TimeoutError

    assert await cancel_when_superseded(work(), look, 60) == "done"
    with pytest.raises(NodeUnavailable):
        await cancel_when_superseded(failing(), look, 60)
    with pytest.raises(TimeoutError):
        await cancel_when_superseded(timing_out(), look, 60)
    asked = asyncio.create_task(cancel_when_superseded(asyncio.sleep(60), look, 60))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert looks == 0
