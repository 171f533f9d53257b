"""`warpseal webhook add|list|remove|test`: calls of a running daemon with its admin token, whose JSON is printed."""

from __future__ import annotations

import argparse
import json
from typing import Final
from urllib.parse import quote

from warpseal.cli.process import Command
from warpseal.cli.running_daemon import add_address_arguments, call_as_admin

# The daemon waits ten seconds for a webhook.
_TIMEOUT_S: Final = 15.0
_FILTERS: Final = {
    "types": "types",
    "source": "sourceBlockchainId",
    "destination": "destinationBlockchainId",
    "subnet": "subnetId",
}


def _command(method: str, about: str, argument: str = "", suffix: str = "") -> Command:
    """Return a command that calls a path. argument: the id of a webhook, or the target of a new one; none: all."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = f"{about} The daemon has an admin-token; it is read as the daemon reads it."
        if argument:
            parser.add_argument(argument, metavar=argument.upper(), help="of the webhook: its id, or a URL")
        for flag, name in _FILTERS.items() if argument == "target" else ():
            parser.add_argument(f"--{flag}", metavar=flag.upper(), help=f"only these events; {name} of GET /v1/events")
        add_address_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        path = "/v1/webhooks" + (f"/{quote(args.id, safe='')}{suffix}" if argument == "id" else "")
        filters = {name: text for flag, name in _FILTERS.items() if (text := getattr(args, flag, None))}
        fields = {"url": args.target, **filters} if argument == "target" else None
        response = call_as_admin(args, method, path, fields, _TIMEOUT_S)
        print(json.dumps(response, indent=2))
        return 1 if "error" in response else 0

    return Command(add_arguments, run)


ADD: Final = _command("POST", "Send events to a URL; the secret that signs them is only printed now.", "target")
LIST: Final = _command("GET", "List the webhooks and their last deliveries.")
REMOVE: Final = _command("DELETE", "Send no more events.", "id")
TEST: Final = _command("POST", "Send a request without events; a success resumes a paused webhook.", "id", ":test")
