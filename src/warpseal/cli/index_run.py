"""`warpseal index run`: the process that fills the indexes.

Only what the worker process needs is imported before it is forked.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from warpseal.cli.main import load_command
from warpseal.cli.process import Command, print_event, run_daemon, set_up_logging
from warpseal.cli.serve import add_config_arguments, add_setting_arguments, load_config, set_up_gc
from warpseal.daemon import subsystems
from warpseal.indexer.worker import fork_worker_process
from warpseal.runtime.process import lower_priority
from warpseal.warp.ids import ChainID

NODE_KEYS: Final = ("p-chain-api", "info-api")
EVM_KEYS: Final = ("evm-chains", "index-l1s-at", "tracked-subnet-ids")
CHAIN_NAMES: Final = "blockchain id, EVM chain id, alias or chain-name"
# End of the names of log files, which are otherwise those of the daemon.
_SUFFIX: Final = "-indexer"


def add_chain_argument(parser: argparse.ArgumentParser, help: str) -> None:
    """Declare --chain, which may be repeated."""
    parser.add_argument(
        "--chain",
        action="append",
        default=[],
        metavar="CHAIN",
        help=f"{help} ({CHAIN_NAMES}); may be repeated",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Index the chains of index-chains, and those of evm-chains with index, until SIGTERM or"
        " SIGINT. A restart continues at the last heights."
    )
    add_config_arguments(parser)
    add_chain_argument(
        parser,
        "chain to index, instead of all that are configured: p, x, c or a name of an EVM chain",
    )
    parser.add_argument(
        "--ends-with-stdin", action="store_true", help="end at the end of standard input"
    )
    add_setting_arguments(parser, (*NODE_KEYS, *EVM_KEYS, "data-dir", "index", "indexer", "logs"))


def _run(args: argparse.Namespace) -> int:
    whole = load_config(args).config
    config, only, elsewhere = whole, None, frozenset[ChainID]()
    if args.chain:
        # Only names of chains need the indexes, which are much to load before the fork.
        config, only = load_command("index_queries.select_chains")(whole, args.chain)
        all_ids = {chain.blockchain_id for chain in whole.node.indexed_evm_chains}
        own_ids = {chain.blockchain_id for chain in config.node.indexed_evm_chains}
        elsewhere = frozenset(all_ids - own_ids)
    if config.indexer.low_priority:
        # The worker process inherits it.
        lower_priority()
    worker_process = fork_worker_process() if config.indexer.chains else None
    loggers = set_up_logging(config.logs, suffix=_SUFFIX)
    announce = partial(print_event, config.logs.format)
    ends_with_stdin = args.ends_with_stdin
    work = subsystems.load(subsystems.INDEX_PROCESS).run_index(
        config,
        loggers,
        announce,
        worker_process,
        only=only,
        elsewhere=elsewhere,
        ends_with_stdin=ends_with_stdin,
    )
    set_up_gc()
    return run_daemon(work, loggers)


RUN: Final = Command(_add_run_arguments, _run)
