"""`warpseal message sign`: a signed message of the running daemon, or the missing validators."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from msgspec import Struct

from warpseal.api.http.settings import ALL_NETWORK_NAMES
from warpseal.cli.message import (
    NOT_CHECKED_EXIT_CODE,
    add_signer_arguments,
    format_lines,
    parse_hex,
    read_input,
)
from warpseal.cli.running_daemon import (
    DaemonRefusal,
    add_api_arguments,
    ask_network,
    percent,
    plural,
    print_table,
    printable,
    printable_lines,
)
from warpseal.errors import StartupError
from warpseal.messages.describe import describe
from warpseal.warp.ids import MalformedID, id_text, parse_id
from warpseal.warp.message import SignedMessage
from warpseal.warp.quorum_shortfall import MissingSigner

NEVER_EXIT_CODE: Final = 1
NO_DAEMON_EXIT_CODE: Final = NOT_CHECKED_EXIT_CODE
WAIT_EXIT_CODE: Final = 4

DESCRIPTION = """\
Sign a Warp message: the running daemon asks the validators, and the command prints the signed
message in hex on standard output. A P-Chain transaction is named by its hash: the daemon derives
the message for the L1's manager.

If the quorum is missed, standard error lists the missing validators, heaviest first, with their
reasons.

exit codes:
  0  signed
  1  never: the daemon refuses the request, or its quorum is impossible; repeating it does not help
  2  wrong usage
  3  no daemon answers
  4  wait: the quorum is missed, the transaction is not accepted yet, or the daemon or its node is
     busy
"""
EXAMPLES = """\
examples:
  warpseal message sign 0x0000... --destination 2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5
  warpseal message sign 2K5oE1TkXt8WwAsvgqfWa7MdtV1TcvTYK3HQp9ctch2hDEQqFU --explain
  while warpseal message sign 0x0000... > signed.hex; [ $? -eq 4 ]; do sleep 10; done
  warpseal message sign 0x0000... | warpseal message verify - --destination P
"""

_NETWORK: Final = ALL_NETWORK_NAMES[0]
_PATH: Final = "/v1/signatureAggregator/{network}/aggregateSignatures"
_MISMATCH: Final = (
    "{url} answered {status} without a signed message: it is no Warpseal daemon of this version"
)
_WAIT_STATUSES: Final = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
# The code of a transaction that is not accepted yet. Its class in l1/errors.py takes 50 ms to load.
_NOT_ACCEPTED: Final = "transaction_not_found"
# The daemon answers within the timeout of the request; these bound the wait for one that does not.
_RESPONSE_TIMEOUT_S: Final = 120.0
_GRACE_S: Final = 15.0


class _Signed(Struct, frozen=True, rename="camel"):
    signed_message: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `warpseal message sign`."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument(
        "input",
        metavar="HEX|TXHASH",
        help=(
            "unsigned message or data of its log in hex, with or without 0x; or the hash of a"
            " P-Chain transaction; -: standard input"
        ),
    )
    explain_help = (
        "first print the decoded message, or what the daemon knows about the transaction and each"
        " check"
    )
    parser.add_argument("--explain", action="store_true", help=f"{explain_help}, on standard error")
    parser.add_argument(
        "--justification", metavar="HEX", help="proof that validators need for a P-Chain message"
    )
    destination_help = (
        "chain whose next block has to accept the message: blockchain id, or P, X or C"
    )
    parser.add_argument("--destination", metavar="ID", help=destination_help)
    quorum_help = "required weight, percent (default: that of the destination, else 67)"
    add_signer_arguments(parser, "that of the source chain, or of the destination", quorum_help)
    timeout_help = (
        "time for the validators, seconds (default: request-timeout-seconds of the daemon)"
    )
    parser.add_argument("--timeout", type=int, metavar="SECONDS", help=timeout_help)
    parser.add_argument(
        "--json", action="store_true", help="print the response of the API, also that of an error"
    )
    add_api_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the signed message; return the exit code.

    It says whether a request that failed may succeed later.
    """
    text, tx_id = read_input(args.input), None
    with suppress(MalformedID):
        tx_id = parse_id(text)
    if tx_id is None:
        parse_hex(text)
    elif args.signing_subnet is not None:
        args.command.error(
            "--signing-subnet: the validators of the L1 sign the message of its transaction"
        )
    try:
        if tx_id is None:
            response = _sign_message(args, text)
        else:
            response = _sign_transaction(args, id_text(tx_id))
    except DaemonRefusal as refusal:
        _print_refusal(refusal, as_json=args.json)
        may_succeed_later = refusal.status in _WAIT_STATUSES or refusal.code == _NOT_ACCEPTED
        return WAIT_EXIT_CODE if may_succeed_later else NEVER_EXIT_CODE
    except StartupError as error:
        _report(f"warpseal: {error}")
        return NO_DAEMON_EXIT_CODE
    if args.json:
        print(json.dumps(response, indent=2))
        return 0
    signed_message = response.pop("signedMessage")
    # It was printed before the request.
    response.pop("explanation", None)
    _report(*format_lines(response))
    with suppress(ValueError):
        signers = len(SignedMessage.parse(bytes.fromhex(signed_message)).signer_indices)
        _report(f"signed by {signers} validator{plural(signers)}")
    print(printable(signed_message))
    return 0


def _sign_message(args: argparse.Namespace, message: str) -> dict[str, Any]:
    """Return the response to a request for a message. Raises StartupError."""
    explanation = describe(parse_hex(message)) if args.explain else None
    _explain(args, explanation)
    call = {"message": message, **_request_fields(args)}
    if args.signing_subnet is not None:
        call["signingSubnetId"] = id_text(args.signing_subnet)
    if args.explain and args.destination:
        call["report"] = True
    response = ask_network(args, _NETWORK, _PATH, _Signed, _MISMATCH, call, _longest_wait_s(args))
    return response if explanation is None else {"explanation": explanation, **response}


def _sign_transaction(args: argparse.Namespace, tx_hash: str) -> dict[str, Any]:
    """Return the response to a request for the message of a transaction. Raises StartupError."""
    path, fields, explanation = f"{_PATH}/{quote(tx_hash, '')}", _request_fields(args), None
    if args.explain:
        query = urlencode({**fields, "explain": "true"})
        explanation = ask_network(args, _NETWORK, f"{path}?{query}", dict, _MISMATCH)
        _explain(args, explanation)
    query = urlencode(fields)
    path_and_query = f"{path}?{query}" if query else path
    response = ask_network(
        args, _NETWORK, path_and_query, _Signed, _MISMATCH, timeout_s=_longest_wait_s(args)
    )
    return response if explanation is None else {"explanation": explanation, **response}


def _request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that requests by message and by transaction have, if they are set."""
    fields = {
        "justification": args.justification,
        "quorumPercentage": args.quorum,
        "destinationBlockchainId": args.destination,
        "timeoutSeconds": args.timeout,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _longest_wait_s(args: argparse.Namespace) -> float:
    return _RESPONSE_TIMEOUT_S if args.timeout is None else args.timeout + _GRACE_S


def _explain(args: argparse.Namespace, explanation: Mapping[str, Any] | None) -> None:
    """Print an explanation before the request; JSON has it beside the signed message."""
    if explanation is not None and not args.json:
        _report(*format_lines(dict(explanation)))


def _print_refusal(refusal: DaemonRefusal, *, as_json: bool) -> None:
    """Print the reason, the advice and the missing validators."""
    if as_json:
        print(json.dumps(refusal.document, indent=2))
        return
    detail = refusal.detail
    # The text names the cause, which is mostly one of the hints.
    hints = [hint for hint in detail.hints if hint not in refusal.message]
    _report(f"warpseal: {refusal}", *(f"  {hint}" for hint in hints))
    if not detail.validators:
        return
    total = int(detail.total_weight) if detail.total_weight.isdecimal() else 0
    with redirect_stdout(sys.stderr):
        print_table(
            ("MISSING", "WEIGHT", "SHARE", "REASON"),
            (_missing_cells(row, total) for row in detail.validators),
        )
    others = sum(detail.counts.values()) - len(detail.validators)
    if others > 0:
        _report(f"  … and {others} lighter validator{plural(others)}")


def _missing_cells(row: MissingSigner, total: int) -> Sequence[str]:
    weight = int(row.weight) if row.weight.isdecimal() else 0
    return ", ".join(row.node_ids), row.weight, percent(weight, total), ": ".join(_reasons(row))


def _reasons(row: MissingSigner) -> Iterator[str]:
    """Yield the reasons why a validator did not sign.

    The code comes first, then the state of its balance, its refusal and its connection.
    """
    if not row.state or not row.state.startswith(row.reason):
        yield row.reason
    if row.state:
        yield row.state
    if row.error_message:
        yield row.error_message
    if row.connections and row.connections[0].last_error:
        yield row.connections[0].last_error


def _report(*lines: str) -> None:
    """Print lines on standard error; parts of them come from other machines."""
    for line in lines:
        print(printable_lines(line), file=sys.stderr)
