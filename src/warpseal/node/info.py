"""Information of nodes about themselves, their peers and upgrades: hints, never proof.

Source of truth: avalanchego `api/info/service.go`, `network/peer/info.go`, `upgrade/upgrade.go`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

import msgspec
from msgspec import Struct

from warpseal.ledger.params import UNSCHEDULED_S
from warpseal.runtime.single_flight import SingleFlight
from warpseal.upstream.agreement import NodeAgreement, make_reply_classes
from warpseal.upstream.errors import (
    CallFailure,
    NodeAttempt,
    NodesDisagree,
    NodeUnavailable,
    RpcRefusal,
)
from warpseal.upstream.identity import INFO_PATHS, NETWORK_ID, ServedNetwork
from warpseal.upstream.json_values import NUMBER, date_s, field_decoder, u64
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.node import NodeCall
from warpseal.upstream.pool import NodePool, NodeResult, PoolNode, attempt_of, refusal_of
from warpseal.upstream.replies import Reply, compare_fixed
from warpseal.warp.ids import ChainID, MalformedID, NodeID, parse_id, parse_node_id

TESTED_UPGRADES: Final = frozenset(
    {
        *(f"apricotPhase{phase}" for phase in ("1", "2", "3", "4", "5", "6", "Pre6", "Post6")),
        *("banff", "cortina", "durango", "etna", "fortuna", "granite", "helicon"),
    }
)
"""The upgrades that this version of Warpseal was tested with, in the node's spelling."""

AHEAD_S: Final = 30 * 86_400
_RETRY_S: Final = 60.0
# Once an hour.
_RETRIES: Final = 60
_MAX_VERSION_LENGTH: Final = 64
_MAX_PROTOCOL_DIGITS: Final = 9


class PeerHint(Struct, frozen=True):
    """An unauthenticated address of a peer from a node.

    host: IP address; version: version of the peer, or "".
    """

    node_id: NodeID
    host: str
    port: int
    version: str = ""


class InfoPeers(Struct, frozen=True):
    """The hints of all info nodes that answered.

    complete: true if every configured info node answered.
    """

    hints: tuple[PeerHint, ...]
    complete: bool


class NetworkUpgrades(Struct, frozen=True):
    """The upgrades that a node reports.

    times_s: Unix seconds by the upgrade's name in the node's spelling ("etna").
    epoch_duration_s: None if the node is from before Granite.
    """

    times_s: Mapping[str, int]
    epoch_duration_s: int | None


class InfoClient:
    """info.* calls of the daemon itself to a list of nodes.

    agreement: agreement of these nodes about the network id.
    all_nodes: nodes that must agree about upgrades.
    quorum: number of them that must agree; all that have the method, if these are fewer.
    """

    def __init__(
        self,
        pool: NodePool[int],
        served: ServedNetwork,
        agreement: NodeAgreement,
        all_nodes: NodePool[int],
        quorum: int = 1,
    ) -> None:
        self._pool = pool
        self._agreement = agreement
        self._served = served
        self._all_nodes = all_nodes
        self._quorum = quorum
        self._flights: SingleFlight[None, int] = SingleFlight()

    async def network_id(self) -> int:
        """Return the served network's id, on which `p-chain-quorum` nodes agree.

        Raises NodeUnavailable.
        """
        if self._served.expected is None:
            read_id = partial(self._agreement.call, NETWORK_ID)
            self._served.expected = await self._flights.run(None, read_id)
        return self._served.expected

    async def probe(self) -> tuple[NodeResult[int], ...]:
        """Return the network id from each configured node, or its failure; for the operator."""
        return await self._pool.call_all(NETWORK_ID)

    async def upgrades(self) -> Mapping[str, int]:
        """Return the upgrade times of the network; times from nodes replace builtin ones.

        They are Unix seconds, by the upgrade's name in the node's spelling, such as "etna".
        Raises NodeUnavailable.
        """
        reported = await self.reported_upgrades()
        times_s = dict(builtin_upgrades(await self.network_id()))
        reported_times_s: Mapping[str, int] = {} if reported is None else reported.times_s
        for name, unix_s in reported_times_s.items():
            # A node of an older release may not know that an upgrade is scheduled.
            if unix_s < UNSCHEDULED_S or name not in times_s:
                times_s[name] = unix_s
        return times_s

    async def reported_upgrades(self) -> NetworkUpgrades | None:
        """Return the upgrades that nodes report; None if they do not have the method.

        Nodes of different releases know different upgrades: of several nodes, each time counts that
        a quorum reports. Raises NodeUnavailable, and NodesDisagree if nodes report different times
        and no quorum reports one of them.
        """
        await self.network_id()
        if self._quorum == 1:
            try:
                return await self._pool.call(_UPGRADES)
            except RpcRefusal:
                return None
        nodes = await self._all_nodes.candidates(_UPGRADES.origin)
        results = await asyncio.gather(*map(_ask_upgrades, nodes))
        replies: list[Reply[NetworkUpgrades]] = []
        attempts: list[NodeAttempt] = []
        for node, result in zip(nodes, results, strict=True):
            if isinstance(result, NetworkUpgrades):
                replies.append(Reply(node.position, result))
            elif refusal_of(result, is_optional=True) is None:
                attempts.append(attempt_of(node, result))
        if attempts and len(replies) < self._quorum:
            raise NodeUnavailable(_UPGRADES.method, attempts)
        if not replies:
            return None
        return _agree_on_upgrades(replies, min(self._quorum, len(replies)))

    async def epoch_duration_s(self) -> int:
        """Return the shortest duration of an epoch from a node, else that of the network.

        Block times are whole seconds, so that a part of a second counts as one. A node from before
        Granite names no duration. Raises NodeUnavailable.
        """
        reported = await self.reported_upgrades()
        if reported is not None and reported.epoch_duration_s is not None:
            return reported.epoch_duration_s
        network_id = await self.network_id()
        return _PUBLIC_EPOCH_S if network_id in _PUBLIC_NETWORKS else _DEFAULT_EPOCH_S

    async def is_bootstrapped(self, chain: str) -> bool:
        """Return whether the first node that answers has bootstrapped a chain, by its alias.

        A node that does not have the method counts as bootstrapped. Raises NodeUnavailable.
        """
        method, params, origin = "info.isBootstrapped", {"chain": chain}, CallOrigin.FOLLOWER
        call = NodeCall(method, params, INFO_PATHS, _decode_bootstrapped, origin, optional=True)
        try:
            return await self._pool.call(call)
        except RpcRefusal:
            return True

    async def blockchain_id(self, alias: str) -> ChainID:
        """Return the id of the chain with this alias, such as "X".

        Raises NodeUnavailable with the refusal.
        """
        method, params = "info.getBlockchainID", {"alias": alias}
        call = NodeCall(method, params, INFO_PATHS, _decode_blockchain_id, CallOrigin.DAEMON)
        refusals: list[str] = []

        async def attempt(node: PoolNode) -> ChainID:
            try:
                return await node.call(call)
            except RpcRefusal as refusal:
                refusals.append(refusal.text)
                raise

        try:
            results = await self._pool.try_each(method, attempt, lambda chain_id: True, call.origin)
            return results[-1]
        except NodeUnavailable as error:
            if not refusals:
                raise
            subject = f"the id of the {alias}-Chain: {method} was refused with {refusals[0]!r}"
            raise NodeUnavailable(subject, error.attempts) from None

    async def rpc_protocol_version(self) -> int | None:
        """Return the version of a node's plugin protocol; None if no node returns it."""
        try:
            return await self._pool.call(_NODE_VERSION)
        except (NodeUnavailable, RpcRefusal):
            return None

    async def versions(self) -> tuple[NodeResult[str], ...]:
        """Return each configured node's version, such as "avalanchego/1.14.0", or its failure."""
        return await self._pool.call_all(_VERSION)

    async def peers(self) -> InfoPeers:
        """Return the configured nodes and the peers that they know. Raises NodeUnavailable."""
        lists = await self._pool.values(_PEERS)
        node_ids = await self._pool.call_all(_NODE_ID)
        addresses = await self._pool.call_all(_NODE_IP)
        # No node lists itself among its peers.
        hints: list[PeerHint] = []
        for node_id, address in zip(node_ids, addresses, strict=True):
            if node_id.value is not None and address.value is not None:
                host, port = address.value
                hints.append(PeerHint(node_id.value, host, port))
        for peers in lists:
            hints += peers
        distinct_hints = tuple(dict.fromkeys(hints))
        return InfoPeers(distinct_hints, complete=len(lists) == len(self._pool))


class UpgradeWatch:
    """Reads the upgrades that nodes report, every hour, and every minute while they report none, or
    not the one that validators know.

    on_latest: function that gets the time of the latest scheduled upgrade, Unix seconds, or 0.
    is_behind: returns whether validators know an upgrade that the nodes did not report.
    """

    def __init__(
        self,
        info: InfoClient,
        on_latest: Callable[[int], None],
        is_behind: Callable[[], bool] = lambda: False,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._info = info
        self._on_latest = on_latest
        self._is_behind = is_behind
        self._unix_clock = unix_clock
        self._times: Mapping[str, int] = {}

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            is_current = await self.ask()
            for _ in range(_RETRIES if is_current else 1):
                await asyncio.sleep(_RETRY_S)
                # The nodes may be updated at any time after the validators.
                if self._is_behind():
                    break

    async def ask(self) -> bool:
        """Ask once; return whether nodes reported upgrades.

        What they reported before stays until they do.
        """
        try:
            reported = await self._info.reported_upgrades()
        except NodeUnavailable:
            return False
        if reported is not None:
            self._times = reported.times_s
        elif not self._times:
            self._times = builtin_upgrades(await self._info.network_id())
        scheduled = (unix_s for unix_s in self._times.values() if unix_s < UNSCHEDULED_S)
        self._on_latest(max(scheduled, default=0))
        return reported is not None

    def untested(self) -> Mapping[str, int]:
        """Return the times of past and coming upgrades that were not tested, by name.

        Coming upgrades are those of the next 30 days.
        """
        until_s = self._unix_clock() + AHEAD_S
        times = self._times.items()
        due = {name: unix_s for name, unix_s in times if unix_s <= until_s}
        return {name: unix_s for name, unix_s in due.items() if name not in TESTED_UPGRADES}


class _Peer(msgspec.Struct):
    node_id: str = msgspec.field(name="nodeID")
    public_ip: str = msgspec.field(name="publicIP", default="")
    version: str = ""


def _usable_hints(peers: list[_Peer] | None) -> tuple[PeerHint, ...]:
    hints: list[PeerHint] = []
    for peer in peers or ():
        # A peer may not have claimed an address yet.
        with suppress(MalformedID, ValueError):
            host, port = _address(peer.public_ip)
            version = peer.version[:_MAX_VERSION_LENGTH]
            hints.append(PeerHint(parse_node_id(peer.node_id), host, port, version))
    return tuple(hints)


def _protocol_version(version: str | int) -> int | None:
    version = str(version)
    if not (version.isascii() and version.isdigit() and len(version) <= _MAX_PROTOCOL_DIGITS):
        return None
    return int(version) or None


def _address(text: str) -> tuple[str, int]:
    """Return host and port of "a.b.c.d:port" or "[v6]:port". Raises ValueError."""
    host, separator, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not (separator and is_number and 0 < int(port) < 65536):
        raise ValueError("no address with a port")
    return str(ip_address(host.removeprefix("[").removesuffix("]"))), int(port)


_SUFFIX: Final = "Time"
_SECOND_NS: Final = 10**9
_MAX_EPOCH_S: Final = 10**9
_PUBLIC_NETWORKS: Final = frozenset({1, 5})
_PUBLIC_EPOCH_S: Final = 300
_DEFAULT_EPOCH_S: Final = 30
_MAX_NAMES: Final = 100
_MAX_NAME_LENGTH: Final = 64
_GO_ZERO_TIME: Final = "0001-01-01T00:00:00Z"


def builtin_upgrades(network_id: int) -> Mapping[str, int]:
    """Return the upgrade times of a public network; {} for any other."""
    column = {1: 0, 5: 1}.get(network_id)
    if column is None:
        return {}
    return {name: times[column] for name, times in _BUILTIN_TIMES.items()}


def decode_upgrades(result: bytes) -> NetworkUpgrades:
    """Return the result of info.upgrades. Raises ValueError."""
    fields = msgspec.json.decode(result, type=dict[str, Any])
    if len(fields) > _MAX_NAMES or any(len(name) > _MAX_NAME_LENGTH for name in fields):
        raise ValueError(f"{len(fields)} upgrades, or their names, are more than there are")
    times = {
        name.removesuffix(_SUFFIX): _upgrade_s(value)
        for name, value in fields.items()
        if name.endswith(_SUFFIX)
    }
    duration = msgspec.convert(fields.get("graniteEpochDuration"), NUMBER | None)
    return NetworkUpgrades(times, _epoch_duration_s(duration))


async def _ask_upgrades(node: PoolNode) -> NetworkUpgrades | CallFailure | RpcRefusal:
    try:
        return await node.call(_UPGRADES)
    except (CallFailure, RpcRefusal) as error:
        return error


def _agree_on_upgrades(replies: Sequence[Reply[NetworkUpgrades]], quorum: int) -> NetworkUpgrades:
    """Return each time that a quorum of the replies has. Raises NodesDisagree."""
    reports = [reply.value for reply in replies if reply.value is not None]
    names = dict.fromkeys(name for report in reports for name in report.times_s)
    times_s: dict[str, int] = {}
    try:
        for name in names:
            time_s = _find_agreed([report.times_s.get(name) for report in reports], quorum)
            if time_s is not None:
                times_s[name] = time_s
        duration_s = _find_agreed([report.epoch_duration_s for report in reports], quorum)
    except _TimesDiffer:
        classes = make_reply_classes(replies, compare_fixed)
        raise NodesDisagree(_UPGRADES.method, quorum, classes) from None
    return NetworkUpgrades(times_s, duration_s)


def _find_agreed(times_s: Sequence[int | None], quorum: int) -> int | None:
    """Return the time of a quorum; None if fewer nodes know it. Raises _TimesDiffer.

    A node of an older release does not know an upgrade, or that it is scheduled: that contradicts
    no other node.
    """
    counts = Counter(time_s for time_s in times_s if time_s is not None)
    # Of equal counts the earlier time, since the later one may be that of no schedule.
    time_s = max(counts, key=lambda time_s: (counts[time_s], -time_s), default=None)
    if time_s is None or counts[time_s] >= quorum:
        return time_s
    if sum(time_s < UNSCHEDULED_S for time_s in counts) > 1:
        raise _TimesDiffer
    return None


class _TimesDiffer(Exception):
    """Nodes report different times, and no quorum reports one of them."""


def _epoch_duration_s(nanoseconds: int | str | None) -> int | None:
    if nanoseconds is None:
        return None
    duration_s = -(-u64(nanoseconds) // _SECOND_NS)
    if duration_s > _MAX_EPOCH_S:
        raise ValueError(f"an epoch of {duration_s} s")
    return duration_s


def _upgrade_s(value: Any) -> int:
    """Return Unix seconds. Raises ValueError for a date that is not of the years 1970 to 9999."""
    # An upgrade that an upgrade file leaves out has Go's zero time: it is active from the start.
    if value == _GO_ZERO_TIME:
        return 0
    return date_s(msgspec.convert(value, datetime))


def _at(year: int, month: int, day: int, hour: int) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp())


# Times of Mainnet (network 1) and Fuji (network 5).
_BUILTIN_TIMES: Final = {
    "banff": (_at(2022, 10, 18, 16), _at(2022, 10, 3, 14)),
    "cortina": (_at(2023, 4, 25, 15), _at(2023, 4, 6, 15)),
    "durango": (_at(2024, 3, 6, 16), _at(2024, 2, 13, 16)),
    "etna": (_at(2024, 12, 16, 17), _at(2024, 11, 25, 16)),
    "fortuna": (_at(2025, 4, 8, 15), _at(2025, 3, 13, 15)),
    "granite": (_at(2025, 11, 19, 16), _at(2025, 10, 29, 15)),
    "helicon": (_at(2026, 9, 22, 15), _at(2026, 7, 28, 15)),
}
_decode_hints: Final = field_decoder("peers", list[_Peer] | None, _usable_hints, default=None)
_decode_node_id: Final = field_decoder("nodeID", str, parse_node_id)
_decode_node_ip: Final = field_decoder("ip", str, _address)
_decode_node_version: Final = field_decoder(
    "rpcProtocolVersion", NUMBER, _protocol_version, default=""
)
_decode_version: Final = field_decoder("version", str, lambda text: text[:_MAX_VERSION_LENGTH])
_decode_bootstrapped: Final = field_decoder("isBootstrapped", bool, bool)
_decode_blockchain_id: Final = field_decoder(
    "blockchainID", str, lambda text: ChainID(parse_id(text))
)

_PEERS: Final = NodeCall("info.peers", {}, INFO_PATHS, _decode_hints, CallOrigin.DAEMON, large=True)
_NODE_ID: Final = NodeCall(
    "info.getNodeID", {}, INFO_PATHS, _decode_node_id, CallOrigin.DAEMON, optional=True
)
_NODE_IP: Final = NodeCall(
    "info.getNodeIP", {}, INFO_PATHS, _decode_node_ip, CallOrigin.DAEMON, optional=True
)
_UPGRADES: Final = NodeCall(
    "info.upgrades", {}, INFO_PATHS, decode_upgrades, CallOrigin.DAEMON, optional=True
)
_NODE_VERSION: Final = NodeCall(
    "info.getNodeVersion", {}, INFO_PATHS, _decode_node_version, CallOrigin.DAEMON, optional=True
)
_VERSION: Final = NodeCall(
    "info.getNodeVersion", {}, INFO_PATHS, _decode_version, CallOrigin.DAEMON, optional=True
)
