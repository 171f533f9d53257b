"""Three daemons in three regions, 80 ms apart, on one cluster; `make test-failover` runs this."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import aiohttp
import pytest

from tests.eventually import until
from tests.failover.cluster import INSTALL, Cluster, Member, connect, missing_programs, new_cluster
from tests.failover.failover import wait_for_standbys
from tests.failover.link import Link
from tests.integration.daemon import (
    AGGREGATE_PATH,
    count_signature_requests,
    run_network,
    write_config_file,
)
from tests.integration.message_verifier import verify_signed_message
from tests.integration.process import RunningCommand, start_command
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

# One way; a round trip between two regions takes 80 ms.
DELAY_S = 0.04
QUORUM = 67
PLAN = Plan(validators=4, l1s=(L1Plan(shared=True),), messages=400, epoch_blocks=0)
PATIENCE_S = 90.0
STORE_WAIT_S = 1.0
LEASES = (
    "SELECT name, process FROM {}"
    " WHERE expires_at > clock_timestamp() AND NOT is_shared"
    " ORDER BY name"
)


@pytest.fixture(autouse=True)
def programs() -> None:
    """Say what to install."""
    if missing := missing_programs():
        pytest.fail(f"{', '.join(missing)}: not installed: {INSTALL}")


@dataclass
class Region:
    """A daemon, the server beside it, and its links to all servers."""

    member: Member
    links: list[Link]
    file: Path
    session: aiohttp.ClientSession
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    url: str = ""
    daemon: RunningCommand | None = None

    async def start(self) -> None:
        """Run the daemon."""
        self.daemon = await self.stack.enter_async_context(
            start_command("serve", "--config", self.file)
        )
        self.url, _ = await self.daemon.listening()

    async def kill(self) -> None:
        """Kill the daemon."""
        await self.stack.aclose()
        self.daemon = None

    async def ready(self) -> dict[str, Any]:
        """Return the body of /ready."""
        async with self.session.get(f"{self.url}/ready") as response:
            body: dict[str, Any] = await response.json()
        return body

    async def is_up(self) -> bool:
        """Return whether the daemon is ready and has the store."""
        body = await self.ready()
        return bool(body["ready"] and body["store"]["up"])

    async def leads(self) -> bool:
        """Return whether the daemon follows the P-Chain for all."""
        return bool((await self.ready())["follower"]["leader"])

    async def sign(self, message: SimMessage) -> tuple[str, float]:
        """Return the signed message, and the seconds that it took."""
        began = monotonic()
        body = {"message": message.unsigned.raw.hex()}
        async with self.session.post(self.url + AGGREGATE_PATH, json=body) as response:
            assert response.status == 200, await response.text()
            signed: str = (await response.json())["signed-message"]
        return signed, monotonic() - began


@dataclass
class Deployment:
    """The regions, their cluster, and the network whose messages they sign."""

    cluster: Cluster
    network: SimulatedNetwork
    regions: list[Region]
    messages: list[SimMessage]
    # Responses that took less than a second, and others.
    shared: int = 0
    late: int = 0

    @property
    def running(self) -> list[Region]:
        """The regions whose daemon runs."""
        return [region for region in self.regions if region.daemon is not None]

    async def until_up(self) -> None:
        """Wait until each daemon has the store, and one of them leads."""
        for region in self.running:
            await until(region.is_up, PATIENCE_S)
        await until(self.has_leader, PATIENCE_S)

    async def has_leader(self) -> bool:
        """Return whether a daemon leads; never do two of them."""
        leaders = [await region.leads() for region in self.running]
        assert sum(leaders) <= 1
        return any(leaders)

    async def check(self) -> None:
        """Assert that a message which one daemon signs is answered by all others without any
        validator.

        A daemon waits a second for a commit, and for a read: responses that took longer are only
        counted.
        """
        for region in self.running:
            message = self.messages.pop()
            signed, first_s = await region.sign(message)
            verify_signed_message(
                self.network, signed, message.unsigned.raw, message.signing_subnet_id, QUORUM
            )
            for other in self.running:
                before = count_signature_requests(self.network)
                again, seconds = await other.sign(message)
                if max(first_s, seconds) < STORE_WAIT_S:
                    assert (again, count_signature_requests(self.network)) == (signed, before)
                    self.shared += 1
                else:
                    self.late += 1

    def primary_region(self) -> Region:
        """Return the region of the primary."""
        primary = self.cluster.primary()
        return next(region for region in self.regions if region.member is primary)

    def leases(self, table: str) -> list[tuple[Any, ...]]:
        """Return the leases that one daemon holds, and the name of this daemon."""
        primary = self.cluster.primary()
        assert primary is not None
        with connect(primary) as session:
            return session.execute(LEASES.format(table).encode()).fetchall()


@asynccontextmanager
async def run_deployment(folder: Path) -> AsyncIterator[Deployment]:
    """Run everything. The servers replicate over links as well."""
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(new_cluster())
        for member in cluster.members:
            link = await stack.enter_async_context(Link(member.port, DELAY_S))
            member.public_port = link.port
        await asyncio.to_thread(cluster.start)
        network = await stack.enter_async_context(run_network(PLAN))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        regions = []
        for member in cluster.members:
            links = [
                await stack.enter_async_context(
                    Link(other.port, 0.0 if other is member else DELAY_S)
                )
                for other in cluster.members
            ]
            url = cluster.url(link.port for link in links)
            keys = {
                "store-url": url,
                "metrics-db-url": url,
                "gateway-nodes": {"base-url": network.node_uri},
            }
            file = write_config_file(network, folder / member.name, keys)
            region = Region(member, links, file, session)
            stack.push_async_callback(region.kill)
            await region.start()
            regions.append(region)
        messages = network.messages_of(network.subnets[-1].subnet_id)
        deployment = Deployment(cluster, network, regions, messages)
        await deployment.until_up()
        yield deployment


async def test_three_regions_share_signatures_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    async with run_deployment(tmp_path) as running:
        await running.check()
        report_latencies(await latencies(running))
        for table, names in (("leases", ["p-chain"]), ("warpseal_metrics.leases", ["usage"])):
            assert [name for name, _ in running.leases(table)] == names
        for region in running.regions:
            await lose_daemon(running, region)
        for number in range(len(running.regions)):
            await lose_link(running, running.regions[number], running.regions[number - 1])
        for region in running.regions:
            await lose_region(running, region)
        print(
            f"answered without a validator: {running.shared};"
            f" after more than a second: {running.late}"
        )
        assert running.shared > 10 * running.late


async def lose_daemon(running: Deployment, region: Region) -> None:
    """Kill a daemon, and start it again."""
    was_leader = await region.leads()
    await region.kill()
    began = monotonic()
    await running.until_up()
    duration_s = monotonic() - began
    print(
        f"daemon {region.member.name} lost, leader={was_leader}:"
        f" another one leads after {duration_s:.1f} s"
    )
    await running.check()
    await region.start()
    await running.until_up()
    await running.check()


async def lose_link(running: Deployment, first: Region, second: Region) -> None:
    """Cut the link between two regions: their daemons sign, and have the store again at the end."""
    pairs = [(first, second), (second, first)]
    cut = [region.links[running.regions.index(other)] for region, other in pairs]
    for link in cut:
        link.cut()
    await asyncio.sleep(12)
    assert await running.has_leader()
    message = running.messages.pop()
    for text, _ in [await region.sign(message) for region in running.running]:
        verify_signed_message(
            running.network, text, message.unsigned.raw, message.signing_subnet_id, QUORUM
        )
    is_up = [await region.is_up() for region in running.running]
    ends = f"{first.member.name}-{second.member.name}"
    print(f"link {ends} cut: the store is up in {sum(is_up)} of 3 regions")
    for link in cut:
        link.heal()
    began = monotonic()
    await running.until_up()
    print(f"link healed: the store is up in all regions after {monotonic() - began:.1f} s")
    await running.check()


async def lose_region(running: Deployment, region: Region) -> None:
    """Kill the daemon, the server and the Patroni of a region, and start them again."""
    await asyncio.to_thread(wait_for_standbys, running.cluster)
    is_primary = running.cluster.primary() is region.member
    await region.kill()
    began = monotonic()
    running.cluster.kill(region.member, with_patroni=True)
    # Signing goes on at once, although nothing can be stored yet.
    for other in running.running:
        message = running.messages.pop()
        signed, _ = await other.sign(message)
        verify_signed_message(
            running.network, signed, message.unsigned.raw, message.signing_subnet_id, QUORUM
        )
    await until(running.cluster.primary, PATIENCE_S)
    await running.until_up()
    duration_s = monotonic() - began
    print(
        f"region {region.member.name} lost, primary={is_primary}:"
        f" all is up after {duration_s:.1f} s"
    )
    await running.check()
    running.cluster.start_member(region.member)
    await region.start()
    await running.until_up()
    await asyncio.to_thread(wait_for_standbys, running.cluster)
    await running.check()


async def latencies(running: Deployment) -> dict[str, list[float]]:
    """Return seconds by kind of request: new messages, and those that another daemon has signed."""
    primary = running.primary_region()
    by_kind: dict[str, list[float]] = {}
    for _ in range(10):
        for number, region in enumerate(running.regions):
            message = running.messages.pop()
            for kind, daemon in (
                ("new", region),
                ("signed by another", running.regions[number - 1]),
            ):
                place = "beside the primary" if daemon is primary else "80 ms from the primary"
                _, seconds = await daemon.sign(message)
                by_kind.setdefault(f"{kind}, {place}", []).append(seconds)
    return by_kind


def report_latencies(by_kind: dict[str, list[float]]) -> None:
    """Print the median of each kind."""
    for kind, values in sorted(by_kind.items()):
        print(f"{kind}: p50 {median(values) * 1000:.0f} ms, max {max(values) * 1000:.0f} ms")
