"""Signing blocks in front of the Warp API of nodes: no call for a blocked message reaches a node.

The API signs by id.

Source of truth: `warp/service.go` of subnet-evm and coreth. The first argument is the id of a
message of the chain, in base58-check, or of an accepted block, whose message is the hash of the
block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from warpseal.errors import WarpsealError
from warpseal.messages.errors import UncheckedMessage
from warpseal.messages.signing_blocks import check_allowed, check_subjects
from warpseal.resources.text import hex_text
from warpseal.store.errors import StoreDown
from warpseal.store.signing_blocks import NOT_READ, SigningBlocks
from warpseal.store.values import SigningBlockKind
from warpseal.upstream.jsonrpc import (
    MALFORMED,
    SERVER_ERROR,
    RpcCall,
    RpcError,
    RpcResponse,
    rpc_call,
)
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import ChainID, MalformedID, MessageID, id_text, parse_id
from warpseal.warp.message import Hash, UnsignedMessage

_PREFIX: Final = "warp_"
_GET_MESSAGE: Final = "warp_getMessage"
_OF_MESSAGES: Final = frozenset(
    {_GET_MESSAGE, "warp_getMessageSignature", "warp_getMessageAggregateSignature"}
)
_OF_BLOCKS: Final = frozenset({"warp_getBlockSignature", "warp_getBlockAggregateSignature"})
_SHOWN_CHARACTERS: Final = 64

ReadCalls = Callable[[Mapping[int, RpcCall]], Awaitable[Mapping[int, RpcResponse]]]
"""Returns the responses of a node of the chain to calls by number."""


class SigningRules:
    """The signing blocks of the network. Calls come before `open`, and all of them are refused.

    network_id: id of the network; 0 before `open`.
    """

    def __init__(self) -> None:
        self.network_id = 0
        self._blocks: SigningBlocks | None = None

    def open(self, network_id: int, blocks: SigningBlocks) -> None:
        """Let calls pass unless a signing block names them."""
        self.network_id = network_id
        self._blocks = blocks

    @property
    def may_block(self) -> bool:
        """Whether there is a block, or the blocks were not read yet."""
        return self._blocks is None or self._blocks.may_block

    @property
    def blocks(self) -> SigningBlocks:
        """The signing blocks. Raises StoreDown before `open`."""
        if self._blocks is None:
            raise StoreDown(NOT_READ)
        return self._blocks


class WarpApiGuard:
    """Finds the calls for blocked messages of one chain."""

    def __init__(self, chain_id: ChainID, rules: SigningRules) -> None:
        self._chain_id = chain_id
        self._rules = rules

    def guards(self, method: str) -> bool:
        """Return whether calls of a method are checked.

        Calls of the Warp API are, if there may be a block.
        """
        if method[: len(_PREFIX)].lower() != _PREFIX:
            return False
        return self._rules.may_block

    async def refusals(
        self, calls: Mapping[int, RpcCall], read: ReadCalls
    ) -> dict[int, RpcResponse]:
        """Return the responses to those of the guarded calls that no node may receive.

        A block of a sender, of a destination, or of the id of a Teleporter message needs the
        message of a call: a node returns it. If none does, the call is refused.
        """
        refusals: dict[int, RpcResponse] = {}
        unread: dict[int, MessageID] = {}
        for number, call in calls.items():
            try:
                message_id = self._check_id(call)
            except WarpsealError as error:
                refusals[number] = _refusal(error)
            else:
                if message_id is not None:
                    unread[number] = message_id
        if unread:
            lookups = {
                number: rpc_call(_GET_MESSAGE, id_text(message_id))
                for number, message_id in unread.items()
            }
            responses = await read(lookups)
            for number, message_id in unread.items():
                try:
                    self._check_message(message_id, responses[number])
                except WarpsealError as error:
                    refusals[number] = _refusal(error)
        return refusals

    def _check_id(self, call: RpcCall) -> MessageID | None:
        """Check what a call names.

        Return the id of the message if a block may name something else of it.

        Raises StoreDown, SigningBlocked, UncheckedMessage.
        """
        blocks = self._rules.blocks
        check_subjects(blocks, [(SigningBlockKind.SOURCE_CHAIN, id_text(self._chain_id))])
        if blocks.kinds <= {SigningBlockKind.SOURCE_CHAIN}:
            return None
        argument = _first_argument(call)
        if call.method in _OF_BLOCKS:
            payload = Hash(argument).encode()
            message = UnsignedMessage.build(self._rules.network_id, self._chain_id, payload)
            check_allowed(blocks, message)
            return None
        if call.method not in _OF_MESSAGES:
            raise UncheckedMessage(
                f"{call.method[:_SHOWN_CHARACTERS]} is an unknown method of the Warp API"
            )
        check_subjects(blocks, [(SigningBlockKind.MESSAGE_ID, hex_text(argument))])
        return MessageID(argument)

    def _check_message(self, message_id: MessageID, response: RpcResponse) -> None:
        """Check a message of a node. Raises StoreDown, SigningBlocked, UncheckedMessage."""
        if response.error is not None:
            raise UncheckedMessage(f"a node returned: {response.error.message[:_SHOWN_CHARACTERS]}")
        try:
            text = msgspec.json.decode(response.result or b"null", type=str)
            message = UnsignedMessage.parse(bytes.fromhex(text.removeprefix("0x")))
        except (*MALFORMED, MalformedMessage):
            raise UncheckedMessage("a node returned no Warp message") from None
        if message.id != message_id:
            raise UncheckedMessage("a node returned another message")
        check_allowed(self._rules.blocks, message)


def _first_argument(call: RpcCall) -> bytes:
    """Return the id (32 bytes) in the first argument of a call. Raises UncheckedMessage."""
    try:
        arguments = msgspec.json.decode(call.params or b"[]")
        return parse_id(arguments[0])
    except (*MALFORMED, MalformedID, LookupError, TypeError, AttributeError):
        raise UncheckedMessage(
            "expected the id of a message or a block as first argument"
        ) from None


def _refusal(error: WarpsealError) -> RpcResponse:
    data = msgspec.json.encode({"code": error.code, **error.detail})
    return RpcResponse(error=RpcError(SERVER_ERROR, str(error), msgspec.Raw(data)))
