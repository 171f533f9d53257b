"""Kinds of contracts by what they answer, and the transfers of which contracts are of NFTs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from eth_hash.auto import keccak

from tests.eventually import until
from tests.indexer.evm.indexing import INDEX, entry, indexing
from tests.indexer.evm.nodes import open_chain_nodes, rate_taken
from tests.indexer.evm_chains import Log, MadeUpChain, Tx, transfer_blocks, word
from tests.indexer.evm_node import EvmReplayNode, Refused, serving_evm
from warpseal.chains.evm.contract_calls import (
    DECIMALS,
    EARLY_ERC721_INTERFACE,
    ERC721_INTERFACE,
    ERC1155_INTERFACE,
    NAME,
    NO_INTERFACE,
    SYMBOL,
    TOTAL_SUPPLY,
    balance_of_call,
    supports_interface_call,
)
from warpseal.chains.evm.facts import TokenStandard
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.evm.records import ContractFacts, ContractToCall, MissingResults
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver, ask_erc721, fetch_contract_facts
from warpseal.indexer.evm.nodes import EvmCaller
from warpseal.resources.evm import ErcType
from warpseal.resources.queries import PageRequest
from warpseal.upstream.endpoint import EvmIndexing, TraceMode
from warpseal.upstream.errors import NodeUnavailable

CONTRACT: Final = bytes([1]) * 20
TRUE, FALSE = word(1), word(0)

Results = Mapping[bytes, bytes]


def interfaces(*supported: bytes) -> dict[bytes, bytes]:
    """Return the replies of a contract with ERC-165."""
    interfaces = (ERC721_INTERFACE, EARLY_ERC721_INTERFACE, ERC1155_INTERFACE, NO_INTERFACE)
    return {
        supports_interface_call(interface): TRUE if interface in supported else FALSE
        for interface in interfaces
    }


COIN: Final = {DECIMALS: word(6), TOTAL_SUPPLY: word(100), balance_of_call(CONTRACT): FALSE}
ERC721, ERC1155 = frozenset({TokenStandard.ERC721}), frozenset({TokenStandard.ERC1155})


@asynccontextmanager
async def caller_of(replies: Results) -> AsyncIterator[EvmCaller]:
    """Call a contract that answers these calls and reverts all others."""
    node = EvmReplayNode(transfer_blocks(10), call=lambda to, data, block: replies.get(data))
    async with serving_evm(node), open_chain_nodes(node.url) as nodes:
        yield EvmCaller(nodes)


@pytest.mark.parametrize(
    ("replies", "events", "kind"),
    [
        ({}, frozenset(), ErcType.UNKNOWN),
        (interfaces(ERC721_INTERFACE), frozenset(), ErcType.ERC721),
        (interfaces(ERC1155_INTERFACE), frozenset(), ErcType.ERC1155),
        (interfaces(ERC1155_INTERFACE, ERC721_INTERFACE), ERC721, ErcType.ERC1155),
        # It supports everything, so that its ERC-165 says nothing.
        (interfaces(ERC721_INTERFACE, NO_INTERFACE), frozenset(), ErcType.UNKNOWN),
        ({**interfaces(ERC721_INTERFACE, NO_INTERFACE), **COIN}, frozenset(), ErcType.ERC20),
        (interfaces(), ERC721, ErcType.ERC721),
        ({}, ERC1155, ErcType.ERC1155),
        (COIN, ERC721, ErcType.ERC721),
        (COIN, frozenset(), ErcType.ERC20),
        ({**interfaces(), **COIN}, frozenset(), ErcType.ERC20),
        ({**COIN, DECIMALS: word(256)}, frozenset(), ErcType.UNKNOWN),
        ({**COIN, TOTAL_SUPPLY: b""}, frozenset(), ErcType.UNKNOWN),
        ({**COIN, balance_of_call(CONTRACT): bytes(31)}, frozenset(), ErcType.UNKNOWN),
        ({DECIMALS: word(6), TOTAL_SUPPLY: word(1)}, frozenset(), ErcType.UNKNOWN),
    ],
)
async def test_the_kind_of_a_contract_is_by_erc165_then_by_events_then_by_well_formed_replies(
    replies: Results, events: frozenset[TokenStandard], kind: ErcType
) -> None:
    async with caller_of(replies) as caller:
        (facts,) = await fetch_contract_facts(caller, [ContractToCall(CONTRACT, events)], 10)
    decimals = 6 if kind is ErcType.ERC20 else None
    assert facts == ContractFacts(CONTRACT, kind, None, None, decimals, 10)


async def test_names_are_strings_or_bytes32() -> None:
    text = word(32) + word(5) + b"Name!".ljust(32, b"\0")
    async with caller_of({NAME: text, SYMBOL: b"SYM".ljust(32, b"\0")}) as caller:
        (facts,) = await fetch_contract_facts(caller, [ContractToCall(CONTRACT, frozenset())], 10)
    assert (facts.name, facts.symbol) == ("Name!", "SYM")


@pytest.mark.parametrize(
    ("replies", "is_erc721"),
    [
        ({}, False),
        (interfaces(), False),
        (interfaces(ERC721_INTERFACE), True),
        (interfaces(EARLY_ERC721_INTERFACE), True),
        (interfaces(ERC1155_INTERFACE), False),
        (interfaces(ERC721_INTERFACE, NO_INTERFACE), False),
        ({**interfaces(ERC721_INTERFACE), supports_interface_call(NO_INTERFACE): b""}, False),
        ({**interfaces(), supports_interface_call(ERC721_INTERFACE): word(2)}, False),
    ],
)
async def test_candidate_transfers_are_of_nfts_if_erc165_says_so(
    replies: Results, is_erc721: bool
) -> None:
    async with caller_of(replies) as caller:
        assert await ask_erc721(caller, {CONTRACT}, 10) == {CONTRACT: is_erc721}


async def test_no_reply_about_candidate_transfers_is_no_denial() -> None:
    async with open_chain_nodes("http://127.0.0.1:9") as nodes:
        with pytest.raises(NodeUnavailable):
            await ask_erc721(EvmCaller(nodes), {CONTRACT}, 10)


async def test_contracts_are_called_once_nodes_answer(tmp_path: Path) -> None:
    chain = MadeUpChain()
    coins = [chain.address(f"coin {number}") for number in range(40)]
    sender = chain.address("sender")
    chain.add([Tx(sender, None, gas_used=60_000, created=coin) for coin in coins])
    is_down = True

    def result_of(to: bytes, data: bytes, block: Any) -> bytes | None:
        if is_down:
            raise Refused(-32603, "database closed")
        return {DECIMALS: word(6), TOTAL_SUPPLY: word(1), balance_of_call(to): word(0)}.get(data)

    node = EvmReplayNode(chain.chain, call=result_of)
    async with (
        serving_evm(node),
        indexing(
            tmp_path,
            [entry(chain.chain, node)],
            build_tasks=lambda context: [ContractResolver(context, EvmCaller(context.nodes))],
        ) as running,
        EvmIndex(evm_index_url(INDEX, tmp_path, chain.chain.blockchain_id), INDEX) as index,
    ):
        await running.until_at(chain.chain, 1)
        await until(lambda: node.call_counts["eth_call"] > 0)
        page = await index.deployments(sender, PageRequest(100))
        assert len(page.missing.contracts) == 40
        is_down = False

        async def are_called() -> bool:
            page = await index.deployments(sender, PageRequest(100))
            return not page.missing.contracts and {item.erc_type for item in page.items} == {
                ErcType.ERC20
            }

        await until(are_called)


async def test_blocks_and_what_a_page_shows_go_before_other_contracts(tmp_path: Path) -> None:
    chain = MadeUpChain()
    coins = [chain.address(f"coin {number}") for number in range(3)]
    sender = chain.address("sender")
    chain.add([Tx(sender, None, gas_used=60_000, created=coin) for coin in coins])
    called: set[bytes] = set()

    def result_of(to: bytes, data: bytes, block: Any) -> bytes | None:
        called.add(to)
        return {DECIMALS: word(6), TOTAL_SUPPLY: word(1), balance_of_call(to): word(0)}.get(data)

    contexts: list[EvmChainContext] = []
    begin = asyncio.Event()

    class LateResolver(ContractResolver):
        def __init__(self, context: EvmChainContext) -> None:
            super().__init__(context, EvmCaller(context.nodes))
            contexts.append(context)

        async def run(self) -> None:
            await begin.wait()
            await super().run()

    node = EvmReplayNode(chain.chain, call=result_of)
    limited = EvmIndexing(traces=TraceMode.OFF, calls_per_s=200)
    async with (
        serving_evm(node),
        indexing(
            tmp_path,
            [entry(chain.chain, node, index=limited)],
            build_tasks=lambda context: [LateResolver(context)],
        ) as running,
        EvmIndex(evm_index_url(INDEX, tmp_path, chain.chain.blockchain_id), INDEX) as index,
    ):
        await running.until_at(chain.chain, 1)

        async def missing() -> int:
            return len((await index.deployments(sender, PageRequest(100))).missing.contracts)

        with rate_taken(contexts[0].nodes):
            begin.set()
            page = await index.deployments(sender, PageRequest(1))
            await index.request(MissingResults(contracts=page.missing.contracts))

            async def is_called() -> bool:
                return await missing() == 2

            await until(is_called)
            assert called == {coins[2]}

        async def are_called() -> bool:
            return await missing() == 0

        await until(are_called)
    assert called == set(coins)


def string(text: str) -> bytes:
    """Return the ABI encoding of a string of at most 32 bytes."""
    return (
        word(32) + word(len(text)) + text.encode().ljust(32, b"\0") if text else word(32) + word(0)
    )


@pytest.mark.parametrize("event", ["Initialized(uint8)", "Initialized(uint64)", None])
async def test_the_name_of_a_clone_is_that_of_a_later_transaction(
    tmp_path: Path, event: str | None
) -> None:
    """With an event the indexer calls the clone again, without one once a page has shown the old
    result.
    """
    chain = MadeUpChain()
    clone, sender = chain.address("clone"), chain.address("sender")
    logs = [] if event is None else [Log(clone, (keccak(event.encode()),), word(1))]
    for txs in (
        (Tx(sender, None, gas_used=60_000, created=clone),),
        (),
        (Tx(sender, clone, logs),),
        (),
    ):
        chain.add(txs)

    def result_of(to: bytes, data: bytes, block: Any) -> bytes | None:
        return (
            string("Late" if block != "latest" and int(block, 16) >= 3 else "")
            if data in (NAME, SYMBOL)
            else None
        )

    def build_tasks(context: EvmChainContext) -> list[ContractResolver]:
        return [ContractResolver(context, EvmCaller(context.nodes))]

    async def until_named(folder: Path, node: EvmReplayNode, name: str, is_requested: bool) -> None:
        async with EvmIndex(
            evm_index_url(INDEX, folder, chain.chain.blockchain_id), INDEX
        ) as index:

            async def is_named() -> bool:
                page = await index.deployments(sender, PageRequest(10))
                if is_requested:
                    await index.request(page.missing)
                return [contract.name for contract in page.items] == [
                    name
                ] and not page.missing.contracts

            await until(is_named)

    node = EvmReplayNode(chain.chain, tip=2, call=result_of)
    async with serving_evm(node):
        async with indexing(
            tmp_path, [entry(chain.chain, node)], build_tasks=build_tasks
        ) as running:
            await running.until_at(chain.chain, 2)
            await until_named(tmp_path, node, "", is_requested=False)
            node.tip = None
            await running.until_at(chain.chain, 4)
            await until_named(tmp_path, node, "Late", is_requested=event is None)
        # The same chain, indexed afterwards, has the same facts.
        async with indexing(
            tmp_path / "fresh", [entry(chain.chain, node)], build_tasks=build_tasks
        ) as running:
            await running.until_at(chain.chain, 4)
            await until_named(tmp_path / "fresh", node, "Late", is_requested=False)
