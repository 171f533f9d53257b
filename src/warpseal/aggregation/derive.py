"""The message that a justification without a message names, and who is to sign it.

Source of truth: ACP-77 for the messages; avalanchego `vms/platformvm/network/warp.go` for the justifications.
"""

from __future__ import annotations

from warpseal.aggregation.ports import Chains
from warpseal.errors import NothingToSign, SubnetNotConverted, UnusableJustification
from warpseal.warp.ids import ID_BYTES, SubnetID, id_text
from warpseal.warp.justification import L1ValidatorRegistrationJustification, MalformedJustification
from warpseal.warp.l1_messages import L1ValidatorRegistration, SubnetToL1Conversion, build_p_chain_message
from warpseal.warp.message import UnsignedMessage


async def derive(justification: bytes, network_id: int, chains: Chains) -> tuple[UnsignedMessage, SubnetID]:
    """Return the message of the P-Chain that a justification names, and the subnet that it is about.

    32 bytes are a subnet's id: its conversion. The proof of a validation: that it is not registered (any more).
    Raises UnusableJustification, SubnetNotConverted, UnknownSubnet, NodeUnavailable.
    """
    if len(justification) == ID_BYTES:
        subnet_id = SubnetID(justification)
        payload = await _conversion(subnet_id, chains)
    else:
        proof = _parse(justification)
        subnet_id = proof.subnet_id
        payload = L1ValidatorRegistration(proof.validation_id, False).encode()
    return build_p_chain_message(network_id, payload), subnet_id


async def manager_subnet(subnet_id: SubnetID, chains: Chains) -> SubnetID:
    """Return the subnet whose chain hosts the validator manager of an L1: it verifies what the P-Chain says.

    Raises SubnetNotConverted, UnknownSubnet, UnknownChain, NodeUnavailable.
    """
    subnet = await chains.subnet(subnet_id)
    if not subnet.is_l1 or subnet.manager_chain_id is None:
        raise SubnetNotConverted(id_text(subnet_id))
    return await chains.subnet_of(subnet.manager_chain_id)


async def _conversion(subnet_id: SubnetID, chains: Chains) -> bytes:
    subnet = await chains.subnet(subnet_id)
    if not subnet.is_l1 or subnet.conversion_id is None:
        raise SubnetNotConverted(id_text(subnet_id))
    return SubnetToL1Conversion(subnet.conversion_id).encode()


def _parse(justification: bytes) -> L1ValidatorRegistrationJustification:
    if not justification:
        raise NothingToSign("message", "neither a message nor a justification was given")
    try:
        return L1ValidatorRegistrationJustification.parse(justification)
    except MalformedJustification as error:
        raise UnusableJustification("justification", error.reason) from None
