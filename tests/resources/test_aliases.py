"""Names of blockchains: what each stands for, in which order, and which cannot be given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.errors import StartupError
from warpseal.resources.aliases import ChainAliases, InvalidAlias, read_aliases
from warpseal.warp.ids import P_CHAIN, ChainID, id_text

X, C, L1 = (ChainID(bytes([number]) * 32) for number in (1, 2, 3))


def build_aliases() -> ChainAliases:
    aliases = ChainAliases()
    aliases.add_primary_chains(X, C)
    aliases.add_chain(L1, 12345)
    return aliases


@pytest.mark.parametrize(
    ("name", "chain_id"),
    [
        ("P", P_CHAIN),
        ("platform", P_CHAIN),
        ("p-chain", P_CHAIN),
        ("X", X),
        ("avm", X),
        ("x-chain", X),
        ("C", C),
        ("evm", C),
        ("c-chain", C),
        ("12345", L1),
        (id_text(L1), L1),
        (L1.hex(), L1),
        ("0x" + L1.hex(), L1),
        (id_text(bytes([9]) * 32), bytes([9]) * 32),
        ("54321", None),
        ("p", None),
        ("", None),
        ("9" * 400, None),
    ],
)
def test_names_resolve_to_chains(name: str, chain_id: bytes | None) -> None:
    assert build_aliases().find(name) == chain_id


def test_aliases_have_the_order_of_a_node() -> None:
    aliases = build_aliases()
    aliases.add_alias(C, "later")
    assert aliases.aliases_of(C) == ("C", "evm", id_text(C), "later")
    assert aliases.aliases_of(ChainID(bytes([9]) * 32)) == ()


def test_aliases_of_a_file_come_before_the_id_if_they_are_added_first() -> None:
    aliases = ChainAliases()
    aliases.add_alias(L1, "mine")
    aliases.add_alias(L1, "own")
    aliases.add_chain(L1)
    assert aliases.aliases_of(L1) == ("mine", "own", id_text(L1))


def test_names_of_a_primary_chain_come_before_aliases_of_a_file() -> None:
    aliases = ChainAliases()
    aliases.add_alias(C, "mine")
    aliases.add_primary_chains(X, C)
    assert aliases.aliases_of(C) == ("C", "evm", "mine", id_text(C))


@pytest.mark.parametrize("alias", ["C", "evm", id_text(L1)])
def test_an_alias_of_another_chain_is_refused(alias: str) -> None:
    with pytest.raises(InvalidAlias, match=f"alias already mapped to an ID: {alias}"):
        build_aliases().add_alias(X, alias)


@pytest.mark.parametrize(
    "alias", ["c-chain", "43114", "0", L1.hex(), "0x" + L1.hex(), id_text(bytes([9]) * 32), ""]
)
def test_an_alias_that_looks_like_an_id_or_a_reserved_name_is_refused(alias: str) -> None:
    with pytest.raises(InvalidAlias):
        build_aliases().add_alias(X, alias)


def test_an_evm_chain_id_resolves_to_the_first_chain_that_has_it() -> None:
    aliases = build_aliases()
    aliases.add_chain(C, 12345)
    aliases.add_chain(C, 43112)
    assert (aliases.find("12345"), aliases.find("43112")) == (L1, C)


@pytest.mark.parametrize("name", ["X", "avm", "C", "evm"])
def test_names_of_the_primary_chains_are_reserved_before_their_ids_are_known(name: str) -> None:
    with pytest.raises(InvalidAlias, match=f"alias already mapped to an ID: {name}"):
        ChainAliases().add_alias(L1, name)


@given(st.text(max_size=600))
def test_an_accepted_alias_resolves_to_its_chain(alias: str) -> None:
    aliases = build_aliases()
    try:
        aliases.add_alias(L1, alias)
    except InvalidAlias:
        return
    assert aliases.find(alias) == L1
    assert alias in aliases.aliases_of(L1)


def test_a_file_of_aliases_is_read(tmp_path: Path) -> None:
    file = tmp_path / "aliases.json"
    file.write_text(json.dumps({id_text(L1): ["a", "b"]}))
    assert read_aliases(file) == {L1: ("a", "b")}
    assert read_aliases(None) == {}


@pytest.mark.parametrize(
    "content", ["", "[]", '{"x": ["a"]}', '{"x": "a"}', "{", json.dumps({id_text(L1): [1]})]
)
def test_an_error_names_an_invalid_alias_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "aliases.json"
    file.write_text(content)
    with pytest.raises(StartupError, match=r"aliases\.json"):
        read_aliases(file)
