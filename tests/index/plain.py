"""The in-memory index of the Data API's tests, with what only a store knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tests.api.data.memory_index import MemoryIndex
from warpseal.chains.ids import Address
from warpseal.history.chains import PrimaryChain
from warpseal.history.resources import UNSET


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
    consumed, emitted = (
        tuple(msgspec.structs.replace(utxo, utxo_bytes=UNSET) for utxo in utxos)
        for utxos in (value.consumed_utxos, value.emitted_utxos)
    )
    return msgspec.structs.replace(value, consumed_utxos=consumed, emitted_utxos=emitted)
