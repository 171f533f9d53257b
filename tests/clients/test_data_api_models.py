"""Every page that a running daemon returns about the recorded network fits the strict models of
what SDKs insist on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.data import sdk_models as sdk
from tests.clients.past import past_of, priced_daemon
from tests.clients.recorded_network import RecordedDaemon
from tests.clients.subjects import NETWORK, SUBJECTS, WALLET, Subject, ids_of
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENT = {"user-agent": "speakeasy-sdk/typescript 0.13.0 2.651.2 1.0.0 @avalabs/avacloud-sdk"}
_TRANSACTIONS = (sdk.PPage, sdk.XPage, sdk.CPage)
SIZES = {
    "transactions.listLatest": 3,
    "blocks.listLatest": 4,
    "rewards.listHistoricalRewards": 3,
    "getValidatorDetails": 1,
    "listL1Validators": 1,
}


async def bodies(daemon: Daemon, url: str, headers: dict[str, str]) -> list[bytes]:
    """Return all pages."""
    bodies: list[bytes] = []
    token = ""
    while token is not None:
        mark = "&" if "?" in url else "?"
        async with daemon.session.get(
            daemon.api_url + url + (f"{mark}pageToken={token}" if token else ""), headers=headers
        ) as response:
            assert response.status == 200, await response.text()
            bodies.append(await response.read())
        token = msgspec.json.decode(bodies[-1]).get("nextPageToken")
    return bodies


def paged(subject: Subject) -> Subject:
    size = SIZES.get(subject.function)
    return subject if size is None else subject.with_page_size(size)


async def assert_fits(daemon: Daemon, subject: Subject) -> None:
    """Assert that pages fit the subject's model, and hold the same items for any page size."""
    pages = await bodies(daemon, paged(subject).url, AGENT)
    for page in pages:
        result = (
            sdk.read_transactions(page)
            if subject.model in _TRANSACTIONS
            else sdk.read(page, subject.model)
        )
        assert isinstance(result, subject.model)
    whole = await bodies(
        daemon, subject.with_page_size(100).url if len(pages) > 1 else subject.url, AGENT
    )
    assert ids_of(list(map(msgspec.json.decode, pages))) == ids_of(
        list(map(msgspec.json.decode, whole))
    )


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
async def test_every_page_has_what_sdks_require(recorded: RecordedDaemon, subject: Subject) -> None:
    await assert_fits(recorded.daemon, subject)


async def test_pages_of_rewards_and_past_validations_have_what_sdks_require(tmp_path: Path) -> None:
    async with priced_daemon(tmp_path) as daemon:
        for subject in await past_of(daemon):
            await assert_fits(daemon, subject)


@pytest.mark.parametrize(
    "subject", [subject for subject in SUBJECTS if subject.model not in _TRANSACTIONS], ids=str
)
async def test_fields_that_all_sdks_agree_on_have_their_values(
    recorded: RecordedDaemon, subject: Subject
) -> None:
    assert await bodies(recorded.daemon, subject.url, {}) == await bodies(
        recorded.daemon, subject.url, AGENT
    )


async def test_the_wallet_was_on_all_three_chains(recorded: RecordedDaemon) -> None:
    """No SDK takes this: their list of blockchain ids is that of the public networks."""
    (body,) = await bodies(
        recorded.daemon, f"/v1/networks/{NETWORK}/addresses:listChainIds?addresses={WALLET}", AGENT
    )
    result: dict[str, Any] = msgspec.json.decode(body)
    (one,) = result["addresses"]
    assert (list(result), list(one), len(set(one["blockchainIds"]))) == (
        ["addresses"],
        ["address", "blockchainIds"],
        3,
    )
    with pytest.raises(msgspec.ValidationError):
        sdk.read(body, sdk.Interactions)
