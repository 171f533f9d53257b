"""The network that stands up from the recording answers what no recording has as the recording
implies it.
"""

from __future__ import annotations

import aiohttp
import pytest

from tests.recorded import recording
from warpseal_simnet.network import SimulatedNetwork

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_each_chain_is_validated_by_the_subnet_of_the_recorded_blockchains(
    network: SimulatedNetwork,
) -> None:
    recorded = recording.blockchains()
    assert set(recorded.values()) == {recording.PRIMARY, recording.L1, recording.PERMISSIONED}
    async with aiohttp.ClientSession() as session:
        for chain_id, subnet_id in recorded.items():
            call = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "platform.validatedBy",
                "params": {"blockchainID": chain_id},
            }
            async with session.post(f"{network.node_uri}/ext/bc/P", json=call) as response:
                assert (await response.json())["result"] == {"subnetID": subnet_id}
