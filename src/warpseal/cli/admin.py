"""`warpseal block add|list|remove`, `webhook add|list|remove|test`: calls of a running daemon with its admin token."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from warpseal.cli.process import Command
from warpseal.cli.running_daemon import add_api_arguments, ask_daemon
from warpseal.cli.serve import config_file
from warpseal.config.load import find_value
from warpseal.store.values import SigningBlockKind

# The daemon waits ten seconds for a webhook.
_TIMEOUT_S: Final = 15.0
_FILTERS: Final = {
    "types": "types",
    "source": "sourceBlockchainId",
    "destination": "destinationBlockchainId",
    "subnet": "subnetId",
}
_TOKEN: Final = "The daemon has an admin-token; it is read as the daemon reads it."
_VALUES: Final = f"""
{_TOKEN} KIND and VALUE are one of:
  source-chain CHAIN   messages from a blockchain: its id (base58-check or hex), EVM chain id or alias
  destination CHAIN    Teleporter messages to a blockchain
  sender ADDRESS       messages that an account or contract has sent, itself or through Teleporter: 0x and 40 digits
  message-id ID        one message, by the id of its Warp message or of its Teleporter message

Example: warpseal block {{}} sender 0x8db97c7cece249c2b98bdc0226cc4c2a57bf52fc"""
_ADD_BLOCK: Final = f"""\
Disable signing: callers get the error signing_blocked (403) with the reason for such messages, at once from this
daemon, and within two seconds from the others on its store. Messages that are signed already are refused as well.
{_VALUES.format("add")} --reason "the bridge has a bug"
"""
_LIST_BLOCKS: Final = "List the messages for which signing is disabled, with the reasons, as JSON."
_REMOVE_BLOCK: Final = f"Enable signing again.\n{_VALUES.format('remove')}"


def _block_command(method: str, about: str) -> Command:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = about
        if method != "GET":
            parser.add_argument("kind", metavar="KIND", choices=[str(kind) for kind in SigningBlockKind])
            parser.add_argument("value", metavar="VALUE")
        if method == "POST":
            parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for callers")
        _add_admin_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        path = f"/{args.kind}/{quote(args.value, safe='')}" if method == "DELETE" else ""
        names = ("kind", "value", "reason") if method == "POST" else ()
        fields = {name: getattr(args, name) for name in names} or None
        return _print_response(args, method, f"/v1/signing-blocks{path}", fields)

    return Command(add_arguments, run)


def _webhook_command(method: str, about: str, argument: str = "", suffix: str = "") -> Command:
    """Return a command that calls a path. argument: the id of a webhook, or the target of a new one; none: all."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = f"{about} {_TOKEN}"
        if argument:
            parser.add_argument(argument, metavar=argument.upper(), help="of the webhook: its id, or a URL")
        for flag, name in _FILTERS.items() if argument == "target" else ():
            parser.add_argument(f"--{flag}", metavar=flag.upper(), help=f"only these events; {name} of GET /v1/events")
        _add_admin_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        path = f"/{quote(args.id, safe='')}{suffix}" if argument == "id" else ""
        filters = {name: text for flag, name in _FILTERS.items() if (text := getattr(args, flag, None))}
        fields = {"url": args.target, **filters} if argument == "target" else None
        return _print_response(args, method, f"/v1/webhooks{path}", fields)

    return Command(add_arguments, run)


def _add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser, "API key, if the daemon requires one as well")


def _print_response(args: argparse.Namespace, method: str, path: str, fields: Mapping[str, Any] | None) -> int:
    """Call the daemon with the admin token of its configuration; the exit code is 1 if a webhook failed its test."""
    token = find_value("admin-token", config_file(args), None, os.environ)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    mismatch = "the daemon answered {status}: is it another version?"
    response = ask_daemon(args, path, dict, mismatch, fields, method=method, headers=headers, timeout_s=_TIMEOUT_S)
    print(json.dumps(response, indent=2))
    return 1 if "error" in response else 0


ADD_BLOCK: Final = _block_command("POST", _ADD_BLOCK)
LIST_BLOCKS: Final = _block_command("GET", _LIST_BLOCKS)
REMOVE_BLOCK: Final = _block_command("DELETE", _REMOVE_BLOCK)
ADD_WEBHOOK: Final = _webhook_command(
    "POST", "Send events to a URL; the secret that signs them is only printed now.", "target"
)
LIST_WEBHOOKS: Final = _webhook_command("GET", "List the webhooks and their last deliveries.")
REMOVE_WEBHOOK: Final = _webhook_command("DELETE", "Send no more events.", "id")
TEST_WEBHOOK: Final = _webhook_command(
    "POST", "Send a request without events; a success resumes a paused webhook.", "id", ":test"
)
