"""Calls of contracts: kind, name and symbol in the background, and whether events are of NFTs.

Source of truth: ERC-165, ERC-721, ERC-1155, ERC-20.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from warpseal.chains.evm.contract_calls import (
    DECIMALS,
    EARLY_ERC721_INTERFACE,
    ERC721_INTERFACE,
    ERC1155_INTERFACE,
    NAME,
    NO_INTERFACE,
    SYMBOL,
    TOTAL_SUPPLY,
    balance_of_call,
    decode_flag,
    decode_name,
    decode_number,
    supports_interface_call,
)
from warpseal.chains.evm.facts import TokenStandard
from warpseal.index.evm.records import ContractFacts, ContractToCall
from warpseal.index.evm.writer import EvmIndexWriter
from warpseal.indexer.evm.chain import EvmChainContext
from warpseal.indexer.evm.nodes import ContractCall, EvmCaller, NoResult
from warpseal.resources.evm import ErcType
from warpseal.runtime.process import ungrouped
from warpseal.runtime.retry import Backoff, RetryDelays
from warpseal.store.errors import StoreDown
from warpseal.upstream.errors import NodeUnavailable

# Few, so that a page need not wait long for its turn.
_BATCH: Final = 16
_RETRY: Final = Backoff(first_s=0.5, cap_s=10.0)

Outputs = tuple[bytes, ...]
"""The output of each call of a contract; empty bytes for a call that reverted."""

_FIRST_CALLS: Final = (supports_interface_call(NO_INTERFACE), NAME, SYMBOL, DECIMALS)
_NFT_CALLS: Final = tuple(map(supports_interface_call, (ERC1155_INTERFACE, ERC721_INTERFACE)))
_CANDIDATE_CALLS: Final = tuple(
    map(supports_interface_call, (NO_INTERFACE, ERC721_INTERFACE, EARLY_ERC721_INTERFACE))
)


class ContractResolver:
    """Calls the contracts of one chain for their results, again after an upgrade.

    Contracts that pages wait for are called at once. The others are called behind blocks, which may
    take all that a node allows for days.
    """

    def __init__(self, chain: EvmChainContext, caller: EvmCaller) -> None:
        self._chain = chain
        self._caller = caller
        # Set when there may be contracts that no page requests: from new blocks, or from traces.
        self._others_changed = chain.subscribe()

    async def run(self) -> None:
        """Call contracts until cancelled."""
        with ungrouped(StoreDown):
            async with asyncio.TaskGroup() as tasks:
                requested = self._chain.contracts_requested
                tasks.create_task(self._keep_calling(self._caller, requested, is_requested=True))
                background, others = self._caller.in_background(), self._others_changed
                tasks.create_task(self._keep_calling(background, others, is_requested=False))

    async def _keep_calling(
        self, caller: EvmCaller, wake: asyncio.Event, *, is_requested: bool
    ) -> None:
        """Write the results of contracts; wait if no node answers.

        is_requested: calls the contracts that pages request, else the other contracts.
        """
        delays = RetryDelays(_RETRY)
        while True:
            # Before the read, so that no request and no block is missed.
            wake.clear()
            if is_requested:
                # Traces may have shown new contracts.
                self._others_changed.set()
            # Before the read: results of a height end what its blocks made due, so the read has to
            # see the events of all these blocks.
            height = self._chain.height
            batch = await self._chain.write(
                lambda writer: writer.contracts.to_call(_BATCH, only_requested=is_requested)
            )
            contracts = [contract for contract in batch if contract.is_requested is is_requested]
            if not contracts:
                await wake.wait()
                continue
            facts: list[ContractFacts] = []
            if height is not None:
                facts = await fetch_contract_facts(caller, contracts, height)
            if facts:
                await self._chain.write(_write_facts, facts)
                delays.reset()
            else:
                await asyncio.sleep(delays.next())


def _write_facts(writer: EvmIndexWriter, facts: Sequence[ContractFacts]) -> None:
    writer.contracts.write(facts)


async def fetch_contract_facts(
    caller: EvmCaller, contracts: Sequence[ContractToCall], height: int
) -> list[ContractFacts]:
    """Return the results of contracts, without those for which no node answers."""
    addresses = [contract.address for contract in contracts]
    first = await _call_contracts(caller, dict.fromkeys(addresses, _FIRST_CALLS), height)
    second_calls = {address: _second_calls(address, outputs) for address, outputs in first.items()}
    second = await _call_contracts(caller, second_calls, height)
    return [
        _contract_facts(contract, first[contract.address], second[contract.address], height)
        for contract in contracts
        if contract.address in second
    ]


async def ask_erc721(
    caller: EvmCaller, contracts: Collection[bytes], height: int
) -> dict[bytes, bool]:
    """Return whether ERC-165 says that contracts are ERC-721, also in its draft.

    height: height of a block in which all contracts exist.
    Raises NodeUnavailable.
    """
    outputs = await _call_contracts(caller, dict.fromkeys(contracts, _CANDIDATE_CALLS), height)
    if len(outputs) < len(contracts):
        raise NodeUnavailable("eth_call")
    is_erc721: dict[bytes, bool] = {}
    for contract in contracts:
        interfaces = outputs[contract][1:]
        is_erc721[contract] = _has_erc165(outputs[contract]) and any(map(decode_flag, interfaces))
    return is_erc721


async def _call_contracts(
    caller: EvmCaller, calls_of: Mapping[bytes, Outputs], height: int
) -> dict[bytes, Outputs]:
    """Return the outputs of several calls to each contract.

    A contract is left out if no node answers one of its calls.
    """
    calls = [
        ContractCall(address, data) for address, all_data in calls_of.items() for data in all_data
    ]
    # One batch, whose results come in the order of the calls.
    results = iter(await caller.call_all(calls, height))
    outputs_of: dict[bytes, Outputs] = {}
    for address, all_data in calls_of.items():
        outputs: list[bytes] = []
        for result in islice(results, len(all_data)):
            if isinstance(result, NoResult):
                outputs.append(b"")
            elif result is not None:
                outputs.append(result)
        if len(outputs) == len(all_data):
            outputs_of[address] = tuple(outputs)
    return outputs_of


def _second_calls(address: bytes, first: Outputs) -> Outputs:
    """Return the calls that follow from the outputs of the first: of ERC-165, and of ERC-20."""
    nft = _NFT_CALLS if _has_erc165(first) else ()
    erc20 = () if _decimals(first) is None else (TOTAL_SUPPLY, balance_of_call(address))
    return (*nft, *erc20)


def _contract_facts(
    contract: ContractToCall, first: Outputs, second: Outputs, height: int
) -> ContractFacts:
    kind = _find_kind(contract, first, second)
    decimals = _decimals(first) if kind is ErcType.ERC20 else None
    return ContractFacts(
        contract.address, kind, decode_name(first[1]), decode_name(first[2]), decimals, height
    )


def _find_kind(contract: ContractToCall, first: Outputs, second: Outputs) -> ErcType:
    """Return the kind by ERC-165, else by NFT events, else by well-formed replies."""
    if _has_erc165(first):
        is_erc1155, is_erc721 = map(decode_flag, second[:2])
        if is_erc1155:
            return ErcType.ERC1155
        if is_erc721:
            return ErcType.ERC721
    if contract.standards:
        return ErcType.ERC721 if TokenStandard.ERC721 in contract.standards else ErcType.ERC1155
    if _decimals(first) is not None:
        # The calls of ERC-20 are the last two.
        numbers = [decode_number(output) for output in second[-2:]]
        if None not in numbers:
            return ErcType.ERC20
    return ErcType.UNKNOWN


def _has_erc165(first: Outputs) -> bool:
    return decode_flag(first[0]) is False


def _decimals(first: Outputs) -> int | None:
    return decode_number(first[3], 8)
