"""The table of settings in docs/operations.md is made from the declarations."""

from __future__ import annotations

from dataclasses import fields

from tests import paths
from warpseal.config.keys import KEYS, replace_settings_table
from warpseal.config.load import load
from warpseal.runtime.settings import SETTING

PAGE = paths.DOCS / "operations.md"


def test_the_settings_table_is_current() -> None:
    page = PAGE.read_text()
    assert page == replace_settings_table(page), "run `make docs-table`"


def test_every_key_has_one_field() -> None:
    names = [key.name for key in KEYS]
    assert len(names) == len(set(names))
    nodes = {"base-url": "http://127.0.0.1:9650"}
    config = load(None, {"p-chain-api": nodes, "info-api": nodes}, {}).config  # type: ignore[dict-item]
    declared = [
        field.metadata[SETTING].key
        for section in fields(config)
        for field in fields(getattr(config, section.name))
        if SETTING in field.metadata
    ]
    assert sorted(declared) == sorted(names)


def test_help_is_a_noun_phrase_that_names_the_unit_of_a_duration() -> None:
    for key in KEYS:
        help_text = key.setting.help
        assert not help_text.endswith("."), key.name
        assert not help_text.startswith(("how ", "what ", "who ", "where ", "whether ")), key.name
        if key.name.endswith("-seconds"):
            assert "seconds" in help_text, key.name
