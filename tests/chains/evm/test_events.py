from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from eth_abi.abi import encode
from eth_hash.auto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chains.evm.evm_values import account, decoded, facts_of, facts_of_logs
from tests.indexer.evm_chains import (
    TRANSFER,
    TRANSFER_BATCH,
    TRANSFER_SINGLE,
    Log,
    MadeUpChain,
    Tx,
    erc20_transfer,
    erc721_transfer,
    erc1155_batch,
    erc1155_transfer,
    word,
)
from warpseal.chains.evm.checks import BlockRules, block_facts
from warpseal.chains.evm.events import MAX_CONSECUTIVE_IDS, MAX_CONSECUTIVE_IDS_OF_BLOCK
from warpseal.chains.evm.facts import (
    Erc20Transfer,
    EvmBlockFacts,
    MetadataUpdate,
    NftTransfer,
    TokenStandard,
)

CONSECUTIVE = keccak(b"ConsecutiveTransfer(uint256,uint256,address,address)")
METADATA_UPDATE = keccak(b"MetadataUpdate(uint256)")
BATCH_METADATA_UPDATE = keccak(b"BatchMetadataUpdate(uint256,uint256)")
URI = keccak(b"URI(string,uint256)")
UPGRADED = keccak(b"Upgraded(address)")
EVENTS = (
    TRANSFER,
    TRANSFER_SINGLE,
    TRANSFER_BATCH,
    CONSECUTIVE,
    METADATA_UPDATE,
    BATCH_METADATA_UPDATE,
    URI,
    UPGRADED,
)

NFT, OTHER_NFT, SENDER, RECIPIENT = account(0xAAAA), account(0xBBBB), account(1), account(2)
PARTIES = word(SENDER), word(RECIPIENT)
LARGEST = 2**256 - 1

numbers = st.integers(0, LARGEST)
words = st.binary(min_size=32, max_size=32) | st.integers(0, 2**160 - 1).map(word)


def batch_log(data: bytes) -> Log:
    """Return a TransferBatch log with this data."""
    return Log(NFT, (TRANSFER_BATCH, word(SENDER), *PARTIES), data)


def consecutive_log(first: int, last: int) -> Log:
    """Return a ConsecutiveTransfer log."""
    return Log(NFT, (CONSECUTIVE, word(first), *PARTIES), word(last))


def moves(facts: EvmBlockFacts) -> list[tuple[int, int]]:
    """Return (token id, amount) of all transfers."""
    return [(transfer.token_id, transfer.amount) for transfer in facts.transfers]


def test_a_transfer_with_four_topics_is_of_erc721() -> None:
    facts = facts_of_logs(erc721_transfer(NFT, SENDER, RECIPIENT, LARGEST))
    assert facts.transfers == (
        NftTransfer(
            0, 0, 0, NFT, TokenStandard.ERC721, LARGEST, SENDER, RECIPIENT, 1, is_candidate=False
        ),
    )
    assert facts.unknown_logs == 0


def test_a_transfer_with_three_topics_is_of_erc20_and_is_skipped() -> None:
    facts = facts_of_logs(erc20_transfer(NFT, SENDER, RECIPIENT, 5), Log(NFT, (TRANSFER, *PARTIES)))
    assert (facts.transfers, facts.unknown_logs, facts.tx_hashes) == ((), 0, {})


def test_erc20_transfers_are_read_in_their_order_if_the_chain_is_indexed_with_holders() -> None:
    logs = [
        erc20_transfer(NFT, bytes(20), SENDER, LARGEST),
        erc721_transfer(NFT, SENDER, RECIPIENT, 4),
        # They change nothing.
        erc20_transfer(NFT, SENDER, RECIPIENT, 0),
        erc20_transfer(NFT, SENDER, SENDER, 9),
        erc20_transfer(OTHER_NFT, SENDER, RECIPIENT, 5),
    ]
    facts = facts_of_logs(*logs, has_erc20=True)
    assert facts.erc20_transfers == (
        Erc20Transfer(NFT, bytes(20), SENDER, LARGEST),
        Erc20Transfer(OTHER_NFT, SENDER, RECIPIENT, 5),
    )
    assert (len(facts.transfers), facts.unknown_logs) == (1, 0)
    assert facts_of_logs(*logs).erc20_transfers == ()


@pytest.mark.parametrize(
    "log",
    [
        Log(NFT, (TRANSFER, *PARTIES)),
        Log(NFT, (TRANSFER, *PARTIES), word(5) + word(6)),
        Log(NFT, (TRANSFER, *PARTIES), b"\x05"),
        Log(NFT, (TRANSFER, word(SENDER), b"\x01" * 32), word(5)),
    ],
)
def test_an_erc20_transfer_of_another_shape_is_counted(log: Log) -> None:
    facts = facts_of_logs(log, has_erc20=True)
    assert (facts.erc20_transfers, facts.unknown_logs) == ((), 1)
    assert facts_of_logs(log).unknown_logs == 0


def test_a_transfer_without_indexed_arguments_is_a_candidate() -> None:
    facts = facts_of_logs(Log(NFT, (TRANSFER,), b"".join((*PARTIES, word(7)))))
    assert facts.transfers == (
        NftTransfer(0, 0, 0, NFT, TokenStandard.ERC721, 7, SENDER, RECIPIENT, 1, is_candidate=True),
    )


def test_a_consecutive_transfer_moves_all_its_ids() -> None:
    facts = facts_of_logs(consecutive_log(5, 8), erc721_transfer(NFT, SENDER, RECIPIENT, 9))
    assert moves(facts) == [(5, 1), (6, 1), (7, 1), (8, 1), (9, 1)]
    assert [(transfer.position, transfer.log_index) for transfer in facts.transfers] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (4, 1)
    ]  # fmt: skip
    assert {(transfer.sender, transfer.recipient) for transfer in facts.transfers} == {
        (SENDER, RECIPIENT)
    }


def test_a_consecutive_transfer_moves_at_most_ten_thousand_ids() -> None:
    largest = facts_of_logs(consecutive_log(1, MAX_CONSECUTIVE_IDS))
    assert (len(largest.transfers), largest.unknown_logs) == (10_000, 0)
    for log in (
        consecutive_log(0, MAX_CONSECUTIVE_IDS),
        consecutive_log(0, LARGEST),
        consecutive_log(5, 4),
    ):
        facts = facts_of_logs(log)
        assert (facts.transfers, facts.unknown_logs) == ((), 1)


def test_consecutive_transfers_of_a_block_are_bounded() -> None:
    bomb = [Tx(SENDER, NFT, [consecutive_log(0, MAX_CONSECUTIVE_IDS - 1)] * 4) for _ in range(25)]
    facts = facts_of(*bomb, Tx(SENDER, NFT, [erc721_transfer(NFT, SENDER, RECIPIENT, 3)]))
    assert len(facts.transfers) == MAX_CONSECUTIVE_IDS_OF_BLOCK + 1
    assert facts.unknown_logs == 100 - MAX_CONSECUTIVE_IDS_OF_BLOCK // MAX_CONSECUTIVE_IDS
    assert sorted(facts.tx_hashes) == [0, 1, 25]


@given(numbers, numbers)
@settings(max_examples=20)
def test_a_single_transfer_is_of_erc1155(token_id: int, amount: int) -> None:
    facts = facts_of_logs(erc1155_transfer(NFT, SENDER, RECIPIENT, token_id, amount))
    assert facts.transfers == (
        NftTransfer(0, 0, 0, NFT, TokenStandard.ERC1155, token_id, SENDER, RECIPIENT, amount),
    )


@given(st.lists(st.tuples(numbers, numbers), max_size=8))
@settings(max_examples=50)
def test_a_batch_transfer_is_one_transfer_for_each_id(amounts: list[tuple[int, int]]) -> None:
    facts = facts_of_logs(erc1155_batch(NFT, SENDER, RECIPIENT, amounts))
    assert moves(facts) == amounts
    assert [transfer.position for transfer in facts.transfers] == list(range(len(amounts)))
    assert {(transfer.standard, transfer.log_index) for transfer in facts.transfers} <= {
        (TokenStandard.ERC1155, 0)
    }
    assert facts.unknown_logs == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(31),
        word(64) + word(96),
        encode(["uint256[]", "uint256[]"], [[1, 2], [3]]),
        encode(["uint256[]", "uint256[]"], [[1, 2], [3, 4]])[:-1],
        word(LARGEST) + word(64) + word(0),
        word(64) + word(2**64) + word(0),
        word(64) + word(64) + word(LARGEST) + bytes(1_024),
        word(64) + word(64) + word(2**40) + bytes(1_024),
        word(2**31) * 40,
    ],
)
def test_a_batch_with_hostile_offsets_or_lengths_is_counted(data: bytes) -> None:
    facts = facts_of_logs(batch_log(data), erc721_transfer(NFT, SENDER, RECIPIENT, 1))
    assert (moves(facts), facts.unknown_logs) == ([(1, 1)], 1)


def test_arrays_that_overlap_make_no_more_transfers_than_the_data_has_words() -> None:
    data = word(64) + word(64) + word(1_000) + b"".join(map(word, range(1_000)))
    facts = facts_of_logs(*[batch_log(data)] * 3)
    assert moves(facts) == [(number, number) for number in range(1_000)] * 3


@pytest.mark.parametrize(
    ("log", "updates"),
    [
        (Log(NFT, (METADATA_UPDATE,), word(7)), (MetadataUpdate(NFT, 7, 7),)),
        (
            Log(NFT, (BATCH_METADATA_UPDATE,), word(0) + word(LARGEST)),
            (MetadataUpdate(NFT, 0, LARGEST),),
        ),
        (Log(NFT, (URI, word(9)), encode(["string"], ["ipfs://x"])), (MetadataUpdate(NFT, 9, 9),)),
        (Log(NFT, (URI, word(9)), b"no ABI"), (MetadataUpdate(NFT, 9, 9),)),
    ],
)
def test_changed_metadata_names_its_tokens(log: Log, updates: tuple[MetadataUpdate, ...]) -> None:
    facts = facts_of_logs(log, log)
    assert (facts.updates, facts.transfers, facts.unknown_logs) == (updates, (), 0)


def test_an_upgraded_contract_is_named_once() -> None:
    def upgraded(contract: bytes, implementation: int) -> Log:
        return Log(contract, (UPGRADED, word(account(implementation))))

    facts = facts_of_logs(upgraded(OTHER_NFT, 5), upgraded(NFT, 5), upgraded(OTHER_NFT, 6))
    assert (facts.upgraded, facts.unknown_logs) == ((OTHER_NFT, NFT), 0)


@pytest.mark.parametrize(
    "log",
    [
        Log(NFT, (TRANSFER, word(1))),
        Log(NFT, (TRANSFER,)),
        Log(NFT, (TRANSFER,), bytes(95)),
        Log(NFT, (TRANSFER,), bytes(128)),
        Log(NFT, (TRANSFER,), b"\1" * 96),
        Log(NFT, (TRANSFER, word(LARGEST), word(2), word(3))),
        Log(NFT, (TRANSFER, word(1), word(2**160), word(3))),
        Log(NFT, (CONSECUTIVE, word(1), *PARTIES)),
        Log(NFT, (CONSECUTIVE, *PARTIES), word(1) + word(2)),
        Log(NFT, (CONSECUTIVE, word(1), word(2**161), word(1)), word(2)),
        Log(NFT, (TRANSFER_SINGLE, word(1), *PARTIES), word(1)),
        Log(NFT, (TRANSFER_SINGLE, *PARTIES), word(1) + word(2)),
        Log(NFT, (TRANSFER_SINGLE,), bytes(160)),
        Log(NFT, (TRANSFER_BATCH, *PARTIES), encode(["uint256[]", "uint256[]"], [[1], [2]])),
        Log(NFT, (METADATA_UPDATE, word(1))),
        Log(NFT, (METADATA_UPDATE,)),
        Log(NFT, (BATCH_METADATA_UPDATE,), word(2) + word(1)),
        Log(NFT, (BATCH_METADATA_UPDATE, word(1), word(2))),
        Log(NFT, (URI,), word(1)),
        Log(NFT, (UPGRADED,), word(5)),
        Log(NFT, (UPGRADED, word(LARGEST))),
    ],
)
def test_another_shape_of_an_event_is_counted(log: Log) -> None:
    facts = facts_of_logs(log)
    assert (facts.transfers, facts.updates, facts.upgraded, facts.unknown_logs) == ((), (), (), 1)


def test_other_logs_are_ignored() -> None:
    facts = facts_of_logs(
        Log(NFT, ()), Log(NFT, (), bytes(96)), Log(NFT, (keccak(b"Other()"),), bytes(96))
    )
    assert (facts.transfers, facts.unknown_logs) == ((), 0)


def test_hex_in_capitals_is_the_same() -> None:
    chain = MadeUpChain()
    chain.add([Tx(SENDER, NFT, [erc721_transfer(NFT, SENDER, RECIPIENT, 0xABCDEF)])])
    header, receipts = decoded(chain.chain.headers[1], chain.chain.receipts[1])
    log = receipts[0].logs[0]
    capitals = tuple("0x" + topic[2:].upper() for topic in log.topics)
    capital_log = msgspec.structs.replace(
        log, topics=capitals, address="0x" + log.address[2:].upper()
    )
    capital = msgspec.structs.replace(receipts[0], logs=(capital_log,))
    facts = block_facts(header, [capital], BlockRules())
    assert facts.transfers == block_facts(header, receipts, BlockRules()).transfers
    assert moves(facts) == [(0xABCDEF, 1)]


def test_transfers_are_numbered_over_all_transactions_of_a_block() -> None:
    facts = facts_of(
        Tx(
            SENDER,
            NFT,
            [erc721_transfer(NFT, SENDER, RECIPIENT, 1), erc20_transfer(NFT, SENDER, RECIPIENT, 1)],
        ),
        Tx(SENDER, NFT),
        Tx(SENDER, NFT, [erc1155_batch(NFT, SENDER, RECIPIENT, [(2, 5), (2, 6)])]),
    )
    places = [(moved.position, moved.tx_index, moved.log_index) for moved in facts.transfers]
    assert places == [(0, 0, 0), (1, 2, 2), (2, 2, 2)]
    assert sorted(facts.tx_hashes) == [0, 2]


@given(
    st.sampled_from(EVENTS),
    st.lists(words, max_size=3),
    st.binary(max_size=64) | st.lists(words).map(b"".join),
)
def test_any_log_becomes_transfers_or_is_counted(
    event: bytes, topics: Sequence[bytes], data: bytes
) -> None:
    facts = facts_of_logs(Log(NFT, (event, *topics), data))
    entries = len(facts.transfers) + len(facts.updates) + len(facts.upgraded)
    is_empty_batch = event == TRANSFER_BATCH and not entries
    is_erc20 = event == TRANSFER and len(topics) == 2
    assert bool(entries) + facts.unknown_logs == 1 or is_empty_batch or is_erc20
    for transfer in facts.transfers:
        assert len(transfer.sender) == len(transfer.recipient) == len(transfer.contract) == 20
        assert 0 <= transfer.token_id <= LARGEST
        assert 0 <= transfer.amount <= LARGEST
