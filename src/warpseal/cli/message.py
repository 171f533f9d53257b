"""`warpseal message decode`: tells what a message or a P-Chain transaction says, and whether a signature is right."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from warpseal.cli.loop import run_on_loop
from warpseal.errors import StartupError, WarpsealError
from warpseal.l1.describe import NO_WARP_MESSAGE, describe, describe_transaction, id_forms, unwrap
from warpseal.l1.verification import DEFAULT_QUORUM, VerificationTarget, verify_at
from warpseal.node.endpoint import NodeEndpoint
from warpseal.node.errors import RpcRefusal
from warpseal.node.platform import PlatformClient
from warpseal.node.rpc import open_session
from warpseal.node.settings import NodeSettings, endpoint
from warpseal.node.upstream import connect_upstream
from warpseal.runtime.settings import InvalidSetting
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, MalformedID, SubnetID, parse_id
from warpseal.warp.message import SignedMessage

_MAX_INPUT_BYTES = 1024 * 1024

DESCRIPTION = """\
Say what a Warp message says: unsigned or signed, of every kind, alone, as the data of a SendWarpMessage log, or as
the storage keys that deliver it. A P-Chain transaction, by its bytes or by its hash with --node, is told with the
message that follows from it for the contract of the L1's manager.

With --node, the signature of a signed message is verified as a contract does: against the validators of the signing
subnet at one P-Chain height. The exit code is 1 when the message cannot be read, or its signature is wrong or of too
little weight.
"""
EXAMPLES = """\
examples:
  warpseal message decode 0000000000056b80...
  warpseal message decode 2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz --node https://node.example:9650
  warpseal message decode 0x00000000... --node http://127.0.0.1:9650 --height 1234567
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `warpseal message decode`."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "what", metavar="HEX|TXHASH", help="the bytes in hex, 0x or not; or a transaction's hash; -: stdin"
    )
    parser.add_argument("--node", type=_node, metavar="URL", help="node to ask, such as http://127.0.0.1:9650")
    parser.add_argument(
        "--height", type=_height, metavar="N", help="P-Chain height of the validators (default proposed)"
    )
    parser.add_argument(
        "--signing-subnet", type=_subnet, metavar="ID", help="whose validators signed (default: by the source chain)"
    )
    parser.add_argument(
        "--quorum",
        type=int,
        choices=range(1, 101),
        default=DEFAULT_QUORUM,
        metavar="N",
        help="percent needed (default 67)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print what was asked about; return 0 when it could be read and nothing is wrong with its signature."""
    words = sys.stdin.read(2 * _MAX_INPUT_BYTES).strip() if args.what == "-" else args.what.strip()
    try:
        shown = run_on_loop(_told(words, args))
    except (WarpsealError, RpcRefusal) as error:
        raise StartupError(str(error)) from error
    print(json.dumps(shown, indent=2) if args.json else "\n".join(lines_of(shown)))
    fault = shown.get("verification", {}).get("error")
    if fault is not None:
        print(f"warpseal: {fault}", file=sys.stderr)
    return 0 if _is_right(shown) else 1


async def _told(words: str, args: argparse.Namespace) -> dict[str, Any]:
    tx_id = _tx_id(words)
    if args.node is None:
        if tx_id is not None:
            raise StartupError("a transaction is looked up at a node: name one with --node URL")
        return _read(_bytes_of(words))
    async with open_session() as session:
        platform = connect_upstream(NodeSettings((args.node,), (args.node,)), session).platform
        if tx_id is None:
            return await _checked(platform, _bytes_of(words), args)
        found = await platform.transaction(tx_id)
        if found is None:
            raise StartupError(f"this node knows no transaction {words} of the P-Chain")
        return {**await _checked(platform, found.raw, args), "status": found.status.value}


def _read(raw: bytes) -> dict[str, Any]:
    """Return what bytes say: a message, and where they are no whole one a transaction."""
    shown = describe(raw)
    if _is_whole(shown):
        return shown
    try:
        return describe_transaction(raw)
    except MalformedMessage:
        return shown


async def _checked(platform: PlatformClient, raw: bytes, args: argparse.Namespace) -> dict[str, Any]:
    """Return what bytes say, and what a node knows of it."""
    shown = _read(raw)
    if "managerBlockchainId" in shown:
        subnet_id = await platform.validated_by(ChainID(parse_id(shown["managerBlockchainId"]["cb58"])))
        return shown if subnet_id is None else {**shown, "signingSubnetId": id_forms(subnet_id)}
    if "signatureBytes" not in shown.get("signature", {}):
        return shown
    against = VerificationTarget(args.signing_subnet, args.height, args.quorum)
    try:
        verification = await verify_at(platform, SignedMessage.parse(unwrap(raw)[0]), against)
    except (StartupError, WarpsealError, RpcRefusal) as error:
        # What the message says is known all the same.
        verification = {"quorumMet": False, "error": str(error)}
    return {**shown, "verification": verification}


def _is_whole(shown: dict[str, Any]) -> bool:
    return shown["type"] != NO_WARP_MESSAGE and all(one["part"] != "signature" for one in shown.get("unread", ()))


def _is_right(shown: dict[str, Any]) -> bool:
    return _is_whole(shown) and shown.get("verification", {"quorumMet": True})["quorumMet"] is True


def lines_of(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield nested values as lines for people: `name: value`, parts indented below their name."""
    width = max((len(name) for name, one in value.items() if not _is_nested(one)), default=0)
    for name, one in value.items():
        if not _is_nested(one):
            yield f"{indent}{name + ':':{width + 1}} {_shown(one)}"
            continue
        yield f"{indent}{name}:"
        for part in one if isinstance(one, list) else [one]:
            yield from _part(part, indent + "  ", is_item=isinstance(one, list))


def _part(part: Any, indent: str, *, is_item: bool) -> Iterator[str]:
    if not isinstance(part, dict):
        yield f"{indent}- {_shown(part)}"
        return
    for place, line in enumerate(lines_of(part, indent + ("  " if is_item else ""))):
        yield f"{indent}- {line[len(indent) + 2 :]}" if is_item and place == 0 else line


def _is_nested(value: Any) -> bool:
    if isinstance(value, dict):
        return set(value) != {"cb58", "hex"}
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['cb58']} ({value['hex']})"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if value is None:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _tx_id(words: str) -> bytes | None:
    """Return the transaction that `words` are the hash of; None where they can only be a message's bytes."""
    try:
        return parse_id(words)
    except MalformedID:
        return None


def _bytes_of(words: str) -> bytes:
    digits = words[2:] if words[:2].lower() == "0x" else words
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raise StartupError("this is neither hex of a message nor the hash of a transaction") from None
    if not raw or len(digits) != 2 * len(raw):
        raise StartupError("this is neither hex of a message nor the hash of a transaction")
    return raw


def _node(text: str) -> NodeEndpoint:
    try:
        return endpoint("http", "https")({"base-url": text}, "--node")
    except InvalidSetting as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _subnet(text: str) -> SubnetID:
    try:
        return SubnetID(parse_id(text))
    except MalformedID as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _height(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"{text[:32]!r} is no height")
    return int(text)
