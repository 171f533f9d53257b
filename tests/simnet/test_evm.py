"""EVM chains return the logs of the messages that managers sent, in the form of EVM nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.simnet.client import connected
from warpseal.warp.ids import id_text
from warpseal.warp.l1_messages import RegisterL1Validator
from warpseal.warp.message import AddressedCall, UnsignedMessage, unwrap_log_data
from warpseal_simnet.evm import PRECOMPILE, SEND_WARP_MESSAGE
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan


@pytest.fixture
async def network() -> AsyncIterator[SimulatedNetwork]:
    l1s = (L1Plan(2, spare=1), L1Plan(2, manager="C", spare=1))
    async with SimulatedNetwork(Plan(validators=2, messages=0, l1s=l1s)) as network:
        yield network


async def post(network: SimulatedNetwork, chain: str, body: Any) -> Any:
    url = f"{network.node_uri}/ext/bc/{chain}/rpc"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert response.status == 200
        return await response.json()


async def ask(network: SimulatedNetwork, chain: str, method: str, *params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": list(params)}
    response = await post(network, chain, body)
    assert response["id"] == 7
    return response["result"] if "result" in response else response["error"]


def chain_of(network: SimulatedNetwork, place: int) -> str:
    return id_text(network.state.chains_of(network.subnets[place].subnet_id)[0])


async def test_a_registration_is_found_in_the_logs_of_the_managers_chain(
    network: SimulatedNetwork,
) -> None:
    for place, chain in ((1, chain_of(network, 1)), (2, "C")):
        registration = network.p_chain.register(network.subnets[place].subnet_id)
        query = {
            "fromBlock": "0x0",
            "toBlock": "latest",
            "address": PRECOMPILE,
            "topics": [SEND_WARP_MESSAGE],
        }
        log = (await ask(network, chain, "eth_getLogs", query))[-1]
        raw = unwrap_log_data(bytes.fromhex(log["data"][2:]))
        assert raw is not None
        unsigned = UnsignedMessage.parse(raw)
        assert log["topics"][2] == "0x" + unsigned.id.hex()
        call = AddressedCall.parse(unsigned.payload)
        assert call.source_address == network.manager(network.subnets[place].subnet_id).address
        assert "0x" + call.source_address.rjust(32, b"\x00").hex() == log["topics"][1]
        assert RegisterL1Validator.parse(call.payload).validation_id == registration.validation_id


async def test_logs_are_chosen_by_blocks_addresses_and_topics(network: SimulatedNetwork) -> None:
    chain = chain_of(network, 1)
    validation_id = network.p_chain.register(network.subnets[1].subnet_id).validation_id
    assert validation_id is not None
    for weight in (5, 6):
        network.p_chain.set_weight(validation_id, weight)
    everything = await ask(
        network, chain, "eth_getLogs", {"fromBlock": "earliest", "toBlock": "latest"}
    )
    assert [log["blockNumber"] for log in everything] == ["0xa", "0x14", "0x1e", "0x28"]
    assert await ask(network, chain, "eth_blockNumber") == "0x32"
    some = await ask(network, chain, "eth_getLogs", {"fromBlock": "0xb", "toBlock": "0x1e"})
    assert some == everything[1:3]
    topics = [None, None, [everything[3]["topics"][2], everything[0]["topics"][2]]]
    chosen = await ask(
        network, chain, "eth_getLogs", {"fromBlock": "0x0", "toBlock": "0x32", "topics": topics}
    )
    assert chosen == [everything[0], everything[3]]
    for nothing in (
        {"address": "0x" + "00" * 20},
        {"topics": ["0x" + "00" * 32]},
        {"topics": [None] * 4},
    ):
        assert (
            await ask(
                network, chain, "eth_getLogs", {"fromBlock": "0x0", "toBlock": "0x32"} | nothing
            )
            == []
        )
    assert await ask(network, chain, "eth_getLogs", {}) == []


async def test_blocks_have_the_hashes_that_logs_name_and_the_first_one_is_that_of_the_chain(
    network: SimulatedNetwork,
) -> None:
    network.p_chain.register(network.subnets[1].subnet_id)
    chain = chain_of(network, 1)
    log, *_ = await ask(network, chain, "eth_getLogs", {"fromBlock": "earliest"})
    block = await ask(network, chain, "eth_getBlockByNumber", log["blockNumber"], False)
    assert (block["number"], block["hash"]) == ("0xa", log["blockHash"])
    genesis = [
        (await ask(network, name, "eth_getBlockByNumber", "0x0", False))["hash"]
        for name in ("C", chain)
    ]
    assert len({len(text) for text in genesis}) == 1
    assert len(set(genesis)) == 2
    missing = await ask(network, chain, "eth_getBlockByNumber", "0xffff", False)
    assert missing == {"code": -32000, "message": "cannot query unfinalized data"}


async def test_messages_of_a_manager_are_signed_by_its_chains_validators(
    network: SimulatedNetwork,
) -> None:
    network.p_chain.register(network.subnets[1].subnet_id)
    chain_id = network.state.chains_of(network.subnets[1].subnet_id)[0]
    message = network.state.sent_messages[chain_id][-1].unsigned
    address = network.validators[2].address
    assert address is not None
    async with connected(address.port, network.network_id) as peer:
        assert isinstance(await peer.ask(chain_id, message.raw), bytes)


async def test_chain_ids_differ_and_errors_are_those_of_evm_nodes(
    network: SimulatedNetwork,
) -> None:
    chains = ("C", chain_of(network, 1), chain_of(network, 2))
    assert [await ask(network, chain, "eth_chainId") for chain in chains] == [
        "0x15b38",
        "0x186a0",
        "0x18704",
    ]
    unknown = {"code": -32601, "message": "the method eth_nope does not exist/is not available"}
    assert await ask(network, "C", "eth_nope") == unknown
    too_many = {"code": -32602, "message": "too many arguments, want at most 0"}
    assert await ask(network, "C", "eth_chainId", 1) == too_many
    bad = {"code": -32602, "message": "invalid argument 0: hex string without 0x prefix"}
    assert await ask(network, "C", "eth_getLogs", {"fromBlock": "zz"}) == bad
    assert (await ask(network, "C", "eth_getLogs"))[
        "message"
    ] == "missing value for required argument 0"
    assert (await ask(network, "C", "eth_getLogs", 1))["code"] == -32602
    assert (await ask(network, "C", "eth_getLogs", {"fromBlock": "0x9", "toBlock": "0x1"}))[
        "code"
    ] == -32000
    batch = [{"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}, 1]
    assert [sorted(entries) for entries in await post(network, "C", batch)] == [
        ["id", "jsonrpc", "result"],
        ["error", "id", "jsonrpc"],
    ]
    assert (await post(network, "C", []))["error"]["message"] == "empty batch"
    named_params_call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": {"a": 1}}
    assert (await post(network, "C", named_params_call))["error"]["message"] == "non-array args"
    assert network.calls["eth_chainId"] == 6
