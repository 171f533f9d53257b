"""Documents from hostile servers, with real HTTP and DNS servers: only public addresses, bounded
memory and time.

The loopback address 127.0.0.2 counts as public in these tests, and 127.0.0.1 as private.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from yarl import URL

from tests.eventually import finish, until
from tests.indexer.evm.metadata_servers import (
    PRIVATE,
    PUBLIC,
    DnsServer,
    HttpServer,
    Serve,
    dns_server,
    http_response,
    http_server,
    redirect_to,
    respond_with,
    respond_without_end,
    twin_servers,
)
from tests.peers.fixtures import self_signed
from warpseal.chains.evm.token_uri import Gateways
from warpseal.indexer.evm.fetcher import (
    DocumentFetcher,
    FetchedDocument,
    FetchFailed,
    FetchLane,
    open_fetcher,
)
from warpseal.indexer.settings import MetadataSettings, gateway_url
from warpseal.resources.evm import MetadataStatus
from warpseal.runtime.settings import InvalidSetting
from warpseal.upstream.address_policy import (
    AddressPolicy,
    IpAddress,
    allowed_host,
    is_global_address,
)

UNREACHABLE = MetadataStatus.UNREACHABLE_TOKEN_URI
THROTTLED = MetadataStatus.THROTTLED_TOKEN_URI
TOO_LARGE = MetadataStatus.METADATA_CONTENT_TOO_LARGE
SETTINGS = MetadataSettings(gateways=Gateways())
NAMES = {"public.test": [[PUBLIC]], "private.test": [[PRIVATE]], "mixed.test": [[PUBLIC, PRIVATE]]}


def counts_as_public(address: IpAddress) -> bool:
    return address == ip_address(PUBLIC)


@dataclass
class FetcherSetup:
    """A public and a private server at the same port, and a fetcher that may reach that port."""

    public: HttpServer
    private: HttpServer
    dns: DnsServer
    fetcher: DocumentFetcher

    def url(self, path: str = "/1.json", name: str = "public.test") -> URL:
        return URL(f"http://{name}:{self.public.port}{path}")

    async def fetch(self, url: URL | None = None, timeout_s: float = 60.0) -> FetchedDocument:
        return await finish(self.fetcher.fetch(url or self.url(), FetchLane.BACKGROUND, timeout_s))

    async def failure(
        self, url: URL | None = None, timeout_s: float = 60.0
    ) -> tuple[MetadataStatus, str]:
        with pytest.raises(FetchFailed) as raised:
            await self.fetch(url, timeout_s)
        return raised.value.status, str(raised.value)


@asynccontextmanager
async def open_setup(
    serve: Serve,
    names: Mapping[str, Sequence[list[str]]] = NAMES,
    settings: MetadataSettings = SETTINGS,
) -> AsyncIterator[FetcherSetup]:
    async with (
        twin_servers(serve, respond_with(http_response(b"secret"))) as (public, private),
        dns_server(names) as (dns, resolver),
    ):
        policy = AddressPolicy(settings.exempt_servers, frozenset((public.port,)), counts_as_public)
        async with open_fetcher(settings, policy, resolver) as fetcher:
            yield FetcherSetup(public, private, dns, fetcher)


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "1.1.1.1",
        "2606:4700:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_public_addresses_are_global(text: str) -> None:
    assert is_global_address(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.2.1",
        "192.168.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "fc00::1",
        "fd00::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
        "2001::1",
        "4000::1",
        "::ffff:127.0.0.1",
        "::ffff:a9fe:a9fe",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2002:c0a8:1::1",
    ],
)
def test_private_mapped_6to4_and_nat64_addresses_are_not(text: str) -> None:
    assert not is_global_address(ip_address(text))


async def test_a_document_is_read_with_its_media_type() -> None:
    reply = http_response(b'{"a":1}', "200 OK", "Content-Type: Application/JSON; charset=utf-8")
    async with open_setup(respond_with(reply)) as setup:
        assert await setup.fetch() == FetchedDocument("application/json", b'{"a":1}')


async def test_a_name_of_a_private_address_is_refused_without_a_connection() -> None:
    async with open_setup(respond_with(http_response())) as setup:
        for name in ("private.test", "mixed.test"):
            status, detail = await setup.failure(setup.url(name=name))
            assert (status, "refused" in detail) == (UNREACHABLE, True)
        assert (setup.private.connections, setup.public.connections) == (0, 0)


async def test_an_unknown_name_is_unreachable() -> None:
    async with open_setup(respond_with(http_response())) as setup:
        assert (await setup.failure(setup.url(name="unknown.test")))[0] is UNREACHABLE
        assert (await setup.failure(setup.url(name="localhost")))[0] is UNREACHABLE
        assert setup.private.connections == 0


async def test_after_rebinding_the_checked_address_is_connected_to() -> None:
    names = {"rebind.test": [[PUBLIC], [PRIVATE]]}
    async with open_setup(respond_with(http_response(b"public")), names) as setup:
        url = setup.url(name="rebind.test")
        assert (await setup.fetch(url)).content == b"public"
        assert setup.dns.queries["rebind.test", "A"] == 1
        policy = AddressPolicy(frozenset(), frozenset((setup.public.port,)), counts_as_public)
        # Another fetcher has no name in its cache, so that the second reply counts.
        async with dns_server({"rebind.test": [[PRIVATE], [PUBLIC]]}) as (dns, resolver):
            async with open_fetcher(SETTINGS, policy, resolver) as fetcher:
                with pytest.raises(FetchFailed, match=r"refused: address 127\.0\.0\.1"):
                    await fetcher.fetch(url, FetchLane.BACKGROUND, 60.0)
            assert dns.queries["rebind.test", "A"] == 1
        assert setup.private.connections == 0


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://[::1]:{port}/",
        "http://0.0.0.0:{port}/",
        "http://localhost:{port}/",
        "http://localhost.:{port}/",
        "http://127.0.0.1.:{port}/",
        "http://127.1:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.0.0.1:{port}/",
        "http://0177.0.0.1:{port}/",
        "http://[64:ff9b::7f00:1]:{port}/",
        "http://[2002:7f00:1::]:{port}/",
        "http://[fe80::1%25lo]:{port}/",
        "http://[2606:4700::1111%25lo]:{port}/",
        "http://[v1.a:b.localhost]:{port}/",
        "http://[localhost:80]:{port}/",
        "http://local%68ost:{port}/",
        "http://169.254.169.254/latest/meta-data",
    ],
)
async def test_private_addresses_in_the_url_are_refused(text: str) -> None:
    async with (
        http_server(respond_with(http_response()), PRIVATE) as inside,
        dns_server({}) as (_, resolver),
    ):
        policy = AddressPolicy(ports=frozenset((80, inside.port)))
        async with open_fetcher(SETTINGS, policy, resolver) as fetcher:
            with pytest.raises(FetchFailed) as raised:
                await finish(
                    fetcher.fetch(URL(text.format(port=inside.port)), FetchLane.BACKGROUND, 60.0)
                )
        assert raised.value.status is UNREACHABLE
        assert inside.connections == 0


@pytest.mark.parametrize(
    "path",
    [
        "/ipfs/Qm/../../../x",
        "/ipfs/Qm/%2e%2e/%2E%2E/x",
        "/ipfs/Qm/..%2f..%2f..%2fx",
        "/ipfs/Qm/%252e%252e%252f%252e%252e%252fx",
        "/ipfs/Qm/..%5c..%5cx",
        "/x",
        "/api/v0/id",
        "/ipfs",
    ],
)
async def test_a_gateway_is_reached_only_below_its_own_path(path: str) -> None:
    async with (
        http_server(respond_with(http_response()), PRIVATE) as gateway,
        dns_server({}) as (_, resolver),
    ):
        settings = replace(SETTINGS, gateways=Gateways((f"http://{PRIVATE}:{gateway.port}",)))
        policy = AddressPolicy(settings.exempt_servers)
        async with open_fetcher(settings, policy, resolver) as fetcher:
            base = f"http://{PRIVATE}:{gateway.port}"
            with pytest.raises(FetchFailed, match="refused: a path outside"):
                await finish(fetcher.fetch(URL(base + path), FetchLane.BACKGROUND, 60.0))
            assert gateway.connections == 0
            await finish(
                fetcher.fetch(URL(base + "/ipfs/Qm/1.json?a=.."), FetchLane.BACKGROUND, 60.0)
            )
            gateway.serve = respond_with(redirect_to("/x"))
            with pytest.raises(FetchFailed, match="refused: a path outside"):
                await finish(
                    fetcher.fetch(URL(base + "/ipfs/Qm/2.json"), FetchLane.BACKGROUND, 60.0)
                )


@pytest.mark.parametrize(
    "text",
    [
        "https://8.8.8.8:8443/",
        "http://8.8.8.8:22/",
        "http://user@8.8.8.8/",
        "http://user:key@8.8.8.8/",
    ],
)
async def test_other_ports_and_userinfo_are_refused(text: str) -> None:
    async with (
        dns_server({}) as (_, resolver),
        open_fetcher(SETTINGS, dns_resolver=resolver) as fetcher,
    ):
        with pytest.raises(FetchFailed, match="refused"):
            await finish(fetcher.fetch(URL(text), FetchLane.BACKGROUND, 60.0))


async def test_three_redirects_are_followed_and_no_fourth() -> None:
    hops = [redirect_to("/2"), redirect_to("3"), redirect_to("//public.test:{port}/4")]
    async with open_setup(respond_with(http_response())) as setup:
        last = hops[-1].replace(b"{port}", str(setup.public.port).encode())
        setup.public.serve = respond_with(*hops[:-1], last, http_response(b"end"))
        assert (await setup.fetch()).content == b"end"
        assert setup.public.paths == ["/1.json", "/2", "/3", "/4"]
    async with open_setup(respond_with(redirect_to("/again"))) as setup:
        assert await setup.failure() == (UNREACHABLE, "too many redirects")
        assert setup.public.connections == 4


@pytest.mark.parametrize(
    "location",
    [
        "http://private.test:{port}/",
        "http://127.0.0.1:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "file:///etc/passwd",
        "http://u:p@public.test:{port}/",
        "http://public.test:1/",
        "gopher://public.test/",
        "http://[",
        "http://[::1]@/x",
        "//[::1]@/x",
        "",
    ],
)
async def test_each_redirect_is_checked_like_the_first_url(location: str) -> None:
    async with open_setup(respond_with(http_response())) as setup:
        setup.public.serve = respond_with(
            redirect_to(location.format(port=setup.public.port)), redirect_to("http://[")
        )
        assert (await setup.failure())[0] is UNREACHABLE
        assert setup.private.connections == 0


@pytest.mark.parametrize(
    ("http_status", "status"),
    [
        ("429 Too Many Requests", THROTTLED),
        ("404 Not Found", UNREACHABLE),
        ("500 Oops", UNREACHABLE),
        ("304 Not Modified", UNREACHABLE),
    ],
)
async def test_an_http_error_is_unreachable_or_throttled(
    http_status: str, status: MetadataStatus
) -> None:
    async with open_setup(respond_with(http_response(b"{}", http_status))) as setup:
        assert (await setup.failure())[0] is status


@pytest.mark.parametrize(
    ("status", "header", "wait_s"),
    [
        ("429 Too Many Requests", "Retry-After: 7200", 7_200.0),
        ("503 Service Unavailable", "Retry-After: Fri, 31 Dec 2100 23:59:59 GMT", 86_400.0),
        ("429 Too Many Requests", "Retry-After: soon", None),
        ("404 Not Found", "Retry-After: 7200", None),
    ],
)
async def test_the_wait_that_a_server_asks_for_is_read(
    status: str, header: str, wait_s: float | None
) -> None:
    async with open_setup(respond_with(http_response(b"{}", status, header))) as setup:
        with pytest.raises(FetchFailed) as raised:
            await setup.fetch()
    assert raised.value.retry_after_s == wait_s


async def test_an_image_is_not_read() -> None:
    start = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with open_setup(respond_without_end(start, b"4\r\nabcd\r\n", 0.01)) as setup:
        assert await setup.fetch() == FetchedDocument("image/png", b"")


def respond_with_bomb(wbits: int, encoding: str) -> Serve:
    """Answer with 100 MB of zeros; they are compressed only when they are asked for."""

    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        compressor = zlib.compressobj(9, wbits=wbits)
        bomb = (
            b"".join(compressor.compress(b"\0" * 1_000_000) for _ in range(100))
            + compressor.flush()
        )
        writer.write(http_response(bomb, "200 OK", f"Content-Encoding: {encoding}"))

    return serve


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
KILOBYTE = b"400\r\n" + b"a" * 1024 + b"\r\n"
EMPTY_BLOCKS = b"3fc\r\n" + b"\0\0\0\xff\xff" * 204 + b"\r\n"


@pytest.mark.parametrize(
    "serve",
    [
        respond_with_bomb(31, "gzip"),
        respond_with_bomb(15, "deflate"),
        respond_with(http_response(b"a" * (SETTINGS.max_document_bytes + 1))),
        respond_with(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{"),
        respond_without_end(CHUNKED + b"\r\n", KILOBYTE),
        respond_without_end(b"HTTP/1.0 200 OK\r\n\r\n", b"a" * 1024),
        respond_without_end(
            CHUNKED + b"Content-Encoding: deflate\r\n\r\n2\r\n\x78\x9c\r\n", EMPTY_BLOCKS
        ),
    ],
    ids=[
        "gzip bomb",
        "deflate bomb",
        "1 MiB + 1",
        "declared",
        "chunks",
        "no length",
        "blocks that inflate to nothing",
    ],
)
async def test_a_document_over_a_mebibyte_is_too_large_in_bounded_memory(serve: Serve) -> None:
    async with open_setup(serve) as setup:
        tracemalloc.start()
        try:
            assert (await setup.failure())[0] is TOO_LARGE
            assert tracemalloc.get_traced_memory()[1] < 8 * SETTINGS.max_document_bytes
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "serve",
    [
        respond_without_end(b"HTTP/1.1 200 ", b"a" * 1024),
        respond_without_end(b"HTTP/1.1 200 OK\r\nA: ", b"a" * 1024),
        respond_without_end(b"HTTP/1.1 200 OK\r\n", b"A: a\r\n" * 100),
        respond_without_end(CHUNKED + b"\r\n1;", b"a" * 1024),
        respond_without_end(CHUNKED + b"\r\n0\r\n", b"A: a\r\n" * 100),
        respond_without_end(CHUNKED + b"\r\n", b"1\r\na\r\n" * 100),
    ],
    ids=["reason", "header", "headers", "chunk extension", "trailers", "small chunks"],
)
async def test_a_flood_outside_of_the_body_ends_in_bounded_memory(serve: Serve) -> None:
    async with open_setup(serve) as setup:
        tracemalloc.start()
        try:
            assert (await setup.failure(timeout_s=1.0))[0] in (
                UNREACHABLE,
                TOO_LARGE,
            )
            assert tracemalloc.get_traced_memory()[1] < 8 * SETTINGS.max_document_bytes
        finally:
            tracemalloc.stop()


async def test_a_compressed_document_is_decompressed() -> None:
    content = b"a" * SETTINGS.max_document_bytes
    for encoding, body in (
        ("gzip", gzip.compress(content)),
        ("deflate", zlib.compress(content)),
        ("x-gzip", b""),
    ):
        packed = body or gzip.compress(content)
        async with open_setup(
            respond_with(http_response(packed, "200 OK", f"Content-Encoding: {encoding}"))
        ) as setup:
            assert (await setup.fetch()).content == content


@pytest.mark.parametrize(
    "names", [("UTF-8",), ("none",), ("",), ("utf-8", "", "none"), ("identity",), ("utf-8", "gzip")]
)
async def test_a_content_encoding_that_names_no_compression_is_none(names: tuple[str, ...]) -> None:
    body = gzip.compress(b"{}") if "gzip" in names else b"{}"
    headers = "\r\n".join([f"Content-Encoding: {name}" for name in names])
    async with open_setup(respond_with(http_response(body, "200 OK", headers))) as setup:
        assert (await setup.fetch()).content == b"{}"


@pytest.mark.parametrize(
    "reply",
    [
        http_response(gzip.compress(b"{}" * 100)[:-9], "200 OK", "Content-Encoding: gzip"),
        http_response(b"no gzip", "200 OK", "Content-Encoding: gzip"),
        http_response(b"{}", "200 OK", "Content-Encoding: br"),
        http_response(
            gzip.compress(gzip.compress(b"{}")), "200 OK", "Content-Encoding: gzip, gzip"
        ),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"",
    ],
    ids=["cut off", "not gzip", "br", "twice", "short body", "long header", "not HTTP", "nothing"],
)
async def test_a_broken_reply_is_unreachable(reply: bytes) -> None:
    async with open_setup(respond_with(reply)) as setup:
        assert (await setup.failure())[0] is UNREACHABLE


@pytest.mark.parametrize(
    "serve",
    [
        respond_without_end(CHUNKED + b"\r\n", b"1\r\na\r\n", 0.005),
        respond_without_end(b"HTTP/1.1 200 OK\r\n", b"A: a\r\n", 0.005),
        respond_without_end(b"", b"", 0.05),
        respond_without_end(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.005),
    ],
    ids=["body", "headers", "silence", "continue"],
)
async def test_a_server_that_drips_or_is_silent_is_unreachable_in_time(serve: Serve) -> None:
    async with open_setup(serve) as setup:
        assert (await setup.failure(timeout_s=0.1))[0] is UNREACHABLE


async def test_each_redirect_has_the_time_that_the_requests_before_it_left() -> None:
    async with open_setup(
        respond_with(redirect_to("/2"), redirect_to("/3"), http_response())
    ) as setup:
        request, timeouts = setup.fetcher._request, list[float]()

        async def note_timeout(url: URL, timeout_s: float) -> FetchedDocument | URL:
            timeouts.append(timeout_s)
            return await request(url, timeout_s)

        setup.fetcher._request = note_timeout  # type: ignore[method-assign]
        await setup.fetch(timeout_s=60.0)
    assert timeouts[0] == 60.0
    assert timeouts[0] > timeouts[1] > timeouts[2]


async def test_a_dns_server_that_does_not_answer_makes_a_host_unreachable_in_time() -> None:
    async with open_setup(respond_with(http_response()), {"silent.test": []}) as setup:
        assert (await setup.failure(setup.url(name="silent.test"), timeout_s=0.1))[0] is UNREACHABLE


async def test_a_server_with_an_untrusted_certificate_gets_no_request(tmp_path: Path) -> None:
    pem, key = self_signed(ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "server.pem").write_bytes(pem + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem")
    async with (
        http_server(respond_with(http_response()), tls=tls) as server,
        dns_server(NAMES) as (_, resolver),
    ):
        policy = AddressPolicy(ports=frozenset((server.port,)), is_allowed=counts_as_public)
        async with open_fetcher(SETTINGS, policy, resolver) as fetcher:
            with pytest.raises(FetchFailed, match="certificate error"):
                await finish(
                    fetcher.fetch(
                        URL(f"https://public.test:{server.port}/"), FetchLane.BACKGROUND, 60.0
                    )
                )
        assert server.heads == []


async def test_neither_cookies_nor_proxies_of_the_environment_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_setup(respond_with(http_response(b"{}", "200 OK", "Set-Cookie: a=b"))) as setup:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{setup.private.port}")
        await setup.fetch()
        await setup.fetch()
        assert setup.private.connections == 0
        assert not any(
            "cookie" in head.lower() or "referer" in head.lower() for head in setup.public.heads
        )


async def test_configured_gateways_and_allowed_hosts_may_be_at_any_address_and_port() -> None:
    async with http_server(respond_with(http_response(b"inside")), PRIVATE) as inside:
        exempt = replace(
            SETTINGS,
            gateways=Gateways(
                (gateway_url(f"http://127.0.0.1:{inside.port}/ipfs/", "g"),),
                SETTINGS.gateways.arweave,
            ),
            allowed_hosts=(allowed_host("LocalHost", "h"),),
        )
        async with (
            dns_server({}) as (dns, resolver),
            open_fetcher(exempt, dns_resolver=resolver) as fetcher,
        ):
            for name in ("127.0.0.1", "localhost"):
                url = URL(f"http://{name}:{inside.port}/ipfs/x")
                assert (await fetcher.fetch(url, FetchLane.BACKGROUND, 60.0)).content == b"inside"
            with pytest.raises(FetchFailed, match="refused: port"):
                await fetcher.fetch(
                    URL(f"http://127.0.0.1:{inside.port + 1}/x"), FetchLane.BACKGROUND, 60.0
                )
            assert not dns.queries


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a.test", ("a.test", None)),
        ("A.test:8080", ("a.test", 8080)),
        ("10.0.0.1:80", ("10.0.0.1", 80)),
        ("[::1]:8080", ("::1", 8080)),
        ("::1", ("::1", None)),
        ("[::1]", ("::1", None)),
    ],
)
def test_allowed_hosts_have_a_port_or_none(text: str, parsed: tuple[str, int | None]) -> None:
    assert allowed_host(text, "metadata-allowed-hosts[0]") == parsed


@pytest.mark.parametrize(
    "text", ["", "http://a.test", "a.test/x", "a.test:", "a.test:99999", "u@a.test", "[x"]
)
def test_a_malformed_allowed_host_is_named(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"metadata-allowed-hosts\[0\]"):
        allowed_host(text, "metadata-allowed-hosts[0]")


async def test_two_requests_run_per_host_and_lane_and_sixteen_in_all() -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    released = asyncio.Event()

    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        name = head.split("Host: ", 1)[1].split(":", 1)[0]
        running[name] = running.get(name, 0) + 1
        most[name] = max(most.get(name, 0), running[name])
        most["all"] = max(most.get("all", 0), sum(running.values()))
        await released.wait()
        running[name] -= 1
        writer.write(http_response())

    names = {f"{number}.test": [[PUBLIC]] for number in range(20)}
    async with open_setup(serve, names) as setup:

        def fetch(name: str, lane: FetchLane) -> asyncio.Task[FetchedDocument]:
            return asyncio.create_task(setup.fetcher.fetch(setup.url(name=name), lane, 60.0))

        tasks = [fetch(name, FetchLane.BACKGROUND) for name in names for _ in range(4)]
        await until(lambda: sum(running.values()) == 12)
        tasks += [fetch("0.test", FetchLane.REINDEX) for _ in range(4)]
        tasks += [fetch(f"{number}.test", FetchLane.REINDEX) for number in range(1, 8)]
        await until(lambda: sum(running.values()) == 16)
        assert running["0.test"] == 4
        released.set()
        await finish(asyncio.gather(*tasks))
        assert len(setup.public.heads) == len(tasks)
        assert most.pop("all") == 16
        assert max(most.values()) <= 4
