"""The OpenAPI document: its parameters are the parsed ones, its schemas are used, its examples are
valid.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, cast

import jsonschema_rs
import msgspec
import pytest

from tests.api.fixtures import DESTINATION, KEBAB, MESSAGE, SIGNED, V1, ApiSetup, client_of
from tests.api.openapi.documented_responses import assert_valid
from tests.api.openapi.sample_requests import DOCUMENT, operations
from warpseal.api.data.endpoints import ENDPOINTS
from warpseal.api.data.parameters import read_value, schema_of
from warpseal.api.http import error_bodies
from warpseal.api.http.error_response import kebab_name
from warpseal.api.http.operations import COMPONENT, refer_to
from warpseal.api.node.admin import AdminMethods
from warpseal.api.openapi.examples import load_examples, make_example
from warpseal.api.signing.endpoints import V1_AGGREGATE, V1_L1_MESSAGE
from warpseal.api.signing.request_fields import BODY_FIELDS
from warpseal.api.signing.requests import QUERY_FIELDS, VERIFY_FIELDS
from warpseal.api.status.probe_bodies import HealthDetails, SigningHealth
from warpseal.delivery.request import NextSignedMessage
from warpseal.ops.profiles.profiler import Profiler
from warpseal.resources import base as resources
from warpseal.warp.ids import id_text

SDK_TX_TYPES = """\
AddValidatorTx, AddSubnetValidatorTx, AddDelegatorTx, CreateChainTx, CreateSubnetTx, ImportTx,
ExportTx, AdvanceTimeTx, RewardValidatorTx, RemoveSubnetValidatorTx, TransformSubnetTx,
AddPermissionlessValidatorTx, AddPermissionlessDelegatorTx, BaseTx, TransferSubnetOwnershipTx,
ConvertSubnetToL1Tx, RegisterL1ValidatorTx, SetL1ValidatorWeightTx, DisableL1ValidatorTx,
IncreaseL1ValidatorBalanceTx, UNKNOWN, CreateAssetTx, OperationTx"""


# Operations whose example is made of their schema.
MADE_EXAMPLES: tuple[str, ...] = ("listL1Validators",)


def check_schema(schema: dict[str, Any], value: object) -> None:
    """Assert that a value is valid."""
    components = {"components": DOCUMENT["components"]}
    jsonschema_rs.validator_for({**schema, **components}).validate(value)


def json_schema_of(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a body that is a JSON value; None of a document or of a text."""
    schema: dict[str, Any] | None = content.get("application/json", {}).get("schema")
    return schema


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
    if isinstance(schema, dict):
        yield schema
    for part in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        yield from parts_of(part)


def test_every_array_has_items_every_value_a_type_and_no_null_stands_for_absence() -> None:
    for schema in parts_of(DOCUMENT["components"]["schemas"]):
        assert schema.get("type") != "array" or "items" in schema, schema
        assert not any(isinstance(value, bool) for value in schema.get("enum", ())), schema
        assert schema.get("default", "") is not None, schema


def test_documented_parameters_are_the_parsed_ones() -> None:
    for operation in ENDPOINTS:
        # The parameters of an administrator's POST are the fields of its body.
        if operation.admission == "admin":
            continue
        body = DOCUMENT["paths"][operation.path][operation.method.lower()]["parameters"]
        assert [item["name"] for item in body if item["in"] == "query"] == [
            entry.name for entry in operation.parameters
        ]
        assert [element["name"] for element in body if element["in"] == "path"] == re.findall(
            r"\{(\w+)\}", operation.path
        )
        for parameter in operation.parameters:
            schema = schema_of(parameter)
            for value in (*schema.get("enum", ()), *schema.get("items", {}).get("enum", ())):
                assert read_value(parameter, value) in (value, (value,))
            for value in (schema.get("minimum"), schema.get("maximum"), schema.get("default")):
                assert value is None or read_value(parameter, str(value)) == value


def test_documented_aggregation_bodies_are_the_parsed_ones() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for name, fields in (
        ("AggregateSignaturesRequest", BODY_FIELDS),
        ("VerifyRequest", VERIFY_FIELDS),
    ):
        assert set(schemas[name]["properties"]) == {
            field.name for field in fields.spellings.values()
        }
    path = DOCUMENT["paths"][V1_L1_MESSAGE.replace("tx_hash", "txHash")]["get"]
    parameters = {item["name"] for item in path["parameters"] if item["in"] == "query"}
    assert parameters == {field.name for field in QUERY_FIELDS.spellings.values()}


def test_every_reference_resolves_and_every_schema_is_used() -> None:
    text = json.dumps(DOCUMENT)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names == set(DOCUMENT["components"]["schemas"])


def test_operation_ids_are_unique_and_those_of_the_hosted_service() -> None:
    body = [operation["operationId"] for *_, operation in operations()]
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
        "listL1Validators",
        *("getChainInfo", "getBlock", "listErc1155Transactions", "listCollectibleBalances"),
        *("listContractDeployments", "listTokens", "reindexNft"),
        *("listIcmMessages", "getIcmMessage", "listIcmMessagesByAddress"),
        *("listTeleporterMessages", "getTeleporterMessage", "listTeleporterMessagesByAddress"),
        *("getAvgTps", "getAddressesByBalanceOverTime", "getNftHoldersByContractAddress"),
    } <= set(body)


def test_compute_units_are_those_of_the_hosted_service() -> None:
    assert [endpoint.units for endpoint in ENDPOINTS] == [
        *(100, 20, 20, 100, 100, 20),
        # The validators of L1s.
        20,
        # The forecast, which the hosted service does not have.
        100,
        *(1, 1, 10, 20, 20, 20, 20, 20, 10),
        *(100, 10, 100),
        *(100, 10, 100),
        200,
        *(20, 1000, 500),
        # The event log and the administrator's, which the hosted service does not have.
        *(10, 10, 10, 10, 10),
        *(10, 10, 10),
    ]


def test_types_of_transactions_are_the_closed_list_of_the_sdks() -> None:
    assert [kind.value for kind in resources.PrimaryNetworkTxType] == re.split(
        r",\s+", SDK_TX_TYPES
    )
    assert set(resources.PrimaryNetworkTxType) - resources.P_CHAIN_TX_TYPES == {
        "CreateAssetTx",
        "OperationTx",
    }
    assert resources.tx_type("OperationTx") == "UNKNOWN"
    assert resources.tx_type("ImportTx", resources.C_CHAIN_TX_TYPES) == "ImportTx"


def shapes() -> list[type[resources.Resource]]:
    kinds: list[type[resources.Resource]] = []
    pending = [resources.Resource]
    while pending:
        for kind in pending.pop().__subclasses__():
            kinds.append(kind)
            pending.append(kind)
    return kinds


NULLABLE = {
    *("airdropAmount", "baseFeePerGas", "blobGasUsed", "excessBlobGas", "geolocation"),
    *("Explanation.failing", "ExplainedCheck.ok", "ExplainedJustification.hex", "JsonRpcReply.id"),
    *("PreflightHeight.verifies", "PreflightStatement.accepted", "PreflightCall.succeeded"),
}


@pytest.mark.parametrize("kind", shapes(), ids=lambda kind: kind.__name__)
def test_only_known_fields_may_ever_be_null_and_names_are_camel_case(
    kind: type[resources.Resource],
) -> None:
    assert inspect.getdoc(kind)
    for field in msgspec.structs.fields(kind):
        kinds = msgspec.inspect.type_info(field.type)
        options = kinds.types if isinstance(kinds, msgspec.inspect.UnionType) else (kinds,)
        may_be_null = any(isinstance(option, msgspec.inspect.NoneType) for option in options)
        names = {field.encode_name, f"{kind.__name__}.{field.encode_name}"}
        assert may_be_null == (not names.isdisjoint(NULLABLE)), names
        is_reference = kind in (SigningHealth, HealthDetails)
        assert re.fullmatch(r"[a-z-]+" if is_reference else r"[a-z][A-Za-z0-9]*", field.encode_name)
    assert error_bodies.Error in shapes()


def test_schemas_of_the_reference_dialect_are_the_others_in_kebab_case() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    twins = {name: schema for name, schema in schemas.items() if name.startswith("Kebab")}
    assert {
        "KebabSignedMessage",
        "KebabDestinationReport",
        "KebabNextSignedMessage",
        "KebabErrorDetail",
    } <= set(twins)
    for name, schema in twins.items():
        assert all(
            re.fullmatch("[a-z-]+", key) for key in (*schema["properties"], *schema["required"])
        ), name
        twin = schemas.get(name.removeprefix("Kebab"))
        if twin is not None and name != "KebabError":
            assert [kebab_name(key) for key in twin["properties"]] == list(schema["properties"])
        refs = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
        assert all(ref.startswith("Kebab") or "enum" in schemas[ref] for ref in refs), refs


def test_every_object_has_a_schema_except_external_ones() -> None:
    untyped = set(untyped_parts(DOCUMENT["components"]["schemas"], ""))
    # JSON-RPC calls are those of nodes; a health check says what it likes.
    assert untyped == {
        "/CheckResult/properties/message",
        "/JsonRpcCall/properties/params/anyOf/0",
        "/JsonRpcCall/properties/params/anyOf/1",
        "/JsonRpcFailure/properties/data",
        "/JsonRpcReply/properties/result",
    }


def untyped_parts(part: Any, path: str) -> Iterator[str]:
    """Yield the places of schemas that every value, every object or every list satisfies."""
    if isinstance(part, list):
        for place, item in enumerate(part):
            yield from untyped_parts(item, f"{path}/{place}")
    if not isinstance(part, dict):
        return
    is_open = part.get("type") == "object" and not part.keys() & {
        "properties",
        "additionalProperties",
    }
    is_any = path.rpartition("/")[0].endswith("/properties") and not part.keys() & {
        "type",
        "$ref",
        "anyOf",
        "enum",
    }
    if (
        is_open
        or is_any
        or (part.get("type") == "array" and not (part.get("items") or "prefixItems" in part))
    ):
        yield path
    for key, value in part.items():
        yield from untyped_parts(value, f"{path}/{key}")


@pytest.mark.parametrize(
    ("method", "path", "documented"),
    [
        ("POST", V1, V1_AGGREGATE),
        ("POST", KEBAB, KEBAB),
        ("PUT", KEBAB, KEBAB),
        ("GET", f"{V1}/{id_text(bytes(32))}", V1_L1_MESSAGE.replace("tx_hash", "txHash")),
    ],
)
@pytest.mark.parametrize(
    "following",
    [
        NextSignedMessage(predicted=True, p_chain_height="19", signed_message=SIGNED.hex()),
        NextSignedMessage(predicted=True, p_chain_height="19", error="quorum_not_reached"),
    ],
)
async def test_a_report_and_a_next_message_have_the_documented_names(
    method: str, path: str, documented: str, following: NextSignedMessage
) -> None:
    setup = ApiSetup()
    setup.deliveries.next = following
    fields = {"destinationBlockchainId": id_text(DESTINATION), "report": "true"}
    arguments: dict[str, Any] = (
        {"params": fields}
        if method == "GET"
        else {"json": {"message": MESSAGE.raw.hex(), **fields}}
    )
    async with client_of(setup) as client, client.request(method, path, **arguments) as response:
        reply = await response.json()
    described = DOCUMENT["paths"][documented][method.lower()]["responses"][str(response.status)]
    schema = json_schema_of(described["content"])
    assert schema is not None
    assert_valid(schema, reply)
    properties = properties_of(schema)
    assert reply.keys() == properties.keys() - {"superseded"}
    assert reply["next"].keys() < properties_of(properties["next"]).keys()


def properties_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a component."""
    properties: dict[str, Any] = DOCUMENT["components"]["schemas"][
        schema["$ref"].rpartition("/")[2]
    ]["properties"]
    return properties


@pytest.mark.parametrize(
    "operation", [item for *_, item in operations()], ids=lambda item: item["operationId"]
)
def test_every_operation_has_a_request_that_can_be_sent_and_a_valid_response(
    operation: dict[str, Any],
) -> None:
    for parameter in operation["parameters"]:
        assert "example" in parameter or not parameter.get("required"), parameter["name"]
        if "example" in parameter:
            check_schema(parameter["schema"], parameter["example"])
    if "requestBody" in operation:
        ((_, body),) = operation["requestBody"]["content"].items()
        assert body["examples"]
        for example in body["examples"].values():
            check_schema(body["schema"], example["value"])
    statuses = [status for status in operation["responses"] if status.startswith("2")]
    schemas = {
        status: json_schema_of(operation["responses"][status].get("content", {}))
        for status in statuses
    }
    responses = [
        (schema, operation["responses"][status]["content"]["application/json"]["example"])
        for status, schema in schemas.items()
        if schema is not None
        and "example" in operation["responses"][status]["content"]["application/json"]
    ]
    assert len(responses) == any(schemas.values())
    for schema, response in responses:
        check_schema(schema, response)


def test_every_example_belongs_to_an_operation() -> None:
    operation_ids = [operation["operationId"] for *_, operation in operations()]
    assert sorted((*load_examples(), *MADE_EXAMPLES)) == sorted(operation_ids)


class Colour(StrEnum):
    RED = "red"


class Part(resources.Resource, frozen=True, gc=False, kw_only=True):
    """A part."""

    weight: Annotated[int, msgspec.Meta(examples=[7, 8])]
    colour: Colour
    note: str | resources.UnsetType = resources.UNSET


class Whole(resources.Resource, frozen=True, gc=False, kw_only=True):
    """A whole."""

    parts: tuple[Part, ...]


def test_an_example_is_made_of_the_schema_of_an_operation_without_a_recorded_one() -> None:
    _, schemas = msgspec.json.schema_components([Whole], ref_template=COMPONENT)
    operation = {
        "parameters": [{"name": "network", "in": "path"}, {"name": "pageSize", "in": "query"}],
        "responses": {"200": {"content": {"application/json": {"schema": refer_to(Whole)}}}},
    }
    example = make_example(operation, load_examples(), schemas)
    assert example.parameters == {"network": "fuji"}
    assert example.response == {"parts": [{"weight": 7, "colour": "red"}]}


def test_the_examples_of_administration_are_all_its_methods() -> None:
    nothing, profiler = cast(Any, None), cast(Profiler, Profiler)
    methods = AdminMethods(nothing, nothing, nothing, nothing, profiler).methods()
    bodies = load_examples()["callAdmin"].bodies
    assert sorted(body["method"] for body in bodies.values()) == sorted(
        f"admin.{name}" for name in methods
    )


def test_signing_comes_first() -> None:
    assert DOCUMENT["tags"][0]["name"] == "Signature Aggregator"
    assert next(operations())[2]["operationId"] == "aggregateSignatures"
