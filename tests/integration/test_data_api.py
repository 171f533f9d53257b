"""The Data API of a daemon without an index: the responses of the node, and the errors for the
rest.
"""

from __future__ import annotations

from pathlib import Path

from tests.integration.daemon import build_config, run_daemon, run_network
from warpseal.warp.ids import id_text
from warpseal_simnet.plan import Plan

PLAN = Plan(validators=5)


async def test_without_an_index_blockchains_and_validators_come_from_the_node(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        subnet = network.subnets[1]
        assert subnet.manager_chain_id is not None
        networks = "/v1/networks/mainnet"
        blockchain = await daemon.get(f"{networks}/blockchains/{id_text(subnet.manager_chain_id)}")
        validator = await daemon.get(f"{networks}/validators/{network.validators[0].name}")
        blocks = await daemon.get(f"{networks}/blockchains/p-chain/blocks")
        document = await daemon.get("/openapi.json")
    assert (blockchain.status, blockchain.body["subnetId"]) == (200, id_text(subnet.subnet_id))
    assert validator.status == 200, validator.body
    (body,) = validator.body["validators"]
    assert (body["validationStatus"], body["delegationFee"]) == ("active", "2")
    assert (blocks.status, blocks.body["code"]) == (404, "index_not_enabled")
    assert document.body["openapi"] == "3.1.0"
