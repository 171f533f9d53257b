"""The landing page as HTML: a shell, sections, and one table row for each validator.

The page is complete without JavaScript. Its script replaces sections and rows by newer ones that
the server made by the same functions. Every text is escaped here, and the policy allows no script
or style but those of this package.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final

from warpseal.api.status.document import (
    CONNECTED,
    INACTIVE,
    AggregationStatus,
    ChainSummary,
    ForecastStatus,
    LossStatus,
    MissingStatus,
    NodeStatus,
    RouteUsage,
    StatusDocument,
    SubnetStatus,
    ValidatorStatus,
)
from warpseal.api.status.pictures import draw_forecast, draw_hour
from warpseal.validators.balances import UNDERFUNDED_ADVICE
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

_STYLE: Final = (files(__package__) / "page.css").read_text()
_SCRIPT: Final = (files(__package__) / "page.js").read_text()


def _source_hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; script-src {_source_hash(_SCRIPT)}; style-src {_source_hash(_STYLE)};"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors"
    " 'none'"
)
"""The Content-Security-Policy of the page."""

_NAVAX: Final = 10**9
_ROWS_PER_TURN: Final = 100
_PRIMARY_NETWORK: Final = id_text(PRIMARY_NETWORK)
_MAX_OPEN_MISSING: Final = 5
_MAX_FOLDED: Final = 50
"""Rows of validators that are shown until the reader unfolds the rest; the style has the same number."""
_MAX_RECENT: Final = 10
"""Aggregations that are shown until the reader unfolds the rest."""
_SHORT_ID: Final = 20
# An id, a node ID or a hash in a sentence.
_ID: Final = re.compile(r"\b(?:(?:NodeID-)?[1-9A-HJ-NP-Za-km-z]{33,52}|0x[0-9a-f]{64})\b")
_FORWARDED: Final = "gateway"
_INDEXED: Final = "index"
_STAGES: Final = ("validators", "connect", "collect", "verify")
_CHAIN_HEADS: Final = (
    "Chain",
    "Kind",
    "Height",
    "Height of the node",
    "Blocks a second",
    "Caught up in",
    "Notes",
)
_COLUMNS: Final = (
    ("Node", ""),
    ("Subnet", ""),
    ("Weight", "descending"),
    ("State", ""),
    ("Address", ""),
    ("Connected since", ""),
    ("Latency", "descending"),
    ("Last reply", "descending"),
    ("Balance", ""),
)
"""Heads of the table of validators, and the order of the first click; ascending unless it says otherwise."""

Rows = Mapping[str, str]
"""HTML of the rows of validators by the keys of the rows."""


async def render_rows(
    document: StatusDocument, before: StatusDocument | None, rendered: Rows
) -> Rows:
    """Return the rows of all validators: missing ones first, else as in the document; other
    callbacks run in between.

    before, rendered: an earlier document and its rows, which are used again for validators that did
        not change.
    """
    totals = {subnet.subnet_id: int(subnet.total_weight) for subnet in document.subnets}
    same_totals = before is not None and totals == {
        subnet.subnet_id: int(subnet.total_weight) for subnet in before.subnets
    }
    earlier_rows = (
        {row.key: row for row in before.validators} if before is not None and same_totals else {}
    )
    rows: dict[str, str] = {}
    for position, row in enumerate(
        sorted(document.validators, key=lambda row: row.state == CONNECTED)
    ):
        if position % _ROWS_PER_TURN == _ROWS_PER_TURN - 1:
            await asyncio.sleep(0)
        key = row.key
        rows[key] = (
            rendered[key]
            if earlier_rows.get(key) == row
            else _validator_row(row, totals.get(row.subnet_id, 0))
        )
    return rows


def render_sections(document: StatusDocument) -> Mapping[str, str]:
    """Return the inner HTML of each section that changes, by its id."""
    nodes, chains = map(_node_cells, document.nodes), map(_chain_cells, document.chains)
    count = document.omitted_validators
    omitted = f'<p class="soft">{count} lighter validators are not listed.</p>' if count else ""
    sections = {
        "state": _state(document),
        "subnets": _subnets(document),
        "forecasts": _forecasts(document),
        "hour": draw_hour(document),
        "aggregations": _aggregations(document),
        "nodes": _table(("Node", "State", "Height", "Address"), nodes, "Not asked yet."),
        "chains": _table(_CHAIN_HEADS, chains, "None."),
        "usage": _usage(document),
        "omitted": omitted,
    }
    return {name: "".join(parts) for name, parts in sections.items()}


def render_page(
    document: StatusDocument,
    version: str,
    sections: Mapping[str, str],
    rows: Rows,
    dashboards_url: str,
) -> Iterator[str]:
    """Yield the whole page.

    version: of these sections and rows, from which the script goes on.
    """
    yield (
        f'<!doctype html><html lang="en" data-version="{escape(version)}"><head><meta'
        ' charset="utf-8">'
    )
    yield (
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon"'
        ' href="data:,">'
    )
    yield f"<title>Warpseal</title><style>{_STYLE}</style></head><body><header>"
    yield '<h1>Warpseal <span id="live" class="pill soft" hidden>snapshot</span></h1>'
    moment = escape(document.time)
    text = moment.replace("T", " ").replace("Z", " UTC")
    yield f'<p class="soft">Last change: <time id="time" datetime="{moment}">{text}</time>'
    yield "<noscript>. Reload the page for a newer snapshot</noscript></p>"
    yield f'<div id="state">{sections["state"]}</div></header><main>'
    for name, head in (("subnets", "Subnets"), ("forecasts", "Forecast")):
        yield f'<section><h2>{head}</h2><div id="{name}">{sections[name]}</div></section>'
    if any(chain.kind == _INDEXED and chain.evm_chain_id is not None for chain in document.chains):
        yield (
            '<section id="icm" hidden><h2>ICM message</h2><div class="tools"><input id="message"'
            ' type="search"'
        )
        yield (
            ' placeholder="Id of a message" aria-label="Id of an ICM message" maxlength="80"></div>'
        )
        yield '<div id="life" aria-live="polite"></div></section>'
    yield f'<section><h2>Recent aggregations</h2><div id="hour">{sections["hour"]}</div>'
    yield f'<div id="aggregations">{sections["aggregations"]}</div></section>'
    for name, head in (("nodes", "Upstream nodes"), ("chains", "Chains")):
        yield f'<section><h2>{head}</h2><div id="{name}">{sections[name]}</div></section>'
    yield f'<section id="usage">{sections["usage"]}</section>'
    yield '<section id="validators"><h2>Validators <span id="count" class="soft"></span></h2>'
    yield (
        '<div id="tools" class="tools" hidden><input id="search" type="search" placeholder="Search"'
    )
    yield ' aria-label="Search validators"><select id="subnet" aria-label="Subnet">'
    yield '<option value="">all subnets</option></select>'
    yield '<select id="state-filter" aria-label="State"><option value="">all states</option>'
    yield (
        '<option value="missing">not connected</option><option'
        ' value="connected">connected</option></select></div>'
    )
    # The style folds the table by the box, which works without a script.
    hidden = "" if len(rows) > _MAX_FOLDED else " hidden"
    yield (
        f'<p id="fold"{hidden}><label><input id="unfold" type="checkbox"> Show all, not only the'
        f" first {_MAX_FOLDED}"
    )
    yield "</label></p>"
    yield '<div class="wide"><table><thead><tr>'
    for name, first in _COLUMNS:
        yield f'<th scope="col"><button type="button" data-first="{first}">{name}</button></th>'
    yield '</tr></thead><tbody id="rows">'
    yield from rows.values()
    yield f'</tbody></table></div><div id="omitted">{sections["omitted"]}</div></section></main>'
    yield '<footer><a href="/docs">API</a> <a href="/status/metrics">metrics</a> '
    yield (
        '<a href="/status.json">status.json</a> <a href="/ready">ready</a> <a'
        ' href="/ext/health">health</a> '
    )
    if dashboards_url:
        yield f'<a href="{escape(dashboards_url)}" rel="noreferrer">dashboards</a>'
    else:
        yield '<span class="soft">Dashboards for Grafana: configs/grafana of the repository.</span>'
    yield f"</footer><script>{_SCRIPT}</script></body></html>"


def _state(document: StatusDocument) -> Iterator[str]:
    mark = (
        '<span class="pill ok">ready</span>'
        if document.ready
        else '<span class="pill bad">not ready</span>'
    )
    network = "starting" if document.network_id is None else f"network {document.network_id}"
    name = f"{escape(document.network)} ({network})" if document.network else network
    yield f'<p>{mark} <b data-field="network">{name}</b>'
    if document.proposed_height is not None:
        height = escape(document.proposed_height)
        yield f', proposed P-Chain height <b data-field="height">{height}</b>'
    yield "</p>"
    if document.faults or document.degraded:
        yield "<ul>"
        for kind, sentences in (("bad", document.faults), ("warn", document.degraded)):
            for sentence in sentences:
                yield f'<li class="{kind}">{_sentence(sentence)}</li>'
        yield "</ul>"
    facts = [f"version {escape(document.version)}"]
    facts += [f"BLS {escape(document.bls_backend)}"] if document.bls_backend else []
    facts += [_short(document.node_id)] if document.node_id else []
    yield f'<p class="soft">{", ".join(facts)}, started {_time(document.started_at)}</p>'


def _subnets(document: StatusDocument) -> Iterator[str]:
    if not document.subnets:
        yield '<p class="soft">Not known yet.</p>'
        return
    yield '<div class="cards">'
    for subnet in document.subnets:
        yield from _subnet(subnet)
    yield "</div>"


def _subnet(subnet: SubnetStatus) -> Iterator[str]:
    connected, required, total = map(
        int, (subnet.connected_weight, subnet.required_weight, subnet.total_weight)
    )
    subnet_id = escape(subnet.subnet_id)
    mark = (
        '<span class="pill ok">ready</span>'
        if subnet.ready
        else '<span class="pill bad">not ready</span>'
    )
    yield f'<div class="card" data-subnet="{subnet_id}">{_subnet_name(subnet.subnet_id)} {mark}'
    if not subnet.is_known:
        yield "<p>Its validators are not known yet.</p></div>"
        return
    shares = f"{_percent(connected, total)} connected, {_percent(required, total)} required"
    kind = "fill" if subnet.ready else "short"
    yield (
        '<svg class="bar" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img"'
        f' aria-label="{shares}">'
    )
    yield '<rect class="track" width="1000" height="14"/>'
    yield f'<rect class="{kind}" width="{_permille(connected, total)}" height="14"/>'
    yield (
        f'<rect class="need" x="{max(0, _permille(required, total) - 2)}" width="3"'
        ' height="14"/></svg>'
    )
    yield f"<p><b>{shares}</b></p>"
    yield '<p class="numbers soft">'
    for name, weight in (("connected", connected), ("required", required), ("total", total)):
        text = _weight(weight, subnet.subnet_id)
        yield f'<span>{name} <data data-field="{name}" value="{weight}">{text}</data></span> '
    if subnet.keyless_weight != "0":
        yield (
            "<span>inactive or without a key"
            f" {_weight(int(subnet.keyless_weight), subnet.subnet_id)}</span>"
        )
    yield "</p>"
    if subnet.inactive_validators:
        yield _open_details(
            f"inactive-{subnet_id}", subnet.inactive_validators, "L1 validator", "inactive"
        )
        for inactive in subnet.inactive:
            yield (
                f"<li>{_short_names(inactive.node_ids)}"
                f" {_percent(int(inactive.weight), total)}</li>"
            )
        yield f'</ul><p class="soft">{escape(UNDERFUNDED_ADVICE)}</p></details>'
    if subnet.missing_validators:
        yield _open_details(subnet_id, subnet.missing_validators, "validator", "missing")
        for missing in subnet.missing:
            share, reason = _percent(int(missing.weight), total), _with_reason(missing)
            yield f"<li>{_short_names(missing.node_ids)} {share}, {reason}</li>"
        yield "</ul></details>"
    yield "</div>"


def _open_details(key: str, count: int, kind: str, state: str) -> str:
    """Return the start of a list of validators, which is folded if there are many."""
    subject = f"{kind} is" if count == 1 else f"{kind}s are"
    is_open = " open" if count <= _MAX_OPEN_MISSING else ""
    return f'<details data-of="{key}"{is_open}><summary>{count} {subject} {state}</summary><ul>'


def _forecasts(document: StatusDocument) -> Iterator[str]:
    heads = (
        "Subnet",
        "Active weight",
        "Answering weight",
        "First loss",
        "Quorum impossible",
        "Top-ups for 30 days",
    )
    tracked = any(
        subnet.is_pinned and subnet.subnet_id != _PRIMARY_NETWORK for subnet in document.subnets
    )
    empty = (
        "No forecast was made within the last minutes: the start was just now, or no node answers."
    )
    cells = (_forecast_cells(row, document.time) for row in document.forecasts)
    yield from _table(heads, cells, empty if tracked else "No subnet is tracked.")
    for row in document.forecasts:
        if row.losses:
            yield (
                f'<div class="card outlook"><p>{_subnet_name(row.subnet_id)}: weight that can'
                " sign</p>"
            )
            yield from draw_forecast(
                row, [_loss(loss, int(row.total_weight), document.time) for loss in row.losses]
            )
            yield "</div>"


def _forecast_cells(row: ForecastStatus, now: str) -> Iterator[str]:
    total = int(row.total_weight)
    yield _subnet_name(row.subnet_id)
    yield _margin(row.active_weight, total, row.margin)
    yield (
        "not known"
        if row.answering_weight is None
        else _margin(row.answering_weight, total, row.answering_margin)
    )
    first = _percent(int(row.first_loss_weight or 0), total)
    yield (
        "none within ten years"
        if row.first_loss_at is None
        else f"{_coming(row.first_loss_at, now)}, {first}"
    )
    yield _halt(row, now)
    yield "" if row.kind != "l1" else _top_ups(row)


def _loss(loss: LossStatus, total: int, now: str) -> str:
    more = (
        [f"{loss.validators - len(loss.node_ids)} more"]
        if loss.validators > len(loss.node_ids)
        else []
    )
    names = ", ".join([*map(_short, loss.node_ids), *more])
    return f"{_coming(loss.at, now)}: {names} with {_percent(int(loss.weight_lost), total)}"


def _halt(row: ForecastStatus, now: str) -> str:
    impossible_at, at_capacity = row.quorum_impossible_at, row.quorum_impossible_at_capacity
    if impossible_at is not None and impossible_at <= max(row.as_of, now):
        return '<span class="bad">now</span>'
    today = "not within ten years"
    if impossible_at is not None:
        today = f'<span class="warn">{_coming(impossible_at, now)}</span>'
    return today + ("" if at_capacity is None else f"; at capacity {_coming(at_capacity, now)}")


def _margin(weight: str, total: int, margin: float | None) -> str:
    kind = "ok" if margin is not None and margin >= 0 else "bad"
    return (
        f'{_percent(int(weight), total)}, <span class="{kind}">margin'
        f" {100 * (margin or 0):.1f} %</span>"
    )


def _top_ups(row: ForecastStatus) -> str:
    if not row.can_be_kept:
        return '<span class="bad">no balance keeps it</span>'
    if not row.top_ups:
        return "none needed"
    lines = [f"{_avax(top_up.amount)} to {_short(top_up.node_id)}" for top_up in row.top_ups]
    lines += [f"and {row.omitted_top_ups} more"] if row.omitted_top_ups else []
    return ", ".join(lines) + f"; {_avax(row.top_up_total)} in all"


def _avax(navax: str) -> str:
    """Return an amount with four decimals, rounded up."""
    return f"{-(-int(navax) // 10**5) / 10**4:,.4f} AVAX"


def _aggregations(document: StatusDocument) -> Iterator[str]:
    heads = ("Ended", "Outcome", "Subnet", "Signed weight", "Total, ms", "Stages, ms", "Message")
    latest, older = document.aggregations[:_MAX_RECENT], document.aggregations[_MAX_RECENT:]
    yield from _table(
        heads, map(_aggregation_cells, latest), "No message was signed since the start."
    )
    if older:
        yield f'<details data-of="older"><summary>{len(older)} older</summary>'
        yield from _table(heads, map(_aggregation_cells, older), "")
        yield "</details>"


def _aggregation_cells(row: AggregationStatus) -> Iterator[str]:
    yield _time(row.ended_at)
    kind, reason = (
        "ok" if row.outcome == "ok" else "bad",
        f": {_sentence(row.reason)}" if row.reason else "",
    )
    yield f'<span><span class="{kind}">{escape(row.outcome)}</span>{reason}</span>'
    yield "" if row.signing_subnet_id is None else _subnet_name(row.signing_subnet_id)
    signed, required, total = (
        int(text or 0) for text in (row.signed_weight, row.required_weight, row.total_weight)
    )
    yield f"{_percent(signed, total)} of {_percent(required, total)}" if total else ""
    yield f"{row.stages_ms['total']:g}" if "total" in row.stages_ms else ""
    yield ", ".join(
        f"{stage} {row.stages_ms[stage]:g}" for stage in _STAGES if stage in row.stages_ms
    )
    yield "" if row.message_id is None else _short(row.message_id)


def _node_cells(row: NodeStatus) -> Iterator[str]:
    yield f"<code>{escape(row.setting)}[{row.position}]</code>"
    if row.is_up:
        behind = (
            f', <span class="warn">behind for {row.behind_seconds} s</span>'
            if row.behind_seconds
            else ""
        )
        state = f'<span class="ok">up</span>{behind}'
    else:
        state = f'<span class="bad">{escape(row.error or "down")}</span>'
    yield state + (', <span class="warn">contradicts the others</span>' if row.disagrees else "")
    yield escape(row.height or "")
    yield f"<code>{escape(row.address)}</code>" if row.address is not None else ""


def _chain_cells(row: ChainSummary) -> Iterator[str]:
    evm = f" (EVM chain {row.evm_chain_id})" if row.evm_chain_id is not None else ""
    names = [escape(row.chain_name)] if row.chain_name else []
    # A name such as p-chain says nothing more.
    names += [_short(row.name)] if not names or len(row.name) > _SHORT_ID else []
    yield f"{' '.join(names)}{evm}"
    yield escape(row.kind)
    yield escape(row.height or "")
    yield escape(row.node_height or "")
    yield "" if row.blocks_per_second is None else f"{row.blocks_per_second:g}"
    yield "" if row.eta_seconds is None else f"{row.eta_seconds} s"
    notes = [f'<span class="bad">stopped: {_sentence(row.stopped)}</span>'] if row.stopped else []
    notes += (
        [f'<span class="warn">waits for {escape(row.waiting_for)}</span>']
        if row.waiting_for
        else []
    )
    notes += [f'<span class="warn">waits: {_sentence(row.waiting)}</span>'] if row.waiting else []
    notes += map(escape, row.index_notes)
    notes += [f"{row.nodes_up} of {row.nodes} nodes up"] if row.nodes is not None else []
    notes += (
        [f"a node lags {row.lag_blocks} blocks behind"]
        if row.nodes is not None and row.lag_blocks
        else []
    )
    notes += [
        f"node {escape(place)}: {escape(error)}" for place, error in (row.errors or {}).items()
    ]
    yield ", ".join(notes)


def _usage(document: StatusDocument) -> Iterator[str]:
    heads = ("Route", "Calls", "Successful", "Invalid", "Failed", "Credits", "Busiest methods")
    if document.usage or any(chain.kind == _FORWARDED for chain in document.chains):
        yield "<h2>Usage since the start</h2>"
        yield from _table(
            heads, map(_usage_cells, document.usage), "No forwarded call was recorded."
        )


def _usage_cells(row: RouteUsage) -> Iterator[str]:
    yield f"<code>{escape(row.path)}</code>"
    yield f"{row.requests:,}"
    yield _percent(row.requests - row.invalid - row.failed, row.requests)
    yield f"{row.invalid:,}"
    yield f'<span class="bad">{row.failed:,}</span>' if row.failed else "0"
    yield f"{row.credits:,}"
    yield ", ".join(f"{escape(method)} {count:,}" for method, count in row.methods.items())


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]], empty: str) -> Iterator[str]:
    """Yield a table of cells that are HTML already.

    empty: a sentence that stands in place of a table without rows.
    """
    names = tuple(heads)
    lines = [
        "".join(
            f'<td data-label="{name}">{cell}</td>' for name, cell in zip(names, row, strict=True)
        )
        for row in rows
    ]
    if not lines:
        yield f'<p class="soft">{empty}</p>'
        return
    yield '<div class="wide"><table><thead><tr>'
    yield from (f'<th scope="col">{name}</th>' for name in names)
    yield "</tr></thead><tbody>"
    yield from (f"<tr>{line}</tr>" for line in lines)
    yield "</tbody></table></div>"


def _validator_row(row: ValidatorStatus, total: int) -> str:
    kind = "ok" if row.state == CONNECTED else "warn" if row.state == INACTIVE else "bad"
    subnet_id, state, weight = escape(row.subnet_id), escape(row.state), int(row.weight)
    names = _short_names(row.node_ids)
    address = escape(row.address or "")
    latency = (
        ("", "") if row.latency_ms is None else (f"{row.latency_ms:g}", f"{row.latency_ms:g} ms")
    )
    since = f", since {_time(row.disconnected_since)}" if row.disconnected_since is not None else ""
    since += f", next try {_time(row.next_try_at)}" if row.next_try_at is not None else ""
    since += f", version {escape(row.version)}" if row.version else ""
    since = f'<span class="dial">{since}</span>' if since else ""
    balance = (
        ("", "") if row.balance is None else (row.balance, f"{int(row.balance) / _NAVAX:.4f} AVAX")
    )
    return (
        f'<tr id="v-{escape(row.key)}" data-subnet="{subnet_id}"'
        f' data-state="{state}"><td>{names}</td><td>{_subnet_name(row.subnet_id)}</td><td class="n"'
        f' data-value="{weight}">{_weight(weight, row.subnet_id)}'
        f" ({_percent(weight, total)})</td><td"
        f' class="{kind}"><span>{_with_reason(row)}{since}</span></td><td>{address}</td><td{_time_value(row.connected_since)}>{_time(row.connected_since)}</td><td'
        ' class="n"'
        f' data-value="{latency[0]}">{latency[1]}</td><td{_time_value(row.last_reply)}>{_time(row.last_reply)}</td><td'
        f' class="n" data-value="{escape(balance[0])}">{balance[1]}</td></tr>'
    )


def _short(name: str) -> str:
    """Return the ends of an id; all of it is its title."""
    head = len("NodeID-") + 5 if name.startswith("NodeID-") else 8
    ends = f"{name[:head]}…{name[-5:]}" if len(name) > _SHORT_ID else name
    return f'<code title="{escape(name)}">{escape(ends)}</code>'


def _sentence(text: str) -> str:
    """Return a text with its ids shortened."""
    return _ID.sub(lambda match: _short(match[0]), escape(text))


def _subnet_name(subnet_id: str) -> str:
    """Return the name of the Primary Network, else the ends of the id."""
    if subnet_id == _PRIMARY_NETWORK:
        return f'<span title="{subnet_id}">Primary Network</span>'
    return _short(subnet_id)


def _short_names(node_ids: Iterable[str]) -> str:
    return ", ".join(map(_short, node_ids))


def _weight(weight: int, subnet_id: str) -> str:
    """Return a weight with its unit: the stake of the Primary Network is AVAX, other weights have
    none.
    """
    if subnet_id != _PRIMARY_NETWORK:
        return f"{weight:,}"
    digits = f"{weight % _NAVAX:09}"
    fraction = (digits[:2] if weight >= _NAVAX else digits).rstrip("0")
    return f"{weight // _NAVAX:,}{'.' if fraction else ''}{fraction}\N{NO-BREAK SPACE}AVAX"


def _with_reason(row: MissingStatus | ValidatorStatus) -> str:
    """Return the state of a validator, and why it is not connected."""
    words = [text.replace("_", " ") for text in (row.state, row.reason) if text]
    return escape(": ".join([*words, row.detail] if row.detail else words))


def _time(moment: str | None) -> str:
    return "" if moment is None else f'<time datetime="{escape(moment)}">{escape(moment)}</time>'


def _coming(moment: str, now: str) -> str:
    """Return a moment of a forecast: what was to come before now comes now."""
    text = "now" if moment <= now else escape(moment)
    return f'<time class="coming" datetime="{escape(moment)}">{text}</time>'


def _time_value(moment: str | None) -> str:
    """Return the attribute by which a cell with a time is sorted: the digits of the moment."""
    return f' data-value="{"".join(filter(str.isdigit, moment or ""))}"'


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.1f}\N{NO-BREAK SPACE}%" if total else "0\N{NO-BREAK SPACE}%"


def _permille(part: int, total: int) -> int:
    return min(1_000, 1_000 * part // total) if total else 0
