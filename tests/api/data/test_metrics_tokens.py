"""Page tokens of the Metrics API: enough alone, for every daemon on the metrics database, 24 hours,
and no longer.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import aiohttp
import pytest

from tests.api.data import samples as s
from tests.api.data.fixtures import Clock, client_of
from tests.api.data.metrics_fixtures import (
    DAY,
    MadeChain,
    block_at,
    file_urls,
    metrics_setup,
    request,
    write_chain,
)
from tests.index.conftest import postgres_server, postgres_url
from warpseal.usage.errors import TooManyPageTokens
from warpseal.usage.page_tokens import VALID_S, PageTokenStore

__all__ = ["postgres_server", "postgres_url"]

CHAIN, OTHER = (
    MadeChain(
        number, [block_at(height, s.NOW - (30 - height) * DAY, height) for height in range(31)]
    )
    for number in (1, 2)
)
PATH, OTHER_PATH = (f"/v1/avg_tps/{chain.evm_chain_id}" for chain in (CHAIN, OTHER))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the indexes of both chains; tests only read them."""
    path = tmp_path_factory.mktemp("tokens")
    for chain in (CHAIN, OTHER):
        write_chain(file_urls(path)[0], chain, s.NOW)
    return path


async def first_token(client: aiohttp.ClientSession, path: str = PATH, **params: str) -> str:
    """Return the token of the second page."""
    response = await request(client, path, **{"pageSize": "4", **params})
    token: str = response.body["nextPageToken"]
    return token


async def test_a_token_is_enough_alone_and_after_a_restart(folder: Path, tmp_path: Path) -> None:
    metrics_url = file_urls(tmp_path)[1]
    until = s.NOW - 3 * DAY
    async with (
        metrics_setup(file_urls(folder)[0], metrics_url, CHAIN) as setup,
        client_of(setup) as client,
    ):
        token = await first_token(client, to=str(until))
        here = await request(client, PATH, pageToken=token)
    assert UUID(token).version == 4
    async with (
        metrics_setup(file_urls(folder)[0], metrics_url, CHAIN) as setup,
        client_of(setup) as client,
    ):
        later = await request(client, PATH, pageToken=token)
        longer = await request(client, PATH, pageToken=token, to=str(until), pageSize="9")
        by_id = await request(client, f"/v1/avg_tps/0x{CHAIN.blockchain_id.hex()}", pageToken=token)
    assert (
        later.body["results"]
        == here.body["results"]
        == by_id.body["results"]
        == longer.body["results"][:4]
    )
    assert [point["timestamp"] // DAY for point in here.body["results"]] == [
        until // DAY - day for day in (4, 5, 6, 7)
    ]
    assert len(longer.body["results"]) == 9
    assert len({response.body["nextPageToken"] for response in (here, later, by_id)}) == 3


async def test_two_daemons_on_one_server_take_each_others_tokens(
    folder: Path, postgres_url: str
) -> None:
    index_url = file_urls(folder)[0]
    async with (
        metrics_setup(index_url, postgres_url, CHAIN) as first,
        metrics_setup(index_url, postgres_url, CHAIN) as second,
        client_of(first) as client,
        client_of(second) as other,
    ):
        days, token = [], await first_token(client)
        while token is not None:
            client, other = other, client
            page = (await request(client, PATH, pageToken=token)).body
            days += [point["timestamp"] // DAY for point in page["results"]]
            token = page.get("nextPageToken")
    assert days == list(range(s.NOW // DAY - 4, s.NOW // DAY - 30, -1))


async def test_another_request_an_unknown_and_an_expired_token_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    clock = Clock()
    urls = file_urls(folder)[0], file_urls(tmp_path)[1]
    async with metrics_setup(*urls, CHAIN, OTHER, clock=clock) as setup, client_of(setup) as client:
        token = await first_token(client, to=str(s.NOW))
        refused = [
            await request(client, PATH, pageToken=token, to=str(s.NOW - 1)),
            await request(client, PATH, pageToken=token, **{"from": "5"}),
            await request(client, OTHER_PATH, pageToken=token),
            await request(client, "/v1/avg_tps/total", pageToken=token),
            await request(client, PATH, pageToken=str(UUID(int=5))),
            await request(client, PATH, pageToken="no uuid"),
        ]
        clock.now += VALID_S
        last = await request(client, PATH, pageToken=token)
        clock.now += 1
        late = await request(client, PATH, pageToken=token)
    codes = [(response.status, response.body["code"]) for response in refused]
    assert codes == [(400, "page_token_mismatch")] * 2 + [(400, "invalid_page_token")] * 4
    assert last.status == 200
    assert (late.status, late.body["code"]) == (400, "expired_page_token")


async def test_without_the_database_only_pages_that_need_a_token_fail(
    folder: Path, tmp_path: Path
) -> None:
    index_url = file_urls(folder)[0]
    (tmp_path / "file").touch()
    nowhere = f"sqlite:///{tmp_path}/file/metrics.db"
    async with metrics_setup(index_url, nowhere, CHAIN) as setup, client_of(setup) as client:
        whole = await request(client, PATH)
        first = await request(client, PATH, pageSize="4")
        second = await request(client, PATH, pageToken=str(UUID(int=5)))
        no_token = await request(client, PATH, pageToken="no uuid")
    assert (whole.status, len(whole.body["results"])) == (200, 30)
    for response in (first, second):
        assert (response.status, response.body["code"]) == (503, "store_down")
        assert int(response.headers["retry-after"]) >= 1
    assert no_token.status == 400
    async with metrics_setup(index_url, None, CHAIN) as setup, client_of(setup) as client:
        assert (await request(client, PATH)).status == 200
        assert (
            "set metrics-db-url" in (await request(client, PATH, pageSize="4")).body["message"][0]
        )


async def test_a_page_that_no_token_can_continue_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(store: PageTokenStore, body: bytes) -> str:
        raise TooManyPageTokens(1_000_000)

    urls = file_urls(folder)[0], file_urls(tmp_path)[1]
    async with metrics_setup(*urls, CHAIN) as setup, client_of(setup) as client:
        token = await first_token(client)
        monkeypatch.setattr(PageTokenStore, "add", full)
        refused = await request(client, PATH, pageSize="4")
        rest = await request(client, PATH, pageToken=token, pageSize="2000")
    assert (refused.status, refused.body["code"]) == (503, "too_many_page_tokens")
    assert (rest.status, len(rest.body["results"])) == (200, 26)
