"""The redacted URL of a store; and statements that fit both databases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.store.signed import create_store
from warpseal.runtime.settings import InvalidSetting
from warpseal.store import (
    addresses,
    api_keys,
    archive_rows,
    event_rows,
    events,
    icm_tasks,
    l1_records,
    uptime_rows,
)
from warpseal.store.access import open_read_only
from warpseal.store.engine import server_parameters
from warpseal.store.errors import StoreUnusable
from warpseal.store.settings import store_url
from warpseal.store.url import MalformedStoreUrl, StoreKind, StoreUrl, redacted_url, resolve_url


@pytest.mark.parametrize(
    ("text", "kind", "path", "display_text"),
    [
        ("off", StoreKind.OFF, None, "off"),
        (
            "sqlite:////var/lib/a%20b.db",
            StoreKind.SQLITE,
            Path("/var/lib/a b.db"),
            "sqlite:////var/lib/a b.db",
        ),
        (
            "postgresql://u:hush@db:5432/w",
            StoreKind.POSTGRESQL,
            None,
            "postgresql://u:***@db:5432/w",
        ),
        (
            "postgresql://u:hush@db1:5432,db2,[::1]:5433/w?target_session_attrs=any",
            StoreKind.POSTGRESQL,
            None,
            "postgresql://u:***@db1:5432,db2,[::1]:5433/w",
        ),
        ("postgres://db/w", StoreKind.POSTGRESQL, None, "postgresql://db/w"),
        (
            "postgresql://u@/w?host=/run/pg&sslpassword=hush",
            StoreKind.POSTGRESQL,
            None,
            "postgresql://u@/w?host=/run/pg",
        ),
    ],
)
def test_a_url_selects_a_store_and_is_displayed_without_its_secrets(
    text: str, kind: StoreKind, path: Path | None, display_text: str
) -> None:
    url = StoreUrl.parse(text)
    assert (url.kind, url.path, url.redacted) == (kind, path, display_text)
    assert redacted_url(text) == display_text
    assert "hush" not in repr(display_text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "store.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://u:hush@db/w",
        "postgresql://u:hush@db",
        "postgresql://u:hush@db:port/w",
        "postgresql://u:hush@db:1,other:port/w",
    ],
)
def test_an_unusable_url_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(MalformedStoreUrl) as error:
        StoreUrl.parse(text)
    assert "hush" not in str(error.value)
    assert "hush" not in redacted_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:hu@sh@db/w",
        "postgresql://u:hu@sh@db:5432,db2/w",
        "postgresql://u:hu/sh@db/w",
        "postgresql://u:12/hush@db/w",
        "postgresql://u:hu@s/h@db/w",
        "postgresql://u:hu?sh@db/w",
        "postgresql://u:hu?s=h@db/w",
        "postgresql://u:12/hush?a=b@db/w",
        "postgresql://u:12/hush?a=b&c=d@db/w",
        "postgresql://u:hu%sh@db/w",
        "postgresql://u:hu sh@db/w",
        "postgresql://db/w?password=hu&sh",
        "postgresql://db/w?password=hu%sh",
    ],
)
def test_a_password_that_is_not_encoded_is_refused_with_what_to_encode(text: str) -> None:
    with pytest.raises(MalformedStoreUrl, match="encode @ as %40") as error:
        StoreUrl.parse(text)
    with pytest.raises(InvalidSetting) as invalid:
        store_url(text, "store-url")
    with pytest.raises(StoreUnusable) as unusable:
        resolve_url(text, None, "store.db")
    for text_part in (
        str(error.value),
        str(invalid.value),
        str(unusable.value),
        redacted_url(text),
    ):
        assert re.search(r"hu\b|sh\b|hush|s/h", text_part) is None


def test_passwords_are_removed_from_library_errors() -> None:
    url = StoreUrl.parse("postgresql://u:hu%20sh@db/w?sslpassword=quiet")
    assert url.redact("failed: hu sh, hu%20sh, quiet") == "failed: ***, ***, ***"


def test_parameters_of_libpq_are_kept_and_several_hosts_are_searched_for_the_primary() -> None:
    url = StoreUrl.parse(
        "postgresql://u:hu%40sh@a:1,b/w?sslmode=verify-full&sslrootcert=/ca.pem&connect_timeout=7"
    )
    parameters = server_parameters(url)
    expected = {
        "host": "a,b",
        "port": "1,",
        "user": "u",
        "password": "hu@sh",
        "dbname": "w",
        "sslmode": "verify-full",
    }
    expected |= {
        "sslrootcert": "/ca.pem",
        "connect_timeout": "7",
        "target_session_attrs": "read-write",
    }
    assert parameters.items() >= expected.items()
    assert "target_session_attrs" not in server_parameters(StoreUrl.parse("postgresql://u@a/w"))
    with pytest.raises(StoreUnusable, match="correct its URL") as error:
        server_parameters(StoreUrl.parse("postgresql://u:hush@a,b/w?ssl_mode=hush"))
    assert "hush" not in str(error.value)


STATEMENTS = {
    f"{module.__name__}.{name}": text
    for module in (
        addresses,
        api_keys,
        archive_rows,
        event_rows,
        events,
        icm_tasks,
        l1_records,
        uptime_rows,
    )
    for name, text in vars(module).items()
    # Others are parts of statements, or a lock of a server.
    if isinstance(text, str)
    and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b(?!.*(\{| $|\bpg_))", text, re.DOTALL)
}


def test_every_statement_can_be_run_by_both_databases(any_store_url: str) -> None:
    assert len(STATEMENTS) > 40
    with open_read_only(create_store(any_store_url)) as connection:
        for text in STATEMENTS.values():
            # Without a type of the value, PostgreSQL takes `substr` for a function of texts.
            values = [b"" if function else None for function in re.findall(r"(substr\()?\?", text)]
            assert connection.fetch(f"EXPLAIN {text}", *values)
