"""`warpseal message decode`, with the recorded network's messages, transactions and node."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
import zstandard

from tests import paths
from tests.node.recorded_node import L1, RecordedNode, RefusedCall, refusing_uri, serve_nodes
from tests.warp import fuji
from warpseal.chains.p_txs import parse_p_tx
from warpseal.cli.main import main
from warpseal.warp.ids import id_text

LOCALNET = paths.LOCALNET
ICM = json.loads((LOCALNET / "icm.json").read_text())
CONVERSION, REMOVAL, REGISTRATION = (item["storageKeys"] for item in ICM["delivered"])


def recorded_transactions() -> dict[str, dict[str, Any]]:
    """Return one of the recorded network's P-Chain transactions of each type: {"id", "tx" (hex with
    a checksum)}.
    """
    packed = (LOCALNET / "p-chain.jsonl.zst").read_bytes()
    calls = [
        json.loads(line)
        for line in zstandard.ZstdDecompressor().stream_reader(packed).read().splitlines()
    ]
    hexed = [
        call
        for call in calls
        if call["method"] == "platform.getTx" and call["params"].get("encoding") == "hex"
    ]
    transactions = [{"id": call["params"]["txID"], "tx": call["result"]["tx"]} for call in hexed]
    return {parse_p_tx(bytes.fromhex(item["tx"][2:-8])).kind: item for item in transactions}


TRANSACTIONS = recorded_transactions()


async def decoded(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    code = await asyncio.to_thread(main, ("message", "decode", *arguments))
    output = capsys.readouterr()
    return code, output.out, output.err


async def decode_message(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, Any]:
    ended, out, err = await decoded(capsys, *arguments, "--json")
    assert ended == code, err
    document: dict[str, Any] = json.loads(out)
    return document


def node_with(kind: str, **more: Any) -> RecordedNode:
    """Return a node that has one more transaction, committed."""
    recording = TRANSACTIONS[kind]

    def transaction(params: Any) -> Any:
        if params["txID"] != recording["id"]:
            raise RefusedCall("couldn't get tx: not found")
        return {"tx": recording["tx"], "encoding": "hex"}

    return RecordedNode(
        {"platform.getTx": transaction, "platform.getTxStatus": {"status": "Committed"}, **more}
    )


async def test_message_decode_prints_readable_lines(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = await decoded(capsys, "0x" + fuji.SIGNED_WEIGHT.hex())
    assert code == 3
    lines = [line.split() for line in out.splitlines()]
    assert ["type:", "signed", "message"] in lines
    assert ["type:", "L1ValidatorWeight"] in lines
    assert ["signerIndices:", "1,", "2"] in lines
    assert any(line[0] == "validationId:" and line[2].startswith("(0x8ccf9ef5") for line in lines)


async def test_message_decode_prints_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    document = await decode_message(capsys, fuji.SIGNED_WEIGHT.hex(), code=3)
    assert document["payload"]["call"]["weight"] == "41"


async def test_a_signature_is_not_checked_without_a_node_and_the_exit_code_is_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = await decode_message(capsys, fuji.SIGNED_WEIGHT.hex(), code=3)
    assert document["verification"] == {
        "result": "not checked",
        "reason": "a node is needed: give --node URL",
    }
    code, out, err = await decoded(capsys, fuji.SIGNED_WEIGHT.hex())
    assert code == 3
    assert out.startswith(
        "result: the signature is not checked: a node is needed: give --node URL\n"
    )
    assert err == ""
    # A node that does not answer checks nothing either.
    code, out, err = await decoded(capsys, REGISTRATION, "--node", refusing_uri())
    assert (code, "not checked" in out) == (3, True)


async def test_a_message_without_a_signature_has_nothing_to_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unsigned = (await decode_message(capsys, fuji.SIGNED_WEIGHT.hex(), code=3))["unsignedMessage"]
    document = await decode_message(capsys, unsigned)
    assert document["type"] == "unsigned message"
    assert "verification" not in document


async def test_a_message_may_come_on_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(fuji.SIGNED_WEIGHT.hex() + "\n"))
    assert (await decode_message(capsys, "-", code=3))["type"] == "signed message"


async def test_a_signature_is_verified_at_a_height_and_its_signers_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serve_nodes(RecordedNode()) as (uri,):
        document = await decode_message(capsys, REGISTRATION, "--node", uri, "--height", "18")
        assert document["verification"]["signatureValid"]
        assert document["verification"]["signedPercentage"] == "99.90"
        document = await decode_message(
            capsys, REGISTRATION, "--node", uri, "--height", "18", "--quorum", "100", code=1
        )
        assert not document["verification"]["quorumMet"]
        document = await decode_message(
            capsys, CONVERSION, "--node", uri, "--height", "7", "--signing-subnet", id_text(L1)
        )
        assert [item["index"] for item in document["verification"]["notSigned"]] == [1, 3]


async def test_the_verdict_comes_first_and_the_validators_are_listed_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def signers(out: str) -> int:
        return sum(line.startswith("    - index:") for line in out.splitlines())

    at_18 = (REGISTRATION, "--height", "18")
    async with serve_nodes(RecordedNode()) as (uri,):
        _, valid, _ = await decoded(capsys, *at_18, "--node", uri)
        _, listed, _ = await decoded(capsys, *at_18, "--node", uri, "--validators")
        _, too_light, _ = await decoded(capsys, *at_18, "--node", uri, "--quorum", "100")
        _, wrong, _ = await decoded(capsys, REGISTRATION, "--node", uri)
    _, unsigned, _ = await decoded(
        capsys, (await decode_message(capsys, REGISTRATION, code=3))["unsignedMessage"]
    )
    _, unknown, _ = await decoded(capsys, "0x0102030405")
    where = f"the validators of subnet {id_text(L1)} at height"
    first_lines = [
        text.partition("\n")[0] for text in (valid, listed, too_light, wrong, unsigned, unknown)
    ]
    assert first_lines[:3] == [
        f"result: the signature is valid: 99.90 % of the weight of {where} 18, 67 % needed",
        f"result: the signature is valid: 99.90 % of the weight of {where} 18, 67 % needed",
        (
            "result: the signature is valid, but has too little weight: 99.90 % of the weight of"
            f" {where} 18, 100 % needed"
        ),
    ]
    assert first_lines[3].startswith(f"result: the signature is wrong for {where} 19: ")
    assert first_lines[4] == "result: unsigned message, no signature to verify"
    assert first_lines[5].startswith("result: no Warp message: ")
    assert "; --validators lists them" in valid
    assert (signers(valid), signers(listed) > 2) == (0, True)


async def test_a_signature_of_another_height_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serve_nodes(RecordedNode()) as (uri,):
        document = await decode_message(capsys, REGISTRATION, "--node", uri, code=1)
    assert document["verification"]["pChainHeight"] == "19"
    assert "another validator set" in document["verification"]["fault"]


async def test_a_message_without_a_signing_subnet_needs_the_subnet_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serve_nodes(RecordedNode()) as (uri,):
        code, out, err = await decoded(capsys, REMOVAL, "--node", uri)
    assert (code, err) == (3, "")
    assert out.startswith("result: the signature is not checked: ")
    assert "--signing-subnet" in out.partition("\n")[0]
    assert "L1ValidatorRegistration" in out


@pytest.mark.parametrize(
    ("kind", "call", "asked_for"),
    [
        ("ConvertSubnetToL1Tx", "SubnetToL1Conversion", None),
        ("RegisterL1ValidatorTx", "L1ValidatorRegistration", "RegisterL1Validator"),
        ("SetL1ValidatorWeightTx", "L1ValidatorRegistration", "L1ValidatorWeight"),
    ],
)
async def test_a_transaction_is_decoded_with_the_message_that_it_causes(
    kind: str, call: str, asked_for: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve_nodes(node_with(kind)) as (uri,):
        document = await decode_message(capsys, TRANSACTIONS[kind]["id"], "--node", uri)
    delivered = {
        "ConvertSubnetToL1Tx": CONVERSION,
        "RegisterL1ValidatorTx": REGISTRATION,
        "SetL1ValidatorWeightTx": REMOVAL,
    }[kind]
    assert document["transactionType"] == kind
    assert document["status"] == "Committed"
    assert document["signingSubnetId"]["cb58"] == id_text(L1)
    assert document["message"]["payload"]["call"]["type"] == call
    assert delivered.startswith(document["message"]["unsignedMessage"][2:])
    assert (
        document.get("askedForBy", {"payload": {"call": {"type": None}}})["payload"]["call"]["type"]
        == asked_for
    )


async def test_transaction_bytes_are_decoded_without_a_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = TRANSACTIONS["RegisterL1ValidatorTx"]["tx"][:-8]
    document = await decode_message(capsys, raw)
    assert document["transactionId"]["cb58"] == TRANSACTIONS["RegisterL1ValidatorTx"]["id"]
    document = await decode_message(capsys, TRANSACTIONS["BaseTx"]["tx"][:-8])
    assert document["message"] is None
    assert "has no Warp message" in document["reason"]


async def test_a_transaction_needs_a_node_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = await decoded(capsys, TRANSACTIONS["BaseTx"]["id"])
    assert (code, "--node" in err) == (1, True)
    async with serve_nodes(node_with("BaseTx")) as (uri,):
        code, _, err = await decoded(capsys, id_text(b"\x01" * 32), "--node", uri)
    assert (code, "knows no transaction" in err) == (1, True)
    code, _, err = await decoded(capsys, TRANSACTIONS["BaseTx"]["id"], "--node", refusing_uri())
    assert (code, "no usable answer" in err) == (1, True)


@pytest.mark.parametrize("words", ["", "0x", "xyz", "abc", "0x123", "00 11", "é"])
async def test_input_that_is_no_message_and_no_transaction_exits_with_1(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = await decoded(capsys, words)
    assert code == 1
    assert "expected the hex of a message or the hash of a transaction" in err


async def test_unknown_bytes_are_printed_and_exit_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = await decode_message(capsys, "0x0102030405", code=1)
    assert document["type"] == "no Warp message"
    assert document["unread"][0]["part"] == "message"


@pytest.mark.parametrize(
    "arguments",
    [
        ("00", "--node", "ftp://x"),
        ("00", "--height", "-1"),
        ("00", "--signing-subnet", "x"),
        ("00", "--quorum", "101"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("message", "decode", *arguments)) == 2
    assert "usage: warpseal message decode" in capsys.readouterr().err
