"""Nodes and validators whose P-Chain ends at an older block answer and verify as of that block."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from tests.simnet.client import call, connected
from tests.simnet.sessions import NOW, Clock, small_network
from warpseal.pb import p2p_pb2 as p2p
from warpseal.warp.ids import P_CHAIN, id_text
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.signing import validator_state

PLAN = Plan(
    validators=3,
    messages=0,
    nodes=2,
    l1s=(L1Plan(shared=True, spare=1), L1Plan(2, unconverted=True)),
)


@pytest.fixture
async def network() -> AsyncIterator[SimulatedNetwork]:
    async with SimulatedNetwork(PLAN) as network:
        yield network


async def ask(network: SimulatedNetwork, node: int, method: str, **params: Any) -> Any:
    return await call(network.nodes[node].uri, "/ext/bc/P", f"platform.{method}", params)


async def test_a_lagging_node_knows_only_what_was_accepted_by_its_height(
    network: SimulatedNetwork,
) -> None:
    l1, other = (subnet.subnet_id for subnet in network.subnets[1:])
    registration = network.p_chain.register(l1)
    network.p_chain.convert(other)
    validation = id_text(registration.validation_id or b"")
    network.nodes[1].lag = 2
    for node, height, status in ((0, 22, "Committed"), (1, 20, "Processing")):
        assert await ask(network, node, "getHeight") == {"height": str(height)}
        assert await ask(network, node, "getProposedHeight") == {"height": str(height)}
        assert await ask(network, node, "getTxStatus", txID=registration.text) == {"status": status}
        error = await ask(network, node, "getValidatorsAt", height=21, subnetID=id_text(l1))
        assert ("current P-chain height (20)" in error) == (node == 1)
        validations = await ask(network, node, "getCurrentValidators", subnetID=id_text(l1))
        assert len(validations["validators"]) == 4 - node
        subnet = await ask(network, node, "getSubnet", subnetID=id_text(other))
        assert subnet["isPermissioned"] == (node == 1)
        assert (subnet["managerAddress"] is None) == (node == 1)
    assert await ask(network, 1, "getTx", txID=registration.text) == "couldn't get tx: not found"
    assert (await ask(network, 0, "getTx", txID=registration.text, encoding="hexnc"))[
        "tx"
    ] == "0x" + registration.raw.hex()
    assert (
        await ask(network, 1, "getBlockByHeight", height="21")
        == "couldn't get block at height 21: not found"
    )
    assert (
        await ask(network, 1, "getL1Validator", validationID=validation)
        == f'fetching L1 validator "{validation}" failed: not found'
    )
    assert (await ask(network, 0, "getL1Validator", validationID=validation))["height"] == "22"
    network.nodes[1].lag = 1
    assert (await ask(network, 1, "getL1Validator", validationID=validation))["height"] == "21"


async def test_past_states_of_a_validator_are_returned() -> None:
    # Its clock stands still: each second costs a fee.
    async with SimulatedNetwork(replace(PLAN, settings=NodeSettings(clock=Clock()))) as network:
        validation_id = network.p_chain.register(network.subnets[1].subnet_id).validation_id
        assert validation_id is not None
        network.p_chain.set_weight(validation_id, 5)
        network.p_chain.disable(validation_id)
        network.p_chain.remove(validation_id)
        states = []
        for lag in range(1, 4):
            network.nodes[1].lag = lag
            validation = await ask(
                network, 1, "getL1Validator", validationID=id_text(validation_id)
            )
            states.append((validation["weight"], validation["minNonce"], validation["balance"]))
    assert states == [("5", "1", "0"), ("5", "1", "100000000000"), ("1000", "0", "100000000000")]


async def test_epochs_are_those_of_the_nodes_own_height_and_may_not_have_begun(
    network: SimulatedNetwork,
) -> None:
    network.advance(5)
    for lag, expected in ((0, ("2", "25")), (1, ("1", "20")), (9, ("1", "16"))):
        network.nodes[1].lag = lag
        epoch = await call(
            network.nodes[1].uri, "/ext/bc/C/proposervm", "proposervm.getCurrentEpoch"
        )
        assert (epoch["number"], epoch["pChainHeight"]) == expected
    async with SimulatedNetwork(Plan(validators=1, messages=0, epoch_blocks=0)) as before_granite:
        epoch = await call(
            before_granite.node_uri, "/ext/bc/C/proposervm", "proposervm.getCurrentEpoch"
        )
        assert epoch == {"number": "0", "startTime": "0", "pChainHeight": "0"}


async def test_a_restarted_node_serves_on_the_same_port(network: SimulatedNetwork) -> None:
    uri = network.nodes[1].uri
    await network.nodes[1].down()
    with pytest.raises(aiohttp.ClientConnectorError):
        await call(uri, "/ext/P", "platform.getHeight")
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", network.nodes[1].port))
    assert await ask(network, 0, "getHeight") == {"height": "20"}
    await network.nodes[1].up()
    assert await call(uri, "/ext/P", "platform.getHeight") == {"height": "20"}


async def test_a_node_does_not_share_its_port_with_another_one(network: SimulatedNetwork) -> None:
    with pytest.raises(OSError, match="in use"):
        await SimulatedNetwork(Plan(validators=1, messages=0)).nodes[0].start(network.nodes[0].port)


async def test_an_overloaded_node_returns_429_with_retry_after(network: SimulatedNetwork) -> None:
    network.nodes[0].rpc.outages["platform.getTx"] = Outage(OutageKind.TOO_MANY, retry_after_s=2)
    body = {"jsonrpc": "2.0", "id": 1, "method": "platform.getTx", "params": {}}
    url = network.node_uri + "/ext/bc/P"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "2")
    assert await ask(network, 0, "getHeight") == {"height": "20"}
    assert network.calls["platform.getTx"] == 1


async def test_a_node_can_stop_running_a_chain(network: SimulatedNetwork) -> None:
    chain_id = network.state.chains_of(network.subnets[1].subnet_id)[0]
    network.nodes[1].stop_chain(chain_id)
    url = f"{network.nodes[1].uri}/ext/bc/{id_text(chain_id)}/proposervm"
    async with aiohttp.ClientSession() as session, session.post(url, json={}) as response:
        assert response.status == 404
    path = f"/ext/bc/{id_text(chain_id)}/proposervm"
    assert "number" in await call(network.node_uri, path, "proposervm.getCurrentEpoch")


async def refusal_codes(network: SimulatedNetwork, transaction: Transaction) -> list[int | None]:
    """Return the code with which each validator refuses the attested message, None if it signs."""
    attested = transaction.attested
    assert attested is not None
    heights: list[int | None] = []
    for validator in network.validators:
        assert validator.address is not None
        async with connected(validator.address.port, network.network_id) as peer:
            result = await peer.ask(P_CHAIN, attested.unsigned.raw, attested.justification)
            heights.append(result.error_code if isinstance(result, p2p.AppError) else None)
    return heights


async def test_lagging_validators_refuse_until_they_have_the_block(
    network: SimulatedNetwork,
) -> None:
    network.set_behaviour(1, "lag=1")
    network.set_behaviour(2, "lag=3")
    l1 = network.subnets[1].subnet_id
    registration = network.p_chain.register(l1, 3)
    assert registration.validation_id is not None
    assert (await refusal_codes(network, registration))[:4] == [None, 11, 11, None]
    network.advance()
    assert (await refusal_codes(network, registration))[:4] == [None, None, 11, None]
    change = network.p_chain.set_weight(registration.validation_id, 5)
    assert (await refusal_codes(network, change))[:4] == [None, 16, 11, None]
    removal = network.p_chain.remove(registration.validation_id)
    assert (await refusal_codes(network, removal))[:4] == [None, 12, 12, None]
    conversion = network.p_chain.convert(network.subnets[2].subnet_id)
    assert (await refusal_codes(network, conversion))[:4] == [None, 6, 6, None]
    network.advance(3)
    assert await refusal_codes(network, removal) == [None] * 6
    assert network.violations.total == 0


def test_a_validator_can_be_behind_by_time() -> None:
    clock = Clock()
    network = small_network(clock, messages=0)
    network.set_behaviour(0, "behind=3s")
    heights = []
    for second in range(6):
        clock.now = NOW + second
        if second in (1, 2):
            network.advance()
        heights.append(validator_state(network.state, network.validators[0]).height)
    # Before the first block of its own time, blocks were made at an even pace.
    assert heights == [19, 19, 19, 20, 21, 22]
    assert validator_state(network.state, network.validators[1]).height == 22
