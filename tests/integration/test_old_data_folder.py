"""A data folder of an earlier version, kept in `tests/vectors`, is opened with every signature in
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard

from tests.eventually import until
from tests.indexer.replay import ReplayNode, serving
from tests.integration import indexed_daemon
from tests.integration.daemon import build_config, run_daemon, run_network
from tests.integration.message_verifier import verify_signed_message
from tests.integration.process import start_command
from tests.paths import VECTORS
from warpseal.bls import parse_public_key, verify, verify_aggregate
from warpseal.store.api_key import digest_key
from warpseal.store.connection import Connection
from warpseal.store.migrate import HEAD
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, MessageID
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet.build import seeded_id
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import ChainKind, SimChain

OLD = VECTORS / "data-folder-443d240"
# A later folder, with usage: some of it is merged into buckets, some is not merged yet.
NEWER = VECTORS / "data-folder-f9fa7396"
NETWORK_ID = "88888"
# The network whose messages the folder has, except that no validator signs any more.
SILENT = Plan(
    validators=4,
    l1s=(L1Plan(validators=4, spare=1),),
    messages=3,
    epoch_blocks=40,
    rules=(parse_rule("all:silent"),),
)
# A signed message ends with the BLS signature.
SIGNATURE_BYTES = 96


def unpack(folder: Path, *names: str, source: Path = OLD) -> Path:
    """Copy files of an old folder to where a daemon with the data folder `folder` finds them;
    return that place.
    """
    place = folder / NETWORK_ID
    place.mkdir(parents=True)
    for name in names:
        (place / name).write_bytes(zstandard.decompress((source / f"{name}.zst").read_bytes()))
    return place


@pytest.fixture
def old() -> dict[str, Any]:
    """What the daemon answered that wrote the folder."""
    signed_messages: dict[str, Any] = json.loads((OLD / "signed.json").read_text())
    return signed_messages


async def test_every_signature_and_share_of_an_old_store_is_found_and_verifies(
    tmp_path: Path, old: dict[str, Any]
) -> None:
    async with open_store(StoreSettings(), unpack(tmp_path, "store.db")) as store:
        rows = await store.database.records("SELECT message_id, raw FROM messages", wait_s=10.0)
        entries = {
            MessageID(row.message_id): await store.archive.load(MessageID(row.message_id))
            for row in rows
        }
        raws = {MessageID(row.message_id): row.raw for row in rows}
    for message_id, entry in entries.items():
        for signed in entry.signatures:
            assert verify_aggregate(
                list(map(parse_public_key, signed.public_keys)), raws[message_id], signed.signature
            )
        for share in entry.shares:
            assert verify(parse_public_key(share.public_key), raws[message_id], share.signature)
    for response in old["signed"]:
        entry = entries[UnsignedMessage.parse(bytes.fromhex(response["unsigned"])).id]
        signature = bytes.fromhex(response["signed"])[-SIGNATURE_BYTES:]
        assert signature in [signed.signature for signed in entry.signatures]
    assert len(entries[UnsignedMessage.parse(bytes.fromhex(old["sharesOf"])).id].shares) == 3
    assert sum(len(entry.signatures) for entry in entries.values()) == 8
    assert sum(len(entry.shares) for entry in entries.values()) == 25


async def test_other_rows_of_an_old_store_are_kept(tmp_path: Path, old: dict[str, Any]) -> None:
    async with open_store(StoreSettings(), unpack(tmp_path, "store.db")) as store:
        digest = digest_key(old["apiKey"])
        assert digest is not None
        key = await store.api_keys.find_key(digest)
        assert key is not None
        assert (key.name, key.units_per_minute) == ("alice", 100)

        def count(connection: Connection) -> dict[str, int]:
            tables = ("addresses", "origins", "l1_transactions", "block_ranges")
            return {name: connection.value(f"SELECT count(*) FROM {name}") for name in tables}

        assert await store.database.read(count, 10.0) == {
            "addresses": 18,
            "origins": 5,
            "l1_transactions": 5,
            "block_ranges": 1,
        }


async def test_a_daemon_answers_from_an_old_store_though_no_validator_signs_any_more(
    tmp_path: Path, old: dict[str, Any]
) -> None:
    place = unpack(tmp_path / "data", "store.db")
    copy = place / f"store.db.before-{HEAD}"
    async with (
        run_network(SILENT) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        # The folder is of the previous schema version.
        await until(copy.exists)
        # The C-Chain of the network that wrote the folder has another id than that of this one.
        c_chain = ChainID(seeded_id(SILENT, "chain C"))
        network.state.chains[c_chain] = SimChain(
            c_chain, PRIMARY_NETWORK, ChainKind.EVM, "old C-Chain"
        )
        subnets = {
            chain.chain_id: chain.subnet_id
            for chain in network.state.chains.values()
            if any(chain.chain_id)
        }
        chains = {
            response["unsigned"]: UnsignedMessage.parse(
                bytes.fromhex(response["unsigned"])
            ).source_chain_id
            for response in old["signed"]
        }
        signers = {
            unsigned: subnets[chain_id]
            for unsigned, chain_id in chains.items()
            if chain_id in subnets
        }
        responses = [response for response in old["signed"] if response["unsigned"] in signers]
        assert len(responses) == 4
        for response in responses:
            unsigned = response["unsigned"]
            reply = await daemon.post("/aggregate-signatures", {"message": unsigned})
            assert reply.signed == response["signed"]
            verify_signed_message(
                network, reply.signed, bytes.fromhex(unsigned), signers[unsigned], 67
            )
        assert not any(validator.counts.app_requests for validator in network.validators)
    assert copy.exists()
    async with (
        run_network(SILENT) as network,
        run_daemon(build_config(network, tmp_path)) as daemon,
    ):
        await daemon.until_open()
        assert not copy.exists()


async def test_an_old_index_is_read_on_and_the_file_of_waiting_blocks_is_deleted(
    tmp_path: Path,
) -> None:
    place = unpack(tmp_path / "data", "index.db", "waiting-blocks.db")
    async with serving(ReplayNode()) as node:
        file = indexed_daemon.write_config_file(tmp_path, node, index_chains=["p"])
        async with (
            start_command("serve", "--config", file) as daemon,
            aiohttp.ClientSession() as session,
        ):
            api_url, _ = await daemon.listening()

            async def is_indexed() -> bool:
                async with session.get(
                    f"{api_url}/v1/networks/fuji/blockchains/p-chain/blocks?pageSize=1"
                ) as reply:
                    body = await reply.json()
                return reply.status == 200 and int(body["blocks"][0]["blockNumber"]) == node.tip(
                    "P"
                )

            await until(is_indexed)
            assert not list(place.glob("waiting-blocks*"))
            daemon.terminate()
            assert await daemon.ended() == 0


async def test_a_daemon_serves_every_signature_key_and_usage_row_of_the_folder(
    tmp_path: Path,
) -> None:
    replies = json.loads((NEWER / "replies.json").read_text())
    place = unpack(tmp_path / "data", "store.db", "metrics.db", source=NEWER)
    plan = Plan(
        validators=4, l1s=(L1Plan(validators=4),), messages=3, rules=(parse_rule("all:silent"),)
    )
    async with run_network(plan) as network:
        # The blocks of this network are not those of the network that wrote the folder, so none are
        # followed.
        keys = {"gateway-nodes": {"base-url": network.node_uri}, "follow-p-chain": False}
        config = build_config(network, tmp_path, keys)
        async with run_daemon(config) as daemon:
            for signed in replies["signed"]:
                body = {"message": signed["unsigned"]}
                body |= (
                    {"justification": signed["justification"]} if "justification" in signed else {}
                )
                reply = await daemon.post("/aggregate-signatures", body)
                assert reply.signed == signed["signed"]
            assert not any(validator.counts.app_requests for validator in network.validators)
            for path, buckets in replies["usage"].items():
                reply = await daemon.get(path)
                assert reply.status == 200
                for bucket in reply.body["metrics"]:
                    for value in bucket["values"]:
                        # A rate over the seconds of the bucket that are over.
                        del value["requestsPerSecond"]
                assert reply.body["metrics"] == buckets
    async with open_store(StoreSettings(), place) as store:
        digest = digest_key(replies["apiKey"])
        assert digest is not None
        key = await store.api_keys.find_key(digest)
        assert key is not None
        assert (key.name, key.units_per_minute) == ("alice", 100)
