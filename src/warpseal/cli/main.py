"""Entry point of the `warpseal` command."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from warpseal.errors import StartupError
from warpseal.runtime.lazy import import_late
from warpseal.version import describe_version

_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)'")
_UNKNOWN_FLAG: Final = re.compile(r"(--[\w-]+)")
_REQUIRED: Final = "the following arguments are required"

# Libraries of a daemon import these, which it never uses.
_UNUSED: Final = (
    "attr.validators",
    "google.protobuf.internal.python_message",
)

DESCRIPTION = """\
Warpseal aggregates the BLS signatures of Avalanche validators over Warp messages. First steps:

  warpseal demo                          see the main job on a simulated network; needs no config
                                         file
  warpseal config check config.json      list the faults of a config file (the reference
                                         aggregator's file works)
  warpseal doctor --config config.json   check whether the daemon can sign, with advice
  warpseal serve --config config.json    run the daemon; `warpseal serve --help` shows a config
                                         file and all settings
  warpseal status                        show what the running daemon does, and which validators
                                         are missing
  warpseal message sign HEX|TXHASH       print the signed message, or the validators that are
                                         missing
  warpseal forecast                      show when L1s lose their quorum, and which validators to
                                         fund

`warpseal COMMAND --help` shows the flags of a command. Documentation: README.md and docs/ of the
repository.
"""
COMMANDS = {
    ("demo",): ("demo.DEMO", "demonstrate the aggregation on a simulated network"),
    ("config", "check"): (
        "config_check.CHECK",
        "list the errors of a config file, or its effective settings",
    ),
    ("doctor",): ("doctor.DOCTOR", "check nodes, validators, weight and clock, with advice"),
    ("serve",): ("serve", "run the daemon (also: warpseal --config-file FILE)"),
    ("status",): (
        "status.STATUS",
        "show subnets, aggregations, nodes and chains of the running daemon",
    ),
    ("peers",): (
        "status.PEERS",
        "list the validators and their connections, as the running daemon sees them",
    ),
    ("health",): ("status.HEALTH", "ask the running daemon whether it is alive"),
    ("forecast",): (
        "forecast.FORECAST",
        "show when subnets lose their quorum, and which balances prevent it",
    ),
    ("message", "decode"): (
        "message",
        "decode a Warp message or a P-Chain transaction, and verify its signature",
    ),
    ("message", "sign"): (
        "message_sign",
        "sign a message, or that of a P-Chain transaction, by the running daemon",
    ),
    ("message", "verify"): (
        "message_verify",
        "say whether a destination would accept a signed message, and why not",
    ),
    ("store", "info"): ("store.INFO", "show the URL, the contents and the users of the store"),
    ("store", "export"): ("store.EXPORT", "write signed messages and shares as JSON Lines"),
    ("store", "import"): ("store.IMPORT", "store shares and signatures of an export"),
    ("store", "upgrade"): (
        "store.UPGRADE",
        "upgrade the store to the schema version of this program",
    ),
    ("store", "check"): (
        "store.CHECK",
        "verify the integrity of the store and every signature in it",
    ),
    ("backup",): (
        "backup.BACKUP",
        "write identity, store, API keys and usage of a daemon, which may run, to one file",
    ),
    ("restore",): ("backup.RESTORE", "restore a backup into an empty data folder"),
    ("key", "create"): ("key.CREATE", "create an API key"),
    ("key", "list"): ("key.LIST", "list the API keys"),
    ("key", "revoke"): ("key.REVOKE", "revoke an API key"),
    ("block", "add"): (
        "admin.ADD_BLOCK",
        "disable signing for a chain, a destination, a sender or a message",
    ),
    ("block", "list"): (
        "admin.LIST_BLOCKS",
        "list the messages for which signing is disabled, and why",
    ),
    ("block", "remove"): ("admin.REMOVE_BLOCK", "enable signing again"),
    ("webhook", "add"): ("admin.ADD_WEBHOOK", "send events to a URL"),
    ("webhook", "list"): ("admin.LIST_WEBHOOKS", "list the webhooks and their last deliveries"),
    ("webhook", "remove"): ("admin.REMOVE_WEBHOOK", "send no more events to a URL"),
    ("webhook", "test"): (
        "admin.TEST_WEBHOOK",
        "send a request without events; resume a paused webhook",
    ),
    ("index", "run"): ("index_run.RUN", "index the configured chains until SIGTERM or SIGINT"),
    ("index", "status"): (
        "index.STATUS",
        "show the height, rate, ETA and stop reason of each indexed chain",
    ),
    ("index", "verify"): ("index.VERIFY", "verify the index for consistency and against a node"),
    ("index", "rebuild"): (
        "index.REBUILD",
        "derive the rows of the primary chains again from the stored blocks",
    ),
    ("index", "export"): (
        "index.EXPORT",
        "write NFT transfers, holdings, contracts, blocks or balances of an EVM chain",
    ),
    ("icm", "show"): (
        "icm.SHOW",
        "show the life of an ICM message, what hinders it, and what to do",
    ),
    ("icm", "list"): (
        "icm.LIST",
        "list ICM messages of the indexed EVM chains, or those that are stuck",
    ),
    ("usage",): (
        "usage.USAGE",
        "show the usage of the forwarded RPC routes, by method, path, client",
    ),
    ("completion",): (
        "completion",
        "print a script that completes commands and flags in bash, zsh or fish",
    ),
    ("simnet",): ("simnet", "run a simulated network of validators and nodes on loopback"),
}
"""Words of each command -> its module in this package, or an attribute of it, and its help."""
GROUPS = {
    "index": "history of the primary chains and of EVM chains",
    "config": "config file",
    "message": "Warp messages and P-Chain transactions",
    "icm": "ICM (Teleporter) messages between EVM chains",
    "key": "API keys of callers",
    "block": "signing blocks: messages that are not signed",
    "webhook": "URLs to which events are sent",
    "store": "stored signatures: contents, backup, import, check",
}
"""Help of the commands of two words, by their first word."""
# What only an error needs.
_PRINT_ERROR: Final = "errors.print_error"
_FIND_REMOVAL: Final = "errors.find_removal"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 success, 1 failure, 2 wrong usage.

    Some commands have more: 3 if a daemon or a node did not answer, 4 if the same request may
    succeed later.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if arguments[0].startswith("--") and arguments[0] not in ("--help", "--version"):
        # `warpseal --config-file FILE` runs the daemon, as the reference has it.
        arguments.insert(0, "serve")
    is_daemon = arguments[:1] == ["serve"] or arguments[:2] == ["index", "run"]
    logged_arguments = arguments if is_daemon else None
    if is_daemon:
        # Later SIGHUP reopens the log files; before and after that it ends no daemon.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        import_late(*_UNUSED)
    try:
        args, unknown = _parser(arguments).parse_known_args(arguments)
        if unknown:
            args.command.error(f"unrecognized arguments: {' '.join(unknown)}")
        code: int = args.run(args)
    except _WrongUsage as error:
        usage = f"{error.parser.format_usage()}{error.parser.prog}: error: {error}"
        load_command(_PRINT_ERROR)(logged_arguments, "wrong usage", str(error), usage)
        return 2
    except StartupError as error:
        load_command(_PRINT_ERROR)(
            logged_arguments, "cannot start", str(error), f"warpseal: {error}"
        )
        return 1
    except ImportError as error:
        if error.name != "warpseal.bls":
            raise
        load_command(_PRINT_ERROR)(
            logged_arguments, "cannot start", str(error), f"warpseal: {error}"
        )
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed the pipe; without this the interpreter reports it at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


class _WrongUsage(Exception):
    """The arguments of a command are wrong.

    parser: parser of that command.
    """

    def __init__(self, parser: argparse.ArgumentParser, reason: str) -> None:
        super().__init__(reason)
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the nearest command or flag."""

    _flags: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and keep the flags for the text of an error."""
        self._flags = [
            str(argument).partition("=")[0]
            for argument in args or ()
            if str(argument).startswith("--")
        ]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        misspelt = [flag for flag in self._flags if flag not in self._option_string_actions]
        if message.startswith(_REQUIRED) and misspelt:
            # The flag that is missing may be the one that is misspelt.
            message = f"unrecognized arguments: {' '.join(misspelt)}"
        is_unknown = message.startswith("unrecognized arguments")
        words = _UNKNOWN_FLAG.findall(message) if is_unknown else _INVALID_CHOICE.findall(message)
        choices = [
            name
            for action in self._actions
            for name in (*action.option_strings, *(action.choices or ()))
        ]
        for word in words:
            removal = load_command(_FIND_REMOVAL)(word)
            if removal is not None:
                message = f"{word} was removed: {removal}"
                break
            nearest = difflib.get_close_matches(word, map(str, choices), 1)
            if nearest:
                message = f"{message.partition(' (choose from')[0]}; did you mean {nearest[0]}?"
        raise _WrongUsage(self, message)


class _PrintVersion(argparse.Action):
    """The flag that prints the version. In a clone it asks Git, which no other command needs."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(describe_version())
        parser.exit()


def load_command(location: str) -> Any:
    """Return the command at a location in `COMMANDS`, which has `add_arguments` and `run`."""
    name, _, part = location.partition(".")
    module = import_module(f"warpseal.cli.{name}")
    return getattr(module, part) if part else module


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    """Return a parser of the called command, or of all commands without their flags.

    Only the module of the called command is loaded.
    """
    parser = _Parser(
        prog="warpseal",
        usage="%(prog)s COMMAND [ARGUMENT ...]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion, help="print the version and revision")
    top = parser.add_subparsers(prog="warpseal", metavar="COMMAND", required=True)
    groups: dict[str, argparse._SubParsersAction[_Parser]] = {}
    called_words = next(
        (words for words in COMMANDS if tuple(arguments[: len(words)]) == words), None
    )
    for words, (location, summary) in COMMANDS.items():
        if called_words not in (None, words):
            # Thirty parsers cost 3 ms at each start.
            continue
        place = top
        if len(words) > 1:
            if words[0] not in groups:
                group = top.add_parser(words[0], help=GROUPS[words[0]])
                groups[words[0]] = group.add_subparsers(metavar="ACTION", required=True)
            place = groups[words[0]]
        command = place.add_parser(words[-1], help=summary, description=f"{summary}.")
        if words == called_words:
            called = load_command(location)
            called.add_arguments(command)
            if "\n" in f"{command.description}{command.epilog}":
                command.formatter_class = argparse.RawDescriptionHelpFormatter
            command.set_defaults(run=called.run, command=command)
    return parser
