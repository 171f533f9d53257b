"""The API explorer of a whole daemon in front of the network that `warpseal simnet` runs by
default.

The document has exactly the routes of the running daemon, its example requests can be sent as they
are, and a browser sends them.
"""

from __future__ import annotations

import argparse
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from tests.api.fixtures import ApiSetup, serving
from tests.api.openapi.sample_requests import DOCUMENT, example_requests, operations
from tests.eventually import until
from tests.forwarding.evm.evm import Node, serve_node
from tests.forwarding.primary.serving import GatewayNode, recorded, serve_nodes
from tests.indexer.evm_chains import recorded_chain
from tests.integration.browser import needs_chromium, open_tab
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.l1_daemon import attested_message, run_l1_network
from tests.integration.message_verifier import verify_signed_message
from warpseal.api.node.app import NodeInterfaces, switch_paths
from warpseal.api.openapi.examples import load_examples
from warpseal.api.routes import metrics_app
from warpseal.daemon import ports
from warpseal.warp.ids import id_text
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal.warp.message import SignedMessage
from warpseal_simnet.main import add_arguments, build_plan
from warpseal_simnet.plan import Plan

# They need an index; tests of the Data API send them to a daemon that has one.
NEED_INDEX = {
    "listLatestPrimaryNetworkTransactions",
    "listLatestPrimaryNetworkBlocks",
    "getChainIdsForAddresses",
    "listHistoricalPrimaryNetworkRewards",
    "listL1Validators",
    *("listErc1155Transactions", "listCollectibleBalances", "listContractDeployments"),
    *("listTokens", "getTokenDetails", "reindexNft"),
    *("getAvgTps", "getNftHoldersByContractAddress", "getAddressesByBalanceOverTime"),
    *("listIcmMessages", "getIcmMessage", "listIcmMessagesByAddress"),
    *("listTeleporterMessages", "getTeleporterMessage", "listTeleporterMessagesByAddress"),
}
# Streams, a WebSocket, a redirect, and the metrics port.
NO_RESPONSE = {"getStatusEvents", "listenEvents", "openEvmSocket", "findMetrics", "getMetrics"}
V1_PATH = "/v1/signatureAggregator/{network}/aggregateSignatures"
TOKEN = "an-admin-token-of-tests"
EXAMPLE_WEBHOOK_ID = load_examples()["removeWebhook"].parameters["webhookId"]
GENESIS = json.loads(recorded_chain("localnet", "c-chain").headers[0])


def simnet_plan(*flags: str) -> Plan:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return build_plan(parser.parse_args(["--messages", "4", *flags]))


def without_names(path: str) -> str:
    """Return a path without the names of its parameters."""
    return re.sub(r"\{\w+\}", "{}", path)


async def test_the_document_has_exactly_the_routes_and_its_requests_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces: list[NodeInterfaces] = []
    apps: list[Starlette] = []

    def switch(ext: Any, others: Any) -> Any:
        interfaces.append(ext)
        apps.append(others)
        return switch_paths(ext, others)

    def metrics(*arguments: Any) -> Starlette:
        apps.append(metrics_app(*arguments))
        return apps[-1]

    monkeypatch.setattr(ports, "switch_paths", switch)
    monkeypatch.setattr(ports, "metrics_app", metrics)
    async with (
        run_network(simnet_plan()) as network,
        serve_node(Node(replies={"eth_getBlockByNumber": GENESIS})) as node,
        serve_nodes(gateway := GatewayNode(network_id=network.state.network_id)),
    ):
        epoch = next(
            row["result"] for row in recorded() if row["method"] == "proposervm.getCurrentEpoch"
        )
        gateway.replies |= {
            "proposervm.getCurrentEpoch": epoch,
            "index.isAccepted": {"isAccepted": True},
        }
        conversion = next(tx for tx in network.p_chain.transactions if tx.attested is not None)
        assert load_examples()["getAggregatedSignatures"].parameters["txHash"] == conversion.text
        c_chain = next(chain for chain in network.state.chains.values() if chain.alias == "C")
        chain = {
            "blockchain-id": id_text(c_chain.chain_id),
            "rpc": [node.url],
            "ws": [f"ws://127.0.0.1:{node.port}/ws"],
        }
        keys = {
            "evm-chains": [chain],
            "gateway-nodes": gateway.url,
            "api-admin-enabled": True,
            "admin-token": TOKEN,
            "health-check-frequency": "1s",
        }
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            await daemon.until_ready()
            router = interfaces[0].router
            await until(
                lambda: any(
                    target.template.endswith("/validators") for target in router._routes.values()
                )
            )
            served = {
                without_names(route.path): route.methods
                for served_app in apps
                for route in served_app.routes
                if isinstance(route, Route)
            }
            templates = {without_names(target.template) for target in router._routes.values()}
            assert {without_names(path) for path in DOCUMENT["paths"]} == served.keys() | templates
            for path, item in DOCUMENT["paths"].items():
                methods = served.get(without_names(path))
                assert (
                    not methods
                    or {method.upper() for method in item if method != "servers"} <= methods
                )
            await until(partial(is_healthy, daemon))
            for path in ("/openapi.json", "/api-json"):
                assert (await daemon.get(path)).body == DOCUMENT
            await assert_requests_can_be_sent(daemon)


async def is_healthy(daemon: Daemon) -> bool:
    return (await daemon.get("/ext/health")).status == 200


async def assert_requests_can_be_sent(daemon: Daemon) -> None:
    """Send every example request; assert that it succeeds with a response as documented."""
    names, headers, webhook_id = set(), {"authorization": f"Bearer {TOKEN}"}, EXAMPLE_WEBHOOK_ID
    for request in sorted(example_requests(), key=lambda request: request.name == "removeWebhook"):
        if request.name in NEED_INDEX | NO_RESPONSE:
            continue
        url = daemon.api_url + request.path.replace(EXAMPLE_WEBHOOK_ID, webhook_id)
        async with daemon.session.request(
            request.method, url, json=request.body, headers=headers
        ) as reply:
            text = await reply.text()
        if request.name == "addWebhook":
            webhook_id = json.loads(text)["id"]
        assert reply.status < 300, (request.name, text)
        content = request.operation["responses"][str(reply.status)].get("content", {})
        assert reply.content_type in content, (request.name, reply.content_type)
        if "schema" in content.get("application/json", {}):
            schema = {**content["application/json"]["schema"], "components": DOCUMENT["components"]}
            jsonschema_rs.validator_for(schema).validate(json.loads(text))
            # No server is behind the URL of the example.
            has_error = request.name == "testWebhook"
            assert ("error" in json.loads(text)) == has_error, (request.name, request.body, text)
        names.add(request.name)
    assert len(names) > 15


@needs_chromium
async def test_a_browser_signs_a_message_in_the_explorer(tmp_path: Path) -> None:
    async with (
        run_network(simnet_plan("--validators", "5")) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
        open_tab() as tab,
    ):
        await daemon.until_ready()
        await tab.load(daemon.api_url + "/docs")
        names = [operation["operationId"] for *_, operation in operations()]
        await tab.until(f"document.querySelectorAll('.opblock').length === {len(names)}")
        shown_names = await tab.evaluate(
            "[...document.querySelectorAll('.opblock')].map((block) => block.id)"
        )
        assert sorted(name.rpartition("-")[2] for name in shown_names) == sorted(names)
        assert shown_names[0].endswith("-aggregateSignatures")
        block = f"document.getElementById('{shown_names[0]}')"
        for button in (".opblock-summary-control", ".try-out__btn", ".execute"):
            await tab.until(f"{block}.querySelector('{button}')")
            await tab.evaluate(f"{block}.querySelector('{button}').click()")
        reply = f"{block}.querySelector('.live-responses-table tbody')"
        await tab.until(f"{reply}?.querySelector('pre')")
        assert (
            await tab.evaluate(f"{reply}.querySelector('.response-col_status').textContent")
        ).startswith("201")
        signed = json.loads(await tab.evaluate(f"{reply}.querySelector('pre').textContent"))[
            "signedMessage"
        ]
        message = SignedMessage.parse(bytes.fromhex(signed)).unsigned
        (source,) = [item for item in network.messages if item.unsigned.raw == message.raw]
        verify_signed_message(network, signed, message.raw, source.signing_subnet_id, 67)
        origins = await tab.evaluate(
            "performance.getEntriesByType('resource').map((item) => new URL(item.name).origin)"
        )
        assert set(origins) == {daemon.api_url}
        assert tab.log == []


@needs_chromium
async def test_a_phone_shows_descriptions_parameters_and_responses_in_all_of_its_width() -> None:
    async with serving(ApiSetup().app()) as server, open_tab() as tab:
        await tab.resize(390, 844, is_phone=True)
        await tab.load(server.url + "/docs")
        await tab.until("document.querySelectorAll('.opblock-tag small').length > 5")

        async def narrowest(selector: str) -> float:
            """Return the least width of the elements."""
            widths = (
                f"[...document.querySelectorAll('{selector}')].map((part) =>"
                " part.getBoundingClientRect().width)"
            )
            return float(min(await tab.evaluate(widths)))

        assert await narrowest(".opblock-tag small") > 300
        await tab.evaluate("document.querySelector('.opblock-summary-control').click()")
        await tab.until("document.querySelector('.opblock .example')")
        for selector in ("td.parameters-col_description", ".opblock .response-col_description"):
            assert await narrowest(selector) > 240, selector
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.log == []


async def test_the_example_of_an_l1_message_brings_its_justification_and_signing_subnet(
    tmp_path: Path,
) -> None:
    async with run_l1_network(tmp_path) as running:
        # Validators sign the removal of an initial validator only with its justification.
        removal = running.network.p_chain.remove(bootstrap_validation_id(running.l1, 2))
        signed = (await running.deliver(removal)).signed
        justification = attested_message(removal).justification.hex()
        document = (await running.daemon.get("/openapi.json")).body
        for path, network in ((V1_PATH, "fuji"), ("/aggregate-signatures", "")):
            operation = document["paths"][path]["post"]
            ((name, example),) = operation["requestBody"]["content"]["application/json"][
                "examples"
            ].items()
            assert name == "a message of this network"
            # The stored signature serves this request; another daemon needs both fields.
            assert example["value"]["signingSubnetId"] == id_text(running.l1)
            assert example["value"]["justification"] == justification
            url = running.daemon.api_url + path.replace("{network}", network)
            async with running.daemon.session.post(url, json=example["value"]) as reply:
                assert reply.status in (200, 201), await reply.text()
                assert signed in await reply.text()
