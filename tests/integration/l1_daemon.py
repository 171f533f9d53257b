"""An L1 on a simulated P-Chain and a whole daemon beside it: what callers get, judged from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.eventually import until
from tests.integration.daemon import Daemon, Reply, build_config, run_daemon, run_network
from tests.integration.message_verifier import VerifiedMessage, verify_signed_message
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.simnet.values import SimMessage
from warpseal.warp.ids import SubnetID, ValidationID

HEIGHT = "X-Warpseal-P-Chain-Height"
HEIGHT_SOURCE = "X-Warpseal-P-Chain-Height-Source"
SIGNING_SUBNET = "X-Warpseal-Signing-Subnet-Id"

LIFE = Plan(validators=3, l1s=(L1Plan(validators=4, spare=2),), messages=0, epoch_blocks=40)
# What was looked up is forgotten soon, so that a test sees each change; and a busy machine has time to look.
QUICK: Mapping[str, Mapping[str, Any]] = {
    "l1": {"validity_ttl_s": 0.0, "miss_ttl_s": 0.0, "recheck_interval_s": 0.1, "lookup_timeout_s": 10.0},
    "follower": {"follow_poll_s": 0.05},
    "validators": {"height_poll_s": 0.05},
}


@dataclass(frozen=True)
class Scene:
    """A daemon beside a network whose last L1 is looked at."""

    network: SimulatedNetwork
    daemon: Daemon

    @property
    def l1(self) -> SubnetID:
        """The last L1 of the plan."""
        return self.network.subnets[-1].subnet_id

    def asked(self) -> int:
        """Return how many signature requests validators got so far."""
        return asked(self.network)

    def nodes_of_l1(self) -> list[int]:
        """Return the indices of the nodes that track the L1."""
        return [validator.index for validator in self.network.validators if self.l1 in validator.subnets]

    def judged(self, reply: Reply, transaction: Transaction) -> VerifiedMessage:
        """Assert that an answer is the attested message, signed by 67 percent at the height that its header names."""
        assert reply.status == 201, reply.body
        attested = attested_by(transaction)
        height = int(reply.headers[HEIGHT])
        signer = attested.signing_subnet_id
        return verify_signed_message(self.network, reply.signed, attested.unsigned.raw, signer, 67, height)

    async def delivered(self, transaction: Transaction, **query: Any) -> Reply:
        """Assert that a transaction's message is signed and taken by the L1's manager at its epoch's height."""
        reply = await self.daemon.l1_message(transaction, **query)
        self.judged(reply, transaction)
        assert "superseded" not in reply.body
        delivery = self.network.manager(self.l1).deliver(bytes.fromhex(reply.signed))
        assert delivery.accepted, delivery.reason
        return reply

    async def refused(self, status: int, code: str, subject: Transaction | str, **query: Any) -> Reply:
        """Assert that there is no signed message, and why."""
        reply = await self.daemon.l1_message(subject, **query)
        assert (reply.status, reply.body.get("code")) == (status, code), reply.body
        return reply


@asynccontextmanager
async def scene(
    folder: Path, plan: Plan = LIFE, keys: Mapping[str, Any] | None = None, **rooms: Mapping[str, Any]
) -> AsyncIterator[Scene]:
    """Run a network and a daemon over it."""
    async with run_network(plan) as network, beside(network, folder, keys, **rooms) as found:
        yield found


@asynccontextmanager
async def beside(
    network: SimulatedNetwork, folder: Path, keys: Mapping[str, Any] | None = None, **rooms: Mapping[str, Any]
) -> AsyncIterator[Scene]:
    """Run a daemon over a network that runs; a second one in the same folder goes on where the first one was."""
    tuned = {room: {**QUICK.get(room, {}), **rooms.get(room, {})} for room in {*QUICK, *rooms}}
    async with run_daemon(build_config(network, folder, keys, **tuned)) as daemon:
        yield Scene(network, daemon)


def asked(network: SimulatedNetwork) -> int:
    """Return how many signature requests validators got so far."""
    return sum(validator.counts.app_requests for validator in network.validators)


def attested_by(transaction: Transaction) -> SimMessage:
    """Return what the P-Chain says about a transaction."""
    assert transaction.attested is not None
    return transaction.attested


def validation_of(transaction: Transaction) -> ValidationID:
    """Return the validation that a transaction is about."""
    assert transaction.validation_id is not None
    return transaction.validation_id


async def until_status(scene: Scene, status: int, subject: Transaction, **query: Any) -> Reply:
    """Ask again and again, as callers do, until an answer has this status; return it."""
    replies: list[Reply] = []

    async def is_there() -> bool:
        replies.append(await scene.daemon.l1_message(subject, **query))
        return replies[-1].status == status

    await until(is_there)
    return replies[-1]
