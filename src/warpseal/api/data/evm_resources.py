"""Resources of the EVM chains as a client reads them: its dialect, and the operator's descriptions
of contracts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from warpseal.api.data.contract_info import DescribedContracts
from warpseal.resources.base import UNSET, UnsetType
from warpseal.resources.evm import (
    ContractDescription,
    DeployedContract,
    Erc1155Transfer,
    EvmBlock,
    NftMetadata,
    NftToken,
    TokenHolder,
)
from warpseal.resources.text import hex_text

if TYPE_CHECKING:
    from warpseal.chains.evm.facts import EvmBlockFacts

N = TypeVar("N", bound=NftToken)
T = TypeVar("T")
_DESCRIPTION: Final = ContractDescription.__struct_fields__


class EvmWording:
    """How responses about one chain are worded.

    for_sdk: the dialect of the SDKs, which spells `indexStatus` otherwise.

    The specification shows it in lower case.
    """

    def __init__(self, contracts: DescribedContracts, *, for_sdk: bool) -> None:
        self._contracts = contracts
        self._for_sdk = for_sdk

    def block(self, block: EvmBlock) -> EvmBlock:
        """Return a block; for SDKs, an unknown number of transactions is 0."""
        if self._for_sdk and block.cumulative_transactions is UNSET:
            return replace(block, cumulative_transactions="0")
        return block

    def token(self, token: N) -> N:
        """Return a token of a collection, or one that an address holds."""
        changes: dict[str, Any] = {"metadata": self._metadata(token.metadata)}
        info = self._contracts.of(token.address)
        if info is not None:
            changes |= {
                "name": _choose(info.name, token.name),
                "symbol": _choose(info.symbol, token.symbol),
            }
        return replace(token, **changes)

    def names(self, contract: bytes, name: str, symbol: str) -> tuple[str, str]:
        """Return the name and the symbol of a collection: what the operator says, else the given
        ones.
        """
        info = self._contracts.infos.get(contract)
        if info is None:
            return name, symbol
        return _choose(info.name, name), _choose(info.symbol, symbol)

    def transfer(self, transfer: Erc1155Transfer) -> Erc1155Transfer:
        """Return a transfer."""
        token = transfer.erc1155_token
        return replace(
            transfer,
            sender=self._holder(transfer.sender),
            to=self._holder(transfer.to),
            erc1155_token=replace(token, metadata=self._metadata(token.metadata)),
        )

    def contract(self, contract: DeployedContract) -> DeployedContract:
        """Return a contract with all that the operator says about it."""
        info = self._contracts.of(contract.address)
        if info is None:
            return contract
        description = {
            name: getattr(info, name) for name in _DESCRIPTION if getattr(info, name) is not UNSET
        }
        return replace(contract, **description)

    def _metadata(self, metadata: NftMetadata) -> NftMetadata:
        if self._for_sdk:
            return metadata
        return replace(metadata, index_status=metadata.index_status.lower())

    def _holder(self, holder: TokenHolder) -> TokenHolder:
        info = self._contracts.of(holder.address)
        if info is None:
            return holder
        logo = UNSET if info.logo_asset is UNSET else info.logo_asset.image_uri
        names = {
            "name": _choose(info.name, holder.name),
            "symbol": _choose(info.symbol, holder.symbol),
        }
        return replace(holder, **names, logo_uri=_choose(logo, holder.logo_uri))


def _choose(described: T | UnsetType, indexed: T) -> T:
    """Return what the operator says, else what the index has."""
    return indexed if described is UNSET else described


def block_of_node(facts: EvmBlockFacts, chain_id: str) -> EvmBlock:
    """Return a block that a node has; only an index knows how many transactions there were up to
    it.
    """
    return EvmBlock(
        chain_id=chain_id,
        block_number=str(facts.number),
        block_hash=hex_text(facts.hash),
        parent_hash=hex_text(facts.parent_hash),
        block_timestamp=facts.time,
        tx_count=facts.tx_count,
        gas_used=str(facts.gas_used),
        gas_limit=str(facts.gas_limit),
        base_fee=str(facts.base_fee or 0),
        gas_cost=str(facts.gas_cost or 0),
        fees_spent=str(facts.fees_spent),
    )
