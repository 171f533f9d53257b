"""`warpseal message decode`: decode a Warp message or a P-Chain transaction; verify a signature."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec import to_builtins

from warpseal.cli.process import argument, run_on_loop
from warpseal.cli.running_daemon import printable
from warpseal.errors import StartupError, WarpsealError
from warpseal.messages.describe import (
    NO_WARP_MESSAGE,
    describe,
    describe_transaction,
    id_forms,
    unwrap,
)
from warpseal.messages.verification import verify_at
from warpseal.node.platform import PlatformClient
from warpseal.node.settings import NodeSettings, endpoint
from warpseal.node.upstream import connect_upstream
from warpseal.runtime.settings import InvalidSetting
from warpseal.upstream.endpoint import NodeEndpoint
from warpseal.upstream.errors import RpcRefusal
from warpseal.upstream.node import open_session
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, MalformedID, parse_id
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import DEFAULT_QUORUM

_MAX_INPUT_BYTES = 1024 * 1024
NOT_CHECKED = "not checked"
NOT_CHECKED_EXIT_CODE = 3

DESCRIPTION = """\
Decode a Warp message: unsigned or signed, of every kind, alone, as the data of a SendWarpMessage
log, or as the storage keys that deliver it. A P-Chain transaction, by its bytes or by its hash
with --node, is decoded together with the message that it yields for the contract of the L1's
manager.

With --node, the signature of a signed message is verified as a contract does: against the
validators of the signing subnet at one P-Chain height. The exit code is 0 if the signature is
right or there is none, 1 if it is wrong or has too little weight, or if the input is no message,
and 3 if a signature could not be checked: without a node, without an answer of it, or without
--signing-subnet if the message does not determine the subnet.
"""
EXAMPLES = """\
examples:
  warpseal message decode 0000000000056b80...
  warpseal message decode 2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz \\
      --node https://node.example:9650
  warpseal message decode 0x00000000... --node http://127.0.0.1:9650 --height 1234567
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `warpseal message decode`."""
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument(
        "input",
        metavar="HEX|TXHASH",
        help="bytes in hex, with or without 0x; or the hash of a transaction; -: standard input",
    )
    parser.add_argument(
        "--node", type=parse_node, metavar="URL", help="node, such as http://127.0.0.1:9650"
    )
    parser.add_argument(
        "--height",
        type=_parse_height,
        metavar="N",
        help="P-Chain height of the validator set (default: the proposed height)",
    )
    quorum_help = f"required weight, percent (default {DEFAULT_QUORUM})"
    add_signer_arguments(parser, "that of the source chain", quorum_help, DEFAULT_QUORUM)
    parser.add_argument(
        "--validators",
        action="store_true",
        help="list who signed and who did not; JSON always does",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_signer_arguments(
    parser: argparse.ArgumentParser, subnet: str, quorum_help: str, quorum: int | None = None
) -> None:
    """Declare the flags that name the signers.

    subnet: text about the default of --signing-subnet.
    quorum: default of --quorum.
    """
    subnet_help = f"subnet whose validators signed (default: {subnet})"
    parser.add_argument(
        "--signing-subnet", type=argument(parse_id, MalformedID), metavar="ID", help=subnet_help
    )
    parser.add_argument(
        "--quorum",
        type=argument(_parse_percentage, ValueError),
        default=quorum,
        metavar="N",
        help=quorum_help,
    )


def _parse_percentage(text: str) -> int:
    """Return a number from 1 to 100. Raises ValueError."""
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise ValueError(f"expected a number from 1 to 100, found {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print the decoded message; return the exit code.

    It is 0 if the signature is valid or there is none, and 3 if it could not be checked.
    """
    text = read_input(args.input)
    try:
        decoded = run_on_loop(_decode(text, args))
    except (WarpsealError, RpcRefusal) as error:
        raise StartupError(str(error)) from error
    verification = decoded.get("verification", {})
    if args.json:
        print(json.dumps(decoded, indent=2))
    else:
        print(f"result: {printable(_result_line(decoded, verification))}")
        if verification and not args.validators:
            decoded |= {"verification": _without_validators(verification)}
        print("\n".join(format_lines(decoded)))
    if not _is_whole(decoded):
        return 1
    if verification.get("result") == NOT_CHECKED:
        return NOT_CHECKED_EXIT_CODE
    return 0 if verification.get("quorumMet", True) else 1


def _result_line(decoded: dict[str, Any], verification: dict[str, Any]) -> str:
    """Return the verdict on a message, or the reason why there is none."""
    if not _is_whole(decoded):
        return f"{decoded['type']}: {decoded['unread'][0]['reason']}"
    if not verification:
        return f"{decoded['type']}, no signature to verify"
    if verification.get("result") == NOT_CHECKED:
        return f"the signature is not checked: {verification['reason']}"
    subnet_id, height = verification["signingSubnetId"]["cb58"], verification["pChainHeight"]
    where = f"the validators of subnet {subnet_id} at height {height}"
    if not verification["signatureValid"]:
        return f"the signature is wrong for {where}: {verification['fault']}"
    lacks = "" if verification["quorumMet"] else ", but has too little weight"
    required = f"{verification['quorumPercentage']} % needed"
    return (
        f"the signature is valid{lacks}: {verification['signedPercentage']} % of the weight of"
        f" {where}, {required}"
    )


def _without_validators(verification: dict[str, Any]) -> dict[str, Any]:
    """Return a verification that counts the validators instead of listing them."""
    if "signed" not in verification:
        return verification
    signed, others = len(verification["signed"]), len(verification["notSigned"])
    fields = dict(verification)
    del fields["signed"], fields["notSigned"]
    return {**fields, "signedValidators": f"{signed} of {signed + others}; --validators lists them"}


async def _decode(text: str, args: argparse.Namespace) -> dict[str, Any]:
    tx_id = None
    with suppress(MalformedID):
        tx_id = parse_id(text)
    if args.node is None:
        if tx_id is not None:
            raise StartupError("the lookup of a transaction needs a node: --node URL")
        unchecked = _unchecked("a node is needed: give --node URL")
        return _with_verification(_decode_bytes(parse_hex(text)), unchecked)
    settings = NodeSettings((args.node,), (args.node,))
    async with open_session() as session:
        platform = connect_upstream(settings, session).platform
        if tx_id is None:
            return await _verify(platform, parse_hex(text), args)
        transaction = await platform.transaction(tx_id)
        if transaction is None:
            raise StartupError(f"this node knows no transaction {text} of the P-Chain")
        decoded = await _verify(platform, transaction.raw, args)
        return {**decoded, "status": transaction.status.value}


def _decode_bytes(raw: bytes) -> dict[str, Any]:
    """Return the decoded message; if the bytes are no whole message, the decoded transaction."""
    decoded = describe(raw)
    if _is_whole(decoded):
        return decoded
    try:
        return describe_transaction(raw)
    except MalformedMessage:
        return decoded


async def _verify(platform: PlatformClient, raw: bytes, args: argparse.Namespace) -> dict[str, Any]:
    """Return the decoded bytes, completed and verified by a node."""
    decoded = _decode_bytes(raw)
    if "managerBlockchainId" in decoded:
        manager_chain_id = ChainID(parse_id(decoded["managerBlockchainId"]["cb58"]))
        subnet_id = await platform.validated_by(manager_chain_id)
        if subnet_id is None:
            return decoded
        return {**decoded, "signingSubnetId": id_forms(subnet_id)}
    if not _is_signed(decoded):
        return decoded
    signed = SignedMessage.parse(unwrap(raw)[0])
    try:
        report = await verify_at(platform, signed, args.signing_subnet, args.height, args.quorum)
        verification: dict[str, Any] = to_builtins(report)
    except (StartupError, WarpsealError, RpcRefusal) as error:
        # The message is decoded all the same.
        verification = _unchecked(str(error))
    return _with_verification(decoded, verification)


def _unchecked(reason: str) -> dict[str, Any]:
    return {"result": NOT_CHECKED, "reason": reason}


def _with_verification(decoded: dict[str, Any], verification: dict[str, Any]) -> dict[str, Any]:
    return {**decoded, "verification": verification} if _is_signed(decoded) else decoded


def _is_signed(decoded: dict[str, Any]) -> bool:
    return "signatureBytes" in decoded.get("signature", {})


def _is_whole(decoded: dict[str, Any]) -> bool:
    unread_parts = [part["part"] for part in decoded.get("unread", ())]
    return decoded["type"] != NO_WARP_MESSAGE and "signature" not in unread_parts


def format_lines(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield nested values as lines for people: `name: value`, parts indented below their name."""
    width = max((len(name) for name, item in value.items() if not _is_nested(item)), default=0)
    for name, item in value.items():
        if not _is_nested(item):
            yield f"{indent}{name + ':':{width + 1}} {_display(item)}"
            continue
        yield f"{indent}{name}:"
        if isinstance(item, list):
            for part in item:
                yield from _format_part(part, indent + "  ")
        else:
            yield from format_lines(item, indent + "  ")


def _format_part(part: Any, indent: str) -> Iterator[str]:
    """Yield the lines of an item of a list; the first one begins with a hyphen."""
    if not isinstance(part, dict):
        yield f"{indent}- {_display(part)}"
        return
    lines = list(format_lines(part, indent + "  "))
    if lines:
        lines[0] = f"{indent}- {lines[0][len(indent) + 2 :]}"
    yield from lines


def _is_nested(value: Any) -> bool:
    if isinstance(value, dict):
        return set(value) != {"cb58", "hex"}
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)


def _display(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['cb58']} ({value['hex']})"
    if isinstance(value, list):
        return ", ".join(map(_display, value)) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def read_input(text: str) -> str:
    """Return the text of an argument; - stands for standard input."""
    return sys.stdin.read(2 * _MAX_INPUT_BYTES).strip() if text == "-" else text.strip()


def parse_hex(
    text: str, expected: str = "the hex of a message or the hash of a transaction"
) -> bytes:
    """Return the bytes of hex, with or without 0x. Raises StartupError.

    expected: text of the error.
    """
    digits = text[2:] if text[:2].lower() == "0x" else text
    with suppress(ValueError):
        raw = bytes.fromhex(digits)
        if raw and len(digits) == 2 * len(raw):
            return raw
    raise StartupError(f"expected {expected}")


def parse_node(text: str) -> NodeEndpoint:
    """Return the node at a URL. Raises ArgumentTypeError."""
    try:
        return endpoint("http", "https")(text, "--node")
    except InvalidSetting as error:
        # argparse names the flag before the reasons.
        reasons = "; ".join(cause.reason for cause in error.errors)
        raise argparse.ArgumentTypeError(reasons) from None


def _parse_height(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"{text[:32]!r} is no height")
    return int(text)
