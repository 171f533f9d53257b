"""Collects the status document from the sections that the subsystems register."""

from __future__ import annotations

import time
from typing import Final

from msgspec.structs import replace

from warpseal.api.status.document import ChainSummary, StatusDocument, utc_text
from warpseal.api.status.probes import ProbeEndpoints
from warpseal.daemon.registries import Registries
from warpseal.resources.aliases import PRIMARY_NAMES, ChainAliases
from warpseal.version import __version__
from warpseal.warp.ids import id_text

_PRIMARY_ALIASES: Final = tuple(names[0] for names in PRIMARY_NAMES.values())
_CHAIN_KINDS: Final = ("follower", "index", "evm", "gateway")
"""The order of the chains in the document."""


class DaemonStatus:
    """Collects from the start; the sections of the network come with their subsystems."""

    def __init__(
        self, registries: Registries, probes: ProbeEndpoints, aliases: ChainAliases
    ) -> None:
        self._registries = registries
        self._probes = probes
        self._aliases = aliases
        evm_chains = registries.config.node.evm_chains
        self._chain_names = {
            id_text(chain.blockchain_id): chain.info.chain_name for chain in evm_chains
        }

    @property
    def document_class(self) -> type[StatusDocument]:
        """The class of the document, with the fields that subsystems declare."""
        return self._registries.status.document_class

    async def collect(self, *, with_addresses: bool) -> StatusDocument:
        """Return the document; other callbacks of the event loop run in between.

        with_addresses: include the addresses of validators and of upstream nodes.
        """
        registries = self._registries
        await registries.refresh()
        fields = await registries.status.read(with_addresses=with_addresses)
        chains = [
            replace(chain, chain_name=self._chain_name(chain.name)) for chain in fields["chains"]
        ]
        fields["chains"] = sorted(chains, key=_chain_order)
        reasons = self._probes.reasons()
        return registries.status.document_class(
            version=__version__,
            started_at=utc_text(registries.started_at),
            time=utc_text(time.time()),
            ready=not reasons,
            faults=reasons,
            degraded=registries.health.degraded(),
            **fields,
        )

    def _chain_name(self, chain: str) -> str | None:
        """Return the configured name of a blockchain id, else its first alias."""
        name = self._chain_names.get(chain)
        if name is not None:
            return name
        chain_id = self._aliases.find(chain)
        aliases = self._aliases.aliases_of(chain_id) if chain_id is not None else ()
        if aliases and aliases[0] in _PRIMARY_ALIASES:
            return f"{aliases[0]}-Chain"
        return next((alias for alias in aliases if alias != chain), None)


def _chain_order(chain: ChainSummary) -> int:
    return _CHAIN_KINDS.index(chain.kind)
