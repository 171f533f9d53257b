"""`warpseal serve`: read the configuration and run the daemon."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from warpseal.cli.process import run_on_loop, set_up_logging
from warpseal.config.keys import KEYS
from warpseal.config.load import ENVIRONMENT_PREFIX, Loaded, load
from warpseal.daemon.app import serve

# A request makes thousands of objects, hardly ever in cycles: the default thresholds of the collector cost 2 %.
GC_THRESHOLDS = (20_000, 20, 20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `warpseal serve`: the config file, and one flag for each key of it."""
    parser.usage = "%(prog)s [--config FILE] [--KEY VALUE ...]"
    add_config_arguments(parser)
    for key in KEYS:
        if not key.setting.is_secret:
            parser.add_argument(f"--{key.name}", metavar=key.setting.metavar, help=key.help)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flag of the config file."""
    what = f"JSON config file (or {ENVIRONMENT_PREFIX}CONFIG_FILE, or CONFIG_FILE)"
    parser.add_argument("--config", "--config-file", dest="config", type=Path, metavar="FILE", help=what)


def config_file(args: argparse.Namespace) -> Path | None:
    """Return the config file that a command was given, or that the environment names."""
    named = os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG_FILE") or os.environ.get("CONFIG_FILE")
    return args.config or (Path(named) if named else None)


def load_config(args: argparse.Namespace) -> Loaded:
    """Return the configuration of a command's file, environment and flags; raises ConfigError."""
    return load(config_file(args), _given_flags(args), os.environ)


def run(args: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code."""
    config = load_config(args).config
    loggers = set_up_logging(config.logs.level, config.logs.display_level, config.logs.folder)
    gc.set_threshold(*GC_THRESHOLDS)
    run_on_loop(serve(config, _announce, loggers, _index_command(args)))
    return 0


def _index_command(args: argparse.Namespace) -> list[str]:
    """Return the command of the index process, with the arguments of this process."""
    command = [sys.executable, "-m", "warpseal", "index", "run", "--ends-with-stdin"]
    if args.config:
        command.append(f"--config={args.config}")
    return command + [f"--{name}={value}" for name, value in _given_flags(args).items()]


def _given_flags(args: argparse.Namespace) -> dict[str, str]:
    given = {key.name: getattr(args, key.name.replace("-", "_"), None) for key in KEYS}
    return {name: value for name, value in given.items() if value is not None}


def _announce(api_url: str, metrics_url: str) -> None:
    # One write, newline included: a reader never sees half a line, even if the daemon is killed now.
    sys.stdout.write(f"warpseal is listening: api={api_url} metrics={metrics_url}\n")
    sys.stdout.flush()
