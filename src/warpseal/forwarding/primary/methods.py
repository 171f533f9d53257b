"""Methods and routes of the primary network's nodes that the gateway forwards.

Source of truth: avalanchego 1.14.1 to 1.15.3, `service.go` files, `api/server`, `vms/*/vm.go`
(CreateHandlers) and `indexer/indexer.go`. Methods that newer nodes lack stay in the list while
older nodes have them. Services that hold or unlock keys (keystore, wallet) and those of operators
(admin, health) are not among them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from warpseal.forwarding.evm.methods import DenyList
from warpseal.resources.chains import PrimaryChain

HEIGHT_METHODS: Final = frozenset({"platform.getHeight", "avm.getHeight"})
"""Methods whose result names the last block of the node."""
SERVICES: Final = ("platform", "avm", "avax", "proposervm", "info", "index")

_READS: Final = {
    "platform": (
        "getAllValidatorsAt", "getBalance", "getBlock", "getBlockByHeight", "getBlockchainStatus",
        "getBlockchains", "getCurrentSupply", "getCurrentValidators", "getFeeConfig",
        "getFeeState", "getHeight", "getL1Validator", "getMinStake", "getProposedHeight",
        "getRewardUTXOs", "getStake", "getStakingAssetID", "getSubnet", "getSubnets",
        "getTimestamp", "getTotalStake", "getTx", "getTxStatus", "getUTXOs",
        "getValidatorFeeConfig", "getValidatorFeeState", "getValidatorsAt", "sampleValidators",
        "validatedBy", "validates",
    ),
    "avm": (
        "getAllBalances", "getAssetDescription", "getBalance", "getBlock", "getBlockByHeight",
        "getHeight", "getTx", "getTxFee", "getTxStatus", "getUTXOs",
    ),
    "avax": ("getAtomicTx", "getAtomicTxStatus", "getUTXOs"),
    "proposervm": ("getCurrentEpoch", "getProposedHeight"),
    "info": (
        "acps", "getBlockchainID", "getNetworkID", "getNetworkName", "getNodeID", "getNodeIP",
        "getNodeVersion", "getTxFee", "getVMs", "isBootstrapped", "peers", "upgrades", "uptime",
    ),
    "index": (
        "getContainerByID", "getContainerByIndex", "getContainerRange", "getIndex",
        "getLastAccepted", "isAccepted",
    ),
}  # fmt: skip
_WRITES: Final = ("platform.issueTx", "avm.issueTx", "avax.issueTx")

READS: Final = frozenset(f"{service}.{name}" for service, names in _READS.items() for name in names)
"""Methods that any node may be asked, any number of times. All others are sent once."""
KNOWN_METHODS: Final = READS | frozenset(_WRITES)
"""Methods that are forwarded unless the settings say otherwise."""


class AllowedMethods:
    """The methods that are forwarded: the known and the allowed ones, without the denied ones.

    metered: methods with a label of their own, known or allowed by name.
    allowed, denied: names of methods; a trailing * stands for any ending.
    """

    def __init__(self, allowed: Iterable[str] = (), denied: Iterable[str] = ()) -> None:
        self._denied = DenyList(denied)
        self._plain = frozenset(
            method for method in KNOWN_METHODS if not self._denied.denies(method)
        )
        listed = tuple(allowed)
        self._listed = frozenset(name for name in listed if not name.endswith("*"))
        self.metered = KNOWN_METHODS | self._listed
        self._prefixes = tuple(name[:-1] for name in listed if name.endswith("*"))

    def allow(self, method: str) -> bool:
        """Return whether a method is forwarded."""
        if method in self._plain:
            return True
        is_listed = method in self._listed or method.startswith(self._prefixes)
        # Nodes make the first letter of a name upper case: they read "\u017f" as "S", and would
        # miss no denied method.
        return is_listed and method.isascii() and not self._denied.denies(method)


INFO: Final = "info"
CHAIN: Final = "bc"
INDEX: Final = "index"


class GatewayRoute(Struct, frozen=True):
    """A route of one service.

    chain: chain by whose height the nodes are compared.
    parent: `bc` or `index`, below which the chain has its routes; `info` belongs to no chain.
    sub_route: part of the path after the chain.
    """

    service: str
    chain: PrimaryChain
    parent: str
    sub_route: str = ""

    def endpoint(self, chain_name: str | None = None) -> str:
        """Return the path after `/ext/` without the sub-route.

        chain_name: name of the chain in the path; None stands for the primary alias.
        """
        if self.parent == INFO:
            return INFO
        return f"{self.parent}/{chain_name or self.chain.name}"

    @property
    def path(self) -> str:
        """The path at a node, and the label of the route."""
        return f"/ext/{self.endpoint()}{self.sub_route}"


ROUTES: Final = (
    GatewayRoute("info", PrimaryChain.P, INFO),
    GatewayRoute("platform", PrimaryChain.P, CHAIN),
    GatewayRoute("avm", PrimaryChain.X, CHAIN),
    GatewayRoute("avax", PrimaryChain.C, CHAIN, "/avax"),
    *(GatewayRoute("proposervm", chain, CHAIN, "/proposervm") for chain in PrimaryChain),
    *(GatewayRoute("index", chain, INDEX, "/block") for chain in PrimaryChain),
    GatewayRoute("index", PrimaryChain.X, INDEX, "/tx"),
    GatewayRoute("index", PrimaryChain.X, INDEX, "/vtx"),
)
C_CHAIN_RPC: Final = "/ext/bc/C/rpc"
C_CHAIN_WS: Final = "/ext/bc/C/ws"
