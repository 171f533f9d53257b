"""`warpseal key ...`, over both kinds of database, while a daemon uses the store."""

from __future__ import annotations

import re

import pytest

from tests.store.fixtures import PATIENCE_S, hasty_settings
from warpseal.cli.main import main
from warpseal.config.keys import KEYS
from warpseal.store.api_key import digest_key
from warpseal.store.store import open_store


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG_FILE", *(key.name.upper().replace("-", "_") for key in KEYS)):
        monkeypatch.delenv(f"WARPSEAL_{name}", raising=False)
        monkeypatch.delenv(name, raising=False)


def key(*arguments: str) -> int:
    """Return the exit code of `warpseal key ...`."""
    return main(["key", *arguments])


async def test_a_key_is_created_shown_once_listed_and_revoked_while_a_daemon_runs(
    any_store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store-url", any_store_url)
    async with open_store(hasty_settings(any_store_url, call_timeout_s=PATIENCE_S), None) as store:
        assert key("create", "explorer", "--per-minute", "50", "--per-day", "0", *where) == 0
        text = capsys.readouterr().out.strip()
        digest = digest_key(text)
        assert digest is not None
        key_row = await store.api_keys.find_key(digest)
        assert key_row is not None
        assert (key_row.name, key_row.units_per_minute, key_row.units_per_day) == (
            "explorer",
            50,
            0,
        )

        assert key("list", *where) == 0
        listed = capsys.readouterr().out
        assert re.match(
            rf"explorer +\.\.\.{text[-4:]}  50/min  unlimited/day  created \d{{4}}-\d\d-\d\d\n",
            listed,
        )
        assert text not in listed

        assert key("revoke", "explorer", *where) == 0
        key_row = await store.api_keys.find_key(digest)
        assert key_row is not None
        assert key_row.revoked_at is not None
        capsys.readouterr()
        assert key("list", *where) == 0
        assert "revoked" in capsys.readouterr().out


async def test_key_names_are_unique_and_an_unknown_name_is_refused(
    any_store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store-url", any_store_url)
    async with open_store(hasty_settings(any_store_url), None):
        assert key("list", *where) == 0
        assert capsys.readouterr().out == "no API keys\n"
        assert key("create", "a", *where) == 0
        assert key("create", "a", *where) == 1
        assert "choose another" in capsys.readouterr().err
        assert key("create", "", *where) == 1
        assert key("revoke", "b", *where) == 1
        assert "no key is named 'b'" in capsys.readouterr().err


def test_key_commands_need_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert key("list", "--store-url", "sqlite:////nowhere/store.db") == 1
    assert "a daemon creates it" in capsys.readouterr().err
