"""The landing page: complete without a script, nothing from elsewhere, every text escaped."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import msgspec

from tests.api.fixtures import METRICS_PORT, ApiSetup, client_of
from warpseal.api.status.document import (
    MAX_VALIDATORS,
    AggregationStatus,
    ChainSummary,
    ForecastStatus,
    MissingStatus,
    NodeStatus,
    RouteUsage,
    StatusDocument,
    SubnetStatus,
    TopUpStatus,
    ValidatorStatus,
)
from warpseal.api.status.page import render_rows
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

HOSTILE = "<script>alert('1')</script>&\"'"
SUBNET = SubnetStatus(
    "sub",
    True,
    True,
    False,
    "50",
    "67",
    "100",
    1,
    [MissingStatus(["NodeID-b"], "30", "waiting")],
    "20",
    1,
    [MissingStatus(["NodeID-c"], "20", "inactive")],
)
ROWS = [
    ValidatorStatus("sub", ["NodeID-a"], "50", "connected", address="203.0.113.7:9651", latency_ms=1.5),
    ValidatorStatus("sub", ["NodeID-b"], "30", "waiting", "no_address"),
]
DOCUMENT = StatusDocument(
    "1.0",
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:01Z",
    False,
    network_id=5,
    network="fuji",
    subnets=[SUBNET],
    validators=ROWS,
)


class Page(HTMLParser):
    """Reads a page. elements: name and attributes of each. rows: the texts of the cells by the id of the row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: dict[str, list[str]] = {}
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._row: list[str] | None = None
        self._raw: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append((tag, given))
        if tag == "tr":
            self._row = self.rows.setdefault(given["id"], []) if "id" in given else None
        elif tag == "td" and self._row is not None:
            self._row.append("")
        self._raw = {"script": self.scripts, "style": self.styles}.get(tag)
        if self._raw is not None:
            self._raw.append("")

    def handle_endtag(self, tag: str) -> None:
        self._raw = None

    def handle_data(self, data: str) -> None:
        if self._raw is not None:
            self._raw[-1] += data
        elif self._row:
            self._row[-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


async def load(document: StatusDocument, **settings: Any) -> tuple[str, str]:
    """Return the page of a document and its policy."""
    setup = ApiSetup().with_settings(**settings)
    setup.status.document = document
    async with client_of(setup) as client, client.get("/") as reply:
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        return await reply.text(), reply.headers["content-security-policy"]


async def test_the_page_is_complete_without_a_script() -> None:
    html, _ = await load(DOCUMENT)
    page = Page(html)
    weights = {item["data-field"]: item["value"] for item in page.all("data")}
    assert weights == {"connected": "50", "required": "67", "total": "100"}
    assert [item["data-subnet"] for item in page.all("div") if "data-subnet" in item] == ["sub"]
    assert page.rows["v-sub/NodeID-a"][:5] == [
        "NodeID-a",
        "sub",
        "50 (50.0\N{NO-BREAK SPACE}%)",
        "connected",
        "203.0.113.7:9651",
    ]
    assert page.rows["v-sub/NodeID-b"][:4] == ["NodeID-b", "sub", "30 (30.0\N{NO-BREAK SPACE}%)", "waiting: no address"]
    assert "fuji (network 5)" in html
    assert "not ready" in html
    assert "1 validator is missing" in html
    assert "1 L1 validator is inactive" in html
    assert "<code>NodeID-c</code> 20.0" in html
    assert "top up their balance" in html


async def test_the_policy_allows_only_the_style_and_the_script_of_the_page() -> None:
    html, policy = await load(DOCUMENT)
    page = Page(html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for rule, texts in (("script-src", page.scripts), ("style-src", page.styles)):
        assert len(texts) == 1
        assert rules[rule] == f"'sha256-{b64encode(sha256(texts[0].encode()).digest()).decode()}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
    assert not re.search(r"\s(?:on\w+|style|src|srcset)=", html)
    links = [item["href"] for name in ("a", "link") for item in page.all(name)]
    assert links == ["/docs", "/status/metrics", "/status.json", "/ready", "/ext/health", "data:,"]


async def test_chains_show_their_rate_and_why_they_are_behind() -> None:
    chains = [
        ChainSummary("evm", "c", "42", lag_blocks=6, blocks_per_second=0.5, eta_seconds=3, nodes_up=1, nodes=2),
        ChainSummary("index", "p-chain", "7", "9", 2, waiting="no node answers"),
        ChainSummary("index", "2q9e", "7", "7", 0, evm_chain_id=43_114, internal_height="none"),
        ChainSummary("index", "2q9f", "7", "9", 2, stopped="wrong_gas", internal_height="6"),
    ]
    html, _ = await load(msgspec.structs.replace(DOCUMENT, chains=chains))
    table = html.partition('<div id="chains">')[2].partition("</table>")[0]
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    assert cells == [
        *("c", "evm", "42", "", "0.5", "3 s", "1 of 2 nodes up, a node lags 6 blocks behind"),
        *("p-chain", "index", "7", "9", "", "", "waits: no node answers, 2 blocks behind"),
        *("2q9e (EVM chain 43114)", "index", "7", "7", "", "", "no internal creations"),
        *("2q9f", "index", "7", "9", "", "", "stopped: wrong_gas, 2 blocks behind, internal creations up to 6"),
    ]


async def test_nodes_show_their_state_and_whether_they_contradict_others() -> None:
    nodes = [
        NodeStatus("p-chain-api", 0, True, height="9", disagrees=True),
        NodeStatus("p-chain-api", 1, True, height="7", behind_seconds=8),
        NodeStatus("p-chain-api", 2, False, error="timeout"),
    ]
    html, _ = await load(msgspec.structs.replace(DOCUMENT, nodes=nodes))
    table = html.partition('<div id="nodes">')[2].partition("</table>")[0]
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    assert [cells[row + 1] for row in (0, 4, 8)] == ["up, contradicts the others", "up, behind for 8 s", "timeout"]


FORECAST = ForecastStatus(
    *("sub", "l1", "2026-01-01T00:00:00Z", "1000", "670", "800"),
    margin=0.13,
    can_be_kept=True,
    answering_weight="500",
    answering_margin=-0.17,
    first_loss_at="2026-01-03T00:00:00Z",
    first_loss_weight="500",
    quorum_impossible_at="2026-01-03T00:00:00Z",
    quorum_impossible_at_capacity="2026-01-02T00:00:00Z",
    top_ups=[TopUpStatus("NodeID-<b>", "v", "1227104512")],
    omitted_top_ups=2,
    top_up_total="3000000001",
)


async def test_forecasts_show_margins_the_end_of_the_quorum_and_who_needs_how_much() -> None:
    halted = msgspec.structs.replace(
        FORECAST, quorum_impossible_at=FORECAST.as_of, answering_weight=None, answering_margin=None, can_be_kept=False
    )
    calm = ForecastStatus(
        *("perm", "permissioned", "2026-01-01T00:00:00Z", "4", "3", "4"), margin=0.25, can_be_kept=True
    )
    html, _ = await load(msgspec.structs.replace(DOCUMENT, forecasts=[FORECAST, halted, calm]))
    table = html.partition('<div id="forecasts">')[2].partition("</table>")[0]
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    space = "\N{NO-BREAK SPACE}"
    funded = f"1.2272{space}AVAX to NodeID-&lt;b&gt;, and 2 more; 3.0001{space}AVAX in all"
    end = "; at capacity 2026-01-02T00:00:00Z"
    assert [cell.replace(space, " ") for cell in cells] == [
        *("sub", "80.0 %, margin 13.0 %", "50.0 %, margin -17.0 %", "2026-01-03T00:00:00Z, 50.0 %"),
        *("2026-01-03T00:00:00Z" + end, funded.replace(space, " ")),
        *("sub", "80.0 %, margin 13.0 %", "not known", "2026-01-03T00:00:00Z, 50.0 %"),
        *("now", "no balance keeps it"),
        *("perm", "100.0 %, margin 25.0 %", "not known", "none within ten years", "not within ten years", ""),
    ]
    primary = msgspec.structs.replace(SUBNET, subnet_id=id_text(PRIMARY_NETWORK))
    assert "No subnet is tracked" in (await load(msgspec.structs.replace(DOCUMENT, subnets=[primary])))[0]
    assert "No forecast was made within the last minutes" in (await load(DOCUMENT))[0]


async def test_the_dashboards_are_linked_where_the_setting_says() -> None:
    html, _ = await load(DOCUMENT, dashboards_url="https://grafana.example/d/1?a=1&b=2")
    assert "https://grafana.example/d/1?a=1&b=2" in [item["href"] for item in Page(html).all("a")]


async def test_every_text_is_escaped() -> None:
    def hostile(kind: type[Any], **values: Any) -> Any:
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        texts = {name: HOSTILE for name, field in fields.items() if field.type in (str, str | None)}
        return kind(**{**texts, **values})

    numbers = dict.fromkeys(("connected_weight", "required_weight", "total_weight", "keyless_weight"), "1")
    subnet = hostile(
        SubnetStatus,
        is_known=True,
        is_pinned=True,
        ready=True,
        missing_validators=1,
        missing=[hostile(MissingStatus, node_ids=[HOSTILE], weight="1")],
        inactive_validators=1,
        inactive=[hostile(MissingStatus, node_ids=[HOSTILE], weight="1")],
        **numbers,
    )
    document = hostile(
        StatusDocument,
        ready=False,
        network_id=1,
        faults=[HOSTILE],
        degraded=[HOSTILE],
        subnets=[subnet],
        aggregations=[
            hostile(AggregationStatus, stages_ms={}, signed_weight="1", required_weight="1", total_weight="1"),
        ],
        nodes=[hostile(NodeStatus, position=0, is_up=False), hostile(NodeStatus, position=1, is_up=True)],
        chains=[hostile(ChainSummary, errors={HOSTILE: HOSTILE})],
        usage=[RouteUsage(HOSTILE, 1, 0, 1, 10, {HOSTILE: 1})],
        validators=[hostile(ValidatorStatus, node_ids=[HOSTILE], weight="1", balance="1")],
    )
    html, _ = await load(document)
    page = Page(html)
    assert len(page.scripts) == 1
    assert "alert" not in page.scripts[0]
    assert html.count("alert") >= 25
    assert HOSTILE[:9] not in html.replace(f"<script>{page.scripts[0]}", "")
    for _, attributes in page.elements:
        assert all("alert" not in name for name in attributes)


async def test_the_metrics_link_leads_to_the_metrics_port_of_the_host_that_was_asked_by_the_same_scheme() -> None:
    async with client_of(ApiSetup()) as client:
        for host, location in (
            ("daemon.example:8080", f"//daemon.example:{METRICS_PORT}/metrics"),
            ("[::1]:8080", f"//[::1]:{METRICS_PORT}/metrics"),
        ):
            async with client.get("/status/metrics", headers={"host": host}, allow_redirects=False) as reply:
                assert (reply.status, reply.headers["location"]) == (307, location)


async def test_other_callbacks_run_while_thousands_of_rows_are_rendered() -> None:
    rows = [ValidatorStatus("sub", [f"NodeID-{number}"], "1", "connected") for number in range(MAX_VALIDATORS)]
    document = msgspec.structs.replace(DOCUMENT, validators=rows)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    rendered = await render_rows(document, None, {})
    counting.cancel()
    assert len(rendered) == MAX_VALIDATORS
    assert turns >= MAX_VALIDATORS // 100
    # Rows of validators that did not change are the same objects.
    changed = msgspec.structs.replace(document, validators=[*rows[:-1], msgspec.structs.replace(rows[-1], weight="2")])
    again = await render_rows(changed, document, rendered)
    assert sum(again[key] is not rendered[key] for key in again) == 1
