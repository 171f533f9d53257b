"""Pages: a token alone is enough, survives a restart, cannot be forged, and ends after a day."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.data import samples as s
from tests.api.data.fixtures import (
    NETWORK,
    P_BLOCKS,
    P_TXS,
    Clock,
    DataApiSetup,
    MemoryKeyStore,
    client_of,
    get,
    indexed,
)
from tests.store.fixtures import PATIENCE_S, sqlite_url, store_at
from warpseal.api.data import page_tokens
from warpseal.api.data.endpoint_needs import EphemeralKeys
from warpseal.api.data.endpoints import find_endpoint
from warpseal.api.data.errors import ExpiredPageToken, InvalidPageToken, PageTokenMismatch
from warpseal.api.data.page_tokens import (
    ROUNDING_S,
    VALID_S,
    PageQuery,
    PageTokens,
    check_unchanged,
)
from warpseal.chains.ids import bech32_text
from warpseal.warp.ids import id_text

TRANSACTIONS = find_endpoint("listLatestPrimaryNetworkTransactions")
ALICE, BOB = bech32_text("fuji", s.ALICE), bech32_text("fuji", s.BOB)
MANY = [
    s.p_tx(n, "BaseTx" if n % 3 else "ExportTx", owner=s.ALICE if n % 2 else s.BOB)
    for n in range(1, 31)
]


def hashes(page: Any) -> list[str]:
    return [tx["txHash"] for tx in page["transactions"]]


async def walk(
    client: aiohttp.ClientSession, path: str, params: dict[str, Any], *, repeat: bool
) -> list[str]:
    """All items, page by page; the token comes alone, or with all parameters repeated."""
    items: list[str] = []
    query = dict(params)
    for _ in range(100):
        async with client.get(path, params=query) as response:
            assert response.status == 200, await response.text()
            page = await response.json()
        items += hashes(page)
        if "nextPageToken" not in page:
            return items
        assert page["nextPageToken"]
        query = {**(params if repeat else {}), "pageToken": page["nextPageToken"]}
    raise AssertionError("pages without end")


QUERIES: list[dict[str, Any]] = [
    {},
    {"sortOrder": "asc"},
    {"addresses": f"{ALICE},{BOB}"},
    {"addresses": ALICE, "txTypes": "ExportTx", "startTimestamp": 1004, "endTimestamp": 1027},
]


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize("params", QUERIES)
async def test_any_page_size_gives_the_same_items(params: dict[str, Any], repeat: bool) -> None:
    async with client_of(indexed(txs=MANY)) as client:
        whole = await walk(client, P_TXS, {**params, "pageSize": 100}, repeat=repeat)
        for size in (1, 3, 7, 10):
            assert await walk(client, P_TXS, {**params, "pageSize": size}, repeat=repeat) == whole
    assert len(whole) > 2


async def test_pages_are_stable_while_new_transactions_come() -> None:
    setup = indexed(txs=list(MANY))
    page = await get(setup, P_TXS, pageSize=4)
    assert setup.index is not None
    setup.index.txs.append(s.p_tx(31))
    again = await get(setup, P_TXS, pageSize=4, pageToken=page["nextPageToken"])
    assert hashes(again) == [id_text(s.tx_id(n)) for n in (26, 25, 24, 23)]


async def test_the_page_size_may_change_and_is_kept_by_default() -> None:
    setup = indexed(txs=MANY)
    token = (await get(setup, P_TXS, pageSize=4))["nextPageToken"]
    assert len(hashes(await get(setup, P_TXS, pageToken=token))) == 4
    assert len(hashes(await get(setup, P_TXS, pageToken=token, pageSize=9))) == 9


async def test_parameters_may_be_repeated_in_another_spelling() -> None:
    setup = indexed(txs=MANY)
    token = (
        await get(setup, P_TXS, pageSize=4, addresses=f"{ALICE},P-{BOB}", txTypes="ExportTx,BaseTx")
    )["nextPageToken"]
    again = await get(
        setup,
        P_TXS,
        pageToken=token,
        addresses=f"X-{BOB},{ALICE}",
        txTypes="BaseTx,ExportTx",
        sortOrder="desc",
    )
    assert len(hashes(again)) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"sortOrder": "asc"},
        {"addresses": BOB},
        {"addresses": f"{ALICE},{BOB}"},
        {"txTypes": "BaseTx"},
        {"startTimestamp": 1003},
        {"endTimestamp": 1},
        {"l1ValidationId": id_text(s.VALIDATION)},
    ],
)
async def test_any_other_difference_from_the_first_request_is_refused(
    changed: dict[str, Any],
) -> None:
    setup = indexed(txs=MANY)
    params: dict[str, Any] = {"addresses": ALICE, "startTimestamp": 1002, "pageSize": 2}
    token = (await get(setup, P_TXS, **params))["nextPageToken"]
    payload = await get(setup, P_TXS, 400, **{**params, **changed, "pageToken": token})
    assert (payload["code"], payload["detail"]["field"]) == (
        "page_token_mismatch",
        next(iter(changed)),
    )


async def test_a_token_belongs_to_its_path_under_any_of_its_names() -> None:
    setup = indexed(txs=MANY, all_blocks=[s.p_block(1), s.p_block(2)])
    token = (await get(setup, P_TXS, pageSize=2))["nextPageToken"]
    for path in (P_BLOCKS, NETWORK + "/blockchains/x-chain/transactions"):
        assert (await get(setup, path, 400, pageToken=token))["code"] == "invalid_page_token"
    by_id = f"/v1/networks/testnet/blockchains/{id_text(bytes(32))}/transactions"
    assert len(hashes(await get(setup, by_id, pageToken=token))) == 2


async def test_daemons_with_the_same_keys_accept_a_token_and_others_do_not() -> None:
    setup = indexed(txs=MANY)
    token = (await get(setup, P_TXS, pageSize=2))["nextPageToken"]
    assert hashes(await get(replace(setup), P_TXS, pageToken=token))
    newer = replace(setup, key_store=MemoryKeyStore(sealing=(b"\x22" * 32, b"\x11" * 32)))
    assert hashes(await get(newer, P_TXS, pageToken=token))
    stranger = replace(setup, key_store=MemoryKeyStore(sealing=(b"\x22" * 32,)))
    assert (await get(stranger, P_TXS, 400, pageToken=token))["code"] == "invalid_page_token"


async def test_a_token_ends_after_a_day() -> None:
    setup = indexed(txs=MANY)
    token = (await get(setup, P_TXS, pageSize=2))["nextPageToken"]
    setup.clock.now += VALID_S
    assert hashes(await get(setup, P_TXS, pageToken=token))
    setup.clock.now += ROUNDING_S + 1
    assert (await get(setup, P_TXS, 400, pageToken=token))["code"] == "expired_page_token"


async def test_equal_requests_get_equal_tokens_for_five_minutes() -> None:
    setup = indexed(txs=MANY)
    setup.clock.now = s.NOW - s.NOW % ROUNDING_S + 1
    token = (await get(setup, P_TXS))["nextPageToken"]
    setup.clock.now += ROUNDING_S - 2
    assert (await get(setup, P_TXS))["nextPageToken"] == token
    setup.clock.now += 2
    assert (await get(setup, P_TXS))["nextPageToken"] != token


@pytest.mark.parametrize(
    "token", ["x", "é", "A" * 40, "a b", "%00", "=" * 8, "A" * 20_000, "null", "-_" * 30]
)
async def test_malformed_tokens_are_refused(token: str) -> None:
    assert (await get(DataApiSetup(), P_TXS, 400, pageToken=token))["code"] == "invalid_page_token"


VALUES = st.dictionaries(
    st.sampled_from([parameter.name for parameter in TRANSACTIONS.parameters]),
    st.one_of(
        st.integers(0, 2**53),
        st.text(max_size=20),
        st.binary(max_size=32),
        st.lists(st.binary(min_size=21, max_size=21), max_size=64).map(tuple),
        st.lists(st.text(max_size=9), max_size=9).map(tuple),
    ),
    max_size=5,
)
PAGE_QUERIES = st.builds(
    PageQuery, st.just(TRANSACTIONS.name), st.binary(max_size=20), VALUES, st.integers(1, 100)
)
POSITIONS = st.lists(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40)), max_size=4
).map(tuple)


@given(PAGE_QUERIES, POSITIONS, st.integers(0, 2**33))
@settings(max_examples=50)
async def test_an_encoded_token_is_decoded_again(
    query: PageQuery, position: tuple[int | bytes, ...], now: int
) -> None:
    tokens = PageTokens(EphemeralKeys(), Clock(now))
    token = await tokens.encode(query, position)
    payload = await tokens.decode(token, query.operation, query.subject)
    assert (payload.size, payload.position) == (query.size, position)
    assert payload.values == query.values
    check_unchanged(payload, query.values, TRANSACTIONS.parameters)
    assert now + VALID_S <= payload.expires_at < now + VALID_S + ROUNDING_S
    with pytest.raises(ExpiredPageToken):
        await PageTokens(tokens._keys, Clock(payload.expires_at + 1)).decode(
            token, query.operation, query.subject
        )


@given(PAGE_QUERIES, st.data())
@settings(max_examples=50)
async def test_no_byte_of_a_token_can_be_changed(query: PageQuery, data: st.DataObject) -> None:
    tokens = PageTokens(EphemeralKeys(), Clock())
    token = await tokens.encode(query, (1,))
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    forged = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    with pytest.raises(InvalidPageToken):
        await tokens.decode(forged, query.operation, query.subject)


@given(st.text(max_size=200))
@settings(max_examples=100)
async def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidPageToken):
        await PageTokens(EphemeralKeys(), Clock()).decode(text, TRANSACTIONS.name, b"")


async def test_a_request_verifies_its_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, query = (
        PageTokens(MemoryKeyStore(), lambda: 1.0),
        PageQuery("a", b"b", {}, 5, heights={"p": 3}),
    )
    first, second = [await tokens.encode(query, (number,)) for number in (1, 2)]
    calls: list[bytes] = []
    sign = page_tokens._signature

    def count(key: bytes, body: bytes) -> bytes:
        calls.append(body)
        return sign(key, body)

    monkeypatch.setattr(page_tokens, "_signature", count)
    for number, token in enumerate((first, second, first), 1):
        assert await tokens.heights(token) == {"p": 3}
        assert (await tokens.decode(token, "a", b"b")).position == (
            (1,) if token == first else (2,)
        )
        assert len(calls) == number
    for token in ("", first[:-1], second[:5] + first[5:]):
        assert await tokens.heights(token) is None
        with pytest.raises(InvalidPageToken, match="not given out"):
            await tokens.decode(token, "a", b"b")


async def test_an_explicit_default_equals_a_missing_parameter() -> None:
    tokens = PageTokens(EphemeralKeys(), Clock())
    payload = await tokens.decode(await tokens.encode(PageQuery("o", b"", {}, 10), (1,)), "o", b"")
    check_unchanged(payload, {"sortOrder": "desc"}, TRANSACTIONS.parameters)
    with pytest.raises(PageTokenMismatch):
        check_unchanged(payload, {"sortOrder": "asc"}, TRANSACTIONS.parameters)


async def test_a_store_keeps_the_token_key_over_a_restart(tmp_path: Path) -> None:
    setup, token = indexed(txs=MANY), ""
    for _ in range(2):
        async with store_at(sqlite_url(tmp_path), call_timeout_s=PATIENCE_S) as store:
            page = await get(
                replace(setup, key_store=store.api_keys), P_TXS, pageSize=2, pageToken=token
            )
        assert len(hashes(page)) == 2
        token = page["nextPageToken"]
