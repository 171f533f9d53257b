"""Signed Warp messages as the simulated validators make them, and what a chain that verifies one says of it.

Source of truth: avalanchego `vms/platformvm/warp/{signature,validator}.go`. All members sign at once, with the sum of
their secret keys.
"""

from __future__ import annotations

from typing import Final

from warpseal import bls
from warpseal.simnet.state import World
from warpseal.warp.ids import SubnetID
from warpseal.warp.message import MalformedMessage, SignedMessage, UnsignedMessage, encode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet, canonical_set, meets

QUORUM: Final = 67
_ORDER: Final = int("73eda753299d7d483339d80809a1d80553bda402fffe5bfeffffffff00000001", 16)


def signing_height(world: World, subnet_id: SubnetID) -> int:
    """Return the height of the set that verifiers take now, or the tip's where that set is empty."""
    height = world.heights.verifying
    return height if world.set_at(subnet_id, height) else world.heights.current


def sign(world: World, unsigned: UnsignedMessage, subnet_id: SubnetID, height: int) -> SignedMessage:
    """Return the message with the signatures of every member of a set whose secret key is known here.

    Where that is nobody, because all left or are inactive, everyone signs who ever had a seat. RuntimeError where
    nobody had.
    """
    secrets = {one.identity.bls_public_key: one.identity.bls_secret for one in world.validators}
    for merged in (_canonical(world, subnet_id, height), _ever_seated(world, subnet_id)):
        signers = [place for place, one in enumerate(merged.validators) if one.public_key in secrets]
        if signers:
            break
    else:
        raise RuntimeError(f"nobody can sign for {subnet_id.hex()}")
    keys = (bls.secret_bytes(secrets[merged.validators[place].public_key]) for place in signers)
    total = sum(int.from_bytes(key, "big") for key in keys) % _ORDER
    signature = bls.sign(bls.secret_from_bytes(total.to_bytes(bls.SECRET_KEY_BYTES, "big")), unsigned.raw)
    return SignedMessage(unsigned, encode_signers(signers), signature)


def fault_of(world: World, raw: bytes, subnet_id: SubnetID, height: int) -> str:
    """Return why a subnet's set at a height does not stand behind a signed message; empty where it does."""
    try:
        message = SignedMessage.parse(raw)
    except MalformedMessage as error:
        return f"malformed message: {error}"
    merged = _canonical(world, subnet_id, height)
    indices = message.signer_indices
    if message.unsigned.network_id != world.network_id:
        return f"wrong network id {message.unsigned.network_id}"
    if indices and indices[-1] >= len(merged.validators):
        return f"unknown validator: bit {indices[-1]} of {len(merged.validators)}"
    weight = sum(merged.validators[index].weight for index in indices)
    if not meets(weight, merged.total_weight, QUORUM):
        return f"insufficient weight: {weight} of {merged.total_weight} at height {height}"
    keys = [bls.parse_public_key(merged.validators[index].public_key) for index in indices]
    if not bls.verify_aggregate(keys, message.unsigned.raw, message.signature):
        return f"invalid signature for the set at height {height}"
    return ""


def _canonical(world: World, subnet_id: SubnetID, height: int) -> CanonicalValidatorSet:
    members = world.set_at(subnet_id, height)
    return canonical_set((member.node_id, member.public_key, member.weight) for member in members)


def _ever_seated(world: World, subnet_id: SubnetID) -> CanonicalValidatorSet:
    # A node may have had several, one after another.
    seats = {seat.node_id: seat for seat in world.seats.get(subnet_id, ())}
    return canonical_set((seat.node_id, seat.public_key, seat.weight) for seat in seats.values())
