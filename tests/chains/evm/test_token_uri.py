"""Token URIs of contracts: each form leads to its document, and every other text to a status."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.chains.evm.facts import MetadataStatus
from warpseal.chains.evm.token_uri import (
    MAX_URI_BYTES,
    MAX_URL_BYTES,
    Gateways,
    InlineDocument,
    RemoteDocument,
    UnusableMetadata,
    content_uri,
    fill_token_id,
    parse_token_uri,
)

GATEWAYS = Gateways(("https://ipfs.test", "http://10.0.0.7:8080"), ("https://ar.test",))
CID_V0 = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
CID = "bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi"


def urls_of(uri: str) -> list[str]:
    document = parse_token_uri(uri, GATEWAYS)
    assert isinstance(document, RemoteDocument)
    return [str(url) for url in document.urls]


def contents_of(uri: str) -> tuple[bytes, ...]:
    document = parse_token_uri(uri, GATEWAYS)
    assert isinstance(document, InlineDocument)
    return document.contents


def status_of(uri: str) -> MetadataStatus:
    with pytest.raises(UnusableMetadata) as raised:
        parse_token_uri(uri, GATEWAYS)
    return raised.value.status


def test_an_erc1155_id_is_written_as_64_lower_case_hex_digits() -> None:
    filled = fill_token_id(b"https://x.test/{id}.json?again={id}", 0xABC)
    assert filled == b"https://x.test/%s.json?again=%s" % ((b"0" * 61 + b"abc",) * 2)
    assert fill_token_id(b"{id}", 2**256 - 1) == b"f" * 64


@pytest.mark.parametrize("text", [b"{ID}", b"{Id}", b"%7Bid%7D", b"%7bID%7d", b"$TOKEN_ID"])
def test_an_erc1155_id_has_other_spellings(text: bytes) -> None:
    assert (
        fill_token_id(b"https://x.test/%b.json" % text, 0xABC)
        == b"https://x.test/%064x.json" % 0xABC
    )


@pytest.mark.parametrize(
    ("uri", "urls"),
    [
        ("https://x.test/1.json?a=b", ["https://x.test/1.json?a=b"]),
        ("HTTP://X.test:80/1 2.json", ["http://x.test/1%202.json"]),
        (
            f"ipfs://{CID}/7.json",
            [f"https://ipfs.test/ipfs/{CID}/7.json", f"http://10.0.0.7:8080/ipfs/{CID}/7.json"],
        ),
        (
            f"ipfs://ipfs/{CID}",
            [f"https://ipfs.test/ipfs/{CID}", f"http://10.0.0.7:8080/ipfs/{CID}"],
        ),
        ("ar://Tx_id-1/7", ["https://ar.test/Tx_id-1/7"]),
    ],
)
def test_a_uri_leads_to_its_server_or_to_the_gateways(uri: str, urls: list[str]) -> None:
    assert urls_of(uri) == urls


@pytest.mark.parametrize(
    "uri", [f"https://gone.test/ipfs/{CID}/7.json", f"https://{CID}.ipfs.gone.test/7.json"]
)
def test_a_url_of_an_ipfs_gateway_is_tried_first_and_then_the_configured_gateways(uri: str) -> None:
    rest = f"/ipfs/{CID}/7.json"
    assert urls_of(uri) == [uri, f"https://ipfs.test{rest}", f"http://10.0.0.7:8080{rest}"]


@pytest.mark.parametrize(
    "uri",
    [
        "{}/7.json",
        "/{}/7.json",
        "ipfs/{}/7.json",
        "/ipfs/{}/7.json",
        "ipfs:{}/7.json",
        "ipfs:///{}/7.json",
        "ipfs:///ipfs/{}/7.json",
        "IPFS://ipfs/{}/7.json",
    ],
)
@pytest.mark.parametrize("cid", [CID, CID_V0])
def test_each_form_of_an_ipfs_path_leads_to_the_gateways(uri: str, cid: str) -> None:
    assert urls_of(uri.format(cid)) == [
        f"https://ipfs.test/ipfs/{cid}/7.json",
        f"http://10.0.0.7:8080/ipfs/{cid}/7.json",
    ]
    assert content_uri(uri.format(cid)) == f"ipfs://{cid}/7.json"


@pytest.mark.parametrize("cid", [CID, CID_V0])
def test_an_id_alone_is_ipfs(cid: str) -> None:
    assert urls_of(cid)[0] == f"https://ipfs.test/ipfs/{cid}"


@pytest.mark.parametrize(
    "text",
    [
        CID_V0[:-1],
        CID_V0 + "a",
        CID_V0[:-1] + "0",
        "baf",
        CID.upper(),
        CID[:-1] + "1",
        f"x/{CID}",
        f"{CID}.json",
    ],
)
def test_a_text_that_is_no_id_is_no_ipfs(text: str) -> None:
    assert content_uri(text) is None
    assert status_of(text) is MetadataStatus.INVALID_TOKEN_URI


@pytest.mark.parametrize(
    ("path", "encoded"),
    [
        ("/a b", "/a%20b"),
        ("/a%20b", "/a%20b"),
        ("/Cat #1.json", "/Cat%20%231.json"),
        ("/what?.json", "/what%3F.json"),
        ("/what%3F.json", "/what%3F.json"),
        ("/100%.json", "/100%25.json"),
        ("/100%25.json", "/100%25.json"),
        ("/a+b&c=d;e,f@g:h", "/a+b&c=d;e,f@g:h"),
        ('/é[1]|\\"<>^`{}', "/%C3%A9%5B1%5D%7C%5C%22%3C%3E%5E%60%7B%7D"),
        ("?a=b", "?a=b"),
        ("", ""),
    ],
)
def test_each_character_of_a_path_behind_an_id_is_encoded_once(path: str, encoded: str) -> None:
    assert urls_of(f"ipfs://{CID}{path}")[0] == f"https://ipfs.test/ipfs/{CID}{encoded}"
    assert urls_of(f"{CID_V0}{path}")[0] == f"https://ipfs.test/ipfs/{CID_V0}{encoded}"
    assert urls_of(f"ar://Tx_id-1{path}") == [f"https://ar.test/Tx_id-1{encoded}"]


def test_a_configured_gateway_is_not_tried_twice() -> None:
    uri = f"https://ipfs.test/ipfs/{CID}"
    assert urls_of(uri) == [uri, f"http://10.0.0.7:8080/ipfs/{CID}"]


TEXT = json.dumps(
    {"name": "Größe #1 100%", "image": "data:image/svg+xml;utf8,<svg fill='#fff'/>"},
    ensure_ascii=False,
)


@pytest.mark.parametrize(
    "uri",
    [
        "data:application/json;base64," + b64encode(TEXT.encode()).decode(),
        "data:application/json;charset=utf-8;base64,"
        + urlsafe_b64encode(TEXT.encode()).decode().rstrip("="),
        "data:application/json;base64," + quote(b64encode(TEXT.encode()).decode()),
        "data:application/json," + quote(TEXT),
        "data:application/json;utf8," + TEXT,
        "DATA:," + TEXT,
        TEXT,
    ],
    ids=["base64", "url-safe", "quoted base64", "percent", "raw", "no media type", "bare"],
)
def test_json_in_the_uri_is_read_in_each_encoding(uri: str) -> None:
    assert TEXT.encode() in contents_of(uri)


def test_raw_json_that_percent_decoding_would_break_is_the_second_reading() -> None:
    text = '{"name":"100%25","description":"%22"}'
    assert contents_of("data:application/json," + text) == (
        b'{"name":"100%","description":"""}',
        text.encode(),
    )


def test_the_media_type_of_an_image_is_reported() -> None:
    document = parse_token_uri("data:Image/SVG+xml;base64,PHN2Zy8+", GATEWAYS)
    assert document == InlineDocument("image/svg+xml", (b"<svg/>",))


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "1.json",
        "http://",
        "https:///1",
        "http://[::1/",
        "http://[::1]@/x",
        "http://a.test:99999/",
        "ipfs://",
        "ar://",
        "data:application/json",
        "data:application/json;base64,e30*",
        "x" * 10,
        "https://a.test/" + "a" * MAX_URI_BYTES,
        "ü" * (MAX_URI_BYTES // 2 + 1),
    ],
    ids=lambda uri: uri[:30],
)
def test_a_malformed_or_too_long_uri_has_its_own_status(uri: str) -> None:
    assert status_of(uri) is MetadataStatus.INVALID_TOKEN_URI


@pytest.mark.parametrize(
    "uri", ["ftp://a.test/1", "file:///etc/passwd", "javascript:alert(1)", "ipns://a.test/1"]
)
def test_another_scheme_has_its_own_status(uri: str) -> None:
    assert status_of(uri) is MetadataStatus.INVALID_TOKEN_URI_SCHEME


@pytest.mark.parametrize("start", ["https://a.test/", "ipfs://", "ar://"])
def test_a_url_that_no_server_would_read_is_not_requested(start: str) -> None:
    assert urls_of(start + "a" * 128 + "/" + "a" * MAX_URL_BYTES) == []


@given(
    st.sampled_from(
        ["", "http://", "https://", "ipfs://", "ar://", "data:", "data:,", "data:;base64,", "{"]
    ),
    st.text(),
)
def test_any_text_leads_to_a_document_or_to_a_status(start: str, rest: str) -> None:
    try:
        document = parse_token_uri(start + rest, GATEWAYS)
    except UnusableMetadata:
        return
    assert isinstance(document, InlineDocument | RemoteDocument)
    if isinstance(document, RemoteDocument):
        assert all(url.scheme in ("http", "https") and url.raw_host for url in document.urls)


@pytest.mark.parametrize(
    ("path", "encoded"),
    [
        ("/100%/a%20b c.json", "/100%25/a%20b%20c.json"),
        ("/50%zz%2F.json", "/50%25zz%2F.json"),
        ("/%", "/%25"),
    ],
)
def test_a_percent_sign_that_encodes_nothing_is_encoded_once(path: str, encoded: str) -> None:
    cid = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
    assert content_uri(f"ipfs://{cid}{path}") == f"ipfs://{cid}{encoded}"
