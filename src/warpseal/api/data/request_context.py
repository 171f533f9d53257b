"""The start of every request to the Data API: its parameters, page token, the client's dialect, and
the response.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.json import Encoder
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from warpseal.api.data.endpoint_needs import EndpointNeeds
from warpseal.api.data.endpoints import PAGE_SIZE, PAGE_TOKEN, START_KEY, EndpointRow
from warpseal.api.data.errors import ExpiredPageToken, InvalidPageToken
from warpseal.api.data.evm_chains import EvmChainDirectory
from warpseal.api.data.network import AvalancheNetwork
from warpseal.api.data.page_tokens import PageQuery, PageTokens, check_unchanged
from warpseal.api.data.pages import page_class
from warpseal.api.data.parameters import Value, normalize_addresses, read_query
from warpseal.api.data.settings import Compat, DataApiSettings
from warpseal.api.http.event_stream import EventStreams
from warpseal.api.http.request_body import read_body
from warpseal.api.http.responses import JSON, EncodedBody, response_headers
from warpseal.api.http.settings import ApiSettings
from warpseal.api.signing.errors import ConflictingSpellings, UndecodableBody
from warpseal.api.signing.request_fields import select_parameters
from warpseal.errors import InvalidRequest
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.resources.progress import ChainProgress
from warpseal.resources.queries import CLIENT_HEIGHTS, ClientHeights, Position
from warpseal.store.errors import StoreDown
from warpseal.usage.page_tokens import PageTokenStore
from warpseal.warp.ids import ChainID

HEADER: Final = "x-warpseal-index"
# A published SDK names itself in its user agent; in a browser, which does not allow that,
# avacloud-sdk in this header.
_SDK_AGENT: Final = "speakeasy-sdk/"
_SDK_COMPONENT_HEADER: Final = "x-app-component"
_SDK_COMPONENTS: Final = ("avacloud-sdk", "chainkit")
_ENCODER: Final = Encoder()


class RequestContext(Struct, frozen=True):
    """One request.

    network: The network that the daemon answers about.
    evm: The EVM chains that are served.
    now: The time of the request, in unix seconds.
    for_sdk: The client wants the SDKs' dialect.
    metrics_tokens: The page tokens of the Metrics API; None without a metrics database.
    endpoint: The row of the endpoint that was asked.
    """

    request: Request
    network: AvalancheNetwork
    evm: EvmChainDirectory
    settings: DataApiSettings
    api_settings: ApiSettings
    tokens: PageTokens
    metrics_tokens: PageTokenStore | None
    now: float
    for_sdk: bool
    endpoint: EndpointRow
    event_streams: EventStreams
    client_heights: ClientHeights

    def parameters(self) -> dict[str, Value]:
        """Return the given query parameters. Raises InvalidRequest naming the parameter."""
        parameters, ignore_all = self.endpoint.parameters, self.api_settings.ignore_unknown_fields
        names = [parameter.name for parameter in parameters]
        query = select_parameters(self.request.scope, names, ignore_all=ignore_all)
        return read_query(parameters, query, ignore_unknown=ignore_all)

    async def read_fields(self) -> dict[str, Any]:
        """Return the fields of a JSON body as `parameters` returns those of a query.

        Raises InvalidRequest.
        """
        body = await read_body(self.request.scope, self.request.receive, self.api_settings)
        try:
            fields = msgspec.json.decode(body, type=dict[str, str | list[str]])
        except msgspec.DecodeError as error:
            raise UndecodableBody("body", str(error)) from None
        pairs: list[tuple[str, str]] = []
        for name, value in fields.items():
            texts = [value] if isinstance(value, str) else value
            pairs += [(name, text) for text in texts]
        ignore_unknown = self.api_settings.ignore_unknown_fields
        return dict(read_query(self.endpoint.parameters, pairs, ignore_unknown=ignore_unknown))

    async def chain_id_of(self, name: str, text: str) -> ChainID:
        """Return the blockchain id of a chain that a parameter names by any of its names.

        Raises InvalidRequest.
        """
        chain_id = await self.evm.find_id(text)
        if chain_id is None:
            reason = "no blockchain id, and no EVM chain id or alias of a chain that is served here"
            raise InvalidRequest(name, reason)
        return chain_id

    async def page_query(self, subject: bytes) -> PageQuery:
        """Return the request for a page: its own parameters, or those of its page token.

        subject: the resource of the path in its canonical form.
        Raises InvalidRequest, and the errors of a page token.
        """
        values_by_name: dict[str, Any] = self.parameters()
        tokens = {
            values_by_name.pop(name)
            for name in (PAGE_TOKEN.name, START_KEY.name)
            if name in values_by_name
        }
        if len(tokens) > 1:
            raise ConflictingSpellings(START_KEY.name, f"differs from {PAGE_TOKEN.name}")
        size = values_by_name.pop(PAGE_SIZE.name, None)
        values = normalize_addresses(values_by_name, self.network.text.prefix)
        if not tokens:
            page_size = size or self.endpoint.default_page_size
            return PageQuery(self.endpoint.name, subject, values, page_size)
        if self.endpoint.admission == "metrics":
            query = await self._read_metrics_query(tokens.pop(), subject)
            self.client_heights.continue_from(query.heights)
        else:
            query = await self.tokens.decode(tokens.pop(), self.endpoint.name, subject)
        check_unchanged(query, values, self.endpoint.parameters)
        return replace(query, size=size or query.size)

    async def next_token(self, query: PageQuery, position: Position | None) -> str | UnsetType:
        """Return the token of the next page, left out if there is none.

        Raises StoreDown, and TooManyPageTokens for the Metrics API, whose tokens are rows.
        """
        if position is None:
            return UNSET
        query = replace(query, heights=self.client_heights.for_token())
        if self.endpoint.admission == "metrics":
            row = msgspec.json.encode(replace(query, position=position))
            return await self._metrics_store().add(row)
        return await self.tokens.encode(query, position)

    async def _read_metrics_query(self, token: str, subject: bytes) -> PageQuery:
        row = await self._metrics_store().find(token)
        if row is None:
            reason = "not given out by this service, or older than 24 hours"
            raise InvalidPageToken(PAGE_TOKEN.name, reason)
        if self.now > row.expires_at:
            reason = "older than 24 hours; begin again with the first page"
            raise ExpiredPageToken(PAGE_TOKEN.name, reason)
        try:
            # Unlike MessagePack, JSON has integers of 256 bits.
            query = msgspec.json.decode(row.body, type=PageQuery)
        except msgspec.DecodeError:
            reason = "made by another version of this service"
            raise InvalidPageToken(PAGE_TOKEN.name, reason) from None
        if (query.operation, query.subject) != (self.endpoint.name, subject):
            raise InvalidPageToken(PAGE_TOKEN.name, "given out for another path")
        return query

    def _metrics_store(self) -> PageTokenStore:
        if self.metrics_tokens is None:
            raise StoreDown("there is no place for the metrics database; set metrics-db-url")
        return self.metrics_tokens

    async def respond_page(
        self,
        query: PageQuery,
        items: Iterable[Resource],
        position: Position | None,
        final_s: int = 0,
        **beside: Any,
    ) -> Response:
        """Return the response with a page of items, as `respond` does.

        position: The next page starts here; None if this page is the last.
        beside: The fields that the row has behind the items.
        """
        token = await self.next_token(query, position)
        return await self.respond(self.page_body(items, token, **beside), final_s)

    def page_body(
        self, items: Iterable[Resource], token: str | UnsetType, **beside: Any
    ) -> Resource:
        """Return the body of a page.

        token: The next page's token; UNSET on the last page.
        """
        body = page_class(self.endpoint.page)
        return body(next_page_token=token, items=tuple(items), **beside)

    async def respond(self, resource: Resource, final_s: int = 0) -> Response:
        """Return the response, which shared caches must not store if callers need a key.

        final_s: The response cannot change for so many seconds; 0 if it may change at any time.
        """
        shared = "private" if self.api_settings.require_api_key else "public"
        cache_control = f"{shared}, max-age={final_s}" if final_s else f"{shared}, no-cache"
        body = EncodedBody(_ENCODER.encode(resource))
        return await body.respond(self.request, JSON, cache_control)


class ContextFactory:
    """Makes the context of a request.

    now: The clock, in Unix seconds.
    """

    def __init__(
        self,
        needs: EndpointNeeds,
        settings: ApiSettings,
        data: DataApiSettings,
        event_streams: EventStreams,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._network = needs.network
        self._evm = needs.evm
        self._event_streams = event_streams
        self._settings = settings
        self._data = data
        self._now = now
        self._tokens = PageTokens(needs.key_store, now)
        self._metrics_tokens: PageTokenStore | None = None
        if needs.metrics_database is not None:
            self._metrics_tokens = PageTokenStore(needs.metrics_database, now)

    async def create(self, request: Request, endpoint: EndpointRow) -> RequestContext:
        """Return the context of a request to the endpoint of a row."""
        if endpoint.deprecated_at is not None:
            # RFC 9745.
            response_headers(request.scope)["deprecation"] = f"@{endpoint.deprecated_at}"
        # Set in the task of the request, and shared by the tasks that it starts.
        client_heights = ClientHeights()
        CLIENT_HEIGHTS.set(client_heights)
        for name in (PAGE_TOKEN.name, START_KEY.name):
            # A page token has the heights that its client has seen, and the freshness of the
            # response depends on them. The row of a token of the Metrics API is read later.
            token = request.query_params.get(name)
            if token:
                client_heights.continue_from(await self._tokens.heights(token))
        return RequestContext(
            request=request,
            network=self._network,
            evm=self._evm,
            settings=self._data,
            api_settings=self._settings,
            tokens=self._tokens,
            metrics_tokens=self._metrics_tokens,
            now=self._now(),
            for_sdk=self._is_for_sdk(request),
            endpoint=endpoint,
            event_streams=self._event_streams,
            client_heights=client_heights,
        )

    def _is_for_sdk(self, request: Request) -> bool:
        if self._data.compat is not Compat.AUTO:
            return self._data.compat is Compat.SDK
        response_headers(request.scope)["vary"] = "User-Agent, X-App-Component"
        component = request.headers.get(_SDK_COMPONENT_HEADER, "").lower()
        return (
            request.headers.get("user-agent", "").startswith(_SDK_AGENT)
            or component in _SDK_COMPONENTS
        )


def header_item(name: str, chain: ChainProgress, now: float) -> str:
    """Return the item of a chain in the freshness header.

    first: first indexed block, if older ones are missing.
    stale: the nodes are behind, or silent.
    """
    item = f"{name};height={chain.height};node={chain.node_height};lag={chain.lag_s(now)}"
    if chain.first_height:
        item += f";first={chain.first_height}"
    return item + (";stale" if chain.is_node_behind else "")
