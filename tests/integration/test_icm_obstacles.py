"""What a daemon says about ICM messages between two L1s of a simulated network, from indexes of
earlier blocks.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.chains.evm.icm_logs import MESSENGER, NETWORK_ID, Message
from tests.eventually import until
from tests.index.evm.histories import made_block
from tests.index.evm.icm_histories import COIN, PEOPLE, RELAYERS, block_of
from tests.index.evm.icm_rows import icm_writer, join
from tests.integration.daemon import ASKED_ONCE, Daemon, build_config, run_daemon, run_network
from warpseal.index.evm.records import IcmOptions
from warpseal.resources.text import account_text
from warpseal.warp.ids import P_CHAIN, ChainID, id_text
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

PLAN = Plan(
    network_id=NETWORK_ID,
    validators=2,
    l1s=(L1Plan(validators=4), L1Plan(shared=True)),
    messages=0,
    epoch_s=3_600,
)
ICM = "/v1/icm/messages"
KINDS = ("signed", "untouched", "collecting", "unknown", "impossible", "failed", "executed")
NOWHERE = {"p_chain": P_CHAIN, "no_chain": ChainID(bytes([7]) * 32)}
"""Destinations that take no such message."""
SOURCE_VALIDATORS = (2, 3)
"""Half of the weight of the source's L1."""


def chain_of(network: SimulatedNetwork, place: int) -> ChainID:
    return network.state.chains_of(network.subnets[place].subnet_id)[0]


def write_indexes(folder: Path, network: SimulatedNetwork) -> dict[str, Message]:
    """Write the indexes of both chains; return the messages by what becomes of them."""
    a, b = chain_of(network, 1), chain_of(network, 2)
    messages = {
        kind: Message(
            a, b, nonce + 1, PEOPLE[0], PEOPLE[1], 50_000, body=b"\1" * 32, asset=COIN, fee=3
        )
        for nonce, kind in enumerate(KINDS)
    }
    messages["untouched"] = messages["untouched"]._replace(relayers=RELAYERS)
    messages |= {
        kind: messages["signed"]._replace(destination=destination, nonce=nonce)
        for nonce, (kind, destination) in enumerate(NOWHERE.items(), start=len(KINDS) + 1)
    }
    options = IcmOptions(network.network_id, is_indexed=lambda chain_id: True)
    receives = {
        kind: messages[kind].received(*RELAYERS, is_executed=kind == "executed")
        for kind in KINDS[-2:]
    }
    blocks = {
        a: [
            block_of(0, [message.sent() for message in messages.values()]),
            block_of(1, [messages["signed"].fee_added(9), messages["signed"].sent()]),
        ],
        b: [
            made_block(0),
            block_of(1, list(receives.values())),
            *(made_block(number) for number in range(2, 200)),
        ],
    }
    url = f"sqlite:///{folder}/index.db"
    with icm_writer(url, a, options) as source, icm_writer(url, b, options) as destination:
        for chain_id, writer in ((a, source), (b, destination)):
            writer.write(blocks[chain_id])
        join({a: source, b: destination})
    return messages


def sim_message(network: SimulatedNetwork, message: Message) -> SimMessage:
    """Return the Warp message of a message, which the validators of its source sign."""
    call = AddressedCall(MESSENGER, message.payload)
    unsigned = UnsignedMessage.build(network.network_id, message.source, call.encode())
    return SimMessage(unsigned, b"", network.subnets[1].subnet_id)


async def block_in(daemon: Daemon, message_id: bytes) -> dict[str, Any]:
    reply = await daemon.get(f"{ICM}/{message_id.hex()}")
    assert reply.status == 200, reply.body
    block: dict[str, Any] = reply.body["warpseal"]
    return block


async def test_each_message_says_what_hinders_it_and_what_to_do(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        folder = tmp_path / "data" / str(network.network_id)
        folder.mkdir(parents=True)
        messages = write_indexes(folder, network)
        warp = {kind: sim_message(network, message) for kind, message in messages.items()}
        network.state.add_messages(warp.values())
        source, destination = (id_text(chain_of(network, place)) for place in (1, 2))
        chains = [
            {
                "blockchain-id": chain,
                "rpc": [f"{network.node_uri}/ext/bc/{chain}/rpc"],
                "index": True,
            }
            for chain in (source, destination)
        ]
        config = build_config(network, tmp_path, {"evm-chains": chains}, aggregation=ASKED_ONCE)
        async with run_daemon(config) as daemon:
            await daemon.until_connected(6)

            async def request(kind: str, timeout_s: float = 50.0) -> int:
                fields = {"destinationBlockchainId": destination, "timeoutSeconds": timeout_s}
                return (await daemon.aggregate_v1(warp[kind], **fields)).status

            assert await request("signed") == 201
            network.set_behaviour(SOURCE_VALIDATORS, "refuse=-2/no handler")
            assert await request("impossible") == 400
            network.set_behaviour(SOURCE_VALIDATORS, "refuse=1/unknown message")

            async def is_refused() -> bool:
                await request("unknown", 1.0)
                return bool(
                    (await block_in(daemon, messages["unknown"].id))["retry"]["action"] == "resend"
                )

            await until(is_refused)
            network.set_behaviour(SOURCE_VALIDATORS, "silent")
            asking = asyncio.create_task(request("collecting"))

            async def is_collecting() -> bool:
                block = await block_in(daemon, messages["collecting"].id)
                return bool(
                    block["signature"]["state"] == "collecting"
                    and block["signature"].get("signedWeight") == "2000"
                )

            await until(is_collecting)
            blocks = {kind: await block_in(daemon, messages[kind].id) for kind in KINDS[:-1]}
            nowhere = {kind: await block_in(daemon, messages[kind].id) for kind in NOWHERE}
            by_warp_id = await daemon.get(f"{ICM}/{warp['signed'].unsigned.id.hex()}")
            pages = {
                text: (await daemon.get(f"{ICM}?{text}")).body["messages"]
                for text in ("status=pending", "status=delivered", "isStuck=true", "isStuck=false")
            }
            executed = await daemon.get(f"{ICM}/{messages['executed'].id.hex()}")
            asking.cancel()
            for index in SOURCE_VALIDATORS:
                network.stop_validator(index)

            async def is_cut_off() -> bool:
                block = await block_in(daemon, messages["untouched"].id)
                return bool(block["signature"].get("unreachableWeight") == "2000")

            await until(is_cut_off)
            cut_off = await block_in(daemon, messages["untouched"].id)
    assert "warpseal" not in executed.body
    states = {
        kind: block["signature"]["state"] for kind, block in blocks.items() if "signature" in block
    }
    assert states == {
        "signed": "signed",
        "untouched": "not_asked",
        "collecting": "collecting",
        "unknown": "collecting",
        "impossible": "impossible",
    }
    actions = {kind: block["retry"]["action"] for kind, block in blocks.items()}
    assert actions == {
        "signed": "wait",
        "untouched": "wait",
        "collecting": "wait",
        "unknown": "resend",
        "impossible": "none",
        "failed": "retry_execution",
    }
    assert blocks["unknown"]["retry"]["call"].keys() >= {"to", "data"}
    assert {kind: block["retry"]["action"] for kind, block in nowhere.items()} == dict.fromkeys(
        NOWHERE, "none"
    )
    assert "no transaction of the P-Chain delivers" in nowhere["p_chain"]["retry"]["text"]
    refused = nowhere["no_chain"]["delivery"]
    assert (refused["verifiesNow"], refused["reason"], refused["statement"]["accepted"]) == (
        False,
        "unknown_chain",
        False,
    )
    assert refused["reasonText"] in nowhere["no_chain"]["retry"]["text"]
    relayers = [account_text(relayer) for relayer in RELAYERS]
    assert blocks["untouched"]["allowedRelayerAddresses"] == relayers
    assert blocks["signed"]["allowedRelayerAddresses"] == []
    assert (
        f"Only these accounts may deliver it: {', '.join(relayers)}."
        in blocks["untouched"]["retry"]["text"]
    )
    reasons = [(signer["weight"], signer["reason"]) for signer in cut_off["signature"]["missing"]]
    assert reasons == [("1000", "not_connected")] * 2 + [("1000", "not_asked")] * 2
    assert cut_off["signature"]["state"] == "not_asked"
    assert cut_off["retry"]["action"] == "wait"
    assert (
        "validators with 50.0 % of the weight are unreachable: NodeID-" in cut_off["retry"]["text"]
    )
    sent_at = made_block(0).time
    for kind, block in blocks.items():
        unsigned = warp[kind].unsigned
        assert (block["warpMessageId"], block["unsignedMessage"]) == (
            f"0x{unsigned.id.hex()}",
            f"0x{unsigned.raw.hex()}",
        )
        assert block["since"] == (made_block(1).time if kind == "failed" else sent_at)
        assert block["fees"][0] == {
            "address": account_text(COIN),
            "value": "3",
            "timestamp": sent_at,
        }
    signed = blocks["signed"]
    weights = {
        name: signed["signature"][name]
        for name in ("signedWeight", "requiredWeight", "totalWeight")
    }
    assert weights | {"signedWeight": ""} == {
        "signedWeight": "",
        "requiredWeight": "2680",
        "totalWeight": "4000",
    }
    assert int(weights["signedWeight"]) >= 3_000
    assert (signed["delivery"]["verifiesNow"], signed["delivery"]["statement"]["accepted"]) == (
        True,
        True,
    )
    assert signed["fees"][1]["value"] == "9"
    assert signed["resentAt"] == made_block(1).time
    # 3 signers, 20 chunks of signed message, a payload of 416 bytes.
    assert int(signed["deliveryGas"]["required"]) > 50_000 + 375_750
    assert signed["deliveryGas"]["blockLimit"] == "15000000"
    verdicts = {
        kind: {v["reason"]: v["verdict"] for v in blocks[kind]["signature"]["missing"]}
        for kind in KINDS[1:5]
    }
    assert verdicts == {
        "untouched": {"not_asked": "wait"},
        "collecting": {"no_answer": "wait"},
        "unknown": {"refused": "wait"},
        "impossible": {"no_signature_handler": "never"},
    }
    receiver = {"deliverer": account_text(RELAYERS[0]), "redeemer": account_text(RELAYERS[1])}
    assert (blocks["failed"]["state"], blocks["failed"]["receivedBy"]) == ("failed", receiver)
    assert by_warp_id.body["messageId"] == f"0x{messages['signed'].id.hex()}"
    ids = {text: {item["messageId"] for item in page} for text, page in pages.items()}
    open_ids = {f"0x{messages[kind].id.hex()}" for kind in KINDS[:5]}
    sent_ids = open_ids | {f"0x{messages[kind].id.hex()}" for kind in NOWHERE}
    ended = {kind: f"0x{messages[kind].id.hex()}" for kind in KINDS[-2:]}
    assert ids == {
        "status=pending": sent_ids,
        "status=delivered": set(ended.values()),
        "isStuck=true": open_ids | {ended["failed"]},
        "isStuck=false": sent_ids - open_ids | {ended["executed"]},
    }
    pending = {item["messageId"]: item["warpseal"] for item in pages["status=pending"]}
    assert {pending[f"0x{messages[kind].id.hex()}"]["retry"]["action"] for kind in NOWHERE} == {
        "none"
    }
    listed = {item["messageId"]: item["warpseal"] for item in pages["isStuck=true"]}
    for kind in blocks:
        item = listed[f"0x{messages[kind].id.hex()}"]
        names = {
            "state",
            "since",
            "warpMessageId",
            "allowedRelayerAddresses",
            "signature",
            "retry",
            "receivedBy",
        }
        assert item.keys() <= names
        assert item.get("signature", {}).get("state") == states.get(kind)
        assert "call" not in item.get("retry", {})
        assert "missing" not in item.get("signature", {})
