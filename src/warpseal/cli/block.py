"""`warpseal block add|list|remove`: calls of a running daemon with its admin token, whose JSON is printed."""

from __future__ import annotations

import argparse
import json
from typing import Final
from urllib.parse import quote

from warpseal.cli.process import Command
from warpseal.cli.running_daemon import add_address_arguments, call_as_admin
from warpseal.store.values import SigningBlockKind

_PATH: Final = "/v1/signing-blocks"
_VALUES: Final = """\
KIND and VALUE are one of:
  source-chain CHAIN   messages from a blockchain: its id (base58-check or hex), EVM chain id or alias
  destination CHAIN    Teleporter messages to a blockchain
  sender ADDRESS       messages that an account or contract has sent, itself or through Teleporter: 0x and 40 digits
  message-id ID        one message, by the id of its Warp message or of its Teleporter message"""
_ADD: Final = f"""\
Disable signing at once: this daemon refuses such messages from now on, and other daemons on its store within two
seconds, also those that are signed already. Callers get the error `signing_blocked` (403) with the reason.

{_VALUES}

Example: warpseal block add sender 0x8db97c7cece249c2b98bdc0226cc4c2a57bf52fc --reason "the bridge has a bug"
"""
_LIST: Final = "List the messages that the daemons on this store do not sign, with the reasons. They print as JSON."
_REMOVE: Final = f"""\
Enable signing again, at once on this daemon, and within two seconds on other daemons on its store.

{_VALUES}

Example: warpseal block remove source-chain 43114
"""


def _command(method: str, description: str) -> Command:
    """Return a command that calls the path of all blocks, or of the one that it removes."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.description = f"{description}\nThe daemon has an admin-token; it is read as the daemon reads it."
        if method != "GET":
            parser.add_argument("kind", metavar="KIND", choices=[str(kind) for kind in SigningBlockKind])
            parser.add_argument("value", metavar="VALUE")
        if method == "POST":
            parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for callers")
        add_address_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        path, fields = _PATH, None
        if method == "DELETE":
            path += f"/{args.kind}/{quote(args.value, safe='')}"
        elif method == "POST":
            fields = {"kind": args.kind, "value": args.value, "reason": args.reason}
        print(json.dumps(call_as_admin(args, method, path, fields), indent=2))
        return 0

    return Command(add_arguments, run)


ADD: Final = _command("POST", _ADD)
LIST: Final = _command("GET", _LIST)
REMOVE: Final = _command("DELETE", _REMOVE)
