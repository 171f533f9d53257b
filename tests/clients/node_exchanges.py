"""What @avalanche-sdk/client 0.1.1 sends for each of its functions, as recorded, and what is right
to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.clients.recorded_network import L1_CHAIN, P_CHAIN
from tests.forwarding.evm.evm import exchanges

ADMIN: Final = "/ext/admin"
HEALTH: Final = "/ext/health"
L1_RPC: Final = f"/ext/bc/{L1_CHAIN}/rpc"
C_RPC: Final = "/ext/bc/C/rpc"
_LEVELS: Final[Mapping[str, Any]] = {"logLevel": "DEBUG", "displayLevel": "INFO"}
_RECORDED_S: Final = 1795226806


@dataclass(frozen=True)
class Exchange:
    """One call of a client's function with these arguments; path, method and params are what the
    client sends.

    expected: the result, or what it must hold.
    refusal: code and message, if an error is expected.
    """

    function: str
    arguments: Mapping[str, Any] | None
    path: str
    method: str
    params: Any
    expected: Any = field(default_factory=dict)
    refusal: tuple[int, str] | None = None

    def assert_reply(self, reply: Mapping[str, Any]) -> None:
        """Assert that a reply (result or error) is right."""
        if self.refusal is not None:
            assert (reply["error"]["code"], reply["error"]["message"]) == self.refusal, self
        elif callable(self.expected):
            assert self.expected(reply["result"]), (self, reply)
        else:
            assert reply.get("result") == self.expected, (self, reply)


def _admin(
    name: str, expected: Any = None, refusal: tuple[int, str] | None = None, **params: Any
) -> Exchange:
    expected = {} if expected is None else expected
    return Exchange(
        f"admin.{name}", params or None, ADMIN, f"admin.{name}", params, expected, refusal
    )


def _health(name: str, expected: Any, *tags: str) -> Exchange:
    params = {"tags": list(tags)} if tags else {}
    return Exchange(f"health.{name}", params or None, HEALTH, f"health.{name}", params, expected)


def _public(name: str, params: list[Any], expected: Any, **arguments: Any) -> Exchange:
    return Exchange(name, arguments, L1_RPC, f"eth_{name}", params, expected)


def _recorded(method: str, *params: Any) -> Any:
    return next(
        exchange["result"]
        for exchange in exchanges("l1-0", method)
        if exchange["params"] == list(params)
    )


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda result: set(names) <= set(result)


def _checks(*names: str) -> Callable[[Any], bool]:
    return lambda result: set(names) <= set(result["checks"]) and result["healthy"] is False


_TAKEN: Final = "route is either already aliased or already maps to a handle: /ext/well"
_NO_METHOD: Final = "the method eth_feeConfig does not exist/is not available"

EXCHANGES: Final = (
    _admin("alias", endpoint="health", alias="well"),
    _admin("alias", endpoint="health", alias="well", refusal=(-32000, _TAKEN)),
    _admin("aliasChain", chain=L1_CHAIN, alias="mine"),
    _admin("getChainAliases", chain=L1_CHAIN, expected={"aliases": [L1_CHAIN, "mine"]}),
    _admin(
        "getLoggerLevel",
        expected=lambda result: {"main", "vm-factory"} <= set(result["loggerLevels"]),
    ),
    _admin("setLoggerLevel", loggerName="vm-factory", **_LEVELS),
    _admin(
        "getLoggerLevel",
        loggerName="vm-factory",
        expected={"loggerLevels": {"vm-factory": _LEVELS}},
    ),
    _admin("loadVMs", expected={"newVMs": {}}),
    _admin("startCPUProfiler"),
    _admin("stopCPUProfiler"),
    _admin("stopCPUProfiler", refusal=(-32000, "cpu profiler doesn't exist")),
    _admin("memoryProfile"),
    _admin("lockProfile"),
    _health(
        "health",
        _checks("P", "bootstrapped", "network", "router", "database", "diskspace"),
        P_CHAIN,
    ),
    _health("readiness", lambda result: list(result["checks"]) == ["bootstrapped"], P_CHAIN),
    _health("liveness", {"checks": {}, "healthy": True}),
    _public("feeConfig", ["latest"], _recorded("eth_feeConfig")),
    _public("feeConfig", ["0x1"], _recorded("eth_feeConfig", "0x1"), blk="0x1"),
    _public("getChainConfig", [], _recorded("eth_getChainConfig")),
    _public("getActiveRulesAt", ["latest"], _recorded("eth_getActiveRulesAt")),
    _public(
        "getActiveRulesAt",
        ["0x1"],
        _has("ethRules", "avalancheRules", "precompiles"),
        timestamp="0x1",
    ),
    _public(
        "getActiveRulesAt",
        [hex(_RECORDED_S)],
        _recorded("eth_getActiveRulesAt", _RECORDED_S),
        timestamp=hex(_RECORDED_S),
    ),
    _public("baseFee", [], "0x3b9aca00"),
    _public("maxPriorityFeePerGas", [], "0x1"),
    Exchange("feeConfig", {}, C_RPC, "eth_feeConfig", ["latest"], refusal=(-32601, _NO_METHOD)),
)
"""In an order in which each can be answered: aliases and levels stay as they are set."""
