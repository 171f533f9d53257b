"""The table of the daemon's subsystems, in the order in which they are opened, and of the modules
that are imported at first use.

A subsystem is a module with a context manager `open_<name>`. Its module is imported when it is
opened, so that a daemon does not load the subsystems that it lacks. No other module of Warpseal
imports another one late, except the tables of commands (`cli/main.py`) and of endpoints
(`api/data/endpoints.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from enum import StrEnum
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from warpseal.config.keys import Config
from warpseal.runtime.lazy import LazyModule
from warpseal.store.url import OFF

if TYPE_CHECKING:
    from warpseal.api.grpc import calls as grpc_calls
    from warpseal.api.grpc import server as grpc_server
    from warpseal.events import webhooks
    from warpseal.follow import index_source
    from warpseal.index import database as index_database
    from warpseal.ops import traces
    from warpseal.ops.plugins import probe as plugin_probe
    from warpseal.peers import identity
    from warpseal.validators import indexed_platform
else:
    # Figures: CPU time and resident memory of the import, on top of a daemon that is ready.
    # A port for gRPC: 30 ms, 9 MiB.
    grpc_calls = LazyModule("warpseal.api.grpc.calls")
    grpc_server = LazyModule("warpseal.api.grpc.server")
    # The first plugin of a virtual machine: 20 ms, 8 MiB.
    plugin_probe = LazyModule("warpseal.ops.plugins.probe")
    # A collector of traces in the environment: 75 ms, 7.5 MiB.
    traces = LazyModule("warpseal.ops.traces")
    # The first webhook, in a daemon that leads: 35 ms, 2.5 MiB.
    webhooks = LazyModule("warpseal.events.webhooks")
    # An index of the P-Chain, whose blocks the follower takes: 15 ms, 0.8 MiB.
    index_database = LazyModule("warpseal.index.database")
    index_source = LazyModule("warpseal.follow.index_source")
    # Validator sets from the index: 13 ms, 0.8 MiB.
    indexed_platform = LazyModule("warpseal.validators.indexed_platform")
    # A configured identity without files, which is made before the ports are announced. All daemons
    # load the module later.
    identity = LazyModule("warpseal.peers.identity")

__all__ = [
    "APP",
    "GIVEN",
    "INDEX_PROCESS",
    "PORTS",
    "START",
    "SUBSYSTEMS",
    "Stage",
    "Subsystem",
    "find_rows",
    "grpc_calls",
    "grpc_server",
    "identity",
    "index_database",
    "index_source",
    "indexed_platform",
    "load",
    "load_stage",
    "open_stage",
    "plugin_probe",
    "traces",
    "webhooks",
]

_PACKAGE: Final = "warpseal.daemon."
GIVEN: Final = ("signing_gate", "data_gate", "admission", "probes")
"""The objects of the ports: the gates, the limits of callers, the probes."""
APP: Final = "app"
"""The module of the process. Other commands than `serve` read the configuration only."""
PORTS: Final = "ports"
START: Final = "start"
"""The modules of the ports, and of the start behind them. They are most of what a start costs, and
are imported once the ports listen, so that clients connect and wait."""
INDEX_PROCESS: Final = "index_process"
"""The module of the index process, which is imported after the fork of its worker."""


class Stage(StrEnum):
    """When a subsystem is opened."""

    PORTS = "ports"
    """Before the ports answer."""
    NODES = "nodes"
    """While no node has named the network."""
    SIGNING = "signing"
    """Then, up to the gate of signing."""
    REST = "rest"
    """What signing does not wait for."""
    INDEX = "index"
    """In the index process."""


class Subsystem(Struct, frozen=True):
    """A row of the table.

    name: name of its function `open_<name>`, and of its object for subsystems that need it.
    module: name of its module in this package.
    needs: names of the objects that it takes as arguments: of subsystems above it, and of `GIVEN`.
        The object of a subsystem that is not configured is None.
    """

    name: str
    module: str
    stage: Stage
    needs: tuple[str, ...] = ()
    is_configured: Callable[[Config], bool] = lambda config: True


def _forwards_evm_calls(config: Config) -> bool:
    return _has_evm_chains(config) or _has_gateway(config)


def _has_evm_chains(config: Config) -> bool:
    return bool(config.node.evm_chains) or config.node.index_l1s_at is not None


def _has_gateway(config: Config) -> bool:
    return bool(config.gateway.nodes)


def _records_usage(config: Config) -> bool:
    return config.records_usage


def _has_metrics_database(config: Config) -> bool:
    return config.records_usage or config.node.has_evm_index


def _indexes_primary_chains(config: Config) -> bool:
    return bool(config.indexer.chains)


def _indexes_evm_chains(config: Config) -> bool:
    return config.node.has_evm_index


def _reports_icm_messages(config: Config) -> bool:
    return config.node.has_evm_index and config.store.url != OFF


def _signs_icm_messages_ahead(config: Config) -> bool:
    return _reports_icm_messages(config) and bool(config.delivery.eager_icm_subnet_ids)


SUBSYSTEMS: Final = (
    Subsystem("metering", "metering", Stage.PORTS, (), _records_usage),
    Subsystem("node_api", "node_api", Stage.PORTS),
    Subsystem(
        "evm_api",
        "evm_api",
        Stage.PORTS,
        ("metering", "node_api", "admission"),
        _forwards_evm_calls,
    ),
    Subsystem("gateway_api", "gateway_api", Stage.PORTS, ("node_api", "evm_api"), _has_gateway),
    Subsystem("prices", "prices", Stage.NODES),
    Subsystem("evm_facts", "evm_api", Stage.NODES, ("evm_api",), _forwards_evm_calls),
    Subsystem("early_usage", "usage", Stage.NODES, ("metering",), _records_usage),
    Subsystem("usage", "usage", Stage.SIGNING, ("early_usage",), _has_metrics_database),
    Subsystem("index_status", "index_status", Stage.SIGNING),
    # Before any subsystem that reads a validator set: a set of a node stays in the caches.
    Subsystem(
        "primary_index", "primary_index", Stage.SIGNING, ("index_status",), _indexes_primary_chains
    ),
    Subsystem("store", "store", Stage.SIGNING),
    Subsystem("events", "events", Stage.SIGNING),
    Subsystem("validators", "validators", Stage.SIGNING),
    Subsystem("signing", "signing", Stage.SIGNING, ("validators", "events")),
    Subsystem("destinations", "delivery", Stage.SIGNING, ("validators",)),
    Subsystem(
        "l1", "l1", Stage.SIGNING, ("validators", "signing", "destinations", "events", "evm_api")
    ),
    Subsystem(
        "delivery", "delivery", Stage.SIGNING, ("validators", "signing", "destinations", "l1")
    ),
    Subsystem("preflight", "delivery", Stage.SIGNING, ("validators", "destinations")),
    Subsystem("forwarding", "evm_api", Stage.SIGNING, ("evm_api",), _forwards_evm_calls),
    Subsystem(
        "node_checks",
        "node_checks",
        Stage.SIGNING,
        ("node_api", "validators", "l1", "index_status"),
    ),
    Subsystem(
        "signing_api",
        "signing_api",
        Stage.SIGNING,
        ("signing_gate", "probes", "validators", "signing", "l1", "delivery", "preflight"),
    ),
    Subsystem("forecast", "forecast", Stage.REST, ("validators", "events", "index_status")),
    Subsystem("gateway", "gateway_api", Stage.REST, ("gateway_api",), _has_gateway),
    Subsystem("validator_lists", "validator_lists", Stage.REST, ("validators", "node_api")),
    Subsystem("contracts", "data_api", Stage.REST, ("node_api",)),
    Subsystem(
        "evm_index",
        "evm_index",
        Stage.REST,
        ("evm_api", "contracts", "index_status"),
        _has_evm_chains,
    ),
    Subsystem(
        "icm",
        "icm",
        Stage.REST,
        ("validators", "signing", "delivery", "preflight"),
        _has_evm_chains,
    ),
    Subsystem("icm_leadership", "icm_events", Stage.REST, (), _reports_icm_messages),
    Subsystem(
        "eager_icm",
        "eager_icm",
        Stage.REST,
        ("validators", "signing", "delivery", "icm_leadership"),
        _signs_icm_messages_ahead,
    ),
    Subsystem(
        "icm_events",
        "icm_events",
        Stage.REST,
        ("evm_index", "icm_leadership", "eager_icm"),
        _reports_icm_messages,
    ),
    Subsystem(
        "data_api",
        "data_api",
        Stage.REST,
        (
            "data_gate",
            "node_api",
            "prices",
            "usage",
            "index_status",
            "events",
            "validators",
            "forecast",
            "contracts",
            "evm_index",
            "icm",
        ),
    ),
    # The primary chains may have to wait for a node, and the EVM chains do not.
    Subsystem("evm_indexer", "evm_indexer", Stage.INDEX, (), _indexes_evm_chains),
    Subsystem("primary_indexer", "primary_indexer", Stage.INDEX, (), _indexes_primary_chains),
)


def load(module: str) -> ModuleType:
    """Import a module of this package."""
    name = _PACKAGE + module
    # Unlike import_module, this has a line in the output of `-X importtime`.
    __import__(name)
    return sys.modules[name]


def find_rows(config: Config, stage: Stage) -> Iterable[Subsystem]:
    """Return the subsystems that a configuration has, in their order."""
    return [row for row in SUBSYSTEMS if row.stage is stage and row.is_configured(config)]


def load_stage(stage: Stage, config: Config) -> None:
    """Import the modules of a stage."""
    for row in find_rows(config, stage):
        load(row.module)


async def open_stage(
    stage: Stage, config: Config, stack: AsyncExitStack, opened: dict[str, Any], *arguments: object
) -> None:
    """Open the subsystems of a stage, and hold them in `stack`. Raises StartupError.

    opened: objects of the subsystems by name, to which this stage adds its own.
    arguments: first arguments of each subsystem.
    """
    for row in find_rows(config, stage):
        open_subsystem = getattr(load(row.module), f"open_{row.name}")
        needs = {name: opened.get(name) for name in row.needs}
        opened[row.name] = await stack.enter_async_context(open_subsystem(*arguments, **needs))
        # What runs by now begins while the next module is imported.
        await asyncio.sleep(0)
