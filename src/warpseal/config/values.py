"""Turns raw JSON, environment and flag values into typed settings; every fault has its dotted path."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from warpseal.node.endpoint import EvmChain, NodeEndpoint
from warpseal.ops.logs.loggers import LEVELS
from warpseal.peers.settings import ManualPeer
from warpseal.prices import urls
from warpseal.store.url import MalformedStoreUrl, StoreUrl
from warpseal.warp.ids import ChainID, MalformedID, SubnetID, parse_id, parse_node_id

LOG_LEVELS = tuple(LEVELS)

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_METHOD = re.compile(r"[A-Za-z0-9]+_(?:[A-Za-z0-9]+|[A-Za-z0-9]*\*)")

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Parser = Callable[[Any, str], T]
"""Takes a JSON value and its dotted path; returns the typed value or raises Faults."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with the configuration: where (a dotted path) and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class Faults(ValueError):
    """One or more faults of a value."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def fault(path: str, reason: str) -> Faults:
    """Return a Faults of one fault."""
    return Faults(Fault(path, reason))


def text(value: Any, path: str) -> str:
    """Accept a string."""
    if not isinstance(value, str):
        raise fault(path, f"expected text, found {_kind(value)}")
    return value


def path_value(value: Any, path: str) -> Path:
    """Accept a non-empty file system path; `~` is the home folder."""
    if not text(value, path):
        raise fault(path, "expected a path, found an empty text")
    return Path(value).expanduser()


def optional_path(value: Any, path: str) -> Path | None:
    """Accept a path; an empty text counts as not given, as the reference takes it."""
    return None if value in ("", None) else path_value(value, path)


def store_url(value: Any, path: str) -> str:
    """Accept the URL of a store, or "off"."""
    try:
        return StoreUrl.parse(text(value, path)).text
    except MalformedStoreUrl as error:
        raise fault(path, str(error)) from error


def boolean(value: Any, path: str) -> bool:
    """Accept true or false; from the environment also the words true, false, 1 and 0."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise fault(path, f"expected true or false, found {_kind(value)}")


def integer(low: int, high: int) -> Parser[int]:
    """Accept an integer of low..high, also as decimal text."""

    def parse(value: Any, path: str) -> int:
        number = _number(value, path, int)
        if not low <= number <= high:
            raise fault(path, f"expected {low}..{high}, found {number}")
        return int(number)

    return parse


def seconds(low: float, high: float) -> Parser[float]:
    """Accept a duration in seconds of low..high, also as decimal text."""

    def parse(value: Any, path: str) -> float:
        number = float(_number(value, path, float))
        if not math.isfinite(number) or not low <= number <= high:
            raise fault(path, f"expected {low:g}..{high:g} seconds, found {number:g}")
        return number

    return parse


def duration(low: float, high: float) -> Parser[float]:
    """Accept a duration as nodes write it ("30s", "1m30s"), or in seconds."""
    plain = seconds(low, high)

    def parse(value: Any, path: str) -> float:
        if isinstance(value, str) and _DURATION.fullmatch(value):
            value = sum(float(number) * _UNITS_S[unit] for number, unit in _DURATION_PART.findall(value))
        return plain(value, path)

    return parse


def secret(value: Any, path: str) -> str:
    """Accept a secret of at least 16 characters that a header can carry; no fault ever shows it."""
    shown = text(value, path)
    if shown and (len(shown) < 16 or not all("!" <= char <= "~" for char in shown)):
        raise fault(path, "expected at least 16 characters of printable ASCII, without spaces")
    return shown


def one_of(*choices: str) -> Parser[str]:
    """Accept one of the words, in any case."""

    def parse(value: Any, path: str) -> str:
        word = text(value, path).lower()
        if word not in choices:
            raise fault(path, f"expected one of {', '.join(choices)}; found {word!r}")
        return word

    return parse


def choice(kind: type[E]) -> Parser[E]:
    """Accept one value of a closed list, in any case."""
    word = one_of(*(member.value for member in kind))
    return lambda value, path: kind(word(value, path))


def origin(value: Any, path: str) -> str:
    """Accept the origin of browser pages, such as https://console.example, or * for any."""
    shown = text(value, path)
    if shown == "*":
        return shown
    parts = urlsplit(_base_url(shown, path, ("http", "https")))
    if parts.path or parts.query or parts.fragment or parts.username:
        raise fault(path, "expected a scheme, a host and perhaps a port, and nothing behind them")
    return shown.rstrip("/")


def price_url(value: Any, path: str) -> str:
    """Accept the URL of a JSON document of prices, with what is asked for in braces; an empty text is none."""
    template = text(value, path)
    if template:
        _base_url(template, path, ("http", "https"))
        _check_braces(template, urls.NAMES, path)
    return template


def price_path(value: Any, path: str) -> str:
    """Accept where in a JSON document a price stands."""
    template = text(value, path)
    _check_braces(template, urls.PATH_NAMES, path)
    return template


def _check_braces(template: str, known: tuple[str, ...], path: str) -> None:
    unknown = next(urls.unknown_placeholders(template, known), None)
    if unknown is not None:
        raise fault(path, f"{{{unknown[:32]}}} means nothing; known are " + ", ".join(f"{{{one}}}" for one in known))


def list_of(parse_item: Parser[T]) -> Parser[tuple[T, ...]]:
    """Accept a JSON list; from the environment also JSON text, or words between commas or, as nodes do, spaces."""

    def parse(value: Any, path: str) -> tuple[T, ...]:
        return _parse_all(_as_list(value, path), path, parse_item)

    return parse


def one_or_more(parse_item: Parser[T]) -> Parser[tuple[T, ...]]:
    """Accept one item (as the reference does) or a list of at least one."""

    def parse(value: Any, path: str) -> tuple[T, ...]:
        decoded = _decode_json_text(value, path)
        if not isinstance(decoded, list):
            return (parse_item(decoded, path),)
        if not decoded:
            raise fault(path, "expected at least one")
        return _parse_all(decoded, path, parse_item)

    return parse


def subnet_id(value: Any, path: str) -> SubnetID:
    """Accept a subnet id in base58-check, or hex with 0x."""
    try:
        return SubnetID(parse_id(text(value, path)))
    except MalformedID as error:
        raise fault(path, f"not a subnet id: {error}") from error


def chain_id(value: Any, path: str) -> ChainID:
    """Accept a blockchain id in base58-check, or hex with 0x."""
    try:
        return ChainID(parse_id(text(value, path)))
    except MalformedID as error:
        raise fault(path, f"not a blockchain id: {error}") from error


def node_endpoint(value: Any, path: str) -> NodeEndpoint:
    """Accept {base-url, query-parameters?, http-headers?} of an upstream node."""
    return _endpoint(value, path, ("http", "https"))


def _endpoint(value: Any, path: str, schemes: tuple[str, ...]) -> NodeEndpoint:
    keys = {"base-url", "query-parameters", "http-headers"}
    fields = _object(value, path, keys, required={"base-url"})
    return NodeEndpoint(
        base_url=_base_url(fields["base-url"], f"{path}.base-url", schemes),
        query_parameters=_string_map(fields.get("query-parameters") or {}, f"{path}.query-parameters"),
        http_headers=_string_map(fields.get("http-headers") or {}, f"{path}.http-headers"),
    )


def evm_chain(value: Any, path: str) -> EvmChain:
    """Accept {blockchain-id, rpc, ws?, upgrade-file?, deny-methods?} of an EVM chain.

    rpc, ws: lists of complete URLs, each as text or as {base-url, query-parameters?, http-headers?}.
    """
    keys = {"blockchain-id", "rpc", "ws", "upgrade-file", "deny-methods"}
    fields = _object(value, path, keys, required={"blockchain-id", "rpc"})
    return EvmChain(
        blockchain_id=chain_id(fields["blockchain-id"], f"{path}.blockchain-id"),
        rpc=one_or_more(_complete_url("http", "https"))(fields["rpc"], f"{path}.rpc"),
        ws=list_of(_complete_url("ws", "wss"))(fields.get("ws"), f"{path}.ws"),
        upgrade_file=optional_path(fields.get("upgrade-file"), f"{path}.upgrade-file"),
        deny_methods=list_of(method)(fields.get("deny-methods"), f"{path}.deny-methods"),
    )


def evm_chains(value: Any, path: str) -> tuple[EvmChain, ...]:
    """Accept a list of EVM chains, each chain once."""
    chains = list_of(evm_chain)(_decode_json_text(value, path), path)
    first = {chain.blockchain_id: position for position, chain in reversed(list(enumerate(chains)))}
    twice = [position for position, chain in enumerate(chains) if first[chain.blockchain_id] != position]
    if twice:
        raise Faults(
            *(Fault(f"{path}[{position}].blockchain-id", "this chain is listed already") for position in twice)
        )
    return chains


def manual_peer(value: Any, path: str) -> ManualPeer:
    """Accept {id: "NodeID-…", ip: "a.b.c.d:port"}."""
    fields = _object(value, path, {"id", "ip"}, required={"id", "ip"})
    host, port = _host_and_port(fields["ip"], f"{path}.ip")
    try:
        return ManualPeer(parse_node_id(text(fields["id"], f"{path}.id")), host, port)
    except MalformedID as error:
        raise fault(f"{path}.id", f"not a node id: {error}") from error


def version(value: Any, path: str) -> tuple[int, int, int]:
    """Accept "major.minor.patch"."""
    parts = text(value, path).split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise fault(path, 'expected a version such as "1.15.0"')
    return int(parts[0]), int(parts[1]), int(parts[2])


def _parse_all(items: list[Any], path: str, parse_item: Parser[T]) -> tuple[T, ...]:
    parsed: list[T] = []
    faults: list[Fault] = []
    for position, item in enumerate(items):
        try:
            parsed.append(parse_item(item, f"{path}[{position}]"))
        except Faults as error:
            faults += error.faults
    if faults:
        raise Faults(*faults)
    return tuple(parsed)


def _as_list(value: Any, path: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            value = _decode_json_text(value, path)
        else:
            return value.replace(",", " ").split()
    if not isinstance(value, list):
        raise fault(path, f"expected a list, found {_kind(value)}")
    return value


def _decode_json_text(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise fault(path, "expected JSON") from error


def _object(value: Any, path: str, known: set[str], required: set[str]) -> Mapping[str, Any]:
    decoded = _decode_json_text(value, path)
    if not isinstance(decoded, dict):
        raise fault(path, f"expected an object, found {_kind(decoded)}")
    faults = [Fault(f"{path}.{key}", "unknown key") for key in decoded if key not in known]
    faults += [Fault(f"{path}.{key}", "missing") for key in sorted(required - decoded.keys())]
    if faults:
        raise Faults(*faults)
    return decoded


def _string_map(value: Any, path: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise fault(path, "expected an object of texts")
    return {str(key): str(item) for key, item in value.items()}


def _complete_url(*schemes: str) -> Parser[NodeEndpoint]:
    def parse(value: Any, path: str) -> NodeEndpoint:
        if isinstance(value, str) and not value.lstrip().startswith("{"):
            return NodeEndpoint(_base_url(value, path, schemes))
        return _endpoint(value, path, schemes)

    return parse


def method(value: Any, path: str) -> str:
    """Accept the name of an RPC method; a trailing * stands for any ending."""
    if not _METHOD.fullmatch(name := text(value, path)):
        raise fault(path, 'expected the name of a method, such as "debug_traceTransaction" or "debug_*"')
    return name


def _base_url(value: Any, path: str, schemes: tuple[str, ...]) -> str:
    url = text(value, path)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise fault(path, f"expected {' or '.join(f'{scheme}://' for scheme in schemes)} and a host")
    return url.rstrip("/")


def _host_and_port(value: Any, path: str) -> tuple[str, int]:
    host, separator, port = text(value, path).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError as error:
        raise fault(path, 'expected an address such as "203.0.113.7:9651"') from error
    if not separator or not 0 < number < 65536:
        raise fault(path, "expected a port of 1..65535")
    return host, number


def _number(value: Any, path: str, convert: type[int] | type[float]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise fault(path, f"expected a number, found {_kind(value)}")
    try:
        number = convert(value)
    except (ValueError, OverflowError) as error:
        raise fault(path, f"expected a number, found {str(value)[:40]!r}") from error
    if isinstance(value, float) and number != value:
        raise fault(path, f"expected a whole number, found {value}")
    return number


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
