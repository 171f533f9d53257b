"""The tables of settings in docs/operations.md are made from the declarations."""

from __future__ import annotations

from tests.config.settings_tables import PAGE, replace_settings_tables
from warpseal.config.keys import GROUP_CONTENTS, KEYS
from warpseal.config.load import load
from warpseal.runtime.settings import Group


def test_the_settings_tables_are_current() -> None:
    page = PAGE.read_text()
    assert page == replace_settings_tables(page), "run `make docs-table`"


def test_the_page_has_a_table_for_each_group_with_the_keys_of_that_group() -> None:
    page = PAGE.read_text()
    assert list(GROUP_CONTENTS) == list(Group)
    for group, content in GROUP_CONTENTS.items():
        table = page.partition(f"### {group[0].upper()}{group[1:]}: {content}\n")[2].partition(
            "\n#"
        )[0]
        listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
        assert listed == [key.name for key in KEYS if key.setting.group is group] != []


def test_every_key_has_one_field() -> None:
    names = [key.name for key in KEYS]
    assert len(names) == len(set(names))
    nodes = {"base-url": "http://127.0.0.1:9650"}
    config = load(None, {"p-chain-api": nodes, "info-api": nodes}, {}).config  # type: ignore[dict-item]
    declared = [
        setting.key
        for section in config.__struct_fields__
        for setting in getattr(config, section).declared_fields.values()
    ]
    assert sorted(declared) == sorted(names)


def test_help_is_a_noun_phrase_that_names_the_unit_of_a_duration() -> None:
    for key in KEYS:
        help_text = key.setting.help
        assert not help_text.endswith("."), key.name
        assert not help_text.startswith(("how ", "what ", "who ", "where ", "whether ")), key.name
        if key.name.endswith("-seconds"):
            assert "seconds" in help_text, key.name
