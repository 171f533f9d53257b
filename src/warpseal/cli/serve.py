"""`warpseal serve`: read the configuration and run the daemon."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from warpseal.cli.main import load_command
from warpseal.cli.process import argument, print_event, run_daemon, set_up_logging
from warpseal.config.keys import GROUP_CONTENTS, KEYS
from warpseal.config.load import (
    CONFIG_FILE_NAMES,
    ConfigError,
    Loaded,
    find_service_addresses,
    find_value,
    load,
)
from warpseal.daemon import subsystems
from warpseal.node.settings import endpoint
from warpseal.ops.logs.loggers import LogFormat
from warpseal.runtime.settings import InvalidSetting, url
from warpseal.warp.ids import id_text

log = logging.getLogger(__name__)

# A request makes thousands of objects, hardly ever in cycles: the default thresholds of the
# collector cost 2 %.
GC_THRESHOLDS = (20_000, 20, 20)

PUBLIC_NODES: Final = {
    "fuji": "https://api.avax-test.network",
    "mainnet": "https://api.avax.network",
}
"""The public API nodes of each network, by the name of the network."""

DESCRIPTION = """\
Run the daemon. First steps:

  1. Write config.json, with the address of a node that serves the P-Chain and the info API:
       {"p-chain-api": "https://api.avax.network", "info-api": "https://api.avax.network"}
  2. warpseal config check config.json       lists the faults of the file
  3. warpseal doctor --config config.json    checks whether this machine can sign, with advice
  4. warpseal serve --config config.json     then see http://127.0.0.1:8080/ and `warpseal status`

Without a file, by the public nodes of a network, or by a node, here with an EVM chain that is
indexed:

  warpseal serve --network fuji
  warpseal serve --node http://127.0.0.1:9650 --evm http://127.0.0.1:9650/ext/bc/C/rpc

Each setting below is a key of the file, a flag, and an environment variable: api-port, --api-port,
WARPSEAL_API_PORT. A flag wins over the environment, which wins over the file.
OTEL_EXPORTER_OTLP_ENDPOINT names a collector of traces.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `warpseal serve`: the config file, and one flag for each key of it."""
    parser.description = DESCRIPTION
    add_config_arguments(parser)
    add_setting_arguments(parser)


def add_setting_arguments(
    parser: argparse.ArgumentParser,
    reads: Collection[str] | None = None,
    *,
    has_network_id: bool = False,
) -> None:
    """Declare a flag for each key: every command takes the flags with which the daemon runs.

    reads: keys, or names of sections of the configuration, that the command reads; its help shows
        only these flags. None stands for all keys.
    has_network_id: whether the command has a --network of its own.
    """
    if reads is None or reads:
        parser.usage = "%(prog)s [--config FILE] [--KEY VALUE ...]"
    if reads is not None:
        parser.epilog = (
            "All other flags of `warpseal serve` are taken as well, so that one command line fits"
            " both."
        )
    no_indexer = (
        "start no index process: `warpseal index run`, here or on another machine, fills the"
        " indexes"
    )
    parser.add_argument(
        "--no-indexer", action="store_true", help=no_indexer if reads is None else argparse.SUPPRESS
    )
    _add_node_arguments(
        parser, is_visible=reads is None or "p-chain-api" in reads, has_network_id=has_network_id
    )
    for group, content in GROUP_CONTENTS.items():
        keys = [key for key in KEYS if key.setting.group is group and not key.setting.is_secret]
        visible_keys = [
            key for key in keys if reads is None or key.name in reads or key.section in reads
        ]
        flags = parser.add_argument_group(group, content) if visible_keys else parser
        for key in keys:
            text = key.help if key in visible_keys else argparse.SUPPRESS
            flags.add_argument(f"--{key.name}", metavar=key.setting.metavar, help=text)


def _add_node_arguments(
    parser: argparse.ArgumentParser, *, is_visible: bool, has_network_id: bool
) -> None:
    """Declare the flags that are short for the settings of nodes."""
    place = parser.add_argument_group("nodes without a config file") if is_visible else parser

    def add(group: argparse._ActionsContainer, flag: str, help_text: str, **options: Any) -> None:
        group.add_argument(flag, help=help_text if is_visible else argparse.SUPPRESS, **options)

    nodes = place.add_mutually_exclusive_group()
    if not has_network_id:
        network_help = "short for --node with the public API nodes of the network"
        add(nodes, "--network", network_help, choices=tuple(PUBLIC_NODES))
    node_help = (
        "short for --p-chain-api and --info-api; a local network needs --allow-private-ips true as"
        " well"
    )
    add(nodes, "--node", node_help, type=argument(_parse_node, ValueError), metavar="URL")
    evm_help = (
        "index the EVM chain at this RPC URL: short for --evm-chains with the blockchain id in the"
        " URL, else that of its Warp contract, else its EVM chain id as 32 bytes; may be repeated"
    )
    add(
        place,
        "--evm",
        evm_help,
        type=argument(parse_url, ValueError),
        metavar="URL",
        action="append",
    )


def _parse_node(text: str) -> str:
    """Return the base URL of a node. Raises ValueError."""
    try:
        endpoint("http", "https")(text, "")
    except InvalidSetting as error:
        raise ValueError("; ".join(cause.reason for cause in error.errors)) from None
    return text


def parse_url(text: str) -> str:
    """Return an HTTP URL. Raises ValueError with the words of `config check`."""
    try:
        return url("http", "https")(text, "")
    except InvalidSetting as error:
        raise ValueError("; ".join(cause.reason for cause in error.errors)) from None


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flag of the config file."""
    help_text = f"JSON config file (or {', or '.join(CONFIG_FILE_NAMES)})"
    parser.add_argument(
        "--config", "--config-file", dest="config", type=Path, metavar="FILE", help=help_text
    )


def config_file(args: argparse.Namespace) -> Path | None:
    """Return the config file that a command was given, or that the environment names."""
    path = next(filter(None, map(os.environ.get, CONFIG_FILE_NAMES)), None)
    return args.config or (Path(path) if path else None)


def find_log_format(arguments: list[str]) -> LogFormat:
    """Return the log format of a command line that may have errors.

    An error in the setting of the format leads to text.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--log-format")
    add_config_arguments(parser)
    try:
        args, _ = parser.parse_known_args(arguments)
        log_format = find_value("log-format", config_file(args), args.log_format, os.environ)
    except (argparse.ArgumentError, ConfigError):
        return LogFormat.TEXT
    return log_format or LogFormat.TEXT


def load_config(args: argparse.Namespace) -> Loaded:
    """Return the configuration of a command's file, environment and flags. Raises ConfigError."""
    return load(config_file(args), read_flags(args), os.environ)


def run(args: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code."""
    loaded = load_config(args)
    config = loaded.config
    loggers = set_up_logging(config.logs)
    for notice in find_service_addresses(os.environ):
        fields = {"variable": notice.path, "reason": notice.reason}
        log.info("environment variable ignored", extra=fields)
    for error in loaded.unknown_names:
        fields = {"variable": error.path, "reason": error.reason}
        log.warning("environment variable ignored", extra=fields)
    # The imports of the start make objects that stay: to look for garbage among them costs a tenth
    # of the start.
    gc.disable()

    def announce(api_url: str, metrics_url: str) -> None:
        text = f"warpseal is listening: api={api_url} metrics={metrics_url}"
        print_event(config.logs.format, text)

    index_command = () if args.no_indexer else _index_command(args)
    app = subsystems.load(subsystems.APP)
    return run_daemon(app.serve(config, announce, loggers, index_command, set_up_gc), loggers)


def _index_command(args: argparse.Namespace) -> list[str]:
    """Return the command of the index process, with the arguments of this process."""
    command = [sys.executable, "-m", "warpseal", "index", "run", "--ends-with-stdin"]
    if args.config:
        command.append(f"--config={args.config}")
    return command + [f"--{name}={value}" for name, value in read_flags(args).items()]


def read_flags(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings of a command line, by key. Raises StartupError.

    The flag of a setting wins over a flag that is short for it.
    """
    flags = {key.name: getattr(args, key.name.replace("-", "_"), None) for key in KEYS}
    node = getattr(args, "node", None) or PUBLIC_NODES.get(getattr(args, "network", None) or "")
    for name in ("p-chain-api", "info-api"):
        flags[name] = flags[name] or node
    rpc_urls = getattr(args, "evm", None)
    if rpc_urls and flags["evm-chains"] is None:
        # It calls nodes: most commands do not, and their clients take as long to load as a command.
        find_blockchain_id = load_command("evm_chain.find_blockchain_id")
        ids = {rpc_url: id_text(find_blockchain_id(rpc_url)) for rpc_url in rpc_urls}
        entries = [
            {"blockchain-id": ids[rpc_url], "rpc": [rpc_url], "index": True} for rpc_url in rpc_urls
        ]
        flags["evm-chains"] = json.dumps(entries)
    return {name: value for name, value in flags.items() if value is not None}


def set_up_gc() -> None:
    """Let the garbage collector look at new objects only: all modules are imported, and stay."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    gc.enable()
