"""The `info.*` and `proposervm.*` calls of a simulated node.

Source of truth: avalanchego `api/info/service.go`, `vms/proposervm/service.go`; shapes as recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, NodeID, id_text, node_id_text
from warpseal_simnet.balances import tx_fee
from warpseal_simnet.identity import Identity
from warpseal_simnet.platform import rfc3339
from warpseal_simnet.proposervm import ProposerVM
from warpseal_simnet.rpc import BadArgument, Method, Params, RpcError, text_argument
from warpseal_simnet.settings import CLIENT_NAME, UPGRADE_TIME, NodeSettings
from warpseal_simnet.state import SimState, StateAt
from warpseal_simnet.values import SimChain, SimValidator
from warpseal_simnet.versions import Release, plugin_version

_ACTIVE: Final = "2020-12-05T05:00:00Z"
_NEVER: Final = "9999-12-01T00:00:00Z"
_SECOND_NS: Final = 1_000_000_000
_UPGRADES: Final = (
    "apricotPhase1",
    "apricotPhase2",
    "apricotPhase3",
    "apricotPhase4",
    "apricotPhase5",
    "apricotPhasePre6",
    "apricotPhase6",
    "apricotPhasePost6",
    "banff",
    "cortina",
    "durango",
    "etna",
    "fortuna",
    "granite",
    "helicon",
)
# Before this release nodes do not name the upgrade that follows Helicon.
_FIRST_WITH_IGLOO: Final = (1, 15, 1)
_NAMES: Final = {1: "mainnet", 5: "fuji", 12345: "local"}
_FULL_UPTIME: Final = {
    "rewardingStakePercentage": "100.0000",
    "weightedAveragePercentage": "100.0000",
}


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of the node.

    validator: the validator of the network that the node is; None if it validates nothing.
    """

    identity: Identity
    validator: SimValidator | None = None


class Info:
    """Responder about the node and its peers."""

    def __init__(
        self,
        state: SimState,
        settings: NodeSettings,
        node: NodeIdentity,
        listed_nodes: set[NodeID],
        release: Callable[[], Release],
    ) -> None:
        """Build the responder.

        listed_nodes: the validators that info.peers lists.
        release: returns the release that the node runs.
        """
        self._state = state
        self._node = node
        # Shared by all nodes; validators may be added while the network runs.
        self._listed_nodes = listed_nodes
        self._first_release = settings.release
        self._release = release

    def methods(self) -> dict[str, Method]:
        """Return the calls by name."""
        replies: dict[str, Callable[[Params], Any]] = {
            "getNetworkID": lambda _: {"networkID": str(self._state.network_id)},
            "getNetworkName": self._network_name,
            "getNodeID": self._node_id,
            "getNodeIP": self._node_ip,
            "getNodeVersion": self._node_version,
            "getBlockchainID": self._blockchain_id,
            "isBootstrapped": self._is_bootstrapped,
            "peers": self._peers,
            "upgrades": lambda _: _upgrades(self._state, self._release()),
            "uptime": lambda _: dict(_FULL_UPTIME),
            "acps": lambda _: {"acps": {}},
            "getTxFee": tx_fee,
        }
        return {f"info.{name}": reply for name, reply in replies.items()}

    def _network_name(self, _: Params) -> Any:
        network_id = self._state.network_id
        return {"networkName": _NAMES.get(network_id, f"network-{network_id}")}

    def _node_id(self, _: Params) -> Any:
        identity = self._node.identity
        proof = {
            "publicKey": "0x" + identity.bls_public_key.hex(),
            "proofOfPossession": "0x" + identity.bls_proof.hex(),
        }
        return {"nodeID": node_id_text(identity.node_id), "nodePOP": proof}

    def _node_ip(self, _: Params) -> Any:
        validator = self._node.validator
        if validator and validator.address:
            return {"ip": validator.address.endpoint}
        # A node that validates nothing does not listen.
        return {"ip": "127.0.0.1:9651"}

    def _node_version(self, _: Params) -> Any:
        release = self._release()
        version = _version_text(release)
        return {
            "version": version,
            "databaseVersion": "v1.4.5",
            "rpcProtocolVersion": str(plugin_version(release.version)),
            "gitCommit": "",
            "vmVersions": {"avm": version, "evm": "v0.15.4", "platform": version},
        }

    def _blockchain_id(self, params: Params) -> Any:
        chain = self._chain(text_argument(params, "alias"))
        return {"blockchainID": id_text(chain.chain_id)}

    def _is_bootstrapped(self, params: Params) -> Any:
        self._chain(text_argument(params, "chain"))
        return {"isBootstrapped": True}

    def _chain(self, name: str) -> SimChain:
        for chain in self._state.chains.values():
            if name and name in (chain.alias, id_text(chain.chain_id)):
                return chain
        raise RpcError(f"there is no chain with alias/ID '{name}'")

    def _peers(self, params: Params) -> Any:
        requested_ids = params.get("nodeIDs") or []
        if not isinstance(requested_ids, list):
            raise BadArgument
        seen = rfc3339(self._state.clock())
        peers = [
            self._peer(validator, seen)
            for validator in self._state.validators
            if self._is_listed(validator) and (not requested_ids or validator.name in requested_ids)
        ]
        return {"numPeers": str(len(peers)), "peers": peers}

    def _is_listed(self, validator: SimValidator) -> bool:
        return validator.node_id in self._listed_nodes and validator is not self._node.validator

    def _peer(self, validator: SimValidator, seen: str) -> dict[str, Any]:
        assert validator.address is not None
        release = validator.release or self._first_release
        return {
            "ip": validator.address.endpoint,
            "publicIP": validator.address.endpoint,
            "nodeID": validator.name,
            "version": _version_text(release),
            "upgradeTime": int(self._state.fork_times.get(release.upgrade, UPGRADE_TIME)),
            "lastSent": seen,
            "lastReceived": seen,
            "observedUptime": "100",
            "trackedSubnets": sorted(
                id_text(subnet_id) for subnet_id in {PRIMARY_NETWORK, *validator.subnets}
            ),
            "supportedACPs": [],
            "objectedACPs": [],
            "benched": [],
        }


def proposervm_methods(proposer: ProposerVM, view: Callable[[], StateAt]) -> dict[str, Method]:
    """Return the proposervm calls of a chain.

    view: the state of the node.
    """

    def current_epoch(_: Params) -> Any:
        epoch = proposer.epoch_at(view().height)
        fields = {
            "number": epoch.number,
            "startTime": epoch.start_time,
            "pChainHeight": epoch.p_chain_height,
        }
        return {name: str(value) for name, value in fields.items()}

    def proposed_height(_: Params) -> Any:
        return {"height": str(proposer.proposed_at(view().height))}

    return {
        "proposervm.getProposedHeight": proposed_height,
        "proposervm.getCurrentEpoch": current_epoch,
    }


def choose_listed_peers(
    validators: list[SimValidator], count: int | None, rng: Random
) -> set[NodeID]:
    """Return the validators that info.peers lists: `count` random ones, or all."""
    node_ids = [validator.node_id for validator in validators]
    return set(node_ids if count is None else rng.sample(node_ids, min(count, len(node_ids))))


def _version_text(release: Release) -> str:
    return f"{CLIENT_NAME}/{release.text}"


def _upgrades(state: SimState, release: Release) -> Any:
    upgrades: dict[str, Any] = {f"{name}Time": _ACTIVE for name in _UPGRADES}
    if state.etna_height:
        # The later upgrades are active since Etna.
        etna = rfc3339(state.heights.time_of(state.etna_height))
        upgrades |= {f"{name}Time": etna for name in ("etna", "fortuna", "granite", "helicon")}
    rule = state.proposervm[P_CHAIN].rule
    if not rule.blocks:
        upgrades |= {"graniteTime": _NEVER, "heliconTime": _NEVER}
    if release.version >= _FIRST_WITH_IGLOO:
        upgrades["iglooTime"] = _NEVER
    if release.upgrade in state.fork_times:
        upgrades[f"{release.upgrade}Time"] = rfc3339(state.fork_times[release.upgrade])
    return upgrades | {
        "apricotPhase4MinPChainHeight": 0,
        "cortinaXChainStopVertexID": id_text(bytes(32)),
        "graniteEpochDuration": rule.duration_s * _SECOND_NS,
        **{f"{name}Time": rfc3339(at) for name, at in state.upgrades.items()},
    }
