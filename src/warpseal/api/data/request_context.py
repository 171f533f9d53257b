"""The start of every request to the Data API: the network check, the services, and the freshness of the index.

Every answer carries `x-warpseal-index: p-chain;height=H;node=N;lag=S`, one item a chain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from msgspec.json import Encoder
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.data.operations import Operation
from warpseal.api.data.page_tokens import PageQuery, PageTokens, check_unchanged
from warpseal.api.data.parameters import (
    DEFAULT_PAGE_SIZE,
    PAGE_SIZE,
    PAGE_TOKEN,
    Value,
    normalize_addresses,
    read_query,
)
from warpseal.api.data.responses import JSON, respond, response_headers
from warpseal.api.data.services import DataServices
from warpseal.api.data.settings import Compat, DataApiSettings
from warpseal.api.settings import ApiSettings
from warpseal.api.startup_gate import StartupGate
from warpseal.errors import IndexDamaged, IndexNotEnabled, IndexNotReady, IndexStale, InvalidRequest, NotAPrimaryChain
from warpseal.history.chains import ChainFreshness, PrimaryChain
from warpseal.history.ports import PrimaryNetworkIndex
from warpseal.history.queries import Position
from warpseal.history.resources import UNSET, Resource, UnsetType
from warpseal.history.text import NetworkText
from warpseal.warp.ids import ChainID, MalformedID, id_text, parse_id

HEADER: Final = "x-warpseal-index"
# A published SDK names itself in its user agent; in a browser, which does not allow that, avacloud-sdk in this header.
_SDK_AGENT: Final = "speakeasy-sdk/"
_SDK_COMPONENT_HEADER: Final = "x-app-component"
_SDK_COMPONENTS: Final = ("avacloud-sdk", "chainkit")
_ENCODER: Final = Encoder()


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request. network: as the path names it. now: unix seconds. for_sdk: the client wants the SDKs' dialect."""

    request: Request
    services: DataServices
    settings: DataApiSettings
    text: NetworkText
    tokens: PageTokens
    network: str
    now: float
    for_sdk: bool
    freshness: tuple[ChainFreshness, ...]
    ignore_unknown: bool
    operation: Operation

    def parameters(self) -> dict[str, Value]:
        """Return the given query parameters. Raises InvalidRequest naming the parameter."""
        query = self.request.query_params.multi_items()
        return read_query(self.operation.parameters, query, ignore_unknown=self.ignore_unknown)

    async def page_query(self, subject: bytes) -> PageQuery:
        """Return the request for a page: its own parameters, or those that its page token carries.

        subject: the resource of the path in its canonical form. Raises InvalidRequest, and the errors of a page token.
        """
        given: dict[str, Any] = self.parameters()
        token, size = given.pop(PAGE_TOKEN.name, None), given.pop(PAGE_SIZE.name, None)
        values = normalize_addresses(given, self.text.prefix)
        if token is None:
            return PageQuery(self.operation.name, subject, values, size or DEFAULT_PAGE_SIZE)
        query = await self.tokens.decode(token, self.operation.name, subject)
        check_unchanged(query, values, self.operation.parameters)
        return replace(query, size=size or query.size)

    async def next_token(self, query: PageQuery, position: Position | None) -> str | UnsetType:
        """Return the token of the next page, left out if there is none."""
        return UNSET if position is None else await self.tokens.encode(query, position)

    def chain(self) -> PrimaryChain:
        """Return the primary chain that the path names.

        Raises InvalidRequest, NotAPrimaryChain, and what `require_indexed` and `require_fresh` raise.
        """
        chain = self.services.chains.of_id(self.chain_id())
        if chain is None:
            known = {chain.value: id_text(self.services.chains.id_of(chain)) for chain in PrimaryChain}
            raise NotAPrimaryChain(self.request.path_params["blockchainId"], known)
        self.require_indexed(chain)
        self.require_fresh([chain])
        return chain

    def require_indexed(self, chain: PrimaryChain) -> None:
        """Raise IndexNotEnabled if a chain is not in the index, IndexNotReady if it is going to be, or IndexDamaged."""
        if not self.is_indexed(chain):
            damage = self.services.index.damage() if self.services.index is not None else None
            if damage is not None:
                raise IndexDamaged(damage)
            raise IndexNotReady(chain) if chain in self.services.indexed else IndexNotEnabled(f"the {chain}")

    def require_fresh(self, chains: Iterable[PrimaryChain]) -> None:
        """Raise IndexStale if one of the chains lags further behind than the settings allow."""
        required, limit_s = frozenset(chains), self.settings.max_index_lag_s
        for chain in self.freshness if limit_s else ():
            if chain.chain in required and chain.lag_s(self.now) > limit_s:
                raise IndexStale(chain.chain, chain.lag_s(self.now), limit_s)

    def is_indexed(self, chain: PrimaryChain) -> bool:
        """Return whether the index has a chain."""
        return any(freshness.chain is chain for freshness in self.freshness)

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

    def index(self, subject: str) -> PrimaryNetworkIndex:
        """Return the index. subject: the feature that needs it, for the error text. Raises IndexNotEnabled."""
        if self.services.index is None:
            raise IndexNotEnabled(subject)
        return self.services.index

    async def respond(self, resource: Resource, final_s: int = 0) -> Response:
        """Return the answer, which shared caches must not store if callers need a key.

        final_s: for how many seconds it cannot change; 0: it may change at any time.
        """
        shared = "private" if self.settings.require_api_key else "public"
        cache_control = f"{shared}, max-age={final_s}" if final_s else f"{shared}, no-cache"
        return await respond(self.request, _ENCODER.encode(resource), JSON, cache_control)


class ContextFactory:
    """Makes the context of a request. now: unix seconds."""

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
        self._text_and_tokens: tuple[NetworkText, PageTokens] | None = None

    async def create(self, request: Request, operation: Operation) -> RequestContext:
        """Return the context, the index's freshness among the response headers.

        Raises NetworkNotServed, and the reason if the services are not ready in time.
        """
        services = await self._gate.wait()
        network = request.path_params["network"]
        self._settings.require_network(network, services.network_id)
        if self._text_and_tokens is None:
            text = NetworkText(services.network_id, services.chains)
            self._text_and_tokens = text, PageTokens(services.key_store, self._now)
        text, tokens = self._text_and_tokens
        freshness = tuple(services.index.freshness()) if services.index is not None else ()
        now = self._now()
        if freshness:
            response_headers(request.scope)[HEADER] = header_of(freshness, now)
        return RequestContext(
            request=request,
            services=services,
            settings=self._data,
            text=text,
            tokens=tokens,
            network=network,
            now=now,
            for_sdk=self._is_for_sdk(request),
            freshness=freshness,
            ignore_unknown=self._settings.ignore_unknown_fields,
            operation=operation,
        )

    def _is_for_sdk(self, request: Request) -> bool:
        if self._data.compat is not Compat.AUTO:
            return self._data.compat is Compat.SDK
        response_headers(request.scope)["vary"] = "User-Agent, X-App-Component"
        component = request.headers.get(_SDK_COMPONENT_HEADER, "").lower()
        return request.headers.get("user-agent", "").startswith(_SDK_AGENT) or component in _SDK_COMPONENTS


def header_of(chains: Iterable[ChainFreshness], now: float) -> str:
    """Return the header's value: `first` if the beginning is missing, `stale` if the node is behind."""
    items = []
    for chain in chains:
        item = f"{chain.chain};height={chain.height};node={chain.node_height};lag={chain.lag_s(now)}"
        first = f";first={chain.first_height}" if chain.first_height else ""
        items.append(item + first + (";stale" if chain.is_node_behind else ""))
    return ", ".join(items)
