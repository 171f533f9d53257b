"""`warpseal icm show` and `warpseal icm list`: ICM messages in the index of a running daemon."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from warpseal.api.data.bodies import EvmChainList, IcmMessage
from warpseal.api.data.endpoints import find_endpoint
from warpseal.api.data.errors import IndexBehind, MessageNotFound
from warpseal.api.data.pages import page_class
from warpseal.chains.evm.icm_events import ICM_READERS
from warpseal.chains.keccak import keccak
from warpseal.cli.message import format_lines
from warpseal.cli.process import Command, argument
from warpseal.cli.running_daemon import (
    DaemonRefusal,
    add_api_arguments,
    ask_daemon,
    print_table,
    printable,
)
from warpseal.errors import StartupError
from warpseal.resources.text import hex_text
from warpseal.warp.ids import MalformedID, parse_id

_MAX_MESSAGES: Final = 100
_PAGE: Final = page_class(find_endpoint("listIcmMessages").page)
_MAX_SECOND: Final = 2**37
_MISMATCH: Final = "{path} answered {status}, and not as a daemon of this version does"
# Events whose first topic is the id of a message.
_TOPICS: Final = {hex_text(keccak(text.encode())) for text in ICM_READERS if "(bytes32," in text}
_SHOW: Final = """\
Show the life of an ICM (Teleporter) message: its steps with their times (UTC), what to do, and what
hinders it. A step without a time has none that is known. Name it by the message id of its events or
the id of its Warp message, or by the hash of a transaction of an indexed EVM chain (`index` in
evm-chains) that sent or received messages: it shows them all. The exit code is 1 if there is no
such message. Example: warpseal icm show 0x1360f9ab...
"""
_LIST: Final = f"""\
List the newest {_MAX_MESSAGES} ICM (Teleporter) messages of the indexed EVM chains, how far each
one has come (UTC), and how to retry it; `warpseal icm show ID` says more. A message is stuck if its
destination went on for more than five minutes and did not receive or not execute it. Example:
warpseal icm list --stuck --source 43114
"""


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    id_help = "id of a message, in hex or base58-check, or hash of a transaction"
    parser.add_argument(
        "id", type=argument(parse_id, MalformedID), metavar="ID|TXHASH", help=id_help
    )
    _add_common_arguments(parser, _SHOW)


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stuck", action="store_true", help="list only messages that are stuck")
    for side in ("source", "destination"):
        parser.add_argument(
            f"--{side}", metavar="CHAIN", help="its blockchain id, EVM chain id or alias"
        )
    _add_common_arguments(parser, _LIST)


def _add_common_arguments(parser: argparse.ArgumentParser, description: str) -> None:
    # One paragraph, which argparse wraps.
    parser.description = description.replace("\n", " ")
    parser.add_argument(
        "--json", action="store_true", help="print the messages of the API as a JSON list"
    )
    add_api_arguments(parser)


def _show(args: argparse.Namespace) -> int:
    subject = hex_text(args.id)
    # The text does not say whether it is the id of a message or the hash of a transaction.
    messages = _find_messages(args, [subject]) or _find_messages(args, _find_ids(args, subject))
    if not messages:
        text = (
            f"no indexed chain has an ICM message {subject}, and its nodes have no transaction"
            " with one"
        )
        raise StartupError(f"{text}; an index that is behind may get it later: warpseal status")
    lines = [printable(line).rstrip() for message in messages for line in describe_message(message)]
    print(json.dumps(messages, indent=2) if args.json else "\n".join(lines))
    return 0


def _list(args: argparse.Namespace) -> int:
    names = {"sourceBlockchainId": args.source, "destinationBlockchainId": args.destination}
    query = {name: chain for name, chain in names.items() if chain}
    if args.stuck:
        query["isStuck"] = "true"
    page: dict[str, Any] = {"nextPageToken": ""}
    messages: list[dict[str, Any]] = []
    # A page may be empty and not the last one.
    while len(messages) < _MAX_MESSAGES and "nextPageToken" in page:
        place = urlencode({**query, "pageSize": _MAX_MESSAGES, "pageToken": page["nextPageToken"]})
        page = _fetch(args, f"/v1/icm/messages?{place}", _PAGE)
        messages = (messages + page["messages"])[:_MAX_MESSAGES]
    if args.json:
        print(json.dumps(messages, indent=2))
    else:
        print_table(
            ("SENT", "MESSAGE", "SOURCE", "DESTINATION", "STATE", "SIGNATURE", "RETRY"),
            map(_cells, messages),
        )
    return 0


def _find_messages(args: argparse.Namespace, message_ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return the messages with these ids; those that no indexed chain has are left out."""
    replies = (
        _fetch(args, f"/v1/icm/messages/{message_id}", IcmMessage) for message_id in message_ids
    )
    return [message for message in replies if message]


def _find_ids(args: argparse.Namespace, tx_hash: str) -> Sequence[str]:
    """Return the ids of the messages in a transaction, from the logs that nodes have of it."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_getTransactionReceipt", "params": [tx_hash]}
    for chain in _fetch(args, "/v1/chains?feature=nftIndexing", EvmChainList)["chains"]:
        # A chain whose nodes do not answer, or have no such transaction, hides no other one.
        with suppress(StartupError, LookupError, TypeError):
            path = f"/ext/bc/{quote(chain['platformChainId'], '')}/rpc"
            receipt = _fetch(args, path, dict, call)["result"]
            return _ids_in(receipt["logs"])
    return ()


def _ids_in(logs: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Return the ids of messages in logs, each once."""
    message_ids: dict[str, None] = {}
    for log in logs:
        topics = log["topics"]
        if len(topics) > 1 and topics[0] in _TOPICS:
            message_ids[quote(topics[1], "")] = None
    return list(message_ids)[:_MAX_MESSAGES]


def _fetch(args: argparse.Namespace, path: str, kind: Any, call: Any = None) -> dict[str, Any]:
    """Return the body of a response; an empty body if there is no such message.

    call: JSON object of a POST.
    Raises StartupError.
    """
    try:
        return ask_daemon(args, path, kind, _MISMATCH, call)
    except DaemonRefusal as refusal:
        if refusal.code in (MessageNotFound.code, IndexBehind.code):
            return {}
        raise


def describe_message(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about a message: its steps with their times, the advice, and all its fields."""
    block = message.get("warpseal", {})
    sent = message.get("sourceTransaction", {})
    received = message.get("destinationTransaction", {})
    executed, executed_at = "no", None
    if block.get("state") == "failed":
        executed, executed_at = "failed", block.get("since")
    elif message["messageExecuted"]:
        executed = "yes"
    steps = (
        ("sent", sent.get("timestamp"), sent.get("txHash", "not known")),
        ("signed", None, _signature(message)),
        ("received", received.get("timestamp"), received.get("txHash", "not yet")),
        ("executed", executed_at, executed),
        ("receipt", None, "yes" if message["receiptDelivered"] else "no"),
    )
    yield f"message {message['messageId']}"
    for step, second, text in steps:
        yield f"  {step:8}  {_moment(second):19}  {text}"
    no_advice = "nothing" if message["messageExecuted"] else "not known"
    yield f"  what to do: {block.get('retry', {}).get('text', no_advice)}"
    yield from format_lines({name: message[name] for name in message if name != "data"}, "  ")


def _cells(message: Mapping[str, Any]) -> Sequence[str]:
    block = message.get("warpseal", {})
    state = block.get("state", message["status"])
    return (
        _moment(message.get("sourceTransaction", {}).get("timestamp")),
        message["messageId"],
        message["sourceEvmChainId"] or message["sourceBlockchainId"],
        message["destinationEvmChainId"] or message["destinationBlockchainId"],
        "executed" if message["messageExecuted"] else state,
        _signature(message),
        block.get("retry", {}).get("action", ""),
    )


def _signature(message: Mapping[str, Any]) -> str:
    """Return the state of the signature; a message that was received was signed."""
    if "destinationTransaction" in message:
        return "signed"
    signature = message.get("warpseal", {}).get("signature", {"state": "not known"})
    return str(signature["state"]).replace("_", " ")


def _moment(second: int | None) -> str:
    """Return a time, or the number of its seconds if no calendar has it: a chain may be hostile."""
    if second is None:
        return ""
    if second >= _MAX_SECOND:
        return str(second)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}"


SHOW: Final = Command(_add_show_arguments, _show)
LIST: Final = Command(_add_list_arguments, _list)
