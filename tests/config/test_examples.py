"""The example configurations, and the README's, are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import paths
from warpseal.config.load import load

ROOT = paths.ROOT


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs").glob("*.json")), ids=lambda file: file.name
)
def test_an_example_is_valid(file: Path) -> None:
    assert load(file, {}, {}).config.node.p_chain_api


def test_the_readme_s_config_is_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"```json\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "config.json"
    file.write_text(next(block for block in blocks if "p-chain-api" in block))
    assert load(file, {}, {}).config.api.api_port == json.loads(file.read_text())["api-port"]
