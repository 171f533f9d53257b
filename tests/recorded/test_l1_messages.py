"""The L1 transactions of the recorded network over the whole daemon: what it derives is what was
delivered on the L1.

Shares were recorded for the removal alone; of the others the signature is derived, not witnessed.
"""

from __future__ import annotations

import pytest

from tests.integration.daemon import Daemon
from tests.integration.message_verifier import verify_signed_message, verify_with_py_ecc
from tests.messages.test_attestation import delivered, recorded_txs
from warpseal.warp.ids import SubnetID, id_text, parse_id
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal_simnet.network import SimulatedNetwork

pytestmark = pytest.mark.asyncio(loop_scope="module")

L1 = "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"
L1_ID = SubnetID(parse_id(L1))
# Block of the L1 in which the manager took the message, by type.
WITNESSED = {"ConvertSubnetToL1Tx": 18, "SetL1ValidatorWeightTx": 42, "RegisterL1ValidatorTx": 54}
PROOFS = {
    "ConvertSubnetToL1Tx": L1_ID,
    "SetL1ValidatorWeightTx": L1ValidatorRegistrationJustification.bootstrap(L1_ID, 0).raw,
    "RegisterL1ValidatorTx": b"",
}


@pytest.mark.parametrize("kind", WITNESSED)
async def test_message_justification_and_signers_equal_the_recorded_ones(
    daemon: Daemon, kind: str
) -> None:
    (tx_hash,) = [id_text(tx.id) for tx in recorded_txs() if tx.kind == kind]
    result = await daemon.explanation(tx_hash)
    assert result["message"]["hex"] == "0x" + dict(delivered())[WITNESSED[kind]].raw.hex()
    assert result["justification"]["hex"] == "0x" + PROOFS[kind].hex()
    assert result["signingSubnetId"] == L1
    assert result["failing"] is None


async def test_other_transactions_have_no_message(daemon: Daemon) -> None:
    others = [tx for tx in recorded_txs() if tx.kind not in WITNESSED]
    assert len(others) > 10
    for tx in others:
        reply = await daemon.l1_message(id_text(tx.id))
        assert (reply.status, reply.body["code"]) == (400, "no_message")
        assert reply.detail["transactionType"] == tx.kind


async def test_the_recorded_shares_sign_the_removal(
    daemon: Daemon, network: SimulatedNetwork
) -> None:
    (tx_hash,) = [id_text(tx.id) for tx in recorded_txs() if tx.kind == "SetL1ValidatorWeightTx"]
    reply = await daemon.l1_message(tx_hash)
    assert reply.status == 201, reply.body
    unsigned = dict(delivered())[42].raw
    height = int(reply.headers["X-Warpseal-P-Chain-Height"])
    verify_with_py_ecc(verify_signed_message(network, reply.signed, unsigned, L1_ID, 67, height))
