"""The message that a justification without a message names, and who is to sign it."""

from __future__ import annotations

from hashlib import sha256

import pytest

from tests.aggregation.fixtures import CHAIN, NETWORK_ID, SUBNET, Chains
from warpseal.aggregation.errors import NothingToSign, SubnetNotConverted, UnusableJustification
from warpseal.aggregation.resolve import derive_message, manager_subnet
from warpseal.errors import InvalidRequest
from warpseal.node.p_chain import Subnet
from warpseal.validators.errors import UnknownSubnet
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, SubnetID
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    PChainOwner,
    RegisterL1Validator,
    SubnetToL1Conversion,
)
from warpseal.warp.message import AddressedCall

L1 = SubnetID(sha256(b"l1").digest())
CONVERSION_ID = sha256(b"conversion").digest()


def chains() -> Chains:
    chain_lookup = Chains()
    chain_lookup.subnets[L1] = Subnet(L1, CONVERSION_ID, CHAIN, bytes(20))
    return chain_lookup


def registration() -> RegisterL1Validator:
    no_owner = PChainOwner(0, ())
    return RegisterL1Validator(L1, bytes(20), bytes(48), 1_800_000_000, no_owner, no_owner, 100)


async def test_32_bytes_are_a_subnet_whose_conversion_is_attested() -> None:
    message, about = await derive_message(L1, NETWORK_ID, chains())
    assert about == L1
    assert (message.network_id, message.source_chain_id) == (NETWORK_ID, P_CHAIN)
    call = AddressedCall.parse(message.payload)
    assert call.source_address == b""
    assert SubnetToL1Conversion.parse(call.payload).conversion_id == CONVERSION_ID


@pytest.mark.parametrize(
    "proof",
    [
        L1ValidatorRegistrationJustification.bootstrap(L1, 3),
        L1ValidatorRegistrationJustification.registered(registration()),
    ],
)
async def test_a_proof_of_a_validation_asks_that_it_is_not_registered(
    proof: L1ValidatorRegistrationJustification,
) -> None:
    message, about = await derive_message(proof.raw, NETWORK_ID, chains())
    assert about == L1
    payload = AddressedCall.parse(message.payload).payload
    assert L1ValidatorRegistration.parse(payload) == L1ValidatorRegistration(
        proof.validation_id, False
    )


@pytest.mark.parametrize(
    "raw", [b"\x01", bytes(31), bytes(33), b"\x0a\x00", b"\x0a\x22\x0a\x20" + bytes(31)]
)
async def test_anything_else_is_unusable(raw: bytes) -> None:
    with pytest.raises(UnusableJustification) as error:
        await derive_message(raw, NETWORK_ID, chains())
    assert isinstance(error.value, InvalidRequest)


async def test_nothing_at_all_is_nothing_to_sign() -> None:
    with pytest.raises(NothingToSign):
        await derive_message(b"", NETWORK_ID, chains())


async def test_a_subnet_that_is_no_l1_has_no_conversion_to_attest() -> None:
    with pytest.raises(SubnetNotConverted):
        await derive_message(SUBNET, NETWORK_ID, chains())
    with pytest.raises(SubnetNotConverted):
        await manager_subnet(SUBNET, chains())


async def test_an_unknown_subnet_is_named() -> None:
    with pytest.raises(UnknownSubnet):
        await derive_message(bytes(31) + b"\x07", NETWORK_ID, chains())


async def test_the_subnet_of_the_manager_chain_signs() -> None:
    chain_lookup = chains()
    assert await manager_subnet(L1, chain_lookup) == SUBNET
    chain_lookup.subnets[L1] = Subnet(L1, CONVERSION_ID, P_CHAIN, bytes(20))
    assert await manager_subnet(L1, chain_lookup) == PRIMARY_NETWORK
