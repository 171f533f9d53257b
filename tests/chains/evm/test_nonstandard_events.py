"""The table of odd events in docs/evm-index.md: each of its rows is a log that is read here."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from eth_abi.abi import encode
from eth_hash.auto import keccak

from tests.chains.evm.evm_values import account, facts_of_logs
from tests.indexer.evm_chains import TRANSFER, TRANSFER_BATCH, TRANSFER_SINGLE, ZERO, Log, word
from tests.paths import DOCS
from warpseal.chains.evm.events import MAX_CONSECUTIVE_IDS, MAX_CONSECUTIVE_IDS_OF_BLOCK
from warpseal.chains.evm.facts import EvmBlockFacts

NFT, ANN, BOB = account(0xAAAA), account(1), account(2)
PARTIES = word(ANN), word(BOB)
DIRTY = b"\x01" + word(ANN)[1:]
CONSECUTIVE = keccak(b"ConsecutiveTransfer(uint256,uint256,address,address)")
METADATA_UPDATE = keccak(b"MetadataUpdate(uint256)")
BATCH_UPDATE = keccak(b"BatchMetadataUpdate(uint256,uint256)")
URI = keccak(b"URI(string,uint256)")
UPGRADED = keccak(b"Upgraded(address)")
INITIALIZED = keccak(b"Initialized(uint8)")
COUNTED, NOTHING = "counted", "nothing"
ONE_721, ONE_1155, TWO_1155 = (
    "a transfer of ERC-721",
    "a transfer of ERC-1155",
    "two transfers of ERC-1155",
)
ONE_20, CANDIDATE = "with `holders` a transfer of ERC-20, else nothing", "a candidate"
COUNTED_20, UPDATE, CALLED = (
    "with `holders` counted, else nothing",
    "metadata is fetched again",
    "the contract is called again",
)
SKIPPED = "counted; those before it are transfers"


class Case(NamedTuple):
    """A row of the table, and logs of that shape."""

    shape: str
    becomes: str
    logs: list[Log]


def batch(ids: list[int], amounts: list[int]) -> Log:
    return Log(
        NFT,
        (TRANSFER_BATCH, word(ANN), *PARTIES),
        encode(["uint256[]", "uint256[]"], [ids, amounts]),
    )


def raw_batch(*words: int) -> Log:
    return Log(NFT, (TRANSFER_BATCH, word(ANN), *PARTIES), b"".join(map(word, words)))


def consecutive(first: int, count: int) -> Log:
    return Log(NFT, (CONSECUTIVE, word(first), *PARTIES), word(first + count - 1))


CASES = [
    Case(
        "`Transfer`, 4 topics, any data",
        ONE_721,
        [Log(NFT, (TRANSFER, *PARTIES, word(5)), b"more data")],
    ),
    Case(
        "`Transfer`, 4 topics, from and to one account",
        ONE_721,
        [Log(NFT, (TRANSFER, word(ANN), word(ANN), word(5)))],
    ),
    Case(
        "`Transfer`, 4 topics, from the zero address to it",
        ONE_721,
        [Log(NFT, (TRANSFER, *[word(ZERO)] * 2, word(5)))],
    ),
    Case(
        "`Transfer`, 4 topics, an address of more than 20 bytes",
        COUNTED,
        [Log(NFT, (TRANSFER, DIRTY, *PARTIES))],
    ),
    Case("`Transfer`, 3 topics, 32 bytes", ONE_20, [Log(NFT, (TRANSFER, *PARTIES), word(5))]),
    Case(
        "`Transfer`, 3 topics, an amount of 0", NOTHING, [Log(NFT, (TRANSFER, *PARTIES), word(0))]
    ),
    Case(
        "`Transfer`, 3 topics, from and to one account",
        NOTHING,
        [Log(NFT, (TRANSFER, word(ANN), word(ANN)), word(5))],
    ),
    Case(
        "`Transfer`, 3 topics, more or fewer bytes",
        COUNTED_20,
        [Log(NFT, (TRANSFER, *PARTIES), word(5) + b"\0")],
    ),
    Case(
        "`Transfer`, 3 topics, an address of more than 20 bytes",
        COUNTED_20,
        [Log(NFT, (TRANSFER, DIRTY, PARTIES[0]), word(5))],
    ),
    Case("`Transfer`, 2 topics", COUNTED, [Log(NFT, (TRANSFER, PARTIES[0]), PARTIES[1] + word(5))]),
    Case(
        "`Transfer`, 1 topic, 96 bytes",
        CANDIDATE,
        [Log(NFT, (TRANSFER,), b"".join((*PARTIES, word(5))))],
    ),
    Case(
        "`Transfer`, 1 topic, more or fewer bytes",
        COUNTED,
        [Log(NFT, (TRANSFER,), b"".join(PARTIES))],
    ),
    Case(
        "`TransferSingle`, an amount of 0",
        ONE_1155,
        [Log(NFT, (TRANSFER_SINGLE, word(ANN), *PARTIES), word(5) + word(0))],
    ),
    Case(
        "`TransferSingle`, an operator of more than 20 bytes",
        ONE_1155,
        [Log(NFT, (TRANSFER_SINGLE, DIRTY, *PARTIES), word(5) + word(1))],
    ),
    Case(
        "`TransferSingle`, fewer topics, or other than 64 bytes",
        COUNTED,
        [Log(NFT, (TRANSFER_SINGLE, *PARTIES), word(5) + word(1))],
    ),
    Case("`TransferBatch`, empty lists", NOTHING, [batch([], [])]),
    Case("`TransferBatch`, one id twice", TWO_1155, [batch([5, 5], [1, 2])]),
    Case("`TransferBatch`, lists of different length", COUNTED, [batch([5, 6], [1])]),
    Case(
        "`TransferBatch`, both lists at one place of the data",
        TWO_1155,
        [raw_batch(64, 64, 2, 5, 6)],
    ),
    Case(
        "`TransferBatch`, an offset or a length out of the data",
        COUNTED,
        [raw_batch(64, 2**255, 1, 5)],
    ),
    Case("`ConsecutiveTransfer`, the last id below the first", COUNTED, [consecutive(9, 0)]),
    Case(
        "`ConsecutiveTransfer`, more than 10,000 ids",
        COUNTED,
        [consecutive(0, MAX_CONSECUTIVE_IDS + 1)],
    ),
    Case(
        "`ConsecutiveTransfer` beyond 50,000 ids of a block",
        SKIPPED,
        [
            *(
                consecutive(0, MAX_CONSECUTIVE_IDS)
                for _ in range(MAX_CONSECUTIVE_IDS_OF_BLOCK // MAX_CONSECUTIVE_IDS)
            ),
            consecutive(0, 1),
        ],
    ),
    Case("`MetadataUpdate`, an indexed id", COUNTED, [Log(NFT, (METADATA_UPDATE, word(5)))]),
    Case(
        "`BatchMetadataUpdate`, up to the largest id",
        UPDATE,
        [Log(NFT, (BATCH_UPDATE,), word(0) + word(2**256 - 1))],
    ),
    Case(
        "`BatchMetadataUpdate`, the last id below the first",
        COUNTED,
        [Log(NFT, (BATCH_UPDATE,), word(6) + word(5))],
    ),
    Case("`URI`, any data", UPDATE, [Log(NFT, (URI, word(5)), b"\xff")]),
    Case(
        "`Upgraded`, an address that is not indexed", COUNTED, [Log(NFT, (UPGRADED,), PARTIES[0])]
    ),
    Case(
        "`Initialized`, any topics behind the first",
        CALLED,
        [Log(NFT, (INITIALIZED, word(1)), word(1))],
    ),
    Case("a log without topics", NOTHING, [Log(NFT, (), word(5))]),
]


def describe(logs: list[Log]) -> str:
    """Return what becomes of logs, in the words of the table."""
    without, with_holders = facts_of_logs(*logs), facts_of_logs(*logs, has_erc20=True)
    if with_holders.erc20_transfers or with_holders.unknown_logs != without.unknown_logs:
        assert _describe(without) == NOTHING
        return ONE_20 if with_holders.erc20_transfers else COUNTED_20
    return _describe(with_holders)


def _describe(facts: EvmBlockFacts) -> str:
    if facts.unknown_logs:
        return SKIPPED if facts.transfers else COUNTED
    if facts.updates:
        return UPDATE
    if facts.upgraded:
        return CALLED
    if not facts.transfers:
        return NOTHING
    if facts.transfers[0].is_candidate:
        return CANDIDATE
    count = {1: "a transfer", 2: "two transfers"}[len(facts.transfers)]
    return f"{count} of {facts.transfers[0].standard}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.shape)
def test_an_odd_event_is_treated_as_the_documentation_says(case: Case) -> None:
    assert describe(case.logs) == case.becomes


def test_the_table_of_odd_events_has_exactly_these_rows() -> None:
    page = (DOCS / "evm-index.md").read_text()
    table = page.partition("### Odd shapes\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE)[1:]
    assert rows == [(case.shape, case.becomes) for case in CASES]
