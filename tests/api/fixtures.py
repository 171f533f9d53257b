"""The API with a scripted aggregation: real servers on loopback and raw connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import aiohttp
import msgspec
from starlette.types import ASGIApp

from tests.eventually import TIMEOUT_S
from tests.ops.health.subnets import FakeSubnets
from warpseal.aggregation.service import Aggregation, AggregationRequest, SignedRequest
from warpseal.api.data.endpoint_needs import EndpointNeeds
from warpseal.api.data.routes import DataApi
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.http.allowed_hosts import AllowedHosts
from warpseal.api.http.listener import Listener
from warpseal.api.http.server import HttpServer
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.routes import api_app
from warpseal.api.signing.endpoints import AggregatorEndpoints
from warpseal.api.signing.signing_service import SigningService
from warpseal.api.status.document import StatusDocument
from warpseal.api.status.endpoints import StatusEndpoints
from warpseal.api.status.probe_bodies import BackgroundState, ReadyFields, StoreState
from warpseal.api.status.probes import ProbeEndpoints
from warpseal.delivery.destination import DestinationEpoch
from warpseal.delivery.preflight import PreflightAnswer, PreflightRequest
from warpseal.delivery.report import (
    DeliveryAdvice,
    DestinationQuorum,
    DestinationReport,
    HeightLabel,
    WeightAtHeight,
)
from warpseal.delivery.request import (
    Delivery,
    DeliveryRequest,
    L1DeliveryRequest,
    NextSignedMessage,
)
from warpseal.errors import WarpsealError
from warpseal.l1.explain import ExplainedTransaction, Explanation
from warpseal.l1.request import L1Request, L1SignedMessage
from warpseal.metrics.registry import Metrics
from warpseal.ops.health.chains import STALE_HEIGHT
from warpseal.ops.health.checks import quorum_check
from warpseal.ops.health.registry import HealthCheck, HealthRegistry
from warpseal.ops.settings import HealthSettings
from warpseal.resources.chains import PrimaryChains
from warpseal.resources.progress import FollowerState
from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, MessageID, NodeID, SubnetID, id_text
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.quorum_shortfall import DisconnectedNode, MissingSigner, QuorumShortfall, Verdict
from warpseal.warp.validator_set import CanonicalValidatorSet

NETWORK_ID = 88888
METRICS_PORT = 8_181
EMPTY_STATUS = StatusDocument("1.0", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", ready=True)
MESSAGE = UnsignedMessage.build(
    NETWORK_ID, ChainID(bytes(range(32))), b"\x00\x00\x00\x00\x00\x00" + bytes(32)
)
SUBNET = SubnetID(bytes(range(32, 64)))
SIGNED = MESSAGE.raw + bytes(4) + b"\x00\x00\x00\x01\x01" + b"\xc0" + bytes(95)
V1 = "/v1/signatureAggregator/fuji/aggregateSignatures"
KEBAB = "/aggregate-signatures"
SETTINGS = ApiSettings(api_host="127.0.0.1", api_port=0, metrics_port=0, grace_period_s=5.0)


DESTINATION = ChainID(bytes(range(64, 96)))
CHAINS = PrimaryChains(x=ChainID(bytes([88]) * 32), c=ChainID(bytes([67]) * 32))
_HEIGHTS: tuple[tuple[HeightLabel, str, str, bool], ...] = (
    ("current", "18", "870", True),
    ("next", "19", "500", False),
    ("proposed", "19", "500", False),
)
REPORT = DestinationReport(
    destination_blockchain_id=id_text(DESTINATION),
    signing_subnet_id=id_text(SUBNET),
    signed_by="source",
    p_chain_height="18",
    p_chain_height_source="epoch",
    quorum=DestinationQuorum(percentage=80, source="genesis"),
    heights=tuple(
        WeightAtHeight(
            epoch=epoch,
            p_chain_height=height,
            signed_weight=weight,
            required_weight="800",
            total_weight="1000",
            verifies=verifies,
        )
        for epoch, height, weight, verifies in _HEIGHTS
    ),
    epoch=DestinationEpoch(
        number=30, start_time=1_795_226_806, p_chain_height="18", sealed_from=1_795_227_106
    ),
    verifies_now=True,
    serves_next=False,
    advice=DeliveryAdvice(
        pinned_height="18",
        needed_height="19",
        blocks_before=1,
        not_before=1_795_227_106,
        text="build one block there",
    ),
)


def aggregation(signed: bytes = SIGNED) -> Aggregation:
    """A response of the service."""
    return Aggregation(signed, 19, SUBNET, False, 3, CanonicalValidatorSet((), 3), 3)


def shortfall(verdict: Verdict, retry_after_s: float | None = None) -> QuorumShortfall:
    """What the service says when weight is missing."""
    missing = MissingSigner(
        node_ids=("NodeID-111111111111111111116DBWJs",),
        weight="40",
        reason="refused",
        public_key="0x" + "80" * 48,
        error_code=6,
        error_message="no",
    )
    return QuorumShortfall(
        verdict, 60, 67, 100, 19, "subnet", {"refused": 1}, (missing,), retry_after_s
    )


@dataclass
class ScriptedAggregator:
    """Returns the given reply, and records its requests."""

    act: Callable[[AggregationRequest], Awaitable[Aggregation]] | None = None
    requests: list[AggregationRequest] = field(default_factory=list)
    first_signed: SignedRequest | None = None

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        self.requests.append(request)
        return aggregation() if self.act is None else await self.act(request)


class EndlessAggregation:
    """An aggregation that goes on until its request is cancelled."""

    def __init__(self) -> None:
        self.started, self.cancelled = asyncio.Event(), asyncio.Event()

    async def aggregate(self, request: AggregationRequest) -> Aggregation:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError("nothing ends the wait")


@dataclass
class ScriptedL1Messages:
    """Returns the given reply about transactions, and records its requests."""

    message: L1SignedMessage = field(
        default_factory=lambda: L1SignedMessage(SIGNED, 19, "epoch", SUBNET, cached=True)
    )
    error: WarpsealError | None = None
    requests: list[L1Request] = field(default_factory=list)

    async def get(self, request: L1Request) -> L1SignedMessage:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return self.message


@dataclass
class ScriptedDeliveries:
    """Returns the given report with a signed message, and records its requests."""

    report: DestinationReport = REPORT
    next: NextSignedMessage | None = None
    error: WarpsealError | None = None
    requests: list[DeliveryRequest] = field(default_factory=list)
    l1_requests: list[L1DeliveryRequest] = field(default_factory=list)
    explained: list[L1DeliveryRequest] = field(default_factory=list)

    async def sign(self, request: DeliveryRequest) -> Delivery[Aggregation]:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return Delivery(
            aggregation(), self.report, self.report.headers(), request.wants_report, self.next
        )

    async def sign_l1(self, request: L1DeliveryRequest) -> Delivery[L1SignedMessage]:
        self.l1_requests.append(request)
        if self.error is not None:
            raise self.error
        signed = L1SignedMessage(SIGNED, 19, "epoch", SUBNET, cached=True)
        return Delivery(signed, self.report, self.report.headers(), request.wants_report, self.next)

    async def explain_l1(self, request: L1DeliveryRequest) -> Explanation:
        self.explained.append(request)
        return Explanation(transaction=ExplainedTransaction(tx_hash="a"), checks=(), failing=None)


BACKGROUND = BackgroundState(
    store=StoreState(url="sqlite:///store.db", up=True), follower=FollowerState(off=True)
)
PRIMARY_TEXT = id_text(PRIMARY_NETWORK)
PREFLIGHT: Mapping[str, Any] = {
    "verifiesNow": True,
    "verifiesAt": ["current"],
    "messageId": PRIMARY_TEXT,
    "networkId": NETWORK_ID,
    "sourceBlockchainId": PRIMARY_TEXT,
    "destination": {
        "destinationBlockchainId": PRIMARY_TEXT,
        "pChainHeight": "19",
        "pChainHeightSource": "epoch",
        "quorum": {"percentage": 67, "source": "default"},
    },
    "heights": [{"epoch": "current", "pChainHeight": "19", "verifies": True}],
    "statement": {"kind": "AddressedCall", "accepted": None, "text": "no node can tell"},
}
PREFLIGHT_BODY = msgspec.convert(PREFLIGHT, PreflightAnswer)


@dataclass
class ScriptedPreflight:
    """Returns the given response about signed messages, and records its requests."""

    act: Callable[[PreflightRequest], Awaitable[PreflightAnswer]] | None = None
    requests: list[PreflightRequest] = field(default_factory=list)

    async def check(self, request: PreflightRequest) -> PreflightAnswer:
        self.requests.append(request)
        return PREFLIGHT_BODY if self.act is None else await self.act(request)


@dataclass
class ScriptedReadiness:
    """A given readiness of subnets and of the proposed height."""

    subnets: Sequence[SubnetReadiness] = (SubnetReadiness(PRIMARY_NETWORK, True, 67, 100, ()),)
    is_fresh: bool = True
    connections: Mapping[NodeID, DisconnectedNode] = field(default_factory=dict)
    underfunded_validators: Mapping[SubnetID, Sequence[MissingSigner]] = field(default_factory=dict)

    def readiness(self) -> Sequence[SubnetReadiness]:
        return self.subnets

    def missing_connection(self, node_id: NodeID) -> DisconnectedNode | None:
        return self.connections.get(node_id)

    def underfunded(self, subnet_id: SubnetID) -> Sequence[MissingSigner]:
        return self.underfunded_validators.get(subnet_id, ())


class StoredMessages:
    """A store with one message."""

    async def find_message(self, message_id: MessageID) -> UnsignedMessage | None:
        return MESSAGE if message_id == MESSAGE.id else None


class CountingNodes:
    """Nodes that know the primary chains, and count the calls."""

    def __init__(self) -> None:
        self.chain_lookups = 0

    async def primary_chains(self, network_id: int) -> PrimaryChains:
        self.chain_lookups += 1
        return CHAINS


@dataclass
class ScriptedStatus:
    """Returns the given document, without addresses if none are wanted, and counts the calls.

    turns: number of times that it lets other callbacks run, as a large document does.
    """

    document: StatusDocument = EMPTY_STATUS
    calls: list[bool] = field(default_factory=list)
    turns: int = 1
    document_class: type[StatusDocument] = StatusDocument

    async def collect(self, *, with_addresses: bool) -> StatusDocument:
        self.calls.append(with_addresses)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if with_addresses:
            return self.document
        public = [msgspec.structs.replace(row, address=None) for row in self.document.validators]
        return msgspec.structs.replace(self.document, validators=public)


class CountingGate(StartupGate[SigningService]):
    """Counts the requests that have waited."""

    waits = 0

    async def wait(self, timeout_s: float | None = None) -> SigningService:
        self.waits += 1
        return await super().wait(timeout_s)


ApiParts = tuple[AggregatorEndpoints, ProbeEndpoints, DataApi]


@dataclass
class ApiSetup:
    """An API server with everything behind it.

    network_id: None if it is not known yet.
    """

    settings: ApiSettings = SETTINGS
    data: DataApiSettings = field(default_factory=DataApiSettings)
    data_needs: EndpointNeeds | None = None
    network_id: int | None = NETWORK_ID
    aggregator: ScriptedAggregator = field(default_factory=ScriptedAggregator)
    l1_messages: ScriptedL1Messages = field(default_factory=ScriptedL1Messages)
    deliveries: ScriptedDeliveries = field(default_factory=lambda: ScriptedDeliveries())
    preflight: ScriptedPreflight = field(default_factory=ScriptedPreflight)
    background: BackgroundState = BACKGROUND
    readiness: ScriptedReadiness = field(default_factory=ScriptedReadiness)
    refresh_status: Callable[[], Awaitable[None]] | None = None
    counted: tuple[SubnetID, ...] = ()
    status: ScriptedStatus = field(default_factory=ScriptedStatus)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    interval_s: float = 2.0
    write_timeout_s: float = 20.0
    nodes: CountingNodes = field(default_factory=CountingNodes)
    metrics: Metrics = field(default_factory=Metrics)
    gate: CountingGate = field(default_factory=lambda: CountingGate(timeout_s=60.0))
    probes: ProbeEndpoints | None = field(default=None, init=False)

    def parts(self) -> ApiParts:
        fields = ReadyFields()
        fields.refresh = self.refresh_status
        for name in BackgroundState.__struct_fields__:
            fields.register(name, partial(self._background_field, name))
        aggregator = AggregatorEndpoints(self.gate, self.settings, self.metrics)
        self.probes = probes = ProbeEndpoints(self._checks(), fields, self.counted)
        if self.network_id is not None:
            self.open(self.network_id)
        gate = StartupGate[EndpointNeeds]()
        if self.data_needs is not None:
            gate.open(self.data_needs)
        return aggregator, probes, DataApi(gate, self.settings, self.data, stopping=self.stopping)

    def app(self, parts: ApiParts | None = None) -> ASGIApp:
        aggregator, probes, data = parts or self.parts()
        status = StatusEndpoints(
            self.status,
            self.settings,
            AllowedHosts(("localhost",)),
            METRICS_PORT,
            self.stopping,
            self.interval_s,
            self.write_timeout_s,
        )
        return api_app(aggregator, probes, status, data, self.settings, self.metrics)

    def open(self, network_id: int) -> None:
        signers: Sequence[Any] = (
            self.aggregator,
            self.l1_messages,
            self.deliveries,
            self.preflight,
            StoredMessages(),
            self.nodes,
        )
        self.gate.open(SigningService(network_id, *signers))
        assert self.probes is not None
        self.probes.open(self.readiness)

    def _checks(self) -> HealthRegistry:
        subnets = FakeSubnets(lambda: self.readiness.subnets)
        subnet_ids = [subnet.subnet_id for subnet in self.readiness.subnets]
        checks = HealthRegistry(HealthSettings())
        checks.register(
            HealthCheck(
                "nodes", blocking_error=lambda: None if self.readiness.is_fresh else STALE_HEIGHT
            ),
            *(
                quorum_check(subnet_id, subnets)
                for subnet_id in dict.fromkeys((*subnet_ids, *self.counted))
            ),
        )
        return checks

    def _background_field(self, name: str) -> Any:
        return getattr(self.background, name)

    def with_settings(self, **changes: object) -> ApiSetup:
        return replace(self, settings=msgspec.structs.replace(self.settings, **changes))


@asynccontextmanager
async def serving(app: ASGIApp, settings: ApiSettings = SETTINGS) -> AsyncIterator[HttpServer]:
    """Serve an app on a free loopback port."""
    server = HttpServer(app, Listener("127.0.0.1", 0), settings)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run())
        try:
            yield server
        finally:
            running.cancel()


@asynccontextmanager
async def client_of(setup: ApiSetup) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve a setup and talk to it."""
    async with (
        serving(setup.app(), setup.settings) as server,
        aiohttp.ClientSession(server.url) as client,
    ):
        yield client


async def exchange(
    port: int, request: bytes, *, until_closed: bool = True, within_s: float = TIMEOUT_S
) -> bytes:
    """Send raw bytes on a connection of its own; return what comes until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(within_s):
            return await reader.read() if until_closed else await reader.read(65536)
    finally:
        writer.close()
