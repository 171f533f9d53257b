"""A daemon over a simulated network with an L1, and assertions about its responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.eventually import until
from tests.integration.daemon import (
    Daemon,
    Reply,
    build_config,
    count_signature_requests,
    run_daemon,
    run_network,
)
from tests.integration.message_verifier import VerifiedMessage, verify_signed_message
from warpseal.warp.ids import SubnetID, ValidationID
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

HEIGHT = "X-Warpseal-P-Chain-Height"
HEIGHT_SOURCE = "X-Warpseal-P-Chain-Height-Source"
SIGNING_SUBNET = "X-Warpseal-Signing-Subnet-Id"

L1_PLAN = Plan(validators=3, l1s=(L1Plan(validators=4, spare=2),), messages=0, epoch_blocks=40)
# Lookups expire soon, so that a test sees each change; their timeout is long enough for a busy
# machine.
QUICK: Mapping[str, Mapping[str, Any]] = {
    "l1": {
        "validity_ttl_s": 0.0,
        "miss_ttl_s": 0.0,
        "recheck_interval_s": 0.1,
        "lookup_timeout_s": 10.0,
    },
    "follower": {"follow_poll_s": 0.05},
    "validators": {"height_poll_s": 0.05},
}


@dataclass(frozen=True)
class L1Daemon:
    """A daemon over a network; the tests are about its last L1."""

    network: SimulatedNetwork
    daemon: Daemon

    @property
    def l1(self) -> SubnetID:
        """The last L1 of the plan."""
        return self.network.subnets[-1].subnet_id

    def count_signature_requests(self) -> int:
        """Return how many signature requests validators got so far."""
        return count_signature_requests(self.network)

    def nodes_of_l1(self) -> list[int]:
        """Return the indices of the nodes that track the L1."""
        return [
            validator.index for validator in self.network.validators if self.l1 in validator.subnets
        ]

    def verify(self, reply: Reply, transaction: Transaction) -> VerifiedMessage:
        """Assert that a reply has the attested message, signed by 67 percent at the height in its
        header.
        """
        assert reply.status == 201, reply.body
        attested = attested_message(transaction)
        height = int(reply.headers[HEIGHT])
        signer = attested.signing_subnet_id
        return verify_signed_message(
            self.network, reply.signed, attested.unsigned.raw, signer, 67, height
        )

    async def deliver(self, transaction: Transaction, **query: Any) -> Reply:
        """Assert that the daemon signs a transaction's message and that the L1's manager accepts
        it.
        """
        reply = await self.daemon.l1_message(transaction, **query)
        self.verify(reply, transaction)
        assert "superseded" not in reply.body
        delivery = self.network.manager(self.l1).deliver(bytes.fromhex(reply.signed))
        assert delivery.accepted, delivery.reason
        return reply

    async def expect_error(
        self, status: int, code: str, transaction: Transaction | str, **query: Any
    ) -> Reply:
        """Assert that the reply is an error with this status and code."""
        reply = await self.daemon.l1_message(transaction, **query)
        assert (reply.status, reply.body.get("code")) == (status, code), reply.body
        return reply

    async def expect_shortfall(
        self, transaction: Transaction, has_all_replies: Callable[[Mapping[str, Any]], bool]
    ) -> Reply:
        """Return the error of a missed quorum; a busy machine may need several requests until it
        has all replies.
        """
        replies: list[Reply] = []

        async def is_complete() -> bool:
            replies.append(
                await self.expect_error(503, "quorum_not_reached", transaction, timeoutSeconds=2)
            )
            return has_all_replies(replies[-1].detail)

        await until(is_complete)
        return replies[-1]


@asynccontextmanager
async def run_l1_network(
    folder: Path,
    plan: Plan = L1_PLAN,
    keys: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> AsyncIterator[L1Daemon]:
    """Run a network and a daemon over it."""
    async with (
        run_network(plan) as network,
        run_l1_daemon(network, folder, keys, **sections) as daemon,
    ):
        yield daemon


@asynccontextmanager
async def run_l1_daemon(
    network: SimulatedNetwork,
    folder: Path,
    keys: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> AsyncIterator[L1Daemon]:
    """Run a daemon over a running network; a second daemon in the same folder continues with its
    data.
    """
    tuned = {
        section: {**QUICK.get(section, {}), **sections.get(section, {})}
        for section in {*QUICK, *sections}
    }
    async with run_daemon(build_config(network, folder, keys, **tuned)) as daemon:
        yield L1Daemon(network, daemon)


def attested_message(transaction: Transaction) -> SimMessage:
    """Return the message that the P-Chain attests for a transaction."""
    assert transaction.attested is not None
    return transaction.attested


def validation_id_of(transaction: Transaction) -> ValidationID:
    """Return the validation that a transaction is about."""
    assert transaction.validation_id is not None
    return transaction.validation_id


async def until_status(
    running: L1Daemon, status: int, transaction: Transaction, **query: Any
) -> Reply:
    """Repeat a request until its reply has this status; return the reply."""
    replies: list[Reply] = []

    async def has_status() -> bool:
        replies.append(await running.daemon.l1_message(transaction, **query))
        return replies[-1].status == status

    await until(has_status)
    return replies[-1]
