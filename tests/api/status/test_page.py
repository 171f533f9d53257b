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
    AggregationMinute,
    AggregationStatus,
    ChainSummary,
    ForecastStatus,
    LossStatus,
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
    ValidatorStatus(
        "sub", ["NodeID-a"], "50", "connected", address="203.0.113.7:9651", latency_ms=1.5
    ),
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
    """Reads a page.

    elements: name and attributes of each. rows: the texts of the cells by the id of the row.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: dict[str, list[str]] = {}
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self._row: list[str] | None = None
        self._is_in_cell = False
        self._raw: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag == "tr":
            self._row = self.rows.setdefault(attributes["id"], []) if "id" in attributes else None
        elif tag == "td" and self._row is not None:
            self._row.append("")
            self._is_in_cell = True
        self._raw = {"script": self.scripts, "style": self.styles}.get(tag)
        if self._raw is not None:
            self._raw.append("")

    def handle_endtag(self, tag: str) -> None:
        self._raw = None
        if tag == "td":
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        if self._raw is not None:
            self._raw[-1] += data
        elif self._row and self._is_in_cell:
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
    assert page.rows["v-sub/NodeID-b"][:4] == [
        "NodeID-b",
        "sub",
        "30 (30.0\N{NO-BREAK SPACE}%)",
        "waiting: no address",
    ]
    assert "fuji (network 5)" in html
    assert "not ready" in html
    assert "1 validator is missing" in html
    assert "1 L1 validator is inactive" in html
    assert '<code title="NodeID-c">NodeID-c</code> 20.0' in html
    assert "top up their balance" in html


async def test_the_policy_allows_only_the_style_and_the_script_of_the_page() -> None:
    html, policy = await load(DOCUMENT)
    page = Page(html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for rule, texts in (("script-src", page.scripts), ("style-src", page.styles)):
        assert len(texts) == 1
        assert rules[rule] == f"'sha256-{b64encode(sha256(texts[0].encode()).digest()).decode()}'"
    assert (
        rules["default-src"]
        == rules["base-uri"]
        == rules["form-action"]
        == rules["frame-ancestors"]
        == "'none'"
    )
    assert not re.search(r"\s(?:on\w+|style|src|srcset)=", html)
    links = [item["href"] for name in ("a", "link") for item in page.all(name)]
    assert links == ["/docs", "/status/metrics", "/status.json", "/ready", "/ext/health", "data:,"]


async def test_chains_show_their_rate_and_why_they_are_behind() -> None:
    chains = [
        ChainSummary(
            "evm",
            "c",
            "42",
            lag_blocks=6,
            blocks_per_second=0.5,
            eta_seconds=3,
            nodes_up=1,
            nodes=2,
        ),
        ChainSummary("index", "p-chain", "7", "9", 2, waiting="no node answers"),
        ChainSummary("index", "2q9e", "7", "7", 0, evm_chain_id=43_114, internal_height="none"),
        ChainSummary(
            "index", "2q9f", "7", "9", 2, stopped="wrong_gas", internal_height="6", internal_gap="7"
        ),
    ]
    html, _ = await load(msgspec.structs.replace(DOCUMENT, chains=chains))
    # Messages can be searched where an EVM chain is indexed.
    assert '<section id="icm" hidden>' in html
    assert (
        '<section id="icm"'
        not in (await load(msgspec.structs.replace(DOCUMENT, chains=chains[:2])))[0]
    )
    table = html.partition('<div id="chains">')[2].partition("</table>")[0]
    cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    assert cells == [
        *("c", "evm", "42", "", "0.5", "3 s", "1 of 2 nodes up, a node lags 6 blocks behind"),
        *("p-chain", "index", "7", "9", "", "", "waits: no node answers, 2 blocks behind"),
        *("2q9e (EVM chain 43114)", "index", "7", "7", "", "", "no internal creations"),
        *("2q9f", "index", "7", "9", "", ""),
        (
            "stopped: wrong_gas, 2 blocks behind, internal creations up to 6, no node traces block"
            " 7: one with pruning-enabled false, synced from the first block, can"
        ),
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
    assert [cells[row + 1] for row in (0, 4, 8)] == [
        "up, contradicts the others",
        "up, behind for 8 s",
        "timeout",
    ]


async def test_missing_validators_come_first_and_more_than_fifty_are_folded() -> None:
    rows = [
        ValidatorStatus("sub", [f"NodeID-{number}"], str(99 - number), "connected")
        for number in range(50)
    ]
    html, _ = await load(msgspec.structs.replace(DOCUMENT, validators=rows))
    assert '<p id="fold" hidden>' in html
    light = ValidatorStatus("sub", ["NodeID-light"], "1", "waiting", "unreachable")
    html, _ = await load(msgspec.structs.replace(DOCUMENT, validators=[*rows, light]))
    page = Page(html)
    assert [key.partition("/")[2] for key in page.rows][:3] == [
        "NodeID-light",
        "NodeID-0",
        "NodeID-1",
    ]
    # The style folds the table, so that it is folded without a script; the box is outside of what
    # the script replaces.
    assert '<p id="fold"><label><input id="unfold" type="checkbox">' in html
    assert (
        "#validators:not(:has(#unfold:checked)) #rows tr:nth-child(n + 51 of :not([hidden])) {"
        in page.styles[0]
    )
    assert "const MAX_FOLDED = 50;" in page.scripts[0]


async def test_weights_of_the_primary_network_are_avax_and_those_of_l1s_have_no_unit() -> None:
    space, primary = "\N{NO-BREAK SPACE}", id_text(PRIMARY_NETWORK)
    weights = {
        "2000000000000": "2,000",
        "1234567890123456": "1,234,567.89",
        "1500000000": "1.5",
        "1000": "0.000001",
    }
    rows = [
        ValidatorStatus(primary, [f"NodeID-{weight}"], weight, "connected") for weight in weights
    ]
    subnet = msgspec.structs.replace(SUBNET, subnet_id=primary, total_weight="2000000000000")
    html, _ = await load(
        msgspec.structs.replace(DOCUMENT, subnets=[subnet, SUBNET], validators=[*rows, *ROWS])
    )
    page = Page(html)
    names = [cells[2].partition(" (")[0] for cells in page.rows.values()]
    assert sorted(names) == sorted(
        ["30", "50", *(f"{text}{space}AVAX" for text in weights.values())]
    )
    assert f'<data data-field="total" value="2000000000000">2,000{space}AVAX</data>' in html
    assert '<data data-field="total" value="100">100</data>' in html


async def test_ids_are_shortened_and_whole_in_their_titles() -> None:
    node, subnet = "NodeID-" + "7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg", id_text(bytes(range(32)))
    html, _ = await load(
        msgspec.structs.replace(
            DOCUMENT,
            node_id=node,
            subnets=[
                msgspec.structs.replace(
                    SUBNET, subnet_id=subnet, missing=[MissingStatus([node], "30", "waiting")]
                )
            ],
            validators=[ValidatorStatus(subnet, [node], "50", "connected")],
        )
    )
    page = Page(html)
    assert page.rows[f"v-{subnet}/{node}"][:2] == [
        "NodeID-7Xhw2…St3Lg",
        f"{subnet[:8]}…{subnet[-5:]}",
    ]
    titles = [item["title"] for item in page.all("code") if "title" in item]
    assert (titles.count(node), titles.count(subnet)) == (3, 2)
    assert not re.search(f">[^<]*({node}|{subnet})", html)


async def test_usage_is_shown_with_a_gateway_or_with_calls_only() -> None:
    head = "<h2>Usage since the start</h2>"
    evm, gateway = ChainSummary("evm", "c"), ChainSummary("gateway", "P")
    calls = RouteUsage("/ext/bc/C/rpc", 1, 0, 0, 10, {})
    for changes, is_shown in (
        ({}, False),
        ({"chains": [evm]}, False),
        ({"chains": [gateway]}, True),
        ({"usage": [calls]}, True),
    ):
        html, _ = await load(msgspec.structs.replace(DOCUMENT, **changes))
        assert (head in html) == is_shown


async def test_older_aggregations_are_folded() -> None:
    rows = [
        AggregationStatus("2026-01-01T00:00:00Z", "ok", {"total": float(number)})
        for number in range(25)
    ]
    html, _ = await load(msgspec.structs.replace(DOCUMENT, aggregations=rows))
    latest, _, older = html.partition('<div id="aggregations">')[2].partition(
        '<details data-of="older">'
    )
    assert latest.count("<tr>") == 1 + 10
    assert older.startswith("<summary>15 older</summary>")


def minute(started_at: str, outcomes: dict[str, int], *times: float) -> AggregationMinute:
    return AggregationMinute(started_at, outcomes, *times)


def picture_of(html: str, section: str) -> str:
    """Return the first picture in a section; empty without one."""
    inner = html.partition(f'<div id="{section}">')[2].partition("</section>")[0]
    picture = re.search("<svg class=.picture.*?</svg>", inner, re.DOTALL)
    return "" if picture is None else picture[0]


async def test_the_last_hour_is_a_picture_with_a_text_alternative() -> None:
    late = msgspec.structs.replace(DOCUMENT, time="2026-01-01T01:30:20Z")
    minutes = [
        minute("2026-01-01T00:30:00Z", {"ok": 9}, 1.0, 1.0),
        minute(
            "2026-01-01T01:00:00Z",
            {"ok": 3, "quorum_not_reached": 2, "cancelled": 1},
            20.0,
            1_500.0,
        ),
        minute("2026-01-01T01:01:00Z", {"ok": 1}, 10.0, 10.0),
        minute("2026-01-01T01:30:00Z", {"store_down": 4}),
    ]
    html, _ = await load(msgspec.structs.replace(late, aggregation_minutes=minutes))
    picture = picture_of(html, "hour")
    counts = "Last hour: 4 signed, 4 store_down, 2 quorum_not_reached, 1 cancelled"
    assert f'role="img" aria-label="{counts}; at most 6 a minute, p95 up to 1.5 s"' in picture
    assert f"<p>{counts}</p>" in html
    # The minute an hour before this one is not in the picture.
    assert re.findall("<title>(.*?)</title>", picture) == [
        "01:00 UTC: 3 signed, 2 quorum_not_reached, 1 cancelled, p50 20 ms, p95 1.5 s",
        "01:01 UTC: 1 signed, p50 10 ms, p95 10 ms",
        "01:30 UTC: 4 store_down",
    ]
    bars = re.findall(
        r'<rect class="(\w+)" x="(\d+)" y="([\d.]+)" width="6" height="([\d.]+)"', picture
    )
    assert [(kind, x) for kind, x, *_ in bars] == [
        *(("ok", "233"), ("bad", "233"), ("soft", "233")),
        *(("ok", "241"), ("bad", "473")),
    ]
    assert [float(height) for *_, height in bars] == [30, 20, 10, 10, 40]
    assert re.findall(r'<path class="(p\d+)" d="([^"]*)"', picture) == [
        ("p95", "M236 18.0L244 87.5"),
        ("p50", "M236 87.1L244 87.5"),
    ]


async def test_an_hour_with_one_message_and_an_hour_without_any_can_be_read() -> None:
    html, _ = await load(DOCUMENT)
    assert picture_of(html, "hour") == ""
    assert "No message was signed in the last hour." in html
    html, _ = await load(
        msgspec.structs.replace(
            DOCUMENT, aggregation_minutes=[minute("2026-01-01T00:00:00Z", {"ok": 1}, 5.0, 5.0)]
        )
    )
    assert re.findall(r'<circle class="(\w+)" cx="476" cy="18.0"', picture_of(html, "hour")) == [
        "p95",
        "p50",
    ]


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
        FORECAST,
        quorum_impossible_at=FORECAST.as_of,
        answering_weight=None,
        answering_margin=None,
        can_be_kept=False,
    )
    calm = ForecastStatus(
        *("perm", "permissioned", "2026-01-01T00:00:00Z", "4", "3", "4"),
        margin=0.25,
        can_be_kept=True,
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
        *(
            "perm",
            "100.0 %, margin 25.0 %",
            "not known",
            "none within ten years",
            "not within ten years",
            "",
        ),
    ]
    primary = msgspec.structs.replace(SUBNET, subnet_id=id_text(PRIMARY_NETWORK))
    assert (
        "No subnet is tracked"
        in (await load(msgspec.structs.replace(DOCUMENT, subnets=[primary])))[0]
    )
    assert "No forecast was made within the last minutes" in (await load(DOCUMENT))[0]


async def test_nothing_in_a_forecast_lies_in_the_past() -> None:
    late = msgspec.structs.replace(DOCUMENT, time="2026-01-02T00:00:58Z", forecasts=[FORECAST])
    html, _ = await load(late)
    assert '; at capacity <time class="coming" datetime="2026-01-02T00:00:00Z">now</time>' in html
    assert (
        '<time class="coming" datetime="2026-01-03T00:00:00Z">2026-01-03T00:00:00Z</time>' in html
    )
    ended, _ = await load(msgspec.structs.replace(late, time="2026-01-03T00:00:58Z"))
    table = ended.partition('<div id="forecasts">')[2].partition("</table>")[0]
    assert '<span class="bad">now</span>' in table
    assert ">2026" not in table
    # While the page is open, its script shows a moment that passes as "now".
    assert 'time.className === "coming" && seconds > 0 ? "now"' in Page(html).scripts[0]


async def test_ids_in_sentences_are_short_and_chains_and_the_primary_network_have_names() -> None:
    node, chain, primary = (
        "NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg",
        id_text(bytes(range(32))),
        id_text(PRIMARY_NETWORK),
    )
    document = msgspec.structs.replace(
        DOCUMENT,
        faults=[f"subnet {chain}: {node} is missing"],
        subnets=[msgspec.structs.replace(SUBNET, subnet_id=primary)],
        chains=[
            ChainSummary("index", "p-chain", chain_name="P-Chain"),
            ChainSummary("evm", chain, evm_chain_id=43_113, chain_name="Games <L1>"),
        ],
        aggregations=[
            AggregationStatus("2026-01-01T00:00:00Z", "ok", {}, signing_subnet_id=primary)
        ],
    )
    html, _ = await load(document)
    text = re.sub(r"<[^>]*>\n?", "", html)
    ends = f"{chain[:8]}…{chain[-5:]}"
    assert f"subnet {ends}: NodeID-7Xhw2…St3Lg is missing" in text
    assert f"Games &lt;L1&gt; {ends} (EVM chain 43113)" in text
    assert "P-Chainindex" in text
    assert not re.search(f">[^<]*({node}|{chain}|{primary})", html)
    assert text.count("Primary Network") == 2


async def test_a_validator_has_its_version_beside_its_state_and_the_change_a_time_of_day() -> None:
    row = msgspec.structs.replace(ROWS[0], version="1.15.0")
    html, _ = await load(msgspec.structs.replace(DOCUMENT, validators=[row]))
    page = Page(html)
    assert page.rows["v-sub/NodeID-a"][3:5] == ["connected, version 1.15.0", "203.0.113.7:9651"]
    assert (
        'Last change: <time id="time" datetime="2026-01-01T00:00:01Z">2026-01-01 00:00:01'
        " UTC</time>" in html
    )
    assert 'if (time.id === "time") return time.dateTime' in page.scripts[0]


async def test_a_missing_validator_is_shown_with_what_its_machine_answered() -> None:
    refused = ("unreachable", "Connection <refused>")
    subnet = msgspec.structs.replace(
        SUBNET, missing=[MissingStatus(["NodeID-b"], "30", "waiting", *refused)]
    )
    row = ValidatorStatus("sub", ["NodeID-b"], "30", "waiting", refused[0], detail=refused[1])
    html, _ = await load(msgspec.structs.replace(DOCUMENT, subnets=[subnet], validators=[row]))
    assert html.count("waiting: unreachable: Connection &lt;refused&gt;") == 2


async def test_the_dashboards_are_linked_where_the_setting_says() -> None:
    html, _ = await load(DOCUMENT, dashboards_url="https://grafana.example/d/1?a=1&b=2")
    assert "https://grafana.example/d/1?a=1&b=2" in [item["href"] for item in Page(html).all("a")]


async def test_every_text_is_escaped() -> None:
    def hostile(kind: type[Any], **values: Any) -> Any:
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        texts = {name: HOSTILE for name, field in fields.items() if field.type in (str, str | None)}
        return kind(**{**texts, **values})

    numbers = dict.fromkeys(
        ("connected_weight", "required_weight", "total_weight", "keyless_weight"), "1"
    )
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
        time="2026-01-01T00:00:20Z",
        ready=False,
        network_id=1,
        faults=[HOSTILE],
        degraded=[HOSTILE],
        subnets=[subnet],
        aggregations=[
            hostile(
                AggregationStatus,
                stages_ms={},
                signed_weight="1",
                required_weight="1",
                total_weight="1",
            ),
        ],
        aggregation_minutes=[AggregationMinute("2026-01-01T00:00:00Z", {HOSTILE: 1})],
        nodes=[
            hostile(NodeStatus, position=0, is_up=False),
            hostile(NodeStatus, position=1, is_up=True),
        ],
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


async def test_the_forecast_is_a_picture_of_weight_against_quorum_that_names_the_losses() -> None:
    def loss(at: str, nodes: list[str], lost: str, active: str, validators: int = 1) -> LossStatus:
        return LossStatus(at, validators, nodes, lost, active, "670", "1000")

    losses = [
        loss("2026-01-11T00:00:00Z", ["NodeID-<b>"], "100", "700"),
        loss("2026-01-21T00:00:00Z", ["NodeID-c", "NodeID-d"], "300", "400", 7),
        loss("2030-01-01T00:00:00Z", ["NodeID-e"], "400", "0"),
    ]
    row = msgspec.structs.replace(
        FORECAST, quorum_impossible_at="2026-01-21T00:00:00Z", losses=losses, omitted_losses=4
    )
    html, _ = await load(msgspec.structs.replace(DOCUMENT, forecasts=[row]))
    picture = picture_of(html, "forecasts")
    # The loss of 2030 comes long after the end of the quorum.
    assert re.findall(r'<circle class="loss" cx="([\d.]+)"', picture) == ["218.2", "436.4"]
    assert 'class="weight" d="M0 44.4H218.2V57.6H436.4V97.2H480.0H480V150H0Z"' in picture
    assert 'class="quorum" d="M0 61.6H218.2V61.6H436.4V61.6H480.0H480"' in picture
    assert (
        'aria-label="Weight that can sign: 80.0 % now, 0.0 % after the last loss listed; 67.0 % are'
        ' required"' in picture
    )
    assert ">2026-01-01</text>" in picture
    assert ">2026-01-23</text>" in picture
    listed = [
        re.sub("<[^>]*>", "", item)
        for item in re.findall("<li>(.*?)</li>", html.partition("<ol>")[2])
    ]
    space = "\N{NO-BREAK SPACE}"
    assert listed == [
        f"2026-01-11T00:00:00Z: NodeID-&lt;b&gt; with 10.0{space}%, 70.0 % left",
        f"2026-01-21T00:00:00Z: NodeID-c, NodeID-d, 5 more with 30.0{space}%, 40.0 % left",
        f"2030-01-01T00:00:00Z: NodeID-e with 40.0{space}%, 0.0 % left",
    ]
    assert "4 later losses are not listed." in html
    assert '<span class="ok">70.0 % left</span>' in html
    assert '<span class="bad">40.0 % left</span>' in html


async def test_a_forecast_without_losses_has_no_picture_and_a_single_loss_now_has_one() -> None:
    html, _ = await load(msgspec.structs.replace(DOCUMENT, forecasts=[FORECAST]))
    assert picture_of(html, "forecasts") == ""
    now = LossStatus(FORECAST.as_of, 1, ["NodeID-b"], "800", "0", "670", "1000")
    halted = msgspec.structs.replace(FORECAST, quorum_impossible_at=FORECAST.as_of, losses=[now])
    html, _ = await load(msgspec.structs.replace(DOCUMENT, forecasts=[halted]))
    assert '<circle class="loss" cx="0.0" cy="150.0"' in picture_of(html, "forecasts")


async def test_the_metrics_link_leads_to_the_port_of_metrics_on_the_requested_host() -> None:
    async with client_of(ApiSetup()) as client:
        for host, location in (
            ("daemon.example:8080", f"//daemon.example:{METRICS_PORT}/metrics"),
            ("[::1]:8080", f"//[::1]:{METRICS_PORT}/metrics"),
        ):
            async with client.get(
                "/status/metrics", headers={"host": host}, allow_redirects=False
            ) as reply:
                assert (reply.status, reply.headers["location"]) == (307, location)


async def test_other_callbacks_run_while_thousands_of_rows_are_rendered() -> None:
    rows = [
        ValidatorStatus("sub", [f"NodeID-{number}"], "1", "connected")
        for number in range(MAX_VALIDATORS)
    ]
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
    changed = msgspec.structs.replace(
        document, validators=[*rows[:-1], msgspec.structs.replace(rows[-1], weight="2")]
    )
    again = await render_rows(changed, document, rendered)
    assert sum(again[key] is not rendered[key] for key in again) == 1
