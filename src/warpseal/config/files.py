"""The genesis and upgrade files that a configuration names, read as the daemon reads them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from warpseal.config.keys import Config
from warpseal.errors import StartupError
from warpseal.forwarding.evm.chain_config import (
    NotSubnetEvm,
    decode_upgrade_file,
    read_upgrade_file,
)
from warpseal.indexer.network import load_genesis
from warpseal.runtime.process import os_error_text


class UnusableFile(Struct, frozen=True):
    """A file that cannot be used.

    reason: error text, with the setting and the path.
    is_fatal: whether the file keeps the daemon from starting.
    """

    reason: str
    is_fatal: bool


def find_unusable_files(config: Config) -> Iterator[UnusableFile]:
    """Yield the genesis and upgrade files that cannot be used."""
    if config.indexer.genesis_file is not None:
        try:
            load_genesis(0, config.indexer.genesis_file)
        except StartupError as error:
            yield UnusableFile(str(error), bool(config.indexer.chains))
    for position, chain in enumerate(config.node.evm_chains):
        if chain.upgrade_file is None:
            continue
        where = f"evm-chains[{position}].upgrade-file {chain.upgrade_file}"
        try:
            decode_upgrade_file(read_upgrade_file(chain.upgrade_file))
        except NotSubnetEvm as error:
            yield UnusableFile(f"{where}: {error}", is_fatal=False)
        except OSError as error:
            yield UnusableFile(f"{where} cannot be read: {os_error_text(error)}", is_fatal=True)
