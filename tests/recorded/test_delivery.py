"""Destinations of the recorded network: their epochs and the sets of these, as recorded."""

from __future__ import annotations

import pytest

from tests.api.signing.reference_table import load_exchanges
from tests.integration.daemon import AGGREGATE_V1_PATH, Daemon
from tests.node.recorded_node import C_CHAIN, L1_CHAIN
from tests.recorded import recording
from warpseal.warp.ids import ChainID, id_text
from warpseal_simnet.network import SimulatedNetwork

pytestmark = pytest.mark.asyncio(loop_scope="module")

OF_THE_L1 = next(exchange.request for exchange in load_exchanges() if exchange.position == 0)


@pytest.mark.parametrize(
    ("chain_id", "number", "start", "height"),
    [(L1_CHAIN, 30, 1_795_226_806, 18), (C_CHAIN, 7, 1_795_226_690, 13)],
    ids=["l1", "c-chain"],
)
async def test_a_message_is_signed_for_the_recorded_epoch(
    daemon: Daemon,
    network: SimulatedNetwork,
    chain_id: ChainID,
    number: int,
    start: int,
    height: int,
) -> None:
    assert isinstance(OF_THE_L1, dict)
    fields = {
        "message": OF_THE_L1["message"],
        "destinationBlockchainId": id_text(chain_id),
        "report": True,
    }
    reply = await daemon.post(AGGREGATE_V1_PATH, fields)
    report = reply.body["report"]
    assert report["epoch"] == {
        "number": number,
        "startTime": start,
        "pChainHeight": str(height),
        "sealedFrom": start + 4,
    }
    assert (report["signingSubnetId"], report["pChainHeight"]) == (recording.L1, str(height))
    assert report["quorum"] == {"percentage": 67, "source": "default"}
    candidates = {entry["epoch"]: entry for entry in report["heights"]}
    assert {label: entry["pChainHeight"] for label, entry in candidates.items()} == {
        "current": str(height),
        "next": "19",
        "proposed": "19",
    }
    for label in candidates:
        at = int(candidates[label]["pChainHeight"])
        assert candidates[label]["totalWeight"] == str(recording.validators(recording.L1, at)[1])
    assert (
        report["verifiesNow"]
        is network.verify_next(chain_id, bytes.fromhex(reply.signed)).accepted
        is True
    )
