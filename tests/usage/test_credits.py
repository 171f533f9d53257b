"""Credits of RPC methods, and their overrides."""

from __future__ import annotations

import pytest

from warpseal.runtime.settings import InvalidSetting
from warpseal.usage.credits import MethodCredits, credit_overrides


@pytest.mark.parametrize(
    ("method", "credits"),
    [
        ("eth_getLogs", 200),
        ("platform.getCurrentValidators", 100),
        ("platform.getValidatorsAt", 100),
        ("platform.getAllValidatorsAt", 100),
        ("platform.getUTXOs", 100),
        ("avm.getUTXOs", 100),
        ("avax.getUTXOs", 100),
        ("index.getContainerRange", 100),
        ("info.peers", 100),
        ("eth_getCode", 20),
        ("net_peerCount", 20),
        ("eth_chainId", 1),
        ("info.getNetworkID", 1),
        ("platform.getHeight", 10),
        ("eth_call", 10),
        ("eth_getlogs", 10),
        ("no such method", 10),
        ("x" * 1_000_000, 10),
    ],
)
def test_every_method_has_credits(method: str, credits: int) -> None:
    assert MethodCredits().of(method) == credits


def test_overrides_win_over_defaults_and_the_longest_name_over_others() -> None:
    overrides = {"platform.*": 7, "platform.get*": 8, "platform.getHeight": 9, "eth_getLogs": 0}
    credits = MethodCredits(credit_overrides(overrides, "method-credits"))
    methods = (
        "platform.issueTx",
        "platform.getCurrentValidators",
        "platform.getHeight",
        "eth_getLogs",
        "eth_getCode",
    )
    assert [credits.of(method) for method in methods] == [7, 8, 9, 0, 20]


@pytest.mark.parametrize(
    "value",
    [
        {"*": 1},
        {"eth_get*Logs": 1},
        {"eth_getLogs": -1},
        {"eth_getLogs": "many"},
        ["eth_getLogs"],
        "eth=1",
    ],
)
def test_malformed_overrides_are_errors_of_the_setting(value: object) -> None:
    with pytest.raises(InvalidSetting, match="method-credits"):
        credit_overrides(value, "method-credits")
