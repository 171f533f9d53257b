"""The place of a daemon's data, by the flags, the environment and the config file of the daemon."""

from __future__ import annotations

import argparse
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from warpseal.cli.process import run_on_loop
from warpseal.cli.running_daemon import printable
from warpseal.cli.serve import add_config_arguments, config_file, load_config
from warpseal.config.load import find_data_dir, find_value, names_nodes
from warpseal.errors import StartupError
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import connect_upstream
from warpseal.peers.data_dir import find_files
from warpseal.peers.identity import IDENTITY_NAME
from warpseal.store.settings import StoreSettings
from warpseal.store.store import STORE_NAME
from warpseal.store.url import StoreUrl
from warpseal.upstream.errors import NodeUnavailable
from warpseal.upstream.node import open_session
from warpseal.usage.database import metrics_database_url
from warpseal.usage.settings import UsageSettings

_WHERE: Final = """\
The store is the one that a daemon with the same --config, --store-url or --data-dir uses, or with
the same environment (WARPSEAL_CONFIG_FILE, WARPSEAL_STORE_URL, WARPSEAL_DATA_DIR). The network is
that of --network, else that of the configured node, else the only one in the data folder.
"""


def add_location_arguments(parser: argparse.ArgumentParser, about: str) -> None:
    """Declare the flags that name the data of a daemon."""
    parser.description, parser.epilog = about, _WHERE
    add_config_arguments(parser)
    parser.add_argument(
        "--store-url", metavar="URL", help="sqlite:///PATH or postgresql://USER@HOST/NAME"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="data folder of a daemon")
    parser.add_argument(
        "--network",
        type=int,
        metavar="ID",
        help="network id (default: that of the configured node)",
    )


class DataLocation:
    """The data of a daemon with the settings of a command. Methods raise StartupError."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.data_dir = find_data_dir(config_file(args), args.data_dir, os.environ)
        text = self.find("store-url")
        self.store_url = StoreUrl.parse(text) if text else None

    def find(self, name: str) -> Any:
        """Return the value of one setting, or None; other settings may be wrong."""
        value = getattr(self._args, name.replace("-", "_"), None)
        return find_value(name, config_file(self._args), value, os.environ)

    @cached_property
    def network_id(self) -> int | None:
        """The network of --network, else of the configured node; None without either."""
        network_id: int | None = self._args.network
        if network_id is not None or not names_nodes(config_file(self._args), os.environ):
            return network_id
        try:
            return run_on_loop(_fetch_network_id(load_config(self._args).config.node))
        except NodeUnavailable as error:
            reason = printable(str(error))
            print(
                f"warpseal: the network id is not known ({reason}); --network ID names it",
                file=sys.stderr,
            )
            return None

    def metrics_url(self, folder: Path | None) -> StoreUrl | None:
        """Return the URL of the metrics database.

        folder: folder of the network.
        """
        usage = UsageSettings(url=self.find("metrics-db-url") or "")
        return metrics_database_url(usage, StoreSettings(url=self.find("store-url") or ""), folder)

    @property
    def store(self) -> StoreUrl:
        """The store, which exists if it is a file of the data folder."""
        return self.store_url or StoreUrl.for_file(self._find_file(STORE_NAME, "store", "stores"))

    @property
    def new_store(self) -> StoreUrl:
        """The store, which may have to be made."""
        if self.store_url is None and self.network_id is not None:
            return StoreUrl.for_file(self.data_dir / str(self.network_id) / STORE_NAME)
        return self.store

    @property
    def network_folder(self) -> Path:
        """The folder of the network in the data folder, which has an identity or a store."""
        if self.network_id is not None:
            return self.data_dir / str(self.network_id)
        if self.store_url is None and self._files(STORE_NAME):
            path = self.store.path
        else:
            path = self._find_file(IDENTITY_NAME, "identity", "identities")
        assert path is not None
        folder = path.parent
        if not folder.name.isdigit():
            raise StartupError(f"{folder} is not the folder of a network: name the --network")
        return folder

    def network_of(self, store: StoreUrl) -> int | None:
        """Return the network of a store; a file in the data folder is in the network's folder."""
        if self.network_id is not None or store.path is None:
            return self.network_id
        folder = store.path.parent
        is_of_network = folder.parent == self.data_dir and folder.name.isdigit()
        return int(folder.name) if is_of_network else None

    def _files(self, name: str, network: int | None = None) -> list[Path]:
        """Return the files of this name, and those of which only the log exists.

        The code that opens a file reports a log without its file.
        """
        paths = find_files(self.data_dir, name, f"{name}-wal")
        if network is not None:
            paths = [path for path in paths if path.parent.name == str(network)]
        return sorted({path.with_name(name) for path in paths})

    def _find_file(self, name: str, kind: str, many: str) -> Path:
        """Return the only file of this name in a network's folder."""
        network = self.network_id
        files = self._files(name, network)
        if len(files) == 1:
            return files[0]
        if files:
            networks = ", ".join(path.parent.name for path in files)
            raise StartupError(
                f"there are {many} of networks {networks} below {self.data_dir}: choose one with"
                " --network"
            )
        if network is None:
            raise StartupError(
                f"there is no {kind} below {self.data_dir}: name another --data-dir, a --store-url,"
                " or the --network"
            )
        raise StartupError(
            f"there is no {kind} of network {network} below {self.data_dir}: name another"
            " --data-dir, or a --store-url"
        )


async def _fetch_network_id(settings: NodeSettings) -> int:
    async with open_session() as session:
        return await connect_upstream(settings, session).info.network_id()
