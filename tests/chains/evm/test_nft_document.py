"""Metadata documents: common spellings, what passes as a URI, and bounds against hostile JSON."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpseal.chains.evm.facts import MetadataStatus
from warpseal.chains.evm.nft_document import (
    MAX_DOCUMENT_BYTES,
    MAX_LEVELS,
    Medium,
    NftFields,
    detect_medium,
    image_document,
    parse_document,
)
from warpseal.chains.evm.token_uri import UnusableMetadata


def fields_of(**document: Any) -> NftFields:
    return parse_document(json.dumps(document).encode())


def status_of(content: bytes) -> MetadataStatus:
    with pytest.raises(UnusableMetadata) as raised:
        parse_document(content)
    return raised.value.status


def test_all_fields_of_a_document_are_read() -> None:
    fields = fields_of(
        name="Cat #1",
        symbol="CAT",
        description="A cat",
        image="ipfs://Qm/1.png",
        animation_url="ar://abc",
        external_url="https://cat.test/1",
        background_color="ffffff",
        attributes=[{"trait_type": "Fur", "value": "grün"}],
        decimals=18,
        properties={"a": {"b": 1.5}},
    )
    assert fields == NftFields(
        name="Cat #1",
        symbol="CAT",
        description="A cat",
        image_uri="ipfs://Qm/1.png",
        animation_uri="ar://abc",
        external_url="https://cat.test/1",
        background="ffffff",
        attributes='[{"trait_type":"Fur","value":"grün"}]',
        decimals=18,
        properties='{"a":{"b":1.5}}',
    )


def test_an_empty_document_has_no_fields() -> None:
    assert parse_document(b"\xef\xbb\xbf {} ") == NftFields()


@pytest.mark.parametrize(
    "key", ["image", "image_url", "imageUrl", "imageURI", "image-uri", "IMAGE_URI", "image_data"]
)
def test_spellings_of_the_image(key: str) -> None:
    assert fields_of(**{key: "https://a.test/1.png"}) == NftFields(image_uri="https://a.test/1.png")


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("animation_url", "animation_uri", "https://a.test/1.mp4"),
        ("animationUrl", "animation_uri", "https://a.test/1.mp4"),
        ("animation", "animation_uri", "https://a.test/1.mp4"),
        ("external_link", "external_url", "https://a.test"),
        ("externalUrl", "external_url", "https://a.test"),
        ("backgroundColor", "background", "fff"),
        ("background", "background", "fff"),
    ],
)
def test_spellings_of_other_fields(key: str, field: str, value: str) -> None:
    assert getattr(fields_of(**{key: value}), field) == value


def test_traits_are_attributes_and_the_first_usable_spelling_counts() -> None:
    fields = fields_of(
        traits=[1], image="", image_url="javascript:alert(1)", imageUri="https://a.test/1.png"
    )
    assert fields == NftFields(attributes="[1]", image_uri="https://a.test/1.png")


@pytest.mark.parametrize(
    "uri",
    [
        "http://a.test/1",
        "HTTPS://a.test",
        "ipfs://Qm/1",
        "ar://x",
        "data:image/png;base64,AA",
        "data:video/mp4,x",
        "data:audio/ogg;base64,AA",
    ],
)
def test_uris_that_pass(uri: str) -> None:
    assert fields_of(image=f" {uri}\n", animation_url=uri, external_url=uri) == NftFields(
        image_uri=uri, animation_uri=uri, external_url=uri
    )


CID = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"


@pytest.mark.parametrize(
    "uri",
    [
        "{}/1 2.png",
        "/ipfs/{}/1 2.png",
        "ipfs/{}/1%202.png",
        "ipfs:///ipfs/{}/1 2.png",
        "ipfs://ipfs/{}/1 2.png",
    ],
)
def test_each_form_of_an_ipfs_path_is_shown_as_one(uri: str) -> None:
    display_uri = f"ipfs://{CID}/1%202.png"
    text = uri.format(CID)
    assert fields_of(image=text, animation_url=text, external_url=text) == NftFields(
        image_uri=display_uri, animation_uri=display_uri, external_url=display_uri
    )
    assert fields_of(image=CID, external_url="ar:x/#1") == NftFields(
        image_uri=f"ipfs://{CID}", external_url="ar://x/%231"
    )


@pytest.mark.parametrize("key", ["video", "Video", "file"])
def test_a_video_or_a_file_is_an_animation(key: str) -> None:
    assert fields_of(**{key: "https://a.test/1.mp4"}) == NftFields(
        animation_uri="https://a.test/1.mp4"
    )


@pytest.mark.parametrize(
    "document",
    [
        {"image": "", "Image": "https://a.test/1", "IMAGE": 5},
        {"image_url": None, "imageUrl": {"a": 1}, "image-url": "https://a.test/1"},
        {"image": ["https://a.test/2"], "image_data": "https://a.test/1"},
    ],
)
def test_an_unusable_value_hides_no_other_spelling(document: dict[str, Any]) -> None:
    assert fields_of(**document) == NftFields(image_uri="https://a.test/1")
    assert fields_of(attributes="", Attributes=[1]) == NftFields(attributes="[1]")
    assert fields_of(attributes=5, traits=[1]) == NftFields(attributes="[1]")


@pytest.mark.parametrize(
    "value",
    [
        b"1e999",
        b"-1e999",
        b"NaN",
        b"1" * 5_000,
        b'"cut \\ud83d"',
        b'["cut \\ud83d", 1e999]',
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
    ],
    ids=range(8),
)
@pytest.mark.parametrize("key", ["x", "decimals", "attributes", "properties", "image"])
def test_an_unusable_value_does_not_hide_the_rest_of_the_document(key: str, value: bytes) -> None:
    fields = parse_document(
        b'{"%b":%b,"name":"Cat","image_url":"https://a.test/1"}' % (key.encode(), value)
    )
    assert (fields.name, fields.image_uri, fields.decimals) == ("Cat", "https://a.test/1", None)


def test_a_lone_surrogate_is_only_left_out_of_its_text() -> None:
    fields = parse_document(b'{"name":"cat \\ud83d","image":"<svg>\\ud83d</svg>"}')
    assert fields.name is not None
    assert fields.name.startswith("cat ")
    assert fields.image_uri is not None


@pytest.mark.parametrize(
    "blank", ["\u00a0", "\u200b", "\ufeff", "\u2060", "\0", " \u200b\r\n\u00a0 \ufeff"]
)
def test_invisible_characters_around_a_document_are_left_out(blank: str) -> None:
    assert parse_document(f'{blank}{{"name":"x"}}{blank}'.encode()) == NftFields(name="x")


def test_invisible_characters_around_a_uri_are_left_out() -> None:
    assert fields_of(image="\u200bhttps://a.test/1\ufeff\0") == NftFields(
        image_uri="https://a.test/1"
    )


@pytest.mark.parametrize(
    ("media_type", "start", "medium"),
    [
        ("image/png", b"", Medium.IMAGE),
        ("video/mp4", b"", Medium.ANIMATION),
        ("audio/mpeg", b"", Medium.ANIMATION),
        ("model/gltf-binary", b"", Medium.ANIMATION),
        ("application/octet-stream", b"\x89PNG\r\n\x1a\n", Medium.IMAGE),
        ("", b"\xff\xd8\xff\xe0", Medium.IMAGE),
        ("binary/octet-stream", b"GIF89a", Medium.IMAGE),
        ("binary/octet-stream", b"RIFF\0\0\0\0WEBPVP8 ", Medium.IMAGE),
        ("binary/octet-stream", b"\0\0\0\x1cftypavif", Medium.IMAGE),
        ("text/plain", b"<svg xmlns='x'>", Medium.IMAGE),
        (
            "text/xml",
            b"\xef\xbb\xbf\n<?xml version='1.0'?>\n<!-- a --><!DOCTYPE svg>\n<svg>",
            Medium.IMAGE,
        ),
        ("text/html", b"<svg>", Medium.IMAGE),
        ("application/octet-stream", b"\0\0\0\x1cftypisom", Medium.ANIMATION),
        ("application/octet-stream", b"\x1aE\xdf\xa3", Medium.ANIMATION),
        ("application/octet-stream", b"glTF\x02", Medium.ANIMATION),
        ("application/octet-stream", b"ID3", Medium.ANIMATION),
        ("binary/octet-stream", b"\xff\xfb\x90\x64", Medium.ANIMATION),
        ("application/octet-stream", b"RIFF\0\0\0\0WAVE", Medium.ANIMATION),
        ("text/html", b"\n <!doctype html>", Medium.PAGE),
        ("application/xhtml+xml", b"<html>", Medium.PAGE),
        ("text/html", b'\n {"name":"x"}', None),
        ("text/html", b"not found", None),
        ("text/html", b"", None),
        ("application/octet-stream", b"<html>", None),
        ("application/octet-stream", '\ufeff{"name":"x"}'.encode("utf-16-le"), None),
        ("application/json", b"{}", None),
        ("", b"", None),
    ],
)
def test_a_medium_is_known_by_its_type_or_its_first_bytes(
    media_type: str, start: bytes, medium: Medium | None
) -> None:
    assert detect_medium(media_type, start) is medium


@pytest.mark.parametrize(
    "uri",
    [
        "javascript:alert(1)",
        "data:text/html,<script>",
        "data:application/json,{}",
        "file:///etc/passwd",
        "1.png",
        "vbscript:x",
        "blob:https://a.test/1",
        "http://",
        "https:///x",
        "//a.test/1",
        "java\nscript:https://a.test",
        "",
    ],
)
def test_other_uris_do_not_pass(uri: str) -> None:
    assert fields_of(image=uri, animation_url=uri, external_url=uri) == NftFields()
    assert image_document(uri) == NftFields()


def test_an_svg_in_the_document_becomes_a_data_uri() -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg"/>'
    fields = fields_of(image_data=svg).image_uri
    assert fields is not None
    head, _, payload = fields.partition(",")
    assert head == "data:image/svg+xml;base64"
    assert b64decode(payload).decode() == svg


def test_numbers_are_texts_and_other_values_are_left_out() -> None:
    assert fields_of(name=7, symbol=True, description={"a": 1}, image=5, decimals="6") == NftFields(
        name="7", decimals=6
    )


@pytest.mark.parametrize("decimals", [-1, 256, 1.5, True, "x", "1e3", None, [], "٣"])
def test_decimals_outside_a_byte_are_left_out(decimals: Any) -> None:
    assert fields_of(decimals=decimals) == NftFields()


def test_a_nul_is_left_out_of_texts() -> None:
    assert fields_of(name="a\0b", image="https://a.test/\0" + "1") == NftFields(
        name="ab", image_uri="https://a.test/1"
    )
    assert fields_of(properties={"a": "\0"}) == NftFields(properties='{"a":"\\u0000"}')


def test_an_erc1155_document_has_the_token_id_in_place() -> None:
    content = b'{"image":"https://a.test/{id}.png","properties":{"x":"{id}"}}'
    digits = "0" * 62 + "2a"
    assert parse_document(content, 42) == NftFields(
        image_uri=f"https://a.test/{digits}.png", properties=f'{{"x":"{digits}"}}'
    )
    assert parse_document(content).image_uri == "https://a.test/{id}.png"


@pytest.mark.parametrize("content", [b"[]", b"null", b'"text"', b"1", b"true"])
def test_json_that_is_no_object_has_its_own_status(content: bytes) -> None:
    assert status_of(content) is MetadataStatus.INVALID_METADATA


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"{",
        b"{}x",
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":1e999}',
        b"[" * MAX_DOCUMENT_BYTES,
        b'{"a":' * 100_000,
    ],
    ids=range(11),
)
def test_malformed_json_has_its_own_status(content: bytes) -> None:
    assert status_of(content) is MetadataStatus.INVALID_METADATA_JSON


def nested(levels: int) -> bytes:
    return b'{"properties":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_a_document_has_at_most_64_levels() -> None:
    assert parse_document(nested(MAX_LEVELS)).properties == "[" * (MAX_LEVELS - 1) + "]" * (
        MAX_LEVELS - 1
    )
    assert status_of(nested(MAX_LEVELS + 1)) is MetadataStatus.INVALID_METADATA_JSON
    assert parse_document(b'{"name":"%s"}' % (b"[" * 1000)).name == "[" * 1000
    assert parse_document(b'{"properties":[%s]}' % b",".join([b"{}"] * 1000)).properties is not None


def test_a_document_has_at_most_a_mebibyte_also_after_its_ids_are_filled() -> None:
    def padded(size: int) -> bytes:
        return b'{"name":"%s"}' % (b"a" * (size - 11))

    assert parse_document(padded(MAX_DOCUMENT_BYTES)).name is not None
    assert status_of(padded(MAX_DOCUMENT_BYTES + 1)) is MetadataStatus.METADATA_CONTENT_TOO_LARGE
    with pytest.raises(UnusableMetadata):
        parse_document(b'{"name":"%s"}' % (b"{id}" * 20_000), 1)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
KEYS = st.sampled_from(
    ["name", "image", "image_url", "attributes", "properties", "decimals", "external_url", "traits"]
)


@given(st.dictionaries(KEYS, JSON))
def test_json_texts_of_any_document_hold_its_values(document: dict[str, Any]) -> None:
    try:
        fields = parse_document(json.dumps(document).encode())
    except UnusableMetadata:
        return
    if document.get("properties") is not None:
        assert fields.properties is not None
        assert json.loads(fields.properties) == document["properties"]
    assert fields.decimals is None or 0 <= fields.decimals <= 255


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_a_status(content: bytes) -> None:
    try:
        fields = parse_document(content, 1)
    except UnusableMetadata:
        return
    assert isinstance(fields, NftFields)
