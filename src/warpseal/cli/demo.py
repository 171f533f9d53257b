"""`warpseal demo`: an aggregation on a simulated network, explained step by step."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from eth_typing import BLSPubkey, BLSSignature
from py_ecc.bls.ciphersuites import G2ProofOfPossession

from warpseal.cli.process import Command
from warpseal.warp.ids import NodeID, node_id_text, parse_node_id
from warpseal.warp.message import SignedMessage, decode_signers
from warpseal.warp.validator_set import CanonicalValidatorSet, build_canonical_set, required_weight

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 15
QUORUM = 67
START = "start"
STAGES = {
    START: (
        "waiting for the start of the daemon, whose ports listen before its services exist; HTTP"
    ),
    "validators": "finding the signing subnet, the P-Chain height and the validator set",
    "connect": "waiting for connections to enough of the validators",
    "collect": "requesting signature shares from the validators",
    "verify": "summing the shares and verifying the aggregate signature",
}
STAGE_METRICS = (
    "warpseal_aggregation_duration_seconds_",
    "warpseal_aggregation_stage_duration_seconds_sum",
    "signature_aggregator_app_request_count ",
)


class DemoFailed(Exception):
    """A step of the demo failed."""


class HttpResponse(NamedTuple):
    """One HTTP response: status, decoded JSON body, duration in seconds."""

    status: int
    body: dict[str, Any]
    took_s: float


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--validators",
        type=int,
        default=20,
        metavar="N",
        help="validators of the simulated network (default 20)",
    )


def _demo(args: argparse.Namespace) -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="warpseal-demo-") as folder:
            _run_demo(Path(folder), args.validators)
    except DemoFailed as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def _run_demo(folder: Path, count: int) -> None:
    step = f"Start a simulated Avalanche network of {count} validators"
    _print_step(1, f"{step} (real TLS, real frames, real BLS, loopback only)")
    network_file = folder / "network.json"
    simnet = ["simnet", "--validators", str(count), "--messages", "4", "--write", str(network_file)]
    with _process(simnet) as ready:
        print(f"    {ready}")
        network = json.loads(network_file.read_text())
        config_file = folder / "config.json"
        config_file.write_text(json.dumps(network["config"], indent=2))
        step = "Start the daemon with the config file that the network wrote"
        _print_step(2, f"{step} (keys of the reference aggregator only)")
        serve = [
            "serve",
            f"--config={config_file}",
            f"--data-dir={folder / 'data'}",
            "--log-level=error",
        ]
        serve += ["--api-host=127.0.0.1", "--api-port=0", "--metrics-port=0"]
        with _process(serve) as listening:
            print(f"    {listening}")
            urls = dict(word.split("=", 1) for word in listening.split() if "=" in word)
            _run_steps(network, urls["api"], urls["metrics"])


def _run_steps(network: dict[str, Any], api: str, metrics: str) -> None:
    chosen = _l1_message(network)
    subnets = {subnet["subnetId"]: subnet for subnet in network["subnets"]}
    subnet = subnets[chosen["signingSubnetId"]]
    validators = _validator_set(subnet)
    required = required_weight(validators.total_weight, QUORUM)
    _print_step(3, f"The signers: the canonical validator set of subnet {subnet['subnetId']}")
    print(f"    {len(validators.validators)} validators, total weight {validators.total_weight}")
    print(f"    a quorum of {QUORUM} % needs weight {required}")

    _print_step(
        4,
        "Request by the path of the hosted API: POST"
        " /v1/signatureAggregator/{network}/aggregateSignatures",
    )
    hosted_url = f"{api}/v1/signatureAggregator/fuji/aggregateSignatures"
    first = _request(hosted_url, {"message": chosen["message"]})
    signed = _expect(first, 201, "signedMessage")
    print(f"    201 after {first.took_s * 1000:.1f} ms, of which")
    for stage, duration_ms in _stages_ms(metrics, first.took_s):
        print(f"    {stage:10} {duration_ms:8.1f} ms  {STAGES.get(stage, '')}")

    _print_step(
        5, "Request again by the path of the reference aggregator: POST /aggregate-signatures"
    )
    body = {"message": chosen["message"], "quorum-percentage": QUORUM}
    again = _request(f"{api}/aggregate-signatures", body)
    same = _expect(again, 200, "signed-message")
    print(f"    200 after {again.took_s * 1000:.1f} ms: the result was cached")
    if same != signed:
        raise DemoFailed("the two paths returned different signed messages")

    _print_step(6, "The signed message")
    _check_independently(SignedMessage.parse(bytes.fromhex(signed)), validators, required)

    _print_step(
        7,
        "Request by transaction: the conversion of a subnet to an L1, for the contract of the L1's"
        " manager",
    )
    conversion = network["l1Transactions"][0]
    response = _request(f"{hosted_url}/{conversion['txHash']}")
    attested = SignedMessage.parse(bytes.fromhex(_expect(response, 201, "signedMessage")))
    print(f"    {conversion['type']} {conversion['txHash']}")
    print(
        f"    201 after {response.took_s * 1000:.1f} ms: derived, signed by the manager's subnet,"
        " stored"
    )
    print(f"    payload {attested.unsigned.payload.hex()}")

    _print_step(8, "The metrics of these requests (GET /metrics on the metrics port)")
    for line in _page(metrics):
        if line.startswith(STAGE_METRICS) and "_bucket" not in line and "_created" not in line:
            print(f"    {line}")
    print("\nDone. README.md shows the config for a real node.")


def _check_independently(
    signed: SignedMessage, validators: CanonicalValidatorSet, required: int
) -> None:
    signers = set(decode_signers(signed.signers))
    for index, validator in enumerate(validators.validators):
        mark = "signed" if index in signers else "not needed"
        print(
            f"    {index:3}  {node_id_text(validator.node_ids[0]):42} weight {validator.weight:>12}"
            f"  {mark}"
        )
    weight = sum(validators.validators[index].weight for index in signers)
    raw = signed.encode().hex()
    print(
        f"    signer bit set {signed.signers.hex()}, signed weight {weight} of {required} required"
    )
    print(f"    {len(raw) // 2} bytes: {raw[:64]}…{raw[-64:]}")
    if weight < required:
        raise DemoFailed(f"signed weight {weight} is below {required}")
    keys = [BLSPubkey(validators.validators[index].public_key) for index in sorted(signers)]
    started = time.perf_counter()
    signature = BLSSignature(signed.signature)
    if not G2ProofOfPossession.FastAggregateVerify(keys, signed.unsigned.raw, signature):
        raise DemoFailed("py-ecc does not verify the aggregate signature")
    took_s = time.perf_counter() - started
    print(f"    py-ecc, an independent implementation, verifies it ({took_s:.1f} s in pure Python)")


def _l1_message(network: dict[str, Any]) -> dict[str, Any]:
    """Return a message that an L1's own chain sent."""
    l1_chains = {chain for subnet in network["subnets"][1:] for chain in subnet["blockchainIds"]}
    for message in network["messages"]:
        if message["sourceBlockchainId"] in l1_chains:
            document: dict[str, Any] = message
            return document
    raise DemoFailed("the simulated network wrote no message of an L1")


def _validator_set(subnet: dict[str, Any]) -> CanonicalValidatorSet:
    rows = []
    for item in subnet["validators"]:
        key = bytes.fromhex(item["publicKey"].removeprefix("0x")) if item["publicKey"] else None
        rows.append((NodeID(parse_node_id(item["nodeId"])), key, int(item["weight"])))
    return build_canonical_set(rows)


def _request(url: str, body: dict[str, Any] | None = None) -> HttpResponse:
    """POST the body as JSON; without a body, GET."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"content-type": "application/json"})
    started = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as response:
            return HttpResponse(response.status, json.load(response), time.perf_counter() - started)
    except urllib.error.HTTPError as error:
        return HttpResponse(error.code, json.load(error), time.perf_counter() - started)


def _expect(response: HttpResponse, status: int, key: str) -> str:
    if response.status != status:
        raise DemoFailed(f"HTTP {response.status} instead of {status}: {json.dumps(response.body)}")
    return str(response.body[key])


def _stages_ms(metrics: str, took_s: float) -> list[tuple[str, float]]:
    """Return the stages of the first request in milliseconds; their sum is its duration."""
    stages: list[tuple[str, float]] = []
    for line in _page(metrics):
        if line.startswith("warpseal_aggregation_stage_duration_seconds_sum"):
            labels, _, seconds = line.rpartition(" ")
            stage = labels.split('stage="')[1].split('"')[0]
            stages.append((stage, round(float(seconds) * 1000, 1)))
    start_ms = round(took_s * 1000, 1) - sum(duration_ms for _, duration_ms in stages)
    return [(START, start_ms), *stages]


def _page(metrics: str) -> list[str]:
    with urllib.request.urlopen(f"{metrics}/metrics", timeout=START_TIMEOUT_S) as response:
        return str(response.read(), "utf-8").splitlines()


@contextmanager
def _process(arguments: list[str]) -> Iterator[str]:
    """Run `warpseal …` in a subprocess and end it by SIGTERM; yield its first line of output."""
    command = [sys.executable, "-m", "warpseal", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().strip() if process.stdout else ""
        if not line:
            code = process.wait(STOP_TIMEOUT_S)
            raise DemoFailed(
                f"`warpseal {arguments[0]}` ended with code {code} before it was ready"
            )
        yield line
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _print_step(step: int, sentence: str) -> None:
    print(f"\n[{step}/8] {sentence}", flush=True)


DEMO: Final = Command(_add_arguments, _demo)
