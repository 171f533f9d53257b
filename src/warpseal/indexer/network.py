"""The network that is indexed: its parameters, its genesis, and how its nodes are called.

Source of truth for the genesis data in this package: `genesis_data/NOTE.md`. The P-Chain's
processor compares the hash of a genesis with the parent of the node's block 0 before it uses it.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_blocks import PGenesis, parse_p_genesis
from warpseal.errors import StartupError
from warpseal.indexer.settings import IndexerSettings
from warpseal.ledger.params import (
    STANDARD_REWARDS,
    L1FeeConfig,
    Parameters,
    UpgradeTimes,
    builtin_parameters,
    parameters_from_node,
)
from warpseal.node.settings import NodeSettings
from warpseal.runtime.process import os_error_text
from warpseal.runtime.zstd import Decompressor, ZstdError

if TYPE_CHECKING:
    # The worker uses this module without the clients of nodes.
    from warpseal.node.upstream import Upstream

MAX_GENESIS_BYTES: Final = 64 * 1024 * 1024
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_PUBLIC_NETWORKS: Final = {1: "mainnet", 5: "fuji"}
# For nodes that are too old to report it: no transaction pays this fee before Etna.
_DEFAULT_L1_FEE: Final = L1FeeConfig(target=10_000, min_price=512, excess_conversion=1_246_488_515)


class IndexedNetwork(Struct, frozen=True):
    """The parameters of a network and the genesis of its P-Chain; genesis None: not known."""

    params: Parameters
    genesis: PGenesis | None

    @property
    def is_x_complete(self) -> bool:
        """Whether the X-Chain began linear, so that its blocks have all of its outputs."""
        return self.genesis is not None and self.params.upgrades.cortina_s <= self.genesis.timestamp


async def fetch_network(
    upstream: Upstream, network_id: int, genesis: PGenesis | None
) -> IndexedNetwork:
    """Return a network; a node reports the parameters of those that are not public.

    Raises NodeUnavailable.
    """
    parameters = builtin_parameters(network_id)
    if parameters is not None:
        return IndexedNetwork(parameters, genesis)
    node = await upstream.state.first_available()
    l1_fee = await node.fee_config() or _DEFAULT_L1_FEE
    asset_id, times_s = await node.staking_asset(), await upstream.info.upgrades()
    if genesis is not None:
        return IndexedNetwork(
            parameters_from_node(network_id, asset_id, genesis, times_s, l1_fee), genesis
        )
    chain_ids = (await upstream.info.blockchain_id("X"), await upstream.info.blockchain_id("C"))
    upgrades = UpgradeTimes.from_node(times_s)
    return IndexedNetwork(
        Parameters(network_id, asset_id, *chain_ids, upgrades, STANDARD_REWARDS, l1_fee), None
    )


def indexer_node_settings(node: NodeSettings, indexer: IndexerSettings) -> NodeSettings:
    """Return how the indexer calls nodes: with its share of the limits, and large replies."""
    return replace(
        node,
        background_eighths=3,
        max_answer_bytes=node.max_set_bytes,
        call_timeout_s=max(node.call_timeout_s, indexer.call_timeout_s),
    )


def load_genesis(network_id: int, file: Path | None) -> PGenesis | None:
    """Return the genesis in `file`, else the genesis of a public network; None if neither is known.

    Raises StartupError for a file that holds no genesis.
    """
    if file is None:
        name = _PUBLIC_NETWORKS.get(network_id)
        if name is None:
            return None
        packed = files("warpseal.indexer").joinpath("genesis_data", f"{name}.bin.zst").read_bytes()
        return parse_p_genesis(Decompressor(MAX_GENESIS_BYTES).decompress(packed))
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_GENESIS_BYTES + 1)
        if len(raw) > MAX_GENESIS_BYTES:
            raise StartupError(f"genesis-file {file}: more than {MAX_GENESIS_BYTES} bytes")
        if raw.startswith(_ZSTD_MAGIC):
            raw = Decompressor(MAX_GENESIS_BYTES).decompress(raw)
        return parse_p_genesis(raw)
    except OSError as error:
        raise StartupError(f"genesis-file {file} cannot be read: {os_error_text(error)}") from None
    except (MalformedChainBytes, ZstdError) as error:
        raise StartupError(f"genesis-file {file} is no P-Chain genesis: {error}") from None
