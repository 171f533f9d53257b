"""The location of a store: `store-url`, parsed, and printed without its secrets.

Loads no database library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from warpseal.runtime.settings import expand_path
from warpseal.store.errors import StoreUnusable

OFF: Final = "off"
"""The `store-url` of a daemon that stores nothing."""

_SQLITE_PREFIX: Final = "sqlite:///"
_POSTGRESQL_SCHEMES: Final = ("postgresql", "postgres")
DATABASE_SCHEMES: Final = ("sqlite", *_POSTGRESQL_SCHEMES)
# As libpq reads it: scheme, user and hosts, database, parameters.
_POSTGRESQL: Final = re.compile(
    rf"({'|'.join(_POSTGRESQL_SCHEMES)})://([^/?]*)([^?]*)\??(.*)", re.DOTALL
)
_BARE_PERCENT: Final = re.compile("%(?![0-9a-f]{2})", re.IGNORECASE)
_NOT_ENCODED: Final = (
    "the password, or another part, has a character that is not encoded: encode @ as %40, / as %2F,"
    " ? as %3F, % as %25, & as %26 and a space as %20"
)
# Parameters of libpq.
_TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_HIDDEN: Final = "***"


class StoreKind(StrEnum):
    """The kind of database."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    OFF = OFF


class MalformedStoreUrl(ValueError):
    """Text that is no store url; the error does not show the text, which may have a password."""


class StoreUrl(Struct, frozen=True):
    """The location of one store.

    text: URL with its secrets, which is never printed; `redacted` is the URL without them.
    path: path of a SQLite file.
    replicas: servers that follow this one, for reading.
    schema: PostgreSQL schema of its tables; an empty text stands for the first schema of the user's
        search path.
    """

    kind: StoreKind
    text: str
    path: Path | None = None
    replicas: tuple[StoreUrl, ...] = ()
    schema: str = ""

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Parse a `store-url`, which is not empty. Raises MalformedStoreUrl."""
        if text == OFF:
            return cls(StoreKind.OFF, OFF)
        if text.startswith(_SQLITE_PREFIX):
            return cls.for_file(_sqlite_path(text))
        parts = _split(text)
        if not parts.path.strip("/"):
            raise MalformedStoreUrl("expected the name of a database: postgresql://user@host/name")
        return cls(StoreKind.POSTGRESQL, text)

    @classmethod
    def for_file(cls, path: Path) -> StoreUrl:
        """Return the SQLite store in the file at `path`."""
        return cls(StoreKind.SQLITE, _SQLITE_PREFIX + str(path), path)

    @property
    def redacted(self) -> str:
        """The url for logs and pages: without passwords, and without any option but the host."""
        if self.kind is not StoreKind.POSTGRESQL:
            return self.text
        parts = _split(self.text)
        user, at, host = parts.netloc.rpartition("@")
        name, colon, _ = user.partition(":")
        hosts = [option for option in parts.query.split("&") if option.startswith("host=")]
        password = f":{_HIDDEN}" if colon else ""
        query = f"?{hosts[0]}" if hosts else ""
        return f"postgresql://{name}{password}{at}{host}{parts.path}{query}"

    def redact(self, text: str) -> str:
        """Return `text`, such as a library's error, without this url's passwords."""
        if self.kind is not StoreKind.POSTGRESQL:
            return text
        for secret in _secrets(self.text):
            text = text.replace(secret, _HIDDEN)
        return text


def resolve_url(text: str, folder: Path | None, file_name: str) -> StoreUrl | None:
    """Return the URL of a database, or of its file in a folder; None without both.

    text: URL of a setting; an empty text stands for the folder.
    file_name: name of the file in the folder.
    Raises StoreUnusable.
    """
    if not text:
        return StoreUrl.for_file(folder / file_name) if folder is not None else None
    try:
        return StoreUrl.parse(text)
    except MalformedStoreUrl as error:
        raise StoreUnusable(redacted_url(text), str(error)) from None


def in_schema(url: StoreUrl, schema: str, read_urls: Iterable[str] = ()) -> StoreUrl:
    """Return a URL whose transactions use the tables of one PostgreSQL schema only.

    A file has no schemas: its URL stays as it is.

    read_urls: URLs of its replicas.
    """
    if url.kind is StoreKind.SQLITE:
        return url
    replicas = tuple(in_schema(StoreUrl.parse(text), schema) for text in read_urls)
    return replace(url, schema=schema, replicas=replicas)


def is_server(text: str) -> bool:
    """Return whether a `store-url` names a PostgreSQL server."""
    return text.partition(":")[0] in _POSTGRESQL_SCHEMES


def tls_files(text: str) -> Iterator[tuple[str, Path]]:
    """Yield the parameters of a `store-url` that name certificates and keys, with their paths."""
    if is_server(text):
        for parameter, value in parse_qsl(_split(text).query):
            # System stands for the certificate authorities of the machine.
            if parameter in _TLS_FILES and value != "system":
                yield parameter, Path(value)


def redacted_url(text: str) -> str:
    """Return a `store-url` without secrets; a malformed one is hidden completely."""
    try:
        return StoreUrl.parse(text).redacted if text else ""
    except MalformedStoreUrl:
        return _HIDDEN


def _sqlite_path(text: str) -> Path:
    path = unquote(text.removeprefix(_SQLITE_PREFIX).partition("?")[0])
    if not path or path == ":memory:":
        raise MalformedStoreUrl("expected the path of a file: sqlite:////var/lib/warpseal/store.db")
    try:
        return expand_path(path)
    except ValueError as error:
        raise MalformedStoreUrl(str(error)) from None


def _split(text: str) -> SplitResult:
    """Split the URL of a server, which may name several hosts, each with a port.

    Raises MalformedStoreUrl.
    """
    match = _POSTGRESQL.fullmatch(text)
    if match is None:
        raise MalformedStoreUrl('expected "sqlite:///PATH", "postgresql://..." or "off"')
    scheme, netloc, path, query = match.groups()
    # libpq would take a part of such a password for a host, a port or a name, and its errors would
    # show that part.
    if _has_bare_characters(netloc, path, query):
        raise MalformedStoreUrl(_NOT_ENCODED)
    parts = SplitResult(scheme, netloc, path, query, "")
    try:
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        raise MalformedStoreUrl(
            "expected HOST:PORT, or several of them with commas between them"
        ) from None
    return parts


def _has_bare_characters(netloc: str, path: str, query: str) -> bool:
    """Return whether a part of a URL has a character that only belongs between the parts."""
    user = netloc.rpartition("@")[0]
    has_lone_option = any("=" not in option for option in query.split("&") if option)
    has_space = any(character.isspace() for character in netloc)
    return (
        "@" in user + path + query
        or has_lone_option
        or has_space
        or _BARE_PERCENT.search(netloc + path + query) is not None
    )


def _secrets(text: str) -> set[str]:
    """Return the passwords in a url, encoded and decoded."""
    parts = _split(text)
    secrets = [parts.netloc.rpartition("@")[0].partition(":")[2]]
    secrets += [
        option.partition("=")[2]
        for option in parts.query.split("&")
        if "password" in option.partition("=")[0]
    ]
    return {form for secret in secrets for form in (secret, unquote(secret)) if form}
