"""`warpseal forecast`: a running daemon's forecast of the quorums of subnets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import msgspec

from warpseal.api.data.forecast_resources import Forecast, ForecastCourse, ValidatorForecast
from warpseal.api.http.settings import ALL_NETWORK_NAMES
from warpseal.api.status.document import STATUS_PATH, StatusDocument
from warpseal.cli.process import Command
from warpseal.cli.running_daemon import (
    NAVAX,
    add_api_arguments,
    ask_network,
    duration,
    fetch_body,
    find_url,
    percent,
    plural,
    print_table,
    printable,
)
from warpseal.errors import StartupError
from warpseal.resources.base import UNSET, UnsetType
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

ALARM_DAYS: Final = 7
"""The exit code is 1 if the quorum becomes impossible within this time."""
_PRIMARY: Final = id_text(PRIMARY_NETWORK)
_DAY_S: Final = 86_400
_MAX_ROWS: Final = 20
# Amounts are shown with four decimals, rounded up.
_SHOWN_NAVAX: Final = 10**5
_ABOUT: Final = f"""\
Show when validators leave the quorum of a subnet: 67 % of all weight must sign, and validators
without balance sign nothing, but their weight counts. Of each subnet: its margin, the first loss,
when the subnet halts because its quorum becomes impossible, and which validators to fund with how
much AVAX, so that the quorum lasts for 30 days. Balances are topped up by an
IncreaseL1ValidatorBalanceTx on the P-Chain, from any address.

Exit code: 0 if every shown quorum holds for {ALARM_DAYS} days; 1 if one is impossible now or
within {ALARM_DAYS} days, or if the daemon does not answer.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _ABOUT
    parser.add_argument(
        "--subnet", metavar="ID", help="any subnet or L1 (default: those of tracked-subnet-ids)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the answers of the daemon as a JSON list"
    )
    add_api_arguments(parser)


def _forecast(args: argparse.Namespace) -> int:
    with _same_version():
        status = msgspec.json.decode(fetch_body(find_url(args), STATUS_PATH), type=StatusDocument)
    tracked = [
        subnet.subnet_id
        for subnet in status.subnets
        if subnet.is_pinned and subnet.subnet_id != _PRIMARY
    ]
    subnet_ids = [args.subnet] if args.subnet else tracked
    if not subnet_ids:
        raise StartupError("the daemon tracks no subnet: set tracked-subnet-ids, or give --subnet")
    network = status.network or ALL_NETWORK_NAMES[0]
    paths = [
        f"/v1/networks/{{network}}/subnets/{quote(subnet_id, safe='')}/forecast"
        for subnet_id in subnet_ids
    ]
    documents = [
        ask_network(args, network, path, dict, "{url} answered {status}") for path in paths
    ]
    with _same_version():
        forecasts = msgspec.convert(documents, list[Forecast])
    if args.json:
        print(json.dumps(documents, indent=2))
    else:
        daemon_s = int(datetime.fromisoformat(status.time).timestamp())
        for place, forecast in enumerate(forecasts):
            if place > 0:
                print()
            print_forecast(forecast, max(forecast.as_of, daemon_s))
    return int(any(map(is_alarming, forecasts)))


def is_alarming(forecast: Forecast) -> bool:
    """Return whether the quorum is impossible now, or becomes so within some days."""
    impossible_at = forecast.today.quorum_impossible_at
    return impossible_at is not UNSET and impossible_at < forecast.as_of + ALARM_DAYS * _DAY_S


def print_forecast(forecast: Forecast, now_s: int) -> None:
    """Print the forecast of a subnet: first what to do, then its validators.

    now_s: Unix time of the daemon. The forecast was made at the time of the P-Chain's last block,
        which is earlier.
    """
    quorum, names = forecast.quorum, {_id_of(row): row for row in forecast.validators}
    total, required = int(quorum.total_weight), int(quorum.required_weight)
    print(
        f"subnet {printable(forecast.subnet_id)} ({_KINDS[forecast.kind]}) at"
        f" {_moment(forecast.as_of)}"
    )
    _print_line(
        "quorum", f"{percent(required, total)} of the weight must sign ({required:,} of {total:,})"
    )
    _print_line("active", _margin(int(quorum.active_weight), total, quorum.margin))
    if quorum.answering_weight is UNSET or quorum.answering_margin is UNSET:
        _print_line(
            "answering", "not known: the daemon does not track this subnet, or has just started"
        )
    else:
        answering = _margin(int(quorum.answering_weight), total, quorum.answering_margin)
        _print_line("answering", f"{answering} (answered in the last day)")
    _print_line("first loss", _first_loss(forecast, names, now_s))
    _print_line("halts", _halt(forecast.today, now_s))
    if forecast.fee is not UNSET and forecast.at_capacity is not UNSET:
        halts_at = forecast.today.quorum_impossible_at
        if halts_at is UNSET or halts_at > now_s:
            capacity = (
                f"if there were {forecast.fee.capacity:,} active validators of all L1s from now on"
            )
            _print_line("", f"{_halt(forecast.at_capacity, now_s)}, {capacity}")
        _print_line("fee", _fee(forecast))
        for line in _funding(forecast.today, names):
            _print_line("fund", line)
    rows = sorted(forecast.validators, key=_urgency)
    if rows:
        head = ("NODE", "WEIGHT", "STATE", "LEFT", "BALANCE", "AT CAPACITY")
        columns = len(head) if forecast.at_capacity is not UNSET else len(head) - 2
        cells = _cells(rows[:_MAX_ROWS], total, now_s - forecast.as_of)
        print_table(head[:columns], (row[:columns] for row in cells))
    if len(rows) > _MAX_ROWS:
        more = len(rows) - _MAX_ROWS
        verb = "lasts" if more == 1 else "last"
        print(f"  … and {more} validator{plural(more)} that {verb} longer: --json")


_KINDS: Final = {"l1": "L1", "permissioned": "permissioned", "primary": "Primary Network"}


@contextmanager
def _same_version() -> Iterator[None]:
    try:
        yield
    except msgspec.MsgspecError as error:
        raise StartupError(f"the answer is of another version than this command: {error}") from None


def _print_line(name: str, text: str) -> None:
    print(f"  {name:<10}  {printable(text)}")


def _margin(weight: int, total: int, margin: float) -> str:
    state = "above the quorum" if margin >= 0 else "below the quorum"
    return f"{percent(weight, total)} of the weight, {abs(100 * margin):.1f} % {state}"


def _first_loss(forecast: Forecast, names: dict[str, ValidatorForecast], now_s: int) -> str:
    if not forecast.today.losses:
        return "none within ten years"
    loss = forecast.today.losses[0]
    nodes = [names[name].node_id for name in loss.validation_ids[:_MAX_ROWS] if name in names]
    more = len(loss.validation_ids) - 1
    others = f" and {more} other{plural(more)}" if more else ""
    share = percent(int(loss.weight_lost), int(forecast.quorum.total_weight))
    return f"{_when(loss.at, now_s)}: {nodes[0] if nodes else '?'}{others}, {share} of the weight"


def _halt(course: ForecastCourse, now_s: int) -> str:
    at = course.quorum_impossible_at
    if at is UNSET:
        return "not within ten years"
    return "NOW: the quorum is impossible" if at <= now_s else _when(at, now_s)


def _fee(forecast: Forecast) -> str:
    fee = forecast.fee
    assert fee is not UNSET
    month = _avax(int(fee.price) * 30 * _DAY_S)
    if fee.active_validators is not UNSET:
        active = f"{fee.active_validators:,}"
    elif fee.source == "minimum":
        active = f"at most {fee.target:,}"
    else:
        active = "unknown, so the price is taken as constant"
    price = f"{int(fee.price):,} nAVAX a second ({month} in 30 days)"
    return f"{price}; active validators of all L1s: {active}"


def _funding(course: ForecastCourse, names: dict[str, ValidatorForecast]) -> Iterator[str]:
    """Yield a line for each validator to fund, with the amount, and a line with the sum."""
    if course.top_ups is UNSET:
        yield "no balance keeps the quorum for 30 days: add validators, or remove inactive ones"
        return
    if not course.top_ups:
        yield "nothing: the quorum lasts for 30 days"
        return
    for top_up in course.top_ups:
        node = names[top_up.validation_id].node_id if top_up.validation_id in names else "?"
        yield f"{_avax(int(top_up.amount))} to validation {top_up.validation_id} of {node}"
    if len(course.top_ups) > 1 and course.top_up_total is not UNSET:
        yield f"{_avax(int(course.top_up_total))} in all keep the quorum for 30 days"


def _cells(rows: Sequence[ValidatorForecast], total: int, age_s: int) -> Iterator[Sequence[str]]:
    """Yield the cells of validators.

    age_s: age of the forecast.
    """
    for row in rows:
        balance = at_capacity = ""
        if row.balance is not UNSET:
            balance = _avax(int(row.balance), up=False)
            at_capacity = _left(row.seconds_left_at_capacity, age_s)
        share = percent(int(row.weight), total)
        left = _left(row.seconds_left, age_s)
        yield row.node_id, share, _state(row), left, balance, at_capacity


def _state(row: ValidatorForecast) -> str:
    if not row.is_active:
        state = "inactive"
    elif row.has_key:
        state = "active"
    else:
        state = "no BLS key"
    return f"{state}, silent" if row.has_answered is False else state


def _urgency(row: ValidatorForecast) -> tuple[bool, int, int]:
    left = row.seconds_left
    return left is UNSET, 0 if left is UNSET else left, -int(row.weight)


def _id_of(row: ValidatorForecast) -> str:
    name = row.tx_hash if row.validation_id is UNSET else row.validation_id
    return "" if name is UNSET else name


def _left(seconds: int | UnsetType, age_s: int) -> str:
    return "over 10 years" if seconds is UNSET else duration(max(0, seconds - age_s))


def _when(at: int, now_s: int) -> str:
    """Return a coming time, and how far it is: "now" if the next block has it."""
    return "now" if at <= now_s else f"in {duration(at - now_s)} ({_moment(at)})"


def _moment(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _avax(navax: int, *, up: bool = True) -> str:
    """Return an amount with four decimals, rounded up or down."""
    units = -(-navax // _SHOWN_NAVAX) if up else navax // _SHOWN_NAVAX
    return f"{units // (NAVAX // _SHOWN_NAVAX):,}.{units % (NAVAX // _SHOWN_NAVAX):04d} AVAX"


FORECAST: Final = Command(_add_arguments, _forecast)
