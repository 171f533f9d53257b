"""Entry point of the `warpseal` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from warpseal import __version__
from warpseal.errors import StartupError

DESCRIPTION = """\
Warpseal aggregates the BLS signatures of Avalanche validators over Warp messages.

  warpseal demo                          see the main job on a simulated network
  warpseal serve --config config.json    run the daemon (the reference aggregator's config file works)
  warpseal doctor --config config.json   can it sign? what is in the way?
  warpseal message decode HEX|TXHASH     what does a message or a P-Chain transaction say? who signed it?
  warpseal index run --config FILE       index the P-, X- and C-Chain (serve does it too, where it is switched on)
  warpseal store info                    what was signed and is kept; export, import, check
"""
COMMANDS = {
    ("serve",): ("serve", "run the daemon (also: warpseal --config-file FILE)"),
    ("config", "check"): ("config_check", "say what is wrong with a config file, or what it means"),
    ("message", "decode"): ("message", "say what a Warp message or a P-Chain transaction says, and who signed it"),
    ("store", "info"): ("store.INFO", "show where the store is, how much is in it, and who uses it"),
    ("store", "export"): ("store.EXPORT", "write signed messages and shares as JSON Lines"),
    ("store", "import"): ("store.IMPORT", "verify and keep shares and signatures that were collected elsewhere"),
    ("store", "upgrade"): ("store.UPGRADE", "bring the store to the schema version of this program"),
    ("store", "check"): ("store.CHECK", "verify that the store is whole, every signature included"),
    ("key", "create"): ("key.CREATE", "make an API key for a caller"),
    ("key", "list"): ("key.LIST", "list the API keys"),
    ("key", "revoke"): ("key.REVOKE", "revoke an API key"),
    ("index", "run"): ("index.RUN", "index the primary chains from a node, until it is told to stop"),
    ("index", "status"): ("index.STATUS", "show how far the index is, and what it waits for"),
    ("index", "verify"): ("index.VERIFY", "hold the index against itself and against a node"),
    ("doctor",): ("doctor", "can the nodes and validators be reached, is there weight enough to sign?"),
    ("simnet",): ("simnet", "run simulated validators and a simulated node on loopback"),
    ("demo",): ("demo", "show the main job on a simulated network"),
}
"""The words of each command -> its module in this room, or a part of one, and what it does."""
GROUPS = {
    "index": "the history of the primary chains",
    "config": "look at a config file",
    "message": "look at a Warp message",
    "key": "give callers API keys, and take them away",
    "store": "look at what was signed, back it up, bring in what was signed elsewhere",
}
"""What the commands of two words have in common, by their first word."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 fine, 1 it failed, 2 it was called wrongly."""
    arguments = _with_default_command(list(sys.argv[1:] if argv is None else argv))
    args = _parser(arguments).parse_args(arguments)
    try:
        code: int = args.run(args)
    except StartupError as error:
        print(f"warpseal: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has left; the interpreter must not complain about it at its end, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    """Return a parser that knows all commands, and the flags of the one that is called: others are not even loaded."""
    parser = argparse.ArgumentParser(
        prog="warpseal", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"warpseal {__version__}")
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    groups = {
        word: top.add_parser(word, help=what).add_subparsers(metavar="ACTION", required=True)
        for word, what in GROUPS.items()
    }
    for words, (module_name, what) in COMMANDS.items():
        sentence = what if what.endswith("?") else f"{what}."
        place = groups[words[0]] if len(words) > 1 else top
        command = place.add_parser(words[-1], help=what, description=sentence)
        if tuple(arguments[: len(words)]) == words:
            name, _, part = module_name.partition(".")
            module = import_module(f"warpseal.cli.{name}")
            called = getattr(module, part) if part else module
            called.add_arguments(command)
            command.set_defaults(run=called.run)
    return parser


def _with_default_command(arguments: list[str]) -> list[str]:
    """`warpseal --config-file FILE` means `warpseal serve --config-file FILE`, as the reference has it."""
    serves = bool(arguments) and arguments[0].startswith("--") and arguments[0] not in ("--help", "--version")
    return ["serve", *arguments] if serves else arguments or ["--help"]
