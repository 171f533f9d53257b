"""(a) A cold aggregation: the daemon's CPU time against what its cryptography and its bytes cost at
least.

One network has 1,000 validators; 1,000, 100 and 5 of them validate one L1 each. The client posts 30
pre-signed messages per L1, one after another, 50 ms apart, so that late responses are counted with
their request. Quorum 67 %, no buffer, equal weights. The daemon is compared with two floors:

- Crypto floor: as many shares as the signed message has signers (670 of 1,000), through the BLS
  backend alone: unchecked decode, sum, subgroup check, one verification. The floor contains neither
  the daemon's sum of the signers' keys nor the decoding of shares that arrived and were not needed.
- Transport floor: as many connections as validators were asked (950 of 1,000), bare TLS 1.3 over
  blocking sockets to a process of the benchmark. It writes the bytes of an AppRequest to each
  connection, then reads the bytes of an AppResponse from each. This is the lowest possible floor:
  when the writes are done all responses are there, so nothing waits, polls or wakes up. Writing and
  waiting for each response in turn costs three times as much.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon import Daemon, Start, daemon
from benchmarks.floors import CryptoFloor, TransportFloor, transport_floor
from benchmarks.network import Network, NetworkPlan, simulated_network
from benchmarks.report import Aim, Figure, Report, mean, quantile, violations_figure
from warpseal.bls import SHARE_BYTES
from warpseal.pb import p2p_pb2, sdk_pb2
from warpseal.protocol.framing import Zstd
from warpseal.protocol.messages import encode_app_request, encode_signature_request
from warpseal.warp.message import SignedMessage, UnsignedMessage, decode_signers
from warpseal_simnet import frames

SIZES = (1000, 100, 5)
QUICK_SIZES = (20, 5)
AGGREGATIONS = 30
QUICK_AGGREGATIONS = 6
WARM_UPS = 3
FLOOR_ROUNDS = 5
IDLE_S = 3.0
RATIO_AIM = Aim(1.6)
SETTLE_S = 0.05
# As long as the daemon's: odd numbers of 32 bits.
REQUEST_ID = 3_000_000_001
PEER_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run.

    validators: numbers of validators of each L1; the first is also the size of the network.
    """

    validators: tuple[int, ...]
    aggregations: int


@dataclass(frozen=True, slots=True)
class Run:
    """The cost of the aggregations of one size.

    requests, responses: average numbers per aggregation.
    """

    cpu_s: float
    walls_s: tuple[float, ...]
    signers: int
    requests: float
    responses: float


@dataclass(frozen=True, slots=True)
class Floor:
    """The least CPU time of one aggregation, in seconds."""

    crypto_s: float
    transport_s: float

    @property
    def total_s(self) -> float:
        """The sum of both."""
        return self.crypto_s + self.transport_s


def run(quick: bool) -> Report:
    """Measure sequential aggregations of messages that were never asked for before."""
    sizes = Sizes(QUICK_SIZES, QUICK_AGGREGATIONS) if quick else Sizes(SIZES, AGGREGATIONS)
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        return asyncio.run(_measure(sizes, Path(folder), quick))


async def _measure(sizes: Sizes, folder: Path, quick: bool) -> Report:
    plan = NetworkPlan(sizes.validators[0], sizes.validators, sizes.aggregations + WARM_UPS)
    figures: list[Figure] = []
    samples: dict[str, Sequence[float]] = {}
    with simulated_network(plan, folder) as network:
        message = bytes.fromhex(network.messages(network.subnet_of_size(sizes.validators[0]))[0])
        request_bytes, response_bytes = frame_sizes(message)
        with transport_floor(folder, request_bytes, response_bytes) as transport:
            transport.connect(sizes.validators[0])
            async with daemon(network, Start(folder / "daemon")) as subject:
                await subject.connected()
                for count in sizes.validators:
                    result, floor = await _one_size(subject, network, transport, count)
                    figures += _figures(count, result, floor)
                    samples[f"wall_s_{count}"] = result.walls_s
                figures.append(
                    Figure("idle daemon, CPU per second (in the above)", await _idle(subject), "ms")
                )
        figures.append(violations_figure(network.violations()))
    notes = (
        (
            f"AppRequest frame {request_bytes} bytes, AppResponse frame {response_bytes} bytes,"
            " both with zstd"
        ),
    )
    return Report("cold", quick, tuple(figures), notes, samples)


async def _one_size(
    subject: Daemon, network: Network, transport: TransportFloor, count: int
) -> tuple[Run, Floor]:
    messages = network.messages(network.subnet_of_size(count))
    for message in messages[:WARM_UPS]:
        signed = SignedMessage.parse(await subject.sign(message))
    signers = len(decode_signers(signed.signers))
    crypto = CryptoFloor(signers, signed.unsigned.raw)
    before = await _floor(crypto, transport, count)
    times = await _aggregate(subject, network, messages[WARM_UPS:], signers)
    after = await _floor(crypto, transport, round(times.requests))
    # The transport's floor before the run is only there to warm the connections up; BLS needs no
    # warming.
    return times, Floor(mean([before.crypto_s, after.crypto_s]), after.transport_s)


async def _floor(crypto: CryptoFloor, transport: TransportFloor, connections: int) -> Floor:
    return Floor(crypto.cpu_s(FLOOR_ROUNDS), transport.cpu_s(connections, FLOOR_ROUNDS))


async def _aggregate(subject: Daemon, network: Network, messages: list[str], signers: int) -> Run:
    await asyncio.sleep(SETTLE_S)
    requests, responses = network.counted("appRequests"), network.counted("shares")
    spent_s, walls_s = 0.0, []
    for message in messages:
        cpu_s = subject.process.cpu_s()
        walls_s.append(await subject.timed(message))
        # Responses after the quorum also cost something.
        await asyncio.sleep(SETTLE_S)
        spent_s += subject.process.cpu_s() - cpu_s
    count = len(messages)
    requests_each = (network.counted("appRequests") - requests) / count
    responses_each = (network.counted("shares") - responses) / count
    return Run(spent_s / count, tuple(walls_s), signers, requests_each, responses_each)


async def _idle(subject: Daemon) -> float:
    cpu_s = subject.process.cpu_s()
    await asyncio.sleep(IDLE_S)
    return (subject.process.cpu_s() - cpu_s) / IDLE_S * 1e3


def frame_sizes(message: bytes) -> tuple[int, int]:
    """Return how long an AppRequest for a message and the AppResponse to it are on the wire, TLS
    aside.
    """
    unsigned = UnsignedMessage.parse(message)
    app_bytes = encode_signature_request(message, b"")
    chain_id = unsigned.source_chain_id
    request = encode_app_request(chain_id, REQUEST_ID, app_bytes, PEER_DEADLINE_S, Zstd())
    share = random.Random(0).randbytes(SHARE_BYTES)  # As incompressible as a signature.
    body = sdk_pb2.SignatureResponse(signature=share).SerializeToString()
    response = p2p_pb2.AppResponse(chain_id=chain_id, request_id=REQUEST_ID, app_bytes=body)
    return len(request), len(frames.encode(p2p_pb2.Message(app_response=response)))


def _figures(count: int, result: Run, floor: Floor) -> list[Figure]:
    aim = RATIO_AIM if count >= max(SIZES) else None
    at = f"{count} validators: "
    own_s = result.cpu_s - floor.total_s
    return [
        Figure(
            at + "daemon CPU / (crypto + transport floor)", result.cpu_s / floor.total_s, "x", aim
        ),
        Figure(at + "daemon CPU / crypto floor alone", result.cpu_s / floor.crypto_s, "x"),
        Figure(at + "daemon CPU per aggregation", result.cpu_s * 1e3, "ms"),
        Figure(at + "crypto floor", floor.crypto_s * 1e3, "ms"),
        Figure(at + "transport floor", floor.transport_s * 1e3, "ms"),
        Figure(
            at + "daemon CPU beyond the floors, per asked validator",
            own_s / result.requests * 1e6,
            "us",
        ),
        Figure(at + "wall p50", quantile(result.walls_s, 0.5) * 1e3, "ms"),
        Figure(at + "wall p95", quantile(result.walls_s, 0.95) * 1e3, "ms"),
        Figure(at + "validators asked", result.requests, ""),
        Figure(at + "answers sent", result.responses, ""),
        Figure(at + "signers", result.signers, ""),
    ]
