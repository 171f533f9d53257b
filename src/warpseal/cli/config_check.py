"""`warpseal config check`: the errors of a config file, or its effective settings."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Final

from warpseal.cli.process import Command
from warpseal.cli.running_daemon import printable, printable_lines
from warpseal.cli.serve import add_config_arguments, add_setting_arguments, config_file, read_flags
from warpseal.config.files import find_unusable_files
from warpseal.config.keys import KEYS
from warpseal.config.load import ConfigError, find_service_addresses, load


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List every fault of a config file, the environment and the flags, and where each came from"
        " (exit code 1), or the effective settings and their sources (0)."
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", nargs="?", help="JSON config file, like --config FILE"
    )
    add_config_arguments(parser)
    # A command line of `warpseal serve` can be checked as well.
    add_setting_arguments(parser, reads=())


def _check_config(args: argparse.Namespace) -> int:
    """Print every error with its path, or the effective settings and their sources.

    The exit code is 1 if there is an error.
    """
    for notice in find_service_addresses(os.environ):
        print(f"note: {notice.path} is ignored: {printable(notice.reason)}")
    try:
        loaded = load(args.file or config_file(args), read_flags(args), os.environ, strict=True)
    except ConfigError as error:
        print(printable_lines(str(error)))
        return 1
    reasons = [file.reason for file in find_unusable_files(loaded.config)]
    if reasons:
        print(printable_lines("\n".join(reasons)))
        return 1
    print(
        "The configuration is valid. Effective settings and their sources (secrets are not shown):"
    )
    for key in KEYS:
        source = loaded.sources.get(key.name, "default")
        value = json.dumps(key.json_value(loaded.config), ensure_ascii=False)
        print(f"  {key.name:36} {printable(value):44} {printable(source)}")
    return 0


CHECK: Final = Command(_add_arguments, _check_config)
