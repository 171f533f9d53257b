"""All installed BLS backends and py-ecc agree: on malformed bytes of every kind, on signatures,
keys and deviations.
"""

from __future__ import annotations

import random
from functools import reduce
from types import ModuleType

import pytest
from eth_typing import BLSPubkey, BLSSignature
from hypothesis import given, settings
from hypothesis import strategies as st
from py_ecc.bls.g2_primitives import G2_to_signature, pubkey_to_G1, signature_to_G2, subgroup_check
from py_ecc.optimized_bls12_381.optimized_curve import add, is_inf

from tests.bls.interfaces import installed_backends, load_interface
from warpseal.bls import MalformedKey, MalformedShare, choose_backend

FIELD_ORDER = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab",
    16,
)
MESSAGE = b"message"
G1_X_OUTSIDE_SUBGROUP = 4
G1_INFINITY = b"\xc0" + bytes(47)
G2_INFINITY = b"\xc0" + bytes(95)
SIGN_FLAG = 0x20
INTERFACES = [load_interface(name) for name in installed_backends()]

x_coordinates = st.one_of(
    st.integers(0, FIELD_ORDER - 1), st.integers(0, 60), st.integers(FIELD_ORDER - 20, 2**381 - 1)
)
flags = st.integers(0, 7)


def oracle_accepts_key(raw: bytes) -> bool:
    """Return whether py-ecc takes 48 bytes for a point of the subgroup that is not infinity."""
    try:
        point = pubkey_to_G1(BLSPubkey(raw))
    except ValueError:
        return False
    return not is_inf(point) and subgroup_check(point)


def oracle_accepts_share(raw: bytes) -> bool:
    """Return whether py-ecc takes 96 bytes for a point of the curve that is not infinity."""
    try:
        point = signature_to_G2(BLSSignature(raw))
    except ValueError:
        return False
    return not is_inf(point)


def accepts_key(bls: ModuleType, raw: bytes) -> bool:
    """Return whether a backend accepts a key, and encodes it to the same bytes."""
    try:
        key = bls.parse_public_key(raw)
    except MalformedKey:
        return False
    assert bls.public_key_bytes(key) == raw
    return True


def accepts_share(bls: ModuleType, raw: bytes) -> bool:
    """Return whether a backend accepts a share, and encodes it to the same bytes."""
    try:
        share = bls.decode_share(raw)
    except MalformedShare:
        return False
    assert bls.sum_shares([share]) == raw
    return True


@settings(max_examples=60, deadline=None)
@given(x_coordinates, flags)
def test_keys_of_any_flags_and_coordinate_are_accepted_as_py_ecc_accepts_them(
    x: int, top: int
) -> None:
    raw = (x | top << 381).to_bytes(48, "big")
    assert [accepts_key(bls, raw) for bls in INTERFACES] == [oracle_accepts_key(raw)] * len(
        INTERFACES
    )


@settings(max_examples=60, deadline=None)
@given(x_coordinates, x_coordinates, flags, flags)
def test_shares_of_any_flags_and_coordinates_are_accepted_as_py_ecc_accepts_them(
    imaginary: int, real: int, top: int, low: int
) -> None:
    for second in (0, low):
        raw = (imaginary | top << 381).to_bytes(48, "big") + (real | second << 381).to_bytes(
            48, "big"
        )
        assert [accepts_share(bls, raw) for bls in INTERFACES] == [oracle_accepts_share(raw)] * len(
            INTERFACES
        )


@pytest.mark.parametrize("length", [0, 1, 47, 49, 95, 97, 192])
def test_bytes_of_another_length_are_refused_by_every_backend(length: int) -> None:
    for bls in INTERFACES:
        assert not accepts_key(bls, b"\x80" + bytes(length)[1:])
        assert not accepts_share(bls, b"\x80" + bytes(length)[1:])


@pytest.mark.parametrize("negated", [0, 1])
def test_coordinates_that_are_not_reduced_are_refused_by_every_backend(negated: int) -> None:
    # x + p is the same coordinate, as other bytes; both 4 and p + 4 fit into 381 bits.
    top = (0x80 | negated << 5) << 376
    for bls in INTERFACES:
        key = bls.public_key_bytes(bls.derive_public_key(bls.secret_from_bytes(b"\x01" * 32)))
        x = int.from_bytes(key, "big") & (1 << 381) - 1
        if x + FIELD_ORDER < 1 << 381:
            assert not accepts_key(bls, (x + FIELD_ORDER | top).to_bytes(48, "big"))
        assert not accepts_key(bls, (G1_X_OUTSIDE_SUBGROUP + FIELD_ORDER | top).to_bytes(48, "big"))
        share = bls.sign(bls.secret_from_bytes(b"\x01" * 32), MESSAGE)
        real = int.from_bytes(share[48:], "big")
        assert not accepts_share(bls, share[:48] + (real + FIELD_ORDER).to_bytes(48, "big"))


@given(st.binary(min_size=32, max_size=64), st.binary(max_size=40))
def test_every_backend_derives_the_same_keys_and_signatures(seed: bytes, message: bytes) -> None:
    results = []
    for bls in INTERFACES:
        secret = bls.generate_secret(seed)
        key = bls.derive_public_key(secret)
        signatures = bls.sign(secret, message), bls.sign_possession(secret, message)
        assert bls.verify(key, message, signatures[0])
        assert bls.verify_possession(key, message, signatures[1])
        results.append(
            (
                bls.secret_bytes(secret),
                bls.public_key_bytes(key),
                *signatures,
                bls.prove_possession(secret),
            )
        )
    assert len(set(results)) == 1


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_every_backend_finds_the_same_sums_and_verdicts(rnd: random.Random, count: int) -> None:
    first = INTERFACES[0]
    secrets = [first.generate_secret(rnd.randbytes(32)) for _ in range(count)]
    raw_keys = [first.public_key_bytes(first.derive_public_key(secret)) for secret in secrets]
    raw_shares = [
        first.sign(secret, MESSAGE if rnd.random() < 0.9 else b"another") for secret in secrets
    ]
    results = []
    for bls in INTERFACES:
        keys = [bls.parse_public_key(raw) for raw in raw_keys]
        total = bls.sum_shares([bls.decode_share(raw) for raw in raw_shares])
        key = bls.sum_public_keys(keys)
        verdicts = bls.verify(key, MESSAGE, total), bls.verify_aggregate(keys, MESSAGE, total)
        results.append((total, bls.public_key_bytes(key), verdicts, bls.is_signature(total)))
    assert len(set(results)) == 1


@pytest.mark.parametrize("bls", INTERFACES, ids=installed_backends())
def test_deviations_divide_and_only_good_shares_have_none(bls: ModuleType) -> None:
    secrets = [bls.generate_secret(bytes([number]) * 32) for number in (1, 2)]
    keys = [bls.derive_public_key(secret) for secret in secrets]
    hashed = bls.hash_to_curve(MESSAGE)
    good = [bls.decode_share(bls.sign(secret, MESSAGE)) for secret in secrets]
    bad = bls.decode_share(bls.sign(secrets[0], b"another"))
    whole = bls.compute_deviation(bls.add_public_keys(*keys), bls.add_shares(bad, good[1]), hashed)
    alone = bls.compute_deviation(keys[0], bad, hashed)
    assert bls.compute_deviation(keys[0], good[0], hashed) == bls.NO_DEVIATION
    assert alone != bls.NO_DEVIATION
    assert whole == alone
    assert bls.divide_deviations(whole, alone) == bls.NO_DEVIATION
    assert bls.divide_deviations(whole, bls.NO_DEVIATION) == whole
    rest = bls.subtract_shares(bls.add_shares(bad, good[1]), bad)
    assert bls.compute_deviation(
        bls.subtract_public_keys(bls.add_public_keys(*keys), keys[0]), rest, hashed
    ) == (bls.NO_DEVIATION)
    assert bls.is_in_subgroup(rest)


def build_encodings(length: int) -> list[bytes]:
    """Return encodings of a length, 48 or 96 bytes: honest ones, infinity and points outside the
    subgroup.
    """
    bls = INTERFACES[0]
    secrets = [bls.secret_from_bytes(number.to_bytes(32, "big")) for number in (1, 2, 2**200 + 1)]
    if length == 48:
        keys = [bls.public_key_bytes(bls.derive_public_key(secret)) for secret in secrets]
        return [*keys, G1_INFINITY, b"\x80" + G1_X_OUTSIDE_SUBGROUP.to_bytes(47, "big")]
    shares = [bls.sign(secret, MESSAGE) for secret in secrets]
    outside = next(
        raw for x in range(100) if accepts_share(bls, raw := b"\x80" + x.to_bytes(95, "big"))
    )
    return [
        *shares,
        G2_INFINITY,
        outside,
        bls.sum_shares([bls.decode_share(raw) for raw in (shares[0], outside)]),
    ]


def mutate(raw: bytes, kind: int, place: int, value: int) -> bytes:
    """Return an encoding after one mutation: of a bit, the flags, a coordinate, a byte, the length
    or the order.
    """
    size, place, number = len(raw), place % len(raw), int.from_bytes(raw, "big")
    order = FIELD_ORDER << 384 * (place & 1)
    mutations = [
        (number ^ 1 << (place * 8 + value % 8)).to_bytes(size, "big"),
        bytes([raw[0] & 0x1F | (value & 7) << 5]) + raw[1:],
        ((number + order) % (1 << 8 * size)).to_bytes(size, "big"),
        (abs(order - number) % (1 << 8 * size)).to_bytes(size, "big"),
        raw[:place] + bytes([value]) + raw[place + 1 :],
        raw[:place] or b"\x80",
        raw + bytes([value]),
        raw[:1] + bytes(size - 1),
        raw[size // 2 :] + raw[: size // 2],
        raw[:-1] + bytes([value]),
    ]
    return mutations[kind]


mutations = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 95), st.integers(0, 255)), max_size=3
)


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(build_encodings(48)), mutations)
def test_every_backend_decides_alike_on_mutated_keys(
    raw: bytes, steps: list[tuple[int, int, int]]
) -> None:
    for step in steps:
        raw = mutate(raw, *step)
    assert len({accepts_key(bls, raw) for bls in INTERFACES}) == 1


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(build_encodings(96)), mutations)
def test_every_backend_decides_alike_on_mutated_shares(
    raw: bytes, steps: list[tuple[int, int, int]]
) -> None:
    for step in steps:
        raw = mutate(raw, *step)
    decisions = set()
    for bls in INTERFACES:
        key = bls.derive_public_key(bls.secret_from_bytes(b"\x01".rjust(32, b"\x00")))
        is_share = accepts_share(bls, raw)
        in_subgroup = is_share and bls.is_in_subgroup(bls.decode_share(raw))
        verified = bls.verify(key, MESSAGE, raw), bls.verify_possession(key, MESSAGE, raw)
        assert bls.is_signature(raw) == in_subgroup
        assert in_subgroup or not any(verified)
        decisions.add((is_share, in_subgroup, *verified))
    assert len(decisions) == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5))
def test_every_backend_and_py_ecc_find_the_same_sum_of_any_points(seed: int, count: int) -> None:
    rnd, raws = random.Random(seed), list[bytes]()
    while len(raws) < count:
        raw = (
            bytes([0x80 | rnd.randrange(2) << 5]) + rnd.randbytes(47) + b"\x00" + rnd.randbytes(47)
        )
        # Equal points are doubled, opposite ones cancel.
        if raws and rnd.random() < 0.5:
            raw = rnd.choice(raws)
            raw = bytes([raw[0] ^ rnd.randrange(2) * SIGN_FLAG]) + raw[1:]
        if accepts_share(INTERFACES[0], raw):
            raws.append(raw)
    first, *others = (signature_to_G2(BLSSignature(raw)) for raw in raws)
    expected = bytes(G2_to_signature(reduce(add, others, first)))
    for bls in INTERFACES:
        shares = [bls.decode_share(raw) for raw in raws]
        total = reduce(bls.add_shares, shares)
        longer = bls.add_shares(total, shares[0])
        sums = [
            bls.sum_shares(shares),
            bls.sum_shares([total]),
            bls.sum_shares([bls.subtract_shares(longer, shares[0])]),
        ]
        assert sums == [expected] * 3


@pytest.mark.parametrize("bls", INTERFACES, ids=installed_backends())
def test_deviations_of_sums_at_infinity_are_inverse_to_each_other(bls: ModuleType) -> None:
    secret = bls.generate_secret(b"\x01" * 32)
    key, share, hashed = (
        bls.derive_public_key(secret),
        bls.sign(secret, MESSAGE),
        bls.hash_to_curve(MESSAGE),
    )
    point = bls.decode_share(share)
    no_key, no_share = bls.subtract_public_keys(key, key), bls.subtract_shares(point, point)
    assert (bls.public_key_bytes(no_key), bls.sum_shares([no_share])) == (G1_INFINITY, G2_INFINITY)
    assert bls.is_in_subgroup(no_share)
    assert bls.sum_shares([bls.subtract_shares(point, no_share)]) == share
    assert bls.compute_deviation(no_key, no_share, hashed) == bls.NO_DEVIATION
    deficit, surplus = (
        bls.compute_deviation(key, no_share, hashed),
        bls.compute_deviation(no_key, point, hashed),
    )
    assert bls.NO_DEVIATION not in (deficit, surplus)
    assert bls.divide_deviations(bls.NO_DEVIATION, deficit) == surplus
    assert not any(bls.verify(no_key, MESSAGE, signature) for signature in (share, G2_INFINITY))


def test_the_backend_is_the_wanted_one_or_the_first_that_is_installed() -> None:
    assert choose_backend() == installed_backends()[0]
    assert [choose_backend(name) for name in installed_backends()] == installed_backends()
    with pytest.raises(
        ImportError, match="WARPSEAL_BLS is 'relic'; it names a BLS library: blspy, blst, arkworks"
    ):
        choose_backend("relic")


@pytest.mark.parametrize(
    ("choice", "missing", "names"),
    [
        ("arkworks", "py_arkworks_bls12381", "py_arkworks_bls12381"),
        ("blst", "chia_rs", "pyblst and chia_rs"),
        ("blst", "pyblst", "pyblst and chia_rs"),
        ("", "", "blspy, or pyblst and chia_rs, or py_arkworks_bls12381"),
    ],
)
def test_a_backend_without_a_library_is_an_import_error_that_names_its_packages(
    monkeypatch: pytest.MonkeyPatch, choice: str, missing: str, names: str
) -> None:
    monkeypatch.setattr(
        "warpseal.bls.find_spec", lambda name: object() if missing and name != missing else None
    )
    with pytest.raises(ImportError, match=f"^no BLS library: install {names}$"):
        choose_backend(choice)
