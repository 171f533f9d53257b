"""Sources and destinations of imports and exports, and rewards of subnets without a token."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.api.data import samples as s
from tests.api.data.fixtures import NETWORK, P_TXS, get, indexed
from warpseal.api.data.settings import Compat
from warpseal.warp.ids import P_CHAIN, id_text

X_TXS = NETWORK + "/blockchains/x-chain/transactions"


@pytest.mark.parametrize("compat", [Compat.SPEC, Compat.SDK])
async def test_imports_and_exports_have_a_source_and_a_destination(compat: Compat) -> None:
    p_import = msgspec.structs.replace(s.p_tx(98), kind="ImportTx", source_chain=s.CHAINS.x)
    p_export = msgspec.structs.replace(s.p_tx(99), kind="ExportTx", destination_chain=s.CHAINS.c)
    x_export = msgspec.structs.replace(
        s.LINEAR_X, kind="ExportTx", source_chain=None, destination_chain=P_CHAIN
    )
    setup = indexed(txs=[p_import, p_export, x_export]).with_data(compat=compat)
    p_ends = [ends(tx) for tx in (await get(setup, P_TXS))["transactions"]]
    x, c, p = id_text(s.CHAINS.x), id_text(s.CHAINS.c), id_text(P_CHAIN)
    assert sorted(p_ends) == sorted([(x, p), (p, c)])
    assert [ends(tx) for tx in (await get(setup, X_TXS))["transactions"]] == [(x, p)]


def ends(tx: dict[str, Any]) -> tuple[str, str]:
    return tx["sourceChain"], tx["destinationChain"]


async def test_a_permissioned_subnet_has_no_estimated_reward() -> None:
    added = msgspec.structs.replace(s.p_tx(1), kind="AddSubnetValidatorTx", estimated_reward=0)
    (transaction,) = (await get(indexed(txs=[added]), P_TXS))["transactions"]
    assert "estimatedReward" not in transaction
