"""The Data API over an existing index, on loopback, without the rest of the daemon; for benchmarks
only.

python -m benchmarks.index_server --url sqlite:///PATH --cache-bytes N
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Final

import uvloop

from benchmarks.index_made_up import PARAMS
from warpseal.aggregation.settings import AggregationSettings
from warpseal.api.data.endpoint_needs import EndpointNeeds, EphemeralKeys
from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.data.network import AvalancheNetwork
from warpseal.api.data.routes import DataApi
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.grpc.calls import GrpcCalls
from warpseal.api.grpc.server import GrpcServer
from warpseal.api.http.allowed_hosts import AllowedHosts
from warpseal.api.http.listener import Listener
from warpseal.api.http.server import HttpServer
from warpseal.api.http.settings import ApiSettings
from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.routes import api_app
from warpseal.api.signing.endpoints import AggregatorEndpoints
from warpseal.api.signing.signing_service import SigningService
from warpseal.api.status.document import StatusDocument
from warpseal.api.status.endpoints import StatusEndpoints
from warpseal.api.status.probe_bodies import ReadyFields
from warpseal.api.status.probes import ProbeEndpoints
from warpseal.cli.serve import GC_THRESHOLDS
from warpseal.index.database import index_url
from warpseal.index.index import Index
from warpseal.index.settings import IndexSettings
from warpseal.metrics.registry import Metrics
from warpseal.ops.health.registry import HealthRegistry
from warpseal.ops.settings import HealthSettings
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.blocks import Blockchain
from warpseal.resources.chains import PrimaryChains
from warpseal.resources.interfaces import Connectivity
from warpseal.resources.transactions import Validation
from warpseal.runtime.process import running
from warpseal.store.database import Database
from warpseal.store.settings import StoreSettings
from warpseal.store.signing_blocks import SigningBlocks
from warpseal.store.url import OFF
from warpseal.warp.ids import ChainID, NodeID

TOKEN_KEY: Final = b"k" * 32
"""The key of page tokens, with which a benchmark builds tokens."""


class KnownKeys(EphemeralKeys):
    """A key store with a known key for page tokens."""

    async def token_keys(self) -> Sequence[bytes]:
        """Return the known key."""
        return (TOKEN_KEY,)


class QuietNode:
    """A node that answers at once, because its calls are not measured."""

    async def blockchain(self, chain_id: ChainID) -> Blockchain | None:
        """Return None."""
        return None

    async def validations(self, node_id: NodeID) -> Sequence[Validation]:
        """Return nothing."""
        return ()

    async def connectivity(self, node_id: NodeID) -> Connectivity:
        """Return the connectivity of a node that is always connected."""
        return Connectivity(100.0, 100.0)


class NoStatus:
    """The status of nothing."""

    document_class = StatusDocument

    async def collect(self, *, with_addresses: bool) -> StatusDocument:
        """Return an empty document."""
        return StatusDocument("", "", "", ready=False)


async def serve(settings: IndexSettings) -> None:
    """Answer until SIGTERM."""
    needs = build_needs()
    async with (
        Index(index_url(settings, None), needs.network.text, settings) as index,
        asyncio.TaskGroup() as tasks,
    ):
        needs.network.index = index
        fresh = tasks.create_task(index.run())
        await serve_data_api(needs)
        fresh.cancel()


def build_needs() -> EndpointNeeds:
    """Return what endpoints need, without an index, with a node that answers at once."""
    chains = PrimaryChains(PARAMS.x_chain_id, PARAMS.c_chain_id)
    network = AvalancheNetwork(PARAMS.network_id, chains, QuietNode(), ChainAliases())
    signing_blocks = SigningBlocks(Database(StoreSettings(url=OFF)))
    return EndpointNeeds(network, EvmChainDirectory(), KnownKeys(), signing_blocks)


async def serve_data_api(needs: EndpointNeeds, *, has_grpc: bool = False) -> None:
    """Print the URL, and the address of gRPC if it is served; then answer until SIGTERM."""
    # Clients name addresses of their own, since each one may have only some listeners.
    proxies = (ip_network("127.0.0.1"),) if has_grpc else ()
    api_settings = ApiSettings("127.0.0.1", 0, trusted_proxies=proxies)
    data_settings, metrics = DataApiSettings(), Metrics()
    signing, data = StartupGate[SigningService](), StartupGate[EndpointNeeds]()
    data_api = DataApi(data, api_settings, data_settings)
    aggregator = AggregatorEndpoints(signing, api_settings, metrics)
    status = StatusEndpoints(NoStatus(), api_settings, AllowedHosts(()), 0, asyncio.Event())
    probes = ProbeEndpoints(HealthRegistry(HealthSettings()), ReadyFields())
    app = api_app(aggregator, probes, status, data_api, api_settings, metrics)
    server = HttpServer(app, Listener(api_settings.api_host, 0), api_settings)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    data.open(needs)
    if not has_grpc:
        print(server.url, flush=True)
        await server.run()
        return
    listener = Listener(api_settings.api_host, 0, name="grpc")
    calls = GrpcCalls(
        aggregator, data_api, probes, api_settings, AggregationSettings().max_timeout_s
    )
    async with running(GrpcServer(calls, listener, api_settings, metrics).run()):
        print(server.url, listener.address, flush=True)
        await server.run()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--cache-bytes", type=int, default=IndexSettings().cache_bytes)
    args = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    uvloop.run(serve(IndexSettings(args.url, cache_bytes=args.cache_bytes)))


if __name__ == "__main__":
    main()
