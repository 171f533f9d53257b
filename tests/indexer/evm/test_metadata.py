"""The metadata of NFTs, from the chain to the page: which tokens are fetched and when, and each
outcome.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from eth_hash.auto import keccak
from msgspec.structs import replace

from tests.eventually import finish, until
from tests.indexer.evm.indexing import rows
from tests.indexer.evm.metadata_servers import PRIVATE, http_response
from tests.indexer.evm.metadata_setup import FAST, MetadataSetup, metadata_setup
from tests.indexer.evm.nodes import rate_taken
from tests.indexer.evm_chains import GENESIS_TIME, ZERO, Log, Tx, erc1155_transfer, word
from warpseal.chains.evm.token_uri import Gateways, parse_token_uri
from warpseal.index.evm.records import ReindexOutcome
from warpseal.indexer.evm import metadata
from warpseal.indexer.evm.fetcher import read_remote
from warpseal.indexer.settings import MetadataSettings
from warpseal.resources.evm import MetadataStatus, NftMetadata
from warpseal.upstream.endpoint import MetadataMode

INDEXED = MetadataStatus.INDEXED


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[MetadataSetup]:
    async with metadata_setup(tmp_path) as running_setup:
        yield running_setup


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def test_only_what_a_page_showed_is_fetched_of_old_tokens(setup: MetadataSetup) -> None:
    setup.mint(1, 2)
    setup.add_document(
        "/1", {"name": "Cat #1", "image": "ipfs://Qm/1.png", "attributes": [{"trait_type": "Fur"}]}
    )
    setup.contracts.uris |= {(setup.cat, 1): setup.url("/1"), (setup.cat, 2): setup.url("/2")}
    began_at = int(time.time())
    async with setup.running() as running_setup:
        await running_setup.show(1)
        token = await running_setup.until_fetched(1)
        assert (token.token_uri, token.metadata.name, token.metadata.image_uri) == (
            running_setup.url("/1"),
            "Cat #1",
            "ipfs://Qm/1.png",
        )
        assert token.metadata.attributes == '[{"trait_type":"Fur"}]'
        assert isinstance(token.metadata.metadata_last_updated_timestamp, int)
        assert began_at <= token.metadata.metadata_last_updated_timestamp <= time.time() + 1
        assert (await running_setup.token(2)).metadata == NftMetadata(
            index_status=MetadataStatus.UNINDEXED
        )
        assert running_setup.paths == {"/1": 1}
        await running_setup.show(1)
        assert running_setup.paths == {"/1": 1}


async def test_a_page_renews_metadata_older_than_a_day(setup: MetadataSetup) -> None:
    setup.mint(1)
    setup.contracts.uris[setup.cat, 1] = setup.url("/1")
    setup.add_document("/1", {"name": "old"})
    async with setup.running() as running_setup:
        await running_setup.show(1)
        assert (await running_setup.until_fetched(1)).metadata.name == "old"
        setup.add_document("/1", {"name": "new"})
        for hours, name in ((23, "old"), (25, "new")):
            running_setup.ahead_s = hours * 3_600
            await running_setup.show(1)

            async def is_so(name: str = name) -> bool:
                return (await running_setup.token(1)).metadata.name == name

            await until(is_so)
        assert running_setup.paths == {"/1": 2}


async def test_new_mints_are_fetched(setup: MetadataSetup) -> None:
    setup.mint(1, seconds=int(time.time()) - GENESIS_TIME)
    setup.contracts.uris[setup.cat, 1] = '{"name":"new"}'
    async with setup.running() as running_setup:
        assert (await running_setup.until_fetched(1)).metadata.name == "new"


async def test_a_new_mint_that_a_page_shows_moves_up(setup: MetadataSetup) -> None:
    setup.mint(*range(1, 10), 20, seconds=int(time.time()) - GENESIS_TIME)
    setup.contracts.uris[setup.cat, 20] = '{"name":"inline"}'
    order: list[int] = []
    may_end = asyncio.Event()

    def slow_document(number: int) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
        async def serve(writer: asyncio.StreamWriter) -> None:
            order.append(number)
            await may_end.wait()
            writer.write(http_response(b"{}"))

        return serve

    for number in range(1, 10):
        setup.contracts.uris[setup.cat, number] = setup.url(f"/{number}")
        setup.replies[f"/{number}"] = slow_document(number)
    async with setup.running() as running_setup:
        # The newest ones first, two at a time; all the others wait.
        await until(lambda: len(order) == 2 and running_setup.contracts.calls.total() == 10)
        assert sorted(order) == [8, 9]
        await running_setup.until_fetched(20)
        await running_setup.show(2, 9)
        # Requests are taken in their order, and this one of an old document is the last.
        running_setup.ahead_s = 25 * 3_600
        await running_setup.show(20)
        await until(lambda: running_setup.contracts.calls[running_setup.cat, 20] == 2)
        may_end.set()
        await until(lambda: len(order) == 9)
        assert order[2] == 2
        assert sorted(order) == list(range(1, 10))


async def test_a_page_shows_a_new_mint_although_blocks_take_the_whole_rate_of_the_node(
    setup: MetadataSetup,
) -> None:
    setup.calls_per_s = 200
    setup.mint(1)
    async with setup.running() as running_setup:
        with rate_taken(setup.nodes):
            setup.mint(2, 3, seconds=int(time.time()) - GENESIS_TIME)
            for number in (2, 3):
                setup.contracts.uris[setup.cat, number] = setup.url(f"/{number}")
                setup.add_document(f"/{number}", {"name": str(number)})
            await running_setup.indexer.until_at(running_setup.builder.chain, 2)
            await running_setup.show(2)
            assert (await running_setup.until_fetched(2)).metadata.name == "2"
            assert running_setup.paths == {"/2": 1}


async def test_all_tokens_are_fetched_with_the_mode_all(setup: MetadataSetup) -> None:
    setup.mode = MetadataMode.ALL
    for first in range(0, 300, 50):
        setup.mint(*range(first, first + 50))
    for number in range(300):
        setup.contracts.uris[setup.cat, number] = setup.url(f"/{number}")
        setup.add_document(f"/{number}", {"name": str(number)})
    async with setup.running() as running_setup:
        await until(lambda: len(running_setup.paths) == 300)
        assert [
            (await running_setup.until_fetched(number)).metadata.name for number in (0, 150, 299)
        ] == [
            "0",
            "150",
            "299",
        ]
        assert set(running_setup.paths.values()) == {1}


async def test_nothing_is_fetched_with_the_mode_off(setup: MetadataSetup) -> None:
    setup.mode = MetadataMode.OFF
    setup.mint(1)
    async with setup.running() as running_setup:
        await running_setup.show(1)
        setup.mint(2)
        await running_setup.indexer.until_at(setup.builder.chain, 2)
        assert not running_setup.contracts.calls


async def test_every_outcome_has_its_status(setup: MetadataSetup) -> None:
    setup.mode = MetadataMode.ALL
    setup.add_document("/ok", {"name": "ok"})
    setup.add_document("/list", [1])
    setup.replies["/busy"] = http_response(b"", "429 Too Many Requests")
    setup.replies["/html"] = http_response(b"<html>")
    setup.replies["/large"] = http_response(b'{"name":"' + b"a" * 2**20 + b'"}')
    setup.replies["/image"] = http_response(b"\x89PNG", "200 OK", "Content-Type: image/png")
    setup.replies["/private"] = http_response(b'{"name":"secret"}')
    packed = b64encode(b'{"name":"packed"}').decode()
    uris: dict[int, tuple[str | bytes | None, MetadataStatus]] = {
        1: (setup.url("/ok"), INDEXED),
        2: (None, MetadataStatus.MISSING_TOKEN),
        3: (None, MetadataStatus.INVALID_TOKEN_URI),
        4: ("", MetadataStatus.INVALID_TOKEN_URI),
        5: ("no uri", MetadataStatus.INVALID_TOKEN_URI),
        6: (b"", MetadataStatus.INVALID_TOKEN_URI),
        7: (b"\xff" * 64, MetadataStatus.INVALID_TOKEN_URI),
        8: ("data:," + "a" * (2**20 - 100), MetadataStatus.INVALID_METADATA_JSON),
        9: ("https://a.test/" + "a" * 2**20, MetadataStatus.INVALID_TOKEN_URI),
        10: ("ftp://a.test/1", MetadataStatus.INVALID_TOKEN_URI_SCHEME),
        11: (setup.url("/missing"), MetadataStatus.UNREACHABLE_TOKEN_URI),
        12: (setup.url("/private", PRIVATE), MetadataStatus.UNREACHABLE_TOKEN_URI),
        13: (setup.url("/busy"), MetadataStatus.THROTTLED_TOKEN_URI),
        14: (setup.url("/large"), MetadataStatus.METADATA_CONTENT_TOO_LARGE),
        15: (setup.url("/html"), MetadataStatus.INVALID_METADATA_JSON),
        16: (setup.url("/list"), MetadataStatus.INVALID_METADATA),
        17: (setup.url("/image"), INDEXED),
        18: (f"data:application/json;base64,{packed}", INDEXED),
        19: ("ipfs://Qm/1", MetadataStatus.UNREACHABLE_TOKEN_URI),
        20: ("\n data:application/json,%7B%22name%22%3A%22percent%22%7D\0", INDEXED),
        21: ("http://[::1]@/x", MetadataStatus.INVALID_TOKEN_URI),
    }
    setup.mint(*uris)
    setup.contracts.uris = {(setup.cat, number): uri for number, (uri, _) in uris.items()}
    setup.contracts.ownerless = {(setup.cat, 2)}
    async with setup.running() as running_setup:
        documents = {number: await running_setup.until_fetched(number) for number in uris}
        assert {number: token.metadata.index_status for number, token in documents.items()} == {
            number: status for number, (_, status) in uris.items()
        }
        names = {
            number: token.metadata.name
            for number, token in documents.items()
            if isinstance(token.metadata.name, str)
        }
        assert names == {1: "ok", 18: "packed", 20: "percent"}
        assert (
            documents[17].metadata.image_uri
            == documents[17].token_uri
            == running_setup.url("/image")
        )
        assert documents[9].token_uri == documents[2].token_uri == ""
        assert running_setup.paths["/private"] == 0


async def test_an_unforeseen_error_about_one_token_is_that_tokens_alone(
    setup: MetadataSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(uri: str, *more: Any) -> Any:
        if "unparsed" in uri:
            raise IndexError("of a library")
        return parse_token_uri(uri, *more)

    async def read(fetcher: Any, document: Any, uri: str, *more: Any) -> Any:
        if "unread" in uri:
            raise IndexError("of a library")
        return await read_remote(fetcher, document, uri, *more)

    monkeypatch.setattr(metadata, "parse_token_uri", parse)
    monkeypatch.setattr(metadata, "read_remote", read)
    setup.mode = MetadataMode.ALL
    setup.add_document("/ok", {"name": "ok"})
    # A lone surrogate, which is no text of a database.
    setup.replies["/half"] = http_response(b'{"name":"half \\ud800"}')
    uris = {
        1: (setup.url("/unparsed"), MetadataStatus.UNKNOWN),
        2: (setup.url("/unread"), MetadataStatus.UNKNOWN),
        3: (setup.url("/half"), INDEXED),
        4: (setup.url("/ok"), INDEXED),
    }
    setup.mint(*uris)
    setup.contracts.uris = {(setup.cat, number): uri for number, (uri, _) in uris.items()}
    async with setup.running() as running_setup:
        for number, (_, status) in uris.items():
            token = await running_setup.until_fetched(number)
            assert token.metadata.index_status == status


async def test_a_token_uri_that_is_a_medium_is_indexed_as_it_is(setup: MetadataSetup) -> None:
    setup.mode = MetadataMode.ALL
    large = b"\0\0\0\x1cftypisom" + b"a" * 3_000_000
    png = b"\x89PNG\r\n\x1a\n" + b"a" * 2_000_000
    media: dict[str, tuple[bytes, str, str]] = {
        "/7.mp4": (large, "video/mp4", "animation_uri"),
        "/8.mp4": (large, "application/octet-stream", "animation_uri"),
        "/9.mp3": (b"ID3" + b"a" * 100, "audio/mpeg", "animation_uri"),
        "/10.glb": (b"glTF" + b"a" * 100, "model/gltf-binary", "animation_uri"),
        "/11": (b"<!doctype html><title>x</title>", "text/html; charset=utf-8", "animation_uri"),
        "/12.png": (png, "application/octet-stream", "image_uri"),
        "/13.svg": (b"<?xml version='1.0'?><svg/>", "text/plain", "image_uri"),
    }
    for path, (body, media_type, _) in media.items():
        setup.replies[path] = http_response(body, "200 OK", f"Content-Type: {media_type}")
    setup.replies["/json"] = http_response(b'{"name":"json"}', "200 OK", "Content-Type: text/html")
    paths = dict(enumerate([*media, "/json"], 1))
    setup.mint(*paths, 20, 21)
    setup.contracts.uris |= {(setup.cat, number): setup.url(path) for number, path in paths.items()}
    setup.contracts.uris[setup.cat, 20] = "data:video/mp4;base64,AA"
    setup.contracts.uris[setup.cat, 21] = "data:text/html,<p>"
    async with setup.running() as running_setup:
        for number, path in paths.items():
            metadata = (await running_setup.until_fetched(number)).metadata
            assert metadata.index_status == INDEXED, path
            if path in media:
                assert getattr(metadata, media[path][2]) == running_setup.url(path)
            else:
                assert metadata.name == "json"
        assert (
            await running_setup.until_fetched(20)
        ).metadata.animation_uri == "data:video/mp4;base64,AA"
        assert (
            await running_setup.until_fetched(21)
        ).metadata.index_status == MetadataStatus.INVALID_METADATA_JSON


async def test_a_page_of_a_gateway_that_is_gone_hides_no_document(setup: MetadataSetup) -> None:
    setup.settings = replace(
        FAST, gateways=Gateways((setup.url("/gone", PRIVATE), setup.url("", PRIVATE)))
    )
    page = http_response(b"<html>for sale</html>", "200 OK", "Content-Type: text/html")
    setup.replies |= {"/gone/ipfs/QmA/1": page, "/gone/ipfs/QmB/2": page, "/ipfs/QmB/2": page}
    setup.add_document("/ipfs/QmA/1", {"name": "cat"})
    setup.mint(1, 2)
    setup.contracts.uris |= {(setup.cat, 1): "ipfs://QmA/1", (setup.cat, 2): "ipfs://QmB/2"}
    async with setup.running() as running_setup:
        await running_setup.show(1, 2)
        assert (await running_setup.until_fetched(1)).metadata.name == "cat"
        assert (await running_setup.until_fetched(2)).metadata.animation_uri == "ipfs://QmB/2"


async def test_an_erc1155_token_with_a_balance_is_never_missing(setup: MetadataSetup) -> None:
    gem, owner = setup.gem, setup.builder.address("owner")
    setup.mint_gem(1)
    setup.mint_gem(2)
    setup.builder.add([Tx(owner, gem, [erc1155_transfer(gem, owner, ZERO, 2, 5)], gas_used=90_000)])
    setup.contracts.uris |= {(gem, 1): None, (gem, 2): None}
    setup.contracts.ownerless = {(gem, 1), (gem, 2)}
    async with setup.running() as running_setup:
        await running_setup.show(1, 2, contract=gem)
        tokens = [await running_setup.until_fetched(number, gem) for number in (1, 2)]
    assert [token.metadata.index_status for token in tokens] == [
        MetadataStatus.INVALID_TOKEN_URI,
        MetadataStatus.MISSING_TOKEN,
    ]


async def test_an_erc1155_token_of_contradicting_events_is_not_missing(
    setup: MetadataSetup,
) -> None:
    gem, first, second = setup.gem, setup.builder.address("first"), setup.builder.address("second")
    # No event shows the mint, so the first owner may hold any amount.
    logs = [erc1155_transfer(gem, first, second, 1, 5), erc1155_transfer(gem, second, ZERO, 1, 5)]
    setup.builder.add([Tx(first, gem, logs, gas_used=90_000)])
    setup.contracts.uris[gem, 1] = None
    async with setup.running() as running_setup:
        await running_setup.show(1, contract=gem)
        metadata = (await running_setup.until_fetched(1, gem)).metadata
    assert metadata.index_status == MetadataStatus.INVALID_TOKEN_URI


async def test_an_erc1155_token_is_missing_no_more_once_it_is_minted_again(
    setup: MetadataSetup,
) -> None:
    gem, owner = setup.gem, setup.builder.address("owner")
    setup.mint_gem(1)
    setup.builder.add([Tx(owner, gem, [erc1155_transfer(gem, owner, ZERO, 1, 5)], gas_used=90_000)])
    setup.contracts.uris[gem, 1] = None
    async with setup.running() as running_setup:
        await running_setup.show(1, contract=gem)
        metadata = (await running_setup.until_fetched(1, gem)).metadata
        assert metadata.index_status == MetadataStatus.MISSING_TOKEN
        setup.mint_gem(1)
        await running_setup.indexer.until_at(setup.builder.chain, setup.builder.height)
        metadata = (await running_setup.token(1, gem)).metadata
        assert metadata.index_status == MetadataStatus.INVALID_TOKEN_URI
        setup.contracts.uris[gem, 1] = '{"name":"again"}'
        await running_setup.show(1, contract=gem)

        async def is_indexed() -> bool:
            return (await running_setup.token(1, gem)).metadata.index_status == INDEXED

        await until(is_indexed)


async def test_without_a_node_the_status_is_unknown_until_a_retry(setup: MetadataSetup) -> None:
    setup.settings = replace(FAST, retry_delays_s=(0.0,) * 5)
    setup.mint(1)
    setup.contracts.uris[setup.cat, 1] = '{"name":"back"}'
    async with setup.running() as running_setup:
        setup.node.replies["eth_call"] = (-32000, "header not found")
        await running_setup.show(1)
        assert (
            await running_setup.until_fetched(1)
        ).metadata.index_status == MetadataStatus.UNKNOWN
        del setup.node.replies["eth_call"]

        async def is_indexed() -> bool:
            return (await running_setup.token(1)).metadata.index_status == INDEXED

        await until(is_indexed)


async def test_an_erc1155_token_has_its_id_in_uri_and_document(setup: MetadataSetup) -> None:
    digits = "0" * 63 + "a"
    setup.mint_gem(10)
    setup.contracts.uris[setup.gem, 10] = setup.url("/{id}.json")
    setup.add_document(
        f"/{digits}.json",
        {"image": "https://a.test/{id}.png", "decimals": 2, "properties": {"a": "{id}"}},
    )
    async with setup.running() as running_setup:
        await running_setup.show(10, contract=running_setup.gem)
        token = await running_setup.until_fetched(10, running_setup.gem)
        assert token.token_uri == running_setup.url(f"/{digits}.json")
        assert token.metadata.image_uri == f"https://a.test/{digits}.png"
        assert (token.metadata.decimals, token.metadata.properties) == (2, f'{{"a":"{digits}"}}')


async def test_gateways_serve_ipfs_arweave_and_dead_ipfs_urls(setup: MetadataSetup) -> None:
    gateways = (setup.url("/gone", PRIVATE), setup.url("", PRIVATE))
    setup.settings = replace(FAST, gateways=Gateways(gateways, gateways))
    setup.add_document("/ipfs/QmA/1", {"name": "ipfs"})
    setup.add_document("/ipfs/QmB/2", {"name": "dead"})
    setup.add_document("/TxC", {"name": "arweave"})
    setup.mint(1, 2, 3)
    setup.contracts.uris |= {
        (setup.cat, 1): "ipfs://QmA/1",
        (setup.cat, 2): "http://127.0.0.3:1/ipfs/QmB/2",
        (setup.cat, 3): "ar://TxC",
    }
    async with setup.running() as running_setup:
        await running_setup.show(1, 2, 3)
        names = [(await running_setup.until_fetched(number)).metadata.name for number in (1, 2, 3)]
        assert names == ["ipfs", "dead", "arweave"]
        assert running_setup.paths["/gone/ipfs/QmA/1"] == running_setup.paths["/gone/TxC"] == 1


async def test_a_failed_fetch_is_tried_five_times_more(setup: MetadataSetup) -> None:
    setup.settings = replace(FAST, retry_delays_s=(0.0,) * 5)
    setup.mint(1)
    setup.contracts.uris[setup.cat, 1] = setup.url("/1")
    async with setup.running() as running_setup:
        await running_setup.show(1)

        def is_over() -> bool:
            stored = rows(
                running_setup.folder,
                running_setup.builder.chain,
                "SELECT attempts, next_attempt_at FROM documents",
            )
            return stored == [(6, None)]

        await until(is_over)
        assert running_setup.paths["/1"] == 6


async def test_retries_wait_longer_and_longer(setup: MetadataSetup) -> None:
    assert MetadataSettings().retry_delays_s == (60, 600, 3_600, 21_600, 86_400)
    setup.mint(1)
    setup.contracts.uris[setup.cat, 1] = setup.url("/1")
    async with setup.running() as running_setup:
        await running_setup.show(1)
        await running_setup.until_fetched(1)
        query = "SELECT attempts, next_attempt_at - updated_at FROM documents"
        assert rows(running_setup.folder, running_setup.builder.chain, query) == [(1, 60)]


async def test_a_retry_waits_as_long_as_the_server_asks_and_not_less_than_without(
    setup: MetadataSetup,
) -> None:
    setup.mint(1, 2)
    for number, wait_s in ((1, 7_200), (2, 5)):
        setup.contracts.uris[setup.cat, number] = setup.url(f"/{number}")
        setup.replies[f"/{number}"] = http_response(
            b"", "429 Too Many Requests", f"Retry-After: {wait_s}"
        )
    async with setup.running() as running_setup:
        await running_setup.show(1, 2)
        tokens = [await running_setup.until_fetched(number) for number in (1, 2)]
        assert {token.metadata.index_status for token in tokens} == {
            MetadataStatus.THROTTLED_TOKEN_URI
        }
        query = "SELECT attempts, next_attempt_at - updated_at FROM documents ORDER BY token"
        assert rows(running_setup.folder, running_setup.builder.chain, query) == [
            (1, 7_200),
            (1, 60),
        ]


async def test_a_reindex_request_renews_status_and_time_and_keeps_the_last_good_fields(
    setup: MetadataSetup,
) -> None:
    setup.mint(1)
    setup.contracts.uris[setup.cat, 1] = setup.url("/1")
    setup.add_document("/1", {"name": "good"})
    async with setup.running() as running_setup:
        await running_setup.show(1)
        first = (await running_setup.until_fetched(1)).metadata
        setup.replies["/1"] = http_response(b"", "500 Oops")
        requested_at = time.time()
        assert (
            await running_setup.index.reindex(running_setup.cat, 1)
        ).outcome is ReindexOutcome.ACCEPTED

        async def is_new() -> bool:
            return (await running_setup.token(1)).metadata != first

        await until(is_new)
        token = await running_setup.token(1)
        assert token.metadata.index_status == MetadataStatus.UNREACHABLE_TOKEN_URI
        assert (token.metadata.name, token.token_uri) == ("good", running_setup.url("/1"))
        assert isinstance(token.metadata.metadata_last_updated_timestamp, int)
        assert isinstance(first.metadata_last_updated_timestamp, int)
        assert token.metadata.metadata_last_updated_timestamp >= requested_at
        assert (
            token.metadata.metadata_last_updated_timestamp > first.metadata_last_updated_timestamp
        )
        assert (
            await running_setup.index.reindex(running_setup.cat, 1)
        ).outcome is ReindexOutcome.TOO_EARLY


async def test_a_reindex_request_has_own_slots_while_silent_servers_hold_all_others(
    setup: MetadataSetup,
) -> None:
    setup.mint(*range(20))
    setup.replies["/silent"] = hang
    setup.add_document("/1", {"name": "one"})
    setup.contracts.uris |= {(setup.cat, number): setup.url("/silent") for number in range(20)}
    async with setup.running() as running_setup:
        await running_setup.show(*range(2, 20))
        await until(lambda: running_setup.paths["/silent"] == 2)
        setup.contracts.uris[setup.cat, 1] = setup.url("/1")
        await running_setup.index.reindex(running_setup.cat, 1)
        assert (await running_setup.until_fetched(1)).metadata.name == "one"


@pytest.mark.parametrize("where", ["server", "node"])
async def test_a_reindex_request_ends_in_time_although_servers_or_nodes_hang(
    setup: MetadataSetup, where: str
) -> None:
    assert MetadataSettings().reindex_s < 20
    setup.settings = replace(FAST, reindex_s=1.2)
    setup.mint(1)
    setup.replies["/silent"] = hang
    setup.contracts.uris[setup.cat, 1] = setup.url("/silent")
    async with setup.running() as running_setup:
        if where == "node":
            setup.node.delay_s = 60.0
        await running_setup.index.reindex(running_setup.cat, 1)
        status = (await running_setup.until_fetched(1)).metadata.index_status
        assert (
            status
            == {"server": MetadataStatus.UNREACHABLE_TOKEN_URI, "node": MetadataStatus.UNKNOWN}[
                where
            ]
        )


def update_log(contract: bytes, topic: str, *topics: int, data: bytes = b"") -> Log:
    return Log(contract, (keccak(topic.encode()), *map(word, topics)), data)


@pytest.mark.parametrize("event", ["MetadataUpdate", "BatchMetadataUpdate", "URI", "Upgraded"])
async def test_events_renew_metadata_once_in_ten_minutes_and_contract(
    setup: MetadataSetup, event: str
) -> None:
    contract = setup.gem if event == "URI" else setup.cat
    setup.mint(7)
    setup.mint_gem(7)
    setup.contracts.uris |= {(setup.cat, 7): setup.url("/7"), (setup.gem, 7): setup.url("/7")}
    setup.add_document("/7", {"name": "old"})
    text = b"ipfs://new"
    log = {
        "MetadataUpdate": update_log(contract, "MetadataUpdate(uint256)", data=word(7)),
        "BatchMetadataUpdate": update_log(
            contract, "BatchMetadataUpdate(uint256,uint256)", data=word(0) + word(9)
        ),
        "URI": update_log(
            contract,
            "URI(string,uint256)",
            7,
            data=word(32) + word(len(text)) + text.ljust(32, b"\0"),
        ),
        "Upgraded": Log(contract, update_log(contract, "Upgraded(address)", 1).topics),
    }[event]
    async with setup.running() as running_setup:
        await running_setup.show(7, contract=contract)
        assert (await running_setup.until_fetched(7, contract)).metadata.name == "old"
        setup.add_document("/7", {"name": "new"})
        running_setup.builder.add(
            [Tx(running_setup.builder.address("x"), contract, (log,), gas_used=50_000)]
        )

        async def is_new() -> bool:
            return (await running_setup.token(7, contract)).metadata.name == "new"

        await until(is_new)
        fetched = running_setup.paths["/7"]
        for _ in range(3):
            running_setup.builder.add(
                [Tx(running_setup.builder.address("x"), contract, (log,), gas_used=50_000)]
            )
        await running_setup.indexer.until_at(
            running_setup.builder.chain, running_setup.builder.height
        )
        ((is_pending, due_at),) = rows(
            running_setup.folder,
            running_setup.builder.chain,
            "SELECT is_pending, due_at FROM updates",
        )
        assert is_pending
        assert due_at > time.time() + 500
        assert running_setup.paths["/7"] == fetched


async def test_slow_documents_of_one_host_do_not_delay_other_hosts(setup: MetadataSetup) -> None:
    setup.mode = MetadataMode.ALL
    setup.settings = replace(FAST, max_queued=20, max_queued_per_contract=8)
    slow = [setup.builder.address(f"slow {number}") for number in range(10)]
    for contract in slow:
        setup.mint(*range(10), contract=contract)
        setup.contracts.uris |= {
            (contract, number): f"http://127.0.0.2:{setup.port}/slow" for number in range(10)
        }
    setup.replies["/slow"] = hang
    setup.mint(*range(5))
    setup.contracts.uris |= {
        (setup.cat, number): setup.url("/fast", PRIVATE) for number in range(5)
    }
    setup.settings = replace(setup.settings, allowed_hosts=((PRIVATE, None),))
    setup.add_document("/fast", {"name": "fast"})
    async with setup.running() as running_setup:
        for number in range(5):
            assert (await running_setup.until_fetched(number)).metadata.name == "fast"
        assert running_setup.paths["/slow"] == 2
        # What did not fit into the queue was postponed, and shows no time of an attempt.
        query = (
            "SELECT count(*) FROM documents WHERE updated_at = 0 AND next_attempt_at IS NOT NULL"
        )
        assert rows(running_setup.folder, running_setup.builder.chain, query) > [(0,)]
        postponed = [
            (await running_setup.token(number, contract)).metadata
            for contract in slow
            for number in range(10)
        ]
        assert set(postponed) == {NftMetadata(index_status=MetadataStatus.UNINDEXED)}


async def test_a_restarted_indexer_fetches_what_was_not_written(setup: MetadataSetup) -> None:
    setup.mint(1)
    setup.contracts.uris[setup.cat, 1] = setup.url("/1")
    setup.replies["/1"] = hang
    async with setup.running() as running_setup:
        await running_setup.show(1)
        await until(lambda: running_setup.paths["/1"] == 1)
    setup.add_document("/1", {"name": "later"})
    async with setup.running() as running_setup:
        assert (await finish(running_setup.until_fetched(1))).metadata.name == "later"


async def test_a_failure_of_the_task_loses_no_token(setup: MetadataSetup) -> None:
    setup.mint(1)
    setup.contracts.uris[setup.cat, 1] = '{"name":"again"}'
    setup.broken_calls = 1
    async with setup.running() as running_setup:
        await running_setup.show(1)
        assert (await running_setup.until_fetched(1)).metadata.name == "again"
        assert running_setup.broken_calls == 0
