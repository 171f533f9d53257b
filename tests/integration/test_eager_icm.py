"""ICM messages signed ahead by a whole daemon: a relayer's POST asks no validator, also in the next
epoch.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chains.evm.icm_logs import NETWORK_ID, Message
from tests.eventually import until
from tests.index.evm.histories import made_block
from tests.index.evm.icm_histories import PEOPLE, RELAYERS, block_of
from tests.index.evm.icm_rows import icm_writer
from tests.integration.daemon import build_config, count_signature_requests, run_daemon, run_network
from tests.integration.test_delivery import METRIC, QUICK, chain_of
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.events import index_events
from warpseal.icm import signer
from warpseal.index.checkpoint import ProgressRow
from warpseal.warp.ids import ChainID, id_text
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SentMessage, SimMessage

# Two L1s; the chain of the second one has no blocks but those that a test builds.
PLAN = Plan(
    network_id=NETWORK_ID,
    validators=4,
    l1s=(L1Plan(validators=8), L1Plan(shared=True, idle=True)),
    messages=1,
)


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    # The blocks have old times.
    monkeypatch.setattr(signer, "_MAX_AGE_S", 1e10)
    monkeypatch.setattr(index_events, "_POLL_S", 0.05)
    monkeypatch.setattr(signer, "_SETS_INTERVAL_S", 0.05)


async def test_a_message_is_signed_ahead_in_each_epoch_until_it_is_received(tmp_path: Path) -> None:
    index_url = f"sqlite:///{tmp_path}/index.db"

    def write(chain_id: ChainID, block: EvmBlockFacts) -> None:
        with icm_writer(index_url, chain_id) as writer:
            writer.write([block])
            writer.write_status(
                ProgressRow(id_text(chain_id), block.number, False, reported_at=int(time.time()))
            )

    def stored(query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(
            f"file:{tmp_path}/data/{NETWORK_ID}/store.db?mode=ro", uri=True
        ) as connection:
            return connection.execute(query).fetchall()

    async with run_network(PLAN) as network:
        source, destination = chain_of(network, 1), chain_of(network, 2)
        network.build_block(destination)
        rpc = f"{network.node_uri}/ext/bc"
        keys = {
            "index-url": index_url,
            "eager-icm": [id_text(network.subnets[1].subnet_id)],
            "evm-chains": [
                {
                    "blockchain-id": id_text(id_),
                    "rpc": [f"{rpc}/{id_text(id_)}/rpc"],
                    "index": {"metadata": "off"},
                }
                for id_ in (source, destination)
            ],
        }
        for chain_id in (source, destination):
            write(chain_id, made_block(0))
        async with run_daemon(build_config(network, tmp_path, keys, validators=QUICK)) as daemon:
            await daemon.until_connected(12)
            await until(lambda: len(stored("SELECT * FROM event_sources")) == 2)
            message = Message(source, destination, 1, PEOPLE[0], PEOPLE[1])
            unsigned = UnsignedMessage.build(
                NETWORK_ID, source, AddressedCall(message.messenger, message.payload).encode()
            )
            network.state.send(source, SentMessage(message.messenger, unsigned, bytes(32)))
            write(source, block_of(1, [message.sent()]))
            await until(lambda: stored("SELECT 1 FROM icm_tasks WHERE set_digest IS NOT NULL"))
            requests = count_signature_requests(network)
            assert requests
            relayed = SimMessage(unsigned, b"", network.subnets[1].subnet_id)

            async def deliver() -> None:
                reply = await daemon.aggregate_v1(
                    relayed, destinationBlockchainId=id_text(destination)
                )
                assert network.verify_next(destination, bytes.fromhex(reply.signed)).accepted

            await deliver()
            # A validator leaves: in the next epoch the positions of the others are not the same.
            digest = stored("SELECT set_digest FROM icm_tasks")
            network.change_weight(network.subnets[1].subnet_id, 4, 0)
            network.build_block(destination)
            await until(
                lambda: stored("SELECT set_digest FROM icm_tasks") not in (digest, [(None,)])
            )
            assert (await daemon.metrics())[METRIC] == 1
            await deliver()
            assert (await daemon.metrics())[METRIC] == 1
            assert count_signature_requests(network) == requests
            write(destination, block_of(1, [message.received(RELAYERS[0], RELAYERS[1])]))
            await until(lambda: not stored("SELECT 1 FROM icm_tasks"))
        events = [
            bytes(row[0]).decode() for row in stored("SELECT body FROM events ORDER BY number")
        ]
    kinds = ("icm_sent", "message_signed", "message_signed", "icm_received", "icm_executed")
    assert [kind for event in events for kind in set(kinds) if f'"{kind}"' in event] == list(kinds)
    assert f'"0x{unsigned.id.hex()}"' in events[0]
