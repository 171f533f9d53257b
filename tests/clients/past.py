"""A daemon over a made-up history of the P-Chain in which rewards are paid, and what clients read
of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.api.data import sdk_models as sdk
from tests.clients.subjects import NETWORK, Subject
from tests.integration.daemon import Daemon
from tests.integration.indexed_daemon import fetch_all, node_ids, run_synthetic_daemon, write_prices

LISTS: Final[dict[type[Any], str]] = {
    sdk.RewardPage: "historicalRewards",
    sdk.ValidatorPage: "validators",
    sdk.PPage: "transactions",
}
_TXS: Final = f"/v1/networks/{NETWORK}/blockchains/p-chain/transactions"


@asynccontextmanager
async def priced_daemon(folder: Path) -> AsyncIterator[Daemon]:
    """Run the daemon, with a price for each of its days."""
    write_prices(folder, "".join(f"2020-09-{day:02},usd,5.25\n" for day in range(1, 31)))
    async with run_synthetic_daemon(folder) as daemon:
        yield daemon


async def past_of(daemon: Daemon) -> list[Subject]:
    """Return what there is: rewards of all nodes, then each node's validations, then all
    transactions.
    """
    nodes = node_ids(await fetch_all(daemon, _TXS, "transactions"))
    rewards = Subject(
        "rewards.listHistoricalRewards", "rewards", sdk.RewardPage, {"nodeIds": ",".join(nodes)}
    )
    each = [
        Subject("getValidatorDetails", "validators/{nodeId}", sdk.ValidatorPage, {"nodeId": node})
        for node in nodes
    ]
    whole = {"blockchainId": "p-chain"}
    txs = Subject(
        "transactions.listLatest", "blockchains/{blockchainId}/transactions", sdk.PPage, whole
    )
    return [rewards, *each, txs]
