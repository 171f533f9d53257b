"""The aggregator over a network in memory, with validators that sign or misbehave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from random import Random
from time import perf_counter
from typing import Any

from tests.aggregation.virtual_time import InlineExecutor, now, run
from warpseal import bls
from warpseal.aggregation.interfaces import ShareArchive, SigningCheck
from warpseal.aggregation.service import AggregationRequest, SignatureAggregator
from warpseal.aggregation.settings import AggregationSettings
from warpseal.bls import PublicKey, SecretKey
from warpseal.node.p_chain import CurrentValidation, Subnet
from warpseal.peers.statistics import Unreachable
from warpseal.protocol.requests import PeerRequest, PeerResponse
from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import HeightTooOld, UnknownChain, UnknownSubnet
from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    MessageID,
    NodeID,
    SubnetID,
    ValidationID,
    id_text,
)
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal.warp.quorum_shortfall import DisconnectedNode
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set

NETWORK_ID = 88888
HEIGHT = 100
CHAIN = ChainID(sha256(b"chain").digest())
SUBNET = SubnetID(sha256(b"subnet").digest())

Script = Callable[["SentRequest"], Iterable[tuple[float, PeerResponse]]]
"""What a node does when asked: answers with the seconds after which they come."""
# The aggregation does not read the request of a response.
_REQUEST = PeerRequest(
    CHAIN, 1, b"", 0.0, is_reask=False, on_response=lambda response: None, requested_at=0.0
)


@cache
def secret(number: int) -> SecretKey:
    """Return the same key for the same number, always."""
    return bls.generate_secret(sha256(b"key %d" % number).digest())


@cache
def public_key(number: int) -> bytes:
    """Return the 48 bytes of a key."""
    return bls.public_key_bytes(bls.derive_public_key(secret(number)))


@cache
def parsed_key(raw: bytes) -> PublicKey:
    """Return a parsed key."""
    return bls.parse_public_key(raw)


@cache
def signature(number: int, message: bytes) -> bytes:
    """Return the share of a key over a message."""
    return bls.sign(secret(number), message)


def node(number: int) -> NodeID:
    """Return a node id."""
    return NodeID(number.to_bytes(20, "big"))


def message(text: bytes = b"hello", chain: ChainID = CHAIN) -> UnsignedMessage:
    """Return a message of an EVM chain."""
    return UnsignedMessage.build(NETWORK_ID, chain, AddressedCall(bytes(20), text).encode())


def members(weights: Sequence[int], keyless: int = 0) -> CanonicalValidatorSet:
    """Return a set in which key and node n + 1 have the nth weight."""
    entries: list[tuple[NodeID, bytes | None, int]] = [
        (node(number), public_key(number), weight) for number, weight in enumerate(weights, 1)
    ]
    if keyless:
        entries.append((NodeID(bytes(20)), None, keyless))
    return build_canonical_set(entries)


def index_of(validators: CanonicalValidatorSet, number: int) -> int:
    """Return the canonical index of key `number`."""
    index = validators.index_of_key(public_key(number))
    assert index is not None
    return index


@dataclass(frozen=True)
class SentRequest:
    """One request to one node.

    times: number of earlier requests to the node.
    """

    node_id: NodeID
    number: int
    message: bytes
    times: int
    at: float

    def share(self, raw: bytes) -> PeerResponse:
        """Return a response that carries a share."""
        return PeerResponse(self.node_id, b"\x0a\x60" + raw, None, "", _REQUEST)

    def body(self, raw: bytes) -> PeerResponse:
        """Return a response of raw app bytes."""
        return PeerResponse(self.node_id, raw, None, "", _REQUEST)

    def refusal(self, code: int, text: str = "no") -> PeerResponse:
        """Return a refusal."""
        return PeerResponse(self.node_id, None, code, text, _REQUEST)


def signs(after_s: float = 0.0) -> Script:
    """Sign, after a while."""
    return lambda ask: [(after_s, ask.share(signature(ask.number, ask.message)))]


def signs_from(at: float, code: int = 1) -> Script:
    """Refuse until a moment, then sign."""
    good = signs()
    return lambda ask: good(ask) if ask.at >= at else [(0.0, ask.refusal(code))]


def refuses(code: int, text: str = "no", after_s: float = 0.0) -> Script:
    """Refuse with a code."""
    return lambda ask: [(after_s, ask.refusal(code, text))]


def silent(ask: SentRequest) -> Iterable[tuple[float, PeerResponse]]:
    """Never answer."""
    return []


def empty(ask: SentRequest) -> Iterable[tuple[float, PeerResponse]]:
    """Answer with nothing."""
    return [(0.0, ask.body(b""))]


def garbage(ask: SentRequest) -> Iterable[tuple[float, PeerResponse]]:
    """Answer with bytes that are no share."""
    return [(0.0, ask.body(b"\x0a\x05hello"))]


def off_curve(ask: SentRequest) -> Iterable[tuple[float, PeerResponse]]:
    """Answer with 96 bytes that are no point."""
    return [(0.0, ask.share(b"\x80" + b"\xfe" * 95))]


def wrong(after_s: float = 0.0) -> Script:
    """Sign something else."""
    return lambda ask: [(after_s, ask.share(signature(ask.number, b"something else")))]


def of_another(other: int) -> Script:
    """Answer with the share of another validator."""
    return lambda ask: [(0.0, ask.share(signature(other, ask.message)))]


class _OpenRequest:
    def __init__(self, deadline: float) -> None:
        self.is_closed = False
        self._deadline = deadline

    def extend(self, deadline: float) -> None:
        self._deadline = max(self._deadline, deadline)

    def close(self) -> None:
        self.is_closed = True

    def deliver(self, on_response: Callable[[PeerResponse], None], response: PeerResponse) -> None:
        if not self.is_closed and asyncio.get_running_loop().time() < self._deadline:
            on_response(response)


@dataclass
class Network:
    """The peer network in memory.

    scripts: script by number of the node; a node without a script signs at once.
    capacity: unanswered requests from which on a node is congested; None: it never is.
    """

    scripts: dict[int, Script] = field(default_factory=dict)
    disconnected: set[NodeID] = field(default_factory=set)
    unreachable_nodes: dict[NodeID, Unreachable] = field(default_factory=dict)
    asks: list[tuple[float, tuple[int, ...], bool]] = field(default_factory=list)
    open_requests: list[_OpenRequest] = field(default_factory=list)
    redialled: list[NodeID] = field(default_factory=list)
    connections: dict[NodeID, DisconnectedNode] = field(default_factory=dict)
    started_s_ago: float = 3_600.0
    app_bytes: list[bytes] = field(default_factory=list)
    next_dial_at: float | None = None
    capacity: int | None = None
    _times: dict[tuple[NodeID, bytes], int] = field(default_factory=dict)
    _unanswered: Counter[NodeID] = field(default_factory=Counter)
    _listeners: list[Callable[[NodeID, bool], None]] = field(default_factory=list)

    def is_connected(self, node_id: NodeID) -> bool:
        return node_id not in self.disconnected

    def is_congested(self, node_id: NodeID) -> bool:
        return self.capacity is not None and self._unanswered[node_id] >= self.capacity

    def unreachable(self, node_id: NodeID, subnet_id: SubnetID) -> Unreachable | None:
        return None if self.is_connected(node_id) else self.unreachable_nodes.get(node_id)

    def missing_connection(self, node_id: NodeID) -> DisconnectedNode | None:
        return self.connections.get(node_id)

    def running_s(self) -> float:
        return self.started_s_ago

    def redial_soon(self, node_ids: Iterable[NodeID]) -> float | None:
        self.redialled += node_ids
        return self.next_dial_at

    def ask(
        self,
        node_ids: Iterable[NodeID],
        chain_id: ChainID,
        app_bytes: bytes,
        *,
        deadline: float,
        is_reask: bool,
        on_response: Callable[[PeerResponse], None],
    ) -> _OpenRequest:
        loop = asyncio.get_running_loop()
        opened = _OpenRequest(deadline)
        self.open_requests.append(opened)
        self.app_bytes.append(app_bytes)
        numbers = tuple(int.from_bytes(node_id, "big") for node_id in node_ids)
        self.asks.append((loop.time(), numbers, is_reask))
        for number in numbers:
            if self.is_connected(node(number)):
                self._respond(number, app_bytes, opened, on_response)
        return opened

    def subscribe(self, listener: Callable[[NodeID, bool], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def connect(self, number: int) -> None:
        """A handshake is finished."""
        self.disconnected.discard(node(number))
        for listener in tuple(self._listeners):
            listener(node(number), True)

    def disconnect(self, number: int) -> None:
        """A connection is lost."""
        self.disconnected.add(node(number))
        for listener in tuple(self._listeners):
            listener(node(number), False)

    @property
    def is_quiet(self) -> bool:
        """Whether no round listens and every request was closed."""
        return not self._listeners and all(ask.is_closed for ask in self.open_requests)

    def asked_numbers(self) -> list[int]:
        """Return everyone who was asked, in order, repetitions included."""
        return [number for _, numbers, _ in self.asks for number in numbers]

    def _respond(
        self,
        number: int,
        app_bytes: bytes,
        opened: _OpenRequest,
        on_response: Callable[[PeerResponse], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        raw = _message_in(app_bytes)
        key = (node(number), app_bytes)
        ask = SentRequest(node(number), number, raw, self._times.get(key, 0), loop.time())
        self._times[key] = ask.times + 1
        for after_s, response in self.scripts.get(number, signs())(ask):
            self._unanswered[node(number)] += 1
            loop.call_later(after_s, self._deliver, opened, on_response, response)

    def _deliver(
        self,
        opened: _OpenRequest,
        on_response: Callable[[PeerResponse], None],
        response: PeerResponse,
    ) -> None:
        self._unanswered[response.node_id] -= 1
        opened.deliver(on_response, response)


def _message_in(app_bytes: bytes) -> bytes:
    """Return field 1 of a signature request; its length is a varint of one or two bytes."""
    assert app_bytes[:2] == b"\x02\x0a"
    length, start = app_bytes[2], 3
    if length & 0x80:
        length, start = length & 0x7F | app_bytes[3] << 7, 4
    return app_bytes[start : start + length]


@dataclass
class Sets:
    """Validator sets.

    by_height: sets of SUBNET by height.
    others: sets of other subnets.
    """

    latest: CanonicalValidatorSet
    by_height: dict[int, CanonicalValidatorSet] = field(default_factory=dict)
    others: dict[SubnetID, CanonicalValidatorSet] = field(default_factory=dict)
    oldest: int = 0
    calls: list[tuple[SubnetID, int, bool, bool]] = field(default_factory=list)
    hangs: bool = False

    async def at(
        self, subnet_id: SubnetID, height: int, *, is_chosen: bool, epoch: bool = False
    ) -> CanonicalValidatorSet:
        self.calls.append((subnet_id, height, is_chosen, epoch))
        if self.hangs:
            await asyncio.Event().wait()
        if is_chosen and not epoch and height < self.oldest:
            raise HeightTooOld(height, self.oldest, 1)
        if subnet_id in self.others:
            return self.others[subnet_id]
        return self.by_height.get(height, self.latest)

    def cached_set(self, subnet_id: SubnetID, height: int) -> CanonicalValidatorSet | None:
        return None if self.hangs else self.by_height.get(height)

    def keys_of(self, validators: CanonicalValidatorSet) -> tuple[PublicKey, ...]:
        return tuple(parsed_key(validator.public_key) for validator in validators.validators)


@dataclass
class Chains:
    """Chains and subnets that exist."""

    subnet_by_chain: dict[ChainID, SubnetID] = field(
        default_factory=lambda: {CHAIN: SUBNET, P_CHAIN: PRIMARY_NETWORK}
    )
    subnets: dict[SubnetID, Subnet] = field(default_factory=lambda: {SUBNET: Subnet(SUBNET)})
    validations: dict[ValidationID, SubnetID] = field(default_factory=dict)

    def cached_subnet_of(self, chain_id: ChainID) -> SubnetID | None:
        return self.subnet_by_chain.get(chain_id)

    async def subnet_of(self, chain_id: ChainID) -> SubnetID:
        if chain_id not in self.subnet_by_chain:
            raise UnknownChain(id_text(chain_id))
        return self.subnet_by_chain[chain_id]

    async def subnet(self, subnet_id: SubnetID) -> Subnet:
        if subnet_id not in self.subnets:
            raise UnknownSubnet(id_text(subnet_id))
        return self.subnets[subnet_id]

    async def subnet_of_validation(self, validation_id: ValidationID) -> SubnetID | None:
        return self.validations.get(validation_id)

    async def blockchains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        return tuple(chain for chain, subnet in self.subnet_by_chain.items() if subnet == subnet_id)


@dataclass
class Epochs:
    """Current epoch heights by chain."""

    heights: dict[ChainID, int] = field(default_factory=dict)

    async def any_at(self, height: int, chain_ids: Iterable[ChainID]) -> bool:
        return any(self.heights.get(chain_id) == height for chain_id in chain_ids)


@dataclass
class Heights:
    """The proposed height; None: no node answers."""

    height: int | None = HEIGHT

    @property
    def is_fresh(self) -> bool:
        return self.height is not None

    def current(self) -> int:
        if self.height is None:
            raise NodeUnavailable("the proposed height")
        return self.height

    async def first(self) -> int:
        return self.current()


@dataclass
class Activity:
    """The inactive validators, known immediately or when a test says so."""

    nodes: frozenset[NodeID] = frozenset()
    validations: tuple[CurrentValidation, ...] | None = ()
    list_event: asyncio.Event | None = None
    watched: int = 0

    @contextmanager
    def watch(self, subnet_id: SubnetID) -> Iterator[None]:
        self.watched += 1
        try:
            yield
        finally:
            self.watched -= 1

    def inactive(self, subnet_id: SubnetID) -> frozenset[NodeID]:
        return self.nodes

    def underfunded(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...] | None:
        return (
            None
            if self.list_event is not None and not self.list_event.is_set()
            else self.validations
        )

    def current(self, subnet_id: SubnetID) -> tuple[CurrentValidation, ...]:
        return self.underfunded(subnet_id) or ()

    def is_ready(self, subnet_id: SubnetID) -> bool:
        return self.list_event is None

    async def ready(self, subnet_id: SubnetID) -> None:
        if self.list_event is not None:
            await self.list_event.wait()


@dataclass
class TrackedSubnets:
    """Which subnets are in use."""

    used: list[SubnetID] = field(default_factory=list)
    in_use: int = 0

    @contextmanager
    def track(self, subnet_id: SubnetID, validators: CanonicalValidatorSet) -> Iterator[None]:
        self.used.append(subnet_id)
        self.in_use += 1
        try:
            yield
        finally:
            self.in_use -= 1


@dataclass
class Metrics:
    """What was reported."""

    aggregations: list[tuple[str, Mapping[str, float]]] = field(default_factory=list)
    bad_shares: list[str] = field(default_factory=list)
    reissued: int = 0

    def observe_aggregation(
        self, outcome: str, stages: Mapping[str, float], trace_id: str = ""
    ) -> None:
        self.aggregations.append((outcome, stages))

    def count_bad_share(self, node_ids: Iterable[str]) -> None:
        self.bad_shares += node_ids

    def count_reissued_message(self) -> None:
        self.reissued += 1


class EmptyArchive:
    """An archive that stores nothing."""

    def may_hold(self, message_id: MessageID) -> bool:
        return False

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        return ArchiveEntry()

    def store_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None:
        pass

    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        pass

    async def store_signature(
        self, message: UnsignedMessage, signed: StoredSignature, signing_subnet_id: SubnetID
    ) -> None:
        pass

    def pin(self, message: UnsignedMessage) -> None:
        pass

    async def unverified(
        self, limit: int
    ) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
        return ()

    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        pass


class AggregatorSetup:
    """The service with everything around it in memory."""

    def __init__(
        self,
        validators: CanonicalValidatorSet,
        settings: AggregationSettings | None = None,
        seed: int = 0,
        archive: ShareArchive | None = None,
    ) -> None:
        self.members = validators
        self.network = Network()
        self.heights = Heights()
        self.sets = Sets(validators)
        self.chains = Chains()
        self.epochs = Epochs()
        self.activity = Activity()
        self.tracked = TrackedSubnets()
        self.metrics = Metrics()
        self.archive = EmptyArchive() if archive is None else archive
        self.service = self.build_service(settings, random=Random(seed), clock=now)

    def build_service(
        self,
        settings: AggregationSettings | None = None,
        *,
        check_allowed: SigningCheck = lambda message, subnet_id: None,
        executor: Executor | None = None,
        random: Random | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> SignatureAggregator:
        """Return a service over this world; without `executor` its checks run at once."""
        return SignatureAggregator(
            network_id=NETWORK_ID,
            settings=settings or AggregationSettings(),
            heights=self.heights,
            epochs=self.epochs,
            sets=self.sets,
            chains=self.chains,
            peers=self.network,
            tracker=self.tracked,
            activity=self.activity,
            archive=self.archive,
            metrics=self.metrics,
            check_allowed=check_allowed,
            executor=executor or InlineExecutor(),
            random=random,
            clock=clock,
        )


@asynccontextmanager
async def leaves_nothing_open(setup: AggregatorSetup) -> AsyncIterator[AggregatorSetup]:
    """Assert that the requests of the block leave nothing behind."""
    yield setup
    for _ in range(5):
        await asyncio.sleep(0)
    assert setup.network.is_quiet
    assert setup.activity.watched == 0
    assert setup.tracked.in_use == 0
    assert not setup.service._rounds._open


def run_steps(
    setup: AggregatorSetup, steps: Callable[[AggregatorSetup], Coroutine[Any, Any, None]]
) -> None:
    """Run the steps of a test in virtual time; they must leave nothing open."""

    async def main() -> None:
        async with leaves_nothing_open(setup):
            await steps(setup)

    run(main())


def request(
    quorum: int = 67,
    buffer: int = 0,
    *,
    about: UnsignedMessage | None = None,
    justification: bytes = b"",
    signing_subnet_id: SubnetID | None = None,
    height: int | None = None,
    timeout_s: float | None = None,
    is_epoch_height: bool = False,
    is_pinned: bool = False,
    stored_only: bool = False,
) -> AggregationRequest:
    """Return a request for the usual message unless another is given."""
    return AggregationRequest(
        message=message() if about is None else about,
        justification=justification,
        signing_subnet_id=signing_subnet_id,
        quorum=quorum,
        buffer=buffer,
        height=height,
        timeout_s=timeout_s,
        is_epoch_height=is_epoch_height,
        is_pinned=is_pinned,
        stored_only=stored_only,
    )
