"""Clients behind trusted proxies: whose headers count, and which address in them."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from tests.api.fixtures import SETTINGS, exchange, serving
from warpseal.api.http.clients import Client, TrustedProxies, client_of, proxy_network
from warpseal.api.http.middleware import client_address, is_from_this_machine
from warpseal.api.http.settings import ApiSettings
from warpseal.runtime.settings import InvalidSetting

EDGE, INNER, STRANGER = "173.245.48.9", "10.0.0.7", "198.51.100.4"
PROXIES = TrustedProxies(map(ip_network, ("173.245.48.0/20", "10.0.0.0/8", "2001:db8:ffff::/48")))


def scope(peer: str, *headers: tuple[str, str]) -> Scope:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": "http", "client": (peer, 1234), "headers": raw}


def client_behind(request: Scope) -> Client:
    PROXIES.set_client(request)
    return client_of(request)


def forwarded(peer: str, *values: str) -> str:
    return client_behind(scope(peer, *(("X-Forwarded-For", value) for value in values))).address


def test_headers_of_a_stranger_do_not_count() -> None:
    headers = (("X-Forwarded-For", "1.1.1.1"), ("CF-IPCountry", "FR"))
    assert client_behind(scope(STRANGER, *headers)) == Client(STRANGER, "XX")
    assert client_behind(scope(EDGE, *headers)) == Client("1.1.1.1", "FR")


@pytest.mark.parametrize(
    ("values", "address"),
    [
        (["203.0.113.9"], "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        (["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9, 10.0.0.3"], "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9", "10.0.0.3, 10.0.0.4"], "203.0.113.9"),
        (["10.0.0.3 , 10.0.0.4"], "10.0.0.3"),
        (["203.0.113.9:51234"], "203.0.113.9"),
        (["[2001:db8::9]:443"], "2001:db8::9"),
        (["[2001:db8::9]"], "2001:db8::9"),
        (["2001:DB8:0::9"], "2001:db8::9"),
        (["203.0.113.9, 2001:db8:ffff::1"], "203.0.113.9"),
        (["::ffff:203.0.113.9"], "203.0.113.9"),
        (["203.0.113.9, ::ffff:10.0.0.3"], "203.0.113.9"),
        (["203.0.113.9,, ,"], "203.0.113.9"),
        (["  203.0.113.9\t"], "203.0.113.9"),
        (["203.0.113.9, unknown"], INNER),
        (["203.0.113.9, unknown, 10.0.0.3"], "10.0.0.3"),
        (["203.0.113.9; 1.1.1.1"], INNER),
        (["203.0.113.09"], INNER),
        (["203.0.113.9:443:1"], INNER),
        (["[203.0.113.9"], INNER),
        (["fe80::1%eth0"], INNER),
        (["localhost"], INNER),
        (["\xe9\xff"], INNER),
        (["1" * 100_000], INNER),
        ([""], INNER),
        ([], INNER),
    ],
)
def test_the_last_address_that_is_no_proxy_is_the_client(values: list[str], address: str) -> None:
    assert forwarded(INNER, *values) == address


def test_a_long_chain_of_trusted_addresses_is_not_followed_to_its_end() -> None:
    assert forwarded(
        INNER, "203.0.113.9, " + ", ".join(f"10.0.{number % 256}.1" for number in range(5_000))
    ) != ("203.0.113.9")


@pytest.mark.parametrize(
    ("values", "country"),
    [
        (["FR"], "FR"),
        (["fr "], "FR"),
        (["T1"], "T1"),
        (["FR", "DE"], "DE"),
        (["FR", "FRA"], "XX"),
        (["\xc9\xc9"], "XX"),
        (["F1"], "XX"),
        ([], "XX"),
    ],
)
def test_the_country_is_that_of_the_last_header(values: list[str], country: str) -> None:
    assert client_behind(scope(EDGE, *(("CF-IPCountry", value) for value in values))) == Client(
        EDGE, country
    )


@given(st.lists(st.text(st.characters(max_codepoint=255), max_size=90), max_size=5))
def test_any_header_yields_an_address_of_bounded_length(values: list[str]) -> None:
    assert len(forwarded(INNER, *values)) <= 39


def test_networks_of_proxies_are_checked() -> None:
    assert proxy_network("10.0.0.1", "trusted-proxies") == ip_network("10.0.0.1/32")
    for value in ("0.0.0.0/0", "::/0", "10.0.0.1/8", "proxy.example", 7):
        with pytest.raises(InvalidSetting, match="trusted-proxies"):
            proxy_network(value, "trusted-proxies")


async def show_client(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with what the app sees of its client."""
    client = client_of(scope)
    assert client.address == client_address(scope)
    body = f"{client.address} {client.country} {is_from_this_machine(scope)}".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def seen(settings: ApiSettings, *lines: bytes) -> bytes:
    """Return the body, or the first line of a refusal."""
    raw = b"\r\n".join((b"GET / HTTP/1.1", b"Host: x", b"Connection: close", *lines)) + b"\r\n\r\n"
    async with serving(show_client, settings) as server:
        head, _, body = (await exchange(server.port, raw)).partition(b"\r\n\r\n")
    return body if head.startswith(b"HTTP/1.1 200") else head.partition(b"\r\n")[0]


def trusting() -> ApiSettings:
    return replace(SETTINGS, trusted_proxies=(ip_network("127.0.0.0/8"),))


async def test_a_server_without_trusted_proxies_sees_its_connections() -> None:
    assert (
        await seen(SETTINGS, b"X-Forwarded-For: 1.1.1.1", b"CF-IPCountry: FR")
        == b"127.0.0.1 XX False"
    )
    assert await seen(SETTINGS) == b"127.0.0.1 XX True"


async def test_a_server_behind_a_trusted_proxy_sees_the_clients_of_the_proxy() -> None:
    lines = (b"X-Forwarded-For: 127.0.0.1, 8.8.8.8", b"CF-IPCountry: US")
    assert await seen(trusting(), *lines) == b"8.8.8.8 US False"
    assert await seen(trusting()) == b"127.0.0.1 XX True"


async def test_a_forwarded_address_of_this_machine_gives_no_rights_of_this_machine() -> None:
    assert await seen(trusting(), b"X-Forwarded-For: 127.0.0.1") == b"127.0.0.1 XX False"


async def test_a_header_with_a_folded_line_never_names_the_first_address() -> None:
    assert await seen(trusting(), b"X-Forwarded-For: 1.1.1.1,", b" 8.8.8.8") in (
        b"8.8.8.8 XX False",
        b"HTTP/1.1 400 Bad Request",
    )
