"""`warpseal block add|list|remove`, `webhook add|list|remove|test`: calls with an admin token."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from warpseal.api.data.bodies import SigningBlockList
from warpseal.api.http.errors import AdminTokenRefused, AdminTokenRequired
from warpseal.cli.message import format_lines
from warpseal.cli.process import Command
from warpseal.cli.running_daemon import DaemonRefusal, add_api_arguments, ask_daemon, print_table
from warpseal.cli.serve import config_file
from warpseal.config.load import ENVIRONMENT_PREFIX, find_value
from warpseal.errors import StartupError
from warpseal.events.webhooks import Webhook, WebhookDelivery, WebhookList
from warpseal.store.values import SigningBlock, SigningBlockKind

# The daemon waits ten seconds for a webhook.
_TIMEOUT_S: Final = 15.0
_FILTERS: Final = {
    "types": "types",
    "source": "sourceBlockchainId",
    "destination": "destinationBlockchainId",
    "subnet": "subnetId",
}
_TOKEN: Final = "The daemon has an admin-token; it is read as the daemon reads it."
_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}ADMIN_TOKEN"
_DAEMON_ENVIRONMENT: Final = (
    "the environment of the daemon (of the systemd unit: /etc/warpseal/environment)"
)
_VALUES: Final = f"""
{_TOKEN} KIND and VALUE are one of:
  source-chain CHAIN   messages from a blockchain: its id (base58-check or hex), EVM chain id or
                       alias
  destination CHAIN    Teleporter messages to a blockchain
  sender ADDRESS       messages that an account or contract has sent, itself or through Teleporter:
                       0x and 40 digits
  message-id ID        one message, by the id of its Warp message or of its Teleporter message

Example: warpseal block {{}} sender 0x8db97c7cece249c2b98bdc0226cc4c2a57bf52fc"""
_ADD_BLOCK: Final = f"""\
Disable signing: callers get the error signing_blocked (403) with the reason for such messages, at
once from this daemon, and within two seconds from the others on its store. Messages that are
signed already are refused as well.
{_VALUES.format("add")} \\
    --reason "the bridge has a bug"
"""
_LIST_BLOCKS: Final = "List the messages for which signing is disabled, with the reasons."
_REMOVE_BLOCK: Final = f"Enable signing again.\n{_VALUES.format('remove')}"


class _Call(NamedTuple):
    """A call of the daemon.

    kind: type of the response.
    fields: fields of the body.
    """

    method: str
    path: str
    kind: type[Any]
    fields: Mapping[str, Any] | None = None


def _block_command(method: str, about: str) -> Command:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = about
        if method != "GET":
            parser.add_argument(
                "kind", metavar="KIND", choices=[str(kind) for kind in SigningBlockKind]
            )
            parser.add_argument("value", metavar="VALUE")
        if method == "POST":
            parser.add_argument("--reason", required=True, metavar="TEXT", help="why, for callers")
        _add_admin_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        path, fields = "/v1/signing-blocks", None
        kind: type[Any] = SigningBlock
        if method == "GET":
            kind = SigningBlockList
        elif method == "POST":
            fields = {name: getattr(args, name) for name in ("kind", "value", "reason")}
        else:
            path = f"{path}/{args.kind}/{quote(args.value, safe='')}"
        return _print_response(args, _Call(method, path, kind, fields), _print_blocks)

    return Command(add_arguments, run)


def _webhook_command(method: str, about: str, argument: str = "", suffix: str = "") -> Command:
    """Return a command that calls a path.

    argument: name of the argument: "id" of a webhook, or "target" of a new webhook; empty for a
        command about all webhooks.
    suffix: end of the path.
    """

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = f"{about} {_TOKEN}"
        if argument:
            parser.add_argument(
                argument, metavar=argument.upper(), help="of the webhook: its id, or a URL"
            )
        if argument == "target":
            for flag, name in _FILTERS.items():
                help_text = f"only these events; {name} of GET /v1/events"
                parser.add_argument(f"--{flag}", metavar=flag.upper(), help=help_text)
        _add_admin_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        if not argument:
            call = _Call(method, "/v1/webhooks", WebhookList)
            return _print_response(args, call, _print_webhooks)
        path, fields = "/v1/webhooks", None
        kind: type[Any] = WebhookDelivery if suffix else Webhook
        if argument == "id":
            path = f"{path}/{quote(args.id, safe='')}{suffix}"
        else:
            filters = {name: getattr(args, flag) for flag, name in _FILTERS.items()}
            fields = {name: text for name, text in filters.items() if text}
            fields["url"] = args.target
        return _print_response(args, _Call(method, path, kind, fields), _print_lines)

    return Command(add_arguments, run)


def _add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the response of the API")
    add_api_arguments(parser, "API key, if the daemon requires one as well")


def _print_response(
    args: argparse.Namespace, call: _Call, print_text: Callable[[Mapping[str, Any]], None]
) -> int:
    """Call the daemon with the admin token of its configuration; return the exit code.

    It is 1 if a webhook failed its test.
    """
    token = find_value("admin-token", config_file(args), None, os.environ)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    mismatch = "the daemon answered {status}: is it another version?"
    options: dict[str, Any] = {"method": call.method, "headers": headers, "timeout_s": _TIMEOUT_S}
    try:
        response = ask_daemon(args, call.path, call.kind, mismatch, call.fields, **options)
    except DaemonRefusal as refusal:
        advice = _token_advice(refusal.code, has_token=bool(token))
        if advice is None:
            raise
        raise StartupError(f"{refusal.message}; {advice}") from None
    if args.json:
        print(json.dumps(response, indent=2))
    else:
        print_text(response)
    return 1 if "error" in response else 0


def _token_advice(code: str, *, has_token: bool) -> str | None:
    """Return where to set the admin token, if a refusal with this code is about it."""
    if code == AdminTokenRequired.code:
        return f"set {_VARIABLE} for this command to the value that it has in {_DAEMON_ENVIRONMENT}"
    if code != AdminTokenRefused.code:
        return None
    if has_token:
        return (
            f"{_VARIABLE}, or admin-token of the config, must be the same here and in"
            f" {_DAEMON_ENVIRONMENT}"
        )
    advice = (
        f"the daemon has no admin-token: set {_VARIABLE} to a long random text in"
        f" {_DAEMON_ENVIRONMENT}"
    )
    return f"{advice}, restart it, and set the variable for this command as well"


def _print_blocks(response: Mapping[str, Any]) -> None:
    """Print signing blocks, or the block that was added or removed."""
    blocks: Sequence[Mapping[str, Any]] = response.get("signingBlocks", [response])
    rows = [
        (block["kind"], block["value"], _moment(block["createdAt"]), block["reason"])
        for block in blocks
    ]
    if rows:
        print_table(("KIND", "VALUE", "SINCE", "REASON"), rows)
    else:
        print("signing is disabled for no message")


def _print_webhooks(response: Mapping[str, Any]) -> None:
    rows = [_webhook_cells(webhook) for webhook in response["webhooks"]]
    if rows:
        print_table(("ID", "URL", "EVENTS", "STATE", "LAST DELIVERY"), rows)
    else:
        print("no webhooks")


def _webhook_cells(webhook: Mapping[str, Any]) -> Sequence[str]:
    filters: list[str] = []
    for name in _FILTERS.values():
        if name in webhook:
            is_types = name == "types"
            filters.append(", ".join(webhook[name]) if is_types else f"{name} {webhook[name]}")
    state = "working"
    if "pausedAt" in webhook:
        state = f"paused since {_moment(webhook['pausedAt'])}"
    elif "failingSince" in webhook:
        state = f"failing since {_moment(webhook['failingSince'])}"
    deliveries = webhook["deliveries"]
    latest = _delivery_text(deliveries[-1]) if deliveries else "none"
    return webhook["id"], webhook["url"], "; ".join(filters) or "all", state, latest


def _delivery_text(delivery: Mapping[str, Any]) -> str:
    outcome = delivery.get("error", delivery.get("status", ""))
    return f"{_moment(delivery['time'])}: {delivery['events']} events, {outcome}"


def _print_lines(response: Mapping[str, Any]) -> None:
    print("\n".join(format_lines(dict(response))))


def _moment(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


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
