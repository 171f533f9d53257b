"""The published SDKs accept every page of endpoints 3 to 14."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.data import evm_history as h
from tests.api.data import samples as s
from tests.api.data import sdk_models as sdk
from tests.api.data.fixtures import NETWORK, P_BLOCKS, P_TXS, DataApiSetup, client_of, indexed
from tests.api.data.memory_index import FixedPrices
from tests.api.data.values import NewBlockchain
from warpseal.api.data.settings import Compat
from warpseal.chains.ids import bech32_text
from warpseal.warp.ids import id_text, node_id_text

ALICE = bech32_text("fuji", s.ALICE)
X_TXS = NETWORK + "/blockchains/x-chain/transactions"
C_TXS = NETWORK + "/blockchains/c-chain/transactions"
PLAIN_X = msgspec.structs.replace(s.LINEAR_X, kind="BaseTx", consumed=(), asset_created=None)
SETUP = replace(
    indexed(
        txs=[
            s.p_tx(1),
            s.p_tx(2, "AddAutoRenewedValidatorTx"),
            s.FULL_P,
            s.LINEAR_X,
            s.OLD_X,
            s.EXPORT,
            s.IMPORT,
        ],
        all_blocks=[s.p_block(1), s.FULL_BLOCK],
        blockchains=[s.EVM_CHAIN, s.OTHER_CHAIN],
        all_rewards=[s.reward(1), s.reward(2)],
        all_validations=s.VALIDATIONS,
    ),
    prices=FixedPrices(s.AVAX, {"usd": "42.42"}),
)
SDK = SETUP.with_data(compat=Compat.SDK)


async def body_of(setup: DataApiSetup, path: str) -> bytes:
    async with client_of(setup) as client, client.get(path) as response:
        assert response.status == 200
        return await response.read()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (P_TXS, sdk.PPage),
        (P_TXS + "?pageSize=1", sdk.PPage),
        (X_TXS, sdk.XPage),
        (C_TXS, sdk.CPage),
    ],
)
async def test_sdks_read_pages_of_transactions_as_the_right_chain(
    path: str, kind: type[Any]
) -> None:
    page = sdk.read_transactions(await body_of(SDK, path))
    assert isinstance(page, kind)
    assert page.transactions


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (P_BLOCKS, sdk.BlockPage),
        (P_BLOCKS + "?pageSize=1", sdk.BlockPage),
        (f"{NETWORK}/blockchains/{id_text(s.EVM_CHAIN.chain_id)}", sdk.Blockchain),
        (f"{NETWORK}/blockchains/{id_text(s.OTHER_CHAIN.chain_id)}", sdk.Blockchain),
        (f"{NETWORK}/addresses:listChainIds?addresses={ALICE}", sdk.Interactions),
        (f"{NETWORK}/validators/{node_id_text(s.NODE)}", sdk.ValidatorPage),
    ],
)
async def test_sdks_accept_all_other_pages_in_both_dialects(path: str, kind: type[Any]) -> None:
    for setup in (SETUP, SDK):
        assert sdk.read(await body_of(setup, path), kind)


async def test_contested_fields_follow_the_dialect() -> None:
    rewards = f"{NETWORK}/rewards?addresses={ALICE}"
    assert sdk.read(await body_of(SDK, rewards), sdk.RewardPage)
    with pytest.raises(msgspec.ValidationError):
        sdk.read(await body_of(SETUP, rewards), sdk.RewardPage)
    assert sdk.read(await body_of(replace(SETUP, prices=None), rewards), sdk.RewardPage)
    with pytest.raises(msgspec.ValidationError):
        sdk.read_transactions(await body_of(SETUP, X_TXS))


async def test_in_the_specifications_dialect_sdks_read_x_and_c_transfers_as_p_chain_ones() -> None:
    assert isinstance(
        sdk.read_transactions(await body_of(indexed(txs=[PLAIN_X]), X_TXS)), sdk.PPage
    )
    assert isinstance(sdk.read_transactions(await body_of(SETUP, C_TXS)), sdk.PPage)


@pytest.mark.parametrize("genesis", [b"\x00\xff", b"hello"])
async def test_a_genesis_of_another_vm_is_left_out_for_sdks(genesis: bytes) -> None:
    """One SDK refuses a text there, and with it the page: any page with the X-Chain's creation."""
    created = msgspec.structs.replace(
        s.FULL_P, blockchain=NewBlockchain("X-Chain", s.SUBNET, genesis)
    )
    setup = indexed(txs=[created])
    page = sdk.read_transactions(await body_of(setup.with_data(compat=Compat.SDK), P_TXS))
    assert isinstance(page, sdk.PPage)
    (info,) = [tx.blockchain_info for tx in page.transactions]
    assert isinstance(info, sdk.NewChain)
    assert (info.chain_name, info.genesis_data) == ("X-Chain", {})
    with pytest.raises(msgspec.ValidationError):
        sdk.read_transactions(await body_of(setup, P_TXS))


async def test_empty_pages_are_accepted() -> None:
    empty = indexed()
    assert sdk.read_transactions(await body_of(empty, P_TXS))
    assert sdk.read(await body_of(empty, P_BLOCKS), sdk.BlockPage)
    assert sdk.read(await body_of(empty, f"{NETWORK}/rewards?addresses={ALICE}"), sdk.RewardPage)
    assert sdk.read(
        await body_of(empty, f"{NETWORK}/validators/{node_id_text(s.NODE)}"), sdk.ValidatorPage
    )


@pytest.fixture(scope="module")
def evm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an index with every kind of contract, and of metadata."""
    folder = tmp_path_factory.mktemp("evm")
    with h.open_writer(folder) as writer:
        h.write_history(writer)
        # The status UNINDEXED is that of a token that was never fetched, for which pages would
        # wait.
        writer.write_status(h.status_of(h.CHAIN, reported_at=s.NOW - 3_600))
    return folder


EVM_PAGES = {
    h.PATH: sdk.EvmChain,
    "/v1/chains": sdk.EvmChainList,
    f"{h.PATH}/blocks/0": sdk.EvmBlock,
    f"{h.PATH}/blocks/{h.CHAIN.hashes[3]}": sdk.EvmBlock,
    f"{h.PATH}/addresses/{h.text(h.ALICE)}/transactions:listErc1155": sdk.Erc1155Page,
    f"{h.PATH}/addresses/{h.text(h.ALICE)}/balances:listCollectibles": sdk.CollectiblePage,
    f"{h.PATH}/addresses/{h.text(h.BOB)}/balances:listCollectibles": sdk.CollectiblePage,
    f"{h.PATH}/contracts/{h.text(h.ALICE)}/deployments": sdk.ContractPage,
    f"{h.PATH}/contracts/{h.text(h.FACTORY)}/deployments": sdk.ContractPage,
    f"{h.PATH}/nfts/collections/{h.text(h.CATS)}/tokens": sdk.TokenPage,
    f"{h.PATH}/nfts/collections/{h.text(h.ITEMS)}/tokens": sdk.TokenPage,
    f"{h.PATH}/nfts/collections/{h.text(h.DOGS)}/tokens": sdk.TokenPage,
    f"{h.PATH}/nfts/collections/{h.text(h.BOB)}/tokens": sdk.TokenPage,
}


@pytest.mark.parametrize(("path", "kind"), EVM_PAGES.items(), ids=EVM_PAGES)
async def test_sdks_accept_every_response_about_an_evm_chain(
    evm_folder: Path, path: str, kind: type[Any]
) -> None:
    async with h.indexed_setup(evm_folder) as setup:
        assert sdk.read(await body_of(setup.with_data(compat=Compat.SDK), path), kind)


async def test_sdks_refuse_the_status_of_metadata_as_the_specification_spells_it(
    evm_folder: Path,
) -> None:
    path = f"{h.PATH}/nfts/collections/{h.text(h.CATS)}/tokens"
    async with h.indexed_setup(evm_folder) as setup:
        with pytest.raises(msgspec.ValidationError, match="indexed"):
            sdk.read(await body_of(setup, path), sdk.TokenPage)
