"""The in-memory index of the Data API's tests, with facts that only the store has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tests.api.data.memory_index import MemoryIndex
from warpseal.chains.ids import Address
from warpseal.resources.base import UNSET
from warpseal.resources.chains import PrimaryChain


@dataclass
class PlainIndex(MemoryIndex):
    """A memory index that has the owners of the genesis' outputs, which no transaction names."""

    genesis_owners: frozenset[Address] = frozenset()

    async def chains_of(self, addresses: Any, evm_addresses: Any) -> Any:
        chains, accounts = await super().chains_of(addresses, evm_addresses)
        for address in self.genesis_owners.intersection(addresses):
            chains = {**chains, address: chains[address] | {PrimaryChain.P}}
        return chains, accounts


def without_bytes(value: Any) -> Any:
    """Return a transaction without the codec bytes of its outputs: the model makes none."""
    consumed, emitted = (
        tuple(msgspec.structs.replace(utxo, utxo_bytes=UNSET) for utxo in utxos)
        for utxos in (value.consumed_utxos, value.emitted_utxos)
    )
    return msgspec.structs.replace(value, consumed_utxos=consumed, emitted_utxos=emitted)
