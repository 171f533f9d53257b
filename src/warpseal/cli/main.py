"""Entry point of the `warpseal` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from warpseal import __version__
from warpseal.cli import check, demo, diagnose, serve, simulate
from warpseal.errors import StartupError

DESCRIPTION = """\
Warpseal aggregates the BLS signatures of Avalanche validators over Warp messages.

  warpseal demo                          see the main job on a simulated network
  warpseal serve --config config.json    run the daemon (the reference aggregator's config file works)
  warpseal doctor --config config.json   can it sign? what is in the way?
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 fine, 1 it failed, 2 it was called wrongly."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(_with_default_command(arguments))
    try:
        code: int = args.run(args)
    except StartupError as error:
        print(f"warpseal: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warpseal", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"warpseal {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_command(commands, "serve", serve, "run the daemon (also: warpseal --config-file FILE)")
    config = commands.add_parser("config", help="look at a config file").add_subparsers(metavar="ACTION", required=True)
    _add_command(config, "check", check, "say what is wrong with a config file, or what it means")
    _add_command(
        commands,
        "doctor",
        diagnose,
        "can the nodes and validators be reached, is there weight enough to sign?",
    )
    _add_command(commands, "simnet", simulate, "run simulated validators and a simulated node on loopback")
    _add_command(commands, "demo", demo, "show the main job on a simulated network")
    return parser


def _add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: object, what: str
) -> None:
    parser = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    module.add_arguments(parser)  # type: ignore[attr-defined]
    parser.set_defaults(run=module.run)  # type: ignore[attr-defined]


def _with_default_command(arguments: list[str]) -> list[str]:
    """`warpseal --config-file FILE` means `warpseal serve --config-file FILE`, as the reference has it."""
    serves = bool(arguments) and arguments[0].startswith("--") and arguments[0] not in ("--help", "--version")
    return ["serve", *arguments] if serves else arguments or ["--help"]
