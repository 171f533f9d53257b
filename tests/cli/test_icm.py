"""`warpseal icm`: in front of the API with indexes of two chains, and of a server that answers in
place of a daemon.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.data.test_icm import (
    DELIVERED,
    DESTINATION_BLOCKS,
    NOT_INDEXED,
    PENDING,
    SOURCE_BLOCKS,
    icm_setup,
    small_folder,
)
from tests.api.fixtures import serving
from tests.chains.evm.icm_logs import RECEIVED, WARP
from tests.cli.test_forecast import CannedResponses, serve_responses
from tests.index.evm.icm_histories import A
from warpseal.cli.main import main
from warpseal.resources.text import hex_text
from warpseal.warp.ids import id_text

__all__ = ["small_folder"]

UNKNOWN = "0x" + "ab" * 32
NOT_FOUND = (404, {"message": "no indexed chain has it", "code": "message_not_found"})
CHAIN: dict[str, Any] = {
    "chainId": "10",
    "status": "OK",
    "chainName": "",
    "description": "",
    "platformChainId": id_text(A),
    "rpcUrl": "http://elsewhere",
    "isTestnet": True,
    "enabledFeatures": ["nftIndexing"],
    "networkToken": {"name": "", "symbol": "", "decimals": 18},
}
BLOCK = {
    "state": "sent",
    "since": 1_795_226_807,
    "signature": {
        "state": "not_asked",
        "signedWeight": "0",
        "requiredWeight": "67",
        "totalWeight": "100",
        "missing": [{"nodeIds": ["NodeID-\x1b[2J"], "weight": "100", "reason": "not_connected"}],
    },
    "retry": {"action": "wait", "text": "wait for NodeID-\x1b[2J"},
}


async def test_the_steps_of_a_message_and_the_list_are_those_of_the_api(
    small_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message_id = str(DELIVERED["messageId"])
    async with icm_setup(small_folder) as setup, serving(setup.app(), setup.settings) as server:

        async def run(*words: str) -> tuple[int, str, str]:
            code = await asyncio.to_thread(main, ["icm", *words, "--url", server.url])
            return code, *capsys.readouterr()

        code, out, _ = await run("show", id_text(bytes.fromhex(message_id[2:])))
        assert (code, out.splitlines()[:7]) == (
            0,
            [
                f"message {message_id}",
                f"  sent      2023-11-14 22:13:22  {hex_text(SOURCE_BLOCKS[1].tx_hashes[0])}",
                "  signed                         signed",
                f"  received  2023-11-14 22:13:24  {hex_text(DESTINATION_BLOCKS[2].tx_hashes[0])}",
                "  executed                       yes",
                "  receipt                        no",
                "  what to do: nothing",
            ],
        )
        assert f"messageNonce:            {DELIVERED['messageNonce']}\n" in out
        assert json.loads((await run("show", message_id, "--json"))[1]) == [DELIVERED]
        code, out, _ = await run("list")
        assert [line.split() for line in out.splitlines()[1:]] == [
            [
                str(NOT_INDEXED["messageId"]),
                str(NOT_INDEXED["sourceBlockchainId"]),
                "11",
                "executed",
                "signed",
            ],
            ["2023-11-14", "22:13:22", message_id, "10", "11", "executed", "signed"],
        ]
        code, _, error = await run("show", UNKNOWN)
        assert (code, UNKNOWN in error) == (1, True)
        assert json.loads((await run("list", "--source", "10", "--json"))[1]) == [DELIVERED]
        assert (await run("list", "--destination", "nowhere"))[0] == 1


def run(
    capsys: pytest.CaptureFixture[str], responses: CannedResponses, *words: str
) -> tuple[int, str, str]:
    with serve_responses(responses) as server:
        code = main(["icm", *words, "--url", server.url, "--api-key", "secret"])
        assert {key for _, key in server.seen} == {"secret"}
    return code, *capsys.readouterr()


def test_a_message_that_waits_says_what_hinders_it_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = {**BLOCK, "state": "failed", "since": 1_795_226_809}
    for block, executed in ((BLOCK, "  executed                       no"), (failed, "failed")):
        message = {**PENDING, "warpseal": block}
        code, out, _ = run(capsys, {f"/v1/icm/messages/{UNKNOWN}": (200, message)}, "show", UNKNOWN)
        assert code == 0
        assert executed in out
        assert "  signed                         not asked\n" in out
        assert "  what to do: wait for NodeID-?[2J\n" in out
        assert "nodeIds: NodeID-?[2J\n" in out
        assert "\x1b" not in out
    assert "  executed  2026-11-21 02:06:49  failed\n" in out
    late = {**PENDING, "sourceTransaction": {"txHash": "0x", "timestamp": 2**62, "gasSpent": "0"}}
    assert (
        str(2**62) in run(capsys, {f"/v1/icm/messages/{UNKNOWN}": (200, late)}, "show", UNKNOWN)[1]
    )


def test_all_messages_of_a_transaction_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    own, other = str(PENDING["messageId"]), "0x" + "cd" * 32
    logs = [
        {"topics": []},
        {"topics": [hex_text(WARP), UNKNOWN, UNKNOWN]},
        {"topics": [hex_text(RECEIVED)]},
        *({"topics": [hex_text(RECEIVED), id_]} for id_ in (other, own, own)),
    ]
    receipt = {"jsonrpc": "2.0", "id": 1, "result": {"logs": logs}}
    dead = {**CHAIN, "platformChainId": "dead/../chain"}
    responses = {
        f"/v1/icm/messages/{UNKNOWN}": NOT_FOUND,
        f"/v1/icm/messages/{other}": NOT_FOUND,
        f"/v1/icm/messages/{own}": (200, PENDING),
        "/v1/chains?feature=nftIndexing": (200, {"chains": [dead, CHAIN]}),
        f"/ext/bc/{id_text(A)}/rpc": (200, receipt),
    }
    code, out, _ = run(capsys, responses, "show", UNKNOWN, "--json")
    assert (code, json.loads(out)) == (0, [PENDING])
    # Neither a chain without the transaction nor one that does not answer has its messages.
    responses |= {f"/ext/bc/{id_text(A)}/rpc": (200, {"jsonrpc": "2.0", "id": 1, "result": None})}
    code, _, error = run(capsys, responses, "show", UNKNOWN)
    assert (code, f"no indexed chain has an ICM message {UNKNOWN}" in error) == (1, True)


def test_the_list_of_stuck_messages_reads_pages_that_may_be_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "/v1/icm/messages?isStuck=true&pageSize=100&pageToken="
    pages = {
        path: (200, {"messages": [], "nextPageToken": "a/b"}),
        f"{path}a%2Fb": (200, {"messages": [{**PENDING, "warpseal": BLOCK}]}),
    }
    code, out, _ = run(capsys, pages, "list", "--stuck")
    words = [
        "2023-11-14",
        "22:13:22",
        str(PENDING["messageId"]),
        "10",
        "11",
        "sent",
        "not",
        "asked",
        "wait",
    ]
    assert (code, out.splitlines()[1].split()) == (0, words)


@pytest.mark.parametrize("body", [b"<html>", b"[]", {"messages": [{}]}])
def test_what_no_daemon_of_this_version_answers_is_reported(
    capsys: pytest.CaptureFixture[str], body: Any
) -> None:
    code, _, error = run(capsys, {"/v1/icm/messages?pageSize=100&pageToken=": (200, body)}, "list")
    assert (code, "not as a daemon of this version does" in error) == (1, True)
