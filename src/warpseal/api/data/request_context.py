"""How every request to the Data API begins: is this network served, what is behind the door, how fresh is it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from warpseal.api.aggregator.services import network_guard
from warpseal.api.data.encoding.text import NetworkText
from warpseal.api.data.page_tokens import PageTokens
from warpseal.api.data.responses import response_headers
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import Compat, DataApiSettings
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate
from warpseal.errors import IndexNotEnabled, IndexNotReady, IndexStale, InvalidRequest, NotAPrimaryChain
from warpseal.history.chains import PrimaryChain
from warpseal.history.ports import ChainFreshness, PrimaryNetworkIndex
from warpseal.warp.ids import ChainID, MalformedID, id_text, parse_id

_SDK_AGENT: Final = "speakeasy-sdk/typescript"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request, let in. network: as the path names it. now: unix seconds. for_sdk: the SDKs' shapes are wanted."""

    request: Request
    services: DataServices
    words: NetworkText
    tokens: PageTokens
    network: str
    now: float
    for_sdk: bool
    freshness: tuple[ChainFreshness, ...]
    ignore_unknown: bool

    @property
    def query(self) -> Iterable[tuple[str, str]]:
        """The query parameters as they came."""
        return self.request.query_params.multi_items()

    def chain(self) -> PrimaryChain:
        """Return which primary chain the path names. Raises InvalidRequest, NotAPrimaryChain, and as `need` does."""
        name = self.request.path_params["blockchainId"]
        chain = next((one for one in PrimaryChain if one == name), None)
        if chain is None:
            chain = self.services.chains.of_id(self.chain_id())
        if chain is None:
            known = {one.value: id_text(self.services.chains.id_of(one)) for one in PrimaryChain}
            raise NotAPrimaryChain(name, known)
        self.need(chain)
        return chain

    def need(self, chain: PrimaryChain) -> None:
        """Pass where a chain is in the index. Raises IndexNotEnabled; IndexNotReady where it is going to be."""
        if chain in [one.chain for one in self.freshness]:
            return
        raise IndexNotReady(chain) if chain in self.services.indexed else IndexNotEnabled(f"the {chain}")

    def chain_id(self) -> ChainID:
        """Return the id of the blockchain that the path names, by id or alias. Raises InvalidRequest."""
        name = self.request.path_params["blockchainId"]
        for chain in PrimaryChain:
            if name == chain:
                return self.services.chains.id_of(chain)
        try:
            return ChainID(parse_id(name))
        except MalformedID as error:
            found = self.services.aliases.find(name) if self.services.aliases is not None else None
            if found is None:
                raise InvalidRequest("blockchainId", str(error)) from None
            return found

    def index(self, what: str) -> PrimaryNetworkIndex:
        """Return the index. Raises IndexNotEnabled, naming what needs it."""
        if self.services.index is None:
            raise IndexNotEnabled(what)
        return self.services.index


class ContextFactory:
    """Lets requests in. now: unix seconds."""

    def __init__(
        self,
        gate: StartupGate[DataServices],
        settings: ApiSettings,
        data: DataApiSettings,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._gate = gate
        self._settings = settings
        self._data = data
        self._now = now
        self._of: tuple[DataServices, NetworkText, PageTokens] | None = None

    async def enter(self, request: Request) -> RequestContext:
        """Return the visit, its freshness noted for the answer. Raises NetworkNotServed, and why the daemon is shut."""
        services = await self._gate.wait()
        network = request.path_params["network"]
        network_guard(network, self._settings)(services.network_id)
        words, tokens = self._made_for(services)
        freshness = tuple(services.index.freshness()) if services.index is not None else ()
        now = self._now()
        if freshness:
            response_headers(request.scope)[HEADER] = header_of(freshness, now)
        return RequestContext(
            request,
            services,
            words,
            tokens,
            network,
            now,
            self._for_sdk(request),
            freshness,
            self._settings.ignore_unknown_fields,
        )

    def refuse_stale(self, visit: RequestContext, needed: Iterable[PrimaryChain]) -> None:
        """Raise IndexStale where a chain that is needed lags further than is allowed."""
        refuse_stale(visit.freshness, needed, self._data.max_index_lag_s, visit.now)

    @property
    def is_private(self) -> bool:
        """Whether answers are for callers with a key only."""
        return self._data.require_api_key

    def _for_sdk(self, request: Request) -> bool:
        if self._data.compat is not Compat.AUTO:
            return self._data.compat is Compat.SDK
        response_headers(request.scope)["vary"] = "User-Agent"
        return request.headers.get("user-agent", "").startswith(_SDK_AGENT)

    def _made_for(self, services: DataServices) -> tuple[NetworkText, PageTokens]:
        if self._of is None or self._of[0] is not services:
            words = NetworkText(services.network_id, services.chains)
            self._of = services, words, PageTokens(services.secrets, self._now)
        return self._of[1], self._of[2]


HEADER: Final = "x-warpseal-index"


def lag_s(chain: ChainFreshness, now: float) -> int:
    """Return the age of the newest indexed block in seconds; 0 where it is the node's newest, and that is believed."""
    return chain.lag_s(now)


def header_of(chains: Iterable[ChainFreshness], now: float) -> str:
    """Return the header's value; `first` is told where the beginning is missing, `stale` where the node is behind."""
    return ", ".join(_item(chain, now) for chain in chains)


def _item(chain: ChainFreshness, now: float) -> str:
    item = f"{chain.chain};height={chain.height};node={chain.node_height};lag={lag_s(chain, now)}"
    if chain.first_height:
        item += f";first={chain.first_height}"
    return item + ";stale" if chain.is_node_behind else item


def refuse_stale(chains: Iterable[ChainFreshness], needed: Iterable[PrimaryChain], limit_s: float, now: float) -> None:
    """Raise IndexStale where a chain that is needed lags further than `limit_s`; 0 allows any lag."""
    wanted = frozenset(needed)
    for chain in chains if limit_s else ():
        if chain.chain in wanted and lag_s(chain, now) > limit_s:
            raise IndexStale(chain.chain, lag_s(chain, now), limit_s)
