"""What clients read of endpoints 3 to 8: the same subjects by a function of the SDKs and by a path
of our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from tests.api.data import sdk_models as sdk
from tests.clients.recorded_network import L1_CHAIN

NETWORK: Final = "fuji"
WALLET: Final = "P-custom18jma8ppw3nhx5r4ap8clazz0dps7rv5u9xde7p"
"""Made all transactions of the recorded network."""
HEIR: Final = "P-custom1859dz2uwazfgahey3j53ef2kqrans0c8lah5pq"
"""Gets the validators' rewards once there are any; until then it has touched no chain."""
ACCOUNT: Final = "0x8db97C7cEcE249c2b98bDC0226Cc4C2A57BF52FC"
SUBNET_CHAIN: Final = "2BE97L3n6gJdGkoMVywr939LzNQkayRD8im3w9MZDq7DJpKQBN"
VALIDATION: Final = "CzaAJxtzTe89WRKDDGU6yz6GsbTYcEYs7ZFFHjcDVUUwemhSW"
SUBNET: Final = "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"
L1_NODE: Final = "NodeID-83a7v34gAYeeF3TAczJJa3mNSZDGSrqVV"
NODES: Final = (
    "NodeID-7fdvUNLVpGgng9tyYzBifCzT7XJrqMKNS",
    "NodeID-4t2fv4b9AQ39bhZkKwky3otLxBzMM1sdF",
    "NodeID-4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS",
)
CHAINS: Final = ("p-chain", "x-chain", "c-chain")
_IDS: Final = {
    "transactions": "txHash",
    "blocks": "blockHash",
    "historicalRewards": "utxoId",
    "validators": "txHash or validationId",
    "addresses": "address",
}
_BLOCKS: Final = "blockchains/{blockchainId}/blocks"
_MODELS: Final[Mapping[str, type[Any]]] = {
    "p-chain": sdk.PPage,
    "x-chain": sdk.XPage,
    "c-chain": sdk.CPage,
}


@dataclass(frozen=True)
class Subject:
    """One list, or one thing.

    function: function of the SDKs.
    path: template that takes its part of the request.
    """

    function: str
    path: str
    model: type[Any]
    request: Mapping[str, Any]

    def with_page_size(self, size: int) -> Subject:
        """Return the same list in pages of another size."""
        return replace(self, request={**self.request, "pageSize": size})

    @property
    def call(self) -> tuple[str, dict[str, Any]]:
        """Return how the SDKs are called for it."""
        return f"data.primaryNetwork.{self.function}", {**self.request, "network": NETWORK}

    @property
    def url(self) -> str:
        """Return how it is asked for over HTTP."""
        texts = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in self.request.items()
        }
        query = {name: value for name, value in texts.items() if f"{{{name}}}" not in self.path}
        words = {name: quote(str(value)) for name, value in self.request.items()}
        path = f"/v1/networks/{NETWORK}/{self.path.format(**words)}"
        return f"{path}?{urlencode(query, doseq=True)}" if query else path

    def __str__(self) -> str:
        return self.url.removeprefix(f"/v1/networks/{NETWORK}/")


def ids_of(pages: list[dict[str, Any]]) -> list[str]:
    """Return what is listed in pages, in order; or what one response is about."""
    subjects: list[str] = []
    for page in pages:
        name = next((name for name in _IDS if name in page), None)
        if name is None:
            subjects.append(page["blockchainId"])
            continue
        keys = _IDS[name].split(" or ")
        subjects += [next(item[key] for key in keys if key in item) for item in page[name]]
    return subjects


def _subjects() -> Iterator[Subject]:
    for chain in CHAINS:
        yield _transactions(chain)
        yield _transactions(chain, addresses=WALLET, sortOrder="asc")
        yield Subject("blocks.listLatest", _BLOCKS, sdk.BlockPage, {"blockchainId": chain})
    yield _transactions(
        "p-chain", addresses=WALLET, txTypes=["BaseTx", "ExportTx"], startTimestamp=1
    )
    yield _transactions("p-chain", l1ValidationId=VALIDATION)
    yield _transactions("c-chain", addresses=ACCOUNT)
    times = {"startTimestamp": 1795226600, "endTimestamp": 1795226700}
    yield Subject("blocks.listLatest", _BLOCKS, sdk.BlockPage, {"blockchainId": "p-chain", **times})
    for chain in (L1_CHAIN, SUBNET_CHAIN, *CHAINS):
        yield Subject(
            "getBlockchainById",
            "blockchains/{blockchainId}",
            sdk.Blockchain,
            {"blockchainId": chain},
        )
    yield Subject(
        "getChainIdsForAddresses", "addresses:listChainIds", sdk.Interactions, {"addresses": HEIR}
    )
    yield Subject(
        "rewards.listHistoricalRewards", "rewards", sdk.RewardPage, {"nodeIds": ",".join(NODES)}
    )
    everything = {"includeInactiveL1Validators": True}
    for filters in (
        {},
        everything,
        {"l1ValidationId": VALIDATION, **everything},
        {"subnetId": SUBNET},
        {"nodeId": L1_NODE},
    ):
        yield Subject("listL1Validators", "l1Validators", sdk.L1Page, filters)
    for node in NODES:
        yield Subject(
            "getValidatorDetails", "validators/{nodeId}", sdk.ValidatorPage, {"nodeId": node}
        )


def _transactions(chain: str, **request: Any) -> Subject:
    path = "blockchains/{blockchainId}/transactions"
    return Subject(
        "transactions.listLatest", path, _MODELS[chain], {"blockchainId": chain, **request}
    )


SUBJECTS: Final = tuple(_subjects())
"""What is there to be read of the recorded network."""
