"""A running daemon for commands: its address, its responses, and texts for a terminal."""

from __future__ import annotations

import argparse
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from warpseal.api.http.errors import NetworkNotServed
from warpseal.api.http.listener import local_url
from warpseal.api.http.settings import KEY_HEADERS, ApiSettings
from warpseal.cli.process import argument
from warpseal.cli.serve import add_config_arguments, config_file, parse_url
from warpseal.config.load import find_data_dir, find_value
from warpseal.daemon.listening import LISTENING_NAME, read_listening_daemon
from warpseal.errors import StartupError
from warpseal.warp.quorum_shortfall import MissingSigner

NAVAX: Final = 10**9
_TIMEOUT_S: Final = 5.0
_API_TIMEOUT_S: Final = 30.0
_API: Final = ApiSettings()

_URL_HELP: Final = (
    "address of the daemon's HTTP API (default: as it has written it, else api-port of the config,"
    " 8080)"
)

Rows = Iterable[Sequence[str]]


def add_address_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that name a running daemon."""
    parser.add_argument(
        "--url", type=argument(parse_url, ValueError), metavar="URL", help=_URL_HELP
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="data folder of the daemon, which holds its address"
    )
    add_config_arguments(parser)


def add_api_arguments(
    parser: argparse.ArgumentParser, key_help: str = "API key, if the daemon requires one"
) -> None:
    """Declare the flags of `ask_daemon`."""
    parser.add_argument("--api-key", metavar="KEY", help=key_help)
    add_address_arguments(parser)


class DaemonUnreachable(StartupError):
    """No daemon answers."""


def find_url(args: argparse.Namespace) -> str:
    """Return the URL of the daemon's API, from its file or from its configuration.

    Raises DaemonUnreachable if nothing listens there.
    """
    if args.url:
        return str(args.url)
    path = find_data_dir(config_file(args), args.data_dir, os.environ) / LISTENING_NAME
    silent_urls: list[str] = []
    for url in _possible_urls(args, path):
        if _is_listening(url):
            return url
        silent_urls.append(url)
    places = f", and nothing listens at {' or '.join(silent_urls)}" if silent_urls else ""
    where = f"found no running daemon: it would have written its address to {path}{places}"
    raise DaemonUnreachable(f"{where}; start it, or give --config, --data-dir or --url")


def _possible_urls(args: argparse.Namespace, path: Path) -> Iterator[str]:
    """Yield the address that a daemon has written to a file, then the configured address.

    The daemon of the file may have been killed.
    """
    daemon = read_listening_daemon(path.parent)
    if daemon is not None:
        yield daemon.api
    # --data-dir names the daemon of this folder alone. Another user may not read the folder of a
    # service.
    port = 0 if args.data_dir else find_value("api-port", config_file(args), None, os.environ)
    if port != 0:
        host = find_value("api-host", config_file(args), None, os.environ)
        yield local_url(host or _API.api_host, port or _API.api_port)


def _is_listening(url: str) -> bool:
    """Return whether a process accepts connections at a URL."""
    try:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 80), _TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def fetch_body(url: str, path: str) -> bytes:
    """Return the body of a 200. Raises StartupError."""
    status, body = get_response(url, path)
    if status != HTTPStatus.OK:
        raise StartupError(f"{url}{path} answered {status}")
    return body


class _ErrorDetail(msgspec.Struct, frozen=True):
    served: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    total_weight: str = msgspec.field(default="", name="totalWeight")
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    validators: tuple[MissingSigner, ...] = ()


class _ErrorBody(msgspec.Struct, frozen=True):
    message: str
    code: str = ""
    detail: _ErrorDetail = _ErrorDetail()


class DaemonRefusal(StartupError):
    """The daemon answered with an error.

    served: names of the daemon's network, if the request named another network.
    document: whole body of the response.
    """

    def __init__(self, status: int, document: dict[str, Any], advice: str) -> None:
        """Raise ValueError if the document is no error of this version."""
        body = msgspec.convert(document, _ErrorBody)
        super().__init__(body.message + advice)
        self.message = body.message
        self.status = status
        self.code = body.code
        self.detail = body.detail
        self.document = document
        self.served = body.detail.served if body.code == NetworkNotServed.code else ()


def ask_daemon(
    args: argparse.Namespace,
    path: str,
    kind: Any,
    mismatch: str,
    call: Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _API_TIMEOUT_S,
) -> dict[str, Any]:
    """Return the JSON object of a response of the API, which has the fields of `kind`.

    Raises DaemonRefusal.

    mismatch: text of the StartupError about a response of another program or version, which may
        name its {url}, {path}, {status} and {error}.
    call: JSON object of a POST.
    """
    url, body = find_url(args), None if call is None else json.dumps(call).encode()
    key = {KEY_HEADERS[0]: args.api_key} if args.api_key else {}
    all_headers = {"content-type": "application/json", **key, **(headers or {})}
    status, reply = get_response(url, path, all_headers, timeout_s, body, method)
    try:
        document: dict[str, Any] = json.loads(reply)
        if status >= HTTPStatus.BAD_REQUEST:
            # With other headers, the daemon may have missed the admin token.
            needs_key = status == HTTPStatus.UNAUTHORIZED and headers is None
            raise DaemonRefusal(status, document, ": give --api-key" if needs_key else "")
        # Fields that the response lacks would end the command later.
        msgspec.json.decode(reply, type=kind)
    except (ValueError, RecursionError) as error:
        text = mismatch.format(url=url, path=path, status=status, error=error)
        raise StartupError(text) from None
    return document


def ask_network(
    args: argparse.Namespace,
    network: str,
    path: str,
    kind: Any,
    mismatch: str,
    call: Mapping[str, Any] | None = None,
    timeout_s: float = _API_TIMEOUT_S,
) -> dict[str, Any]:
    """Return the response of `ask_daemon` to a path with {network}.

    If the daemon serves another network, that network is asked for.
    """

    def ask(name: str) -> dict[str, Any]:
        network_path = path.format(network=quote(name, ""))
        return ask_daemon(args, network_path, kind, mismatch, call, timeout_s=timeout_s)

    try:
        return ask(network)
    except DaemonRefusal as refusal:
        if not refusal.served or network in refusal.served:
            raise
        return ask(refusal.served[0])


def get_response(
    url: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
    body: bytes | None = None,
    method: str | None = None,
) -> tuple[int, bytes]:
    """Return the status and the body of a response. Raises DaemonUnreachable if there is none.

    method: method of the request; the default is POST with a body, else GET.
    """
    # A proxy that the environment names is for other machines.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url + path, body, dict(headers or {}), method=method)
        with opener.open(request, timeout=timeout_s) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DaemonUnreachable(f"no answer from {url}{path}: {reason}") from None


def print_table(head: Sequence[str], rows: Rows) -> None:
    """Print columns that are as wide as their longest cell."""
    table = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "  ".join(cells).rstrip())


def printable(text: str) -> str:
    """Return a text, which may come from another machine, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)


def printable_lines(text: str) -> str:
    """Return the text as `printable` does, with its line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def plural(count: int) -> str:
    """Return the ending of a counted noun."""
    return "" if count == 1 else "s"


def duration(seconds: float) -> str:
    """Return a time in its two largest units, such as `3 d 4 h`; below ten minutes with seconds."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    days, rest_hours = divmod(hours, 24)
    if days >= 100:
        return f"{days:,} d"
    if days:
        return f"{days} d {rest_hours} h"
    if hours:
        return f"{hours} h {rest_minutes} min"
    if minutes:
        return f"{minutes} min {rest_s} s" if minutes < 10 and rest_s else f"{minutes} min"
    return f"{rest_s} s"


def percent(part: int, total: int) -> str:
    """Return the share of a part in percent; 0 % if the total is 0."""
    return f"{100 * part / total:.1f} %" if total else "0.0 %"
