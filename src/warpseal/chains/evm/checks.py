"""Acceptance of a block: it must agree with its receipts and with its parent.

These checks find a node that serves the receipts of another block, a part of them, or none at all.
They do not say whether the block belongs to the chain: the parents' hashes and a second node do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from warpseal.chains.evm.blocks import (
    ADDRESS_BYTES,
    BLOOM_BYTES,
    HASH_BYTES,
    EvmHeader,
    EvmReceipt,
    MalformedBlock,
    RawJson,
    decode_receipts,
    parse_bytes,
    parse_quantity,
)
from warpseal.chains.evm.events import lacks_event, read_events
from warpseal.chains.evm.facts import Creation, EvmBlockFacts
from warpseal.chains.evm.receipts_root import receipts_root

LEAST_GAS_OF_CREATION: Final = 26_500
"""A transaction that used less gas created no contract inside.

It takes 21,000 and 32,000 for a CREATE, less the largest refund.
"""

# Legacy transactions, and those of EIP-2930, EIP-1559, EIP-4844 and EIP-7702.
_TX_TYPES: Final = frozenset(("0x0", "0x1", "0x2", "0x3", "0x4"))
_SUCCESS: Final = 1
# The database stores them as signed integers; consensus allows no more gas in a block.
_NUMBER_BITS: Final = 63
# Until the year 4147; later times are out of the range of dates.
_TIME_BITS: Final = 36
# No receiptsRoot commits to the numbers of logs, so that only their range bounds what a node names.
_LOG_INDEX_BITS: Final = 31
_WEI_BITS: Final = 256


class BlockMismatch(StrEnum):
    """How a block contradicts its receipts or its parent."""

    NUMBER = "wrong_number"
    PARENT = "wrong_parent"
    TIME = "wrong_time"
    RECEIPT_COUNT = "wrong_receipt_count"
    RECEIPT_BLOCK = "receipt_of_another_block"
    RECEIPT_TRANSACTION = "receipt_of_another_transaction"
    RECEIPT_ORDER = "wrong_receipt_order"
    LOG_INDEX = "wrong_log_index"
    GAS = "wrong_gas"
    BLOOM = "wrong_bloom"
    RECEIPTS_ROOT = "wrong_receipts_root"
    UNKNOWN_TYPE = "unknown_type"


class ParentBlock(NamedTuple):
    """The hash and the time of the block below a block."""

    hash: bytes
    time: int


class BlockContradiction(Exception):
    """A block contradicts its receipts or its parent."""

    def __init__(self, reason: BlockMismatch, number: int, detail: str) -> None:
        super().__init__(f"{reason} at block {number}: {detail}")
        self.reason = reason
        self.number = number
        self.detail = detail

    def __reduce__(self) -> tuple[type[BlockContradiction], tuple[BlockMismatch, int, str]]:
        """Make the exception picklable, since blocks are checked in another process as well."""
        return BlockContradiction, (self.reason, self.number, self.detail)


class BlockRules(Struct, frozen=True):
    """What the headers of a chain say about its receipts, and what is read of them.

    asynchronous_from: the time of the first block that its chain executes after it is accepted
        (ACP-194): heliconTime on the C-Chain, None on L1s. From it on, the header's gas, bloom and
        receiptsRoot are not those of the block's receipts.
    has_erc20: the transfers of ERC-20 are read.
    has_icm: the events of ICM are read.
    """

    asynchronous_from: int | None = None
    has_erc20: bool = False
    has_icm: bool = False

    def is_executed_first(self, time: int) -> bool:
        """Return whether a block of this time was executed before it was accepted."""
        return self.asynchronous_from is None or time < self.asynchronous_from

    def needs_proof(
        self, header: EvmHeader, receipts: Sequence[EvmReceipt], block: EvmBlockFacts
    ) -> bool:
        """Return whether the receipts of a block must be checked against its receiptsRoot.

        They must if the header commits to them and the block has events, or its bloom says so.
        Raises MalformedBlock.
        """
        if not self.is_executed_first(block.time):
            return False
        if block.has_events:
            return True
        return lacks_event(parse_bytes(header.logs_bloom, BLOOM_BYTES), receipts)


def block_facts(
    header: EvmHeader, receipts: Sequence[EvmReceipt], rules: BlockRules
) -> EvmBlockFacts:
    """Return what the index keeps of a block.

    receipts: receipts of the transactions, in their order.
    Raises BlockContradiction, and MalformedBlock for a malformed value.
    """
    number = parse_quantity(header.number, _NUMBER_BITS)
    time = parse_quantity(header.timestamp, _TIME_BITS)
    log_count = _check_receipts(number, header, receipts)
    gas_used = fees_spent = most_gas = 0
    for receipt in receipts:
        gas = parse_quantity(receipt.gas_used, _NUMBER_BITS)
        most_gas = max(most_gas, gas)
        gas_used += gas
        fees_spent += gas * parse_quantity(receipt.effective_gas_price, _WEI_BITS)
    if gas_used >> _NUMBER_BITS or fees_spent >> _WEI_BITS:
        raise MalformedBlock("the sums of gas and fees are out of range")
    if rules.is_executed_first(time):
        _check_execution(number, header, gas_used, log_count)
    creations = tuple(_creations(receipts))
    events = read_events(receipts, has_erc20=rules.has_erc20, has_icm=rules.has_icm)
    tx_indexes = {transfer.tx_index for transfer in events.transfers}
    tx_indexes.update(creation.tx_index for creation in creations)
    icm = () if events.icm is None else tuple(events.icm.events)
    tx_fees: dict[int, int] = {}
    for event in icm:
        receipt = receipts[event.tx_index]
        # The loop over all receipts has checked both values.
        tx_fees[event.tx_index] = int(receipt.gas_used, 16) * int(receipt.effective_gas_price, 16)
    tx_indexes.update(tx_fees)
    tx_hashes: dict[int, bytes] = {}
    for index in sorted(tx_indexes):
        tx_hashes[index] = parse_bytes(header.transactions[index], HASH_BYTES)
    return EvmBlockFacts(
        number=number,
        hash=parse_bytes(header.hash, HASH_BYTES),
        parent_hash=parse_bytes(header.parent_hash, HASH_BYTES),
        time=time,
        tx_count=len(receipts),
        gas_used=gas_used,
        gas_limit=parse_quantity(header.gas_limit, _NUMBER_BITS),
        base_fee=_optional_wei(header.base_fee_per_gas),
        gas_cost=_optional_wei(header.block_gas_cost),
        fees_spent=fees_spent,
        transfers=tuple(events.transfers),
        creations=creations,
        updates=tuple(dict.fromkeys(events.updates)),
        upgraded=tuple(dict.fromkeys(events.upgraded)),
        tx_hashes=tx_hashes,
        unknown_logs=events.unknown_logs,
        needs_trace=most_gas >= LEAST_GAS_OF_CREATION,
        erc20_transfers=tuple(events.erc20_transfers),
        icm=icm,
        tx_fees=tx_fees,
    )


class UnprovenBlock(NamedTuple):
    """A block whose receipts are to be checked against its receiptsRoot.

    receipts: the JSON of all its receipts.
    """

    number: int
    receipts: RawJson
    receipts_root: str


class DisprovenBlock(NamedTuple):
    """The first of some blocks whose receipts cannot be right, and the error."""

    number: int
    error: BlockContradiction | MalformedBlock


def check_receipts_root(number: int, receipts: Sequence[EvmReceipt], root: str) -> None:
    """Check the receipts of a block against the receiptsRoot of its header.

    Raises BlockContradiction, and MalformedBlock for a receipt that no block can hold.
    """
    computed = receipts_root(receipts)
    if computed != parse_bytes(root, HASH_BYTES):
        detail = f"the receipts give {computed.hex()}, the header says {root}"
        raise BlockContradiction(BlockMismatch.RECEIPTS_ROOT, number, detail)


def find_disproven(blocks: Iterable[UnprovenBlock]) -> DisprovenBlock | None:
    """Return the first block whose receipts do not give its receiptsRoot; None if there is none."""
    for number, raw_receipts, root in blocks:
        try:
            check_receipts_root(number, decode_receipts(raw_receipts) or (), root)
        except (BlockContradiction, MalformedBlock) as error:
            return DisprovenBlock(number, error)
    return None


def check_parents(blocks: Iterable[EvmBlockFacts], number: int, parent: ParentBlock | None) -> None:
    """Check that the blocks follow each other.

    number: the number that the first block must have.
    parent: the block below it; None accepts any parent.
    A block is not older than its parent, and only a genesis has the time 0. Raises
    BlockContradiction.
    """
    for block in blocks:
        if block.number != number:
            detail = f"the node returned block {block.number}"
            raise BlockContradiction(BlockMismatch.NUMBER, number, detail)
        if parent is not None and block.parent_hash != parent.hash:
            detail = (
                f"the parent is {block.parent_hash.hex()}, block {number - 1} is"
                f" {parent.hash.hex()}"
            )
            raise BlockContradiction(BlockMismatch.PARENT, number, detail)
        if parent is not None:
            least_time, parent_time = parent.time, str(parent.time)
        else:
            least_time, parent_time = int(number > 0), "unknown"
        if block.time < least_time:
            detail = f"the time is {block.time}, that of the parent {parent_time}"
            raise BlockContradiction(BlockMismatch.TIME, number, detail)
        number += 1
        parent = ParentBlock(block.hash, block.time)


def _check_receipts(number: int, header: EvmHeader, receipts: Sequence[EvmReceipt]) -> int:
    """Check that the receipts belong to the block's transactions; return the number of logs."""
    hashes, block_hash = header.transactions, header.hash
    if len(receipts) != len(hashes):
        detail = f"{len(hashes)} transactions, {len(receipts)} receipts"
        raise BlockContradiction(BlockMismatch.RECEIPT_COUNT, number, detail)
    for index, receipt in enumerate(receipts):
        if receipt.block_hash != block_hash:
            detail = f"receipt {index} is of block {receipt.block_hash[:66]!r}"
            raise BlockContradiction(BlockMismatch.RECEIPT_BLOCK, number, detail)
        if receipt.transaction_hash != hashes[index]:
            reason = BlockMismatch.RECEIPT_TRANSACTION
            if receipt.transaction_hash in hashes:
                reason = BlockMismatch.RECEIPT_ORDER
            detail = f"receipt {index} is of {receipt.transaction_hash[:66]!r}"
            raise BlockContradiction(reason, number, detail)
        if (
            receipt.transaction_index != hex(index)
            and parse_quantity(receipt.transaction_index) != index
        ):
            detail = f"receipt {index} says that it has the index {receipt.transaction_index}"
            raise BlockContradiction(BlockMismatch.RECEIPT_ORDER, number, detail)
        if receipt.type not in _TX_TYPES and hex(parse_quantity(receipt.type)) not in _TX_TYPES:
            # Its gas and its sender may mean something else.
            detail = f"transaction {index} has the unknown type {receipt.type}: upgrade Warpseal"
            raise BlockContradiction(BlockMismatch.UNKNOWN_TYPE, number, detail)
    log_indexes = [log.log_index for receipt in receipts for log in receipt.logs]
    # Almost all nodes number the logs without gaps, so the numbers are rarely parsed.
    if log_indexes != list(map(hex, range(len(log_indexes)))):
        _check_log_indexes(number, log_indexes)
    return len(log_indexes)


def _check_log_indexes(number: int, log_indexes: Iterable[str]) -> None:
    """Check that the numbers of logs rise."""
    last = -1
    for text in log_indexes:
        log_index = parse_quantity(text, _LOG_INDEX_BITS)
        if log_index <= last:
            detail = f"log {log_index} follows log {last}"
            raise BlockContradiction(BlockMismatch.LOG_INDEX, number, detail)
        last = log_index


def _check_execution(number: int, header: EvmHeader, gas_used: int, log_count: int) -> None:
    """Check the gas and the bloom of a header whose transactions were executed before it."""
    header_gas = parse_quantity(header.gas_used)
    if gas_used != header_gas:
        detail = f"the receipts used {gas_used} gas, the header says {header_gas}"
        raise BlockContradiction(BlockMismatch.GAS, number, detail)
    has_bloom = header.logs_bloom.count("0", 2) < len(header.logs_bloom) - 2
    if has_bloom != bool(log_count):
        state = "not empty" if has_bloom else "empty"
        detail = f"the bloom is {state}, the receipts have {log_count} logs"
        raise BlockContradiction(BlockMismatch.BLOOM, number, detail)


def _creations(receipts: Sequence[EvmReceipt]) -> Iterable[Creation]:
    for index, receipt in enumerate(receipts):
        if receipt.contract_address is not None and parse_quantity(receipt.status) == _SUCCESS:
            address = parse_bytes(receipt.contract_address, ADDRESS_BYTES)
            yield Creation(index, 0, address, parse_bytes(receipt.sender, ADDRESS_BYTES))


def _optional_wei(text: str | None) -> int | None:
    return None if text is None else parse_quantity(text, _WEI_BITS)
