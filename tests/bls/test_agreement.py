"""The two BLS libraries and py-ecc agree: on malformed bytes of every kind, on signatures, keys and deviations."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
from eth_typing import BLSPubkey, BLSSignature
from hypothesis import given, settings
from hypothesis import strategies as st
from py_ecc.bls.g2_primitives import pubkey_to_G1, signature_to_G2, subgroup_check
from py_ecc.optimized_bls12_381.optimized_curve import is_inf

from tests.bls.interfaces import installed_backends, load_interface
from warpseal.bls import LIBRARIES, MalformedKey, MalformedShare, choose_backend

FIELD_ORDER = int(
    "1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaab", 16
)
MESSAGE = b"message"
G1_X_OUTSIDE_SUBGROUP = 4
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
def test_keys_of_any_flags_and_coordinate_are_accepted_as_py_ecc_accepts_them(x: int, top: int) -> None:
    raw = (x | top << 381).to_bytes(48, "big")
    assert [accepts_key(bls, raw) for bls in INTERFACES] == [oracle_accepts_key(raw)] * len(INTERFACES)


@settings(max_examples=60, deadline=None)
@given(x_coordinates, x_coordinates, flags, flags)
def test_shares_of_any_flags_and_coordinates_are_accepted_as_py_ecc_accepts_them(
    imaginary: int, real: int, top: int, low: int
) -> None:
    for second in (0, low):
        raw = (imaginary | top << 381).to_bytes(48, "big") + (real | second << 381).to_bytes(48, "big")
        assert [accepts_share(bls, raw) for bls in INTERFACES] == [oracle_accepts_share(raw)] * len(INTERFACES)


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
    made = []
    for bls in INTERFACES:
        secret = bls.generate_secret(seed)
        key = bls.derive_public_key(secret)
        signatures = bls.sign(secret, message), bls.sign_possession(secret, message)
        assert bls.verify(key, message, signatures[0])
        assert bls.verify_possession(key, message, signatures[1])
        made.append((bls.secret_bytes(secret), bls.public_key_bytes(key), *signatures, bls.prove_possession(secret)))
    assert len(set(made)) == 1


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_every_backend_finds_the_same_sums_and_verdicts(rnd: random.Random, count: int) -> None:
    first = INTERFACES[0]
    secrets = [first.generate_secret(rnd.randbytes(32)) for _ in range(count)]
    raw_keys = [first.public_key_bytes(first.derive_public_key(secret)) for secret in secrets]
    raw_shares = [first.sign(secret, MESSAGE if rnd.random() < 0.9 else b"another") for secret in secrets]
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
    assert bls.compute_deviation(bls.subtract_public_keys(bls.add_public_keys(*keys), keys[0]), rest, hashed) == (
        bls.NO_DEVIATION
    )
    assert bls.is_in_subgroup(rest)


def test_the_backend_is_the_wanted_one_or_the_first_that_is_installed() -> None:
    assert choose_backend() == installed_backends()[0]
    assert [choose_backend(name) for name in installed_backends()] == installed_backends()
    with pytest.raises(ImportError, match="WARPSEAL_BLS is 'blst'; it names a BLS library: blspy or arkworks"):
        choose_backend("blst")


def test_a_backend_without_its_library_is_an_import_error_that_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("warpseal.bls.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=f"no BLS library: install {LIBRARIES['arkworks']}"):
        choose_backend("arkworks")
    with pytest.raises(ImportError, match="no BLS library: install blspy or py_arkworks_bls12381"):
        choose_backend()
