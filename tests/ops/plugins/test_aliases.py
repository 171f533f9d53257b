"""Aliases of virtual machines come from the network and from the operator's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ops.plugins.machines import vm_id
from warpseal.errors import StartupError
from warpseal.ops.plugins.registry import VMAliases, parse_vm_id, read_aliases
from warpseal.warp.ids import MalformedID, cb58_encode

EVM = "mgj786NP7uDwBCcq6YwThhaN8FLyybkCa4zBWTQbNgmK6k9A6"


def test_evm_is_a_built_in_alias() -> None:
    aliases = VMAliases()
    assert aliases.find("evm") == parse_vm_id(EVM)
    assert aliases.aliases_of(parse_vm_id(EVM)) == ("evm",)
    assert aliases.find(vm_id(3)) == (3).to_bytes(32, "big")


def test_the_file_adds_aliases(tmp_path: Path) -> None:
    file = tmp_path / "aliases.json"
    file.write_text(json.dumps({vm_id(3): ["three"], EVM: ["coreth"]}))
    aliases = read_aliases(file)
    assert aliases.find("three") == parse_vm_id(vm_id(3))
    assert aliases.aliases_of(parse_vm_id(EVM)) == ("evm", "coreth")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"x": ["y"]}', f'{{"{vm_id(3)}": ["evm"]}}', f'{{"{vm_id(3)}": "x"}}']
)
def test_a_malformed_alias_file_ends_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "aliases.json"
    file.write_text(text)
    with pytest.raises(StartupError):
        read_aliases(file)


def test_an_alias_file_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read"):
        read_aliases(tmp_path)


def test_without_the_file_only_the_built_in_aliases_exist(tmp_path: Path) -> None:
    assert read_aliases(tmp_path / "missing.json").aliases_of(parse_vm_id(EVM)) == ("evm",)


@pytest.mark.parametrize("text", ["", "evm", cb58_encode(bytes(20)), "0x" + "00" * 32])
def test_an_id_has_32_bytes_in_base58_check(text: str) -> None:
    with pytest.raises(MalformedID):
        parse_vm_id(text)
