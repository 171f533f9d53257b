"""Real contracts on a real EVM node (anvil), indexed: every form of transfers, kinds, creations,
and hostile ones.

Owners and balances of the index are compared with what the contracts say of themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.api.data.evm_fixtures import ask, evm_setup
from tests.eventually import until
from tests.indexer.evm.anvil_chain import AnvilChain, CallReverted, open_anvil_chain
from tests.indexer.evm.indexing import INDEX, indexing
from warpseal.index.evm.database import evm_index_url
from warpseal.index.evm.reader import EvmIndex
from warpseal.index.settings import IndexSettings
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.contracts import ContractResolver
from warpseal.indexer.evm.indexer import BackgroundTask, BuildTasks
from warpseal.indexer.evm.nodes import EvmCaller
from warpseal.indexer.evm.tracer import Tracer
from warpseal.resources.evm import CollectibleQuery, DeployedContract, ErcType, HolderQuery
from warpseal.resources.queries import PageRequest, TimeRange
from warpseal.upstream.endpoint import EvmChain, EvmIndexing, MetadataMode, NodeEndpoint
from warpseal.warp.ids import ChainID, id_text

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCKCHAIN: Final = ChainID(bytes([9]) * 32)
ZERO: Final = bytes(20)
ALL: Final = PageRequest(10_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain() -> AsyncIterator[AnvilChain]:
    """Run one node for all tests; each deploys contracts of its own."""
    async with open_anvil_chain() as opened:
        yield opened


@dataclass
class Indexed:
    """The index of the chain, with the indexer running."""

    index: EvmIndex

    async def owners(self, contract: bytes) -> dict[int, bytes]:
        """Return the owner of each listed token of an ERC-721 contract."""
        page = await self.index.tokens(contract, ALL)
        return {int(item.token_id): raw(str(item.owner_address)) for item in page.items}

    async def balances(self, owner: bytes, contract: bytes) -> dict[int, int]:
        """Return the balances of the tokens of an ERC-1155 contract that an address holds."""
        page = await self.index.collectibles(CollectibleQuery(owner, contract), ALL)
        return {int(item.token_id): int(str(item.balance)) for item in page.items}

    async def holders(
        self,
        contract: bytes,
        threshold: int = 0,
        since: int | None = None,
        until: int | None = None,
    ) -> dict[bytes, int]:
        """Return the balances of the holders of an ERC-20 contract."""
        page = await self.index.holders_above(
            HolderQuery(contract, threshold, TimeRange(since, until)), ALL
        )
        assert page is not None
        return {holder.address: holder.balance for holder in page.items}

    async def created_by(self, creator: bytes) -> dict[bytes, DeployedContract]:
        """Return the contracts that an address created, as sender or as contract."""
        page = await self.index.deployments(creator, ALL)
        return {raw(item.address): item for item in page.items}

    async def until_called(
        self, creator: bytes, contracts: Iterable[bytes]
    ) -> dict[bytes, DeployedContract]:
        """Wait until the contracts have been called; return them."""
        deployments: dict[bytes, DeployedContract] = {}

        async def are_called() -> bool:
            page = await self.index.deployments(creator, ALL)
            deployments.update((raw(item.address), item) for item in page.items)
            return not page.missing.contracts

        await until(are_called)
        return {contract: deployments[contract] for contract in contracts}


def raw(address: str) -> bytes:
    return bytes.fromhex(address.removeprefix("0x"))


def build_tasks(context: EvmChainContext) -> list[BackgroundTask]:
    return [*build_untraced(context), Tracer(context)]


def build_untraced(context: EvmChainContext) -> list[BackgroundTask]:
    return [ContractResolver(context, EvmCaller(context.nodes))]


@asynccontextmanager
async def indexed(
    folder: Path,
    chain: AnvilChain,
    tasks: BuildTasks = build_tasks,
    settings: IndexSettings = INDEX,
    index: EvmIndexing | None = None,
) -> AsyncIterator[Indexed]:
    """Index the chain up to its head, with all traces."""
    entry = EvmChain(
        BLOCKCHAIN, (NodeEndpoint(chain.url),), index=index or EvmIndexing(has_holders=True)
    )
    async with (
        indexing(folder, [entry], store=settings, build_tasks=tasks) as running,
        EvmIndex(evm_index_url(settings, folder, BLOCKCHAIN), settings) as reader,
    ):
        await until(
            lambda: (
                (chain_indexer := running.indexer.chains[BLOCKCHAIN].indexer) is not None
                and chain_indexer.height
            )
        )
        indexed = Indexed(reader)
        await until_indexed(indexed, chain, is_traced=tasks is build_tasks)
        yield indexed


async def until_indexed(indexed: Indexed, chain: AnvilChain, *, is_traced: bool = True) -> None:
    head = int(await chain.rpc("eth_blockNumber"), 16)

    async def is_indexed() -> bool:
        freshness = await indexed.index.progress()
        return (
            freshness is not None
            and freshness.height == head
            and (freshness.traced_height == head or not is_traced)
        )

    await until(is_indexed)


async def owners_of(chain: AnvilChain, contract: bytes, ids: Iterable[int]) -> dict[int, bytes]:
    """Return what a contract says of the owners of tokens."""
    owners = {}
    for token_id in ids:
        try:
            owners[token_id] = raw(
                await chain.call(contract, "ownerOf(uint256)", "address", token_id)
            )
        except CallReverted:
            continue
    return owners


async def balances_of(
    chain: AnvilChain, contract: bytes, owner: bytes, ids: Sequence[int]
) -> dict[int, int]:
    """Return what a contract says of the balances of an address, without those of 0."""
    signature = "balanceOfBatch(address[],uint256[])"
    balances = await chain.call(contract, signature, "uint256[]", [owner] * len(ids), list(ids))
    return {token_id: balance for token_id, balance in zip(ids, balances, strict=True) if balance}


async def test_every_form_of_transfer_moves_tokens(tmp_path: Path, chain: AnvilChain) -> None:
    _, alice, bob = chain.accounts[:3]
    collection = await chain.deploy("Collection", "string,string", "Mixed", "MIX")
    first = await chain.deploy("FirstCollection")
    consecutive = await chain.deploy("ConsecutiveCollection", "address,uint96", alice, 5_000)
    editions = await chain.deploy("Editions")
    for contract in (collection, first):
        for token_id in (1, 2, 2**256 - 1):
            await chain.send(contract, "mint(address,uint256)", alice, token_id)
        await chain.send(contract, "move(address,address,uint256)", alice, bob, 2)
        await chain.send(contract, "burn(uint256)", 1)
    await chain.send(consecutive, "move(address,address,uint256)", alice, bob, 4_999)
    await chain.send(consecutive, "burn(uint256)", 0)
    batch = "mintBatch(address,uint256[],uint256[])"
    await chain.send(editions, batch, alice, [7, 8, 7, 2**256 - 1], [10, 20, 5, 2**256 - 1])
    await chain.send(editions, "mint(address,uint256,uint256)", bob, 9, 1)
    await chain.send(editions, "move(address,address,uint256,uint256)", alice, bob, 7, 15)
    moved = "moveBatch(address,address,uint256[],uint256[])"
    await chain.send(editions, moved, alice, bob, [8, 2**256 - 1], [5, 2**255])
    await chain.send(editions, "burn(address,uint256,uint256)", bob, 9, 1)
    await chain.mine()
    async with indexed(tmp_path, chain) as index:
        for contract in (collection, first):
            assert await index.owners(contract) == {2: bob, 2**256 - 1: alice}
        owners = await index.owners(consecutive)
        assert len(owners) == 4_999
        assert (owners[1], owners[4_999]) == (alice, bob)
        assert await index.balances(alice, editions) == {8: 15, 2**256 - 1: 2**255 - 1}
        assert await index.balances(bob, editions) == {7: 15, 8: 5, 2**256 - 1: 2**255}
        for owner in (alice, bob):
            ids = (7, 8, 9, 2**256 - 1)
            assert await index.balances(owner, editions) == await balances_of(
                chain, editions, owner, ids
            )


async def test_an_index_from_a_later_block_shows_the_amounts_of_the_node(
    tmp_path: Path, chain: AnvilChain
) -> None:
    _, alice, bob = chain.accounts[:3]
    editions = await chain.deploy("Editions")
    for owner, token_id, amount in (
        (alice, 7, 10),
        (alice, 8, 5),
        (alice, 2**256 - 1, 2**256 - 1),
        (bob, 9, 3),
    ):
        await chain.send(editions, "mint(address,uint256,uint256)", owner, token_id, amount)
    begin = EvmIndexing(first_height=await chain.mine() + 1, metadata=MetadataMode.OFF)
    for token_id, amount in ((7, 4), (8, 5), (2**256 - 1, 2**255)):
        await chain.send(
            editions, "move(address,address,uint256,uint256)", alice, bob, token_id, amount
        )
    await chain.mine()
    holdings: dict[bytes, dict[int, int]] = {}
    async with (
        indexed(tmp_path, chain, build_untraced, index=begin) as index,
        evm_setup(
            chain_id=BLOCKCHAIN, more_urls=[chain.url], index_reader=index.index, index=begin
        ) as setup,
    ):
        for owner in (alice, bob):
            address = f"/v1/chains/{id_text(BLOCKCHAIN)}/addresses/0x{owner.hex()}"
            path = f"{address}/balances:listCollectibles"
            page = await ask(setup, path, contractAddress="0x" + editions.hex())
            holdings[owner] = {
                int(item["tokenId"]): int(item["balance"])
                for item in page.body["collectibleBalances"]
            }
    # Token 9 has not moved since, so that the index does not know it.
    ids = (7, 8, 2**256 - 1)
    assert holdings == {
        owner: await balances_of(chain, editions, owner, ids) for owner in (alice, bob)
    }
    assert holdings[alice] == {7: 6, 2**256 - 1: 2**255 - 1}


async def test_coins_and_transfers_without_erc165_are_no_nfts(
    tmp_path: Path, chain: AnvilChain
) -> None:
    sender, alice = chain.accounts[:2]
    coin, one_topic = await chain.deploy("Coin"), await chain.deploy("OneTopicCoin")
    await chain.send(coin, "transfer(address,uint256)", alice, 5)
    await chain.send(one_topic, "mint(address,uint256)", alice, 5)
    await chain.mine()
    async with indexed(tmp_path, chain) as index:
        assert (await index.index.tokens(coin, ALL)).items == ()
        assert (await index.index.tokens(one_topic, ALL)).items == ()
        called = await index.until_called(sender, [coin, one_topic])
        assert [called[contract].erc_type for contract in (coin, one_topic)] == [
            ErcType.ERC20,
            ErcType.UNKNOWN,
        ]


async def test_every_holder_of_a_coin_has_the_balance_that_the_contract_says(
    tmp_path: Path, chain: AnvilChain
) -> None:
    sender, people, random = chain.accounts[0], chain.accounts[1:8], Random(4)
    coin, late = await chain.deploy("Coin"), await chain.deploy("OneTopicCoin")
    begin = await block_of(chain)
    for person in people:
        await chain.send(coin, "transfer(address,uint256)", person, 1_000)
    await chain.mine()
    middle = await block_of(chain)
    async with indexed(tmp_path, chain) as index:
        for _ in range(3):
            for _ in range(6):
                for _ in range(random.randrange(4)):
                    # One to oneself, or of more than there is, changes nothing.
                    arguments = (
                        random.choice([sender, *people]),
                        random.choice((0, 1, 700, 10**9)),
                    )
                    await chain.send(
                        coin, "transfer(address,uint256)", *arguments, sender=random.choice(people)
                    )
                await chain.mine()
            await until_indexed(index, chain)
            holders = await index.holders(coin)
            assert holders.keys() == {sender, *people}
            for holder, balance in holders.items():
                assert balance == await chain.call(coin, "balanceOf(address)", "uint256", holder)
            assert sum(holders.values()) == 1_000_000
        assert await index.holders(coin, 900, middle, middle) == holders
        assert (await index.holders(coin, 900, begin, begin)).keys() == {sender}
        assert await index.holders(late) == {}


async def block_of(chain: AnvilChain) -> int:
    """Return the time of the last block, and make the next one later."""
    block = await chain.rpc("eth_getBlockByNumber", "latest", False)
    await chain.rpc("evm_setNextBlockTimestamp", int(block["timestamp"], 16) + 10)
    return int(block["timestamp"], 16)


async def test_contracts_have_the_kind_name_and_symbol_that_they_say(
    tmp_path: Path, chain: AnvilChain
) -> None:
    sender, alice = chain.accounts[:2]
    contracts = {
        "Coin": await chain.deploy("Coin"),
        "Bytes32Coin": await chain.deploy("Bytes32Coin"),
        "LongNameCoin": await chain.deploy("LongNameCoin"),
        "Counter": await chain.deploy("Counter"),
        "Collection": await chain.deploy("Collection", "string,string", "Ünïcode", "🦭"),
        "Editions": await chain.deploy("Editions"),
        "FirstCollection": await chain.deploy("FirstCollection"),
        "FalseEditions": await chain.deploy("FalseEditions"),
    }
    await chain.send(contracts["FirstCollection"], "mint(address,uint256)", alice, 1)
    await chain.mine()
    async with indexed(tmp_path, chain) as index:
        called = await index.until_called(sender, contracts.values())
    descriptions = {name: described(called[contract]) for name, contract in contracts.items()}
    assert descriptions == {
        "Coin": ("ERC-20", "Plain Coin", "COIN", 6),
        "Bytes32Coin": ("ERC-20", "Maker of Old", "MKO", 18),
        "LongNameCoin": ("ERC-20", "é" * 127, "nulinside", 0),
        "Counter": ("UNKNOWN", None, None, None),
        "Collection": ("ERC-721", "Ünïcode", "🦭", None),
        "Editions": ("ERC-1155", None, None, None),
        "FirstCollection": ("ERC-721", "First Collection", "FIRST", None),
        "FalseEditions": ("ERC-1155", None, None, None),
    }


def described(contract: DeployedContract) -> tuple[Any, ...]:
    fields = (contract.name, contract.symbol, contract.decimals)
    return contract.erc_type.value, *(
        field if isinstance(field, str | int) else None for field in fields
    )


async def test_hostile_contracts_have_no_kind_and_hold_up_no_other(
    tmp_path: Path, chain: AnvilChain
) -> None:
    sender = chain.accounts[0]
    hostile = [
        await chain.deploy(name) for name in ("Bomb", "Burner", "Mimic", "BadOffsets", "Stutterer")
    ]
    yes_sayer, coin = await chain.deploy("YesSayer"), await chain.deploy("Coin")
    async with indexed(tmp_path, chain) as index:
        called = await index.until_called(sender, [*hostile, yes_sayer, coin])
        assert [described(called[contract]) for contract in hostile] == [
            ("UNKNOWN", None, None, None)
        ] * 5
        # ERC-20 cannot be denied: each of its replies is well-formed.
        assert described(called[yes_sayer]) == ("ERC-20", "", "", 1)
        assert described(called[coin]) == ("ERC-20", "Plain Coin", "COIN", 6)


async def test_hostile_logs_are_no_transfers_and_stop_nothing(
    tmp_path: Path, chain: AnvilChain
) -> None:
    alice, bob = chain.accounts[1:3]
    bomb, false_editions = await chain.deploy("LogBomb"), await chain.deploy("FalseEditions")
    await chain.send(bomb, "logShapes()")
    await chain.mine()
    async with indexed(tmp_path, chain) as index:
        assert (await index.index.tokens(bomb, ALL)).items == ()
    await chain.send(bomb, "logBatch(uint256)", 2_000, gas=hex(90_000_000))
    await chain.mine()
    move = "move(address,address,uint256,uint256)"
    await chain.send(false_editions, move, alice, bob, 1, 5)
    await chain.send(false_editions, move, bob, alice, 1, 2)
    await chain.send(false_editions, move, ZERO, alice, 2, 2**256 - 1)
    await chain.send(false_editions, move, ZERO, alice, 2, 2**256 - 1)
    await chain.mine()
    async with indexed(tmp_path, chain) as index:
        assert (await index.index.tokens(bomb, ALL)).items == ()
        assert await index.balances(alice, false_editions) == {1: 2, 2: 2**256 - 1}
        assert await index.balances(bob, false_editions) == {1: 3}


async def test_factories_are_the_creators_of_what_stays(tmp_path: Path, chain: AnvilChain) -> None:
    sender = chain.accounts[0]
    factory, office = await chain.deploy("Factory"), await chain.deploy("Office")
    calls = ("create()", "createNest()", "createAndFail()", "createInRevertedCall()")
    tx_hashes = [await chain.send(factory, call) for call in calls]
    tx_hashes.append(await chain.send(factory, "create2(bytes32)", bytes(32)))
    # The second creation of the same address fails, and its transaction with it.
    tx_hashes.append(await chain.send(factory, "create2(bytes32)", bytes(32)))
    ordered = await chain.send(office, "order()")
    await chain.mine()
    creations = [
        [raw(log["data"])[-20:] for log in await logs_of(chain, tx_hash)] for tx_hash in tx_hashes
    ]
    assert list(map(len, creations)) == [1, 1, 1, 0, 1, 0]
    (from_office,) = [raw(log["data"])[-20:] for log in await logs_of(chain, ordered)]
    inner = raw(await chain.call(creations[1][0], "inner()", "address"))
    below = raw(await chain.call(office, "factory()", "address"))
    async with indexed(tmp_path, chain, build_untraced) as index:
        assert await index.created_by(factory) == {}
        assert {factory, office} <= (await index.created_by(sender)).keys()
    # Traces that come later, as from another node.
    async with indexed(tmp_path, chain) as index:
        by_factory = await index.created_by(factory)
        assert set(by_factory) == {contract for contracts in creations for contract in contracts}
        assert set(await index.created_by(creations[1][0])) == {inner}
        assert set(await index.created_by(below)) == {from_office}
        assert set(await index.created_by(office)) == {below}
        by_sender = await index.created_by(sender)
        assert by_factory.keys() | {inner, below, from_office, factory, office} <= by_sender.keys()
        details = by_factory[creations[0][0]].deployment_details
        assert (details.tx_hash, raw(details.deployer_address)) == (tx_hashes[0], sender)
        assert raw(str(details.deployer_contract_address)) == factory
        called = await index.until_called(factory, by_factory)
        assert described(called[creations[4][0]]) == ("ERC-721", "Made", "MADE", None)


async def logs_of(chain: AnvilChain, tx_hash: str) -> list[dict[str, Any]]:
    receipt = await chain.rpc("eth_getTransactionReceipt", tx_hash)
    logs: list[dict[str, Any]] = receipt["logs"]
    return logs


async def test_an_upgraded_proxy_is_called_again(tmp_path: Path, chain: AnvilChain) -> None:
    sender = chain.accounts[0]
    first, second = await chain.deploy("FirstVersion"), await chain.deploy("SecondVersion")
    proxy = await chain.deploy("Proxy", "address", first)
    async with indexed(tmp_path, chain) as index:
        called = await index.until_called(sender, [proxy])
        assert described(called[proxy]) == ("ERC-20", "First Version", "V1", 8)
        await chain.send(proxy, "upgrade(address)", second)
        await chain.mine()

        async def is_second() -> bool:
            contract = (await index.created_by(sender))[proxy]
            return described(contract) == ("ERC-1155", "Second Version", "V2", None)

        await until(is_second)


@pytest.mark.parametrize(("seed", "on_server"), [(0, False), (1, False), (2, True)])
async def test_random_histories_end_with_the_owners_and_balances_of_the_contracts(
    request: pytest.FixtureRequest, tmp_path: Path, chain: AnvilChain, seed: int, on_server: bool
) -> None:
    settings = IndexSettings(request.getfixturevalue("postgres_url")) if on_server else INDEX
    random, people = Random(seed), chain.accounts[1:5]
    collection = await chain.deploy("Collection", "string,string", "Random", "RND")
    first = await chain.deploy("FirstCollection")
    consecutive = await chain.deploy("ConsecutiveCollection", "address,uint96", people[0], 8)
    editions = await chain.deploy("Editions")
    ids = range(8)
    async with indexed(tmp_path, chain, settings=settings) as index:
        for _ in range(4):
            for _ in range(8):
                for _ in range(random.randrange(6)):
                    contract = random.choice((collection, first, consecutive, editions))
                    # Many of them revert: the token is not there, or not theirs.
                    await send_at_random(
                        chain, random, contract, people, is_editions=contract == editions
                    )
                await chain.mine()
            await until_indexed(index, chain)
            for contract in (collection, first, consecutive):
                assert await index.owners(contract) == await owners_of(chain, contract, ids)
            for owner in people:
                assert await index.balances(owner, editions) == await balances_of(
                    chain, editions, owner, ids
                )
        for contract in (collection, first, consecutive):
            assert await index.owners(contract)


async def send_at_random(
    chain: AnvilChain,
    random: Random,
    contract: bytes,
    people: Sequence[bytes],
    *,
    is_editions: bool,
) -> None:
    sender, to, token_id = random.choice(people), random.choice(people), random.randrange(8)
    if not is_editions:
        match random.randrange(8):
            case 0 | 1 | 2:
                await chain.send(contract, "mint(address,uint256)", to, token_id)
            case 3:
                await chain.send(contract, "burn(uint256)", token_id)
            case _:
                await chain.send(contract, "move(address,address,uint256)", sender, to, token_id)
        return
    ids = [random.randrange(8) for _ in range(random.randrange(4))]
    amounts = [random.randrange(4) for _ in ids]
    match random.randrange(5):
        case 0:
            await chain.send(
                contract, "mint(address,uint256,uint256)", to, token_id, random.randrange(10)
            )
        case 1:
            await chain.send(
                contract, "burn(address,uint256,uint256)", sender, token_id, random.randrange(3)
            )
        case 2:
            await chain.send(contract, "mintBatch(address,uint256[],uint256[])", to, ids, amounts)
        case 3:
            moved = "moveBatch(address,address,uint256[],uint256[])"
            await chain.send(contract, moved, sender, to, ids, amounts)
        case _:
            moved = "move(address,address,uint256,uint256)"
            await chain.send(contract, moved, sender, to, token_id, random.randrange(4))
