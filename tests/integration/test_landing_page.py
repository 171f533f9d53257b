"""The landing page of a whole daemon in a real browser: values, updates without a reload, search,
sorting, a phone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from tests.api.data.test_icm import (
    DELIVERED,
    DESTINATION_BLOCKS,
    PENDING,
    SOURCE_BLOCKS,
    icm_setup,
    write_chains,
)
from tests.api.fixtures import ApiSetup, serving
from tests.api.status.test_page import DOCUMENT, FORECAST, HOSTILE
from tests.index.evm.icm_histories import A, B
from tests.integration.browser import BrowserTab, needs_chromium, open_tab
from tests.integration.daemon import build_config, run_daemon, run_network
from warpseal.api.status.document import (
    MAX_VALIDATORS,
    AggregationStatus,
    ChainSummary,
    ValidatorStatus,
)
from warpseal.warp.ids import PRIMARY_NETWORK, id_text
from warpseal_simnet.plan import L1Plan, Plan, parse_rule

PLAN = Plan(
    validators=6,
    weights="6000/5000/4000/3000/2000/1000",
    l1s=(L1Plan(validators=4),),
    rules=tuple(map(parse_rule, ("l1-0/0:closed", "l1-0/1:inactive"))),
)
SUBNETS = """[...document.querySelectorAll("#subnets [data-subnet]")].map((card) => {
  const weightOf = (name) => card.querySelector(`[data-field=${name}]`).value;
  return [card.dataset.subnet, ...["connected", "required", "total"].map(weightOf)];
})"""
SHOWN = "[...document.querySelectorAll('#rows tr')].filter((row) => !row.hidden)"
NAMES = f"{SHOWN}.map((row) => row.cells[0].querySelector('code').title)"
LIFE = "document.querySelector('#life > div')"
UNFOLD = "document.getElementById('unfold').click()"


async def assert_agreement(
    tab: BrowserTab, ready: dict[str, Any], metrics: dict[str, float]
) -> None:
    """Assert that the page shows the weights of /ready and of /metrics."""
    rows = await tab.evaluate(SUBNETS)
    fields = ("subnetId", "connectedWeight", "requiredWeight", "totalWeight")
    assert rows == [[subnet[name] for name in fields] for subnet in ready["subnets"]]
    for subnet_id, connected, _, total in rows:
        label = f'{{subnet_id="{subnet_id}"}}'
        assert metrics[f"warpseal_connected_weight{label}"] == int(connected)
        assert metrics[f"warpseal_total_weight{label}"] == int(total)
    height = await tab.evaluate("document.querySelector('[data-field=height]').textContent")
    assert metrics["warpseal_proposed_height"] == int(height)


@needs_chromium
async def test_the_page_agrees_with_ready_and_metrics_and_follows_them(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
        open_tab() as tab,
    ):
        await daemon.until_connected(8)
        l1 = id_text(network.subnets[1].subnet_id)
        await tab.load(daemon.api_url + "/")
        await tab.until("document.getElementById('live').textContent === 'live'")
        await tab.until("document.querySelectorAll('#rows tr').length === 10")
        await tab.until(
            f'document.querySelector(\'#subnets [data-subnet="{l1}"]'
            " [data-field=connected]').value === '2000'"
        )
        await tab.evaluate("window.isSamePage = true")
        await assert_agreement(tab, (await daemon.ready()).body, await daemon.metrics())
        # A validator goes and comes back: the page shows it without a reload.
        primary = id_text(PRIMARY_NETWORK)
        weight = (
            f'document.querySelector(\'#subnets [data-subnet="{primary}"]'
            " [data-field=connected]').value"
        )
        network.stop_validator(0)
        await tab.until(f"{weight} === '15000'")
        row = f"document.getElementById('v-{primary}/{network.validators[0].name}')"
        await tab.until(f"{row}.dataset.state !== 'connected'")
        await assert_agreement(tab, (await daemon.ready()).body, await daemon.metrics())
        await network.start_validator(0)
        await tab.until(f"{weight} === '21000' && {row}.dataset.state === 'connected'")
        # So it does for an aggregation.
        assert (await daemon.aggregate(network.messages_of(PRIMARY_NETWORK)[0])).status == 200
        await tab.until(
            "document.querySelector('#aggregations td:nth-child(2)')?.textContent === 'ok'"
        )
        assert await tab.evaluate("window.isSamePage") is True
        # Moments are relative also after a change, but that of the change itself.
        assert (
            await tab.evaluate("document.querySelector('#aggregations time').textContent")
        ).endswith(("now", "ago"))
        assert (await tab.evaluate("document.getElementById('time').textContent")).endswith(" UTC")
        assert tab.log == []


@needs_chromium
async def test_validators_can_be_searched_filtered_and_sorted(tmp_path: Path) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
        open_tab() as tab,
    ):
        await daemon.until_connected(8)
        await tab.load(daemon.api_url + "/")
        await tab.until("document.querySelectorAll('#rows tr').length === 10")
        names = [validator.name for validator in network.validators]
        # Missing ones first, then subnet by subnet, the heaviest first.
        table_names = await tab.evaluate(NAMES)
        assert set(table_names[:2]) == {names[6], names[7]}
        assert table_names[2:8] == names[:6]
        await tab.evaluate("document.querySelectorAll('#validators th button')[2].click()")
        assert [name for name in await tab.evaluate(NAMES) if name in names[:6]] == names[:6]
        await tab.evaluate("document.querySelectorAll('#validators th button')[2].click()")
        assert [name for name in await tab.evaluate(NAMES) if name in names[:6]] == names[5::-1]

        async def enter(control: str, value: str) -> list[str]:
            """Return the shown names after an input of the user."""
            field = f"document.getElementById('{control}')"
            await tab.evaluate(
                f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('input'))"
            )
            names: list[str] = await tab.evaluate(NAMES)
            return names

        assert await enter("search", names[3].lower()) == [names[3]]
        assert await enter("search", "") != [names[3]]
        assert set(await enter("state-filter", "missing")) == {names[6], names[7]}
        assert await enter("state-filter", "") != []
        assert set(await enter("subnet", id_text(network.subnets[1].subnet_id))) == set(names[6:])
        assert tab.log == []


@needs_chromium
async def test_thousands_of_validators_can_be_searched_and_sorted() -> None:
    setup = ApiSetup()
    rows = [
        ValidatorStatus(
            "sub",
            [f"NodeID-{number}"],
            str(MAX_VALIDATORS - number),
            "connected",
            latency_ms=float(number),
        )
        for number in range(MAX_VALIDATORS)
    ]
    setup.status.document = msgspec.structs.replace(DOCUMENT, validators=rows)
    async with serving(setup.app()) as server, open_tab() as tab:
        await tab.load(server.url + "/")
        await tab.until(
            "document.getElementById('count').textContent === '5000 of 5000, the first 50 are"
            " shown'"
        )
        assert await tab.evaluate(f"{SHOWN}.filter((row) => row.offsetHeight).length") == 50
        await tab.evaluate(UNFOLD)
        assert (
            await tab.evaluate("document.getElementById('count').textContent")
            == "5000 of 5000, the first 500 are shown"
        )
        assert await tab.evaluate(f"{SHOWN}.filter((row) => row.offsetHeight).length") == 500
        assert await tab.evaluate(NAMES) == [f"NodeID-{number}" for number in range(500)]
        await tab.evaluate("document.querySelectorAll('#validators th button')[6].click()")
        assert await tab.evaluate(NAMES) == [
            f"NodeID-{number}" for number in range(4_999, 4_499, -1)
        ]
        search = "document.getElementById('search')"
        await tab.evaluate(
            f"{search}.value = 'NodeID-1234'; {search}.dispatchEvent(new Event('input'))"
        )
        assert await tab.evaluate(NAMES) == ["NodeID-1234"]
        assert tab.log == []


@needs_chromium
async def test_the_page_is_a_readable_snapshot_without_javascript_and_fits_a_phone(
    tmp_path: Path,
) -> None:
    async with (
        run_network(PLAN) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
        open_tab() as tab,
    ):
        await daemon.until_connected(8)
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.resize(360, 740, is_phone=True)
        await tab.load(daemon.api_url + "/")
        await assert_agreement(tab, (await daemon.ready()).body, await daemon.metrics())
        assert await tab.evaluate(
            "[...document.querySelectorAll('.tools, #live')].every((part) => part.hidden)"
        )
        assert "Reload the page" in await tab.evaluate("document.body.innerText")
        # Nothing is wider than the screen.
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 360
        assert await tab.evaluate("document.querySelectorAll('#rows tr').length") >= 9


@needs_chromium
async def test_a_value_on_a_phone_is_one_text_beside_its_label() -> None:
    setup = ApiSetup()
    setup.status.document = msgspec.structs.replace(DOCUMENT, forecasts=[FORECAST])
    async with serving(setup.app()) as server, open_tab() as tab:
        await tab.resize(360, 740, is_phone=True)
        await tab.load(server.url + "/")
        await tab.until("document.querySelectorAll('#forecasts td').length > 0")
        # A part that is a box of its own would begin a line.
        texts = "[...document.querySelectorAll('td')].map((cell) => cell.innerText)"
        assert [text for text in await tab.evaluate(texts) if "\n" in text] == []
        assert "margin" in await tab.evaluate(
            "document.querySelector('#forecasts td:nth-child(2)').innerText"
        )
        # The moments of the forecast have passed, and the last change is a time of day.
        moments = (
            "[...document.querySelectorAll('#forecasts time')].map((time) => time.textContent)"
        )
        assert set(await tab.evaluate(moments)) == {"now"}
        assert (
            await tab.evaluate("document.getElementById('time').textContent")
            == "2026-01-01 00:00:01 UTC"
        )


@needs_chromium
async def test_a_phone_with_200_validators_stays_below_6000_pixels_and_unfolds() -> None:
    setup = ApiSetup()
    node = "NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg"
    rows = [
        ValidatorStatus(
            id_text(PRIMARY_NETWORK),
            [f"{node}{number}"],
            "2000000000000",
            "waiting" if number % 3 else "connected",
            "unreachable" if number % 3 else None,
            disconnected_since="2026-01-01T00:00:00Z" if number % 3 else None,
        )
        for number in range(200)
    ]
    failed = AggregationStatus(
        "2026-01-01T00:00:00Z", "quorum_not_reached", {"total": 15.0}, "reason " * 9
    )
    setup.status.document = msgspec.structs.replace(
        DOCUMENT, validators=rows, forecasts=[FORECAST], aggregations=[failed] * 100
    )
    async with serving(setup.app()) as server, open_tab() as tab:
        await tab.resize(390, 844, is_phone=True)
        await tab.load(server.url + "/")
        await tab.until(
            "document.getElementById('count').textContent === '200 of 200, the first 50 are shown'"
        )
        assert await tab.evaluate("document.documentElement.scrollHeight") < 6_000
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
        # Each id has a button that copies all of it.
        assert (
            await tab.evaluate("document.querySelector('#rows .copy').parentElement.title")
            == f"{node}1"
        )
        await tab.evaluate("document.querySelector('#rows .copy').click()")
        await tab.until("document.querySelector('#rows .copy').classList.contains('done')")
        await tab.evaluate(UNFOLD)
        await tab.until("document.getElementById('count').textContent === '200 of 200'")
        assert await tab.evaluate(f"{SHOWN}.filter((row) => row.offsetHeight).length") == 200
        assert tab.log == []


@needs_chromium
async def test_the_life_of_an_icm_message_is_a_line_of_steps_and_hostile_values_are_texts(
    tmp_path: Path,
) -> None:
    write_chains(tmp_path, {A: SOURCE_BLOCKS, B: DESTINATION_BLOCKS})
    page = ApiSetup()
    page.status.document = msgspec.structs.replace(
        DOCUMENT, chains=[ChainSummary("index", "A", evm_chain_id=10)]
    )
    async with icm_setup(tmp_path) as data:
        page_app, data_app = page.app(), data.app()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await (data_app if scope["path"].startswith("/v1/icm") else page_app)(
                scope, receive, send
            )

        async with serving(app) as server, open_tab() as tab:
            await tab.resize(360, 740, is_phone=True)
            await tab.load(server.url + "/")

            async def look_up(text: str) -> Any:
                """Return the classes and texts of the steps of a message."""
                field = "document.getElementById('message')"
                await tab.evaluate(
                    f"{field}.value = {text!r}; {field}.dispatchEvent(new Event('change'))"
                )
                await tab.until(f"{LIFE} && {LIFE}.textContent !== '…'")
                return await tab.evaluate(
                    "[...document.querySelectorAll('.steps li')].map((step) => [step.className,"
                    " ...[...step.children].map((part) => part.dateTime || part.textContent)])"
                )

            assert await look_up(f" {DELIVERED['messageId']} ") == [
                ["ok", "✓ sent", "2023-11-14T22:13:22.000Z"],
                ["ok", "✓ signed"],
                ["ok", "✓ received", "2023-11-14T22:13:24.000Z"],
                ["ok", "✓ executed"],
                ["soft", "receipt", "not yet"],
            ]
            assert (
                await tab.evaluate(f"{LIFE}.querySelector('.copy').parentElement.title")
                == DELIVERED["from"]
            )
            assert await look_up("<img>") == []
            assert "<img>" in await tab.evaluate(f"{LIFE}.querySelector('.bad').textContent")
            # A message that waits, of which every text is hostile.
            hostile = dict.fromkeys(
                ("from", "to", "sourceBlockchainId", "destinationBlockchainId"), HOSTILE
            )
            missing = [{"nodeIds": [HOSTILE], "weight": "25", "reason": HOSTILE}]
            weights = {"signedWeight": "50", "requiredWeight": "67", "totalWeight": "100"}
            block = {
                "state": "failed",
                "since": 1_700_000_000,
                "retry": {"action": "wait", "text": HOSTILE},
                "signature": {"state": "collecting", **weights, "missing": missing},
            }
            message = json.dumps({**PENDING, **hostile, "warpseal": block})
            await tab.evaluate(f"window.fetch = async () => new Response({json.dumps(message)})")
            space = "\N{NO-BREAK SPACE}"
            assert (await look_up("waiting"))[1:] == [
                ["warn", "signed", f"collecting, 50.0{space}% of 67.0{space}%"],
                ["warn", "received", "not yet"],
                ["bad", "executed", "failed", "2023-11-14T22:13:20.000Z"],
                ["soft", "receipt", "not yet"],
            ]
            assert (await tab.evaluate(f"{LIFE}.textContent")).count(HOSTILE) >= 1
            assert await tab.evaluate(f"{LIFE}.querySelectorAll('script, img').length") == 0
            assert await tab.evaluate("document.documentElement.scrollWidth") <= 360
            # A time that no calendar has.
            message = json.dumps(
                {**PENDING, "sourceTransaction": {"timestamp": 2**62, "txHash": "0x"}}
            )
            await tab.evaluate(f"window.fetch = async () => new Response({json.dumps(message)})")
            assert await look_up("late") == []
            assert "No answer that can be shown" in await tab.evaluate(f"{LIFE}.textContent")
            assert [line for line in tab.log if "status of 4" not in line] == []
