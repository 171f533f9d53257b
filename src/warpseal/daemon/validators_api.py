"""The validators endpoints under `/ext/bc/<chain>`: which chains have one, and which validations are observed."""

from __future__ import annotations

import logging

from warpseal.api.node.admin import CHAINS
from warpseal.api.node.app import NodeInterfaces
from warpseal.api.node.validators import ValidatorsEndpoint
from warpseal.config.keys import Config
from warpseal.daemon.services import Services
from warpseal.errors import CallRefused
from warpseal.node.chain_validators_client import ChainValidatorsClient
from warpseal.node.upstream import Upstream
from warpseal.validators.chain_validator_list import ChainValidatorList, LocalView
from warpseal.validators.refresher import ValidatorRefresher
from warpseal.warp.ids import ChainID, id_text

log = logging.getLogger(__name__)


class ValidatorsApi:
    """Serves the configured chains, and the chains of tracked subnets as soon as they are known."""

    def __init__(self, config: Config, interfaces: NodeInterfaces) -> None:
        self._config = config
        self._interfaces = interfaces
        self._chains: dict[ChainID, ChainValidatorList] = {}

    async def run(self, services: Services, upstream: Upstream) -> None:
        """Mount the chains, and refresh their validators until cancelled."""
        settings, current = self._config.validators, services.current
        local_view = LocalView(services.chains, current, services.network.is_connected, services.uptime.uptime)

        def appeared(chain_id: ChainID) -> None:
            if chain_id not in self._chains:
                self._mount(chain_id, ChainValidatorsClient(()), local_view)

        for chain_id, nodes in upstream.validators.items():
            self._mount(chain_id, nodes, local_view)
        rounds = ValidatorRefresher(services.chains, current, services.subnet_tracker, settings, appeared)
        await rounds.run(tuple(self._chains.values()))

    def _mount(self, chain_id: ChainID, nodes: ChainValidatorsClient, local_view: LocalView) -> None:
        chain = self._chains[chain_id] = ChainValidatorList(chain_id, nodes, local_view)
        routes = ValidatorsEndpoint(chain, self._config.api).routes()
        try:
            self._interfaces.add(CHAINS + id_text(chain_id), routes, CHAINS + "{chain}")
        except CallRefused as error:
            # The path is one that an operator has given away already.
            log.warning("validators of a chain cannot be served", extra={"reason": str(error)})
