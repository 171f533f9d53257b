"""`warpseal webhook add|list|remove|test`; and how a command calls the running daemon with its admin token."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from warpseal.api.http.access import KEY_HEADERS
from warpseal.cli.process import Command
from warpseal.cli.running_daemon import add_address_arguments, find_url, get_response
from warpseal.cli.serve import config_file
from warpseal.config.load import find_value
from warpseal.errors import StartupError

# The daemon waits ten seconds for a webhook.
_TIMEOUT_S: Final = 15.0
_FILTERS: Final = {
    "types": "types",
    "source": "sourceBlockchainId",
    "destination": "destinationBlockchainId",
    "subnet": "subnetId",
}


def add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `call_as_admin`."""
    parser.add_argument("--api-key", metavar="KEY", help="API key, if the daemon requires one as well")
    add_address_arguments(parser)


def call_as_admin(args: argparse.Namespace, method: str, path: str, fields: Mapping[str, str] | None) -> Any:
    """Return the JSON of a response to a call with the admin token of the configuration. Raises StartupError."""
    token = find_value("admin-token", config_file(args), None, os.environ)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    headers |= {KEY_HEADERS[0]: args.api_key} if args.api_key else {}
    body = None if fields is None else json.dumps(fields).encode()
    status, content = get_response(find_url(args), path, headers, _TIMEOUT_S, body, method)
    try:
        response = json.loads(content)
        if status >= HTTPStatus.BAD_REQUEST:
            raise StartupError(str(response["message"]))
    except (ValueError, KeyError, TypeError):
        raise StartupError(f"the daemon answered {status}: is it another version?") from None
    return response


def _command(method: str, about: str, argument: str = "", suffix: str = "") -> Command:
    """Return a command that calls a path. argument: the id of a webhook, or the target of a new one; none: all."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = f"{about} The daemon has an admin-token; it is read as the daemon reads it."
        if argument:
            parser.add_argument(argument, metavar=argument.upper(), help="of the webhook: its id, or a URL")
        for flag, name in _FILTERS.items() if argument == "target" else ():
            parser.add_argument(f"--{flag}", metavar=flag.upper(), help=f"only these events; {name} of GET /v1/events")
        add_admin_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        path = "/v1/webhooks" + (f"/{quote(args.id, safe='')}{suffix}" if argument == "id" else "")
        filters = {name: text for flag, name in _FILTERS.items() if (text := getattr(args, flag, None))}
        fields = {"url": args.target, **filters} if argument == "target" else None
        response = call_as_admin(args, method, path, fields)
        print(json.dumps(response, indent=2))
        return 1 if "error" in response else 0

    return Command(add_arguments, run)


ADD: Final = _command("POST", "Send events to a URL; the secret that signs them is only printed now.", "target")
LIST: Final = _command("GET", "List the webhooks and their last deliveries.")
REMOVE: Final = _command("DELETE", "Send no more events.", "id")
TEST: Final = _command("POST", "Send a request without events; a success resumes a paused webhook.", "id", ":test")
