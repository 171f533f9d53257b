"""Checks of a message beyond its signature: whether the destination takes its statement now.

A registration expires, a nonce becomes stale, a message is delivered once. Source of truth:
avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`; icm-contracts
`TeleporterMessenger.sol`, `ValidatorManager.sol`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from warpseal.delivery.report import time_text
from warpseal.errors import CallRefused
from warpseal.messages.teleporter import TeleporterMessage, parse_teleporter
from warpseal.node.platform import PlatformClient
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.store.errors import StoreDown
from warpseal.store.values import L1Transaction, Origin
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.validators.chains import ChainLookup
from warpseal.validators.errors import UnknownChain, UnknownSubnet
from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, ValidationID, id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    RegisterL1Validator,
    SubnetToL1Conversion,
    bootstrap_validation_id,
)
from warpseal.warp.message import AddressedCall, UnsignedMessage

REGISTRATION_WINDOW_S: Final = 24 * 3600
LOOKUP_TIMEOUT_S: Final = 3.0
ADDITION_TIMEOUT_S: Final = 1.0
"""Timeout of a lookup that only adds to a reason."""
MESSAGE_RECEIVED: Final = bytes.fromhex("ebc3b1ba")
"""Selector of `messageReceived(bytes32)` of a Teleporter messenger."""
GET_VALIDATOR: Final = bytes.fromhex("d5f20ff6")
"""Selector of `getValidator(bytes32)` of a validator manager."""
_MAX_NONCE: Final = 2**64 - 1
_WORD_BYTES: Final = 32
_VIEW_GAS: Final = 1_000_000
# ACP-99: status, offset of the node id, starting weight, sent and received nonce, weight, start and
# end. Older managers have one nonce, and their node id begins a word earlier.
_RECORD_WORDS: Final = 8
_RECEIVED_NONCE_WORD: Final = 4
_MIN_RECORD_BYTES: Final = (1 + _RECORD_WORDS) * _WORD_BYTES
_MAX_RECORD_BYTES: Final = 4_096
_UNDECIDED: Final = "the nodes that can check the statement did not answer"
_DELIVERY_UNKNOWN: Final = "an earlier delivery could not be checked"
_MANAGER_SILENT: Final = f"{_DELIVERY_UNKNOWN}: the manager gave no usable answer"


class StatementRefusal(StrEnum):
    """Why a destination refuses a message that has a valid signature. The values are stable."""

    EXPIRED_REGISTRATION = "expired_registration"
    EARLY_REGISTRATION = "early_registration"
    ALREADY_DELIVERED = "already_delivered"
    STALE_NONCE = "stale_nonce"
    RESERVED_NONCE = "reserved_nonce"
    NO_VALIDATION = "no_validation"
    LAST_VALIDATOR = "last_validator"
    WRONG_MANAGER = "wrong_manager"
    OTHER_DESTINATION = "other_destination"


class PreflightStatement(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the destination takes the statement of the message now, as far as nodes can tell.

    kind: kind of the message.
    accepted: null if no node can decide it.
    """

    kind: str
    accepted: bool | None
    reason: StatementRefusal | UnsetType = UNSET
    text: str


class ValidationRecords(Protocol):
    """The stored L1 transactions (`store.l1_records.L1Records`). Methods raise StoreDown."""

    async def changes(self, validation_id: ValidationID) -> tuple[L1Transaction, ...]:
        """Return the transactions that changed a validation."""

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        """Return the transaction that began a validation; None if the store lacks it."""


EthCall: TypeAlias = Callable[[ChainID, Mapping[str, Any]], Awaitable[bytes | None]]
"""Returns the result of a call of a contract; None if no node runs the chain.

Raises CallRefused, NodeUnavailable.
"""
_Content: TypeAlias = (
    RegisterL1Validator
    | L1ValidatorWeight
    | L1ValidatorRegistration
    | SubnetToL1Conversion
    | TeleporterMessage
    | AddressedCall
    | None
)


class _Verdict(NamedTuple):
    """The result of a check: fields of a `PreflightStatement`."""

    accepted: bool | None
    text: str
    reason: StatementRefusal | UnsetType = UNSET


_ACCEPTED: Final = _Verdict(True, "no node reports a reason to refuse it")


class StatementChecker:
    """Asks nodes about statements, each question for a few seconds at most.

    records: stored L1 transactions; None without a store.
    executor: threads that parse payloads.
    now: clock in Unix seconds.
    """

    def __init__(
        self,
        platform: PlatformClient,
        chains: ChainLookup,
        eth_call: EthCall,
        records: ValidationRecords | None = None,
        *,
        executor: Executor | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._platform = platform
        self._chains = chains
        self._eth_call = eth_call
        self._records = records
        self._executor = executor
        self._now = now

    async def check(self, message: UnsignedMessage, destination_id: ChainID) -> PreflightStatement:
        """Return whether a destination takes the message now.

        A node that lacks the data, lies or hangs raises nothing: the statement is undecided.
        """
        # The first call imports the ABI library, which takes too long for the event loop.
        loop = asyncio.get_running_loop()
        sender, content = await loop.run_in_executor(self._executor, _parse_content, message)
        kind = "unknown" if content is None else type(content).__name__
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                if destination_id == P_CHAIN:
                    verdict = await self._at_p_chain(message, sender, content)
                else:
                    verdict = await self._at_evm_chain(message, content, destination_id)
        except (NodeUnavailable, RpcRefusal, TimeoutError, UnknownChain, UnknownSubnet):
            verdict = _Verdict(None, _UNDECIDED)
        return PreflightStatement(
            kind=kind, accepted=verdict.accepted, reason=verdict.reason, text=verdict.text
        )

    async def _at_p_chain(
        self, message: UnsignedMessage, sender: bytes, content: _Content
    ) -> _Verdict:
        if isinstance(content, RegisterL1Validator):
            return await self._registration(message.source_chain_id, sender, content)
        if isinstance(content, L1ValidatorWeight) and message.source_chain_id != P_CHAIN:
            return await self._weight(message.source_chain_id, sender, content)
        return _refuse(
            StatementRefusal.OTHER_DESTINATION, "no transaction of the P-Chain takes this message"
        )

    async def _registration(
        self, source_id: ChainID, sender: bytes, message: RegisterL1Validator
    ) -> _Verdict:
        """Return the first check that fails, in the P-Chain's order."""
        wrong_manager = await self._wrong_manager(message.subnet_id, source_id, sender)
        if wrong_manager is not None:
            return _refuse(StatementRefusal.WRONG_MANAGER, wrong_manager)
        # The next block has the time of its proposer's clock, but no earlier time than the last
        # block.
        next_time_s = max(await self._platform.chain_time_s(), int(self._now()))
        if message.expiry <= next_time_s:
            expiry = time_text(message.expiry, next_time_s)
            block_time = time_text(next_time_s, message.expiry)
            reason = f"the registration expired at {expiry}, and the P-Chain is at {block_time}"
            # The refusal stands whether or not this lookup answers.
            with suppress(NodeUnavailable, RpcRefusal, TimeoutError):
                async with asyncio.timeout(ADDITION_TIMEOUT_S):
                    if await self._was_registered(message.validation_id):
                        reason += "; it was delivered before"
            return _refuse(StatementRefusal.EXPIRED_REGISTRATION, reason)
        if message.expiry > next_time_s + REGISTRATION_WINDOW_S:
            expiry = time_text(message.expiry, next_time_s)
            earliest = time_text(message.expiry - REGISTRATION_WINDOW_S, next_time_s)
            reason = (
                f"the registration expires at {expiry}; the P-Chain takes it in the day before,"
                f" from {earliest} on"
            )
            return _refuse(StatementRefusal.EARLY_REGISTRATION, reason)
        if await self._was_registered(message.validation_id):
            return _refuse(
                StatementRefusal.ALREADY_DELIVERED, "the P-Chain has registered this validator"
            )
        return _ACCEPTED

    async def _was_registered(self, validation_id: ValidationID) -> bool:
        """Return whether a validation exists, or existed by the stored transactions."""
        validation = await self._platform.l1_validator(validation_id)
        if validation is not None and validation.state is not None:
            return True
        if self._records is not None:
            with suppress(StoreDown):
                return bool(await self._records.changes(validation_id))
        return False

    async def _weight(
        self, source_id: ChainID, sender: bytes, message: L1ValidatorWeight
    ) -> _Verdict:
        """Return the first check that fails, in the P-Chain's order.

        Raises NodeUnavailable if all nodes lag.
        """
        if message.nonce == _MAX_NONCE and message.weight:
            return _refuse(
                StatementRefusal.RESERVED_NONCE, f"nonce {message.nonce} is reserved for removals"
            )
        response = await self._platform.l1_validator(message.validation_id)
        if response is None:
            raise NodeUnavailable("platform.getL1Validator")
        if response.state is None:
            if not message.weight:
                reason = "the validation does not exist, as after its removal"
                return _refuse(StatementRefusal.ALREADY_DELIVERED, reason)
            reason = "the P-Chain has no such validation: it was removed, or never began"
            return _refuse(StatementRefusal.NO_VALIDATION, reason)
        state = response.state
        if message.nonce < state.min_nonce:
            if (state.min_nonce, state.weight) == (message.nonce + 1, message.weight):
                return _refuse(
                    StatementRefusal.ALREADY_DELIVERED, "the P-Chain has made this change of weight"
                )
            reason = (
                f"nonce {message.nonce} is below {state.min_nonce}, which the P-Chain expects at"
                " least"
            )
            return _refuse(StatementRefusal.STALE_NONCE, reason)
        wrong_manager = await self._wrong_manager(state.subnet_id, source_id, sender)
        if wrong_manager is not None:
            return _refuse(StatementRefusal.WRONG_MANAGER, wrong_manager)
        if not message.weight:
            current = await self._platform.current_validations(state.subnet_id)
            if sum(validation.weight for validation in current if validation.is_l1) == state.weight:
                reason = "the L1 has no other validator, and the last one stays"
                return _refuse(StatementRefusal.LAST_VALIDATOR, reason)
        return _ACCEPTED

    async def _wrong_manager(
        self, subnet_id: SubnetID, source_id: ChainID, sender: bytes
    ) -> str | None:
        """Return why a message does not come from the manager of the L1; None if it does."""
        try:
            subnet = await self._chains.subnet(subnet_id)
        except UnknownSubnet:
            return f"the P-Chain has no subnet {id_text(subnet_id)}"
        if subnet.manager_chain_id is None:
            return f"subnet {id_text(subnet_id)} is no L1"
        if (subnet.manager_chain_id, subnet.manager_address) == (source_id, sender):
            return None
        manager, sender_prefix = subnet.manager_address[:_WORD_BYTES], sender[:_WORD_BYTES]
        return (
            f"the manager of the L1 is 0x{manager.hex()} on chain"
            f" {id_text(subnet.manager_chain_id)}, and the message comes from"
            f" 0x{sender_prefix.hex()} on chain {id_text(source_id)}"
        )

    async def _at_evm_chain(
        self, message: UnsignedMessage, content: _Content, destination_id: ChainID
    ) -> _Verdict:
        is_from_p_chain = message.source_chain_id == P_CHAIN
        # A weight message goes both ways: the manager sets a weight, and the P-Chain confirms it.
        is_new_weight = isinstance(content, L1ValidatorWeight) and not is_from_p_chain
        if is_new_weight or isinstance(content, RegisterL1Validator):
            return _refuse(StatementRefusal.OTHER_DESTINATION, "the message is for the P-Chain")
        if isinstance(content, TeleporterMessage):
            return await self._teleporter(message, content, destination_id)
        if isinstance(content, L1ValidatorRegistration | L1ValidatorWeight):
            return await self._attestation(content, destination_id)
        if isinstance(content, SubnetToL1Conversion):
            return await self._conversion(content, destination_id)
        return _Verdict(None, "no node can check a message of this kind")

    async def _teleporter(
        self, message: UnsignedMessage, content: TeleporterMessage, destination_id: ChainID
    ) -> _Verdict:
        if content.fields.destination != destination_id:
            reason = f"the message is for chain {id_text(content.fields.destination)}"
            return _refuse(StatementRefusal.OTHER_DESTINATION, reason)
        message_id = content.message_id(message.source_chain_id)
        output = await self._view(destination_id, content.messenger, MESSAGE_RECEIVED + message_id)
        word = None
        if output is not None and len(output) == _WORD_BYTES:
            word = int.from_bytes(output, "big")
        if word == 1:
            return _refuse(
                StatementRefusal.ALREADY_DELIVERED, "the messenger has received this message"
            )
        if word == 0:
            return _ACCEPTED
        messenger = f"the messenger 0x{content.messenger.hex()} at the destination"
        return _Verdict(None, f"{_DELIVERY_UNKNOWN}: {messenger} gave no usable answer")

    async def _attestation(
        self, content: L1ValidatorRegistration | L1ValidatorWeight, destination_id: ChainID
    ) -> _Verdict:
        """Check a message about a validation with the manager's record of that validation."""
        subnet_id = await self._subnet_of(content.validation_id)
        subnet = None
        with suppress(UnknownSubnet):
            subnet = None if subnet_id is None else await self._chains.subnet(subnet_id)
        if subnet is None or subnet.manager_chain_id is None:
            return _Verdict(None, "the L1 of this validation is not known")
        if subnet.manager_chain_id != destination_id:
            return _wrong_chain(subnet.manager_chain_id)
        output = await self._view(
            destination_id, subnet.manager_address, GET_VALIDATOR + content.validation_id
        )
        is_recorded = None if output is None else _is_recorded(content, output)
        if is_recorded is None:
            return _Verdict(None, _MANAGER_SILENT)
        if is_recorded:
            return _refuse(StatementRefusal.ALREADY_DELIVERED, "the manager has recorded it")
        return _ACCEPTED

    async def _conversion(self, content: SubnetToL1Conversion, destination_id: ChainID) -> _Verdict:
        """Check a conversion with the manager's record of the L1's first validator.

        The manager takes the message once, and records the initial validators then.
        """
        subnet_id = await self._chains.subnet_of(destination_id)
        subnet = await self._chains.subnet(subnet_id)
        if subnet.manager_chain_id is None or subnet.conversion_id != content.conversion_id:
            return _Verdict(None, "the L1 of this conversion is not known")
        if subnet.manager_chain_id != destination_id:
            return _wrong_chain(subnet.manager_chain_id)
        data = GET_VALIDATOR + bootstrap_validation_id(subnet_id, 0)
        output = await self._view(destination_id, subnet.manager_address, data)
        status = None if output is None else _status(output)
        if status is None:
            return _Verdict(None, _MANAGER_SILENT)
        if status == _ManagerStatus.UNKNOWN:
            return _Verdict(True, "the manager has no record of the first initial validator")
        return _refuse(
            StatementRefusal.ALREADY_DELIVERED, "the manager has recorded the initial validators"
        )

    async def _subnet_of(self, validation_id: ValidationID) -> SubnetID | None:
        validation = await self._platform.l1_validator(validation_id)
        if validation is not None and validation.state is not None:
            return validation.state.subnet_id
        if self._records is None:
            return None
        with suppress(StoreDown, MalformedMessage):
            origin = await self._records.origin(validation_id)
            return None if origin is None else origin.subnet_id
        return None

    async def _view(self, chain_id: ChainID, contract: bytes, data: bytes) -> bytes | None:
        """Return the output of a call of a contract now; None if no node makes the call."""
        transaction = {
            "to": "0x" + contract.hex(),
            "data": "0x" + data.hex(),
            "gas": hex(_VIEW_GAS),
        }
        try:
            return await self._eth_call(chain_id, transaction)
        except CallRefused:
            return None


class _ManagerStatus(IntEnum):
    """The states of a validator in ACP-99. UNKNOWN: the manager has no record of the validator."""

    UNKNOWN = 0
    PENDING_ADDED = 1
    ACTIVE = 2
    PENDING_REMOVED = 3
    COMPLETED = 4
    INVALIDATED = 5


_RECORDED: Final[Mapping[bool, Mapping[int, bool]]] = {
    True: {
        _ManagerStatus.PENDING_ADDED: False,
        _ManagerStatus.ACTIVE: True,
        _ManagerStatus.PENDING_REMOVED: True,
        _ManagerStatus.COMPLETED: True,
    },
    False: {
        _ManagerStatus.PENDING_ADDED: False,
        _ManagerStatus.PENDING_REMOVED: False,
        _ManagerStatus.COMPLETED: True,
        _ManagerStatus.INVALIDATED: True,
    },
}
"""Whether the manager has taken a registration, by its `registered` and by the manager's status."""


def _refuse(reason: StatementRefusal, text: str) -> _Verdict:
    return _Verdict(False, text, reason)


def _wrong_chain(manager_chain_id: ChainID) -> _Verdict:
    text = f"the manager of the L1 is on chain {id_text(manager_chain_id)}"
    return _refuse(StatementRefusal.OTHER_DESTINATION, text)


def _parse_content(message: UnsignedMessage) -> tuple[bytes, _Content]:
    """Return the sender of a message and its content: a message of a known kind, else the call.

    The content is None if the payload is no addressed call.
    """
    try:
        call = AddressedCall.parse(message.payload)
    except MalformedMessage:
        return b"", None
    if message.source_chain_id == P_CHAIN:
        kinds: tuple[Callable[[bytes], _Content], ...] = (
            SubnetToL1Conversion.parse,
            L1ValidatorRegistration.parse,
            L1ValidatorWeight.parse,
        )
    else:
        kinds = (RegisterL1Validator.parse, L1ValidatorWeight.parse)
    for parse in kinds:
        with suppress(MalformedMessage):
            return call.source_address, parse(call.payload)
    if message.source_chain_id == P_CHAIN:
        return call.source_address, call
    return call.source_address, parse_teleporter(call.source_address, call.payload) or call


def _status(output: bytes) -> int | None:
    """Return the status in a manager's record of a validator; None if it is no record."""
    if not _MIN_RECORD_BYTES <= len(output) <= _MAX_RECORD_BYTES or len(output) % _WORD_BYTES:
        return None
    # The record follows its own offset.
    status = int.from_bytes(output[_WORD_BYTES : 2 * _WORD_BYTES], "big")
    return status if status <= _ManagerStatus.INVALIDATED else None


def _is_recorded(
    content: L1ValidatorRegistration | L1ValidatorWeight, output: bytes
) -> bool | None:
    """Return whether a manager's record of a validator shows that it has taken the message.

    None: the record does not show it.
    """
    status = _status(output)
    if status is None:
        return None
    if isinstance(content, L1ValidatorRegistration):
        return _RECORDED[content.registered].get(status)
    node_id_offset, _, _, received_nonce = (
        int.from_bytes(output[at : at + _WORD_BYTES], "big")
        for at in range(2 * _WORD_BYTES, (2 + _RECEIVED_NONCE_WORD) * _WORD_BYTES, _WORD_BYTES)
    )
    if status == _ManagerStatus.UNKNOWN or node_id_offset != _RECORD_WORDS * _WORD_BYTES:
        return None
    return received_nonce >= content.nonce
