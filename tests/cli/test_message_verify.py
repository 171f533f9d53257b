"""`warpseal message verify`, at the recorded network's node and at a daemon."""

from __future__ import annotations

import asyncio
import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from starlette.responses import JSONResponse

from tests.api.fixtures import CHAINS, PREFLIGHT_BODY, ApiSetup, ScriptedPreflight, serving
from tests.cli.test_message import CONVERSION, REGISTRATION
from tests.delivery.recorded_chains import CONFIG, EPOCH, ChainNode
from tests.messages.test_verification import FROM_L1
from tests.messages.test_verification import REGISTRATION as MESSAGE
from tests.node.recorded_node import L1, L1_CHAIN, NO_CHAIN, refusing_uri, serve_nodes
from warpseal.cli.main import main
from warpseal.delivery.errors import WarpDisabled
from warpseal.delivery.preflight import PreflightAnswer, PreflightRequest
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import P_CHAIN, ChainID, id_text

TO_L1 = ("--destination", id_text(L1_CHAIN))


async def verify(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    code = await asyncio.to_thread(main, ("message", "verify", *arguments))
    output = capsys.readouterr()
    return code, output.out, output.err


async def at_node(
    capsys: pytest.CaptureFixture[str], *arguments: str, responses: Mapping[str, Any] | None = None
) -> tuple[int, str, str]:
    async with serve_nodes(ChainNode(dict(responses or {}))) as (uri,):
        return await verify(capsys, *arguments, "--node", uri)


async def test_a_message_that_the_destination_accepts_exits_with_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = await at_node(capsys, REGISTRATION, *TO_L1)
    assert (code, err) == (0, "")
    assert out.startswith("accepted now:   yes")
    assert f"signing subnet: {id_text(L1)} (destination)" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert rows[1] == ["current", "30", "18", "98926000", "66346701", "99024926", "yes"]
    assert rows[2][:3] == ["next", "31", "(predicted)"]
    assert rows[2][-2:] == ["no:", "weight"]
    code, out, _ = await at_node(capsys, "0x" + REGISTRATION, *TO_L1, "--json")
    document = json.loads(out)
    assert (code, document["verifiesNow"], document["destination"]["pChainHeight"]) == (
        0,
        True,
        "18",
    )


async def test_a_message_that_the_destination_refuses_exits_with_1_and_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = await at_node(capsys, CONVERSION, *TO_L1)
    assert (code, out.startswith("accepted now:   no (bit_set): signer 4 is not one of")) == (
        1,
        True,
    )
    code, out, _ = await at_node(capsys, REGISTRATION, *TO_L1, "--quorum", "100", "--json")
    assert (code, json.loads(out)["reason"]) == (1, "weight")
    # The signature is right, and the P-Chain takes no such message.
    responses = {
        EPOCH: {"number": "5", "startTime": "1", "pChainHeight": "19"},
        "proposervm.getProposedHeight": {"height": 19},
    }
    code, out, _ = await at_node(
        capsys, FROM_L1.encode().hex(), "--destination", "P", "--json", responses=responses
    )
    document = json.loads(out)
    assert (code, document["verifiesNow"], document["reason"]) == (1, True, "other_destination")
    disabled = {CONFIG: {"feeConfig": {}, "warpConfig": {"blockTimestamp": 0, "disable": True}}}
    code, _, err = await at_node(capsys, REGISTRATION, *TO_L1, responses=disabled)
    assert (code, "verifies no Warp messages" in err) == (1, True)
    assert await at_node(capsys, "zz", *TO_L1) == (
        1,
        "",
        "warpseal: expected the hex of a signed message\n",
    )


async def test_a_message_that_could_not_be_checked_exits_with_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcomes = [
        await verify(capsys, REGISTRATION, *TO_L1, "--node", refusing_uri()),
        await at_node(capsys, REGISTRATION, "--destination", id_text(NO_CHAIN)),
        await verify(capsys, REGISTRATION, *TO_L1, "--url", refusing_uri()),
        await verify(capsys, REGISTRATION, *TO_L1, "--data-dir", str(tmp_path)),
    ]
    assert [code for code, _, _ in outcomes] == [3, 3, 3, 3]
    assert all("the message is not checked: " in err and not out for _, out, err in outcomes)
    assert "found no running daemon" in outcomes[-1][2]


def test_a_command_at_a_node_that_is_down_prints_one_sentence() -> None:
    command = (
        "-m",
        "warpseal",
        "message",
        "verify",
        REGISTRATION,
        *TO_L1,
        "--node",
        refusing_uri(),
    )
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert re.fullmatch(
        r"warpseal: the message is not checked: no usable answer for .*\n", ended.stderr
    )


async def test_the_signing_subnet_and_a_message_on_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(MESSAGE.encode().hex() + "\n"))
    code, out, _ = await at_node(capsys, "-", *TO_L1, "--signing-subnet", id_text(L1), "--json")
    assert (code, json.loads(out)["destination"]["signedBy"]) == (0, "request")


@pytest.mark.parametrize(
    "text", ["", "xyz", "00", MESSAGE.unsigned.raw.hex(), MESSAGE.encode().hex() + "00"]
)
async def test_input_that_is_no_signed_message_exits_with_1(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = await verify(capsys, text, *TO_L1, "--node", refusing_uri())
    assert (code, err.startswith("warpseal: ")) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--destination", "x"),
        (*TO_L1, "--node", "ftp://x"),
        (*TO_L1, "--quorum", "0"),
        (*TO_L1, "--signing-subnet", "?"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("message", "verify", "00", *arguments)) == 2
    error = capsys.readouterr().err
    assert "usage: warpseal message verify" in error
    assert error.count("--node:") == ("--node" in arguments)


@pytest.mark.parametrize(
    ("network_id", "name", "destination_id"),
    [(1, "p", P_CHAIN), (5, "C", CHAINS.c), (88_888, "X", CHAINS.x)],
)
async def test_without_a_node_the_running_daemon_is_asked(
    network_id: int, name: str, destination_id: ChainID, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = ApiSetup(network_id=network_id)
    async with serving(setup.app()) as server:
        code, out, _ = await verify(
            capsys,
            REGISTRATION,
            "--destination",
            name,
            "--quorum",
            "80",
            "--signing-subnet",
            id_text(L1),
            "--url",
            server.url,
        )
    assert (code, "verifies now" in out) == (0, True)
    assert setup.preflight.requests == [PreflightRequest(MESSAGE, destination_id, L1, 80)]


async def test_responses_of_the_daemon_decide_on_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    responses: dict[Any, int] = {
        NodeUnavailable("the set"): 3,
        WarpDisabled("c", "it is off"): 1,
    }

    async def refuse(_: PreflightRequest) -> PreflightAnswer:
        return structs.replace(
            PREFLIGHT_BODY,
            verifies_now=False,
            reason="bit_set",
            reason_text="signer \x1b9 is unknown",
        )

    for error, expected in responses.items():

        async def fail(_: PreflightRequest, error: Exception = error) -> PreflightAnswer:
            raise error

        async with serving(ApiSetup(preflight=ScriptedPreflight(fail)).app()) as server:
            code, _, err = await verify(capsys, REGISTRATION, *TO_L1, "--url", server.url)
        assert (code, str(error) in err) == (expected, True)
    async with serving(ApiSetup(preflight=ScriptedPreflight(refuse)).app()) as server:
        code, out, _ = await verify(capsys, REGISTRATION, *TO_L1, "--url", server.url)
    assert (code, "no (bit_set): signer ?9 is unknown" in out) == (1, True)


async def test_a_response_that_is_no_preflight_checks_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(JSONResponse({"verifiesNow": True})) as server:
        code, _, err = await verify(capsys, REGISTRATION, *TO_L1, "--url", server.url)
    assert (code, "without a preflight" in err) == (3, True)


async def test_a_server_that_is_no_daemon_checks_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serve_nodes(ChainNode()) as (uri,):
        code, _, err = await verify(capsys, REGISTRATION, *TO_L1, "--url", uri)
    assert (code, "no Warpseal daemon" in err) == (3, True)
