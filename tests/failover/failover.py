"""A primary that is killed under load loses nothing; `make test-failover` runs this, and `make
test` does not.

Figures of a run are in docs/operations.md.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import aiohttp
import psycopg
import pytest

from tests.eventually import until
from tests.failover.cluster import INSTALL, Cluster, Member, connect, missing_programs, new_cluster
from tests.failover.load import Load, usage_total
from tests.indexer.evm.indexing import entry, indexing, written_hashes
from tests.indexer.evm.killed import served_chain
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.integration.daemon import AGGREGATE_PATH, run_network, write_config_file
from tests.integration.message_verifier import verify_signed_message
from tests.integration.process import start_command
from warpseal.index.settings import IndexSettings
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan

KILLS = int(os.environ.get("KILLS", "20"))
# Every third kill takes Patroni as well, as the loss of a machine: the lease of the primary in etcd
# has to end.
MACHINE_EVERY = 3
QUORUM = 67
PLAN = Plan(validators=4, l1s=(L1Plan(shared=True),), messages=20_000, epoch_blocks=0)
FAILOVER_S = 90.0
BACK_S = 3.0


@pytest.fixture(autouse=True)
def programs() -> None:
    """Say what to install."""
    if missing := missing_programs():
        pytest.fail(f"{', '.join(missing)}: not installed: {INSTALL}")


@dataclass
class FenceProbe:
    """Writes to each server by itself all the time.

    writes: the time and the server of each success, in order.
    """

    cluster: Cluster
    writes: list[tuple[float, str]] = field(default_factory=list)
    _is_over: Event = field(default_factory=Event)

    def __enter__(self) -> FenceProbe:
        with connect(self.primary()) as session:
            session.execute("CREATE TABLE probes (server text)")
        self._threads = [
            Thread(target=self._probe, args=(member,)) for member in self.cluster.members
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def first_write(self, after: float, old: Member) -> tuple[float, str] | None:
        """Return when another server than the old primary took a write first, and its name."""
        return next(
            (write for write in self.writes if write[0] > after and write[1] != old.name), None
        )

    def late_writes(self, since: float, until: float, primary: str) -> list[str]:
        """Return the servers but the primary that took a write in its term."""
        return [name for at, name in self.writes if since < at < until and name != primary]

    def primary(self) -> Member:
        primary = self.cluster.primary()
        assert primary is not None
        return primary

    def _probe(self, member: Member) -> None:
        while not self._is_over.is_set():
            with suppress(psycopg.Error), connect(member) as session:
                while not self._is_over.is_set():
                    session.execute("INSERT INTO probes VALUES (%s)", (member.name,))
                    self.writes.append((monotonic(), member.name))
                    sleep(0.05)
            sleep(0.05)


async def test_a_primary_that_is_killed_under_load_loses_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(new_cluster())
        await asyncio.to_thread(cluster.start)
        network = await stack.enter_async_context(run_network(PLAN))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        keys = {
            "store-url": cluster.url(),
            "metrics-db-url": cluster.url(),
            "gateway-nodes": {"base-url": network.node_uri},
        }
        file = write_config_file(network, tmp_path, keys)
        chain = served_chain()
        (node,) = await stack.enter_async_context(serving_evm(EvmReplayNode(chain, tip=0)))
        index = IndexSettings(cluster.url())
        indexer = await stack.enter_async_context(
            indexing(tmp_path, [entry(chain, node)], store=index)
        )
        daemon = await stack.enter_async_context(start_command("serve", "--config", file))
        url, _ = await daemon.listening()

        async def is_up() -> bool:
            async with session.get(f"{url}/ready") as response:
                body = await response.json()
            return bool(response.status == 200 and body["store"]["up"])

        await until(is_up)
        load = Load(session, [url], iter(network.messages_of(network.subnets[-1].subnet_id)))
        probe = stack.enter_context(FenceProbe(cluster))
        loading = asyncio.create_task(load.run())
        failovers: list[tuple[bool, float, float, float]] = []
        late_writes: list[str] = []
        # When the primary took its first write, and its name.
        term = probe.writes[0] if probe.writes else (monotonic(), probe.primary().name)
        for number in range(KILLS):
            await asyncio.sleep(2)
            node.tip = min(chain.tip, (node.tip or 0) + chain.tip // KILLS)
            await asyncio.to_thread(wait_for_standbys, cluster)
            late_writes += probe.late_writes(term[0], monotonic(), term[1])
            old, is_machine = probe.primary(), number % MACHINE_EVERY == MACHINE_EVERY - 1
            killed_at = monotonic()
            cluster.kill(old, with_patroni=is_machine)
            await until(partial(probe.first_write, killed_at, old), FAILOVER_S)
            term = probe.first_write(killed_at, old) or term
            elected_at = term[0]
            await until(is_up, FAILOVER_S)
            store_s = monotonic() - elected_at
            height = indexer.height(chain) or 0
            node.tip = min(chain.tip, node.tip + 1)
            await indexer.until_at(chain, min(height + 1, chain.tip))
            failovers.append(
                (is_machine, elected_at - killed_at, store_s, monotonic() - elected_at)
            )
            print(
                f"kill {number + 1}: machine={is_machine} new primary {failovers[-1][1]:.1f} s,"
                f" store {store_s:.2f} s"
            )
            if is_machine:
                cluster.start_member(old)
        node.tip = chain.tip
        await asyncio.sleep(2)
        loading.cancel()
        await asyncio.wait((loading,))
        late_writes += probe.late_writes(term[0], monotonic(), term[1])
        report(load, failovers)
        assert load.without_retry == []
        assert late_writes == []
        await indexer.until_at(chain, chain.tip)
        assert list(written_hashes(tmp_path, chain, index).values()) == chain.hashes

        async def is_usage_complete() -> bool:
            return await usage_total(session, url) == load.calls

        await until(is_usage_complete)
        daemon.terminate()
        assert await daemon.ended() == 0, "".join(daemon.stderr)
        assert "writes are lost" not in "".join(daemon.stderr)
        await assert_all_are_stored(network, file, session, load)
        assert max(store_s for _, _, store_s, _ in failovers) <= BACK_S


async def assert_all_are_stored(
    network: SimulatedNetwork, file: Path, session: aiohttp.ClientSession, load: Load
) -> None:
    """Assert that each answered message has a quorum, and that the next daemon answers it while no
    validator signs.

    A read that takes more than a second counts as a miss, so a request is repeated: only the store
    can answer it.
    """
    network.set_behaviour([validator.index for validator in network.validators], "silent")
    async with start_command("serve", "--config", file) as daemon:
        url, _ = await daemon.listening()
        for number, signed in load.signed.items():
            message = load.by_number[number]
            body = {"message": message.unsigned.raw.hex(), "timeout-seconds": 5}

            async def is_answered(body: dict[str, Any] = body, signed: set[str] = signed) -> bool:
                async with session.post(url + AGGREGATE_PATH, json=body) as response:
                    reply = await response.json()
                if response.status == 200:
                    signed.add(reply["signed-message"])
                return response.status == 200

            await until(is_answered)
            for text in signed:
                verify_signed_message(
                    network, text, message.unsigned.raw, message.signing_subnet_id, QUORUM
                )


def wait_for_standbys(cluster: Cluster) -> None:
    """Wait until both standbys follow the primary."""
    deadline = monotonic() + FAILOVER_S
    while cluster.standbys() < 2:
        assert monotonic() < deadline, "a standby is missing"
        sleep(0.1)


def report(load: Load, failovers: list[tuple[bool, float, float, float]]) -> None:
    """Print the figures of a run."""
    latencies = sorted(load.latencies_s)
    print(f"responses: {dict(load.statuses)}")
    print(f"messages signed: {len(load.signed)}; usage calls: {load.calls}")
    print(
        f"latency of a success: p50 {latencies[len(latencies) // 2] * 1000:.0f} ms, p99"
        f" {latencies[len(latencies) * 99 // 100] * 1000:.0f} ms, max {latencies[-1] * 1000:.0f} ms"
    )
    for is_machine in (False, True):
        rows: list[Any] = [row for row in failovers if row[0] is is_machine]
        for name, column in (
            ("new primary after the kill", 1),
            ("store after it", 2),
            ("index after it", 3),
        ):
            values = [row[column] for row in rows]
            if values:
                kind = "machine" if is_machine else "server"
                print(
                    f"{kind}: {name}: median {median(values):.2f} s, max {max(values):.2f} s,"
                    f" {len(values)} kills"
                )
