"""/v1/signing-blocks: only with the admin token; values in one form, and reasons on which no client
retries.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.data.fixtures import DataApiSetup
from tests.api.data.test_webhooks import REFUSED_TOKENS, TOKEN, call, client
from tests.api.fixtures import serving
from tests.api.http.test_access import KEY, secrets_with
from tests.store.fixtures import sqlite_url, store_at
from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.data.signing_block_endpoints import MAX_SIGNING_BLOCKS
from warpseal.api.http.access import UsageAccess
from warpseal.cli.main import main
from warpseal.resources.aliases import ChainAliases
from warpseal.store.schema import SIGNING_BLOCKS
from warpseal.store.settings import StoreSettings
from warpseal.store.store import Store, open_store
from warpseal.store.url import OFF
from warpseal.warp.ids import P_CHAIN, ChainID, id_text

BLOCKS = "/v1/signing-blocks"
CHAIN = ChainID(b"\x07" * 32)
SENDER = "0x" + "aB" * 20
RULE = {"kind": "sender", "value": SENDER, "reason": "the bridge has a bug"}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An open store."""
    async with store_at(sqlite_url(tmp_path), first_prune_s=3_600.0) as opened:
        yield opened


def setup_of(store: Store, token: str = TOKEN) -> DataApiSetup:
    aliases = ChainAliases()
    aliases.add_chain(CHAIN, 43_117)
    aliases.add_alias(CHAIN, "games")
    return DataApiSetup(
        signing_blocks=store.signing_blocks,
        evm=EvmChainDirectory(aliases),
        usage_access=UsageAccess(admin_token=token),
    )


async def test_a_block_is_added_listed_replaced_and_removed(store: Store) -> None:
    setup = setup_of(store)
    async with client(setup) as session:
        assert await call(session, "GET", BLOCKS) == {"signingBlocks": []}
        first = await call(session, "POST", BLOCKS, 201, RULE)
        assert first == {**RULE, "value": SENDER.lower(), "createdAt": int(setup.clock.now)}
        setup.clock.now += 1
        second = await call(
            session, "POST", BLOCKS, 201, {"kind": "destination", "value": "P", "reason": "x"}
        )
        assert second["value"] == id_text(P_CHAIN)
        assert await call(session, "GET", BLOCKS) == {"signingBlocks": [first, second]}
        setup.clock.now += 1
        replaced = await call(session, "POST", BLOCKS, 201, {**RULE, "reason": "y"})
        assert await call(session, "GET", BLOCKS) == {"signingBlocks": [second, replaced]}
        assert await call(session, "DELETE", f"{BLOCKS}/sender/{SENDER}") == replaced
        assert (await call(session, "DELETE", f"{BLOCKS}/sender/{SENDER}", 404))[
            "code"
        ] == "not_found"
        assert await call(session, "GET", BLOCKS) == {"signingBlocks": [second]}


@pytest.mark.parametrize(
    "name", [id_text(CHAIN), "0x" + CHAIN.hex(), CHAIN.hex().upper(), "43117", "games"]
)
async def test_all_names_of_a_chain_are_one_block(store: Store, name: str) -> None:
    async with client(setup_of(store)) as session:
        for kind in ("source-chain", "destination"):
            rule = await call(
                session, "POST", BLOCKS, 201, {"kind": kind, "value": name, "reason": "x"}
            )
            assert rule["value"] == id_text(CHAIN)
            assert await call(session, "DELETE", f"{BLOCKS}/{kind}/{id_text(CHAIN)}") == rule


@pytest.mark.parametrize("text", [id_text(CHAIN), "0x" + CHAIN.hex()])
async def test_both_forms_of_a_message_id_are_one_block(store: Store, text: str) -> None:
    async with client(setup_of(store)) as session:
        rule = await call(
            session, "POST", BLOCKS, 201, {"kind": "message-id", "value": text, "reason": "x"}
        )
        assert rule["value"] == "0x" + CHAIN.hex()


@pytest.mark.parametrize(("own", "token", "status", "code"), REFUSED_TOKENS)
async def test_every_path_needs_the_admin_token(
    store: Store, own: str, token: str, status: int, code: str
) -> None:
    async with client(setup_of(store, own), token) as session:
        for method, path, body in (
            ("GET", "", None),
            ("POST", "", RULE),
            ("DELETE", f"/sender/{SENDER}", None),
        ):
            assert (await call(session, method, BLOCKS + path, status, body))["code"] == code
    assert await store.signing_blocks.load() == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ([], "body"),
        ({**RULE, "value": 1}, "body"),
        ({"value": SENDER, "reason": "x"}, "kind"),
        ({"kind": "sender", "reason": "x"}, "value"),
        ({"kind": "sender", "value": SENDER}, "reason"),
        ({**RULE, "reason": ""}, "reason"),
        ({**RULE, "kind": "subnet"}, "kind"),
        ({**RULE, "kind": ["sender", "destination"]}, "kind"),
        ({**RULE, "value": SENDER[2:]}, "value"),
        ({**RULE, "value": SENDER + "00"}, "value"),
        ({**RULE, "value": "0x" + "é" * 40}, "value"),
        ({**RULE, "value": "0x" + "a" * 10_000}, "value"),
        ({**RULE, "kind": "source-chain"}, "value"),
        ({**RULE, "kind": "source-chain", "value": "9" * 5_000}, "value"),
        ({**RULE, "kind": "destination", "value": "another name"}, "value"),
        ({**RULE, "kind": "destination", "value": "1" * 5_000}, "value"),
        ({**RULE, "kind": "message-id", "value": "0x00"}, "value"),
        ({**RULE, "reason": "x" * 301}, "reason"),
        ({**RULE, "reason": "two\nlines"}, "reason"),
        ({**RULE, "reason": "\0"}, "reason"),
        ({**RULE, "reason": "the Threshold key leaked"}, "reason"),
        ({**RULE, "until": "1"}, "until"),
    ],
)
async def test_hostile_fields_are_refused(store: Store, fields: Any, field: str) -> None:
    async with client(setup_of(store)) as session:
        error = await call(session, "POST", BLOCKS, 400, fields)
        assert (error["detail"]["field"], len(str(error)) < 1_000) == (field, True)
        if isinstance(fields, dict) and field == "value" and fields.get("value"):
            path = f"{BLOCKS}/{fields['kind']}/{quote(str(fields['value']), safe='')}"
            async with session.delete(path) as response:
                assert response.status == 400
    assert await store.signing_blocks.load() == []


async def test_the_number_of_blocks_is_limited(store: Store) -> None:
    rows = [
        {"kind": "sender", "value": f"0x{number:040x}", "reason": "x", "created_at": 1}
        for number in range(MAX_SIGNING_BLOCKS)
    ]
    await store.database.write(
        lambda connection: connection.run_many(
            SIGNING_BLOCKS.insert_text, [tuple(row.values()) for row in rows]
        )
    )
    async with client(setup_of(store)) as session:
        error = await call(session, "POST", BLOCKS, 400, RULE)
        assert "there are 1000 signing blocks" in error["message"]
        # The reason of one of them may change.
        await call(session, "POST", BLOCKS, 201, {**RULE, "value": rows[7]["value"]})


async def test_a_daemon_without_a_store_has_no_blocks() -> None:
    async with (
        open_store(StoreSettings(url=OFF), None) as store,
        client(setup_of(store)) as session,
    ):
        for method, body in (("GET", None), ("POST", RULE)):
            error = await call(session, method, BLOCKS, 503, body)
            assert (error["code"], "store-url is off" in error["message"]) == ("store_down", True)


async def test_the_command_sends_an_api_key_if_the_daemon_requires_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", TOKEN)
    setup = replace(setup_of(store), key_store=secrets_with()).with_settings(require_api_key=True)
    async with serving(setup.app(), setup.settings) as server:
        words = ["block", "list", "--json", "--url", server.url]
        assert await asyncio.to_thread(main, words) == 1
        assert "API key" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [*words, "--api-key", KEY]) == 0
        assert json.loads(capsys.readouterr().out) == {"signingBlocks": []}


@pytest.mark.parametrize(
    ("own", "token", "advice"),
    [
        (
            TOKEN,
            "",
            "set WARPSEAL_ADMIN_TOKEN for this command to the value that it has in the environment",
        ),
        (
            TOKEN,
            "another-token-of-tests",
            "must be the same here and in the environment of the daemon",
        ),
        (
            "",
            "",
            (
                "the daemon has no admin-token: set WARPSEAL_ADMIN_TOKEN to a long random text in"
                " the environment"
            ),
        ),
    ],
)
async def test_a_command_without_the_token_says_which_variable_to_set_where(
    store: Store,
    own: str,
    token: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", token)
    setup = setup_of(store, own)
    async with serving(setup.app(), setup.settings) as server:
        for words in (
            ["block", "list"],
            ["block", "remove", "sender", SENDER],
            ["block", "list", "--json"],
        ):
            assert await asyncio.to_thread(main, [*words, "--url", server.url]) == 1
            assert advice in (error := capsys.readouterr().err)
            assert "/etc/warpseal/environment" in error


async def test_commands_print_tables_and_json_if_it_is_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPSEAL_ADMIN_TOKEN", TOKEN)
    setup = setup_of(store)

    async def printed(*words: str) -> str:
        assert await asyncio.to_thread(main, ["block", *words, "--url", server.url]) == 0
        return capsys.readouterr().out

    async with serving(setup.app(), setup.settings) as server:
        assert await printed("list") == "signing is disabled for no message\n"
        add = ("add", "sender", SENDER, "--reason", RULE["reason"])
        table = await printed(*add)
        assert [line.split()[0] for line in table.splitlines()] == ["KIND", "sender"]
        assert table.splitlines()[1].endswith(RULE["reason"])
        assert await printed("list") == table
        listed = json.loads(await printed("list", "--json"))["signingBlocks"]
        assert listed == [json.loads(await printed(*add, "--json"))]
        assert json.loads(await printed("remove", "sender", SENDER, "--json")) == listed[0]
