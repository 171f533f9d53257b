"""The OpenAPI document describes exactly the endpoints that are served."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from tests.api.data.world import World, client_of
from tests.api.world import World as DaemonWorld
from warpseal.api import routes
from warpseal.api.aggregator.l1_request import QUERY_FIELDS
from warpseal.api.aggregator.request_fields import BODY_FIELDS
from warpseal.api.data import bodies
from warpseal.api.data.bodies import AggregateSignaturesRequest
from warpseal.api.data.openapi import document
from warpseal.api.data.operations import OPERATIONS
from warpseal.api.data.routes import DOCS_PATH, OPENAPI_PATH, DataApi
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate
from warpseal.history import resources

DOCUMENT = document()
SDK_TX_TYPES = """AddValidatorTx, AddSubnetValidatorTx, AddDelegatorTx, CreateChainTx, CreateSubnetTx, ImportTx,
ExportTx,
AdvanceTimeTx, RewardValidatorTx, RemoveSubnetValidatorTx, TransformSubnetTx, AddPermissionlessValidatorTx,
AddPermissionlessDelegatorTx, BaseTx, TransferSubnetOwnershipTx, ConvertSubnetToL1Tx, RegisterL1ValidatorTx,
SetL1ValidatorWeightTx, DisableL1ValidatorTx, IncreaseL1ValidatorBalanceTx, UNKNOWN, CreateAssetTx, OperationTx"""


PAGE_PATHS = ("/", "/status/events", "/status/metrics")


def shown(path: str) -> str:
    """A path without the names of what stands in it."""
    return re.sub(r"\{\w+\}", "{}", path)


def served_routes() -> list[Route]:
    app: Any = DaemonWorld().app()
    mounted = [route for route in app.routes if isinstance(route, Route)]
    own = DataApi(StartupGate[DataServices](), ApiSettings(), DataApiSettings()).routes()
    return list({route.path: route for route in (*mounted, *own)}.values())


def test_the_document_has_exactly_the_routes() -> None:
    served = {shown(route.path) for route in served_routes()} - {OPENAPI_PATH, DOCS_PATH, *PAGE_PATHS}
    assert {shown(path) for path in DOCUMENT["paths"]} == served


def test_every_documented_method_is_served() -> None:
    methods = {shown(route.path): route.methods for route in served_routes()}
    for path, operations in DOCUMENT["paths"].items():
        for method in operations:
            allowed = methods[shown(path)]
            assert not allowed or method.upper() in allowed


def test_documented_parameters_are_the_parsed_ones() -> None:
    for operation in OPERATIONS:
        body = DOCUMENT["paths"][operation.path]["get"]["parameters"]
        assert [item["name"] for item in body if item["in"] == "query"] == [
            entry.name for entry in operation.parameters
        ]
        assert [element["name"] for element in body if element["in"] == "path"] == re.findall(
            r"\{(\w+)\}", operation.path
        )
        for parameter in operation.parameters:
            for value in (*parameter.schema.get("enum", ()), *parameter.schema.get("items", {}).get("enum", ())):
                assert parameter.read(parameter.name, value) in (value, (value,))
            for value in (
                parameter.schema.get("minimum"),
                parameter.schema.get("maximum"),
                parameter.schema.get("default"),
            ):
                assert value is None or parameter.read(parameter.name, str(value)) == value


def test_documented_aggregation_bodies_are_the_parsed_ones() -> None:
    body = {field.encode_name for field in msgspec.structs.fields(AggregateSignaturesRequest)}
    assert body == set(BODY_FIELDS.spellings.values())
    path = DOCUMENT["paths"][routes.V1_L1_MESSAGE.replace("tx_hash", "txHash")]["get"]
    assert {item["name"] for item in path["parameters"] if item["in"] == "query"} == set(
        QUERY_FIELDS.spellings.values()
    )


def test_every_reference_resolves_and_every_schema_is_used() -> None:
    text = json.dumps(DOCUMENT)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names == set(DOCUMENT["components"]["schemas"])


def test_operation_ids_are_unique_and_those_of_the_hosted_service() -> None:
    body = [method["operationId"] for methods in DOCUMENT["paths"].values() for method in methods.values()]
    assert len(set(body)) == len(body)
    assert {
        "aggregateSignatures",
        "getAggregatedSignatures",
        "listLatestPrimaryNetworkTransactions",
        "listLatestPrimaryNetworkBlocks",
        "getBlockchainById",
        "getChainIdsForAddresses",
        "listHistoricalPrimaryNetworkRewards",
        "getSingleValidatorDetails",
    } <= set(body)


def test_compute_units_are_those_of_the_hosted_service() -> None:
    assert [operation.units for operation in OPERATIONS] == [100, 20, 20, 100, 100, 20]


def test_types_of_transactions_are_the_closed_list_of_the_sdks() -> None:
    assert [kind.value for kind in resources.PrimaryNetworkTxType] == re.split(r",\s+", SDK_TX_TYPES)
    assert set(resources.PrimaryNetworkTxType) - resources.P_CHAIN_TX_TYPES == {"CreateAssetTx", "OperationTx"}
    assert resources.tx_type("OperationTx") == "UNKNOWN"
    assert resources.tx_type("ImportTx", resources.C_CHAIN_TX_TYPES) == "ImportTx"


def shapes() -> list[type[resources.Resource]]:
    found: list[type[resources.Resource]] = []
    pending = [resources.Resource]
    while pending:
        for kind in pending.pop().__subclasses__():
            found.append(kind)
            pending.append(kind)
    return found


NULLABLE = {"airdropAmount", "baseFeePerGas", "blobGasUsed", "excessBlobGas", "geolocation"}


@pytest.mark.parametrize("kind", shapes(), ids=lambda kind: kind.__name__)
def test_only_five_fields_may_ever_be_null_and_names_are_camel_case(kind: type[resources.Resource]) -> None:
    assert inspect.getdoc(kind)
    for field in msgspec.structs.fields(kind):
        kinds = msgspec.inspect.type_info(field.type)
        options = kinds.types if isinstance(kinds, msgspec.inspect.UnionType) else (kinds,)
        may_be_null = any(isinstance(option, msgspec.inspect.NoneType) for option in options)
        assert may_be_null == (field.encode_name in NULLABLE), field.encode_name
        if kind is not bodies.KebabSignedMessage:
            assert re.fullmatch(r"[a-z][A-Za-z0-9]*", field.encode_name)
    assert bodies.Error in shapes()


async def test_the_document_is_served_and_revalidated() -> None:
    async with client_of(World(is_open=False)) as client:
        async with client.get(OPENAPI_PATH) as answer:
            assert answer.content_type == "application/json"
            body = await answer.json()
            tag = answer.headers["etag"]
        async with client.get(OPENAPI_PATH, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
    assert body == json.loads(msgspec.json.encode(DOCUMENT))
    assert body["openapi"] == "3.1.0"


async def test_the_docs_page_has_every_operation_and_loads_nothing() -> None:
    async with client_of(World()) as client, client.get(DOCS_PATH) as answer:
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        page = await answer.text()
    for methods in DOCUMENT["paths"].values():
        for method in methods.values():
            assert f"<section id='{method['operationId']}'>" in page
    assert set(re.findall(r"(?:href|src)='([^'#][^']*)'", page)) == {"/openapi.json"}
    links = set(re.findall(r"href='#([^']*)'", page))
    assert links <= set(re.findall(r"id='([^']*)'", page))
    assert not re.search(r"https?://|<script|<img|@import|url\(", page)
