"""What was recorded, read without the daemon and without the simulated network: shares, keys,
validator sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

from tests import paths
from tests.bls.witness import aggregate
from tests.integration.message_verifier import build_canonical_keys, parse_signed_message
from warpseal.warp.ids import EMPTY_NODE_ID
from warpseal_simnet.validator_sets import SetEntry

RECORDING: Final = paths.LOCALNET

HEIGHT: Final = 19
"""The proposed height while the reference was asked."""

PRIMARY: Final = "11111111111111111111111111111111LpoYY"
L1: Final = "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"
PERMISSIONED: Final = "aYNnvyVdUEhfDP5T3c8WKNfxHAkzk5yweAoTYk5YnW6J4wREb"

INACTIVE: Final = "NodeID-F3JBbBDkXHTFkeAaxxUbmLsJCFFgtDMtF"
"""The validator of the L1 that has no balance since height 19; its node runs on and signs."""

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@cache
def keys_by_node() -> dict[str, bytes]:
    """Return each node's public key."""
    listed: dict[str, str] = json.loads((RECORDING / "bls-keys.json").read_text())
    return {name: bytes.fromhex(key[2:]) for name, key in listed.items()}


@cache
def shares() -> dict[bytes, dict[bytes, bytes]]:
    """Return by unsigned message what each public key signed, 96 bytes each."""
    messages: dict[str, bytes] = {}
    bodies: dict[bytes, dict[bytes, bytes]] = {}
    for line in _lines("shares.jsonl"):
        message_id, result = line["params"][0], bytes.fromhex(line["result"][2:])
        if line["method"] == "warp_getMessage":
            messages[message_id] = result
        else:
            bodies.setdefault(messages[message_id], {})[keys_by_node()[line["node"]]] = result
    return bodies


@cache
def validators(subnet_id: str, height: int = HEIGHT) -> tuple[list[tuple[bytes, int]], int]:
    """Return a subnet's public keys with weights, in canonical order, and the total weight."""
    params = {"height": height, "subnetID": subnet_id}
    for line in _lines("platform.jsonl"):
        if line["method"] == "platform.getValidatorsAt" and line["params"] == params:
            return build_canonical_keys(_member(entry) for entry in line["result"].values())
    raise LookupError(f"no set of {subnet_id} at {height} was recorded")


@cache
def blockchains() -> dict[str, str]:
    """Return the subnet of each chain, both in base58-check, by the recorded getBlockchains."""
    for line in _lines("platform.jsonl"):
        if line["method"] == "platform.getBlockchains":
            return {chain["id"]: chain["subnetID"] for chain in line["result"]["blockchains"]}
    raise LookupError("no chains were recorded")


def subnet_of(unsigned: bytes) -> str:
    """Return the subnet that validates a message's source chain."""
    return next(
        subnet_id for chain, subnet_id in blockchains().items() if _id(chain) == unsigned[6:38]
    )


def signers_of(signed: bytes, height: int = HEIGHT) -> list[bytes]:
    """Return the public keys behind a signed message's bit set, by the set of its source chain's
    subnet.
    """
    unsigned, indices, _ = parse_signed_message(signed)
    keys, _ = validators(subnet_of(unsigned), height)
    return [keys[index][0] for index in indices]


def sum_of_shares(unsigned: bytes, keys: Iterable[bytes]) -> bytes:
    """Return the sum of what these keys signed."""
    return aggregate(shares()[unsigned][key] for key in keys)


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with (RECORDING / name).open() as file:
        yield from map(json.loads, file)


def _member(entry: dict[str, Any]) -> SetEntry:
    key = entry["publicKey"]
    return SetEntry(EMPTY_NODE_ID, bytes.fromhex(key[2:]) if key else None, int(entry["weight"]))


def _id(text: str) -> bytes:
    """Decode base58; the last four of 36 bytes are a checksum."""
    number = 0
    for letter in text:
        number = number * 58 + _ALPHABET.index(letter)
    return number.to_bytes(36, "big")[:32]
