"""URLs of strangers: every text is an http(s) URL or one typed error."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from warpseal.runtime.http_url import InvalidUrl, parse_http_url

BASE = URL("https://a.test/x/1.json")
PIECES = st.sampled_from(
    [
        "http://",
        "https://",
        "//",
        "[",
        "]",
        "::1",
        "@",
        "/",
        "?",
        "#",
        ":",
        "80",
        "%",
        "%4",
        "é",
        "\u2100",
        "a.b",
        "v1.",
    ]
)
TEXTS = st.text() | st.lists(PIECES | st.text(max_size=2), max_size=8).map("".join)


@given(TEXTS, st.sampled_from([None, BASE]))
@example("http://[::1]@/x", None)
@example("//[::1]@/x", BASE)
@example("http://[x]@", BASE)
def test_any_text_is_a_url_or_an_invalid_url(text: str, base: URL | None) -> None:
    try:
        url = parse_http_url(text, base)
    except InvalidUrl:
        return
    assert url.scheme in ("http", "https")
    assert url.raw_host
    assert url.port
    assert parse_http_url(str(url)) == url


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("2.json", "https://a.test/x/2.json"),
        ("/2 3.json", "https://a.test/2%203.json"),
        ("//b.test/1", "https://b.test/1"),
        ("HTTP://B.test:80/%7e", "http://b.test/~"),
        ("", "https://a.test/x/1.json"),
    ],
)
def test_a_reference_is_resolved_and_encoded(reference: str, text: str) -> None:
    assert str(parse_http_url(reference, BASE)) == text
