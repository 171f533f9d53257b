"""BLS by each library: documented vectors, agreement with py-ecc, and refusal of malformed keys and
shares.
"""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from eth_typing import BLSPubkey, BLSSignature
from hypothesis import given
from hypothesis import strategies as st
from py_ecc.bls.ciphersuites import G2ProofOfPossession as Oracle

from tests.bls.interfaces import installed_backends, load_interface
from tests.warp import l1_txs
from warpseal.bls import MalformedKey, MalformedShare

UNSIGNED = bytes.fromhex(
    "00000000007b010203000000000000000000000000000000000000000000000000000000000000000006666f6f626172"
)
SIGNATURE_1 = bytes.fromhex(
    "a0f4fd6e5030198521cc31505fb77c757b5bb8d9fd9f6c5485f34518b2d612834b76600ab609ca9b40c198f339bf405f"
    "06731e39a530d9e2be393b3a36fab9044eac27c4b6e5292cd69e6d0b5700c4a0dd3f62f5cb818d6652ca40957f937a00"
)
AGGREGATE_5234 = bytes.fromhex(
    "984495625ff87a42c38eb1f59e456a6cab8338a5e703ffa476653ed968d3fb6dc251b961fd78cb30b7c2321dbffeb7ac"
    "055c127bffbf24deafe248b71c90c88ea1f5dfd939b31eb1a3f65fc88f225fabb856f3cfe4565a77f9087b237bb6ac17"
)
# Keys and proofs of possession of the five local validators.
LOCAL = [
    (
        "900c9b119b5c82d781d4b49be78c3fc7ae65f2b435b7ed9e3a8b9a03e475edff86d8a64827fec8db23a6f236afbf127d",
        "8bfd6d4d2086b2b8115d8f72f94095fefe5a6c07876b2accf51a811adf520f389e74a3d2152a6d90b521e2be58ffe468"
        "043dc5ea68b4c44410eb67f8dc24f13ed4f194000764c0e922cd254a3588a4962b1cb4db7de4bb9cda9d9d4d6b03f3d2",
    ),
    (
        "a058ff27a4c570664bfa28e34939368539a1340867951943d0f56fa8aac13bc09ff64f341acf8cc0cef74202c2d6f9c0",
        "ac52195616344127df74d924e11701ca5e0867647ae36171d168fcf95d536e94061659b3edb924fffdb69dd5aa5cb2d7"
        "03f8920c825c8f7b74dd0112c9c27814790bfcfa3a08e1d9358da1c54e1f6c0b4d9772432f79d7dceaa3a95c3a7e6adc",
    ),
    (
        "a10b6955a85684a0f5c94b8381f04506f1bee60625927d372323f78b3d30196cc56c8618c77eaf429298e74673d832c3",
        "8d505f7b53960813f1e007f04702ae1bd524cce036b4695fbf8a16eb50b35cdbdd4eedec2b0ce281f35ae36e3ac29fb4"
        "0867c94cabe2ba0b462f177dd8c3d293b0586b92d392e8278711fb434fe2601ae1b2e0867cfd128180c936a8010c5552",
    ),
    (
        "accd61ceb90c61628aa0fa34acab27ecb08f6897e9ccad283578c278c52109f9e10e4f8bc31aa6d7905c4e1623de367e",
        "910082e2b61fe4895b4a8f754c9e3a93c346156363acf67546a87e4bc1db7bbfa3239daa5292ad9bc30a11f60e59bbd3"
        "0b375785b71fe45abd154d717b6471c2406df2534297305ae93d6abeb38fc461170fc0b74b8aa4550f30257a264c75b0",
    ),
    (
        "8048109c3da13de0700f9f3590c3270bfc42277417f6d0cc84282947e1a1f8b4980fd3e3fe223acf0f56a5838890814a",
        "b034e0d0ec808b7ec456a6d88bdad7b32854794605a11139d70430d81fb93834a3f81d8969042952daff335fec510180"
        "16a7ecb19d38597c5743a4eb3fb945ebe28a4250dd7bcb7a192c98d2fcaf15320a9bee239c66ddf61bb24f87c6e91971",
    ),
]
# 127.0.0.1:9651 at unix time 1700000000, as it stands in a signed IP.
IP_CLAIM = bytes.fromhex("00000000000000000000ffff7f00000125b3000000006553f100")
GROUP_ORDER = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
G1_INFINITY = b"\xc0" + bytes(47)
G2_INFINITY = b"\xc0" + bytes(95)
# A point of the curve outside the subgroup: the last bit of a share changed, as `from_bytes` of
# blspy refuses it.
OUTSIDE_SUBGROUP = bytes.fromhex(
    "ae1384564b6428ea5a2970852dd1687c83cf2398ff8df1fc252a07ca14d1e5272e2ba6c6f8f4ab73022d6a0248c69b6f"
    "0d8c31ae07c5d640e8657dbb692dcd12b343fea7c48e4f0e88308431c42c15d525d22ffa1d99985822328e00cf81e4fc"
)


@pytest.fixture(scope="module", params=installed_backends())
def bls(request: pytest.FixtureRequest) -> ModuleType:
    """Return the interface with each backend."""
    return load_interface(request.param)


def local_secrets(bls: ModuleType) -> list[Any]:
    """Return the secret keys of the five local validators."""
    return [
        bls.secret_from_bytes(b"AvalancheLocalNetworkValidator0%d" % number)
        for number in range(1, 6)
    ]


def local_keys(bls: ModuleType) -> list[Any]:
    """Return their public keys."""
    return [bls.derive_public_key(secret) for secret in local_secrets(bls)]


@pytest.mark.parametrize(("number", "vector"), list(enumerate(LOCAL)))
def test_local_validators_have_the_documented_keys_and_proofs(
    bls: ModuleType, number: int, vector: tuple[str, str]
) -> None:
    public_key, proof = (bytes.fromhex(text) for text in vector)
    assert bls.public_key_bytes(local_keys(bls)[number]) == public_key
    assert bls.sign_possession(local_secrets(bls)[number], public_key) == proof
    assert bls.prove_possession(local_secrets(bls)[number]) == proof
    assert bls.verify_possession(bls.parse_public_key(public_key), public_key, proof)
    assert not bls.verify_possession(local_keys(bls)[number - 1], public_key, proof)
    assert not bls.verify_possession(local_keys(bls)[number], public_key + b"\x00", proof)
    assert not bls.verify(local_keys(bls)[number], public_key, proof)


@pytest.mark.parametrize(
    ("public_key", "proof"),
    [
        (
            "8f95423f7142d00a48e1014a3de8d28907d420dc33b3052a6dee03a3f2941a393c2351e354704ca66a3fc29870282e15",
            "86a3ab4c45cfe31cae34c1d06f212434ac71b1be6cfe046c80c162e057614a94a5bc9f1ded1a7029deb0ba4ca7c9b714"
            "11e293438691be79c2dbf19d1ca7c3eadb9c756246fc5de5b7b89511c7d7302ae051d9e03d7991138299b5ed6a570a98",
        ),
        (
            "aff4acb4c5439b5d426cadf9e946d3a452f7de3414d1ad27336133211d8b90cf49fb97eebcdeeef714dc20f54ed0d4d1",
            "8cfd7909d153b9604b62b143ba36207bb7e64867424480202a67dc68768346d95c90983c2d279c64c43c51136b2a05e0"
            "1602d52aa6376fda17fa6e2a18a083e49d9c450eab7b89b1d5555da5c489872e02b7e5227b77550af1330e5a71f8c368",
        ),
        (l1_txs.CONVERSION_KEY.hex(), l1_txs.CONVERSION_POSSESSION.hex()),
        (l1_txs.REGISTERED_KEY.hex(), l1_txs.REGISTERED_POSSESSION.hex()),
    ],
)
def test_proofs_of_possession_of_real_nodes_verify(
    bls: ModuleType, public_key: str, proof: str
) -> None:
    key = bytes.fromhex(public_key)
    assert bls.verify_possession(bls.parse_public_key(key), key, bytes.fromhex(proof))


def test_a_secret_key_gives_the_documented_public_key(bls: ModuleType) -> None:
    raw = bytes.fromhex("6668fecd4595b81e4d568398c820bbf3f073cb222902279fa55ebb84764ed2e3")
    secret = bls.secret_from_bytes(raw)
    assert bls.secret_bytes(secret) == raw
    assert bls.public_key_bytes(bls.derive_public_key(secret)).hex() == (
        "aff4acb4c5439b5d426cadf9e946d3a452f7de3414d1ad27336133211d8b90cf49fb97eebcdeeef714dc20f54ed0d4d1"
    )


def test_another_documented_key_is_accepted(bls: ModuleType) -> None:
    raw = bytes.fromhex(
        "879aadf523f1682a3ebcec7ab27f90924a4fed8e346236bb48402cd8c19bfe6653ee82935a02e8823cb9738ff0588182"
    )
    assert bls.public_key_bytes(bls.parse_public_key(raw)) == raw


def test_a_signed_ip_has_the_documented_signature(bls: ModuleType) -> None:
    signature = bls.sign_possession(local_secrets(bls)[0], IP_CLAIM)
    assert signature.hex() == (
        "b7dd4a2c8bf88a7851cfdaf7cfcc297ec2711d3ad4b331cd63cb7c0e0a79aa4da700d274a5f610b15e2a87cd4b61de3b"
        "02d51c5f4d48051a3392dd76ec73b20ac7307414d2ccb031868f8b313ce3fc7f65788e3d794228044c953f1f18612f99"
    )
    assert bls.verify_possession(local_keys(bls)[0], IP_CLAIM, signature)


def test_a_share_has_the_documented_signature(bls: ModuleType) -> None:
    assert bls.sign(local_secrets(bls)[0], UNSIGNED) == SIGNATURE_1
    assert bls.verify(local_keys(bls)[0], UNSIGNED, SIGNATURE_1)
    assert bls.sum_shares([bls.decode_share(SIGNATURE_1)]) == SIGNATURE_1


def test_four_shares_sum_to_the_documented_aggregate(bls: ModuleType) -> None:
    chosen = [4, 1, 2, 3]
    shares = [bls.decode_share(bls.sign(local_secrets(bls)[index], UNSIGNED)) for index in chosen]
    keys = [local_keys(bls)[index] for index in chosen]
    assert bls.sum_shares(shares) == AGGREGATE_5234
    assert bls.verify_aggregate(keys, UNSIGNED, AGGREGATE_5234)
    assert bls.verify(bls.sum_public_keys(keys), UNSIGNED, AGGREGATE_5234)
    assert not bls.verify_aggregate(keys[1:], UNSIGNED, AGGREGATE_5234)
    assert not bls.verify_aggregate([*keys, local_keys(bls)[0]], UNSIGNED, AGGREGATE_5234)
    assert not bls.verify_aggregate([], UNSIGNED, AGGREGATE_5234)
    assert not bls.verify_aggregate(keys, UNSIGNED[1:], AGGREGATE_5234)


def test_py_ecc_agrees_on_signatures_aggregates_and_proofs(bls: ModuleType) -> None:
    numbers = [int.from_bytes(bls.secret_bytes(secret), "big") for secret in local_secrets(bls)[:2]]
    signatures = [bls.sign(secret, UNSIGNED) for secret in local_secrets(bls)[:2]]
    public_keys = [BLSPubkey(bls.public_key_bytes(key)) for key in local_keys(bls)[:2]]
    total = bls.sum_shares([bls.decode_share(signature) for signature in signatures])
    assert [Oracle.SkToPk(number) for number in numbers] == public_keys
    assert Oracle.Sign(numbers[1], UNSIGNED) == signatures[1]
    assert Oracle.Aggregate([BLSSignature(signature) for signature in signatures]) == total
    assert Oracle.FastAggregateVerify(public_keys, UNSIGNED, BLSSignature(total))
    assert Oracle.PopProve(numbers[0]) == bls.sign_possession(local_secrets(bls)[0], public_keys[0])


def test_py_ecc_refuses_the_same_signature(bls: ModuleType) -> None:
    public_key = BLSPubkey(bls.public_key_bytes(local_keys(bls)[1]))
    assert not Oracle.Verify(public_key, UNSIGNED, BLSSignature(SIGNATURE_1))
    assert not bls.verify(local_keys(bls)[1], UNSIGNED, SIGNATURE_1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(48),
        G1_INFINITY,
        b"\xc0" + bytes(46) + b"\x01",
        b"\x9f" + b"\xff" * 47,
        bytes.fromhex(LOCAL[0][0])[:-1],
        bytes.fromhex(LOCAL[0][0]) + b"\x00",
        bytes([bytes.fromhex(LOCAL[0][0])[0] & 0x7F]) + bytes.fromhex(LOCAL[0][0])[1:],
    ],
)
def test_malformed_public_keys_are_refused(bls: ModuleType, raw: bytes) -> None:
    with pytest.raises(MalformedKey):
        bls.parse_public_key(raw)


def test_a_public_key_outside_the_subgroup_is_refused(bls: ModuleType) -> None:
    # x = 4 lies on the curve: refused as a key, not as bytes.
    with pytest.raises(MalformedKey, match="invalid"):
        bls.parse_public_key(b"\x80" + bytes(46) + b"\x04")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(96),
        G2_INFINITY,
        b"\xc0" + bytes(94) + b"\x01",
        b"\x9f" + b"\xff" * 95,
        SIGNATURE_1[:-1],
        SIGNATURE_1 + b"\x00",
        bytes([SIGNATURE_1[0] & 0x7F]) + SIGNATURE_1[1:],
    ],
)
def test_malformed_shares_are_refused(bls: ModuleType, raw: bytes) -> None:
    with pytest.raises(MalformedShare):
        bls.decode_share(raw)
    assert not bls.verify(local_keys(bls)[0], UNSIGNED, raw)
    assert not bls.verify_possession(local_keys(bls)[0], UNSIGNED, raw)


def test_a_share_outside_the_subgroup_decodes_but_never_verifies(bls: ModuleType) -> None:
    share = bls.decode_share(OUTSIDE_SUBGROUP)
    assert bls.sum_shares([share]) == OUTSIDE_SUBGROUP
    total = bls.sum_shares([share, bls.decode_share(SIGNATURE_1)])
    for signature in (OUTSIDE_SUBGROUP, total):
        assert not bls.verify(local_keys(bls)[0], UNSIGNED, signature)
        assert not bls.verify_possession(local_keys(bls)[0], UNSIGNED, signature)


def multiple(bls: ModuleType, raw: bytes, factor: int) -> bytes:
    """Return `factor` (odd) times the point of 96 bytes, by doubling and adding."""
    total = raw
    for bit in bin(factor)[3:]:
        total = bls.sum_shares([bls.decode_share(total)] * 2)
        if bit == "1":
            total = bls.sum_shares([bls.decode_share(total), bls.decode_share(raw)])
    return total


def test_a_signature_plus_a_point_of_another_order_is_refused(bls: ModuleType) -> None:
    # The group order times a point outside the subgroup: what is left has no part in the subgroup
    # at all.
    stray = bls.decode_share(multiple(bls, OUTSIDE_SUBGROUP, GROUP_ORDER))
    for honest in (SIGNATURE_1, bls.sign_possession(local_secrets(bls)[0], UNSIGNED)):
        bent = bls.sum_shares([bls.decode_share(honest), stray])
        assert bent != honest
        assert not bls.verify(local_keys(bls)[0], UNSIGNED, bent)
        assert not bls.verify_possession(local_keys(bls)[0], UNSIGNED, bent)


def test_shares_and_keys_that_cancel_out_verify_nothing(bls: ModuleType) -> None:
    mirrored = bytes([SIGNATURE_1[0] ^ 0x20]) + SIGNATURE_1[1:]
    total = bls.sum_shares([bls.decode_share(SIGNATURE_1), bls.decode_share(mirrored)])
    raw = bls.public_key_bytes(local_keys(bls)[0])
    opposite = bls.parse_public_key(bytes([raw[0] ^ 0x20]) + raw[1:])
    assert total == G2_INFINITY
    assert not bls.verify(local_keys(bls)[0], UNSIGNED, total)
    assert not bls.verify_aggregate([local_keys(bls)[0], opposite], UNSIGNED, total)
    assert not bls.verify_aggregate([local_keys(bls)[0], opposite], UNSIGNED, SIGNATURE_1)
    assert not bls.verify_possession(
        bls.sum_public_keys([local_keys(bls)[0], opposite]), UNSIGNED, SIGNATURE_1
    )


def test_errors_of_two_shares_that_cancel_verify_only_as_a_sum(bls: ModuleType) -> None:
    first, second = (bls.sign(secret, UNSIGNED) for secret in local_secrets(bls)[:2])
    error = bls.decode_share(bls.sign(local_secrets(bls)[2], UNSIGNED))
    raw = bls.sum_shares([error])
    opposite = bls.decode_share(bytes([raw[0] ^ 0x20]) + raw[1:])
    bent = bls.sum_shares([bls.decode_share(first), error])
    bent_back = bls.sum_shares([bls.decode_share(second), opposite])
    assert not bls.verify(local_keys(bls)[0], UNSIGNED, bent)
    assert not bls.verify(local_keys(bls)[1], UNSIGNED, bent_back)
    total = bls.sum_shares([bls.decode_share(bent), bls.decode_share(bent_back)])
    assert bls.verify_aggregate(local_keys(bls)[:2], UNSIGNED, total)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(32), id="zero"),
        pytest.param(b"\xff" * 32, id="great"),
        pytest.param(GROUP_ORDER.to_bytes(32, "big"), id="the group order"),
        pytest.param(b"\x01" * 31, id="short"),
        pytest.param(b"\x01" * 33, id="long"),
    ],
)
def test_malformed_secret_keys_are_refused(bls: ModuleType, raw: bytes) -> None:
    with pytest.raises(MalformedKey):
        bls.secret_from_bytes(raw)


def test_a_seed_determines_the_secret_key_and_without_one_it_is_random(bls: ModuleType) -> None:
    seeded = [bls.secret_bytes(bls.generate_secret(b"\x07" * 32)) for _ in range(2)]
    fresh = {bls.secret_bytes(bls.generate_secret()) for _ in range(3)}
    assert seeded[0] == seeded[1]
    # `AugSchemeMPL.key_gen` of blspy.
    assert bls.secret_bytes(bls.generate_secret(bytes(range(32)))).hex() == (
        "4a18022aa9097511134fcf6c024da289058c76d14de712ba264e50e306b6d6e3"
    )
    assert len(fresh) == 3
    with pytest.raises(MalformedKey):
        bls.generate_secret(b"short")


@given(st.binary(max_size=100))
def test_any_bytes_are_refused_or_decoded_to_a_key_or_share_that_encodes_to_them(
    bls: ModuleType, raw: bytes
) -> None:
    for head in (raw, b"\x80" + raw, b"\xa0" + raw + bytes(47)):
        with suppress(MalformedKey):
            assert bls.public_key_bytes(bls.parse_public_key(head[:48])) == head[:48]
        with suppress(MalformedShare):
            assert bls.sum_shares([bls.decode_share(head)]) == head


@given(st.binary(min_size=96, max_size=96), st.integers(0, 0x1F))
def test_decoded_points_of_any_x_never_verify(bls: ModuleType, raw: bytes, top: int) -> None:
    candidate = bytes([0x80 | top]) + raw[1:48] + bytes([raw[48] & 0x1F]) + raw[49:]
    try:
        share = bls.decode_share(candidate)
    except MalformedShare:
        return
    assert bls.sum_shares([share]) == candidate
    assert not bls.verify(local_keys(bls)[0], UNSIGNED, candidate)
