"""The errors of all packages: within the specification, listed in docs/errors.md, and safe to retry
on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace

from tests import paths
from tests.api.openapi.documented_responses import assert_valid
from warpseal.aggregation.errors import (
    InvalidTimeout,
    NoValidators,
    Overloaded,
    QuorumImpossible,
    QuorumNotReached,
    SubnetNotConverted,
    WrongNetwork,
)
from warpseal.api.data.errors import (
    BlockNotFound,
    EventsNotEnabled,
    IndexBehind,
    IndexNotEnabled,
    IndexNotReady,
    IndexStale,
    MessageNotFound,
    NotAnErc20Token,
    NotAPrimaryChain,
    ReindexedRecently,
    ReindexUnavailable,
    TokenNotFound,
    UsageNotEnabled,
)
from warpseal.api.http.error_response import (
    Dialect,
    class_sentence,
    error_response,
    error_text,
    status_of,
)
from warpseal.api.http.errors import (
    AdminTokenRefused,
    AdminTokenRequired,
    ApiKeyRefused,
    ApiKeyRequired,
    BodyTooLarge,
    HeaderTooLarge,
    MalformedHTTP,
    MethodNotAllowed,
    NetworkNotServed,
    NotFound,
    RateLimited,
    ReceiveTimeout,
    ShuttingDown,
    StillStarting,
    TooManyConnections,
    TooManyRequests,
    UnknownField,
    UnknownTransferCoding,
)
from warpseal.api.http.operations import COMPONENT
from warpseal.api.signing.errors import (
    FieldTooLarge,
    InvalidQuorum,
    UndecodableMessage,
)
from warpseal.delivery.errors import DestinationUnavailable
from warpseal.errors import InternalError, InvalidRequest, WarpsealError
from warpseal.index.errors import IndexDamaged, IndexMoved
from warpseal.l1.errors import (
    FollowerProgress,
    InitialValidatorsProgress,
    ManagerLogsProgress,
    MessageSuperseded,
    OriginNotIndexed,
    OriginProgress,
    TransactionNotFound,
)
from warpseal.l1.request import PresentStatement, SupersededStatement
from warpseal.messages.errors import (
    InvalidSigningSubnet,
    NoMessage,
    SigningBlocked,
    UncheckedMessage,
    UndecodableTransaction,
)
from warpseal.resources.evm import ErcType
from warpseal.store.errors import CursorExpired, StoreDown
from warpseal.store.values import SigningBlock, SigningBlockKind
from warpseal.upstream.errors import (
    AnswerClass,
    NodeAttempt,
    NodesDisagree,
    NodeUnavailable,
    PublicFailure,
)
from warpseal.usage.errors import TooManyPageTokens, UsageQueryTooLong
from warpseal.validators.errors import (
    HeightNotIndexed,
    HeightTooNew,
    HeightTooOld,
    UnknownChain,
    UnknownSubnet,
    ValidatorSetsDiffer,
)
from warpseal.warp.quorum_shortfall import MissingSigner, QuorumShortfall, Verdict

DOCUMENT = paths.DOCS / "errors.md"
# Every module of errors, so that none is missed because no other test imported it.
for file in sorted((paths.DOCS.parent / "src").rglob("errors.py")):
    import_module(".".join(file.relative_to(paths.DOCS.parent / "src").with_suffix("").parts))
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
    (
        MissingSigner(
            node_ids=(), weight="40", reason="no_bls_key", error_code=-1, error_message="x"
        ),
    ),
)
PROGRESS = OriginProgress(
    follower=FollowerProgress(from_="1", to="5", percent=20.0, eta=3),
    initial_validators=InitialValidatorsProgress(subnets_tried=1, subnets=2),
    manager_chain_logs=ManagerLogsProgress(configured=False),
)
SAMPLES: tuple[WarpsealError, ...] = (
    WrongNetwork(1, 5),
    NetworkNotServed("devnet", ("mainnet",), 1),
    NotFound("no such path"),
    UnknownChain("c"),
    UnknownChain(evm_name="c"),
    UnknownSubnet("s"),
    SubnetNotConverted("s"),
    NoValidators("s", 1),
    HeightTooOld(1, 2, 3),
    HeightTooNew(9, 1),
    TooManyRequests(500, per_client=True),
    TooManyRequests(1000, per_client=False),
    Overloaded(21.4, 1200),
    NodeUnavailable("the height", [NodeAttempt(0, PublicFailure.HTTP_STATUS)]),
    DestinationUnavailable("c", "no configured node reports its epoch"),
    HeightNotIndexed(9, 1, 5),
    ValidatorSetsDiffer("the index and the nodes list other validators of subnet s", "s", 9),
    NodesDisagree("the set", 2, [AnswerClass((0, 2), "ab12"), AnswerClass((1,), "cd34")]),
    QuorumNotReached(NEVER, at_deadline=True),
    QuorumNotReached(NEVER, at_deadline=False),
    QuorumImpossible(NEVER),
    SigningBlocked(SigningBlock(SigningBlockKind.SENDER, "0x00", "a bug", 1)),
    UncheckedMessage("a node returned no Warp message"),
    TransactionNotFound("t"),
    TransactionNotFound("t", "Processing"),
    NoMessage("DisableL1ValidatorTx"),
    UndecodableTransaction("t", "at byte 2: type 99"),
    MessageSuperseded("t", SupersededStatement(now=PresentStatement(registered=False))),
    OriginNotIndexed("v", PROGRESS, 30.0),
    TooManyPageTokens(1_000_000),
    IndexNotEnabled("the p-chain", "index-chains", "name p"),
    NotAPrimaryChain("z", {"p-chain": "1"}),
    IndexNotReady("p-chain"),
    IndexStale("p-chain", 90, 60.0),
    IndexBehind("43114", 5, 9),
    BlockNotFound("9", "43114"),
    MessageNotFound("0x00"),
    TokenNotFound("0x00", "1"),
    ReindexedRecently("0x00", "1", 1234.5),
    NotAnErc20Token("0x0000000000000000000000000000000000000001", ErcType.ERC721),
    ReindexUnavailable("the indexer does not run"),
    ApiKeyRequired(),
    ApiKeyRefused(),
    AdminTokenRequired(),
    AdminTokenRefused(),
    UsageNotEnabled(),
    EventsNotEnabled(),
    UsageQueryTooLong(8.0),
    RateLimited(6000, 60, 12.5),
    StoreDown("the disk is full"),
    CursorExpired("6f0a-17"),
    IndexDamaged("a row is wrong"),
    IndexMoved("p-chain"),
    StillStarting(),
    ShuttingDown(),
    InternalError("x"),
    WarpsealError(),
    FieldTooLarge("message", 5),
    BodyTooLarge(5),
    HeaderTooLarge(5),
    ReceiveTimeout(0.5),
    MalformedHTTP(),
    UnknownTransferCoding("xchunked"),
    MethodNotAllowed("GET", ("POST",)),
    TooManyConnections(),
    *(
        kind("field", "reason")
        for kind in ALL
        if issubclass(kind, InvalidRequest) and kind is not FieldTooLarge
    ),
)


def test_every_error_type_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == set(ALL)


def test_codes_are_unique_and_stable_words() -> None:
    codes = [kind.code for kind in ALL if kind is not WarpsealError]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z0-9]+)*", code) for code in codes)


def test_v1_uses_only_the_statuses_of_the_specification() -> None:
    # RFC 9112 has 501 for a coding that a server does not know; no route of the specification is
    # reached.
    assert {
        status_of(kind, Dialect.V1) for kind in ALL if kind is not UnknownTransferCoding
    } <= SPECIFIED


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_is_a_whole_json_response_in_both_dialects(error: WarpsealError) -> None:
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
    texts = [error_text(error), error.reference_text or ""]
    if isinstance(error, QuorumNotReached):
        assert "threshold of stake" in texts[0]
        assert not texts[1]
        assert "threshold of stake" in kebab_text(error)
    else:
        assert not any(RETRIED.search(text) for text in texts)
        other = json.loads(bytes(error_response(error, Dialect.OTHER).body))
        is_temporary = "retry-after" in error_response(error, Dialect.KEBAB).headers
        # A client that knows the words alone waits for a signature, and for nothing else.
        assert kebab_body(error) == {
            **other,
            "error": "no signatures yet: " * is_temporary + other["error"],
        }
        assert not RETRIED.search(other["error"])


@pytest.mark.parametrize(
    "bait", ["no signatures", "a Threshold", "signature weight is insufficient"]
)
def test_a_final_reason_is_left_out_so_that_clients_do_not_retry(bait: str) -> None:
    assert kebab_text(UndecodableMessage("message", bait)) == "Could not decode message"


def test_kebab_callers_get_the_text_of_the_reference_followed_by_the_reason() -> None:
    assert (
        kebab_text(InvalidQuorum("quorumPercentage", "101 is too much"))
        == "Invalid quorum number: 101 is too much"
    )
    assert kebab_text(InvalidTimeout("timeoutSeconds", "too long")) == "timeout-seconds: too long"
    assert (
        kebab_text(UnknownField("quorumNumber", "no such field")) == "quorumNumber: no such field"
    )
    assert (
        kebab_text(QuorumNotReached(NEVER, at_deadline=True))
        == "failed to aggregate signatures. error: failed to connect to a threshold of stake: "
        "signed weight 60, threshold of stake 67, total 100; missing validators: no_bls_key: 1"
    )
    silent = replace(NEVER, counts={"no_answer": 3, "refused": 1})
    assert (
        kebab_text(QuorumNotReached(silent, at_deadline=True))
        == "failed to aggregate signatures. error: failed to collect a threshold of signatures:"
        " signed weight 60, threshold of stake 67, total 100; missing validators: no_answer: 3;"
        " refused: 1"
    )
    unreached = replace(NEVER, counts={"not_connected": 2, "refused": 1})
    assert kebab_text(QuorumNotReached(unreached, at_deadline=False)).startswith(
        "failed to aggregate signatures. error: failed to connect to a threshold of stake: signed"
        " weight 60, "
    )


def test_kebab_callers_get_kebab_names_in_the_detail() -> None:
    detail = kebab_body(QuorumNotReached(NEVER, at_deadline=True))["detail"]
    assert detail["p-chain-height"] == "19"
    assert detail["signing-subnet-id"] == NEVER.signing_subnet_id
    assert detail["counts"] == {"no_bls_key": 1}
    assert set(detail["validators"][0]) == {
        "node-ids",
        "weight",
        "reason",
        "error-code",
        "error-message",
    }
    assert kebab_body(InvalidSigningSubnet("signingSubnetId", "no id"))["detail"] == {
        "field": "signing-subnet-id",
        "reason": "no id",
    }
    # A field that is unknown has no other name.
    assert kebab_body(UnknownField("quorumNumber", "x"))["detail"]["field"] == "quorumNumber"


def test_a_never_is_not_in_the_range_that_clients_retry() -> None:
    for dialect in Dialect:
        response = error_response(QuorumImpossible(NEVER), dialect)
        assert response.status_code == 400
        assert set(response.headers) == {"content-length", "content-type"}


def test_an_error_that_names_its_moment_is_answered_with_it() -> None:
    response = error_response(OriginNotIndexed("v", PROGRESS, 29.5), Dialect.V1)
    assert (response.status_code, response.headers["retry-after"]) == (503, "30")


def test_errors_without_a_text_say_what_they_are() -> None:
    assert error_text(ShuttingDown()) == "The daemon is stopping and takes no new work."


def test_the_document_lists_every_error() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \| (\d+) \| ([\d or]+) \| (.+) \|$", DOCUMENT.read_text(), re.M
    )
    documented = {code: (when, int(v1), kebab) for code, when, v1, kebab, _ in rows}
    assert documented == {
        kind.code: (
            class_sentence(kind),
            status_of(kind, Dialect.V1),
            (
                f"{kind.http_status} or {kind.deadline_status}"
                if issubclass(kind, QuorumNotReached)
                else str(kind.http_status)
            ),
        )
        for kind in ALL
        if kind is not WarpsealError
    }
    assert all(len(advice) > 10 for *_, advice in rows)
