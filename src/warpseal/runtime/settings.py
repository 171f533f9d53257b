"""Declaration of settings: a field of a Settings class has its config key, parser and help text.

From these declarations `config/` makes the keys of the config file, the environment names, the
flags, `config check` and the table in docs/operations.md. Parsers take a JSON value, or text of the
environment or of a flag, and its dotted path; they raise InvalidSetting.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import NODEFAULT, Struct

from warpseal.runtime.declared_fields import DeclaredField, DeclaredFieldsMeta

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Parser = Callable[[Any, str], T]

REQUIRED: Final[Any] = NODEFAULT
"""The default of a setting that has none."""

KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024**2
GIBIBYTE: Final = 1024**3
HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0

_UNITS_S: Final = {"h": HOUR_S, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+")
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")


class Group(StrEnum):
    """Group of settings in `--help` and docs/operations.md, in this order."""

    NETWORK = "network"
    HTTP = "HTTP"
    STORE = "store"
    INDEX = "index"
    EVM = "EVM"
    LIMITS = "limits"
    LOGS = "logs"


class Setting(DeclaredField, frozen=True):
    """A setting.

    help: noun phrase with the unit.
    metavar: word for the value in `--help`.
    is_reference: the key is one of the reference aggregator, whose unprefixed environment name
        counts.
    is_node: the key is one of avalanchego, whose environment name counts.
    is_secret: the value is never shown, and never a flag, since every user of the machine can read
        flags.
    display: returns the value without its secrets; None: the value has no secrets.
    """

    key: str
    parse: Parser[Any]
    help: str
    group: Group
    metavar: str = "N"
    is_reference: bool = False
    is_node: bool = False
    is_secret: bool = False
    is_required: bool = False
    display: Callable[[Any], str | Sequence[str] | Mapping[str, Any]] | None = None


class Settings(Struct, metaclass=DeclaredFieldsMeta, frozen=True):
    """The settings of a package; `setting` declares the fields that a key sets."""

    def __repr__(self) -> str:
        declared: dict[str, Setting] = type(self).declared_fields
        fields = [
            f"{name}={getattr(self, name)!r}"
            for name, setting in declared.items()
            if not (setting.is_secret or setting.display)
        ]
        return f"{type(self).__name__}({', '.join(fields)})"


def setting(
    default: T,
    key: str,
    parse: Parser[T],
    help: str,
    metavar: str = "N",
    *,
    group: Group,
    **options: Any,
) -> T:
    """Return a field of Settings.

    default: value without a key; REQUIRED if there is none.
    options: further fields of Setting.
    """
    declared: Any = Setting(default, key, parse, help, group, metavar, **options)
    value: T = declared
    return value


class SettingError(Struct, frozen=True):
    """An error of the configuration.

    path: dotted path of the value.
    source: place that sets the value.
    """

    path: str
    reason: str
    source: str = ""

    def __str__(self) -> str:
        suffix = f" ({self.source})" if self.source else ""
        return f"{self.path}: {self.reason}{suffix}"


class InvalidSetting(ValueError):
    """A value with one or more errors."""

    def __init__(self, *errors: SettingError) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


def invalid_setting(path: str, reason: str) -> InvalidSetting:
    """Return the exception for one error."""
    return InvalidSetting(SettingError(path, reason))


def text(value: Any, path: str) -> str:
    """Accept a string."""
    if not isinstance(value, str):
        raise invalid_setting(path, f"expected text, found {_kind(value)}")
    return value


def path_value(value: Any, path: str) -> Path:
    """Accept a non-empty file system path; `~` is the home folder."""
    name = text(value, path)
    if not name:
        raise invalid_setting(path, "expected a path, found an empty text")
    try:
        return expand_path(name)
    except ValueError as error:
        raise invalid_setting(path, str(error)) from None


def expand_path(name: str) -> Path:
    """Return a path whose first part may be `~` or `~USER`.

    Raises ValueError if no file can have this name.
    """
    try:
        os.fsencode(name)
        if "\0" not in name:
            return Path(name).expanduser()
    except UnicodeError:
        pass
    except RuntimeError:
        owner = name.partition("/")[0]
        reason = f"{owner!r} is the home folder of no user here: write the whole path"
        raise ValueError(reason) from None
    raise ValueError(f"expected a path, found a character that no path has: {name[:80]!a}")


def optional_path(value: Any, path: str) -> Path | None:
    """Accept a path; an empty text stands for no path, as in the reference."""
    return None if value in ("", None) else path_value(value, path)


def boolean(value: Any, path: str) -> bool:
    """Accept true or false; from the environment also the words true, false, 1 and 0."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise invalid_setting(path, f"expected true or false, found {_kind(value)}")


def integer(low: int, high: int) -> Parser[int]:
    """Accept an integer of low..high, also as decimal text."""

    def parse(value: Any, path: str) -> int:
        number = _number(value, path, int)
        if not low <= number <= high:
            raise invalid_setting(path, f"expected {low}..{high}, found {number}")
        return int(number)

    return parse


def seconds(low: float, high: float) -> Parser[float]:
    """Accept a duration in seconds of low..high, also as decimal text."""

    def parse(value: Any, path: str) -> float:
        number = float(_number(value, path, float))
        if not math.isfinite(number) or not low <= number <= high:
            raise invalid_setting(path, f"expected {low:g}..{high:g} seconds, found {number:g}")
        return number

    return parse


def duration(low: float, high: float) -> Parser[float]:
    """Accept a duration in avalanchego's notation ("30s", "1m30s"), or in seconds."""
    plain = seconds(low, high)

    def parse(value: Any, path: str) -> float:
        if isinstance(value, str) and _DURATION.fullmatch(value):
            parts = _DURATION_PART.findall(value)
            value = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
        return plain(value, path)

    return parse


def secret(value: Any, path: str) -> str:
    """Accept a secret of at least 16 characters that a header can carry; no error shows it."""
    token = text(value, path)
    if token and (len(token) < 16 or not all("!" <= char <= "~" for char in token)):
        reason = "expected at least 16 characters of printable ASCII, without spaces"
        raise invalid_setting(path, reason)
    return token


def one_of(*choices: str) -> Parser[str]:
    """Accept one of the words, in any case."""

    def parse(value: Any, path: str) -> str:
        word = text(value, path).lower()
        if word not in choices:
            near = nearest(word, choices)
            hint = f"; did you mean {near}?" if near else ""
            reason = f"expected one of {', '.join(choices)}; found {word!r}{hint}"
            raise invalid_setting(path, reason)
        return word

    return parse


def choice(kind: type[E]) -> Parser[E]:
    """Accept a value of a closed list, in any case."""
    word = one_of(*(member.value for member in kind))
    return lambda value, path: kind(word(value, path))


def _likely_scheme(url_text: str, schemes: Sequence[str]) -> str:
    """Return the probable scheme of a URL without a scheme.

    A node of this machine or of a private network has no certificate.
    schemes: the one without a certificate comes first.
    """
    authority = url_text.partition("/")[0]
    host = authority.rpartition(":")[0] or authority
    try:
        is_near = not ip_address(host.strip("[]")).is_global
    except ValueError:
        is_near = "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return schemes[0] if is_near else schemes[-1]


def url(*schemes: str) -> Parser[str]:
    """Accept a URL of one of the schemes, with a host; slashes at its end are cut off."""

    def parse(value: Any, path: str) -> str:
        url_text = text(value, path)
        try:
            parts = urlsplit(url_text)
            is_valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            prefixes = " or ".join(f"{scheme}://" for scheme in schemes)
            expected = f"expected {prefixes} and a host"
            # A URL without a scheme has no secret that the error could show.
            if "://" not in url_text and "@" not in url_text and "?" not in url_text:
                start, scheme = url_text[:80], _likely_scheme(url_text, schemes)
                expected += f", found {start!r}: write {scheme}://{start}"
            raise invalid_setting(path, expected)
        return url_text.rstrip("/")

    return parse


def list_of(parse_item: Parser[T]) -> Parser[tuple[T, ...]]:
    """Accept a JSON list, its JSON text, or words between commas or spaces."""
    return lambda value, path: _parse_all(_as_list(value, path), path, parse_item)


def one_or_more(parse_item: Parser[T]) -> Parser[tuple[T, ...]]:
    """Accept one item, as the reference does, or a list of at least one."""

    def parse(value: Any, path: str) -> tuple[T, ...]:
        is_list_text = isinstance(value, str) and value.lstrip().startswith("[")
        decoded = decode_json_text(value, path) if is_list_text else value
        if not isinstance(decoded, list):
            return (parse_item(decoded, path),)
        if not decoded:
            raise invalid_setting(path, "expected at least one")
        return _parse_all(decoded, path, parse_item)

    return parse


def json_object(
    value: Any, path: str, parsers: Mapping[str, Parser[Any]], required: set[str]
) -> dict[str, Any]:
    """Return the parsed fields of a JSON object, or of its text.

    Raises InvalidSetting with the errors of all of them.

    parsers: parser of each field, by key; any other key is an error.
    required: keys that the object must have.
    """
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        raise invalid_setting(path, "expected an object, found text")
    decoded = decode_json_text(value, path)
    if not isinstance(decoded, dict):
        raise invalid_setting(path, f"expected an object, found {_kind(decoded)}")
    unknown = [key for key in decoded if key not in parsers]
    missing = sorted(required - decoded.keys())
    errors = [SettingError(f"{path}.{key}", unknown_key(key, parsers)) for key in unknown]
    errors += [SettingError(f"{path}.{key}", "missing") for key in missing]
    fields: dict[str, Any] = {}
    for key, parse in parsers.items():
        if key in decoded:
            try:
                fields[key] = parse(decoded[key], f"{path}.{key}")
            except InvalidSetting as error:
                errors += error.errors
    if errors:
        raise InvalidSetting(*errors)
    return fields


def unknown_key(name: str, names: Iterable[str]) -> str:
    """Return the reason of the error about an unknown key."""
    near = nearest(name, names)
    return f"unknown key; did you mean {near}?" if near else "unknown key"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of some names, or None if none is similar.

    Case does not count, and `_` counts as `-`.
    """
    by_folded = {_fold(candidate): candidate for candidate in names}
    near = difflib.get_close_matches(_fold(name), by_folded, n=1)
    return by_folded[near[0]] if near else None


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")


def decode_json_text(value: Any, path: str) -> Any:
    """Return the value of JSON text; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise invalid_setting(path, "expected JSON") from error


def _parse_all(items: list[Any], path: str, parse_item: Parser[T]) -> tuple[T, ...]:
    parsed: list[T] = []
    errors: list[SettingError] = []
    for position, item in enumerate(items):
        try:
            parsed.append(parse_item(item, f"{path}[{position}]"))
        except InvalidSetting as error:
            errors += error.errors
    if errors:
        raise InvalidSetting(*errors)
    return tuple(parsed)


def _as_list(value: Any, path: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return value.replace(",", " ").split()
        value = decode_json_text(value, path)
    if not isinstance(value, list):
        raise invalid_setting(path, f"expected a list, found {_kind(value)}")
    return value


def _number(value: Any, path: str, convert: type[int] | type[float]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise invalid_setting(path, f"expected a number, found {_kind(value)}")
    try:
        number = convert(value)
    except (ValueError, OverflowError) as error:
        raise invalid_setting(path, f"expected a number, found {str(value)[:40]!r}") from error
    if isinstance(value, float) and number != value:
        raise invalid_setting(path, f"expected a whole number, found {value}")
    return number


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
