"""The simulated network of a benchmark: started as a process of its own, described by the file that
it writes.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process import Process, running

READ_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Network:
    """A running simulated network.

    facts: content of its file.
    """

    process: Process
    facts: dict[str, Any]

    def subnet_of_size(self, validators: int) -> str:
        """Return the last subnet with this many validators: an L1 if there is one."""
        fitting = [item for item in self.facts["subnets"] if len(item["validators"]) == validators]
        return str(fitting[-1]["subnetId"])

    def messages(self, subnet_id: str) -> list[str]:
        """Return the messages (hex) that need no justification and that a subnet is to sign."""
        return [
            item["message"]
            for item in self.facts["messages"]
            if item["signingSubnetId"] == subnet_id and not item["justification"]
        ]

    def own_messages(self, subnet_id: str) -> list[str]:
        """Return the messages (hex) that a subnet is to sign and that its own chains emitted."""
        subnet = next(item for item in self.facts["subnets"] if item["subnetId"] == subnet_id)
        return [
            item["message"]
            for item in self.facts["messages"]
            if item["sourceBlockchainId"] in subnet["blockchainIds"]
        ]

    def counted(self, name: str) -> int:
        """Return what the validators counted together: "appRequests", "shares", "refusals",
        "handshakes", …
        """
        return sum(item[name] for item in self._get("stats")["validators"])

    def violations(self) -> int:
        """Return how often the daemon broke the protocol, tolerated violations included."""
        return int(self._get("violations")["total"])

    def sent_shares(self) -> dict[str, list[tuple[int, int, int]]]:
        """Return the shares of the last 32 messages by message id, in the order of their writes.

        Index of the validator in the network; nanoseconds at which it was asked, and wrote.
        """
        shares: dict[str, list[tuple[int, int, int]]] = self._get("shares")
        return shares

    def _get(self, page: str) -> dict[str, Any]:
        with urllib.request.urlopen(
            f"{self.facts['nodeUri']}/simnet/{page}", timeout=READ_TIMEOUT_S
        ) as response:
            document: dict[str, Any] = json.load(response)
        return document


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The plan of a simulated network.

    l1s: number of the `validators` that validate each L1.
    messages: number of messages per chain, all pre-signed.
    extra: more flags of `warpseal simnet`.
    """

    validators: int
    l1s: tuple[int, ...]
    messages: int
    extra: tuple[str, ...] = ()

    def arguments(self, file: Path) -> Sequence[str]:
        """Return the command line, without the program."""
        size = ("--validators", str(self.validators), "--messages", str(self.messages))
        l1s = [word for count in self.l1s for word in ("--l1", f"validators={count},shared")]
        return (
            "simnet",
            *size,
            "--presign",
            str(self.messages),
            "--write",
            str(file),
            *l1s,
            *self.extra,
        )


@contextmanager
def simulated_network(plan: NetworkPlan, folder: Path) -> Iterator[Network]:
    """Run a simulated network until the block ends.

    folder: folder of its file and its log.
    """
    file = folder / "network.json"
    with running(plan.arguments(file), folder / "simnet.log") as process:
        yield Network(process, json.loads(file.read_text()))
