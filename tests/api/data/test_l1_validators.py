"""The list of L1 validators over HTTP, in front of the index of the recorded network."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.api.data import samples as s
from tests.api.data.fixtures import NETWORK, DataApiSetup, client_of, get
from tests.api.data.memory_index import MemoryIndex
from tests.api.openapi.documented_responses import assert_documented
from tests.index.fixtures import recorded_history, write_all
from tests.ledger.recorded import params
from warpseal.api.data.endpoints import find_endpoint
from warpseal.api.data.pages import page_class
from warpseal.resources.chains import PrimaryChain
from warpseal.store.errors import StoreDown
from warpseal.warp.ids import parse_id

PATH = NETWORK + "/l1Validators"
ALL: dict[str, Any] = {"includeInactiveL1Validators": "true"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of an index of the recorded network, in which three of five validators pay."""
    place = f"sqlite:///{tmp_path_factory.mktemp('l1')}/index.db"
    write_all(place, params(), recorded_history())
    return place


def setup_of(url: str, **parts: Any) -> DataApiSetup:
    return DataApiSetup(index=MemoryIndex(chains=list(s.FRESH), url=url, **parts))


async def test_only_active_validators_are_listed_unless_all_are_wanted(url: str) -> None:
    active, everything = await get(setup_of(url), PATH), await get(setup_of(url), PATH, **ALL)
    assert_documented("GET", PATH, 200, everything)
    assert active["validators"] == [
        item for item in everything["validators"] if item["remainingBalance"]
    ]
    assert (len(active["validators"]), len(everything["validators"])) == (3, 5)
    assert [
        item["weight"] for item in everything["validators"] if not item["remainingBalance"]
    ] == [0, 49_463]
    assert active["blockHeight"] == everything["blockHeight"] == "19"
    assert list(active) == ["validators", "blockHeight"]
    page: Any = msgspec.convert(everything, page_class(find_endpoint("listL1Validators").page))
    assert msgspec.json.decode(msgspec.json.encode(page)) == everything


async def test_pages_continue_by_the_token_alone_and_filters_may_not_change(url: str) -> None:
    everything = (await get(setup_of(url), PATH, **ALL))["validators"]
    async with client_of(setup_of(url)) as client:
        listed: list[Any] = []
        query: dict[str, Any] = {**ALL, "pageSize": 2}
        while True:
            async with client.get(PATH, params=query) as response:
                page = await response.json()
            listed += page["validators"]
            assert len(page["validators"]) <= 2
            if "nextPageToken" not in page:
                break
            query = {"pageToken": page["nextPageToken"]}
            async with client.get(
                PATH, params={**query, "includeInactiveL1Validators": "false"}
            ) as response:
                assert (await response.json())["code"] == "page_token_mismatch"
    assert listed == everything


@pytest.mark.parametrize("spelling", ["validationId", "validationIdHex"])
async def test_filters_take_ids_of_both_spellings_and_name_what_is_malformed(
    url: str, spelling: str
) -> None:
    setup = setup_of(url)
    everything = (await get(setup, PATH, **ALL))["validators"]
    one = everything[0]
    assert parse_id(one["validationIdHex"].removeprefix("0x")) == parse_id(one["validationId"])
    assert (await get(setup, PATH, **ALL, l1ValidationId=one[spelling]))["validators"] == [one]
    of_subnet = [item for item in everything if item["subnetId"] == one["subnetId"]]
    assert (await get(setup, PATH, **ALL, subnetId=one["subnetId"]))["validators"] == of_subnet
    of_node = [item for item in everything if item["nodeId"] == one["nodeId"]]
    assert (await get(setup, PATH, **ALL, nodeId=one["nodeId"]))["validators"] == of_node
    malformed: list[dict[str, Any]] = [
        {"l1ValidationId": "x"},
        {"nodeId": one["subnetId"]},
        {"subnetId": "NodeID-x"},
    ]
    for query in malformed:
        assert (await get(setup, PATH, 400, **query))["detail"]["field"] in query
    assert (await get(setup, PATH, 400, includeInactiveL1Validators="yes"))[
        "code"
    ] == "invalid_request"


async def test_the_list_needs_an_index_of_the_p_chain(url: str) -> None:
    assert (await get(DataApiSetup(index=None), PATH, 404))["code"] == "index_not_enabled"
    without_p = MemoryIndex(
        chains=[chain for chain in s.FRESH if chain.chain != PrimaryChain.P], url=url
    )
    assert (await get(DataApiSetup(index=without_p), PATH, 404))["code"] == "index_not_enabled"
    assert (await get(setup_of(url, error=StoreDown("disk full")), PATH, 503))[
        "code"
    ] == "store_down"
    async with client_of(setup_of(url)) as client, client.get(PATH) as response:
        assert response.headers["x-warpseal-index"].startswith("p-chain;")
