"""Labels of calls: products without versions, browsers by family, codes of countries; nothing else
of a client.
"""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.usage import labels
from warpseal.usage.calls import OTHER
from warpseal.usage.countries import CONTINENTS, COUNTRIES, continent_of
from warpseal.usage.labels import agent_label, country_label, method_label

WINDOWS = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko)"
IPHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like"
    " Gecko)"
)


@pytest.mark.parametrize(
    ("header", "label"),
    [
        ("curl/8.5.0", "curl"),
        ("viem/2.38.5", "viem"),
        ("node", "node"),
        ("node-fetch/1.0 (+https://github.com/bitinn/node-fetch)", "node-fetch"),
        ("python-requests/2.31.0", "python-requests"),
        ("Python/3.11 aiohttp/3.9.1", "Python"),
        ("Go-http-client/1.1", "Go-http-client"),
        ("speakeasy-sdk/typescript 0.13.0 2.651.2 1.0.0 @avalabs/avacloud-sdk", "speakeasy-sdk"),
        ("@scope/tool/1.2.3", "@scope/tool"),
        ("hardhat 2.19.0 (win32)", "hardhat"),
        ("tool-1.2.3", "tool"),
        ("web3.py/6.0", "web3.py"),
        ("none", "none"),
        (" ", "none"),
        ("", "none"),
        ("(no product)", OTHER),
        ("/1.0", OTHER),
        ("<script>", OTHER),
        ("a" * 200 + "/1.0", "a" * 64),
        (f"{WINDOWS} Chrome/126.0.0.0 Safari/537.36", "Chrome"),
        (f"{WINDOWS} HeadlessChrome/126.0.0.0 Safari/537.36", "Chrome"),
        (f"{WINDOWS} Chrome/126.0.0.0 Safari/537.36 Edg/126.0.2592.68", "Edge"),
        (f"{WINDOWS} Chrome/126.0.0.0 Safari/537.36 OPR/111.0.0.0", "Opera"),
        (f"{IPHONE} Version/17.5 Mobile/15E148 Safari/604.1", "Safari"),
        (f"{IPHONE} CriOS/126.0.6478.54 Mobile/15E148 Safari/604.1", "Chrome"),
        (f"{IPHONE} FxiOS/127.0 Mobile/15E148 Safari/605.1.15", "Firefox"),
        (f"{IPHONE} EdgiOS/125.0 Version/17.0 Mobile/15E148 Safari/604.1", "Edge"),
        (f"{IPHONE} Mobile/15E148", "Safari"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0", "Firefox"),
        ("Mozilla/5.0 (Windows NT 10.0; Trident/7.0; rv:11.0) like Gecko", "Internet Explorer"),
        ("Mozilla/5.0 (compatible; Somebot/2.1; +http://bot.example)", "Mozilla"),
        ("Opera/9.80 (X11; Linux x86_64) Presto/2.12", "Opera"),
    ],
)
def test_a_user_agent_is_the_product_without_its_version_or_the_family_of_a_browser(
    header: str, label: str
) -> None:
    assert agent_label([(b"host", b"x"), (b"user-agent", header.encode())]) == label


def test_a_missing_user_agent_has_the_label_none() -> None:
    assert agent_label([(b"host", b"x")]) == "none"


@given(st.binary(max_size=300))
def test_any_header_gives_a_short_printable_label(header: bytes) -> None:
    label = agent_label([(b"user-agent", header)])
    assert 0 < len(label) <= 64
    assert set(label) <= set(string.ascii_letters + string.digits + string.punctuation + " ")


def test_a_product_of_numbers_that_end_as_no_version_is_read_in_steps_of_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Steps of the third power would take hours.
    monkeypatch.setattr(labels, "_PARSED_BYTES", 20_000)
    assert agent_label([(b"user-agent", b"1.1" * 6_000 + b"!")]) == ("1.1" * 22)[:64]


def test_all_codes_of_iso_3166_have_a_continent() -> None:
    assert len(COUNTRIES) == 249
    assert set(COUNTRIES.values()) == CONTINENTS == {"AF", "AN", "AS", "EU", "NA", "OC", "SA"}
    assert {
        code: continent_of(code) for code in ("DE", "US", "BR", "JP", "KE", "AQ", "AU", "XX", "T1")
    } == {
        "DE": "EU",
        "US": "NA",
        "BR": "SA",
        "JP": "AS",
        "KE": "AF",
        "AQ": "AN",
        "AU": "OC",
        "XX": "XX",
        "T1": "XX",
    }


@pytest.mark.parametrize(
    ("given_code", "label"),
    [
        ("DE", "DE"),
        ("de", "DE"),
        ("T1", "T1"),
        ("XX", "XX"),
        ("ZZ", "XX"),
        ("", "XX"),
        ("DEU", "XX"),
        ("XK", "XX"),
    ],
)
def test_an_unknown_country_is_xx(given_code: str, label: str) -> None:
    assert country_label(given_code) == label


def test_only_known_methods_have_a_label_of_their_own() -> None:
    methods = frozenset({"eth_call"})
    assert [method_label(method, methods) for method in ("eth_call", "eth_x", "")] == [
        "eth_call",
        OTHER,
        "none",
    ]
