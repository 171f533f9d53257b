"""Settings of NFT metadata: gateways, and the servers that may be at private addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace
from yarl import URL

from warpseal.chains.evm.nft_document import MAX_DOCUMENT_BYTES
from warpseal.chains.evm.token_uri import Gateways
from warpseal.runtime.settings import DAY_S, HOUR_S, Group, Settings, json_object, list_of, setting, url
from warpseal.upstream.address_policy import ExemptServer, allowed_host, display_hosts

DEFAULT_GATEWAYS: Final = Gateways(("https://ipfs.io", "https://dweb.link"), ("https://arweave.net",))


def gateway_url(value: Any, path: str) -> str:
    """Accept the base URL of a gateway; the path /ipfs, which is appended anyway, may be part of it."""
    return url("http", "https")(value, path).removesuffix("/ipfs")


def parse_gateways(value: Any, path: str) -> Gateways:
    """Accept an object with the base URLs of both kinds, or of one: the other keeps its defaults."""
    parsers = {"ipfs": list_of(gateway_url), "arweave": list_of(url("http", "https"))}
    return replace(DEFAULT_GATEWAYS, **json_object(value, path, parsers, required=set()))


def display_origins(gateways: Gateways) -> Mapping[str, tuple[str, ...]]:
    """Return scheme, host and port of gateways: a path may hold a key."""
    return {kind: tuple(str(URL(base).origin()) for base in urls) for kind, urls in asdict(gateways).items()}


class MetadataSettings(Settings, frozen=True):
    """Durations in seconds.

    allowed_hosts: host and port, port None for any. timeout_s: of one document with its redirects. max_requests: at
    a time in one process, of which reindex_requests are for reindex requests alone. requests_per_host: at a time,
    and as many for reindex requests. retry_delays_s: delays after failed attempts; after the last one only a page
    or a request leads to an attempt. reindex_s: time in which a reindex request has an outcome. max_queued,
    max_queued_per_contract: documents that wait, per chain and reason. idle_s, crowded_s: intervals at which the
    index is read for work, the second one while a contract has its share of the queue. full_queue_s: interval at
    which documents of other hosts get a chance while the queue is full; postponed_s: time for which those that they
    displace are left out.
    """

    gateways: Gateways = setting(
        DEFAULT_GATEWAYS,
        "metadata-gateways",
        parse_gateways,
        "gateways for NFT metadata, in order: /ipfs/CID is appended to those of ipfs, /ID to those of arweave",
        "JSON",
        group=Group.EVM,
        display=display_origins,
    )
    allowed_hosts: tuple[tuple[str, int | None], ...] = setting(
        (),
        "metadata-allowed-hosts",
        list_of(allowed_host),
        "servers of NFT metadata that may be at private addresses and other ports: host, or host:port",
        "HOSTS",
        group=Group.EVM,
        display=display_hosts,
    )
    timeout_s: float = 15.0
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    max_redirects: int = 3
    max_requests: int = 16
    reindex_requests: int = 4
    requests_per_host: int = 2
    retry_delays_s: tuple[float, ...] = (60.0, 600.0, HOUR_S, 6 * HOUR_S, DAY_S)
    reindex_s: float = 17.0
    max_queued: int = 1_024
    max_queued_per_contract: int = 256
    idle_s: float = 15.0
    crowded_s: float = 0.2
    full_queue_s: float = 1.0
    postponed_s: float = 600.0

    @property
    def exempt_servers(self) -> frozenset[ExemptServer]:
        """The servers that are configured: they are reached at any address, gateways below their own paths."""
        bases = [base + path for base in self.gateways.ipfs for path in ("/ipfs/", "/ipns/")]
        gateways = (URL(base) for base in (*bases, *(f"{base}/" for base in self.gateways.arweave)))
        return frozenset(
            (
                *(ExemptServer(host, port, "/") for host, port in self.allowed_hosts),
                *(ExemptServer(base.raw_host or "", base.port, base.raw_path) for base in gateways),
            )
        )
