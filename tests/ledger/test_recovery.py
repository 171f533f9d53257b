"""Who signed is read off a signature."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chains.exchanges import results, vector
from tests.chains.p_vectors import unchecked
from tests.ledger.plain_recovery import plain_public_key
from tests.ledger.recorded import p_blocks, replayed
from warpseal.chains.ids import parse_address
from warpseal.chains.x_txs import parse_x_tx
from warpseal.ledger.utxo_flow import hash_unsigned_tx, recover_public_key, recover_signers

EXPORT = parse_x_tx(bytes.fromhex(vector("x_chain.json")["export_to_p"]))
DIGEST = hash_unsigned_tx(EXPORT.encode_unsigned())
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
SIGNATURE = EXPORT.credentials[0].signatures[0]


def test_a_mainnet_export_was_signed_by_its_recipient() -> None:
    _, address = parse_address("avax1tnuesf6cqwnjw7fxjyk7lhch0vhf0v95wj5jvy")
    assert recover_signers(DIGEST, (SIGNATURE, SIGNATURE)) == (address,)


def test_inputs_of_the_recorded_network_were_signed_by_their_owners() -> None:
    outputs = {out.id: out for effects in replayed().p for tx in effects.txs for out in tx.emitted}
    outputs |= {out.id: out for out in replayed().p[0].emitted}
    checked = 0
    for effects in replayed().p[1:]:
        for tx in effects.txs:
            digest = hash_unsigned_tx(tx.tx.encode_unsigned())
            for spent in tx.consumed:
                if spent.id in outputs:
                    signatures = tx.tx.credentials[spent.credential].signatures
                    assert set(recover_signers(digest, signatures)) <= set(
                        outputs[spent.id].addresses
                    )
                    assert len(signatures) == outputs[spent.id].threshold
                    checked += 1
    # Two of the blocks are imports, which spend what other chains made.
    assert checked == len(p_blocks()) - 2


def test_inputs_of_the_recorded_x_chain_were_signed_by_their_owners() -> None:
    outputs = {out.id: out for tx in replayed().x for out in tx.emitted}
    for tx in replayed().x[1:]:
        digest = hash_unsigned_tx(tx.tx.encode_unsigned())
        for spent in tx.consumed:
            if spent.id in outputs:
                assert (
                    recover_signers(digest, tx.tx.credentials[spent.credential].signatures)
                    == outputs[spent.id].addresses
                )
    assert [
        unchecked(result["tx"]) for _, result in results("avm.jsonl", "avm.getTx", encoding="hex")
    ]


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        bytes(65),
        SIGNATURE[:64] + b"\x04",
        b"\xff" * 32 + SIGNATURE[32:],
        SIGNATURE[:32] + b"\xff" * 32 + SIGNATURE[64:],
        SIGNATURE[:32] + bytes(32) + SIGNATURE[64:],
    ],
)
def test_a_malformed_signature_has_no_signer(signature: bytes) -> None:
    assert recover_public_key(DIGEST, signature) is None
    assert recover_signers(DIGEST, (signature,)) == ()


@given(st.binary(min_size=65, max_size=65), st.binary(min_size=32, max_size=32))
def test_recovery_from_any_bytes_gives_a_key_or_none(signature: bytes, digest: bytes) -> None:
    key = recover_public_key(digest, signature)
    assert key is None or (len(key) == 33 and key[0] in (2, 3))
    assert key == plain_public_key(digest, signature)


@pytest.mark.parametrize("r", [0, 1, 2, 2**128, ORDER - 1, ORDER])
@pytest.mark.parametrize("s", [0, 1, 5, ORDER - 1, ORDER])
@pytest.mark.parametrize("recovery_id", range(5))
def test_recovery_at_the_edges_equals_a_plain_calculation(r: int, s: int, recovery_id: int) -> None:
    signature = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([recovery_id])
    assert recover_public_key(DIGEST, signature) == plain_public_key(DIGEST, signature)
