"""The recorded shares, the bit sets of the reference's responses, and its bytes belong together."""

from __future__ import annotations

import json

import pytest
from eth_typing import BLSPubkey, BLSSignature
from py_ecc.bls.ciphersuites import G2ProofOfPossession

from tests.api.signing.reference_table import load_exchanges
from tests.bls.witness import fast_aggregate_verify
from tests.integration.message_verifier import parse_signed_message
from tests.recorded import recording

RESULTS = {
    bytes.fromhex(json.loads(exchange.body)["signed-message"]): exchange.position
    for exchange in reversed(load_exchanges())
    if exchange.body.startswith('{"signed-message"')
}
"""The different signed messages of the reference, and where each stands first."""


def test_the_reference_was_recorded_signing_messages_of_all_three_subnets() -> None:
    messages = {parse_signed_message(response)[0] for response in RESULTS}
    assert messages == recording.shares().keys()
    subnets = {recording.subnet_of(unsigned) for unsigned in messages}
    assert subnets == {recording.PRIMARY, recording.L1, recording.PERMISSIONED}


@pytest.mark.parametrize("response", RESULTS, ids=RESULTS.get)
def test_recorded_shares_of_the_signers_sum_to_the_references_signature(response: bytes) -> None:
    unsigned, _, signature = parse_signed_message(response)
    assert recording.sum_of_shares(unsigned, recording.signers_of(response)) == signature


def test_every_recorded_share_is_the_signature_of_its_key() -> None:
    for unsigned, of_message in recording.shares().items():
        for key, share in of_message.items():
            assert fast_aggregate_verify([key], unsigned, share)


@pytest.mark.parametrize("subnet_id", [recording.PRIMARY, recording.L1, recording.PERMISSIONED])
def test_py_ecc_agrees_with_the_reference(subnet_id: str) -> None:
    response = next(
        response
        for response in RESULTS
        if recording.subnet_of(parse_signed_message(response)[0]) == subnet_id
    )
    unsigned, _, signature = parse_signed_message(response)
    signers = [BLSPubkey(signer) for signer in recording.signers_of(response)]
    assert G2ProofOfPossession.FastAggregateVerify(signers, unsigned, BLSSignature(signature))
