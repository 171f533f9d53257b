"""`warpseal config check`: the faults of a config file, or its effective settings."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from warpseal.cli import serve
from warpseal.cli.running_daemon import printable, printable_lines
from warpseal.config.keys import KEYS
from warpseal.config.load import ConfigError, find_service_addresses, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `warpseal config check`."""
    parser.description = (
        "List every fault of a config file, the environment and the flags, and where each came from (exit code 1), or "
        "the effective settings and their sources (0)."
    )
    parser.add_argument("file", type=Path, metavar="FILE", nargs="?", help="JSON config file, like --config FILE")
    serve.add_config_arguments(parser)
    # A command line of `warpseal serve` can be checked as well.
    serve.add_setting_arguments(parser, reads=())


def run(args: argparse.Namespace) -> int:
    """Print every error with its path (exit code 1), or the effective settings in JSON and their sources (0)."""
    for notice in find_service_addresses(os.environ):
        print(f"note: {notice.path} is ignored: {printable(notice.reason)}")
    try:
        loaded = load(args.file or serve.config_file(args), serve.given_flags(args), os.environ, strict=True)
    except ConfigError as error:
        print(printable_lines(str(error)))
        return 1
    print("The configuration is valid. Effective settings and their sources (secrets are not shown):")
    for key in KEYS:
        source = loaded.sources.get(key.name, "default")
        value = json.dumps(key.json_value(loaded.config), ensure_ascii=False)
        print(f"  {key.name:36} {printable(value):44} {printable(source)}")
    return 0
