"""Events of NFTs, of ERC-20 and of ICM in a block's receipts.

Events of NFTs are transfers, changed metadata, and upgraded proxies. Contracts log what they like:
a log with the topic of such an event and another shape is counted, it is no error. Source of truth:
ERC-20, ERC-721, ERC-1155, ERC-2309, ERC-4906, ERC-1967.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct, field

from warpseal.chains.evm.blocks import BLOOM_BYTES, EvmReceipt, TopicLog, UnknownShape, address_in
from warpseal.chains.evm.contract_calls import decode_pairs
from warpseal.chains.evm.facts import Erc20Transfer, MetadataUpdate, NftTransfer, TokenStandard
from warpseal.chains.evm.icm_events import ICM_READERS, IcmReader
from warpseal.chains.keccak import keccak

MAX_CONSECUTIVE_IDS: Final = 10_000
"""Tokens that one ConsecutiveTransfer may move."""
MAX_CONSECUTIVE_IDS_OF_BLOCK: Final = 50_000
"""Tokens that all ConsecutiveTransfer of a block may move.

There is a bound because a log that costs 2,200 gas names any number of tokens.
"""

# With a sixteenth of its bits set, as by about ten logs, a bloom has 1 in 4,096 of the values that
# were not added.
_MAX_BLOOM_BITS: Final = BLOOM_BYTES // 2


class BlockEvents(Struct):
    """The events in the logs of a block, in their order.

    icm: the reader of the events of ICM; None if they are not read.
    unknown_logs: the number of logs with the topic of an event and another shape.
    consecutive_ids: the number of tokens that ConsecutiveTransfer events have moved so far.
    """

    transfers: list[NftTransfer] = field(default_factory=list)
    erc20_transfers: list[Erc20Transfer] = field(default_factory=list)
    updates: list[MetadataUpdate] = field(default_factory=list)
    upgraded: list[bytes] = field(default_factory=list)
    icm: IcmReader | None = None
    unknown_logs: int = 0
    consecutive_ids: int = 0

    def add_transfers(
        self,
        log: TopicLog,
        standard: TokenStandard,
        parties: tuple[bytes, bytes],
        amounts: Iterable[tuple[int, int]],
        *,
        is_candidate: bool = False,
    ) -> None:
        """Add a transfer for each (token id, amount).

        parties: the sender and the recipient.
        """
        log_index, contract, (sender, recipient) = log.index(), log.contract(), parties
        position = len(self.transfers)
        for token_id, amount in amounts:
            transfer = NftTransfer(
                position,
                log.tx_index,
                log_index,
                contract,
                standard,
                token_id,
                sender,
                recipient,
                amount,
                is_candidate,
            )
            self.transfers.append(transfer)
            position += 1


def read_events(
    receipts: Sequence[EvmReceipt], *, has_erc20: bool = False, has_icm: bool = False
) -> BlockEvents:
    """Return the events of a block.

    has_erc20: the transfers of ERC-20 are read.
    has_icm: the events of ICM are read.

    Raises MalformedBlock if a log of an event has values that are no hex.
    """
    events = BlockEvents(icm=IcmReader() if has_icm else None)
    for tx_index, receipt in enumerate(receipts):
        for log in receipt.logs:
            topics = log.topics
            if not topics:
                continue
            topic = topics[0]
            # Most logs of a chain are transfers of ERC-20, which have three topics.
            if not has_erc20 and topic == _TRANSFER and len(topics) == _ERC20_TOPICS:
                continue
            read = _READERS.get(topic) or _READERS.get(topic.lower())
            if read is None:
                continue
            if read is _read_transfer and len(topics) == _ERC20_TOPICS:
                if not has_erc20:
                    continue
                read = _read_erc20_transfer
            try:
                read(events, TopicLog(tx_index, log))
            except UnknownShape:
                events.unknown_logs += 1
    return events


def lacks_event(bloom: bytes, receipts: Sequence[EvmReceipt]) -> bool:
    """Return whether a block's bloom has the topic of an event that no log of its receipts has.

    It has one by chance, or because the receipts belong to another block. A bloom of many logs says
    nothing.
    """
    bits = int.from_bytes(bloom)
    if bits.bit_count() > _MAX_BLOOM_BITS:
        return False
    topics: set[str] = set()
    for topic, (place, bit, mask) in _TOPIC_BITS.items():
        # One bit is tested first, since few blooms have it.
        if bloom[place] & bit and bits & mask == mask:
            topics.add(topic)
    if not topics:
        return False
    for receipt in receipts:
        topics.difference_update(log.topics[0].lower() for log in receipt.logs if log.topics)
    return bool(topics)


def _read_transfer(events: BlockEvents, log: TopicLog) -> None:
    """Read Transfer(from, to, tokenId); old contracts of NFTs and of ERC-20 index no argument."""
    is_candidate = len(log.log.topics) == 1
    sender, recipient, token_id = log.words(3) if is_candidate else log.indexed(3)
    amounts = [(int.from_bytes(token_id), 1)]
    parties = address_in(sender), address_in(recipient)
    events.add_transfers(log, TokenStandard.ERC721, parties, amounts, is_candidate=is_candidate)


def _read_erc20_transfer(events: BlockEvents, log: TopicLog) -> None:
    """Read Transfer(indexed from, indexed to, value); 0, or the same account, changes nothing."""
    sender, recipient = map(address_in, log.indexed(2))
    (word,) = log.words(1)
    amount = int.from_bytes(word)
    if amount and sender != recipient:
        events.erc20_transfers.append(Erc20Transfer(log.contract(), sender, recipient, amount))


def _read_consecutive_transfer(events: BlockEvents, log: TopicLog) -> None:
    """Read ConsecutiveTransfer(indexed fromTokenId, toTokenId, indexed from, indexed to)."""
    first_topic, sender, recipient = log.indexed(3)
    (last_word,) = log.words(1)
    first, last = int.from_bytes(first_topic), int.from_bytes(last_word)
    count = last - first + 1
    ids_left = MAX_CONSECUTIVE_IDS_OF_BLOCK - events.consecutive_ids
    if not 0 < count <= min(MAX_CONSECUTIVE_IDS, ids_left):
        raise UnknownShape
    amounts = [(token_id, 1) for token_id in range(first, last + 1)]
    parties = address_in(sender), address_in(recipient)
    events.add_transfers(log, TokenStandard.ERC721, parties, amounts)
    events.consecutive_ids += count


def _read_transfer_single(events: BlockEvents, log: TopicLog) -> None:
    """Read TransferSingle(indexed operator, indexed from, indexed to, id, value)."""
    _, sender, recipient = log.indexed(3)
    token_id, amount = map(int.from_bytes, log.words(2))
    parties = address_in(sender), address_in(recipient)
    events.add_transfers(log, TokenStandard.ERC1155, parties, [(token_id, amount)])


def _read_transfer_batch(events: BlockEvents, log: TopicLog) -> None:
    """Read TransferBatch(indexed operator, indexed from, indexed to, ids, values)."""
    _, sender, recipient = log.indexed(3)
    amounts = decode_pairs(log.data())
    if amounts is None:
        raise UnknownShape
    parties = address_in(sender), address_in(recipient)
    events.add_transfers(log, TokenStandard.ERC1155, parties, amounts)


def _read_metadata_update(events: BlockEvents, log: TopicLog) -> None:
    """Read MetadataUpdate(tokenId)."""
    log.indexed(0)
    (word,) = log.words(1)
    token_id = int.from_bytes(word)
    events.updates.append(MetadataUpdate(log.contract(), token_id, token_id))


def _read_batch_metadata_update(events: BlockEvents, log: TopicLog) -> None:
    """Read BatchMetadataUpdate(fromTokenId, toTokenId)."""
    log.indexed(0)
    first, last = map(int.from_bytes, log.words(2))
    if last < first:
        raise UnknownShape
    events.updates.append(MetadataUpdate(log.contract(), first, last))


def _read_uri(events: BlockEvents, log: TopicLog) -> None:
    """Read URI(value, indexed id).

    The value is not used: the contract says the same when it is called.
    """
    (word,) = log.indexed(1)
    token_id = int.from_bytes(word)
    events.updates.append(MetadataUpdate(log.contract(), token_id, token_id))


def _read_upgraded(events: BlockEvents, log: TopicLog) -> None:
    """Read Upgraded(indexed implementation)."""
    address_in(*log.indexed(1))
    events.upgraded.append(log.contract())


def _read_initialized(events: BlockEvents, log: TopicLog) -> None:
    """Read Initialized(version) of OpenZeppelin: a clone has its name from here on."""
    log.words(1)
    events.upgraded.append(log.contract())


def _read_icm(
    read: Callable[[IcmReader, TopicLog], None], events: BlockEvents, log: TopicLog
) -> None:
    if events.icm is not None:
        read(events.icm, log)


def _topic(signature: str) -> str:
    return "0x" + keccak(signature.encode()).hex()


_TRANSFER: Final = _topic("Transfer(address,address,uint256)")
_ERC20_TOPICS: Final = 3
_READERS: Final[dict[str, Callable[[BlockEvents, TopicLog], None]]] = {
    _TRANSFER: _read_transfer,
    _topic("ConsecutiveTransfer(uint256,uint256,address,address)"): _read_consecutive_transfer,
    _topic("TransferSingle(address,address,address,uint256,uint256)"): _read_transfer_single,
    _topic("TransferBatch(address,address,address,uint256[],uint256[])"): _read_transfer_batch,
    _topic("MetadataUpdate(uint256)"): _read_metadata_update,
    _topic("BatchMetadataUpdate(uint256,uint256)"): _read_batch_metadata_update,
    _topic("URI(string,uint256)"): _read_uri,
    _topic("Upgraded(address)"): _read_upgraded,
    _topic("Initialized(uint8)"): _read_initialized,
    _topic("Initialized(uint64)"): _read_initialized,
    **{_topic(signature): partial(_read_icm, read) for signature, read in ICM_READERS.items()},
}


def _bloom_bits(value: bytes) -> tuple[int, int, int]:
    """Return the bits that a value sets in a bloom of 2048 bits (yellow paper, 4.3.1).

    Returns the byte and the mask of the first bit, then the mask of all bits of the bloom.
    """
    digest = keccak(value)
    places = [int.from_bytes(digest[at : at + 2]) & (8 * BLOOM_BYTES - 1) for at in (0, 2, 4)]
    first_byte, first_bit = BLOOM_BYTES - 1 - places[0] // 8, 1 << places[0] % 8
    return first_byte, first_bit, sum(1 << place for place in set(places))


_TOPIC_BITS: Final = {topic: _bloom_bits(bytes.fromhex(topic[2:])) for topic in _READERS}
