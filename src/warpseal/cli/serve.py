"""`warpseal serve`: read the configuration and run the daemon."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from warpseal.cli.process import print_event, run_daemon, set_up_logging
from warpseal.config.keys import GROUP_CONTENTS, KEYS
from warpseal.config.load import (
    CONFIG_FILE_NAMES,
    ConfigError,
    Loaded,
    find_service_addresses,
    find_value,
    load,
)
from warpseal.ops.logs.loggers import LogFormat
from warpseal.runtime.lazy import LazyModule

if TYPE_CHECKING:
    from warpseal.daemon import app
else:
    # Other commands read their configuration by this module.
    app = LazyModule("warpseal.daemon.app")

log = logging.getLogger(__name__)

# A request makes thousands of objects, hardly ever in cycles: the default thresholds of the collector cost 2 %.
GC_THRESHOLDS = (20_000, 20, 20)


DESCRIPTION = """\
Run the daemon. First steps:

  1. Write config.json, with the address of a node that serves the P-Chain and the info API:
       {"p-chain-api": "https://api.avax.network", "info-api": "https://api.avax.network"}
  2. warpseal config check config.json       lists the faults of the file
  3. warpseal doctor --config config.json    checks whether this machine can sign, with advice
  4. warpseal serve --config config.json     then see http://127.0.0.1:8080/ and `warpseal status`

Each setting below is a key of the file, a flag, and an environment variable: api-port, --api-port, WARPSEAL_API_PORT.
A flag wins over the environment, which wins over the file. OTEL_EXPORTER_OTLP_ENDPOINT names a collector of traces.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `warpseal serve`: the config file, and one flag for each key of it."""
    parser.description = DESCRIPTION
    add_config_arguments(parser)
    add_setting_arguments(parser)


def add_setting_arguments(parser: argparse.ArgumentParser, reads: Collection[str] | None = None) -> None:
    """Declare a flag for each key in its group, so that every command takes the flags with which the daemon runs.

    reads: keys, or names of sections of the configuration, that the command reads; its help shows no other.
    None: all.
    """
    if reads is None or reads:
        parser.usage = "%(prog)s [--config FILE] [--KEY VALUE ...]"
    if reads is not None:
        parser.epilog = "All other flags of `warpseal serve` are taken as well, so that one command line fits both."
    no_indexer = "start no index process: `warpseal index run`, here or on another machine, fills the indexes"
    parser.add_argument("--no-indexer", action="store_true", help=no_indexer if reads is None else argparse.SUPPRESS)
    for group, content in GROUP_CONTENTS.items():
        keys = [key for key in KEYS if key.setting.group is group and not key.setting.is_secret]
        visible_keys = [key for key in keys if reads is None or key.name in reads or key.section in reads]
        flags = parser.add_argument_group(group, content) if visible_keys else parser
        for key in keys:
            text = key.help if key in visible_keys else argparse.SUPPRESS
            flags.add_argument(f"--{key.name}", metavar=key.setting.metavar, help=text)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flag of the config file."""
    help_text = f"JSON config file (or {', or '.join(CONFIG_FILE_NAMES)})"
    parser.add_argument("--config", "--config-file", dest="config", type=Path, metavar="FILE", help=help_text)


def config_file(args: argparse.Namespace) -> Path | None:
    """Return the config file that a command was given, or that the environment names."""
    path = next(filter(None, map(os.environ.get, CONFIG_FILE_NAMES)), None)
    return args.config or (Path(path) if path else None)


def find_log_format(arguments: list[str]) -> LogFormat:
    """Return the log format of a command line that may be wrong otherwise; text if its own setting is wrong."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--log-format")
    add_config_arguments(parser)
    try:
        args, _ = parser.parse_known_args(arguments)
        return find_value("log-format", config_file(args), args.log_format, os.environ) or LogFormat.TEXT
    except (argparse.ArgumentError, ConfigError):
        return LogFormat.TEXT


def load_config(args: argparse.Namespace) -> Loaded:
    """Return the configuration of a command's file, environment and flags; raises ConfigError."""
    return load(config_file(args), given_flags(args), os.environ)


def run(args: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code."""
    loaded = load_config(args)
    config = loaded.config
    loggers = set_up_logging(config.logs)
    for notice in find_service_addresses(os.environ):
        log.info("environment variable ignored", extra={"variable": notice.path, "reason": notice.reason})
    for error in loaded.unknown_names:
        log.warning("environment variable ignored", extra={"variable": error.path, "reason": error.reason})
    # The imports of the start make objects that stay: to look for garbage among them costs a tenth of the start.
    gc.disable()

    def announce(api_url: str, metrics_url: str) -> None:
        print_event(config.logs.format, f"warpseal is listening: api={api_url} metrics={metrics_url}")

    index_command = () if args.no_indexer else _index_command(args)
    return run_daemon(app.serve(config, announce, loggers, index_command, set_up_gc), loggers)


def _index_command(args: argparse.Namespace) -> list[str]:
    """Return the command of the index process, with the arguments of this process."""
    command = [sys.executable, "-m", "warpseal", "index", "run", "--ends-with-stdin"]
    if args.config:
        command.append(f"--config={args.config}")
    return command + [f"--{name}={value}" for name, value in given_flags(args).items()]


def given_flags(args: argparse.Namespace) -> dict[str, str]:
    """Return the given flags of settings, by key."""
    flags = {key.name: getattr(args, key.name.replace("-", "_"), None) for key in KEYS}
    return {name: value for name, value in flags.items() if value is not None}


def set_up_gc() -> None:
    """Let the garbage collector look at new objects alone: all modules are imported, and stay."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    gc.enable()
