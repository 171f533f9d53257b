"""Daemons with a filled index: of the recorded network, and of a synthetic history with rewards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import zstandard

from tests.chains.p_vectors import checked_hex, genesis_bytes
from tests.index.fixtures import made_up_history, write_all
from tests.indexer.indexed import index_all, only
from tests.indexer.replay import ReplayNode, serving
from tests.integration.daemon import Daemon, run_daemon
from tests.ledger import made_up_network as made_up
from warpseal.config.keys import Config
from warpseal.config.load import load
from warpseal.resources.chains import PrimaryChain
from warpseal.warp.ids import id_text

SYNTHETIC_BLOCKS = 260


@asynccontextmanager
async def run_recorded_daemon(
    folder: Path, node: ReplayNode | None = None, **keys: Any
) -> AsyncIterator[Daemon]:
    """Run a daemon with the recorded network's index.

    keys: entries of the config file, `_` for `-`.
    """
    chains = [chain for chain in PrimaryChain if chain.value[0] in keys.get("index_chains", "pxc")]
    async with serving(node or ReplayNode()) as served:
        await index_all(_network_folder(folder, served.network_id), served, settings=only(*chains))
        async with run_daemon(build_config(folder, served, **keys)) as daemon:
            yield daemon


@asynccontextmanager
async def run_synthetic_daemon(folder: Path, seed: int = 7, **keys: Any) -> AsyncIterator[Daemon]:
    """Run a daemon with the index of a synthetic P-Chain history.

    keys: entries of the config file, `_` for `-`.
    """
    url = _write_index(folder, seed)
    chains = {id_text(tx.id): checked_hex(tx.raw) for tx in made_up.CHAIN_TXS}
    responses = {
        "platform.getStakingAssetID": {"assetID": id_text(made_up.AVAX)},
        "platform.getCurrentValidators": {"validators": []},
        "info.peers": {"peers": []},
        "platform.validates": {"blockchainIDs": list(chains)},
        "platform.getTx": lambda params: {"tx": chains[params["txID"]], "encoding": "hex"},
        "platform.getTxStatus": {"status": "Committed"},
    }
    async with (
        serving(ReplayNode(network_id=made_up.NETWORK_ID, replies=responses)) as node,
        # The keys of the made-up validators are no points of a curve.
        run_daemon(
            build_config(
                folder,
                node,
                index_url=url,
                index_chains=["p"],
                **{"validator_sets": "node", **keys},
            )
        ) as daemon,
    ):
        yield daemon


async def is_indexed(session: aiohttp.ClientSession, api_url: str, node: ReplayNode) -> bool:
    """Return whether a daemon has indexed the P-Chain up to the newest block of its node."""
    url = f"{api_url}/v1/networks/fuji/blockchains/p-chain/blocks?pageSize=1"
    async with session.get(url) as reply:
        body = await reply.json()
    # Another status means that the index has not begun.
    return reply.status == 200 and int(body["blocks"][0]["blockNumber"]) == node.tip("P")


def write_prices(folder: Path, rows: str) -> None:
    """Write prices of AVAX, `date,currency,price` a line, for the daemon of a folder."""
    file = folder / "data" / "prices.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("date,currency,price\n" + rows)


def build_config(folder: Path, node: ReplayNode, **keys: Any) -> Config:
    """Return the configuration of a daemon with one node."""
    return load(write_config_file(folder, node, **keys), {}, {}).config


def write_config_file(folder: Path, node: ReplayNode, **keys: Any) -> Path:
    """Write the configuration of a daemon with one node, on free loopback ports."""
    genesis = folder / "genesis.zst"
    genesis.write_bytes(zstandard.compress(genesis_bytes("localnet")))
    api = {"base-url": node.url}
    own: dict[str, Any] = {
        "p-chain-api": api,
        "info-api": api,
        "data-dir": str(folder / "data"),
        "genesis-file": str(genesis),
        "index-chains": ["p", "x", "c"],
        # Tests that run at the same time would leave a low-priority process no CPU time.
        "index-low-priority": False,
    }
    own |= dict.fromkeys(("api-host",), "127.0.0.1") | dict.fromkeys(
        ("api-port", "metrics-port"), 0
    )
    file = folder / "config.json"
    file.write_text(
        json.dumps(own | {name.replace("_", "-"): value for name, value in keys.items()})
    )
    return file


async def fetch_all(daemon: Daemon, path: str, key: str, size: int = 100) -> list[dict[str, Any]]:
    """Return the items of all pages; every page after the first is requested by its token alone."""
    joint = "&" if "?" in path else "?"
    body = (await daemon.get(f"{path}{joint}pageSize={size}")).body
    items: list[dict[str, Any]] = list(body[key])
    while "nextPageToken" in body:
        reply = await daemon.get(f"{path.partition('?')[0]}?pageToken={body['nextPageToken']}")
        assert reply.status == 200, reply.body
        body = reply.body
        items += body[key]
    return items


def node_ids(items: Sequence[dict[str, Any]]) -> list[str]:
    """Return the ids of the nodes in transactions."""
    return sorted({item["nodeId"] for item in items if "nodeId" in item})


def _network_folder(folder: Path, network_id: int) -> Path:
    """Create and return the folder of a network in the data folder."""
    own = folder / "data" / str(network_id)
    own.mkdir(parents=True, exist_ok=True)
    return own


def _write_index(folder: Path, seed: int) -> str:
    """Write the index of a synthetic history and return its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{folder}/made-up.db"
    write_all(
        url, made_up.PARAMS, [record for record, _ in made_up_history(seed, SYNTHETIC_BLOCKS)]
    )
    return url
