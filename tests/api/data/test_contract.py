"""schemathesis checks responses against the OpenAPI document with generated requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.api.data import evm_history as h
from tests.api.data import samples as s
from tests.api.data.fixtures import DataApiSetup, indexed
from tests.api.data.metrics_fixtures import file_urls, metrics_database
from tests.api.data.test_icm import history_of, icm_setup, write_chains
from tests.api.fixtures import serving
from tests.index.evm.icm_histories import ABSENT, PEOPLE, A, B
from warpseal.api.data import evm_context
from warpseal.api.data.endpoints import ENDPOINTS, EVENT_LOG, EVM, ICM, METRICS_API
from warpseal.api.data.settings import Compat
from warpseal.api.http.operations import SIGNING
from warpseal.api.openapi.document import document
from warpseal.chains.ids import bech32_text
from warpseal.resources.text import hex_text
from warpseal.upstream.endpoint import EvmIndexing
from warpseal.warp.ids import id_text, node_id_text

load_all_checks()

EVERYTHING = indexed(
    txs=[s.p_tx(1), s.FULL_P, s.LINEAR_X, s.OLD_X, s.EXPORT, s.IMPORT],
    all_blocks=[s.p_block(1), s.FULL_BLOCK],
    blockchains=[s.EVM_CHAIN, s.OTHER_CHAIN],
    all_rewards=[s.reward(1), s.reward(2)],
    all_validations=s.VALIDATIONS,
).with_settings(rate_limit_per_minute=0, rate_limit_per_day=0)
SETUPS: Final = {
    "indexed": EVERYTHING,
    "sdk": EVERYTHING.with_data(compat=Compat.SDK),
    "node only": DataApiSetup(index=None).with_settings(
        rate_limit_per_minute=0, rate_limit_per_day=0
    ),
}
# No text is likely to be an id or an address by chance; these make most requests go all the way.
CHAINS = [
    "p-chain",
    "x-chain",
    "c-chain",
    *(id_text(item.chain_id) for item in (s.EVM_CHAIN, s.OTHER_CHAIN)),
]
NEED_ADDRESSES = ("getChainIdsForAddresses", "listHistoricalPrimaryNetworkRewards")
OF_EVM = [item for item in ENDPOINTS if item.tag in (EVM, METRICS_API)]
OF_ICM = [item for item in ENDPOINTS if item.tag == ICM]
PRIMARY = [
    item for item in ENDPOINTS if item.tag not in (EVM, METRICS_API, ICM, EVENT_LOG, SIGNING)
]
ICM_HISTORY: Final = history_of(41)
ICM_CHAINS = [id_text(chain_id) for chain_id in (A, B, ABSENT)]
ICM_ACCOUNTS = [h.text(address) for address in PEOPLE]
MOSTLY = st.sampled_from([True] * 9 + [False])
IN_PATH: dict[str, list[str]] = {
    "network": ["fuji", "testnet"],
    "blockchainId": CHAINS,
    "nodeId": [node_id_text(s.NODE), node_id_text(s.OTHER_NODE)],
    "chainId": [str(h.CHAIN.evm_chain_id), id_text(h.CHAIN.blockchain_id)],
    "blockId": ["0", "3", "99", h.CHAIN.hashes[3], "0x" + "00" * 32],
    "address": [h.text(address) for address in (h.ALICE, h.BOB, h.CATS, h.ITEMS, h.DOGS)],
    "tokenId": ["1", "2", "3", "4", "99"],
}
ICM_IN_PATH: dict[str, list[str]] = {
    "address": ICM_ACCOUNTS,
    "messageId": [
        hex_text(id_)
        for chain in ICM_HISTORY.chains.values()
        for id_ in (*chain.outgoing, *chain.incoming)
    ],
}
IN_QUERY: dict[str, list[str]] = {
    "addresses": [
        bech32_text("fuji", s.ALICE),
        "P-" + bech32_text("fuji", s.BOB),
        "0x" + s.ACCOUNT.hex(),
    ],
    "nodeIds": [node_id_text(s.NODE)],
    "l1ValidationId": [id_text(s.VALIDATION)],
    "contractAddress": [h.text(h.CATS), h.text(h.ITEMS)],
    "startBlock": ["1"],
    "endBlock": ["9"],
    "threshold": ["0", "1000000000000000000"],
    **dict.fromkeys(("blockchainId", "sourceBlockchainId", "destinationBlockchainId"), ICM_CHAINS),
    **dict.fromkeys(("from", "to"), ICM_ACCOUNTS),
}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("operation", PRIMARY, ids=lambda item: item.name)
def test_responses_match_the_openapi_document(operation: Any, setup: str) -> None:
    app = SETUPS[setup].app()
    schema = schemathesis.openapi.from_dict(document())
    schema.app = app
    strategy = schema[operation.path]["GET"].as_strategy()

    @settings(
        max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(strategy, st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        _make_likely(case.path_parameters, IN_PATH, data)
        if data.draw(st.booleans()):
            needed = {"addresses": ""} if operation.name in NEED_ADDRESSES else {}
            case.query = {**needed, **(case.query or {})}
            case.query.pop("pageToken", None)
            _make_likely(case.query, IN_QUERY, data)
        case.call_and_validate(app=app, excluded_checks=[positive_data_acceptance])

    ask()


@contextmanager
def serving_in_thread(opened: AbstractAsyncContextManager[DataApiSetup]) -> Iterator[str]:
    """Serve an API in a thread, and yield its URL: nodes belong to an event loop."""
    served: Future[str] = Future()
    stopped: Future[None] = Future()

    async def serve() -> None:
        async with opened as setup:
            setup = setup.with_settings(rate_limit_per_minute=0, rate_limit_per_day=0)
            async with serving(setup.app(), setup.settings) as server:
                served.set_result(server.url)
                await asyncio.wrap_future(stopped)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield served.result()
    finally:
        stopped.set_result(None)
        thread.join()


@asynccontextmanager
async def evm_setup(folder: Path) -> AsyncIterator[DataApiSetup]:
    """Yield an API in front of an indexed EVM chain and a metrics database."""
    async with (
        h.indexed_setup(folder, indexing=EvmIndexing(has_holders=True)) as setup,
        metrics_database(file_urls(folder)[1]) as metrics,
    ):
        yield replace(setup, metrics=metrics)


@pytest.fixture(scope="module")
def evm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an API in front of an indexed EVM chain."""
    folder = tmp_path_factory.mktemp("evm")
    # An open index counts as a running indexer.
    with pytest.MonkeyPatch.context() as patch, h.open_writer(folder, has_holders=True) as writer:
        h.write_history(writer)
        patch.setattr(evm_context, "WAIT_S", 0.01)
        with serving_in_thread(evm_setup(folder)) as url:
            yield url


@pytest.fixture(scope="module")
def icm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an API in front of the indexes of two chains with ICM messages."""
    folder = tmp_path_factory.mktemp("icm")
    write_chains(folder, {chain_id: chain.blocks for chain_id, chain in ICM_HISTORY.chains.items()})
    with serving_in_thread(icm_setup(folder)) as url:
        yield url


@pytest.mark.parametrize("operation", OF_EVM, ids=lambda item: item.name)
def test_responses_about_evm_chains_match_the_openapi_document(
    operation: Any, evm_url: str
) -> None:
    statuses = {response.status_code for response in _responses(operation, evm_url, IN_PATH)}
    assert statuses & {200, 201}


@pytest.mark.parametrize("operation", OF_ICM, ids=lambda item: item.name)
def test_responses_about_icm_messages_match_the_openapi_document(
    operation: Any, icm_url: str
) -> None:
    bodies = [
        response.json()
        for response in _responses(operation, icm_url, ICM_IN_PATH)
        if response.status_code == 200
    ]
    assert any("messageId" in body or body["messages"] for body in bodies)


def _responses(operation: Any, url: str, in_path: dict[str, list[str]]) -> list[Any]:
    """Return responses to generated requests, which match the document."""
    schema = schemathesis.openapi.from_dict(document())
    responses: list[Any] = []

    @settings(
        max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(schema[operation.path][operation.method].as_strategy(), st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        _make_likely(case.path_parameters, in_path, data)
        if case.query:
            for name in ("pageToken", "startKey"):
                case.query.pop(name, None)
            _make_likely(case.query, IN_QUERY, data)
        responses.append(
            case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance])
        )

    ask()
    return responses


def _make_likely(
    given_values: dict[str, Any], likely: dict[str, list[str]], data: st.DataObject
) -> None:
    for name in given_values.keys() & likely.keys():
        if data.draw(MOSTLY):
            given_values[name] = data.draw(st.sampled_from(likely[name]))
