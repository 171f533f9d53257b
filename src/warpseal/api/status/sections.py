"""The sections of the landing page and the rows of its validators, as values: texts with their
units, and the class of each color.

The template `page.html` shows them and escapes every text. It reads what needs no preparation from
the status document itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from warpseal.api.status.document import (
    CONNECTED,
    INACTIVE,
    AggregationStatus,
    ChainSummary,
    ForecastStatus,
    LossStatus,
    MissingStatus,
    RouteUsage,
    StatusDocument,
    SubnetStatus,
    ValidatorStatus,
)
from warpseal.api.status.pictures import ForecastPicture, draw_forecast
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal.warp.validator_set import weight_text

PRIMARY_NETWORK_ID: Final = id_text(PRIMARY_NETWORK)

_NAVAX: Final = 10**9
_BAR_WIDTH: Final = 1_000
"""The width of a subnet's bar, which `page.html` draws."""
_MAX_OPEN: Final = 5
"""The most validators of a list that is not folded."""
_SHORT_ID: Final = 20
# An id, a node ID or a hash in a sentence.
_ID: Final = re.compile(r"\b((?:NodeID-)?[1-9A-HJ-NP-Za-km-z]{33,52}|0x[0-9a-f]{64})\b")
_FORWARDED: Final = "gateway"
_INDEXED: Final = "index"
_STAGES: Final = ("validators", "connect", "collect", "verify")
_STATE_COLORS: Final = {CONNECTED: "ok", INACTIVE: "warn"}
"""The colors of states; that of all others is `bad`."""


class ValidatorList(Struct, frozen=True):
    """Validators of a subnet that share a state.

    key: name by which the page keeps the list open or folded.
    rows: node IDs of each validator, and a text about it.
    """

    key: str
    summary: str
    is_open: bool
    rows: list[tuple[list[str], str]]


class SubnetCard(Struct, frozen=True):
    """A subnet and its weights.

    connected_width, required_x: lengths on the bar.
    weights: name, number and text of each weight.
    """

    subnet_id: str
    is_ready: bool
    is_known: bool
    shares: str
    connected_width: int
    required_x: int
    weights: list[tuple[str, int, str]]
    keyless_weight: str | None
    inactive: ValidatorList | None
    missing: ValidatorList | None


class Moment(Struct, frozen=True):
    """A moment of a forecast.

    text: the moment, or "now" if it was to come before now.
    """

    at: str
    text: str


class Margin(Struct, frozen=True):
    """A weight, and how far it is above the required one."""

    share: str
    margin: str
    color: str


class LossRow(Struct, frozen=True):
    """Validators that leave a subnet's quorum at the same time."""

    moment: Moment
    node_ids: list[str]
    omitted_nodes: int
    lost: str
    left: str
    color: str


class ForecastRow(Struct, frozen=True):
    """The forecast of a subnet.

    impossible_at: end of the quorum. The other moment is that with as many active validators as
        the network's capacity.
    top_ups: amounts, and the nodes whose validators need them.
    """

    forecast: ForecastStatus
    active: Margin
    answering: Margin | None
    first_loss_at: Moment | None
    first_loss: str
    is_impossible: bool
    impossible_at: Moment | None
    impossible_at_capacity: Moment | None
    top_ups: list[tuple[str, str]]
    top_up_total: str
    losses: list[LossRow]
    picture: ForecastPicture | None


class AggregationRow(Struct, frozen=True):
    """A finished aggregation."""

    aggregation: AggregationStatus
    color: str
    weights: str
    total_ms: str
    stages_ms: str


class ChainSummaryRow(Struct, frozen=True):
    """A chain.

    chain_id: shown beside the name; empty if the name says it.
    warnings: texts with their colors.
    """

    chain: ChainSummary
    chain_id: str
    blocks_per_second: str
    warnings: list[tuple[str, str]]
    notes: list[str]


class UsageRow(Struct, frozen=True):
    """The calls of a forwarded route."""

    path: str
    requests: str
    successful: str
    invalid: str
    failed: str
    credits: str
    methods: str


class ValidatorRow(Struct, frozen=True):
    """A validator of a subnet.

    connected_order, reply_order: digits of the times, by which the script sorts.
    """

    validator: ValidatorStatus
    weight: str
    weight_text: str
    share: str
    color: str
    state: str
    latency: str
    connected_order: str
    reply_order: str
    balance: str


def shorten_id(name: str) -> str:
    """Return the ends of a long id."""
    if len(name) <= _SHORT_ID:
        return name
    head = len("NodeID-") + 5 if name.startswith("NodeID-") else 8
    return f"{name[:head]}…{name[-5:]}"


def split_ids(sentence: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a sentence: a text and the id that follows it, which is empty at the
    end.
    """
    parts = [*_ID.split(sentence), ""]
    return zip(parts[::2], parts[1::2], strict=True)


def network_name(document: StatusDocument) -> str:
    """Return the name and the number of the network."""
    number = "starting" if document.network_id is None else f"network {document.network_id}"
    return f"{document.network} ({number})" if document.network else number


def prepare_subnet(subnet: SubnetStatus) -> SubnetCard:
    """Return a subnet as the page shows it."""
    subnet_id, keyless_weight = subnet.subnet_id, int(subnet.keyless_weight)
    connected, required = int(subnet.connected_weight), int(subnet.required_weight)
    total = int(subnet.total_weight)
    weights = {"connected": connected, "required": required, "total": total}
    inactive = [(row.node_ids, _percent(int(row.weight), total)) for row in subnet.inactive]
    missing = [
        (row.node_ids, f"{_percent(int(row.weight), total)}, {_state(row)}")
        for row in subnet.missing
    ]
    return SubnetCard(
        subnet_id=subnet_id,
        is_ready=subnet.ready,
        is_known=subnet.is_known,
        shares=f"{_percent(connected, total)} connected, {_percent(required, total)} required",
        connected_width=_bar_length(connected, total),
        required_x=max(0, _bar_length(required, total) - 2),
        weights=[(name, weight, _weight(weight, subnet_id)) for name, weight in weights.items()],
        keyless_weight=_weight(keyless_weight, subnet_id) if keyless_weight else None,
        inactive=_list_validators(
            f"inactive-{subnet_id}",
            subnet.inactive_validators,
            "L1 validator",
            "inactive",
            inactive,
        ),
        missing=_list_validators(
            subnet_id, subnet.missing_validators, "validator", "missing", missing
        ),
    )


def _list_validators(
    key: str, count: int, noun: str, state: str, rows: list[tuple[list[str], str]]
) -> ValidatorList | None:
    """Return a list of validators; None if there are none.

    count: all of them, of which `rows` are the heaviest.
    """
    if not count:
        return None
    subject = f"{noun} is" if count == 1 else f"{noun}s are"
    return ValidatorList(key, f"{count} {subject} {state}", count <= _MAX_OPEN, rows)


def tracks_l1(document: StatusDocument) -> bool:
    """Return whether a subnet is tracked of which forecasts are made."""
    return any(
        subnet.is_pinned and subnet.subnet_id != PRIMARY_NETWORK_ID for subnet in document.subnets
    )


def prepare_forecast(forecast: ForecastStatus, now: str) -> ForecastRow:
    """Return a forecast as the page shows it.

    now: time of the document.
    """
    total = int(forecast.total_weight)
    answering = None
    if forecast.answering_weight is not None:
        answering = _margin(forecast.answering_weight, total, forecast.answering_margin)
    impossible_at = forecast.quorum_impossible_at
    return ForecastRow(
        forecast=forecast,
        active=_margin(forecast.active_weight, total, forecast.margin),
        answering=answering,
        first_loss_at=_moment(forecast.first_loss_at, now),
        first_loss=_percent(int(forecast.first_loss_weight or 0), total),
        is_impossible=impossible_at is not None and impossible_at <= max(forecast.as_of, now),
        impossible_at=_moment(impossible_at, now),
        impossible_at_capacity=_moment(forecast.quorum_impossible_at_capacity, now),
        top_ups=[(_avax(top_up.amount), top_up.node_id) for top_up in forecast.top_ups],
        top_up_total=_avax(forecast.top_up_total),
        losses=[_prepare_loss(loss, total, now) for loss in forecast.losses],
        picture=draw_forecast(forecast) if forecast.losses else None,
    )


def _prepare_loss(loss: LossStatus, total: int, now: str) -> LossRow:
    left = int(loss.active_weight)
    # The picture divides by the same total.
    share = f"{100 * left / (total or 1):.1f} %"
    return LossRow(
        moment=Moment(loss.at, _moment_text(loss.at, now)),
        node_ids=loss.node_ids,
        omitted_nodes=loss.validators - len(loss.node_ids),
        lost=_percent(int(loss.weight_lost), total),
        left=share,
        color="bad" if left < int(loss.required_weight) else "ok",
    )


def prepare_aggregation(aggregation: AggregationStatus) -> AggregationRow:
    """Return an aggregation as the page shows it."""
    signed, required = int(aggregation.signed_weight or 0), int(aggregation.required_weight or 0)
    total, stages = int(aggregation.total_weight or 0), aggregation.stages_ms
    return AggregationRow(
        aggregation=aggregation,
        color="ok" if aggregation.outcome == "ok" else "bad",
        weights=f"{_percent(signed, total)} of {_percent(required, total)}" if total else "",
        total_ms=f"{stages['total']:g}" if "total" in stages else "",
        stages_ms=", ".join(f"{name} {stages[name]:g}" for name in _STAGES if name in stages),
    )


def is_indexed_evm(chain: ChainSummary) -> bool:
    """Return whether a chain is an indexed EVM chain, whose ICM messages can be searched."""
    return chain.kind == _INDEXED and chain.evm_chain_id is not None


def prepare_chain(chain: ChainSummary) -> ChainSummaryRow:
    """Return a chain as the page shows it."""
    warnings = []
    if chain.stopped:
        warnings.append(("bad", f"stopped: {chain.stopped}"))
    if chain.waiting_for:
        warnings.append(("warn", f"waits for {chain.waiting_for}"))
    if chain.waiting:
        warnings.append(("warn", f"waits: {chain.waiting}"))
    notes = chain.index_notes
    if chain.nodes is not None:
        notes.append(f"{chain.nodes_up} of {chain.nodes} nodes up")
        if chain.lag_blocks:
            notes.append(f"a node lags {chain.lag_blocks} blocks behind")
    errors = chain.errors or {}
    notes += [f"node {position}: {error}" for position, error in errors.items()]
    # Beside a name, a name such as p-chain says nothing more.
    is_id_needed = not chain.chain_name or len(chain.name) > _SHORT_ID
    rate = chain.blocks_per_second
    return ChainSummaryRow(
        chain=chain,
        chain_id=chain.name if is_id_needed else "",
        blocks_per_second="" if rate is None else f"{rate:g}",
        warnings=warnings,
        notes=notes,
    )


def has_usage(document: StatusDocument) -> bool:
    """Return whether calls were forwarded, or may be by the gateway."""
    return bool(document.usage) or any(chain.kind == _FORWARDED for chain in document.chains)


def prepare_usage(route: RouteUsage) -> UsageRow:
    """Return the calls of a route as the page shows them."""
    successful = route.requests - route.invalid - route.failed
    return UsageRow(
        path=route.path,
        requests=f"{route.requests:,}",
        successful=_percent(successful, route.requests),
        invalid=f"{route.invalid:,}",
        failed=f"{route.failed:,}",
        credits=f"{route.credits:,}",
        methods=", ".join(f"{method} {count:,}" for method, count in route.methods.items()),
    )


def prepare_validator(validator: ValidatorStatus, total: int) -> ValidatorRow:
    """Return a validator as the page shows it.

    total: weight of its subnet.
    """
    weight, latency, balance = int(validator.weight), validator.latency_ms, validator.balance
    return ValidatorRow(
        validator=validator,
        weight=str(weight),
        weight_text=_weight(weight, validator.subnet_id),
        share=_percent(weight, total),
        color=_STATE_COLORS.get(validator.state, "bad"),
        state=_state(validator),
        latency="" if latency is None else f"{latency:g}",
        connected_order=_digits(validator.connected_since),
        reply_order=_digits(validator.last_reply),
        balance="" if balance is None else f"{int(balance) / _NAVAX:.4f} AVAX",
    )


def _state(row: MissingStatus | ValidatorStatus) -> str:
    """Return the state of a validator, and why it is not connected."""
    words = [text.replace("_", " ") for text in (row.state, row.reason) if text]
    if row.detail:
        words.append(row.detail)
    return ": ".join(words)


def _margin(weight: str, total: int, margin: float | None) -> Margin:
    return Margin(
        share=_percent(int(weight), total),
        margin=f"{100 * (margin or 0):.1f}\N{NO-BREAK SPACE}%",
        color="ok" if margin is not None and margin >= 0 else "bad",
    )


def _moment(at: str | None, now: str) -> Moment | None:
    return None if at is None else Moment(at, _moment_text(at, now))


def _moment_text(at: str, now: str) -> str:
    return "now" if at <= now else at


def _digits(moment: str | None) -> str:
    return "".join(filter(str.isdigit, moment or ""))


def _avax(navax: str) -> str:
    """Return an amount with four decimals, rounded up."""
    return f"{-(-int(navax) // 10**5) / 10**4:,.4f}\N{NO-BREAK SPACE}AVAX"


def _weight(weight: int, subnet_id: str) -> str:
    """Return a weight with its unit, which stays on its line."""
    text = weight_text(weight, is_stake=subnet_id == PRIMARY_NETWORK_ID)
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _percent(part: int, total: int) -> str:
    share = f"{100 * part / total:.1f}" if total else "0"
    return f"{share}\N{NO-BREAK SPACE}%"


def _bar_length(part: int, total: int) -> int:
    return min(_BAR_WIDTH, _BAR_WIDTH * part // total) if total else 0
