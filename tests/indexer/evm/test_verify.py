"""`index verify` of an EVM chain: an index is found right, a damaged row wrong, and a wrong
contract is no error.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.indexer.evm.facts import L1, facts_of
from tests.indexer.evm.nft_state import NftState
from tests.indexer.evm_chains import (
    TRANSFER,
    ZERO,
    MadeUpChain,
    ServedChain,
    Tx,
    dense_blocks,
    erc20_transfer,
    erc721_transfer,
    erc1155_transfer,
    nft_blocks,
    recorded_chain,
)
from tests.indexer.evm_node import MISSING_STATE, EvmReplayNode, Refused, serving_evm
from warpseal.chains.evm.checks import BlockRules
from warpseal.forwarding.settings import EvmRpcSettings
from warpseal.index.database import reading_index
from warpseal.index.evm import consistency
from warpseal.index.evm.database import evm_index_url, writing_evm_index
from warpseal.index.evm.records import EvmChainIdentity
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm import verify as evm_verify
from warpseal.indexer.evm.nodes import ChainNodes
from warpseal.indexer.evm.verify import EvmIndexVerifier
from warpseal.indexer.verify import IndexFinding
from warpseal.store.url import StoreUrl
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, NodeEndpoint
from warpseal.upstream.node import open_sessions

SETTINGS = IndexSettings()
HELICON = BlockRules(asynchronous_from=0)
ROWS = "chain: the rows of the index against each other"


def write_index(
    folder: Path,
    chain: ServedChain,
    rules: BlockRules = L1,
    first: int = 0,
    *,
    has_holders: bool = False,
) -> Path:
    """Write the index of a chain from a height on; return its file."""
    rules = replace(rules, has_erc20=has_holders)
    url = evm_index_url(SETTINGS, folder, chain.blockchain_id)
    writer = EvmIndexWriter(writing_evm_index(url, SETTINGS, chain.blockchain_id), SETTINGS)
    facts = facts_of(chain, rules)[first:]
    identity = EvmChainIdentity(
        chain.blockchain_id, chain.evm_chain_id, chain.genesis_hash, first, has_holders
    )
    writer.start(identity)
    writer.begin(first, facts[0].parent_hash)
    candidates = writer.candidates(facts)
    writer.set_interfaces(dict.fromkeys(candidates, False))
    for start in range(0, len(facts), 7):
        writer.write(facts[start : start + 7])
    writer.close()
    assert url.path is not None
    return url.path


@asynccontextmanager
async def verifying(
    folder: Path, node: EvmReplayNode, rules: BlockRules = L1
) -> AsyncIterator[EvmIndexVerifier]:
    """Serve a node, and yield the verifier of its chain."""
    chain_id = node.chain.blockchain_id
    async with serving_evm(node), open_sessions() as sessions:
        entry = EvmChain(chain_id, rpc=(NodeEndpoint(node.url),), index=EvmIndexing())
        nodes = ChainNodes(entry, sessions, EvmRpcSettings())
        yield EvmIndexVerifier(
            "chain", nodes, rules, evm_index_url(SETTINGS, folder, chain_id), SETTINGS
        )


async def verify(
    folder: Path, node: EvmReplayNode, rules: BlockRules = L1, count: int = 40
) -> dict[str, IndexFinding]:
    """Verify the index of a folder against a node; return the findings by subject."""
    async with verifying(folder, node, rules) as verifier:
        return {finding.subject: finding for finding in await verifier.run(count, seed=1)}


@pytest.mark.parametrize("chain", ["c-chain", "l1-0", "l1-1"])
@pytest.mark.parametrize("network", ["localnet", "helicon"])
async def test_the_index_of_a_recorded_chain_is_right(
    tmp_path: Path, network: str, chain: str
) -> None:
    served = recorded_chain(network, chain)
    rules = HELICON if (network, chain) == ("helicon", "c-chain") else L1
    write_index(tmp_path, served, rules)
    findings = await verify(tmp_path, EvmReplayNode(served), rules)
    assert [
        finding for finding in findings.values() if finding.difference or not finding.is_compared
    ] == []
    assert {f"chain: block {number}" for number in range(served.tip + 1)} & findings.keys()


@pytest.fixture(scope="module")
def nfts() -> ServedChain:
    """Return a chain of NFT and ERC-20 transfers, with the receiptsRoot of each block."""
    return nft_blocks(30, seed=3, txs=12, coin_txs=3)


@pytest.fixture(scope="module")
def nft_index(tmp_path_factory: pytest.TempPathFactory, nfts: ServedChain) -> Path:
    """Return the file of the index of that chain, which tests copy."""
    return write_index(tmp_path_factory.mktemp("index"), nfts, has_holders=True)


async def test_owners_and_balances_equal_those_of_the_contracts(
    tmp_path: Path, nfts: ServedChain
) -> None:
    write_index(tmp_path, nfts, has_holders=True)
    findings = await verify(tmp_path, EvmReplayNode(nfts, call=NftState(nfts).call))
    assert [
        finding
        for finding in findings.values()
        if finding.difference or finding.remark or not finding.is_compared
    ] == []
    for kind in ("ERC-721 token", "ERC-1155 token", "ERC-20 balance"):
        assert any(subject.startswith(f"chain: {kind}") for subject in findings)


FIRST = "(owner, token) = (SELECT owner, token FROM holdings LIMIT 1)"
LAST_721, LAST_1155 = (
    f"token = (SELECT max(token) FROM owners WHERE token & 1 = {bit})" for bit in (0, 1)
)
LAST_TRANSFER = "key = (SELECT max(key) FROM transfers WHERE recipient > 1)"
LAST_BALANCE = "(holder, block) = (SELECT holder, block FROM balances ORDER BY block DESC LIMIT 1)"
A_COIN_HOLDER = "asset > 0 AND holder = (SELECT max(holder) FROM holders WHERE asset > 0)"
AN_NFT_HOLDER = "asset < 0 AND holder = (SELECT max(holder) FROM holders WHERE asset < 0)"
A_RANK = "asset > 0 AND (rank, holder) = (SELECT rank, holder FROM ranks WHERE asset > 0 LIMIT 1)"
A_FORMER_RANK = "(rank, holder) = (SELECT rank, holder FROM past_ranks WHERE asset > 0 LIMIT 1)"
DAMAGES = {
    "an owner": f"UPDATE recent_owners SET holder = holder + 1 WHERE {LAST_721}",
    "a number of holders": f"UPDATE recent_owners SET holder = holder + 1 WHERE {LAST_1155}",
    "a holder": f"UPDATE recent_holdings SET owner = owner + 1000 WHERE {FIRST}",
    "a lost holding": f"DELETE FROM recent_holdings WHERE {FIRST}",
    "a balance": (
        f"UPDATE recent_holdings SET balance = x'7fff' WHERE balance IS NOT NULL AND {LAST_1155}"
    ),
    "a holding of nothing": "INSERT INTO recent_holdings VALUES (1, 999999999999, NULL, 1)",
    "a contradiction": "INSERT INTO inconsistent VALUES (1)",
    "a transfer's recipient": f"UPDATE transfers SET recipient = 1 WHERE {LAST_TRANSFER}",
    "a transfer's address": f"UPDATE transfers SET sender = 77777777 WHERE {LAST_TRANSFER}",
    "a lost transfer": "DELETE FROM transfers WHERE key = (SELECT min(key) FROM transfers)",
    "a transfer of an address": (
        "DELETE FROM recent_address_transfers"
        " WHERE transfer = (SELECT max(transfer) FROM address_transfers)"
    ),
    "a directory of transfers": (
        "DELETE FROM recent_address_partitions"
        " WHERE address = (SELECT max(address) FROM address_partitions)"
    ),
    "a transaction": "DELETE FROM txs WHERE key = (SELECT max(key) FROM txs)",
    "a token's id": (
        "UPDATE recent_token_ids"
        " SET short = short + 1000"
        " WHERE token = (SELECT max(token) FROM token_ids)"
    ),
    "a lost token": "DELETE FROM tokens WHERE number = (SELECT max(number) FROM tokens)",
    "a lost block": "DELETE FROM blocks WHERE number = 9",
    "a number of transactions": "UPDATE blocks SET tx_count = tx_count + 1 WHERE number = 9",
    "a block's hash": "UPDATE blocks SET hash = zeroblob(32) WHERE number = 9",
    "a way to a block": "UPDATE block_hashes SET prefix = prefix + 1 WHERE block = 9",
    "a day": "UPDATE days SET txs = txs + 1 WHERE day = (SELECT max(day) FROM days)",
    "a stored balance": f"UPDATE balances SET balance = x'01' WHERE {LAST_BALANCE}",
    "a lost balance": f"DELETE FROM balances WHERE {LAST_BALANCE}",
    "a link of balances": f"UPDATE balances SET previous = 1 WHERE {LAST_BALANCE}",
    "an ERC-20 holder": (
        f"UPDATE recent_holders SET maximum = x'f600000000000000000000' WHERE {A_COIN_HOLDER}"
    ),
    "a lost ERC-20 holder": f"DELETE FROM recent_holders WHERE {A_COIN_HOLDER}",
    "an NFT holder": f"UPDATE recent_holders SET rank = x'fef8' WHERE {AN_NFT_HOLDER}",
    "a lost NFT holder": f"DELETE FROM recent_holders WHERE {AN_NFT_HOLDER}",
    "a place of a holder": f"UPDATE recent_ranks SET position = position + 1 WHERE {A_RANK}",
    "a rank": f"UPDATE recent_ranks SET rank = x'fd' WHERE {A_RANK}",
    "a lost rank": f"DELETE FROM recent_ranks WHERE {A_RANK}",
    "a former rank": f"UPDATE past_ranks SET rank = x'fd' WHERE {A_FORMER_RANK}",
    "a time of a former rank": f"UPDATE past_ranks SET until = changed WHERE {A_FORMER_RANK}",
    "a total": "UPDATE nft_totals SET holders = holders + 1 WHERE collection = 1",
    "a total of tokens": "UPDATE nft_totals SET tokens = tokens - 1 WHERE collection = 1",
    "a checkpoint": "UPDATE chain SET height = height - 1",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_row_is_found_without_a_node(
    tmp_path: Path, nft_index: Path, damage: str
) -> None:
    file = _copy(nft_index, tmp_path)
    _change(file, DAMAGES[damage])
    engine = reading_index(StoreUrl.for_file(file), SETTINGS)
    with engine.connect() as connection:
        assert list(consistency.find_inconsistencies(connection))
    engine.dispose()


def test_a_wrong_row_is_named_with_its_key_and_both_values(tmp_path: Path, nft_index: Path) -> None:
    file = _copy(nft_index, tmp_path)
    _change(file, DAMAGES["an owner"], DAMAGES["a lost rank"])
    with sqlite3.connect(file) as database:
        text = f"SELECT token, holder FROM owners WHERE {LAST_721}"
        ((token, holder),) = database.execute(text).fetchall()
    engine = reading_index(StoreUrl.for_file(file), SETTINGS)
    with engine.connect() as connection:
        reasons = {row.subject: row.reason for row in consistency.find_inconsistencies(connection)}
    engine.dispose()
    expected = f"expected holder {holder - 1}; stored holder {holder}"
    assert reasons[f"owners, token {token}"] == expected
    (lost,) = (reason for subject, reason in reasons.items() if subject.startswith("ranks, asset"))
    assert lost.startswith("missing; expected changed ")


async def test_nothing_is_compared_with_a_node_if_rows_contradict_each_other(
    tmp_path: Path, nfts: ServedChain, nft_index: Path
) -> None:
    _change(_copy(nft_index, tmp_path), DAMAGES["an owner"])
    node = EvmReplayNode(nfts)
    findings = await verify(tmp_path, node)
    assert ROWS not in findings
    assert all(finding.difference for finding in findings.values())
    assert not node.requests


FACTS = {
    "gas_used": "UPDATE blocks SET gas_used = x'01' WHERE number = 4",
    "fees_spent": "UPDATE blocks SET fees_spent = x'01' WHERE number = 4",
    "base_fee": "UPDATE blocks SET base_fee = NULL WHERE number = 4",
    "time": "UPDATE blocks SET time = time + 1 WHERE number = 4",
    "transfers": "UPDATE transfers SET log_index = log_index + 1 WHERE key / 1048576 = 4",
    "tx_hashes": "UPDATE txs SET hash = zeroblob(32) WHERE key = 4 * 1048576",
}


@pytest.mark.parametrize("damage", FACTS)
async def test_a_fact_that_differs_from_the_node_is_wrong(
    tmp_path: Path, nfts: ServedChain, nft_index: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _change(_copy(nft_index, tmp_path), FACTS[damage])
    monkeypatch.setattr(consistency, "sample_tokens", lambda *args, **kwargs: [])
    findings = await verify(tmp_path, EvmReplayNode(nfts), count=100)
    assert {
        subject: finding.difference.partition(":")[0]
        for subject, finding in findings.items()
        if finding.difference
    } == {"chain: block 4": damage}


async def test_receipts_that_do_not_give_the_receipts_root_are_wrong(tmp_path: Path) -> None:
    rootless = dense_blocks(4, txs=3, has_roots=False)
    write_index(tmp_path, rootless)
    findings = await verify(tmp_path, EvmReplayNode(rootless), count=30)
    assert "receiptsRoot" in findings["chain: block 2"].difference
    # Headers of the C-Chain after Helicon have another root.
    findings = await verify(tmp_path, EvmReplayNode(rootless), HELICON, count=30)
    assert findings["chain: block 2"].difference == ""


async def test_a_contract_with_wrong_events_is_reported_and_is_no_error(tmp_path: Path) -> None:
    chain = MadeUpChain(7)
    honest, silent, twice = chain.address("honest"), chain.address("silent"), chain.address("twice")
    ann, bob = chain.address("ann"), chain.address("bob")
    chain.add(
        [
            Tx(
                ann,
                honest,
                [erc721_transfer(contract, ZERO, ann, 5) for contract in (honest, silent)],
            )
        ]
    )
    chain.add(
        [
            Tx(
                ann,
                twice,
                [erc721_transfer(twice, bob, ann, 5), erc1155_transfer(twice, bob, ann, 6, 9)],
            )
        ]
    )
    write_index(tmp_path, chain.chain)
    state = NftState(chain.chain)
    # It moved the token without an event.
    state.owners[silent, 5] = bob
    state.owners[twice, 5] = bob
    state.balances[twice, 6, ann] = 0
    node = EvmReplayNode(chain.chain, call=state.call, replies={"eth_getLogs": []})
    findings = await verify(tmp_path, node, count=60)
    assert [
        finding for finding in findings.values() if finding.difference or not finding.is_compared
    ] == []
    remarks = {
        subject.split(" held")[0]: finding.remark
        for subject, finding in findings.items()
        if finding.remark
    }
    assert len(remarks) == 3
    assert sum("contradict each other" in remark for remark in remarks.values()) == 2
    assert sum("the index has all of them" in remark for remark in remarks.values()) == 1


POSITION = (
    "CASE WHEN prefix < 0 THEN prefix + 1 + 9223372036854775807"
    " ELSE prefix - 1 - 9223372036854775807 END"
)


async def test_a_wrong_owner_after_a_missing_transfer_is_an_error(tmp_path: Path) -> None:
    chain = MadeUpChain(8)
    contract, ann, bob = chain.address("contract"), chain.address("ann"), chain.address("bob")
    chain.add([Tx(ann, contract, [erc721_transfer(contract, ZERO, ann, 5)])])
    chain.add([Tx(ann, contract, [erc721_transfer(contract, ann, bob, 5)])])
    state = NftState(chain.chain)
    file = write_index(tmp_path, chain.chain)
    # As if the last transfer had never been seen.
    _change(
        file,
        "DELETE FROM transfers WHERE key / 1048576 = 2",
        "UPDATE recent_owners SET holder = (SELECT recipient FROM transfers)",
        "UPDATE recent_holdings SET owner = (SELECT recipient FROM transfers)",
        "UPDATE recent_holders SET holder = (SELECT recipient FROM transfers)",
        "UPDATE recent_ranks SET (holder, position) ="
        f" (SELECT i.key, {POSITION} FROM ids i JOIN transfers t ON t.recipient = i.key)",
    )
    logs = [{"blockNumber": "0x2", "topics": ["0x", "0x", "0x", "0x"]}]
    node = EvmReplayNode(chain.chain, call=state.call, replies={"eth_getLogs": logs})
    async with verifying(tmp_path, node) as verifier:
        findings = {finding.subject: finding for finding in await verifier.run(1, seed=2)}
    assert findings[ROWS].difference == ""
    (reason,) = [
        finding.difference for subject, finding in findings.items() if " held by " in subject
    ]
    assert "block 2: transfers" in reason


COIN = MadeUpChain(9).address("coin")


def coin_chain() -> ServedChain:
    """Return a chain with mints of a coin for two holders, and their transfer in block 3."""
    chain = MadeUpChain(9)
    ann, bob = chain.address("ann"), chain.address("bob")
    chain.add([Tx(ann, COIN, [erc20_transfer(COIN, ZERO, ann, 50)])])
    chain.add([Tx(ann, COIN, [erc20_transfer(COIN, ZERO, bob, 7)])])
    chain.add(
        [Tx(ann, COIN, [erc20_transfer(COIN, ann, bob, 20), erc20_transfer(COIN, bob, ann, 5)])]
    )
    return chain.chain


async def verify_balances(
    folder: Path, chain: ServedChain, state: NftState
) -> dict[str, IndexFinding]:
    """Verify the index of a chain of coins; return the findings of balances that have an error or a
    remark.
    """
    logs = [
        {"blockNumber": hex(number), "topics": ["0x" + TRANSFER.hex(), "0x", "0x"]}
        for number in (1, 2, 3)
    ]
    node = EvmReplayNode(chain, call=state.call, replies={"eth_getLogs": logs})
    findings = await verify(folder, node, count=20)
    assert all(finding.is_compared for finding in findings.values())
    assert findings[ROWS].difference == ""
    return {
        name: finding
        for name, finding in findings.items()
        if " balance of " in name and (finding.difference or finding.remark)
    }


async def test_balances_that_change_without_events_are_reported_and_are_no_error(
    tmp_path: Path,
) -> None:
    chain = coin_chain()
    write_index(tmp_path, chain, has_holders=True)
    state = NftState(chain)
    assert await verify_balances(tmp_path, chain, state) == {}
    # As of a token that pays interest.
    state.coins[COIN, MadeUpChain(9).address("ann")] += 3
    (finding,) = (await verify_balances(tmp_path, chain, state)).values()
    assert (finding.difference, "the index has all of them" in finding.remark) == ("", True)


async def test_balances_of_a_contract_with_contradicting_events_are_no_error(
    tmp_path: Path,
) -> None:
    chain = MadeUpChain(9)
    ann, bob = chain.address("ann"), chain.address("bob")
    chain.add([Tx(ann, COIN, [erc20_transfer(COIN, ann, bob, 50)])])
    write_index(tmp_path, chain.chain, has_holders=True)
    state = NftState(chain.chain)
    # A deposit without an event, from which 10 are left.
    state.coins[COIN, bob] = 60
    (finding,) = (await verify_balances(tmp_path, chain.chain, state)).values()
    assert (finding.difference, "contradict each other" in finding.remark) == ("", True)


async def test_a_balance_that_is_wrong_in_the_index_is_an_error(tmp_path: Path) -> None:
    chain = coin_chain()
    file = write_index(tmp_path, chain, has_holders=True)
    # As if the last transfer, from bob to ann, had never been seen.
    _change(
        file,
        "UPDATE balances SET balance = x'1e' WHERE block = 3 AND balance = x'23'",
        "UPDATE recent_holders SET rank = x'fee1' WHERE rank = x'fedc'",
        "UPDATE recent_ranks SET rank = x'fee1' WHERE rank = x'fedc'",
    )
    (finding,) = (await verify_balances(tmp_path, chain, NftState(chain))).values()
    assert "block 3: it changed by -20, by the events of the node by -15" in finding.difference


async def test_nothing_is_compared_with_a_node_at_another_height_without_the_state(
    tmp_path: Path, nfts: ServedChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evm_verify, "_STATE_RETRY_S", 0.001)
    write_index(tmp_path, nfts)
    node = EvmReplayNode(nfts, is_down=True)
    findings = await verify(tmp_path, node, count=8)
    assert [subject for subject, finding in findings.items() if finding.is_compared] == [ROWS]


async def test_all_holdings_are_compared_after_one_block_in_one_batch(
    tmp_path: Path, nfts: ServedChain
) -> None:
    state, blocks = NftState(nfts), list[Any]()

    def call(to: bytes, data: bytes, block: Any) -> bytes | None:
        blocks.append(block)
        return state.call(to, data, block)

    write_index(tmp_path, nfts, has_holders=True)
    node = EvmReplayNode(nfts, call=call)
    findings = await verify(tmp_path, node, count=15)
    holdings = [
        subject for subject in findings if " token " in subject or " balance of " in subject
    ]
    assert set(blocks) == {hex(nfts.tip)}
    assert len(blocks) == len(holdings) == max(node.batch_sizes) > 15


async def test_holdings_are_compared_while_the_chain_grows_and_the_node_keeps_no_older_state(
    tmp_path: Path, nfts: ServedChain
) -> None:
    facts = facts_of(nfts, L1)
    states = [
        NftState(dataclasses.replace(nfts, receipts=nfts.receipts[: height + 1]))
        for height in range(nfts.tip + 1)
    ]
    url = evm_index_url(SETTINGS, tmp_path, nfts.blockchain_id)
    writer = EvmIndexWriter(writing_evm_index(url, SETTINGS, nfts.blockchain_id), SETTINGS)
    writer.start(EvmChainIdentity(nfts.blockchain_id, nfts.evm_chain_id, nfts.genesis_hash, 0))
    writer.begin(0, facts[0].parent_hash)
    writer.set_interfaces(dict.fromkeys(writer.candidates(facts), False))
    writer.write(facts[:10])
    node = EvmReplayNode(nfts, tip=9, delay_s=0.005)

    def call(to: bytes, data: bytes, block: Any) -> bytes | None:
        if block != "latest" and int(block, 16) < node.height:
            raise Refused(*MISSING_STATE)
        return states[node.height].call(to, data, block)

    async def grow() -> None:
        for height in range(10, nfts.tip + 1):
            await asyncio.sleep(0.05)
            node.tip = height
            await asyncio.sleep(0.01)
            await asyncio.to_thread(writer.write, facts[height : height + 1])

    node.call = call
    async with verifying(tmp_path, node) as verifier:
        growing = asyncio.create_task(grow())
        findings = await verifier.run(17, seed=1)
        await growing
    await asyncio.to_thread(writer.close)
    assert [
        finding
        for finding in findings
        if finding.difference or finding.remark or not finding.is_compared
    ] == []
    assert sum(" token " in finding.subject for finding in findings) >= 10


async def test_an_index_that_begins_later_is_right(tmp_path: Path, nfts: ServedChain) -> None:
    write_index(tmp_path, nfts, first=12)
    findings = await verify(tmp_path, EvmReplayNode(nfts, call=NftState(nfts).call), count=30)
    assert [finding for finding in findings.values() if finding.difference] == []
    unknown = [subject for subject, finding in findings.items() if not finding.is_compared]
    assert unknown
    assert all(subject.startswith("chain: ERC-1155 token") for subject in unknown)
    assert not any(findings[subject].is_comparable for subject in unknown)


def _copy(file: Path, folder: Path) -> Path:
    (folder / "evm").mkdir()
    return Path(shutil.copy(file, folder / "evm" / file.name))


def _change(file: Path, *statements: str) -> None:
    with sqlite3.connect(file) as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0
