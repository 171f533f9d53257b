"""`warpseal block add|list|remove`: calls of a running daemon with its admin token, whose JSON is printed."""

from __future__ import annotations

import argparse
import json
from typing import Final
from urllib.parse import quote

from warpseal.cli.process import Command
from warpseal.cli.webhook import add_admin_arguments, call_as_admin
from warpseal.store.values import SigningBlockKind

_VALUES: Final = """
The daemon has an admin-token; it is read as the daemon reads it. KIND and VALUE are one of:
  source-chain CHAIN   messages from a blockchain: its id (base58-check or hex), EVM chain id or alias
  destination CHAIN    Teleporter messages to a blockchain
  sender ADDRESS       messages that an account or contract has sent, itself or through Teleporter: 0x and 40 digits
  message-id ID        one message, by the id of its Warp message or of its Teleporter message

Example: warpseal block {} sender 0x8db97c7cece249c2b98bdc0226cc4c2a57bf52fc"""
_ADD: Final = f"""\
Disable signing: callers get the error signing_blocked (403) with the reason for such messages, at once from this
daemon, and within two seconds from the others on its store. Messages that are signed already are refused as well.
{_VALUES.format("add")} --reason "the bridge has a bug"
"""
_LIST: Final = "List the messages for which signing is disabled, with the reasons, as JSON."
_REMOVE: Final = f"Enable signing again.\n{_VALUES.format('remove')}"


def _command(method: str, description: str) -> Command:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.formatter_class, parser.description = argparse.RawDescriptionHelpFormatter, description
        if method != "GET":
            parser.add_argument("kind", metavar="KIND", choices=[str(kind) for kind in SigningBlockKind])
            parser.add_argument("value", metavar="VALUE")
        if method == "POST":
            parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for callers")
        add_admin_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        path = f"/{args.kind}/{quote(args.value, safe='')}" if method == "DELETE" else ""
        names = ("kind", "value", "reason") if method == "POST" else ()
        fields = {name: getattr(args, name) for name in names} or None
        print(json.dumps(call_as_admin(args, method, f"/v1/signing-blocks{path}", fields), indent=2))
        return 0

    return Command(add_arguments, run)


ADD: Final = _command("POST", _ADD)
LIST: Final = _command("GET", _LIST)
REMOVE: Final = _command("DELETE", _REMOVE)
