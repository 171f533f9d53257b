"""Endpoint 3: every field and filter, on all three chains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from yarl import URL

from tests.api.data import samples as s
from tests.api.data.fixtures import NETWORK, P_TXS, DataApiSetup, client_of, get, indexed
from tests.api.data.values import NewBlockchain
from warpseal.api.data.endpoints import find_endpoint
from warpseal.api.data.pages import body_classes
from warpseal.api.data.settings import Compat
from warpseal.chains.ids import Address, address_text, bech32_text
from warpseal.resources.chains import PrimaryChain
from warpseal.warp.ids import id_text, node_id_text

ALICE = bech32_text("fuji", s.ALICE)
BOB = bech32_text("fuji", s.BOB)
AVAX = {
    "assetId": id_text(s.AVAX.asset_id),
    "name": "Avalanche",
    "symbol": "AVAX",
    "denomination": 9,
    "type": "secp256k1",
}
KEY = {"publicKey": s.KEY.public_key, "proofOfPossession": s.KEY.proof_of_possession}
X_TXS = NETWORK + "/blockchains/x-chain/transactions"
C_TXS = NETWORK + "/blockchains/c-chain/transactions"


def hashes(page: Any) -> list[str]:
    return [tx["txHash"] for tx in page["transactions"]]


def ids(*numbers: int) -> list[str]:
    return [id_text(s.tx_id(number)) for number in numbers]


async def test_a_plain_transaction_has_no_unknown_fields() -> None:
    page = await get(indexed(txs=[s.p_tx(1)]), P_TXS)
    p_chain = id_text(bytes(32))
    assert page == {
        "transactions": [
            {
                "txHash": ids(1)[0],
                "txType": "BaseTx",
                "blockTimestamp": 1001,
                "blockNumber": "1",
                "blockHash": id_text(s.block_id(1)),
                "memo": "0x",
                "consumedUtxos": [],
                "emittedUtxos": [
                    {
                        "addresses": [ALICE],
                        "asset": {**AVAX, "amount": "5"},
                        "consumedOnChainId": p_chain,
                        "createdOnChainId": p_chain,
                        "utxoId": id_text(s.utxo(1).utxo_id),
                        "amount": "5",
                        "assetId": AVAX["assetId"],
                        "blockNumber": "1",
                        "blockTimestamp": 1001,
                        "outputIndex": 1,
                        "txHash": ids(1)[0],
                        "utxoType": "TRANSFER",
                        "platformLocktime": 0,
                        "threshold": 1,
                    }
                ],
                "value": [{**AVAX, "amount": "5"}],
                "amountBurned": [],
                "amountStaked": [],
                "amountL1ValidatorBalanceBurned": [],
            }
        ],
        "chainInfo": {"chainName": "p-chain", "network": "fuji"},
    }


async def test_a_transaction_has_every_known_field() -> None:
    (tx,) = (await get(indexed(txs=[s.FULL_P]), P_TXS))["transactions"]
    (consumed,) = tx.pop("consumedUtxos")
    tx.pop("emittedUtxos")
    info = tx.pop("blockchainInfo")
    assert tx == {
        "txHash": ids(50)[0],
        "txType": "AddPermissionlessValidatorTx",
        "blockTimestamp": 1050,
        "blockNumber": "50",
        "blockHash": id_text(s.block_id(50)),
        "value": [{**AVAX, "amount": "5"}],
        "amountBurned": [{**AVAX, "amount": "1"}],
        "amountStaked": [{**AVAX, "amount": "2"}],
        "amountL1ValidatorBalanceBurned": [{**AVAX, "amount": "3"}],
        "sourceChain": id_text(s.CHAINS.x),
        "destinationChain": id_text(s.CHAINS.c),
        "memo": "0x6869",
        "startTimestamp": 20,
        "endTimestamp": 30,
        "delegationFeePercent": "2.5",
        "nodeId": node_id_text(s.NODE),
        "subnetId": id_text(bytes(32)),
        "l1ValidatorManagerDetails": {
            "blockchainId": id_text(s.CHAINS.c),
            "contractAddress": "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        },
        "l1ValidatorDetails": [
            {
                "validationId": id_text(s.VALIDATION),
                "validationIdHex": "0x" + "7a" * 32,
                "nodeId": node_id_text(s.NODE),
                "subnetId": id_text(s.SUBNET),
                "weight": 100,
                "remainingBalance": 7,
                "balanceChange": -3,
                "blsCredentials": KEY,
            }
        ],
        "estimatedReward": "40",
        "rewardTxHash": ids(51)[0],
        "stakingTxHash": ids(49)[0],
        "rewardAddresses": [BOB],
        "subnetOwnershipInfo": {"locktime": 0, "threshold": 1, "addresses": [ALICE, BOB]},
        "blsCredentials": KEY,
    }
    assert (info["chainName"], info["vmId"]) == ("dexalot", id_text(s.SUBNET))
    assert info["genesisData"]["config"]["chainId"] == 99999
    assert {
        "stakeableLocktime": 12,
        "platformLocktime": 11,
        "consumingTxHash": ids(8)[0],
        "consumingBlockNumber": "9",
        "consumingBlockTimestamp": 10,
        "staked": True,
        "utxoType": "STAKE",
        "utxoStartTimestamp": 13,
        "utxoEndTimestamp": 14,
        "rewardType": "VALIDATOR_FEE",
        "utxoBytes": "0x0001",
        "incomplete": True,
    }.items() <= consumed.items()


async def test_a_type_that_no_sdk_knows_is_unknown() -> None:
    page = await get(indexed(txs=[s.p_tx(1, "AddAutoRenewedValidatorTx")]), P_TXS)
    assert page["transactions"][0]["txType"] == "UNKNOWN"


@pytest.mark.parametrize(("genesis", "expected"), [(b"\x00\xff", "0x00ff"), (b"hello", "hello")])
async def test_a_genesis_of_another_vm_is_a_text_in_a_transaction(
    genesis: bytes, expected: str
) -> None:
    tx = msgspec.structs.replace(s.FULL_P, blockchain=NewBlockchain("hyper", s.SUBNET, genesis))
    page = await get(indexed(txs=[tx]), P_TXS)
    assert page["transactions"][0]["blockchainInfo"]["genesisData"] == expected


async def test_x_chain_transactions_have_the_keys_of_the_specification_and_of_the_sdks() -> None:
    page = await get(indexed(txs=[s.LINEAR_X, s.OLD_X]), X_TXS)
    old, linear = page["transactions"]
    assert linear["chainFormat"] == "linear"
    assert (linear["blockNumber"], linear["blockHeight"], linear["timestamp"]) == ("60", 60, 1060)
    assert [amount["amount"] for amount in linear["amountUnlocked"]] == ["1", "10"]
    assert linear["value"] == linear["amountCreated"] == [{**AVAX, "amount": "9"}]
    assert [(item["symbol"], item["type"], item["amount"]) for item in linear["amountBurned"]] == [
        ("CAT", "nft", "1"),
        ("AVAX", "secp256k1", "1"),
    ]
    assert linear["assetCreated"]["cap"] == "fixed"
    nft = linear["consumedUtxos"][0]
    assert (nft["outputIndex"], nft["groupId"], nft["payload"], nft["utxoType"]) == (
        3,
        4,
        "0xff",
        "NFT_TRANSFER",
    )
    assert nft["creationTxHash"] == nft["txHash"]
    assert nft["credentials"] == [
        {"signature": "0x" + "01" * 65, "publicKey": "0x" + "02" * 33},
        {"signature": "0x" + "03" * 65},
    ]
    assert old["chainFormat"] == "non-linear"
    assert old["vertices"] == [{"hash": id_text(b"\x99" * 32), "height": 12, "timestamp": 1061}]
    assert old["approximate"] is True
    assert "blockHash" not in old
    assert "blockNumber" not in old


async def test_atomic_transactions_have_accounts_and_outputs() -> None:
    page = await get(indexed(txs=[s.EXPORT, s.IMPORT]), C_TXS, addresses="0x" + s.ACCOUNT.hex())
    imported, exported = page["transactions"]
    assert exported["evmInputs"][0]["fromAddress"] == "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    assert exported["blockHash"] == "0x" + s.block_id(70).hex()
    assert (exported["amountUnlocked"], exported["amountCreated"], exported["amountBurned"]) == (
        [{**AVAX, "amount": "5"}],
        [{**AVAX, "amount": "4"}],
        [{**AVAX, "amount": "1"}],
    )
    assert "evmOutputs" not in exported
    assert imported["evmOutputs"] == [
        {
            "toAddress": "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
            "asset": {**AVAX, "amount": "7"},
        }
    ]
    assert hashes(await get(indexed(txs=[s.EXPORT, s.IMPORT]), C_TXS, addresses=f"C-{BOB}")) == ids(
        71
    )


async def test_in_the_sdk_dialect_keys_are_those_of_the_sdks() -> None:
    setup = indexed(txs=[s.LINEAR_X, s.OLD_X, s.EXPORT, s.IMPORT]).with_data(compat=Compat.SDK)
    old, linear = (await get(setup, X_TXS))["transactions"]
    assert linear["consumedUtxos"][0]["outputIndex"] == "3"
    assert linear.keys() == {
        "txHash", "chainFormat", "timestamp", "txType", "memo", "consumedUtxos", "emittedUtxos",
        "amountUnlocked", "amountCreated", "blockHeight", "blockHash", "assetCreated",
    }  # fmt: skip
    assert {"vertices", "memo"} <= old.keys()
    imported, exported = (await get(setup, C_TXS))["transactions"]
    assert {"evmInputs", "emittedUtxos"} <= exported.keys()
    assert not {"evmOutputs", "consumedUtxos", "blockNumber"} & exported.keys()
    assert {"evmOutputs", "consumedUtxos"} <= imported.keys()
    assert not {"evmInputs", "emittedUtxos"} & imported.keys()


@pytest.mark.parametrize(
    ("headers", "index"),
    [
        (
            {"user-agent": "speakeasy-sdk/typescript 0.13.0 2.651.2 1.0.0 @avalabs/avacloud-sdk"},
            "3",
        ),
        (
            {"user-agent": "speakeasy-sdk/typescript 0.3.13 2.792.2 1.0.0 @avalanche-sdk/chainkit"},
            "3",
        ),
        ({"user-agent": "Mozilla/5.0", "x-app-component": "avacloud-sdk"}, "3"),
        ({"user-agent": "Mozilla/5.0", "x-app-component": "wallet", "x-glacier-api-key": "key"}, 3),
        ({"user-agent": "curl/8 speakeasy-sdk/typescript"}, 3),
        ({}, 3),
    ],
)
async def test_sdks_are_recognized_by_default(headers: dict[str, str], index: int | str) -> None:
    """By their user agent, or where a browser sets that, by the header that avacloud-sdk adds."""
    async with (
        client_of(indexed(txs=[s.LINEAR_X])) as client,
        client.get(X_TXS, headers=headers) as response,
    ):
        (tx,) = (await response.json())["transactions"]
        assert "User-Agent, X-App-Component" in response.headers.getall("vary")
    assert tx["consumedUtxos"][0]["outputIndex"] == index


@pytest.mark.parametrize(
    ("compat", "path", "shape"),
    [
        (Compat.SPEC, P_TXS, "PChainTransactions"),
        (Compat.SPEC, X_TXS, "XChainTransactions"),
        (Compat.SPEC, C_TXS, "CChainTransactions"),
        (Compat.SDK, P_TXS, "PChainTransactions"),
        (Compat.SDK, X_TXS, "SdkXChainTransactions"),
        (Compat.SDK, C_TXS, "SdkCChainTransactions"),
    ],
)
async def test_every_page_matches_its_schema(compat: Compat, path: str, shape: str) -> None:
    setup = indexed(txs=[s.p_tx(1), s.FULL_P, s.LINEAR_X, s.OLD_X, s.EXPORT, s.IMPORT]).with_data(
        compat=compat
    )
    page = await get(setup, path)
    bodies = body_classes(find_endpoint("listLatestPrimaryNetworkTransactions"))
    strict = msgspec.convert(page, next(body for body in bodies if body.__name__ == shape))
    assert msgspec.json.decode(msgspec.json.encode(strict)) == page
    assert page["transactions"]


TWO_OWNERS = [
    s.p_tx(1),
    s.p_tx(2, "ExportTx"),
    s.p_tx(3, owner=s.BOB),
    s.p_tx(4, "ImportTx"),
    s.FULL_P,
]


@pytest.mark.parametrize(
    ("params", "numbers"),
    [
        ({}, (50, 4, 3, 2, 1)),
        ({"sortOrder": "asc"}, (1, 2, 3, 4, 50)),
        ({"addresses": BOB}, (3,)),
        ({"addresses": f"P-{BOB}"}, (3,)),
        ({"addresses": f"X-{BOB},{ALICE}"}, (50, 4, 3, 2, 1)),
        ({"addresses": ALICE, "txTypes": "ExportTx"}, (2,)),
        ({"addresses": ALICE, "txTypes": "ExportTx,ImportTx"}, (4, 2)),
        ({"addresses": ALICE, "startTimestamp": 1002, "endTimestamp": 1004}, (4, 2)),
        ({"addresses": ALICE, "startTimestamp": 1005, "endTimestamp": 1006}, ()),
        ({"l1ValidationId": id_text(s.VALIDATION)}, (50,)),
        ({"l1ValidationId": "0x" + s.VALIDATION.hex(), "txTypes": "ConvertSubnetToL1Tx"}, ()),
        ({"l1ValidationId": id_text(s.VALIDATION), "startTimestamp": 1051}, ()),
        ({"pageSize": 2}, (50, 4)),
        ({"addresses": "", "pageToken": ""}, (50, 4, 3, 2, 1)),
    ],
)
async def test_filters_select_transactions(
    params: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    assert hashes(await get(indexed(txs=TWO_OWNERS), P_TXS, **params)) == ids(*numbers)


async def test_types_may_be_repeated() -> None:
    page = await get(
        indexed(txs=TWO_OWNERS), f"{P_TXS}?addresses={ALICE}&txTypes=ExportTx&txTypes=ImportTx"
    )
    assert hashes(page) == ids(4, 2)


@pytest.mark.parametrize(
    ("path", "params", "field"),
    [
        (P_TXS, {"txTypes": "BaseTx"}, "txTypes"),
        (P_TXS, {"startTimestamp": 1}, "startTimestamp"),
        (P_TXS, {"endTimestamp": 1}, "endTimestamp"),
        (P_TXS, {"addresses": ALICE, "startTimestamp": 5, "endTimestamp": 4}, "endTimestamp"),
        (P_TXS, {"addresses": ALICE, "startTimestamp": "-1"}, "startTimestamp"),
        (P_TXS, {"addresses": ALICE, "startTimestamp": "1.5"}, "startTimestamp"),
        (P_TXS, {"addresses": ALICE, "txTypes": "NoTx"}, "txTypes"),
        (P_TXS, {"addresses": address_text(1, s.ALICE)}, "addresses"),
        (P_TXS, {"addresses": "0x" + s.ACCOUNT.hex()}, "addresses"),
        (P_TXS, {"addresses": "0x12"}, "addresses"),
        (P_TXS, {"addresses": ALICE[:-1] + "q"}, "addresses"),
        (P_TXS, {"addresses": f"Q-{ALICE}"}, "addresses"),
        (P_TXS, {"addresses": f"{ALICE},,"}, "addresses"),
        (
            P_TXS,
            {
                "addresses": ",".join(
                    bech32_text("fuji", Address(bytes([n]) * 20)) for n in range(65)
                )
            },
            "addresses",
        ),
        (P_TXS, {"l1ValidationId": "xyz"}, "l1ValidationId"),
        (X_TXS, {"l1ValidationId": id_text(s.VALIDATION)}, "l1ValidationId"),
        (P_TXS, {"pageSize": 0}, "pageSize"),
        (P_TXS, {"pageSize": 101}, "pageSize"),
        (P_TXS, {"pageSize": "ten"}, "pageSize"),
        (P_TXS, {"sortOrder": "DESC"}, "sortOrder"),
        (P_TXS, {"adresses": ALICE}, "adresses"),
        (NETWORK + "/blockchains/q-chain/transactions", {}, "blockchainId"),
    ],
)
async def test_an_error_names_the_invalid_parameter(
    path: str, params: dict[str, Any], field: str
) -> None:
    body = await get(indexed(txs=TWO_OWNERS), path, 400, **params)
    assert body["detail"]["field"] == field
    assert field in body["message"]
    assert (body["error"], body["statusCode"]) == ("Bad Request", 400)


async def test_sixty_four_addresses_are_allowed() -> None:
    addresses = ",".join(bech32_text("fuji", Address(bytes([n]) * 20)) for n in range(64))
    assert len(hashes(await get(indexed(txs=TWO_OWNERS), P_TXS, addresses=addresses))) == 5


async def test_unknown_parameters_are_ignored_and_named_in_a_header() -> None:
    query = "?utm_source=wallet&_=17&rltoken=secret&x%0d%0ay=1&utm_source=again"
    async with (
        client_of(indexed(txs=[s.p_tx(1)])) as client,
        client.get(URL(P_TXS + query, encoded=True)) as response,
    ):
        assert (response.status, hashes(await response.json())) == (200, ids(1))
        assert response.headers["x-warpseal-ignored"] == "_, utm_source, x%0D%0Ay"
    many = "&".join(f"parameter{number}=1" for number in range(33))
    assert "32 unknown parameters" in (await get(indexed(), f"{P_TXS}?{many}", 400))["message"]


@pytest.mark.parametrize(
    "name", ["adresses", "addressess", "addreses", "addressse", "Addresses", "addressez"]
)
async def test_a_parameter_within_a_letter_of_a_known_one_is_refused(name: str) -> None:
    message = (await get(indexed(), P_TXS, 400, **{name: ALICE}))["message"]
    assert "did you mean addresses?" in message


async def test_a_misspelled_parameter_is_refused_with_a_suggestion_or_ignored() -> None:
    setup = indexed(txs=[s.p_tx(1)])
    assert "did you mean addresses?" in (await get(setup, P_TXS, 400, adresses=ALICE))["message"]
    lenient = replace(
        setup, settings=msgspec.structs.replace(setup.settings, ignore_unknown_fields=True)
    )
    assert hashes(await get(lenient, P_TXS, adresses=BOB)) == ids(1)


async def test_a_repeated_parameter_must_have_the_same_value() -> None:
    setup = indexed(txs=[s.p_tx(1)])
    assert (await get(setup, P_TXS + "?pageSize=1&pageSize=2", 400))[
        "code"
    ] == "conflicting_spellings"
    assert hashes(await get(setup, P_TXS + "?pageSize=1&pageSize=1")) == ids(1)


async def test_chains_are_found_by_alias_and_by_id() -> None:
    setup = indexed(txs=[s.p_tx(1), s.LINEAR_X])
    by_id = f"{NETWORK}/blockchains/{id_text(bytes(32))}/transactions"
    assert (await get(setup, by_id))["chainInfo"]["chainName"] == "p-chain"
    by_id = f"{NETWORK}/blockchains/{id_text(s.CHAINS.x)}/transactions"
    assert hashes(await get(setup, by_id)) == ids(60)
    by_hex = f"{NETWORK}/blockchains/0x{s.CHAINS.x.hex()}/transactions"
    assert hashes(await get(setup, by_hex)) == ids(60)


async def test_another_blockchain_has_no_transactions_here() -> None:
    body = await get(indexed(), f"{NETWORK}/blockchains/{id_text(s.SUBNET)}/transactions", 404)
    assert body["code"] == "not_a_primary_chain"
    assert body["detail"]["blockchainIds"]["x-chain"] == id_text(s.CHAINS.x)


async def test_a_chain_that_is_not_indexed_is_an_error() -> None:
    setup = indexed(txs=[s.p_tx(1)])
    assert setup.index is not None
    setup.index.chains = [freshness for freshness in s.FRESH if freshness.chain == PrimaryChain.P]
    assert (await get(setup, X_TXS, 404))["code"] == "index_not_enabled"
    assert hashes(await get(setup, P_TXS)) == ids(1)


async def test_the_network_is_echoed_as_spelled_in_the_path() -> None:
    setup = indexed(txs=[s.p_tx(1)])
    page = await get(setup, "/v1/networks/testnet/blockchains/p-chain/transactions")
    assert page["chainInfo"]["network"] == "testnet"
    body = await get(setup, "/v1/networks/mainnet/blockchains/p-chain/transactions", 404)
    assert (body["code"], body["detail"]["served"]) == ("network_not_served", ["fuji", "testnet"])


async def test_a_page_with_too_many_outputs_ends_early_with_a_next_page_token() -> None:
    heavy = [s.p_tx(n, emitted=tuple(s.utxo(1) for _ in range(400))) for n in range(1, 6)]
    setup = indexed(txs=heavy)
    page = await get(setup, P_TXS)
    assert hashes(page) == ids(5, 4)
    assert hashes(await get(setup, P_TXS, pageToken=page["nextPageToken"])) == ids(3, 2)


async def test_without_an_index_there_are_no_transactions() -> None:
    body = await get(DataApiSetup(index=None), P_TXS, 404)
    assert (body["code"], body["error"]) == ("index_not_enabled", "Not Found")
