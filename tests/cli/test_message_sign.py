"""`warpseal message sign`, against a daemon on a simulated network: by message, by transaction, and
what is missing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.integration.l1_daemon import attested_message
from tests.integration.message_verifier import verify_signed_message
from tests.integration.process import FinishedCommand, run_command
from warpseal.warp.ids import P_CHAIN, cb58_encode, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule
from warpseal_simnet.values import SimMessage

# Of the first L1, a half of the weight does not listen; of the second one, all validators sign.
PLAN = Plan(
    validators=3,
    l1s=(L1Plan(validators=4), L1Plan(validators=4)),
    messages=4,
    rules=tuple(map(parse_rule, ("l1-0/0:closed", "l1-0/1:closed", "l1-1/0:inactive"))),
)


@dataclass(frozen=True)
class SigningDaemon:
    """A daemon over the network of `PLAN`, whose subnets are the primary network and two L1s."""

    network: SimulatedNetwork
    daemon: Daemon
    folder: Path

    def message_of(self, place: int) -> SimMessage:
        """Return a message of a chain of the subnet at a place."""
        chains = set(self.network.state.chains_of(self.network.subnets[place].subnet_id)) - {
            P_CHAIN
        }
        return next(
            message
            for message in self.network.messages
            if message.unsigned.source_chain_id in chains
        )

    async def sign(self, *words: str) -> FinishedCommand:
        """Run `warpseal message sign`."""
        return await run_command("message", "sign", *words, "--data-dir", self.folder / "data")


@asynccontextmanager
async def run_signing_daemon(folder: Path) -> AsyncIterator[SigningDaemon]:
    async with run_network(PLAN) as network, run_daemon(build_config(network, folder)) as daemon:
        await daemon.until_open()
        yield SigningDaemon(network, daemon, folder)


async def test_a_signed_message_is_printed_alone_and_missing_validators_as_a_table(
    tmp_path: Path,
) -> None:
    async with run_signing_daemon(tmp_path) as running:
        network = running.network
        message = running.message_of(0)
        ended = await running.sign("0x" + message.unsigned.raw.hex())
        assert ended.code == 0, ended.stderr
        assert ended.stdout.count("\n") == 1
        signer = message.signing_subnet_id
        verify_signed_message(
            network, ended.stdout.strip(), message.unsigned.raw, signer, 67, PLAN.height
        )
        assert "signed by " in ended.stderr

        half = running.message_of(1).unsigned.raw.hex()
        ended = await running.sign(half, "--timeout", "3")
        assert (ended.code, ended.stdout) == (4, ""), ended
        lines = [line.split() for line in ended.stderr.splitlines()]
        assert ["MISSING", "WEIGHT", "SHARE", "REASON"] in lines
        assert ended.stderr.count("Ask again in a few seconds.") == 1
        closed = {validator.name for validator in network.validators[3:5]}
        assert closed == {words[0] for words in lines if words and words[0].startswith("NodeID-")}
        assert all("25.0" in words for words in lines if words and words[0].startswith("NodeID-"))
        ended = await running.sign(half, "--timeout", "3", "--json")
        document = json.loads(ended.stdout)
        assert (ended.code, document["code"], document["detail"]["verdict"]) == (
            4,
            "quorum_not_reached",
            "wait",
        )
        proven = next(
            message for message in network.messages if message.unsigned.source_chain_id == P_CHAIN
        )
        words = (
            proven.unsigned.raw.hex(),
            "--signing-subnet",
            id_text(network.subnets[0].subnet_id),
        )
        ended = await running.sign(*words)
        assert ended.code == 1, ended
        assert ended.stderr.count("Send the justification that this message needs") == 1
        assert (await running.sign(*words, "--justification", proven.justification.hex())).code == 0
        # A lower quorum is one that the others hold.
        assert (await running.sign(half, "--quorum", "50")).code == 0

        # A quarter of the second L1 is inactive until it is funded.
        ended = await running.sign(running.message_of(2).unsigned.raw.hex(), "--quorum", "100")
        assert ended.code == 4, ended
        assert f"{network.validators[7].name}  1000    25.0 %  inactive: balance 0" in ended.stderr
        ended = await running.sign(half, "--signing-subnet", id_text(bytes(31) + b"1"))
        assert (ended.code, ended.stdout) == (1, ""), ended
        assert ended.stderr.startswith("warpseal: ")


async def test_the_message_of_a_transaction_is_signed_and_explained(tmp_path: Path) -> None:
    async with run_signing_daemon(tmp_path) as running:
        conversion = running.network.p_chain.conversion_of(running.network.subnets[2].subnet_id)
        ended = await running.sign(conversion.text)
        attested = attested_message(conversion).unsigned.raw.hex()
        assert (ended.code, ended.stdout.startswith(attested)) == (0, True), ended
        ended = await running.sign(conversion.text, "--explain")
        assert (ended.code, ended.stdout.startswith(attested)) == (0, True), ended
        assert "SubnetToL1Conversion" in ended.stderr
        assert ended.stderr.count("checks:") == 1
        explained = json.loads((await running.sign(conversion.text, "--explain", "--json")).stdout)
        assert list(explained) == ["explanation", "signedMessage"]
        assert explained["explanation"]["failing"] is None
        # A transaction may be accepted later.
        ended = await running.sign(cb58_encode(b"\x05" * 32))
        assert (ended.code, ended.stdout, "is not known to the P-Chain" in ended.stderr) == (
            4,
            "",
            True,
        )
        ended = await running.sign(conversion.text, "--signing-subnet", id_text(bytes(32)))
        assert (ended.code, ended.stderr.startswith("usage: warpseal message sign")) == (2, True)

        message = running.message_of(2).unsigned.raw.hex()
        ended = await running.sign(message, "--explain", "--destination", "P", "--json")
        explained = json.loads(ended.stdout)
        assert ended.code == 0, ended
        assert explained["explanation"]["type"]
        assert explained["report"]["destinationBlockchainId"] == id_text(bytes(32))
        explained_text = (await running.sign(message, "--explain")).stderr
        assert explained_text.startswith("type:")
        assert explained_text.count("messageId:") == 1


async def test_without_a_daemon_the_exit_code_is_3_and_without_a_message_1(tmp_path: Path) -> None:
    nowhere = ("--data-dir", str(tmp_path))
    ended = await run_command("message", "sign", "00", *nowhere)
    assert (ended.code, ended.stdout, "found no running daemon" in ended.stderr) == (3, "", True)
    ended = await run_command("message", "sign", "00", "--url", "http://127.0.0.1:9")
    assert (ended.code, "no answer from http://127.0.0.1:9" in ended.stderr) == (3, True)
    ended = await run_command("message", "sign", "zz", *nowhere)
    assert (ended.code, ended.stderr) == (
        1,
        "warpseal: expected the hex of a message or the hash of a transaction\n",
    )
    assert (await run_command("message", "sign")).code == 2
    ended = await run_command("message", "sign", "00", "--quorum", "101")
    assert ended.code == 2
    assert ended.stderr.endswith("--quorum: expected a number from 1 to 100, found '101'\n")
