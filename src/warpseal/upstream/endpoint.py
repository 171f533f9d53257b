"""Endpoints of upstream nodes, and their form for logs: only scheme, host and port.

All other parts of an endpoint may hold a key: userinfo, path, query parameters and headers.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from msgspec import Struct, field
from msgspec.structs import replace
from yarl import URL

from warpseal.warp.ids import ChainID, id_text

_MASK = "***"
_MAX_DISPLAYED = 200
# Shorter values are no keys, and masking them would make a text unreadable.
_MIN_SECRET_LENGTH = 4
_PUBLIC_PARTS = frozenset({"info", "platform", "proposervm", "application/json"})


class NodeEndpoint(Struct, frozen=True):
    """One upstream node.

    base_url: an http or https URL.
    query_parameters, http_headers: parameters and headers that are added to every call.
    """

    base_url: str
    query_parameters: Mapping[str, str] = field(default_factory=dict)
    http_headers: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"NodeEndpoint({self.display})"

    @property
    def display(self) -> str:
        """Scheme, host and port, fit for a log line (never for a response to a caller)."""
        try:
            url = URL(self.base_url)
            host = url.host or "?"
            if ":" in host:
                host = f"[{host}]"
            return f"{url.scheme}://{host}:{url.port}"
        except ValueError:
            return "?"

    def url(self, path: str) -> URL:
        """Return the address of `path` below the base URL; "" is the base URL itself.

        Raises ValueError.
        """
        url = URL(self.base_url)
        if path:
            whole_path = url.raw_path.rstrip("/") + path
            url = url.with_path(whole_path, encoded=True, keep_query=True)
        if self.query_parameters:
            url = url.update_query(dict(self.query_parameters))
        return url

    def below(self, path: str, scheme: str | None = None) -> NodeEndpoint:
        """Return the endpoint of a path below the base URL, with the same keys.

        scheme: scheme of the endpoint in place of that of the base URL. Raises ValueError.
        """
        url = NodeEndpoint(self.base_url).url(path)
        if scheme is not None:
            url = url.with_scheme(scheme)
        return replace(self, base_url=str(url))

    def scrub(self, text: str) -> str:
        """Return a node's message without its host and possible keys, cut to 200 characters."""
        for secret in sorted(set(self._secrets()), key=len, reverse=True):
            text = text.replace(secret, _MASK)
        return text[:_MAX_DISPLAYED]

    def _secrets(self) -> Iterator[str]:
        for part in self._hidden_parts():
            if part.lower() not in _PUBLIC_PARTS:
                for spelling in (part, quote(part, safe=""), quote_plus(part)):
                    if len(spelling) >= _MIN_SECRET_LENGTH:
                        yield spelling

    def _hidden_parts(self) -> Iterator[str]:
        for value in (*self.query_parameters.values(), *self.http_headers.values()):
            yield from (value, *value.split())
        try:
            url = URL(self.base_url)
        except ValueError:
            yield self.base_url
            return
        user, password = url.user or "", url.password or ""
        yield from (user, password, b64encode(f"{user}:{password}".encode()).decode())
        yield from (value for _, value in parse_qsl(url.raw_query_string))
        for part in url.raw_path.split("/"):
            yield from (part, unquote(part))
        host = url.host or ""
        if "." in host or ":" in host:
            yield from (host, f"[{host}]")
        else:
            # A name without a dot may be any word of a message, unless its port follows.
            yield f"{host}:{url.port}"


class TraceMode(StrEnum):
    """The nodes from which traces are read.

    AUTO: each node that has traces.
    """

    AUTO = "auto"
    OFF = "off"


class MetadataMode(StrEnum):
    """The tokens whose NFT metadata is fetched.

    ASKED: tokens that pages show, new mints, and tokens on request.
    """

    ASKED = "asked"
    ALL = "all"
    OFF = "off"


class EvmIndexing(Struct, frozen=True):
    """The settings of the index of one EVM chain.

    first_height: height of the first block that is indexed.
    calls_per_s: calls to one node, batch entries counted; None stands for 200, and for no limit at
        private addresses.
    has_holders: true adds ERC-20 balances.
    has_icm: true adds messages of ICM.
    icm_messengers, icm_registries: addresses of contracts besides the standard ones.
    """

    first_height: int = 0
    traces: TraceMode = TraceMode.AUTO
    metadata: MetadataMode = MetadataMode.ASKED
    calls_per_s: int | None = None
    has_holders: bool = False
    has_icm: bool = True
    icm_messengers: tuple[str, ...] = ()
    icm_registries: tuple[str, ...] = ()


class L1sNode(Struct, frozen=True):
    """The node of `index-l1s-at`.

    has_holders: true indexes its chains with ERC-20 balances.
    """

    endpoint: NodeEndpoint
    has_holders: bool = False


class NativeToken(Struct, frozen=True):
    """The token in which fees of a chain are paid. None stands for a field not configured."""

    name: str | None = None
    symbol: str | None = None
    decimals: int | None = None
    logo_uri: str | None = None
    description: str | None = None


class EvmChainInfo(Struct, frozen=True):
    """Configured fields of a chain for endpoint 9. None stands for a field not configured.

    multicall: address of the chain's Multicall contract.
    """

    chain_name: str | None = None
    description: str | None = None
    platform_chain_id: str | None = None
    subnet_id: str | None = None
    vm_id: str | None = None
    explorer_url: str | None = None
    rpc_url: str | None = None
    ws_url: str | None = None
    chain_logo_uri: str | None = None
    is_testnet: bool | None = None
    private: bool | None = None
    multicall: str | None = None
    network_token: NativeToken = NativeToken()


class EvmChain(Struct, frozen=True):
    """One entry of `evm-chains`.

    rpc: complete http(s) URLs, at least one, in the order of preference.
    ws: complete ws(s) URLs.
    upgrade_file: the chain's upgrade.json.
    deny_methods: RPC methods that are denied; a trailing * stands for any ending.
    index: settings of the index; None if the chain is not indexed.
    index_url: place of its index; "" stands for that of `index-url`.
    index_read_urls: replicas of the server at `index_url`.
    """

    blockchain_id: ChainID
    rpc: tuple[NodeEndpoint, ...]
    ws: tuple[NodeEndpoint, ...] = ()
    upgrade_file: Path | None = None
    deny_methods: tuple[str, ...] = ()
    index: EvmIndexing | None = None
    index_url: str = ""
    index_read_urls: tuple[str, ...] = ()
    info: EvmChainInfo = EvmChainInfo()

    def __repr__(self) -> str:
        return f"EvmChain({id_text(self.blockchain_id)})"
