"""Settings of calls to upstream nodes, and the parsers of their endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from warpseal.runtime.settings import (
    HOUR_S,
    MEBIBYTE,
    REQUIRED,
    Group,
    Parser,
    Settings,
    boolean,
    choice,
    decode_json_text,
    integer,
    invalid_setting,
    json_object,
    list_of,
    one_or_more,
    optional_path,
    seconds,
    setting,
    text,
    url,
)
from warpseal.store.settings import database_url, replica_url
from warpseal.store.url import is_server
from warpseal.upstream.endpoint import (
    EvmChain,
    EvmChainInfo,
    EvmIndexing,
    L1sNode,
    MetadataMode,
    NativeToken,
    NodeEndpoint,
    TraceMode,
)
from warpseal.upstream.limits import NodeLimits
from warpseal.warp.ids import ChainID, MalformedID, parse_id

_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")
_METHOD: Final = re.compile(r"[A-Za-z0-9]+_(?:[A-Za-z0-9]+|[A-Za-z0-9]*\*)")

_API_PATH: Final = re.compile(r"/ext(?:/.*)?$")
# Words that are shown; a key is longer, or has digits.
_API_WORDS: Final = re.compile(r"(?:/[A-Za-z]{1,12})+/?")


def chain_id(value: Any, path: str) -> ChainID:
    """Accept a blockchain id in base58-check, or hex with 0x."""
    if text(value, path).isdigit():
        expected = "the blockchain id is expected (info.getBlockchainID of the node)"
        raise invalid_setting(path, f"{value} is an EVM chain id: {expected}")
    try:
        return ChainID(parse_id(text(value, path)))
    except MalformedID as error:
        raise invalid_setting(path, f"not a blockchain id: {error}") from error


def method(value: Any, path: str) -> str:
    """Accept the name of an RPC method; a trailing * stands for any ending."""
    if not _METHOD.fullmatch(name := text(value, path)):
        examples = '"debug_traceTransaction" or "debug_*"'
        raise invalid_setting(path, f"expected the name of a method, such as {examples}")
    return name


def address(value: Any, path: str) -> str:
    """Accept the address of an EVM account, in any case."""
    if not _ADDRESS.fullmatch(name := text(value, path)):
        raise invalid_setting(path, "expected an address: 0x and 40 hex digits")
    return name


def endpoint(*schemes: str) -> Parser[NodeEndpoint]:
    """Accept {base-url, query-parameters?, http-headers?} of an upstream node, or its base URL."""
    parse_url = url(*schemes)

    def base_url(value: Any, path: str) -> str:
        return _without_api_path(parse_url(value, path), path)

    return _endpoint(base_url)


def l1s_node(value: Any, path: str) -> L1sNode | None:
    """Accept the endpoint of an upstream node, whose object may have `holders`; "" is None."""
    if value in ("", None):
        return None
    has_holders = False
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = decode_json_text(value, path)
    if isinstance(value, dict) and "holders" in value:
        has_holders = boolean(value["holders"], f"{path}.holders")
        value = {name: item for name, item in value.items() if name != "holders"}
    return L1sNode(endpoint("http", "https")(value, path), has_holders)


def evm_chains(value: Any, path: str) -> tuple[EvmChain, ...]:
    """Accept a list of chains, each once: {blockchain-id, rpc} and optional parts of `parsers`.

    rpc, ws: lists of complete URLs, each as text or as {base-url, query-parameters?,
    http-headers?}.
    """
    chain_ids = set[ChainID]()

    def unseen_chain_id(value: Any, path: str) -> ChainID:
        parsed = chain_id(value, path)
        if parsed in chain_ids:
            raise invalid_setting(path, "this chain is listed already")
        chain_ids.add(parsed)
        return parsed

    parsers: Mapping[str, Parser[Any]] = {
        "blockchain-id": unseen_chain_id,
        "rpc": one_or_more(_endpoint(url("http", "https"))),
        "ws": list_of(_endpoint(url("ws", "wss"))),
        "upgrade-file": optional_path,
        "deny-methods": list_of(method),
        "index": evm_indexing,
        "index-url": _index_url,
        "index-read-urls": list_of(replica_url),
        "info": _chain_info,
    }

    def evm_chain(value: Any, path: str) -> EvmChain:
        fields = json_object(value, path, parsers, required={"blockchain-id", "rpc"})
        chain = EvmChain(**_by_field(fields))
        if chain.index_url and chain.index is None:
            raise invalid_setting(
                f"{path}.index-url", "has no effect without index: add it, or remove index-url"
            )
        if chain.index_read_urls and not is_server(chain.index_url):
            reason = (
                "these are replicas of the PostgreSQL server of index-url, and the chain has none"
            )
            raise invalid_setting(f"{path}.index-read-urls", reason)
        return chain

    return list_of(evm_chain)(decode_json_text(value, path), path)


def _index_url(value: Any, path: str) -> str:
    return database_url(value, path, "leave out index to index nothing")


def evm_indexing(value: Any, path: str) -> EvmIndexing | None:
    """Accept true, an object with parts of `_INDEXING`, or false for a chain without an index."""
    if isinstance(value, bool):
        return EvmIndexing() if value else None
    if not isinstance(value, dict):
        keys = ", ".join(_INDEXING)
        raise invalid_setting(path, f"expected true, false, or an object with any of {keys}")
    parsers = {key: parser for key, (_, parser) in _INDEXING.items()}
    fields = json_object(value, path, parsers, required=set())
    return EvmIndexing(**{_INDEXING[key][0]: item for key, item in fields.items()})


_INDEXING: Final[Mapping[str, tuple[str, Parser[Any]]]] = {
    "from": ("first_height", integer(0, 2**40 - 1)),
    "traces": ("traces", choice(TraceMode)),
    "metadata": ("metadata", choice(MetadataMode)),
    "calls-per-second": ("calls_per_s", integer(1, 10**6)),
    "holders": ("has_holders", boolean),
    "icm": ("has_icm", boolean),
    "icm-messengers": ("icm_messengers", list_of(address)),
    "icm-registries": ("icm_registries", list_of(address)),
}


def _chain_info(value: Any, path: str) -> EvmChainInfo:
    """Accept fields of endpoint 9, as it spells them or in kebab-case."""
    fields = json_object(_kebab_case(value), path, _INFO, required=set())
    utilities = fields.pop("utility-addresses", {})
    return EvmChainInfo(**_by_field(fields), **utilities)


def _native_token(value: Any, path: str) -> NativeToken:
    return NativeToken(**_by_field(json_object(_kebab_case(value), path, _TOKEN, required=set())))


def _utility_addresses(value: Any, path: str) -> dict[str, str]:
    return json_object(value, path, {"multicall": address}, required=set())


_TOKEN: Final[Mapping[str, Parser[Any]]] = {
    **dict.fromkeys(("name", "symbol", "logo-uri", "description"), text),
    "decimals": integer(0, 255),
}
_INFO: Final[Mapping[str, Parser[Any]]] = {
    **dict.fromkeys(
        ("chain-name", "description", "platform-chain-id", "subnet-id", "vm-id", "chain-logo-uri"),
        text,
    ),
    **dict.fromkeys(("explorer-url", "rpc-url"), url("http", "https")),
    "ws-url": url("ws", "wss"),
    **dict.fromkeys(("is-testnet", "private"), boolean),
    "network-token": _native_token,
    "utility-addresses": _utility_addresses,
}


def _kebab_case(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {_CAMEL.sub("-", str(key)).lower(): item for key, item in value.items()}


def _by_field(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): item for key, item in fields.items()}


def _endpoint(parse_url: Parser[str]) -> Parser[NodeEndpoint]:
    parsers = {"base-url": parse_url, "query-parameters": _texts, "http-headers": _texts}

    def parse(value: Any, path: str) -> NodeEndpoint:
        if isinstance(value, str) and not value.lstrip().startswith("{"):
            return NodeEndpoint(parse_url(value, path))
        fields = json_object(value, path, parsers, required={"base-url"})
        return NodeEndpoint(**_by_field(fields))

    return parse


def _without_api_path(base_url: str, path: str) -> str:
    """Return a base URL. Raises InvalidSetting if it ends in the path of an API, such as /ext/bc/P.

    The error names the right base URL, without the parts that may be a key.
    """
    parts = urlsplit(base_url)
    match = _API_PATH.search(parts.path)
    if match is None:
        return base_url
    api_path = match[0] if _API_WORDS.fullmatch(match[0]) else "/ext/…"
    userinfo, _, host = parts.netloc.rpartition("@")
    before = "…@" if userinfo else ""
    after = "/…" if match.start() else ""
    query = "?…" if parts.query else ""
    right_url = f"{parts.scheme}://{before}{host}{after}{query}"
    reason = f"ends in the path of an API, {api_path}, which the daemon appends itself"
    raise invalid_setting(path, f"{reason}; use {right_url}")


def _texts(value: Any, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise invalid_setting(path, "expected an object of texts")
    return {str(key): str(item) for key, item in value.items()}


def _nodes(key: str, help: str) -> Any:
    parse = one_or_more(endpoint("http", "https"))
    return setting(
        REQUIRED,
        key,
        parse,
        help,
        "URL|JSON",
        group=Group.NETWORK,
        is_reference=True,
        is_required=True,
    )


class NodeSettings(Settings, frozen=True):
    """Upstream nodes in order of preference, and the limits of calls to each of them.

    background_eighths: eighths of the limits of a node for background work of this process: 1 for
        the P-Chain follower of the daemon, 3 for the index process. Calls of requests have 4, so
        that nothing delays signing.
    height_claim_grace_s: time for which a node may report a height that too few others reach while
        their height grows.
    max_set_bytes: largest response with validator sets or peers.
    max_answer_bytes: largest response to any other call.
    """

    p_chain_api: tuple[NodeEndpoint, ...] = _nodes("p-chain-api", "nodes for platform.* calls")
    info_api: tuple[NodeEndpoint, ...] = _nodes("info-api", "nodes for info.* calls")
    p_chain_quorum: int = setting(
        1,
        "p-chain-quorum",
        integer(1, 100),
        "nodes of p-chain-api that must give the same answer about a validator set, a conversion or"
        " a subnet",
        group=Group.NETWORK,
    )
    call_timeout_s: float = setting(
        5.0,
        "node-timeout-seconds",
        seconds(0.1, HOUR_S),
        "timeout of one call to a node, seconds",
        "SECONDS",
        group=Group.LIMITS,
    )
    calls_in_flight: int = setting(
        24,
        "node-requests-in-flight",
        integer(8, 10**5),
        "concurrent calls to one node: a half for requests, the rest for followed blocks and the"
        " index",
        group=Group.LIMITS,
    )
    calls_per_s: int = setting(
        240,
        "node-requests-per-second",
        integer(8, 10**7),
        "calls per second to one node: a half for requests, the rest for followed blocks and the"
        " index",
        group=Group.LIMITS,
    )
    background_eighths: int = 1
    retry_failed_after_s: float = 10.0
    height_claim_grace_s: float = 60.0
    max_set_bytes: int = 16 * MEBIBYTE
    max_answer_bytes: int = 1 * MEBIBYTE
    evm_chains: tuple[EvmChain, ...] = setting(
        (),
        "evm-chains",
        evm_chains,
        "EVM chains: blockchain-id, rpc (URLs of nodes), and index: true for those to index",
        "JSON",
        group=Group.EVM,
    )
    index_l1s_at: L1sNode | None = setting(
        None,
        "index-l1s-at",
        l1s_node,
        "node whose EVM chains of tracked-subnet-ids are all indexed",
        "URL|JSON",
        group=Group.EVM,
    )

    @property
    def limits(self) -> NodeLimits:
        """The limits of the calls to each node."""
        return NodeLimits(
            timeout_s=self.call_timeout_s,
            max_bytes=self.max_answer_bytes,
            max_large_bytes=self.max_set_bytes,
            in_flight=self.calls_in_flight // 2,
            per_s=self.calls_per_s // 2,
            background_in_flight=self.calls_in_flight * self.background_eighths // 8,
            background_per_s=self.calls_per_s * self.background_eighths // 8,
            cooldown_s=self.retry_failed_after_s,
            caller_cooldown_s=3 * self.retry_failed_after_s,
        )

    @property
    def indexed_evm_chains(self) -> tuple[EvmChain, ...]:
        """The configured EVM chains that are indexed."""
        return tuple(chain for chain in self.evm_chains if chain.index is not None)

    @property
    def has_evm_index(self) -> bool:
        """Whether EVM chains are indexed, or may be found to be."""
        return bool(self.indexed_evm_chains) or self.index_l1s_at is not None
