"""Every page that a running daemon tells of the recorded network fits the strict models of what SDKs insist on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.api.data import sdk_models as sdk
from tests.clients.recorded_network import Scene
from tests.clients.subjects import NETWORK, SUBJECTS, WALLET, Subject, ids_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENT = {"user-agent": "speakeasy-sdk/typescript 0.13.0 2.651.2 1.0.0 @avalabs/avacloud-sdk"}
_TRANSACTIONS = (sdk.PPage, sdk.XPage, sdk.CPage)
SIZES = {"transactions.listLatest": 3, "blocks.listLatest": 4, "getValidatorDetails": 1}


async def bodies(scene: Scene, url: str, headers: dict[str, str]) -> list[bytes]:
    """Return all pages."""
    found: list[bytes] = []
    token = ""
    while token is not None:
        mark = "&" if "?" in url else "?"
        async with scene.daemon.session.get(
            scene.daemon.api_url + url + (f"{mark}pageToken={token}" if token else ""), headers=headers
        ) as answer:
            assert answer.status == 200, await answer.text()
            found.append(await answer.read())
        token = msgspec.json.decode(found[-1]).get("nextPageToken")
    return found


def paged(subject: Subject) -> Subject:
    size = SIZES.get(subject.function)
    return subject if size is None else subject.with_page_size(size)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
async def test_every_page_has_what_sdks_require(scene: Scene, subject: Subject) -> None:
    pages = await bodies(scene, paged(subject).url, AGENT)
    for page in pages:
        told = sdk.read_transactions(page) if subject.model in _TRANSACTIONS else sdk.read(page, subject.model)
        assert isinstance(told, subject.model)
    (whole,) = await bodies(scene, subject.with_page_size(100).url if len(pages) > 1 else subject.url, AGENT)
    assert ids_of(list(map(msgspec.json.decode, pages))) == ids_of([msgspec.json.decode(whole)])


@pytest.mark.parametrize("subject", [one for one in SUBJECTS if one.model not in _TRANSACTIONS], ids=str)
async def test_what_nobody_contests_is_the_same_for_everybody(scene: Scene, subject: Subject) -> None:
    assert await bodies(scene, subject.url, {}) == await bodies(scene, subject.url, AGENT)


async def test_the_wallet_was_on_all_three_chains(scene: Scene) -> None:
    """No SDK takes this: their list of blockchain ids is that of the public networks."""
    (body,) = await bodies(scene, f"/v1/networks/{NETWORK}/addresses:listChainIds?addresses={WALLET}", AGENT)
    told: dict[str, Any] = msgspec.json.decode(body)
    (one,) = told["addresses"]
    assert (list(told), list(one), len(set(one["blockchainIds"]))) == (["addresses"], ["address", "blockchainIds"], 3)
    with pytest.raises(msgspec.ValidationError):
        sdk.read(body, sdk.Interactions)
