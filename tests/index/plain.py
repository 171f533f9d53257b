"""The in-memory index of the Data API's tests, with what only a store knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tests.api.data.memory_index import MemoryIndex
from warpseal.chains.ids import Address
from warpseal.history.chains import PrimaryChain


@dataclass
class PlainIndex(MemoryIndex):
    """A memory index that knows whose the genesis' outputs are, which no transaction tells."""

    genesis_owners: frozenset[Address] = frozenset()

    async def chains_of(self, addresses: Any, evm_addresses: Any) -> Any:
        found, accounts = await super().chains_of(addresses, evm_addresses)
        for address in self.genesis_owners.intersection(addresses):
            found = {**found, address: found[address] | {PrimaryChain.P}}
        return found, accounts


def without_bytes(value: Any) -> Any:
    """Return a transaction without the codec bytes of its outputs, which the model does not make."""
    bare = [tuple(msgspec.structs.replace(utxo, raw=None) for utxo in part) for part in (value.consumed, value.emitted)]
    return msgspec.structs.replace(value, consumed=bare[0], emitted=bare[1])
