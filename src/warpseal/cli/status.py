"""`warpseal status`, `warpseal peers` and `warpseal health`: the state of a running daemon."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from warpseal.api.status.document import (
    CONNECTED,
    STATUS_PATH,
    AggregationStatus,
    ChainSummary,
    ForecastStatus,
    MissingStatus,
    RouteUsage,
    StatusDocument,
    SubnetStatus,
    ValidatorStatus,
)
from warpseal.cli.process import Command
from warpseal.cli.running_daemon import (
    NAVAX,
    Rows,
    add_address_arguments,
    duration,
    fetch_body,
    find_url,
    get_response,
    percent,
    plural,
    print_table,
    printable,
    printable_lines,
)
from warpseal.errors import StartupError
from warpseal.validators.balances import UNDERFUNDED_ADVICE

LIVENESS_PATH: Final = "/ext/health/liveness"
HEALTH_PATH: Final = "/health"
_INTERVAL_S: Final = 2.0
_MAX_AGGREGATIONS: Final = 10
_MAX_MISSING: Final = 10
_VALIDATOR_COLUMNS: Final = (
    "NODE",
    "WEIGHT",
    "STATE",
    "SINCE",
    "ADDRESS",
    "LATENCY",
    "LAST REPLY",
    "BALANCE",
)
_CLEAR: Final = "\x1b[2J\x1b[H"


def _add_status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show subnets, recent aggregations, nodes and chains of a running daemon. Exit code 1 if it"
        " is not ready."
    )
    parser.add_argument("--watch", action="store_true", help="show it again every two seconds")
    parser.add_argument("--json", action="store_true", help="print the document of /status.json")
    add_address_arguments(parser)


def _add_peers_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the validators of the tracked subnets, heaviest first, and their connections."
    )
    parser.add_argument("--subnet", metavar="ID", help="list the validators of this subnet only")
    parser.add_argument(
        "--missing", action="store_true", help="list only validators that are not connected"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_address_arguments(parser)


def _add_health_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Exit with 0 if the daemon answers {LIVENESS_PATH} with 200, else with 1. If"
        f" api-health-enabled turns that path off, the daemon is alive if it answers {HEALTH_PATH},"
        " whether it can sign or not."
    )
    add_address_arguments(parser)


def _status(args: argparse.Namespace) -> int:
    """Print the status; with --watch every two seconds, also after a restart of the daemon."""
    while True:
        try:
            body = fetch_body(find_url(args), STATUS_PATH)
            document = _decode(body)
        except StartupError as error:
            if not args.watch:
                raise
            print(f"warpseal: {printable_lines(str(error))}", file=sys.stderr, flush=True)
        else:
            if args.watch and sys.stdout.isatty():
                print(_CLEAR, end="")
            _print_status(document, body, as_json=args.json)
            if not args.watch:
                return 0 if document.ready else 1
            sys.stdout.flush()
        time.sleep(_INTERVAL_S)


def _peers(args: argparse.Namespace) -> int:
    document = _decode(fetch_body(find_url(args), STATUS_PATH))
    subnets = {subnet.subnet_id: subnet for subnet in document.subnets}
    if args.subnet is not None and args.subnet not in subnets:
        names = ", ".join(subnets) or "none"
        raise StartupError(f"the daemon does not track subnet {args.subnet}; it tracks {names}")
    rows = document.validators
    if args.subnet is not None:
        rows = [row for row in rows if row.subnet_id == args.subnet]
    if args.missing:
        rows = [row for row in rows if row.state != CONNECTED]
    if args.json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
        return 0
    for subnet_id, subnet in subnets.items():
        listed = [row for row in rows if row.subnet_id == subnet_id]
        if args.subnet in (None, subnet_id):
            print(printable(_subnet_line(subnet)))
            if listed:
                print_table(_VALIDATOR_COLUMNS, map(_validator_cells, listed))
    if document.omitted_validators:
        print(f"{document.omitted_validators} lighter validators are not listed")
    return 0


def _health(args: argparse.Namespace) -> int:
    url = find_url(args)
    status, _ = get_response(url, LIVENESS_PATH)
    if status == HTTPStatus.NOT_FOUND and _is_health(get_response(url, HEALTH_PATH)[1]):
        print(
            f"alive: the daemon answers {HEALTH_PATH}; api-health-enabled is false, which turns"
            f" {LIVENESS_PATH} off"
        )
        return 0
    if status != HTTPStatus.OK:
        raise StartupError(f"{url}{LIVENESS_PATH} answered {status}")
    print("alive")
    return 0


def _is_health(body: bytes) -> bool:
    """Return whether a body is the daemon's response to /health."""
    try:
        return json.loads(body)["status"] in ("up", "down")
    except (ValueError, LookupError, TypeError):
        return False


def _decode(body: bytes) -> StatusDocument:
    try:
        return msgspec.json.decode(body, type=StatusDocument)
    except msgspec.MsgspecError as error:
        raise StartupError(f"the answer is no status document of this version: {error}") from None


def _print_status(document: StatusDocument, body: bytes, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(json.loads(body), indent=2))
        return
    number = "…" if document.network_id is None else f"network {document.network_id}"
    network = f"{document.network} ({number})" if document.network else number
    backend, node_id = document.bls_backend or "…", document.node_id or "starting"
    print(printable(f"warpseal {document.version} on {network}, BLS {backend}, {node_id}"))
    ready = "ready" if document.ready else "NOT READY"
    state = f"{ready} at {document.time}, started {document.started_at}"
    if document.proposed_height:
        state += f", proposed P-Chain height {document.proposed_height}"
    print(printable(state))
    for sentence in (*document.faults, *document.degraded):
        print(f"  {printable(sentence)}")
    for subnet in document.subnets:
        print()
        for line in _subnet_lines(subnet):
            print(printable(line))
    latest = document.aggregations[:_MAX_AGGREGATIONS]
    forecasts = (_forecast_cells(row, document.time) for row in document.forecasts)
    sections: tuple[tuple[Sequence[str], Rows], ...] = (
        (("AGGREGATION", "OUTCOME", "TOTAL", "SIGNED", "REASON"), map(_aggregation_cells, latest)),
        (("FORECAST", "MARGIN", "ANSWERING", "QUORUM IMPOSSIBLE"), forecasts),
        (("NODE", "STATE", "HEIGHT", "ADDRESS"), _node_rows(document)),
        (
            ("CHAIN", "HEIGHT", "NODE HEIGHT", "BLOCKS/S", "ETA", "NOTE"),
            map(_chain_cells, document.chains),
        ),
        (
            ("ROUTE", "CALLS", "INVALID", "FAILED", "CREDITS", "METHODS"),
            map(_usage_cells, document.usage),
        ),
    )
    for head, rows in sections:
        listed = list(rows)
        if listed:
            print()
            print_table(head, listed)


def _subnet_lines(subnet: SubnetStatus) -> Iterator[str]:
    """Yield the weights of a subnet, and its missing and inactive validators."""
    yield _subnet_line(subnet)
    total = int(subnet.total_weight)
    for missing in subnet.missing[:_MAX_MISSING]:
        share = percent(int(missing.weight), total)
        yield f"  missing {', '.join(missing.node_ids)}  {share}  {_state_text(missing)}"
    others = subnet.missing_validators - _MAX_MISSING
    if others > 0:
        yield f"  … and {others} more: warpseal peers --missing"
    for inactive in subnet.inactive[:_MAX_MISSING]:
        share = percent(int(inactive.weight), total)
        yield f"  inactive {', '.join(inactive.node_ids)}  {share}"
    if subnet.inactive_validators:
        yield f"  {UNDERFUNDED_ADVICE}"


def _forecast_cells(row: ForecastStatus, now: str) -> Sequence[str]:
    answering = "" if row.answering_margin is None else f"{100 * row.answering_margin:.1f} %"
    ends_at = row.quorum_impossible_at or "not within ten years"
    return (
        row.subnet_id,
        f"{100 * row.margin:.1f} %",
        answering,
        "now" if ends_at <= max(row.as_of, now) else ends_at,
    )


def _usage_cells(row: RouteUsage) -> Sequence[str]:
    methods = ", ".join(f"{method} {count}" for method, count in row.methods.items())
    return row.path, f"{row.requests}", f"{row.invalid}", f"{row.failed}", f"{row.credits}", methods


def _node_rows(document: StatusDocument) -> Iterator[Sequence[str]]:
    for node in document.nodes:
        behind = f", behind for {duration(node.behind_seconds)}" if node.behind_seconds else ""
        state = "up" + behind if node.is_up else node.error or "down"
        state += ", contradicts the others" if node.disagrees else ""
        yield f"{node.setting}[{node.position}]", state, node.height or "", node.address or ""


def _subnet_line(subnet: SubnetStatus) -> str:
    if not subnet.is_known:
        return f"subnet {subnet.subnet_id}: its validators are not known yet"
    connected, required = int(subnet.connected_weight), int(subnet.required_weight)
    total = int(subnet.total_weight)
    shares = (
        f"{percent(connected, total)} of the weight is connected, {percent(required, total)}"
        " required"
    )
    counts = (
        f"{connected} of {total}, {subnet.missing_validators}"
        f" validator{plural(subnet.missing_validators)} missing"
    )
    keyless = int(subnet.keyless_weight)
    counts += f", {percent(keyless, total)} inactive or without a BLS key" if keyless else ""
    return f"subnet {subnet.subnet_id}: {shares} ({counts})"


def _state_text(row: MissingStatus | ValidatorStatus) -> str:
    """Return the state of a validator, and why it is not connected."""
    return ": ".join(filter(None, (row.state, row.reason, row.detail)))


def _validator_cells(row: ValidatorStatus) -> Sequence[str]:
    state = _state_text(row)
    state += f", next try {row.next_try_at}" if row.next_try_at else ""
    return (
        ", ".join(row.node_ids),
        row.weight,
        state,
        row.connected_since or row.disconnected_since or "",
        row.address or "",
        "" if row.latency_ms is None else f"{row.latency_ms} ms",
        row.last_reply or "",
        "" if row.balance is None else f"{int(row.balance) / NAVAX:.4f} AVAX",
    )


def _aggregation_cells(row: AggregationStatus) -> Sequence[str]:
    signed = ""
    if row.total_weight is not None:
        signed = percent(int(row.signed_weight or 0), int(row.total_weight))
    duration_text = f"{row.stages_ms.get('total', 0)} ms"
    return row.ended_at, row.outcome, duration_text, signed, row.reason or ""


def _chain_cells(row: ChainSummary) -> Sequence[str]:
    notes: list[str] = []
    if row.stopped:
        notes.append(f"stopped: {row.stopped}")
    if row.waiting_for:
        notes.append(f"waits for {row.waiting_for}")
    if row.waiting:
        notes.append(f"waits: {row.waiting}")
    notes += row.index_notes
    if row.nodes is not None:
        notes.append(f"{row.nodes_up} of {row.nodes} nodes up")
        if row.lag_blocks:
            notes.append(f"a node lags {row.lag_blocks} blocks behind")
    # A name such as p-chain is the name of the chain already.
    has_name = row.chain_name is not None and len(row.name) > len(row.chain_name)
    name = f"{row.chain_name} ({row.name})" if has_name else row.name
    return (
        f"{row.kind} {name}",
        row.height or "",
        row.node_height or "",
        "" if row.blocks_per_second is None else str(row.blocks_per_second),
        "" if row.eta_seconds is None else duration(row.eta_seconds),
        ", ".join(notes),
    )


STATUS: Final = Command(_add_status_arguments, _status)
PEERS: Final = Command(_add_peers_arguments, _peers)
HEALTH: Final = Command(_add_health_arguments, _health)
