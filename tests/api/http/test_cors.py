"""Origins whose pages may read responses, in the syntax of node settings: exact, or one star."""

from __future__ import annotations

import pytest

from warpseal.api.http.cors import AllowedOrigins


@pytest.mark.parametrize(
    ("allowed", "origin", "passes"),
    [
        (("*",), "https://a.example", True),
        ((), "https://a.example", False),
        (("https://a.example/",), "HTTPS://A.example", True),
        (("https://a.example",), "https://a.example.evil", False),
        (("https://a.example",), "", False),
        (("https://*.avax.network",), "https://core.avax.network", True),
        (("https://*.avax.network",), "https://x.y.avax.network", True),
        (("https://*.avax.network",), "https://avax.network", False),
        (("https://*.avax.network",), "https://core.avax.network.evil", False),
        (("https://*.avax.network",), "http://core.avax.network", False),
        (("http://localhost:*",), "http://localhost:3000", True),
        (("https://ab*ba",), "https://aba", False),
        (("https://a", "https://*.b"), "https://c.b", True),
    ],
)
def test_a_site_is_allowed_by_name_or_by_pattern(
    allowed: tuple[str, ...], origin: str, passes: bool
) -> None:
    assert AllowedOrigins(allowed).allow(origin) is passes
