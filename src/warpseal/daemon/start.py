"""The start behind the ports: the network id, the core, and the subsystems of the table.

Then the daemon runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from warpseal import bls
from warpseal.api.http.settings import NETWORK_NAMES
from warpseal.api.http.startup_gate import StartupGate
from warpseal.daemon.core import Core, open_core, open_upstreams
from warpseal.daemon.ports import DaemonPorts
from warpseal.daemon.registries import StatusRequest
from warpseal.daemon.subsystems import Stage, open_stage
from warpseal.node.info import InfoClient
from warpseal.runtime.retry import Backoff, Retrier
from warpseal.upstream.errors import NodeUnavailable
from warpseal.version import __version__
from warpseal.warp.ids import node_id_text

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(first_s=0.25, cap_s=5.0)
_REPEATED_LINE_S: Final = 60.0


async def start_subsystems(ports: DaemonPorts, start_indexer: Callable[[], None]) -> None:
    """Open all subsystems in the order of the table, and run until cancelled. Raises StartupError.

    start_indexer: function that starts the index process; it is called when the checks of the
        start have passed.
    """
    registries, opened = ports.registries, ports.opened
    config = registries.config
    async with AsyncExitStack() as stack:
        upstreams = await stack.enter_async_context(
            open_upstreams(config, registries.metrics, config.set_source)
        )
        await open_stage(Stage.NODES, config, stack, opened, registries, upstreams)
        nodes = [endpoint.display for endpoint in config.node.info_api]
        network_id = await find_network_id(
            upstreams.upstream.info, nodes, registries.starting_gates
        )
        log.debug("network id read", extra={"network_id": network_id})
        core = await stack.enter_async_context(open_core(registries, upstreams, network_id))
        registries.status.register(partial(_describe_network, core))
        # The tasks end before anything is closed that they use.
        async with AsyncExitStack() as network, asyncio.TaskGroup() as tasks:
            await open_stage(Stage.SIGNING, config, network, opened, core, tasks)
            _log_start(core)
            core.store.confirm_start()
            start_indexer()
            await open_stage(Stage.REST, config, network, opened, core, tasks)


async def _describe_network(core: Core, request: StatusRequest) -> Mapping[str, Any]:
    return {
        "bls_backend": bls.BACKEND,
        "network_id": core.network_id,
        "network": NETWORK_NAMES.get(core.network_id, (None,))[0],
        "node_id": node_id_text(core.identity.identity.node_id),
    }


def _log_start(core: Core) -> None:
    names = NETWORK_NAMES.get(core.network_id)
    network = {"network": names[0]} if names else {}
    fields = {"version": __version__, **network, "network_id": core.network_id}
    node_id = node_id_text(core.identity.identity.node_id)
    log.info("daemon started", extra={**fields, "node_id": node_id, "bls_backend": bls.BACKEND})


async def find_network_id(
    info: InfoClient, nodes: Sequence[str], gates: Sequence[StartupGate[Any]]
) -> int:
    """Return the network id as soon as a node answers. Nodes that are down do not end the daemon.

    nodes: addresses of the nodes for the log, which has one line a minute.
    gates: gates whose waiting requests get the error.
    """
    logged_at = -_REPEATED_LINE_S

    def on_failure(error: Exception, delay_s: float) -> None:
        nonlocal logged_at
        assert isinstance(error, NodeUnavailable)
        for gate in gates:
            gate.unavailable(error)
        now = asyncio.get_running_loop().time()
        if now - logged_at >= _REPEATED_LINE_S:
            logged_at = now
            fields = {"reason": str(error), "nodes": nodes, "next_try_s": round(delay_s, 1)}
            log.warning("network id request failed", extra=fields)

    return await Retrier(_BACKOFF, {NodeUnavailable: "nodes"}, on_failure).call(info.network_id)
