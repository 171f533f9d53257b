"""Lies of simulated RPC nodes, and their grammar.

Examples are `1:old-sets=5` and `0,2:foreign-sets+forged-height=9`. A lie changes what the honest
reply says. Equal lies of two nodes are equal, so that liars may agree with each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from warpseal import bls
from warpseal.warp.ids import NodeID, id_text, node_id_text
from warpseal_simnet.rpc import Method, Params
from warpseal_simnet.settings import CLIENT_NAME

_NODE_ID_BYTES: Final = 20


class InvalidNodeBehaviour(ValueError):
    """The text does not describe a behaviour of a node; the message names the invalid part."""


@dataclass(frozen=True, slots=True)
class NodeBehaviour:
    """How an RPC node lies; it may change while the network runs.

    old_sets: the age of returned sets: blocks before the height in question.
    foreign_sets: the validators of sets and current validations are nodes that do not exist, with
        keys of the liar.
    forged_height: the number added to heights of the P-Chain; sets beyond the tip are the tip's.
    forged_proposal: the number added to the proposed height alone, at which the node has no set.
    forged_epoch: the number added to the P-Chain heights of chains' next blocks and epochs.
    foreign_conversion: subnets have another conversion and manager, and chains another subnet.
    forged_balance: nAVAX added to the balances of L1 validators.
    foreign_version: the release of the node.
    foreign_upgrade: the date of Helicon.
    """

    old_sets: int = 0
    foreign_sets: bool = False
    forged_height: int = 0
    forged_proposal: int = 0
    forged_epoch: int = 0
    foreign_conversion: bool = False
    forged_balance: int = 0
    foreign_version: str = ""
    foreign_upgrade: str = ""


@dataclass(frozen=True, slots=True)
class NodeRule:
    """The behaviour of some RPC nodes, by their places from 0."""

    places: tuple[int, ...]
    behaviour: NodeBehaviour


def parse_node_rule(text: str) -> NodeRule:
    """Return the rule of `PLACES:WORD[+WORD...]`, such as `1,2:old-sets=5`.

    Raises InvalidNodeBehaviour.
    """
    places, colon, words = text.partition(":")
    numbers = places.split(",")
    if not colon or not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidNodeBehaviour(f"{text!r} is not NODES:BEHAVIOUR, such as 1:old-sets=5")
    return NodeRule(tuple(map(int, numbers)), parse_node_behaviour(words))


def parse_node_behaviour(text: str) -> NodeBehaviour:
    """Return the behaviour of words joined by `+`; of no words an honest one.

    Raises InvalidNodeBehaviour.
    """
    behaviour = NodeBehaviour()
    for word in filter(None, text.split("+")):
        name, _, value = word.partition("=")
        if name not in _WORDS:
            raise InvalidNodeBehaviour(
                f"{name!r} is not a behaviour of a node; known: {', '.join(_WORDS)}"
            )
        try:
            behaviour = replace(behaviour, **_WORDS[name](value))
        except ValueError as error:
            raise InvalidNodeBehaviour(f"{word}: {error}") from None
    return behaviour


_WORDS: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "old-sets": lambda value: {"old_sets": int(value or 1)},
    "foreign-sets": lambda _: {"foreign_sets": True},
    "forged-height": lambda value: {"forged_height": int(value or 1000)},
    "forged-proposal": lambda value: {"forged_proposal": int(value or 1000)},
    "forged-epoch": lambda value: {"forged_epoch": int(value or 1000)},
    "foreign-conversion": lambda _: {"foreign_conversion": True},
    "forged-balance": lambda value: {"forged_balance": int(value or 10**9)},
    "foreign-version": lambda value: {"foreign_version": value or "99.0.0"},
    "foreign-upgrade": lambda value: {"foreign_upgrade": value or "1960-01-01T00:00:00Z"},
}


def with_lies(
    methods: Mapping[str, Method], behaviour: Callable[[], NodeBehaviour]
) -> dict[str, Method]:
    """Return the platform.* calls of a node that behaves so at the moment of each call."""

    def lying(method: Method, lie: Callable[[Method, Params, NodeBehaviour], Any]) -> Method:
        def reply_to(params: Params) -> Any:
            current = behaviour()
            return method(params) if current == NodeBehaviour() else lie(method, params, current)

        return reply_to

    tip = methods["platform.getHeight"]

    def at_height(params: Params, lies: NodeBehaviour) -> Params:
        """Return the parameters with the height of which the sets are shown."""
        height = params.get("height")
        if not isinstance(height, int | str) or not str(height).isdigit():
            return params
        set_height = min(int(height), int(tip({})["height"])) if lies.forged_height else int(height)
        return {**params, "height": max(0, set_height - lies.old_sets)}

    def validators_at(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
        members = json.loads(honest(at_height(params, lies)))
        if not lies.foreign_sets:
            return members
        return {
            _foreign_node(name): {**member, "publicKey": _foreign_key(name)}
            for name, member in members.items()
        }

    def all_validators_at(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
        sets = json.loads(honest(at_height(params, lies)))["validatorSets"]
        for members in sets.values() if lies.foreign_sets else ():
            for member in members["validators"]:
                member["publicKey"] = _foreign_key(member["publicKey"])
                member["nodeIDs"] = list(map(_foreign_node, member["nodeIDs"]))
        return {"validatorSets": sets}

    lies = {
        "platform.getValidatorsAt": validators_at,
        "platform.getAllValidatorsAt": all_validators_at,
        "platform.getHeight": _forge_height,
        "platform.getProposedHeight": _forge_proposed_height,
        "platform.getCurrentValidators": _change_validations,
        "platform.getL1Validator": _change_l1_validation,
        "platform.getSubnet": _convert_otherwise,
        "platform.validatedBy": _name_another_subnet,
        "platform.validates": _add_chain,
    }
    return {**methods, **{name: lying(methods[name], lie) for name, lie in lies.items()}}


def with_info_lies(
    methods: Mapping[str, Method], behaviour: Callable[[], NodeBehaviour]
) -> dict[str, Method]:
    """Return the info.* calls of a node that behaves so at the moment of each call."""

    def node_version(params: Params) -> Any:
        reply, version = methods["info.getNodeVersion"](params), behaviour().foreign_version
        return {**reply, "version": f"{CLIENT_NAME}/{version}"} if version else reply

    def upgrades(params: Params) -> Any:
        reply, date = methods["info.upgrades"](params), behaviour().foreign_upgrade
        return {**reply, "heliconTime": date} if date else reply

    return {**methods, "info.getNodeVersion": node_version, "info.upgrades": upgrades}


def with_proposervm_lies(
    methods: Mapping[str, Method], behaviour: Callable[[], NodeBehaviour]
) -> dict[str, Method]:
    """Return the proposervm.* calls of a node that behaves so at the moment of each call."""

    def forge(method: str, field: str) -> Method:
        def reply_to(params: Params) -> Any:
            reply = methods[method](params)
            return {**reply, field: str(int(reply[field]) + behaviour().forged_epoch)}

        return reply_to

    fields = {
        "proposervm.getProposedHeight": "height",
        "proposervm.getCurrentEpoch": "pChainHeight",
    }
    return {**methods, **{method: forge(method, field) for method, field in fields.items()}}


def _forge_height(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
    reply = honest(params)
    return {**reply, "height": str(int(reply["height"]) + lies.forged_height)}


def _forge_proposed_height(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
    reply = _forge_height(honest, params, lies)
    return {**reply, "height": str(int(reply["height"]) + lies.forged_proposal)}


def _change_validations(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
    validations = [_forge_balance(listed, lies) for listed in honest(params)["validators"]]
    if lies.foreign_sets:
        validations = [
            {**listed, "nodeID": _foreign_node(listed["nodeID"])} for listed in validations
        ]
    return {"validators": validations}


def _change_l1_validation(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
    reply = _forge_balance(_forge_height(honest, params, lies), lies)
    return {**reply, "weight": str(int(reply["weight"]) + 1)} if lies.foreign_sets else reply


def _forge_balance(validation: Mapping[str, Any], lies: NodeBehaviour) -> Mapping[str, Any]:
    if "balance" not in validation:
        return validation
    return {**validation, "balance": str(int(validation["balance"]) + lies.forged_balance)}


def _convert_otherwise(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
    reply = honest(params)
    if not lies.foreign_conversion:
        return reply
    foreign = {
        "conversionID": _foreign_id(reply["conversionID"]),
        "managerAddress": "0x" + "66" * 20,
    }
    return {**reply, **foreign, "managerChainID": _foreign_id(reply["managerChainID"])}


def _name_another_subnet(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
    reply = honest(params)
    return {"subnetID": _foreign_id(reply["subnetID"])} if lies.foreign_conversion else reply


def _add_chain(honest: Method, params: Params, lies: NodeBehaviour) -> Any:
    reply = honest(params)
    if not lies.foreign_conversion:
        return reply
    return {"blockchainIDs": [*reply["blockchainIDs"], _foreign_id(json.dumps(reply))]}


def _foreign_id(text: str) -> str:
    return id_text(sha256(b"foreign " + text.encode()).digest())


def _foreign_node(name: str) -> str:
    return node_id_text(NodeID(sha256(b"foreign " + name.encode()).digest()[:_NODE_ID_BYTES]))


@lru_cache(1024)
def _foreign_key(name: str) -> str:
    secret = bls.generate_secret(sha256(b"foreign " + name.encode()).digest())
    return "0x" + bls.public_key_bytes(bls.derive_public_key(secret)).hex()
