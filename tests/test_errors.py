"""The one table of errors: complete, within the specification, listed in docs/errors.md, and safe to retry on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests import paths
from tests.api.openapi.documented_answers import assert_valid
from warpseal import errors
from warpseal.api.http.errors import ERROR_TABLE, Dialect, error_response, error_text, find_rule
from warpseal.api.openapi.describe import COMPONENT
from warpseal.errors import (
    AnswerClass,
    MissingValidator,
    NodeAttempt,
    NodeFailure,
    QuorumShortfall,
    Verdict,
    WarpsealError,
)

DOCUMENT = paths.DOCS / "errors.md"
SPECIFIED = {400, 401, 403, 404, 429, 500, 502, 503}
RETRIED = re.compile(r"threshold|no signatures|signature weight is insufficient", re.IGNORECASE)


def kinds(kind: type[WarpsealError] = WarpsealError) -> Iterator[type[WarpsealError]]:
    """Yield the kinds with a code of their own; others are answered like their parents."""
    if "code" in vars(kind):
        yield kind
    for inner in kind.__subclasses__():
        yield from kinds(inner)


def kebab_body(error: WarpsealError) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(bytes(error_response(error, Dialect.KEBAB).body))
    return body


def kebab_text(error: WarpsealError) -> str:
    text: str = kebab_body(error)["error"]
    return text


ALL = tuple(dict.fromkeys(kinds()))
NEVER = QuorumShortfall(
    Verdict.NEVER,
    60,
    67,
    100,
    19,
    "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5",
    {"no_bls_key": 1},
    (MissingValidator((), None, 40, "no_bls_key", -1, "x"),),
)
PROGRESS = {
    "follower": {"from": "1", "to": "5", "percent": 20.0, "eta": 3},
    "initialValidators": {"subnetsTried": 1, "subnets": 2},
    "managerChainLogs": {"configured": False},
}
SAMPLES: tuple[WarpsealError, ...] = (
    errors.WrongNetwork(1, 5),
    errors.NetworkNotServed("devnet", ("mainnet",), 1),
    errors.NotFound("no such path"),
    errors.UnknownChain("c"),
    errors.UnknownChain(evm_name="c"),
    errors.UnknownSubnet("s"),
    errors.SubnetNotConverted("s"),
    errors.NoValidators("s", 1),
    errors.HeightTooOld(1, 2, 3),
    errors.HeightTooNew(9, 1),
    errors.TooManyRequests(500, per_client=True),
    errors.TooManyRequests(1000, per_client=False),
    errors.Overloaded(21.4, 1200),
    errors.NodeUnavailable("the height", [NodeAttempt(0, NodeFailure.HTTP_STATUS)]),
    errors.DestinationUnavailable("c", "no configured node reports its epoch"),
    errors.NodesDisagree("the set", 2, [AnswerClass((0, 2), "ab12"), AnswerClass((1,), "cd34")]),
    errors.QuorumNotReached(NEVER, at_deadline=True),
    errors.QuorumNotReached(NEVER, at_deadline=False),
    errors.QuorumImpossible(NEVER),
    errors.TransactionNotFound("t"),
    errors.TransactionNotFound("t", "Processing"),
    errors.NoMessage("DisableL1ValidatorTx"),
    errors.UndecodableTransaction("t", "at byte 2: type 99"),
    errors.MessageSuperseded("t", {"now": {"registered": False}}),
    errors.OriginNotIndexed("v", PROGRESS, 30.0),
    errors.TooManyPageTokens(1_000_000),
    errors.IndexNotEnabled("the p-chain"),
    errors.NotAPrimaryChain("z", {"p-chain": "1"}),
    errors.IndexNotReady("p-chain"),
    errors.IndexStale("p-chain", 90, 60.0),
    errors.IndexBehind("43114", 5, 9),
    errors.BlockNotFound("9", "43114"),
    errors.TokenNotFound("0x00", "1"),
    errors.ReindexedRecently("0x00", "1", 1234.5),
    errors.ReindexUnavailable("the indexer does not run"),
    errors.ApiKeyRequired(),
    errors.ApiKeyRefused(),
    errors.AdminTokenRequired(),
    errors.AdminTokenRefused(),
    errors.UsageNotEnabled(),
    errors.UsageDamaged("unexpected end"),
    errors.UsageQueryTooLong(8.0),
    errors.RateLimited(6000, 60, 12.5),
    errors.StoreDown("the disk is full"),
    errors.IndexDamaged("a row is wrong"),
    errors.IndexMoved("p-chain"),
    errors.StillStarting(),
    errors.ShuttingDown(),
    errors.InternalError("x"),
    errors.WarpsealError(),
    errors.FieldTooLarge("message", 5),
    errors.BodyTooLarge(5),
    errors.HeaderTooLarge(5),
    errors.ReceiveTimeout(0.5),
    errors.MalformedHTTP(),
    errors.UnknownTransferCoding("xchunked"),
    errors.MethodNotAllowed("GET", ("POST",)),
    errors.TooManyConnections(),
    *(
        kind("field", "reason")
        for kind in ALL
        if issubclass(kind, errors.InvalidRequest) and kind is not errors.FieldTooLarge
    ),
)


def test_every_error_type_has_its_line_in_the_table() -> None:
    assert set(ALL) == set(ERROR_TABLE)
    assert {type(sample) for sample in SAMPLES} == set(ALL)


def test_codes_are_unique_and_stable_words() -> None:
    codes = [kind.code for kind in ALL if kind is not WarpsealError]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", code) for code in codes)


def test_v1_uses_only_the_statuses_of_the_specification() -> None:
    # RFC 9112 has 501 for a coding that a server does not know; no route of the specification is reached.
    assert {rule.v1 for kind, rule in ERROR_TABLE.items() if kind is not errors.UnknownTransferCoding} <= SPECIFIED


def test_a_kind_that_is_not_in_the_table_is_answered_like_its_parent() -> None:
    kind = type("Narrower", (errors.UnknownChain,), {})
    assert find_rule(kind) is ERROR_TABLE[errors.UnknownChain]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_is_a_whole_json_answer_in_both_dialects(error: WarpsealError) -> None:
    v1, kebab = error_response(error, Dialect.V1), error_response(error, Dialect.KEBAB)
    body = json.loads(bytes(v1.body))
    assert set(body) == {"message", "error", "statusCode", "code", "detail"}
    assert (body["statusCode"], body["code"]) == (v1.status_code, error.code)
    assert body["message"]
    assert_valid({"$ref": COMPONENT.format(name="Error")}, body)
    metrics_api = json.loads(bytes(error_response(error, Dialect.METRICS_API).body))
    assert_valid({"$ref": COMPONENT.format(name="MetricsApiError")}, metrics_api)
    body = json.loads(bytes(kebab.body))
    assert set(body) == {"error", "code", "detail"}
    assert body["error"]
    assert_valid({"$ref": COMPONENT.format(name="KebabError")}, body)
    has_retry_after = "retry-after" in kebab.headers
    assert has_retry_after == (kebab.status_code in (429, 502, 503, 504))


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_clients_retry_by_text_only_where_waiting_helps(error: WarpsealError) -> None:
    texts = [error_text(error), find_rule(type(error)).text or ""]
    if isinstance(error, errors.QuorumNotReached):
        assert "threshold of stake" in texts[0]
        assert not texts[1]
        assert "threshold of stake" in kebab_text(error)
    else:
        texts.append(kebab_text(error))
        assert not any(RETRIED.search(text) for text in texts)


@pytest.mark.parametrize("bait", ["no signatures", "a Threshold", "signature weight is insufficient"])
def test_a_reason_on_which_clients_would_retry_in_vain_is_left_out(bait: str) -> None:
    assert kebab_text(errors.UndecodableMessage("message", bait)) == "Could not decode message"


def test_kebab_callers_get_the_text_of_the_reference_followed_by_the_reason() -> None:
    assert kebab_text(errors.InvalidQuorum("quorumPercentage", "101 is too much")) == (
        "Invalid quorum number: 101 is too much"
    )
    assert kebab_text(errors.InvalidTimeout("timeoutSeconds", "too long")) == "timeout-seconds: too long"
    assert kebab_text(errors.UnknownField("quorumNumber", "no such field")) == "quorumNumber: no such field"
    assert kebab_text(errors.QuorumNotReached(NEVER, at_deadline=True)) == (
        "failed to aggregate signatures. error: failed to connect to a threshold of stake: "
        "signed weight 60, threshold of stake 67, total 100; missing validators: no_bls_key: 1"
    )
    silent = replace(NEVER, counts={"no_answer": 3, "refused": 1})
    assert kebab_text(errors.QuorumNotReached(silent, at_deadline=True)) == (
        "failed to aggregate signatures. error: failed to collect a threshold of signatures: "
        "signed weight 60, threshold of stake 67, total 100; missing validators: no_answer: 3; refused: 1"
    )
    unreached = replace(NEVER, counts={"not_connected": 2, "refused": 1})
    assert kebab_text(errors.QuorumNotReached(unreached, at_deadline=False)).startswith(
        "failed to aggregate signatures. error: failed to connect to a threshold of stake: signed weight 60, "
    )


def test_kebab_callers_get_kebab_names_in_the_detail() -> None:
    detail = kebab_body(errors.QuorumNotReached(NEVER, at_deadline=True))["detail"]
    assert detail["p-chain-height"] == "19"
    assert detail["signing-subnet-id"] == NEVER.signing_subnet_id
    assert detail["counts"] == {"no_bls_key": 1}
    assert set(detail["validators"][0]) == {"node-ids", "weight", "reason", "error-code", "error-message"}
    assert kebab_body(errors.InvalidSigningSubnet("signingSubnetId", "no id"))["detail"] == {
        "field": "signing-subnet-id",
        "reason": "no id",
    }
    # A field that is unknown has no other name.
    assert kebab_body(errors.UnknownField("quorumNumber", "x"))["detail"]["field"] == "quorumNumber"


def test_a_never_is_not_in_the_range_that_clients_retry() -> None:
    for dialect in Dialect:
        response = error_response(errors.QuorumImpossible(NEVER), dialect)
        assert response.status_code == 400
        assert set(response.headers) == {"content-length", "content-type"}


def test_an_error_that_names_its_moment_is_answered_with_it() -> None:
    response = error_response(errors.OriginNotIndexed("v", {}, 29.5), Dialect.V1)
    assert (response.status_code, response.headers["retry-after"]) == (503, "30")


def test_errors_without_a_text_say_what_they_are() -> None:
    assert error_text(errors.ShuttingDown()) == "The daemon is stopping and takes no new work."


def test_the_document_tells_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (\d+) \| ([\d or]+) \| (.+) \|$", DOCUMENT.read_text(), re.M)
    result = {code: (when, int(v1), kebab) for code, when, v1, kebab, _ in rows}
    held = {
        kind.code: (
            (kind.__doc__ or "").partition("\n")[0],
            rule.v1,
            f"{rule.kebab} or {rule.late}" if rule.late else str(rule.kebab),
        )
        for kind, rule in ERROR_TABLE.items()
        if kind is not WarpsealError
    }
    assert result == held
    assert all(len(advice) > 10 for *_, advice in rows)
