"""The examples of the OpenAPI document: for each operation a request to send as it is, and a
recorded response.

The stored requests fit the network that `warpseal simnet` runs by default. Those about signing are
adapted to the network of the daemon, and to a message that it can sign. Responses were recorded
from a small network; an operation without a recorded response has an example that is made of its
schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from warpseal.api.signing.endpoints import RunningNetwork
from warpseal.resources.chains import PUBLIC_CHAINS
from warpseal.warp.ids import id_text
from warpseal.warp.message import Hash, SignedMessage, UnsignedMessage


class OperationExample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The example of one operation.

    parameters: The values of parameters by name.
    bodies: The bodies of requests by a description.
    response: The body of the response, JSON or text.
    """

    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    bodies: Mapping[str, Any] = msgspec.field(default_factory=dict)
    response: Any = msgspec.UNSET


@cache
def load_examples() -> Mapping[str, OperationExample]:
    """Return the examples by operation id."""
    text = (files(__package__) / "examples.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, OperationExample])


def examples_of(network: RunningNetwork) -> Mapping[str, OperationExample]:
    """Return the examples for a network, with a message of the network."""
    examples = {
        operation: _with_name(example, network.name)
        for operation, example in load_examples().items()
    }
    signed, chains, fields = network.signed, PUBLIC_CHAINS.get(network.network_id), dict[str, Any]()
    if signed is not None:
        signed_hex = signed.signed_message.hex()
        message = SignedMessage.parse(signed.signed_message).unsigned.raw
        if signed.justification:
            fields["justification"] = signed.justification.hex()
        if signed.signing_subnet_id is not None:
            fields["signingSubnetId"] = id_text(signed.signing_subnet_id)
        body = {"signedMessage": signed_hex, "destinationBlockchainId": "C"}
        verify = examples["verifySignedMessage"]
        examples["verifySignedMessage"] = msgspec.structs.replace(
            verify, bodies={"a message at the C-Chain": body}
        )
    elif chains is not None:
        message = UnsignedMessage.build(
            network.network_id, chains.c, Hash(_C_CHAIN_GENESIS).encode()
        ).raw
    else:
        return examples
    for operation in _SIGNING_OPERATIONS:
        example = examples[operation]
        response = (
            example.response if signed is None else dict.fromkeys(example.response, signed_hex)
        )
        bodies = {
            "a message of this network": {
                "message": message.hex(),
                **fields,
                "quorumPercentage": 67,
            }
        }
        examples[operation] = msgspec.structs.replace(example, bodies=bodies, response=response)
    return examples


_SIGNING_OPERATIONS: Final = (
    "aggregateSignatures",
    "aggregateSignaturesAsReference",
    "putSignaturesAsReference",
)
# The hash of the C-Chain's genesis block on mainnet and on Fuji (avalanchego `graft/coreth`). All
# validators of the chain sign that they have accepted it.
_C_CHAIN_GENESIS: Final = bytes.fromhex(
    "31ced5b9beb7f8782b014660da0cb18cc409f121f408186886e1ca3e8eeca96b"
)


def _with_name(example: OperationExample, name: str) -> OperationExample:
    if "network" not in example.parameters:
        return example
    return msgspec.structs.replace(example, parameters={**example.parameters, "network": name})


def make_example(
    operation: Mapping[str, Any],
    recorded: Mapping[str, OperationExample],
    schemas: Mapping[str, Any],
) -> OperationExample:
    """Return the example of an operation without a recorded one: its fields have the examples of
    their schemas.

    recorded: the other examples, whose parameters of paths it has as well.
    schemas: all components.
    """
    values = {
        name: value for example in recorded.values() for name, value in example.parameters.items()
    }
    in_path = [
        parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"
    ]
    ((_, content),) = operation["responses"]["200"]["content"].items()
    response = _value_of(content["schema"], schemas)
    return OperationExample({name: values[name] for name in in_path}, response=response)


def _value_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return the example of a schema, of the first alternative, with one item of a list, without
    optional fields.
    """
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return _value_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return _value_of(schema["anyOf"][0], schemas)
    if "properties" in schema:
        return {name: _value_of(schema["properties"][name], schemas) for name in schema["required"]}
    if "items" in schema:
        return [_value_of(schema["items"], schemas)]
    return schema["enum"][0]


def with_example(operation: Mapping[str, Any], example: OperationExample) -> dict[str, Any]:
    """Return the description of an operation with its example."""
    parameters = [_with_value(parameter, example) for parameter in operation["parameters"]]
    described = {**operation, "parameters": parameters}
    if example.bodies:
        body = operation["requestBody"]
        examples = {name: {"value": value} for name, value in example.bodies.items()}
        described["requestBody"] = {**body, "content": _with(body["content"], "examples", examples)}
    if example.response is not msgspec.UNSET:
        status = "201" if "201" in operation["responses"] else min(operation["responses"])
        response = operation["responses"][status]
        responses = {
            status: {**response, "content": _with(response["content"], "example", example.response)}
        }
        described["responses"] = {**operation["responses"], **responses}
    return described


def _with_value(parameter: Mapping[str, Any], example: OperationExample) -> Mapping[str, Any]:
    """Return the description of a parameter with its value in the example, if it has one."""
    name = parameter["name"]
    if name not in example.parameters:
        return parameter
    return {**parameter, "example": example.parameters[name]}


def _with(content: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the content of a body, of its one media type, with an example."""
    ((media_type, described),) = content.items()
    return {media_type: {**described, key: value}}
