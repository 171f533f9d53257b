"""The table of endpoints: what its rows name exists, and its page tokens are those of the versions
before.
"""

from __future__ import annotations

import re
from inspect import iscoroutinefunction, signature
from typing import Any, get_args

import msgspec
import pytest
from starlette.routing import Match

from tests.api.data import samples as s
from tests.api.data.endpoints_table import PAGE, replace_endpoints_table
from tests.api.data.fixtures import NETWORK, P_BLOCKS, P_TXS, DataApiSetup, client_of, get, indexed
from warpseal.api.data.endpoint_needs import EndpointNeeds
from warpseal.api.data.endpoints import ENDPOINTS, EndpointRow, PageBody, ParameterKind, load
from warpseal.api.data.pages import body_classes
from warpseal.api.data.parameters import KINDS
from warpseal.api.data.request_context import RequestContext
from warpseal.chains.ids import bech32_text
from warpseal.resources.base import Resource
from warpseal.warp.ids import node_id_text

EVERY_ENDPOINT = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)


@EVERY_ENDPOINT
def test_a_row_names_a_handler_a_context_and_bodies_that_exist(endpoint: EndpointRow) -> None:
    assert iscoroutinefunction(load(endpoint.handler))
    if endpoint.context:
        assert issubclass(load(endpoint.context), RequestContext)
    assert all(issubclass(body, msgspec.Struct) for body in body_classes(endpoint))


@EVERY_ENDPOINT
def test_a_handler_takes_the_objects_that_its_row_needs(endpoint: EndpointRow) -> None:
    _, *parameters = signature(load(endpoint.handler)).parameters.values()
    assert tuple(parameter.name for parameter in parameters) == endpoint.needs
    for parameter in parameters:
        assert parameter.annotation == EndpointNeeds.__annotations__[parameter.name]


@EVERY_ENDPOINT
def test_a_list_takes_a_page_token_and_a_page_size(endpoint: EndpointRow) -> None:
    is_list = any(isinstance(body, PageBody) for body in endpoint.bodies)
    names = {parameter.name for parameter in endpoint.parameters}
    assert ({"pageToken", "pageSize"} <= names) == is_list
    if is_list:
        assert all(issubclass(body, Resource) for body in body_classes(endpoint))
        assert endpoint.default_page_size >= 10


def test_the_table_of_the_docs_is_current() -> None:
    page = PAGE.read_text()
    assert page == replace_endpoints_table(page), "run `make docs-table`"


def test_each_kind_of_parameters_has_a_parser() -> None:
    assert set(KINDS) == set(get_args(ParameterKind))


def test_no_two_rows_have_one_operation_id_or_one_method_of_a_path() -> None:
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(endpoint.path, endpoint.method) for endpoint in ENDPOINTS}) == len(ENDPOINTS)


@EVERY_ENDPOINT
def test_the_first_route_that_a_path_matches_has_its_own_template(endpoint: EndpointRow) -> None:
    path = re.sub(r"\{(\w+)\}", "x", endpoint.path)
    scope: dict[str, Any] = {"type": "http", "path": path, "method": endpoint.method}
    app: Any = DataApiSetup().app()
    while not hasattr(app, "routes"):
        app = app.app
    route = next(route for route in app.routes if route.matches(scope)[0] is not Match.NONE)
    assert route.path == endpoint.path
    assert route.matches(scope)[0] is Match.FULL


async def test_a_path_with_two_methods_names_both_and_answers_head_as_get() -> None:
    async with client_of(DataApiSetup()) as client:
        async with client.request("PUT", "/v1/webhooks") as response:
            assert response.status == 405
            assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
        async with client.head(P_BLOCKS) as response:
            assert response.status == 200


# Given out by the last version before the table, with the key of MemoryKeyStore.
OLD_TOKENS = {
    P_TXS: (
        "8wE8MAcdBBPFU-782lJYC5gB2SRsaXN0TGF0ZXN0UHJpbWFyeU5ldHdvcmtUcmFuc2FjdGlvbnPEB3AtY2hhaW6CqWFkZHJlc3Nlc5HEFQ"
        "ABAQEBAQEBAQEBAQEBAQEBAQEBAalzb3J0T3JkZXKjYXNjApEBzmtLI4DA"
    ),
    P_BLOCKS: (
        "sVHC8CjHzjyQXNr-ggZhEZgBvmxpc3RMYXRlc3RQcmltYXJ5TmV0d29ya0Jsb2Nrc8QHcC1jaGFpboACkQPOa0sjgMA"
    ),
    NETWORK + "/rewards": (
        "4WR479xpxckQidK4fb8WZpgB2SNsaXN0SGlzdG9yaWNhbFByaW1hcnlOZXR3b3JrUmV3YXJkc8QAgalhZGRyZXNzZXO"
        "RxBUAAQEBAQEBAQEBAQEBAQEBAQEBAQEBkQHOa0sjgMA"
    ),
    NETWORK + "/validators/" + node_id_text(s.NODE): (
        "xs1tOvX-SzB8Bxoseq5fdZgBuWdldFNpbmdsZVZhbGlkYXRvckRldGFpbHPEFA"
        "oKCgoKCgoKCgoKCgoKCgoKCgoKgAKRA85rSyOAwA"
    ),
}
PARAMETERS: dict[str, dict[str, Any]] = {
    P_TXS: {"addresses": bech32_text("fuji", s.ALICE), "sortOrder": "asc", "pageSize": 2},
    P_BLOCKS: {"pageSize": 2},
    NETWORK + "/rewards": {"addresses": bech32_text("fuji", s.ALICE), "pageSize": 1},
    NETWORK + "/validators/" + node_id_text(s.NODE): {"pageSize": 2},
}


@pytest.mark.parametrize("path", OLD_TOKENS)
async def test_page_tokens_of_the_version_before_are_valid_and_the_same_today(path: str) -> None:
    setup = indexed(
        txs=[s.p_tx(number) for number in range(1, 6)],
        all_blocks=[s.p_block(number) for number in range(1, 6)],
        all_rewards=[s.reward(1), s.reward(2)],
        all_validations=s.VALIDATIONS,
    )
    first = await get(setup, path, **PARAMETERS[path])
    assert first["nextPageToken"] == OLD_TOKENS[path]
    second = await get(setup, path, pageToken=OLD_TOKENS[path])
    assert list(second.values()) != list(first.values())
