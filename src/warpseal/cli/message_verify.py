"""`warpseal message verify`: whether a destination would accept a signed message.

A node or the running daemon is asked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from warpseal.api.http.settings import ALL_NETWORK_NAMES
from warpseal.cli.message import (
    NOT_CHECKED_EXIT_CODE,
    add_signer_arguments,
    parse_hex,
    parse_node,
    read_input,
)
from warpseal.cli.process import argument, run_on_loop
from warpseal.cli.running_daemon import (
    DaemonRefusal,
    add_api_arguments,
    ask_network,
    print_table,
    printable,
)
from warpseal.delivery.destination import Destinations
from warpseal.delivery.errors import WarpDisabled
from warpseal.delivery.preflight import Preflight, PreflightAnswer, PreflightRequest
from warpseal.delivery.statement import StatementChecker
from warpseal.errors import StartupError, WarpsealError
from warpseal.messages.describe import unwrap
from warpseal.node.settings import NodeSettings
from warpseal.node.upstream import Upstream, connect_upstream
from warpseal.resources.chains import PrimaryChain
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import RpcRefusal
from warpseal.upstream.node import open_session
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights, ProposedHeight
from warpseal.validators.set_cache import PublicKeyCache
from warpseal.validators.sets import ValidatorSets
from warpseal.validators.settings import ValidatorSettings
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, ChainID, MalformedID, id_text, parse_id
from warpseal.warp.message import SignedMessage

DESCRIPTION = """\
Say whether the next block of a destination would accept a signed message, and why not. The
signature is verified as the destination does it: with its own epoch, quorum and signing subnet.
The nodes are asked about the statement as well: an expired registration, a stale nonce, a message
that was delivered before.

With --node the command asks that node, which must run the destination. Without it, it asks the
running daemon, which also knows the epoch before and the transactions that it has stored.

The exit code is 0 if nothing is known against the message, 1 if the destination refuses it or the
input is no signed message, and 3 if it could not be checked. --json also lists the signers;
`warpseal message decode` shows what the message says.
"""
EXAMPLES = """\
examples:
  warpseal message verify 0x0000... --destination 2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5
  warpseal message verify 0x0000... --node http://127.0.0.1:9650 \\
      --destination 2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5
  warpseal message verify - --destination P --json < signed-message.hex
"""

_P_CHAIN_NAMES: Final = frozenset({"p", "p-chain"})
_PATH: Final = "/v1/signatureAggregator/{network}/verify"
_MISMATCH: Final = (
    "{url} answered {status} without a preflight: it is no Warpseal daemon of this version"
)
_ACCEPTED: Final = {True: "accepted", False: "refused", None: "not known"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `warpseal message verify`."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument(
        "message",
        metavar="HEX",
        help="signed message in hex, with or without 0x; -: standard input",
    )
    parser.add_argument(
        "--destination",
        required=True,
        type=argument(_parse_destination, MalformedID),
        metavar="ID",
        help="blockchain id of the chain that is to verify the message, or P, X or C",
    )
    parser.add_argument(
        "--node",
        type=parse_node,
        metavar="URL",
        help=(
            "node that runs the destination, such as http://127.0.0.1:9650 (default: ask the"
            " running daemon)"
        ),
    )
    quorum_help = "required weight, percent, if higher than that of the destination"
    add_signer_arguments(parser, "the one that the destination demands", quorum_help)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_api_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the preflight; return the exit code.

    It is 0 if nothing speaks against the message, 1 if it is refused, and 3 if it is unchecked.
    """
    signed = _parse_signed(read_input(args.message))
    try:
        if args.node is None:
            preflight = _ask_daemon(signed, args)
        else:
            preflight = run_on_loop(_ask_node(signed, args))
    except _NotChecked as error:
        print(f"warpseal: the message is not checked: {printable(str(error))}", file=sys.stderr)
        return NOT_CHECKED_EXIT_CODE
    if args.json:
        print(json.dumps(preflight, indent=2))
    else:
        _print_preflight(preflight)
    return 0 if preflight.get("reason") is None else 1


class _NotChecked(Exception):
    """The message could not be checked."""


def _parse_destination(text: str) -> ChainID | PrimaryChain:
    """Return a blockchain id, or the X- or C-Chain, whose id depends on the network."""
    if text.lower() in _P_CHAIN_NAMES:
        return P_CHAIN
    return PrimaryChain.__members__.get(text) or ChainID(parse_id(text))


def _parse_signed(text: str) -> SignedMessage:
    raw = parse_hex(text, "the hex of a signed message")
    try:
        return SignedMessage.parse(unwrap(raw)[0], allows_padding=True)
    except MalformedMessage as error:
        raise StartupError(f"the input is no signed message: {error}") from None


def _print_preflight(preflight: Mapping[str, Any]) -> None:
    reason = preflight.get("reason")
    verdict = "yes, as far as is known"
    if reason:
        verdict = f"no ({reason}): {preflight.get('reasonText')}"
    destination, statement = preflight["destination"], preflight["statement"]
    quorum, epoch = destination["quorum"], destination.get("epoch")
    number = f"epoch {epoch['number']}, " if epoch else ""
    height = f"{number}P-Chain height {destination['pChainHeight']}"
    accepted = _ACCEPTED[statement["accepted"]]
    lines = {
        "accepted now": verdict,
        "message": f"{preflight['messageId']} of chain {preflight['sourceBlockchainId']}",
        "destination": f"{destination['destinationBlockchainId']}, {height}",
        "quorum": f"{quorum['percentage']} % ({quorum['source']})",
        "signing subnet": (
            f"{destination.get('signingSubnetId', 'not known')} ({destination.get('signedBy', '')})"
        ),
        "signature": "verifies now" if preflight["verifiesNow"] else "does not verify now",
        "statement": f"{statement['kind']}, {accepted}: {statement['text']}",
    }
    if "advice" in preflight:
        lines["advice"] = preflight["advice"]["text"]
    for name, text in lines.items():
        print(f"{name + ':':15} {printable(text)}")
    print_table(
        ("EPOCH", "HEIGHT", "SIGNED", "REQUIRED", "TOTAL", "VERIFIES"),
        map(_height_cells, preflight["heights"]),
    )


def _height_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    number = f" {row['number']}" if "number" in row else ""
    predicted = " (predicted)" if row.get("predicted") else ""
    verifies = {True: "yes", False: f"no: {row.get('reason')}", None: "not known"}[row["verifies"]]
    weights = (str(row.get(name, "")) for name in ("signedWeight", "requiredWeight", "totalWeight"))
    return f"{row['epoch']}{number}{predicted}", str(row["pChainHeight"]), *weights, verifies


async def _ask_node(signed: SignedMessage, args: argparse.Namespace) -> dict[str, Any]:
    node: NodeEndpoint = args.node
    try:
        async with open_session() as session:
            upstream = connect_upstream(NodeSettings((node,), (node,)), session)
            destination: ChainID | PrimaryChain = args.destination
            if isinstance(destination, PrimaryChain):
                chains = await upstream.view.primary_chains(await upstream.info.network_id())
                destination = chains.id_of(destination)
            request = PreflightRequest(signed, destination, args.signing_subnet, args.quorum)
            preflight = await _connect_preflight(upstream)
            body: dict[str, Any] = msgspec.to_builtins(await preflight.check(request))
            return body
    except WarpDisabled as error:
        raise StartupError(str(error)) from None
    except (WarpsealError, RpcRefusal) as error:
        raise _NotChecked(str(error)) from None


async def _connect_preflight(upstream: Upstream) -> Preflight:
    """Return a preflight that asks the nodes of `upstream`. Raises NodeUnavailable."""
    network_id, settings = await upstream.info.network_id(), ValidatorSettings()
    chains, heights = ChainLookup(upstream.platform), ProposedHeight(upstream.platform)
    await heights.poll()
    destinations = Destinations(upstream, chains, EpochHeights(upstream.proposervm), network_id)
    sets = ValidatorSets(
        upstream.platform, heights, PublicKeyCache(settings.key_cache_keys), settings
    )
    statements = StatementChecker(upstream.platform, chains, upstream.chain_rpc.eth_call)
    return Preflight(
        destinations, chains, sets, heights, statements, upstream.chain_rpc, network_id
    )


def _ask_daemon(signed: SignedMessage, args: argparse.Namespace) -> dict[str, Any]:
    if isinstance(args.destination, PrimaryChain):
        destination = args.destination.name
    else:
        destination = id_text(args.destination)
    body: dict[str, Any] = {
        "signedMessage": signed.encode().hex(),
        "destinationBlockchainId": destination,
    }
    if args.signing_subnet is not None:
        body["signingSubnetId"] = id_text(args.signing_subnet)
    if args.quorum is not None:
        body["quorumPercentage"] = args.quorum
    try:
        return ask_network(args, ALL_NETWORK_NAMES[0], _PATH, PreflightAnswer, _MISMATCH, body)
    except DaemonRefusal as refusal:
        if refusal.code == WarpDisabled.code:
            raise
        raise _NotChecked(f"the daemon answered {refusal.status}: {refusal.message}") from None
    except StartupError as error:
        raise _NotChecked(str(error)) from None
