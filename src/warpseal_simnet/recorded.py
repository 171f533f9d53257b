"""A network rebuilt from recordings of a real network.

A recording is a folder with JSON lines: replies of nodes over JSON-RPC (`platform.jsonl`,
`info.jsonl`, `shares.jsonl`) and frames exchanged with each of them (`wire.jsonl`). Sets, weights,
keys and shares are those of the recording, the certificates are new. NodeIDs are
rewritten, because the keys of the recorded certificates and the BLS secret keys are unknown: signed
addresses carry the signature of another key, and only recorded requests get a share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from warpseal.pb import p2p_pb2 as p2p
from warpseal.pb import sdk_pb2 as sdk
from warpseal.runtime.zstd import Decompressor
from warpseal.warp.ids import (
    EMPTY_NODE_ID,
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    MessageID,
    NodeID,
    SubnetID,
    ValidationID,
    node_id_text,
    parse_id,
    parse_node_id,
)
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet import p_chain_verifier
from warpseal_simnet.behaviours import Refusal
from warpseal_simnet.frames import LENGTH_BYTES, decode
from warpseal_simnet.identity import make_identity
from warpseal_simnet.ledger import Heights, Ledger
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import PRIMARY, Plan
from warpseal_simnet.proposervm import ChainEpoch, EpochRule
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.signing import HANDLER_ID, SignatureRequest, parse_signature_request
from warpseal_simnet.state import SimState, StateAt
from warpseal_simnet.tx_builder import Wallet
from warpseal_simnet.validator_sets import SetEntry, Validation
from warpseal_simnet.values import ChainKind, SimChain, SimMessage, SimSubnet, SimValidator
from warpseal_simnet.versions import VERSIONS

_SECOND_NS = 1_000_000_000
_MAX_FILE_BYTES = 64 * 1024 * 1024
_NO_SHARE = Refusal(0, "no share of this validator was recorded")
_UNKNOWN = Refusal(1, "failed to parse addressed call message: unknown codec version")


@dataclass(frozen=True, slots=True)
class Recording:
    """The lines of a recording, by file."""

    folder: Path

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a file, compressed or not; none if the file does not exist."""
        plain, packed = self.folder / f"{name}.jsonl", self.folder / f"{name}.jsonl.zst"
        if plain.exists():
            text = plain.read_bytes()
        elif packed.exists():
            text = Decompressor(_MAX_FILE_BYTES).decompress(packed.read_bytes())
        else:
            return
        for line in text.splitlines():
            if line.strip():
                yield json.loads(line)

    def results(self, name: str, method: str) -> Iterator[tuple[Any, Any, str]]:
        """Yield parameters, result and node of each successful call of a method, as recorded."""
        for line in self.lines(name):
            if line.get("method") == method and "result" in line:
                yield line["params"], line["result"], line.get("node", "")


@dataclass(slots=True)
class RecordedSigner:
    """Returns the recorded response of each node by chain, message and justification."""

    state: SimState
    shares: dict[tuple[NodeID, MessageID], bytes] = field(default_factory=dict)
    replies: dict[tuple[NodeID, ChainID, bytes, bytes], bytes | Refusal] = field(
        default_factory=dict
    )

    def respond(
        self, validator: SimValidator, chain: SimChain, request: SignatureRequest
    ) -> bytes | Refusal:
        """Return the recorded share or refusal, or the refusal that the chain's rules give."""
        message = request.message
        key = (validator.node_id, chain.chain_id, message.raw, request.justification)
        if key in self.replies:
            return self.replies[key]
        share = self.shares.get((validator.node_id, message.id))
        if share is not None and message.source_chain_id == chain.chain_id:
            return share
        if chain.kind is not ChainKind.P:
            return _UNKNOWN
        return (
            p_chain_verifier.refusal_of(
                StateAt(self.state, self.state.heights.current), message, request.justification
            )
            or _NO_SHARE
        )


def recorded_network(folder: Path, settings: NodeSettings | None = None) -> SimulatedNetwork:
    """Return the recorded network, not started. The first recorded node serves the RPC calls.

    settings: the settings of the nodes. The default is 1.15.0, since no newer node was recorded.
    """
    settings = settings or NodeSettings(version=VERSIONS["1.15.0"])
    rebuilt = _Rebuilder(Recording(folder), settings)
    plan = Plan(network_id=rebuilt.state.network_id, node_is_validator=True, settings=settings)
    return SimulatedNetwork(plan, state=rebuilt.state, signer=rebuilt.signer)


class _Rebuilder:
    """Rebuilds the chain state and the signer of a recording."""

    def __init__(self, recording: Recording, settings: NodeSettings) -> None:
        self._recording = recording
        self.state = self._empty_state(settings)
        self.signer = RecordedSigner(self.state)
        self._nodes: dict[str, SimValidator] = {}
        self._add_subnets()
        self._add_epochs()
        self._add_nodes()
        self._add_validations()
        self._add_sets()
        self._add_shares()
        self._add_wire_responses()
        self._add_blocks()

    @cached_property
    def _primary(self) -> frozenset[str]:
        for params, result, _ in self._recording.results(
            "platform", "platform.getCurrentValidators"
        ):
            if parse_id(params["subnetID"]) == PRIMARY_NETWORK:
                return frozenset(entry["nodeID"] for entry in result["validators"])
        return frozenset()

    def _empty_state(self, settings: NodeSettings) -> SimState:
        _, network, _ = next(self._recording.results("info", "info.getNetworkID"))
        _, height, _ = next(self._recording.results("platform", "platform.getHeight"))
        tip = int(height["height"])
        heights = Heights(tip, first=tip, made_at=[settings.clock()])
        network_id = int(network["networkID"])
        return SimState(
            network_id,
            heights,
            settings.clock,
            Ledger(heights, Wallet(network_id, P_CHAIN, bytes(32))),
        )

    def _add_subnets(self) -> None:
        state = self.state
        upgrades: dict[str, Any] = next(
            (result for _, result, _ in self._recording.results("info", "info.upgrades")), {}
        )
        if "heliconTime" in upgrades:
            state.upgrades["helicon"] = datetime.fromisoformat(upgrades["heliconTime"]).timestamp()
        rule = EpochRule(1, upgrades.get("graniteEpochDuration", 0) // _SECOND_NS)
        state.subnets[PRIMARY_NETWORK] = SimSubnet(PRIMARY_NETWORK, PRIMARY)
        state.add_chain(SimChain(P_CHAIN, PRIMARY_NETWORK, ChainKind.P, "P-Chain", "P"), rule)
        for params, result, _ in self._recording.results("platform", "platform.getSubnet"):
            subnet_id = SubnetID(parse_id(params["subnetID"]))
            state.subnets[subnet_id] = _subnet(subnet_id, f"l1-{len(state.subnets) - 1}", result)
        _, blockchains, _ = next(self._recording.results("platform", "platform.getBlockchains"))
        for entry in blockchains["blockchains"]:
            chain = _chain(entry)
            state.add_chain(chain, rule)

    def _add_epochs(self) -> None:
        for line in self._recording.lines("proposervm"):
            if line["method"] == "proposervm.getCurrentEpoch":
                epoch = ChainEpoch(
                    *(int(line["result"][name]) for name in ("number", "startTime", "pChainHeight"))
                )
                self.state.proposervm[ChainID(parse_id(line["path"].split("/")[3]))].resume(epoch)

    def _add_nodes(self) -> None:
        keys = {
            result["nodeID"]: bytes.fromhex(result["nodePOP"]["publicKey"][2:])
            for _, result, _ in self._recording.results("info", "info.getNodeID")
        }
        for line in self._recording.lines("wire"):
            if "certificate_der" in line:
                self._add_node(line["node"], keys[line["node"]])
            elif line.get("direction") == "received" and line["message"] == "handshake":
                tracked = _message_of(line).handshake.tracked_subnets
                self._track(line["node"], [SubnetID(subnet_id) for subnet_id in tracked])

    def _add_node(self, name: str, bls_key: bytes) -> None:
        index = len(self.state.validators)
        identity = make_identity(f"recorded {name}".encode())
        validator = SimValidator(index, identity, bls_key, name in self._primary)
        self.state.add_validator(validator)
        self._nodes[name] = validator
        validator.chains.add(P_CHAIN)
        if validator.validates_primary:
            validator.chains.update(self.state.chains_of(PRIMARY_NETWORK))

    def _track(self, name: str, subnet_ids: list[SubnetID]) -> None:
        node = self._nodes[name]
        node.subnets |= frozenset(subnet_ids)
        for subnet_id in subnet_ids:
            node.chains.update(self.state.chains_of(subnet_id))

    def _add_validations(self) -> None:
        seen = set[SubnetID]()
        for params, result, _ in self._recording.results(
            "platform", "platform.getCurrentValidators"
        ):
            subnet_id = SubnetID(parse_id(params["subnetID"]))
            if subnet_id not in seen:
                for place, entry in enumerate(result["validators"]):
                    self.state.add_validation(self._validation(subnet_id, place, entry))
            seen.add(subnet_id)

    def _validation(self, subnet_id: SubnetID, place: int, entry: dict[str, Any]) -> Validation:
        node = self._nodes[entry["nodeID"]]
        validation_id = ValidationID(parse_id(entry.get("validationID") or entry["txID"]))
        weight, start = int(entry["weight"]), int(entry["startTime"])
        validation = Validation(
            subnet_id, node.node_id, node.bls_key, weight, validation_id, start, index=place
        )
        if "validationID" in entry:
            validation.is_l1 = True
            validation.end_accumulated_fee, validation.min_nonce = (
                int(entry["balance"]),
                int(entry["minNonce"]),
            )
        return validation

    def _add_sets(self) -> None:
        recorded: dict[tuple[int, SubnetID], Any] = {}
        for params, result, _ in self._recording.results("platform", "platform.getValidatorsAt"):
            if isinstance(params["height"], int):
                recorded[params["height"], SubnetID(parse_id(params["subnetID"]))] = result
        for (height, subnet_id), result in sorted(recorded.items()):
            members = tuple(self._member(name, entry) for name, entry in result.items())
            self.state.history.put(subnet_id, height, members)

    def _member(self, name: str, entry: dict[str, Any]) -> SetEntry:
        node_id = parse_node_id(name)
        key = bytes.fromhex(entry["publicKey"][2:]) if entry["publicKey"] else None
        recorded_id = node_id if node_id == EMPTY_NODE_ID else self._nodes[name].node_id
        return SetEntry(recorded_id, key, int(entry["weight"]))

    def _add_shares(self) -> None:
        for _, result, _ in self._recording.results("shares", "warp_getMessage"):
            self._add_message(UnsignedMessage.parse(bytes.fromhex(result[2:])), b"")
        for params, result, name in self._recording.results("shares", "warp_getMessageSignature"):
            key = (self._nodes[name].node_id, MessageID(parse_id(params[0])))
            self.signer.shares[key] = bytes.fromhex(result[2:])

    def _add_wire_responses(self) -> None:
        requests: dict[tuple[str, int], p2p.AppRequest] = {}
        for line in self._recording.lines("wire"):
            if line.get("message") == "app_request":
                request = _message_of(line).app_request
                requests[line["node"], request.request_id] = request
            elif line.get("message") in ("app_response", "app_error"):
                reply = _message_of(line)
                request_id = getattr(reply, line["message"]).request_id
                self._record_response(line["node"], requests[line["node"], request_id], reply)

    def _record_response(self, name: str, request: p2p.AppRequest, reply: p2p.Message) -> None:
        signature_request = parse_signature_request(
            request.app_bytes.removeprefix(bytes([HANDLER_ID]))
        )
        if isinstance(signature_request, Refusal):
            return
        key = (
            self._nodes[name].node_id,
            ChainID(request.chain_id),
            signature_request.message.raw,
            signature_request.justification,
        )
        if reply.HasField("app_error"):
            self.signer.replies[key] = Refusal(
                reply.app_error.error_code, reply.app_error.error_message
            )
        else:
            response = sdk.SignatureResponse.FromString(reply.app_response.app_bytes)
            self.signer.replies[key] = response.signature
            self._add_message(signature_request.message, signature_request.justification)

    def _add_blocks(self) -> None:
        ids: dict[int, str] = {}
        blocks: dict[str, bytes] = {}
        transactions = set[bytes]()
        for params, result, _ in self._recording.results("p-chain", "platform.getBlockByHeight"):
            ids[int(params["height"])] = result["block"]["id"]
        for params, result, _ in self._recording.results("p-chain", "platform.getBlock"):
            blocks[params["blockID"]] = _unchecked(result["block"])
        for params, result, _ in self._recording.results("p-chain", "platform.getTx"):
            if params["encoding"] == "hex":
                transactions.add(_unchecked(result["tx"]))
        if sorted(ids) == list(range(self.state.heights.current + 1)):
            genesis = [
                _unchecked(result["tx"])
                for _, result, _ in self._recording.results("genesis-txs", "platform.getTx")
            ]
            self.state.ledger.load(
                [blocks[ids[height]] for height in sorted(ids)], sorted(transactions), genesis
            )

    def _add_message(self, message: UnsignedMessage, justification: bytes) -> None:
        if message.id not in self.state.message_ids:
            subnet_id = self.state.chains[message.source_chain_id].subnet_id
            self.state.add_messages([SimMessage(message, justification, subnet_id)])


def rewritten_node_ids(network: SimulatedNetwork, folder: Path) -> dict[str, str]:
    """Return the NodeID that replaces each recorded one, in the recorded order of the nodes."""
    recorded = [line["node"] for line in Recording(folder).lines("wire") if "tls" in line]
    return {
        name: node_id_text(node.node_id)
        for name, node in zip(recorded, network.validators, strict=True)
    }


def _subnet(subnet_id: SubnetID, name: str, result: dict[str, Any]) -> SimSubnet:
    if result["isPermissioned"]:
        return SimSubnet(subnet_id, name)
    manager = ChainID(parse_id(result["managerChainID"]))
    address = bytes.fromhex((result["managerAddress"] or "0x")[2:])
    return SimSubnet(subnet_id, name, parse_id(result["conversionID"]), manager, address)


def _chain(entry: dict[str, Any]) -> SimChain:
    aliases = {"C-Chain": "C", "X-Chain": "X"}
    kind = ChainKind.X if entry["name"] == "X-Chain" else ChainKind.EVM
    chain_id, subnet_id = ChainID(parse_id(entry["id"])), SubnetID(parse_id(entry["subnetID"]))
    return SimChain(chain_id, subnet_id, kind, entry["name"], aliases.get(entry["name"]))


def _unchecked(text: str) -> bytes:
    """Return the bytes of a hex text without its checksum."""
    return bytes.fromhex(text[2:])[:-4]


def _message_of(line: dict[str, Any]) -> p2p.Message:
    return decode(bytes.fromhex(line["frame"])[LENGTH_BYTES:])
