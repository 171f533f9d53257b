"""Settings of the indexer of the primary chains, and the parsers of chains and heights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.settings import (
    Group,
    InvalidSetting,
    SettingError,
    Settings,
    boolean,
    integer,
    invalid_setting,
    list_of,
    optional_path,
    setting,
    text,
)


def primary_chain(value: Any, path: str) -> PrimaryChain:
    """Accept p, x or c, or the whole name of the chain."""
    chains = {name: chain for chain in PrimaryChain for name in (chain.value, chain.value[0])}
    chain = chains.get(text(value, path).lower())
    if chain is None:
        raise invalid_setting(path, "expected p, x or c")
    return chain


def first_heights(value: Any, path: str) -> Mapping[PrimaryChain, int]:
    """Accept an object of heights by chain, or its JSON text."""
    try:
        heights = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        heights = None
    if not isinstance(heights, dict):
        raise invalid_setting(path, 'expected heights by chain, such as {"c": 30000000}')
    parse_height = integer(0, 2**40 - 1)
    parsed: dict[PrimaryChain, int] = {}
    errors: list[SettingError] = []
    for name, number in heights.items():
        try:
            parsed[primary_chain(name, f"{path}.{name}")] = parse_height(number, f"{path}.{name}")
        except InvalidSetting as error:
            errors += error.errors
    if errors:
        raise InvalidSetting(*errors)
    return parsed


class IndexerSettings(Settings, frozen=True):
    """Durations in seconds.

    poll_s: interval at which nodes are polled for new blocks. checkpoint_blocks, checkpoint_s: number of blocks, or
    time, after which the P-Chain's state is written, so that little is repeated after a restart.
    """

    chains: tuple[PrimaryChain, ...] = setting(
        (),
        "index-chains",
        list_of(primary_chain),
        "chains to index, of p, x, c; none: no index",
        "CHAINS",
        group=Group.INDEX,
    )
    first_heights: Mapping[PrimaryChain, int] = setting(
        {},
        "index-from",
        first_heights,
        'first indexed height by chain, such as {"c": 30000000}; unset: the first block of each',
        "JSON",
        group=Group.INDEX,
    )
    genesis_file: Path | None = setting(
        None,
        "genesis-file",
        optional_path,
        "P-Chain genesis, plain or zstd; mainnet and Fuji need none",
        "FILE",
        group=Group.INDEX,
    )
    poll_s: float = 1.0
    call_timeout_s: float = 30.0
    low_priority: bool = setting(
        True,
        "index-low-priority",
        boolean,
        "lowest CPU priority of the indexer: nice 19 and, on Linux, SCHED_IDLE",
        "BOOL",
        group=Group.INDEX,
    )

    checkpoint_blocks: int = 20_000
    checkpoint_s: float = 60.0
    retry_first_s: float = 0.5
    retry_cap_s: float = 10.0
    retry_stopped_s: float = 60.0
    log_every_s: float = 10.0
    restart_first_s: float = 1.0
    restart_cap_s: float = 60.0
