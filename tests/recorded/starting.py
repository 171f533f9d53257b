"""Starts a whole daemon on the recorded network."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from tests.integration.daemon import Daemon, build_config, run_daemon
from warpseal_simnet.network import SimulatedNetwork

# Only a request without any reply would take so long; the longest timeout is 55 s.
REQUEST_TIMEOUT_S: Final = 50.0


def started(
    network: SimulatedNetwork, folder: Path, **keys: object
) -> AbstractAsyncContextManager[Daemon]:
    """Start a daemon on the network.

    keys: more of its config file; `_` stands for `-`.
    """
    config = {name.replace("_", "-"): value for name, value in keys.items()}
    return run_daemon(
        build_config(network, folder, {"request-timeout-seconds": REQUEST_TIMEOUT_S, **config})
    )
