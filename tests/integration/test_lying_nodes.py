"""One node of three lies about its release and about the network's upgrades: no peer refuses the
daemon for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.eventually import until
from tests.integration.daemon import build_config, run_daemon, run_network
from warpseal_simnet.node_behaviours import NodeBehaviour
from warpseal_simnet.plan import Plan

VALIDATORS = 4


@pytest.mark.parametrize(
    ("quorum", "date"),
    [
        (None, "1960-01-01T00:00:00Z"),
        (None, "0001-01-01T00:00:00+23:59"),
        (2, "2100-01-01T00:00:00Z"),
    ],
)
async def test_peers_stay_connected_beside_a_node_that_lies_about_itself(
    tmp_path: Path, quorum: int | None, date: str
) -> None:
    async with run_network(Plan(validators=VALIDATORS, l1s=(), nodes=3)) as network:
        network.nodes[0].behaviour = NodeBehaviour(foreign_version="99.0.0", foreign_upgrade=date)
        nodes = [{"base-url": node.uri} for node in network.nodes]
        keys: dict[str, Any] = {"p-chain-api": nodes, "info-api": nodes}
        if quorum is not None:
            keys["p-chain-quorum"] = quorum
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            await daemon.until_connected(VALIDATORS)
            for place in range(VALIDATORS):
                network.disconnect(place)
            # With the handshake of now.
            await until(
                lambda: all(
                    validator.counts.finished_handshakes == 2 for validator in network.validators
                )
            )
            assert (await daemon.aggregate(network.messages[0])).status == 200
            assert (await daemon.ready()).status == 200
            assert (await daemon.get("/status.json")).status == 200
            async with daemon.session.get(f"{daemon.api_url}/") as page:
                assert page.status == 200
