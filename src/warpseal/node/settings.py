"""Settings of calls to upstream nodes, and the parsers of their endpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from warpseal.node.endpoint import EvmChain, NodeEndpoint
from warpseal.runtime.settings import (
    HOUR_S,
    MEBIBYTE,
    SETTING,
    InvalidSetting,
    Parser,
    Setting,
    SettingFault,
    decode_json_text,
    fault,
    integer,
    json_object,
    list_of,
    one_or_more,
    optional_path,
    seconds,
    setting,
    text,
    url,
)
from warpseal.warp.ids import ChainID, MalformedID, parse_id

_METHOD: Final = re.compile(r"[A-Za-z0-9]+_(?:[A-Za-z0-9]+|[A-Za-z0-9]*\*)")


def chain_id(value: Any, path: str) -> ChainID:
    """Accept a blockchain id in base58-check, or hex with 0x."""
    try:
        return ChainID(parse_id(text(value, path)))
    except MalformedID as error:
        raise fault(path, f"not a blockchain id: {error}") from error


def method(value: Any, path: str) -> str:
    """Accept the name of an RPC method; a trailing * stands for any ending."""
    if not _METHOD.fullmatch(name := text(value, path)):
        raise fault(path, 'expected the name of a method, such as "debug_traceTransaction" or "debug_*"')
    return name


def endpoint(*schemes: str) -> Parser[NodeEndpoint]:
    """Accept {base-url, query-parameters?, http-headers?} of an upstream node."""

    def parse(value: Any, path: str) -> NodeEndpoint:
        fields = json_object(value, path, {"base-url", "query-parameters", "http-headers"}, required={"base-url"})
        return NodeEndpoint(
            base_url=url(*schemes)(fields["base-url"], f"{path}.base-url"),
            query_parameters=_texts(fields.get("query-parameters") or {}, f"{path}.query-parameters"),
            http_headers=_texts(fields.get("http-headers") or {}, f"{path}.http-headers"),
        )

    return parse


def evm_chain(value: Any, path: str) -> EvmChain:
    """Accept {blockchain-id, rpc, ws?, upgrade-file?, deny-methods?} of an EVM chain.

    rpc, ws: lists of complete URLs, each as text or as {base-url, query-parameters?, http-headers?}.
    """
    known = {"blockchain-id", "rpc", "ws", "upgrade-file", "deny-methods"}
    fields = json_object(value, path, known, required={"blockchain-id", "rpc"})
    return EvmChain(
        blockchain_id=chain_id(fields["blockchain-id"], f"{path}.blockchain-id"),
        rpc=one_or_more(_complete_url("http", "https"))(fields["rpc"], f"{path}.rpc"),
        ws=list_of(_complete_url("ws", "wss"))(fields.get("ws"), f"{path}.ws"),
        upgrade_file=optional_path(fields.get("upgrade-file"), f"{path}.upgrade-file"),
        deny_methods=list_of(method)(fields.get("deny-methods"), f"{path}.deny-methods"),
    )


def evm_chains(value: Any, path: str) -> tuple[EvmChain, ...]:
    """Accept a list of EVM chains, each chain once."""
    chains = list_of(evm_chain)(decode_json_text(value, path), path)
    first = {chain.blockchain_id: position for position, chain in reversed(list(enumerate(chains)))}
    twice = [position for position, chain in enumerate(chains) if first[chain.blockchain_id] != position]
    if twice:
        raise InvalidSetting(
            *(SettingFault(f"{path}[{position}].blockchain-id", "this chain is listed already") for position in twice)
        )
    return chains


def _complete_url(*schemes: str) -> Parser[NodeEndpoint]:
    def parse(value: Any, path: str) -> NodeEndpoint:
        if isinstance(value, str) and not value.lstrip().startswith("{"):
            return NodeEndpoint(url(*schemes)(value, path))
        return endpoint(*schemes)(value, path)

    return parse


def _texts(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise fault(path, "expected an object of texts")
    return {str(key): str(item) for key, item in value.items()}


def _nodes(key: str, help: str) -> dict[str, Setting]:
    parse = one_or_more(endpoint("http", "https"))
    return {SETTING: Setting(key, parse, help, "JSON", is_reference=True, is_required=True)}


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Upstream nodes in order of preference, and the limits of calls to each of them.

    upstream_*: limits of calls that requests cause; follow_*: of calls for the blocks of the P-Chain follower.
    max_set_bytes: size of responses with validator sets or peers; max_answer_bytes: of all others.
    """

    p_chain_api: tuple[NodeEndpoint, ...] = field(metadata=_nodes("p-chain-api", "nodes for platform.* calls"))
    info_api: tuple[NodeEndpoint, ...] = field(metadata=_nodes("info-api", "nodes for info.* calls"))
    call_timeout_s: float = setting(
        5.0, "node-timeout-seconds", seconds(0.1, HOUR_S), "timeout of one call to a node, seconds", "SECONDS"
    )
    upstream_max_concurrency: int = setting(
        8, "upstream-at-once", integer(1, 10**4), "concurrent calls to one node on behalf of requests"
    )
    upstream_calls_per_s: int = setting(
        50, "upstream-per-second", integer(1, 10**5), "calls per second to one node on behalf of requests"
    )
    follow_max_concurrency: int = setting(
        4, "follow-requests-in-flight", integer(1, 1000), "concurrent calls to one node for followed blocks"
    )
    follow_calls_per_s: int = setting(
        20, "follow-requests-per-second", integer(1, 10**5), "calls per second to one node for followed blocks"
    )
    retry_failed_after_s: float = 10.0
    max_set_bytes: int = 16 * MEBIBYTE
    max_answer_bytes: int = 1 * MEBIBYTE
    evm_chains: tuple[EvmChain, ...] = setting(
        (), "evm-chains", evm_chains, "EVM chains and the URLs of their nodes", "JSON"
    )
