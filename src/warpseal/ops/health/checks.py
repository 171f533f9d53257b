"""The checks of the daemon: each one is an entry here, and every reader of `HealthCheck` shows it.

The checks of chains and nodes are in `chains.py`, since each chain adds one. Source of truth: the
specification's messages; limits and texts of avalanchego `network`, `snow/networking/router`, and
of its `bootstrapped` check.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, to_builtins

from warpseal.ops.health.chains import FollowedChain, ReadinessSource
from warpseal.ops.health.registry import APPLICATION, CheckOutcome, Finding, Grade, HealthCheck
from warpseal.ops.settings import HealthSettings
from warpseal.peers.peer_warnings import version_text
from warpseal.peers.settings import PeerSettings
from warpseal.resources.progress import ChainProgress
from warpseal.runtime.go_time import go_duration, rfc3339
from warpseal.validators.balances import UNDERFUNDED_ADVICE
from warpseal.validators.subnet_tracker import SubnetReadiness, SubnetTracker
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import DisconnectedNode
from warpseal.warp.validator_set import DEFAULT_QUORUM

if TYPE_CHECKING:
    from warpseal.node.info import UpgradeWatch
    from warpseal.peers.network import ComingRefusal, PeerNetwork
    from warpseal.store.values import StoreStatus
    from warpseal.usage.flusher import FlusherStatus
    from warpseal.validators.chain_validator_list import CurrentValidations
    from warpseal.validators.set_comparison import SetComparison

MIN_PEERS: Final = 1
MAX_SILENCE_S: Final = 60.0
MAX_SEND_FAIL_RATE: Final = 0.9
MAX_OUTSTANDING: Final = 1_024
MAX_REQUEST_S: Final = 300.0
NOT_BOOTSTRAPPED: Final = "subnets not bootstrapped"
_MAX_LISTED: Final = 10
_REPORT_MARGIN_S: Final = 5.0
_GLOBAL: Final = frozenset({APPLICATION})
_OPEN_PORT: Final = (
    "is the staking port of these validators open, and their public-ip right? Try"
    " manually-tracked-peers"
)
_CONNECTION_ADVICE: Final = {
    "no_address": "no node knows their address: are they online? Try manually-tracked-peers",
    "private_address": (
        "their only addresses are private: set allow-private-ips if you can reach them"
    ),
    "not_connected": _OPEN_PORT,
    "wrong_identity": "another node answers at their address",
}


def peer_checks(
    network: PeerNetwork,
    subnet_tracker: SubnetTracker,
    current: CurrentValidations,
    settings: PeerSettings,
    now: Callable[[], float],
) -> Iterator[HealthCheck]:
    """Yield the checks of the peers.

    now: returns the seconds of the clock of the connections.
    """

    def traffic() -> PeerTraffic:
        return read_traffic(network, settings.max_outstanding)

    yield network_check(traffic, now)
    yield router_check(traffic, now)
    yield clock_check(lambda: network.clock_offset_s, settings.clock_tolerance_s)
    yield HealthCheck("versions", findings=lambda: _version_findings(network))
    yield HealthCheck("balances", findings=lambda: _balance_findings(subnet_tracker, current))
    yield HealthCheck("files", findings=lambda: _file_findings(network, subnet_tracker))


class PeerTraffic(Struct, frozen=True):
    """Traffic between the daemon and its peers. Times are of one monotonic clock; None: never.

    sent: number of requests that were written or queued since the start.
    unsent: number of requests that no queue accepted since the start.
    outstanding: number of requests that are not answered yet.
    capacity: limit of unanswered requests.
    oldest_request_at: time of the oldest of them; None without any.
    """

    peers: int
    received_at: float | None
    sent_at: float | None
    sent: int
    unsent: int
    outstanding: int
    capacity: int
    oldest_request_at: float | None


def network_check(traffic: Callable[[], PeerTraffic], now: Callable[[], float]) -> HealthCheck:
    """Return the check of the connections."""
    # Connections that have closed since count as well.
    latest: dict[str, float] = {}

    def run() -> CheckOutcome:
        current = traffic()
        for name, moment in (("Received", current.received_at), ("Sent", current.sent_at)):
            if moment is not None:
                latest[name] = max(moment, latest.get(name, moment))
        rate = current.unsent / (current.sent + current.unsent) if current.unsent else 0
        message: dict[str, Any] = {"connectedPeers": current.peers, "sendFailRate": rate}
        silences = {name: now() - moment for name, moment in latest.items()}
        for name, silence_s in silences.items():
            message[f"timeSinceLastMsg{name}"] = go_duration(silence_s)
        errors = list(_network_errors(current, silences, rate))
        if not errors:
            return CheckOutcome(message)
        return CheckOutcome(message, f"network layer is unhealthy reason: {', '.join(errors)}")

    return HealthCheck("network", run, _GLOBAL)


def router_check(traffic: Callable[[], PeerTraffic], now: Callable[[], float]) -> HealthCheck:
    """Return the check of unanswered requests.

    The limit grows with the validators, all of which one round may ask.
    """

    def run() -> CheckOutcome:
        current = traffic()
        longest_s = 0.0
        if current.oldest_request_at is not None:
            longest_s = now() - current.oldest_request_at
        message = {
            "longestRunningRequest": go_duration(longest_s),
            "outstandingRequests": current.outstanding,
        }
        limit, errors = max(MAX_OUTSTANDING, current.capacity), []
        if current.outstanding > limit:
            errors.append(f"number of outstanding requests {current.outstanding} > {limit}")
        if longest_s > MAX_REQUEST_S:
            errors.append(
                f"time for outstanding requests {go_duration(longest_s)} >"
                f" {go_duration(MAX_REQUEST_S)}"
            )
        if not errors:
            return CheckOutcome(message)
        return CheckOutcome(message, f"the router is not healthy reason: {', '.join(errors)}")

    return HealthCheck("router", run, _GLOBAL)


def clock_check(offset_s: Callable[[], float | None], tolerance_s: float) -> HealthCheck:
    """Return the check of the clock against the peers' clocks.

    Peers refuse the handshake of a clock that is too far off.
    """

    def run() -> CheckOutcome:
        offset = offset_s()
        if offset is None:
            return CheckOutcome({"offsetSeconds": None})
        error = None
        if abs(offset) > tolerance_s:
            error = (
                f"the clock is {abs(offset):.1f} s off the peers', {tolerance_s:g} s are allowed"
            )
        return CheckOutcome({"offsetSeconds": round(offset, 3)}, error)

    def findings() -> Iterator[Finding]:
        return _clock_findings(offset_s(), tolerance_s)

    return HealthCheck("clock", run, _GLOBAL, findings=findings)


def upgrade_check(
    network: PeerNetwork,
    upgrades: UpgradeWatch,
    readers: Sequence[str],
    unix_clock: Callable[[], float] = time.time,
) -> HealthCheck:
    """Return the check of upgrades that this version was not tested with, that the configured nodes
    do not know, or from which on validators may refuse the advertised release.

    It never fails, since the daemon signs until then, and also afterwards if nothing that it needs
    has changed.

    upgrades: upgrades that Warpseal was not tested with, as the nodes report them.
    readers: parts that read blocks, and so stop at the first one that they cannot decode.
    """

    def run() -> CheckOutcome:
        refusal, unknown = network.coming_refusal(), network.unknown_upgrade_time()
        message: dict[str, Any] = {
            "advertisedVersion": version_text(network.advertised_version),
            "untestedUpgrades": {
                name: rfc3339(unix_s) for name, unix_s in upgrades.untested().items()
            },
        }
        if refusal is not None:
            message["refusedFrom"] = rfc3339(refusal.unix_s)
        if unknown is not None:
            message["unknownToNodes"] = rfc3339(unknown)
        return CheckOutcome(message)

    def findings() -> Iterator[Finding]:
        for name, unix_s in upgrades.untested().items():
            at = rfc3339(unix_s)
            text = (
                f"this version of Warpseal was not tested with the network upgrade {name} of {at}"
            )
            advice = _upgrade_advice(readers, is_ahead=unix_clock() < unix_s)
            yield Finding(Grade.WARNING, text, advice, {"upgrade": name, "time": at})
        refusal = network.coming_refusal()
        if refusal is not None:
            yield _refusal_finding(network, refusal)
        unknown = network.unknown_upgrade_time()
        if unknown is not None:
            text = (
                f"a third of the weight knows an upgrade at {rfc3339(unknown)}, and the configured"
                " nodes do not"
            )
            advice = "update the nodes of p-chain-api and info-api, and Warpseal, before it"
            yield Finding(Grade.WARNING, text, advice)

    def degraded() -> Iterator[str]:
        for finding in findings():
            yield f"{finding.text}: {finding.advice}"

    return HealthCheck("upgrades", run, findings=findings, degraded=degraded)


def _upgrade_advice(readers: Sequence[str], *, is_ahead: bool) -> str:
    """Return what to do about an upgrade, and what stops at its first block of a new type."""
    advice = "update Warpseal before it" if is_ahead else "update Warpseal"
    if not readers:
        return advice
    return (
        f"{advice}. The first block or transaction of a new type stops {', '.join(readers)}, until"
        " a version that knows the type is installed"
    )


def _refusal_finding(network: PeerNetwork, refusal: ComingRefusal) -> Finding:
    release, at = version_text(refusal.version), rfc3339(refusal.unix_s)
    advertised = version_text(network.advertised_version)
    text = (
        f"a third of the weight runs {release} or newer, and may refuse the advertised {advertised}"
        f" from its upgrade at {at} on"
    )
    advice = f"update Warpseal before it; this version advertises {release} from then on"
    if network.is_version_fixed:
        advice = "raise advertised-version before it, or remove it; else they hang up"
    return Finding(Grade.WARNING, text, advice, {"version": release, "time": at})


def follower_check(progress: Callable[[], ChainProgress]) -> HealthCheck:
    """Return the check that the follower goes on, without which the daemon signs all the same."""

    def degraded() -> Iterator[str]:
        stop = progress().stop
        if stop is not None:
            yield (
                f"following the P-Chain stopped {stop.text}; signing goes on, but no L1 message is"
                " signed ahead, and the removal of a validator that registered since needs its"
                " registration in the request"
            )

    return HealthCheck("follower", degraded=degraded)


def database_check(status: Callable[[], StoreStatus]) -> HealthCheck:
    """Return the check of the store, without a message."""

    def read() -> str | None:
        store = status()
        return None if store.is_up else f"the store is down: {store.reason}"

    def degraded() -> Iterator[str]:
        if (error := read()) is not None:
            yield f"{error}; signatures are kept in memory until it is up"

    return HealthCheck("database", lambda: CheckOutcome(error=read()), _GLOBAL, degraded=degraded)


def signing_blocks_check(error: Callable[[], str | None]) -> HealthCheck:
    """Return the check that the signing blocks were read, before which nothing is signed."""
    return HealthCheck("signing-blocks", blocking_error=error)


def diskspace_check(folder: Path, settings: HealthSettings) -> HealthCheck:
    """Return the check of the disk of a folder, or of its nearest parent that exists.

    The message warns below `warn_disk_percent`, and the check fails below `fail_disk_percent`. The
    daemon never stops for it.
    """
    warn, fail = settings.warn_disk_percent, settings.fail_disk_percent

    async def run() -> CheckOutcome:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        usage = await asyncio.to_thread(shutil.disk_usage, existing)
        if not usage.total:
            return CheckOutcome({})  # A file system without a size.
        percent = usage.free * 100 // usage.total
        message: dict[str, Any] = {
            "availableDiskBytes": usage.free,
            "availableDiskPercentage": percent,
        }
        reason = f"remaining available disk space percentage ({percent}%) is below"
        if percent < fail:
            error = f"{reason} minimum required available space percentage ({fail}%)"
            return CheckOutcome(message, error)
        if percent < warn:
            message["warning"] = f"{reason} warning threshold available space percentage ({warn}%)"
        return CheckOutcome(message)

    return HealthCheck("diskspace", run, _GLOBAL)


def indexer_check(
    silence_s: Callable[[], float | None],
    settings: HealthSettings,
    stops: Callable[[], Sequence[str]] = tuple,
    report_age_s: Callable[[], float | None] = lambda: None,
) -> HealthCheck:
    """Return the check of the indexer; it fails if the process of this machine is silent for two
    rounds.

    silence_s: returns the seconds since the last report of that process; None before the first.
    stops: returns an error for each chain that the indexer stopped indexing.
    report_age_s: returns the age of the oldest of the reports in the indexes, None if a chain has
        no report. It counts if processes of other machines fill the indexes.
    """
    round_s = 2 * settings.check_frequency_s

    def run() -> CheckOutcome:
        silent_s, allowed_s = silence_s(), round_s
        age_s = report_age_s() if silent_s is None or silent_s > allowed_s else None
        # A process of this machine that has ended left reports that are about as old as its last
        # heartbeat.
        if age_s is not None and (silent_s is None or age_s + _REPORT_MARGIN_S < silent_s):
            silent_s, allowed_s = age_s, max(round_s, MAX_SILENCE_S)
        if silent_s is None:
            return CheckOutcome(error="nothing was heard of the indexer yet")
        message = {"timeSinceLastReport": go_duration(silent_s)}
        errors = list(stops())
        if silent_s > allowed_s:
            errors.insert(0, f"silent for {go_duration(silent_s)} > {go_duration(allowed_s)}")
        return CheckOutcome(message, "; ".join(errors) or None)

    return HealthCheck("indexer", run, _GLOBAL, degraded=stops)


def validator_sets_check(comparison: SetComparison) -> HealthCheck:
    """Return the check that the index and the nodes list the same validators.

    It is no error: only an operator can find out which of them is right.
    """
    return HealthCheck(
        "validator-sets",
        degraded=lambda: (difference.text for difference in comparison.differences()),
    )


def background_check(failing: Callable[[], Iterable[str]]) -> HealthCheck:
    """Return the check of the work that signing does not need.

    failing: returns a sentence about each part that failed.
    """

    def run() -> CheckOutcome:
        return CheckOutcome(error="; ".join(failing()) or None)

    return HealthCheck("background", run, degraded=failing)


def usage_check(status: Callable[[], FlusherStatus]) -> HealthCheck:
    """Return the check of the metrics database, without which the daemon is degraded."""

    def degraded() -> Iterator[str]:
        if (reason := status().reason) is not None:
            yield f"the metrics database is down: {reason}; usage is kept in memory until it is up"

    return HealthCheck("usage", degraded=degraded)


def quorum_check(
    subnet_id: SubnetID,
    subnets: ReadinessSource,
    network: Callable[[], PeerNetwork | None] = lambda: None,
) -> HealthCheck:
    """Return the check of a subnet's connected weight.

    network: returns the peers, None while the daemon starts.
    """
    name = id_text(subnet_id)

    def run() -> CheckOutcome:
        subnet = subnets.readiness_of(subnet_id)
        if subnet is None:
            return CheckOutcome(error="the network is not known yet")
        return CheckOutcome(_weights(subnet), subnet.shortfall)

    def blocking_error() -> str | None:
        subnet = subnets.readiness_of(subnet_id) or SubnetReadiness(subnet_id, False, 0, 0, ())
        return subnet.shortfall

    def findings() -> Iterator[Finding]:
        subnet, peers = subnets.readiness_of(subnet_id), network()
        return iter(()) if subnet is None or peers is None else _subnet_findings(subnet, peers)

    return HealthCheck(
        f"quorum-{name}",
        run,
        frozenset({name}),
        is_prompt=True,
        blocking_error=blocking_error,
        subnet_id=subnet_id,
        findings=findings,
    )


def bootstrap_check(
    subnet_ids: Sequence[SubnetID],
    subnets: ReadinessSource,
    chains: Callable[[], Mapping[str, FollowedChain]],
) -> HealthCheck:
    """Return the startup check, which passes after each subnet had enough weight connected once,
    and each followed chain was at its tip once.

    A chain is compared with the first tip that a node reported, which it reaches although new
    blocks keep coming.
    """
    pending = list(dict.fromkeys((PRIMARY_NETWORK, *subnet_ids)))
    connected, caught_up = set[SubnetID](), set[str]()
    first_tips: dict[str, int] = {}

    def run() -> CheckOutcome:
        connected.update(subnet.subnet_id for subnet in subnets.readiness() if subnet.is_ready)
        for name, chain in chains().items():
            progress = chain.progress()
            if progress.node_height is not None:
                tip = first_tips.setdefault(name, progress.node_height)
                if progress.height is not None and progress.height >= tip:
                    caught_up.add(name)
        late_ids = {chain.subnet_id for name, chain in chains().items() if name not in caught_up}
        pending[:] = [
            subnet_id
            for subnet_id in pending
            if subnet_id not in connected or subnet_id in late_ids
        ]
        message = list(map(id_text, pending))
        return CheckOutcome(message, NOT_BOOTSTRAPPED if message else None)

    return HealthCheck("bootstrapped", run, _GLOBAL, is_startup=True, latches=True, is_prompt=True)


def read_traffic(network: PeerNetwork, max_outstanding: int) -> PeerTraffic:
    """Return the traffic of all connections.

    max_outstanding: limit of unanswered requests of one connection.
    """
    connections = list(network.connected.values())
    oldest = [connection.oldest_request_at for connection in connections]
    return PeerTraffic(
        peers=len(connections),
        received_at=_latest(connection.received_at for connection in connections),
        sent_at=_latest(connection.sent_at for connection in connections),
        sent=sum(peer.requests for peer in network.statistics.values()),
        unsent=sum(peer.refused for peer in network.statistics.values()),
        outstanding=sum(connection.outstanding for connection in connections),
        capacity=max_outstanding * len(connections),
        oldest_request_at=min((moment for moment in oldest if moment is not None), default=None),
    )


def _latest(moments: Iterable[float]) -> float | None:
    """Return the latest moment; None if nothing was received or sent yet."""
    return max((moment for moment in moments if isfinite(moment)), default=None)


def _network_errors(
    traffic: PeerTraffic, silences: Mapping[str, float], rate: float
) -> Iterator[str]:
    if traffic.peers < MIN_PEERS:
        yield f"not connected to a minimum of {MIN_PEERS} peer(s) only {traffic.peers}"
    for name, never, lately in (
        ("Received", "received from network", "from network received"),
        ("Sent", "sent to network", "to network sent"),
    ):
        if name not in silences:
            yield f"no messages {never}"
        elif silences[name] > MAX_SILENCE_S:
            yield (
                f"no messages {lately} in {go_duration(silences[name])} >"
                f" {go_duration(MAX_SILENCE_S)}"
            )
    if rate > MAX_SEND_FAIL_RATE:
        yield f"messages failure send rate {rate:g} > {MAX_SEND_FAIL_RATE:g}"


def _weights(subnet: SubnetReadiness) -> dict[str, str]:
    return {
        "connectedWeight": str(subnet.connected),
        "requiredWeight": str(subnet.needed),
        "totalWeight": str(subnet.total),
    }


def _subnet_findings(subnet: SubnetReadiness, network: PeerNetwork) -> Iterator[Finding]:
    name = f"subnet {id_text(subnet.subnet_id)}"
    if not subnet.is_known:
        yield Finding(
            Grade.BAD,
            f"{name}: its validator set is not known",
            "look at the p-chain-api nodes above",
        )
        return
    share = 100 * subnet.connected / subnet.total if subnet.total else 0.0
    weights = f"weight {subnet.connected} of {subnet.needed} needed, total {subnet.total}"
    text = (
        f"{name}: {share:.1f} % of the weight is connected, {DEFAULT_QUORUM} % are needed"
        f" ({weights})"
    )
    detail = {"subnetId": id_text(subnet.subnet_id), **_weights(subnet)}
    yield Finding(_connection_grade(subnet), text, detail=detail)
    yield from _connection_findings(subnet, network)
    if subnet.keyless:
        share = 100 * subnet.keyless / subnet.total
        grade = Grade.BAD if share > 100 - DEFAULT_QUORUM else Grade.WARNING
        text = f"{name}: {share:.1f} % of the weight is inactive or has no BLS key, and cannot sign"
        advice = (
            "remove legacy validators, and top up or remove L1 validators without balance, which"
            " are named below"
        )
        yield Finding(grade, text, advice)


def _connection_grade(subnet: SubnetReadiness) -> Grade:
    if subnet.connected < subnet.needed:
        return Grade.BAD
    return Grade.WARNING if subnet.missing else Grade.GOOD


def _connection_findings(subnet: SubnetReadiness, network: PeerNetwork) -> Iterator[Finding]:
    by_reason: dict[str, list[tuple[NodeID, int]]] = {}
    for validator in subnet.missing:
        for node_id in validator.node_ids:
            unreachable = network.unreachable(node_id, subnet.subnet_id)
            reason = "not_connected" if unreachable is None else unreachable.reason
            by_reason.setdefault(reason, []).append((node_id, validator.weight))
    for reason, nodes in by_reason.items():
        descriptions: list[str] = []
        validators: list[dict[str, Any]] = []
        for node_id, weight in nodes:
            connection = network.missing_connection(node_id)
            descriptions.append(_describe_missing(node_id, weight, connection))
            fields = to_builtins(connection) if connection else {}
            validators.append({"nodeId": node_id_text(node_id), "weight": str(weight), **fields})
        listed = ", ".join(descriptions[:_MAX_LISTED]) + _and_more(descriptions)
        text = f"{_counted(len(nodes))} missing ({reason}): {listed}"
        detail = {"subnetId": id_text(subnet.subnet_id), "reason": reason, "validators": validators}
        yield Finding(Grade.WARNING, text, _CONNECTION_ADVICE.get(reason, _OPEN_PORT), detail)


def _describe_missing(node_id: NodeID, weight: int, connection: DisconnectedNode | None) -> str:
    details = [f"weight {weight}"]
    if connection is not None:
        details += [str(text) for text in (connection.address, connection.last_error) if text]
    return f"{node_id_text(node_id)} ({', '.join(details)})"


def _balance_findings(
    subnet_tracker: SubnetTracker, current: CurrentValidations
) -> Iterator[Finding]:
    """Name the L1 validators that are inactive or nearly drained."""
    for subnet in subnet_tracker.readiness():
        members = (
            () if subnet.subnet_id == PRIMARY_NETWORK else current.underfunded(subnet.subnet_id)
        )
        if members:
            names = [
                f"{member.node_ids[0]} (weight {member.weight}, {member.state})"
                for member in members
            ]
            listed = ", ".join(names[:_MAX_LISTED]) + _and_more(names)
            text = (
                f"subnet {id_text(subnet.subnet_id)}: L1 validators without enough balance:"
                f" {listed}"
            )
            detail = {"subnetId": id_text(subnet.subnet_id), "underfunded": to_builtins(members)}
            yield Finding(Grade.WARNING, text, UNDERFUNDED_ADVICE, detail)


def _and_more(items: Sequence[object]) -> str:
    return f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""


def _clock_findings(peers_offset_s: float | None, tolerance_s: float) -> Iterator[Finding]:
    if peers_offset_s is None:
        return
    offset_s = -peers_offset_s
    if abs(offset_s) > tolerance_s:
        text = (
            f"this machine's clock is {offset_s:+.0f} s from its peers' median; at 60 s they"
            " drop it"
        )
        yield Finding(Grade.BAD, text, "set it right (NTP)")
    else:
        # A sum with 0.0 is never -0.0.
        rounded_s = round(offset_s, 1) + 0.0
        text = f"this machine's clock is {rounded_s:+.1f} s from its peers' median"
        yield Finding(Grade.GOOD, text)


def _version_findings(network: PeerNetwork) -> Iterator[Finding]:
    advertised = network.advertised_version
    newer = [version for version in network.versions() if version > advertised]
    if newer:
        newest, ours = ".".join(map(str, max(newer))), ".".join(map(str, advertised))
        count = _counted(len(newer))
        text = f"{count} of a newer version than the advertised {ours}, up to {newest}"
        advice = "update Warpseal before the network asks for it, or set advertised-version"
        yield Finding(Grade.WARNING, text, advice)


def _file_findings(network: PeerNetwork, subnet_tracker: SubnetTracker) -> Iterator[Finding]:
    missing = sum(len(subnet.missing) for subnet in subnet_tracker.readiness())
    connections = missing + len(network.connected)
    needed = network.file_limit.needed_for(connections)
    if needed is not None:
        text = f"{network.file_limit.files} files may be open, {needed} are needed"
        yield Finding(Grade.BAD, text, "raise the hard limit (ulimit -Hn)")


def _counted(count: int) -> str:
    return "1 validator is" if count == 1 else f"{count} validators are"
