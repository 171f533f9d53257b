"""Aliases of blockchain ids, and the order in which a name is resolved.

Source of truth: avalanchego `ids/aliases.go` (one alias, one id; the first alias of an id is its
primary one) and `genesis/aliases.go`. An alias never hides a blockchain id, a name of the
specification or an EVM chain id.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from warpseal.errors import StartupError
from warpseal.resources.chains import PrimaryChain
from warpseal.runtime.process import os_error_text
from warpseal.warp.ids import P_CHAIN, ChainID, MalformedID, id_text, parse_id

MAX_ALIAS_CHARACTERS: Final = 512
MAX_ALIASES: Final = 10_000
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024
PRIMARY_NAMES: Final[Mapping[PrimaryChain, tuple[str, str]]] = {
    PrimaryChain.P: ("P", "platform"),
    PrimaryChain.X: ("X", "avm"),
    PrimaryChain.C: ("C", "evm"),
}
"""The aliases that each primary chain has at every node."""
# The specification's own names of the primary chains.
_SPECIFIED_NAMES: Final = frozenset(chain.value for chain in PrimaryChain)


class InvalidAlias(ValueError):
    """An alias that cannot be added, or an unknown name; the text has the reason."""


class ChainAliases:
    """All aliases of all chains. Aliases that are added while the daemon runs are not stored."""

    def __init__(self) -> None:
        self._ids: dict[str, ChainID] = {}
        self._aliases: dict[ChainID, list[str]] = {}
        self._specified: dict[str, ChainID] = {}
        self._evm_ids: dict[int, ChainID] = {}
        self._add_primary(P_CHAIN, PrimaryChain.P)

    def add_primary_chains(self, x_chain: ChainID, c_chain: ChainID) -> None:
        """Add the ids of the other primary chains, once the network is known."""
        self._add_primary(x_chain, PrimaryChain.X)
        self._add_primary(c_chain, PrimaryChain.C)

    def add_chain(self, chain_id: ChainID, evm_chain_id: int | None = None) -> None:
        """Add a chain: its id becomes the last of its initial aliases.

        An EVM chain id names the first chain that has it.
        """
        self._aliases.setdefault(chain_id, [])
        if id_text(chain_id) not in self._ids:
            self._put(chain_id, id_text(chain_id))
        if evm_chain_id is not None:
            self._evm_ids.setdefault(evm_chain_id, chain_id)

    def add_alias(self, chain_id: ChainID, alias: str) -> None:
        """Add an alias of a chain. Raises InvalidAlias."""
        if len(alias) > MAX_ALIAS_CHARACTERS:
            raise InvalidAlias("alias length is too long")
        if alias in self._ids or any(alias in names for names in PRIMARY_NAMES.values()):
            raise InvalidAlias(f"alias already mapped to an ID: {alias}")
        if not alias or is_reserved(alias):
            raise InvalidAlias(f"alias is a name that chains have without it: {alias}")
        if len(self._ids) >= MAX_ALIASES:
            raise InvalidAlias(f"there are {MAX_ALIASES} aliases already")
        self._put(chain_id, alias)

    def find(self, name: str) -> ChainID | None:
        """Return the chain of a name.

        name: a blockchain id, a name of the specification, an EVM chain id, or an alias.
        """
        try:
            return ChainID(parse_id(name))
        except MalformedID:
            pass
        if name in self._specified:
            return self._specified[name]
        if name.isascii() and name.isdigit() and len(name) < 20:
            return self._evm_ids.get(int(name))
        return self._ids.get(name)

    def resolve(self, name: str) -> ChainID:
        """Return the chain of a name. Raises InvalidAlias for an unknown name."""
        chain_id = self.find(name)
        if chain_id is None:
            raise InvalidAlias(f"there is no ID with alias: {name}")
        return chain_id

    def aliases_of(self, chain_id: ChainID) -> tuple[str, ...]:
        """Return the aliases of a chain in the order in which they were added.

        The id of a known chain is an alias of it as well.
        """
        return tuple(self._aliases.get(chain_id, ()))

    def _add_primary(self, chain_id: ChainID, chain: PrimaryChain) -> None:
        """Add a primary chain: its own names come before the operator's."""
        names = PRIMARY_NAMES[chain]
        self._specified[chain.value] = chain_id
        self._aliases[chain_id] = [*names, *self._aliases.get(chain_id, [])]
        self._ids.update(dict.fromkeys(names, chain_id))
        self.add_chain(chain_id)

    def _put(self, chain_id: ChainID, alias: str) -> None:
        self._ids[alias] = chain_id
        self._aliases.setdefault(chain_id, []).append(alias)


def is_reserved(name: str) -> bool:
    """Return whether a name is no alias: an id, a name of the specification, or an EVM chain id."""
    return name in _SPECIFIED_NAMES or name.isdigit() or _is_id(name)


def read_aliases(file: Path | None) -> Mapping[ChainID, tuple[str, ...]]:
    """Return the aliases of a JSON file: an object of lists by blockchain id.

    Raises StartupError naming the file.
    """
    if file is None:
        return {}
    try:
        with file.open("rb") as opened:
            names_of = msgspec.json.decode(opened.read(_MAX_FILE_BYTES), type=dict[str, list[str]])
        return {ChainID(parse_id(chain)): tuple(names) for chain, names in names_of.items()}
    except OSError as error:
        raise StartupError(
            f"chain-aliases-file {file} cannot be read: {os_error_text(error)}"
        ) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise StartupError(
            f"chain-aliases-file {file} is not an object of lists by blockchain id: {error}"
        ) from error


def _is_id(text: str) -> bool:
    try:
        parse_id(text)
    except MalformedID:
        return False
    return True
