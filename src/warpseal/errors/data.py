"""Errors of the Data API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpseal.errors.base import WarpsealError
from warpseal.errors.requests import InvalidRequest


class InvalidPageToken(InvalidRequest):
    """A page token is none that this service gave out for this path."""

    code = "invalid_page_token"


class ExpiredPageToken(InvalidRequest):
    """A page token is older than 24 hours."""

    code = "expired_page_token"


class PageTokenMismatch(InvalidRequest):
    """A parameter differs from the request that the page token continues."""

    code = "page_token_mismatch"


class IndexNotEnabled(WarpsealError):
    """What was asked for needs an index that this daemon does not keep.

    what: the chain or the resource.
    """

    code = "index_not_enabled"

    def __init__(self, what: str) -> None:
        super().__init__(f"index not enabled: this daemon does not index {what}")
        self.what = what

    def detail(self) -> Mapping[str, Any]:
        return {"missing": self.what, "setting": "index-chains"}


class IndexNotReady(WarpsealError):
    """The index has not begun with a chain that it will have."""

    code = "index_not_ready"

    def __init__(self, chain: str) -> None:
        super().__init__(f"the {chain} is going to be indexed, and its first block is not there yet")
        self.chain = chain

    def detail(self) -> Mapping[str, Any]:
        return {"chain": self.chain}


class NotAPrimaryChain(WarpsealError):
    """The path names a blockchain that is none of the three primary ones."""

    code = "not_a_primary_chain"

    def __init__(self, name: str, known: Mapping[str, str]) -> None:
        super().__init__(f"blockchain {name[:64]!r} is none of the primary chains: {', '.join(known)}")
        self.known = dict(known)

    def detail(self) -> Mapping[str, Any]:
        return {"blockchainIds": self.known}


class IndexStale(WarpsealError):
    """The index lags further behind than `max-index-lag-seconds` allows."""

    code = "index_stale"

    def __init__(self, chain: str, lag_s: int, limit_s: float) -> None:
        super().__init__(f"the index of the {chain} lags {lag_s} s behind, and {limit_s:g} s are allowed")
        self.chain = chain
        self.lag_s = lag_s
        self.limit_s = limit_s

    def detail(self) -> Mapping[str, Any]:
        return {"chain": self.chain, "lagSeconds": self.lag_s, "allowedSeconds": self.limit_s}


class ApiKeyRequired(WarpsealError):
    """This daemon serves callers with an API key only."""

    code = "api_key_required"

    def __init__(self) -> None:
        super().__init__("an API key is required: send it as x-service-api-key or x-glacier-api-key")


class ApiKeyRefused(WarpsealError):
    """The API key is unknown or revoked."""

    code = "api_key_refused"

    def __init__(self) -> None:
        super().__init__("this API key is unknown or revoked")


class RateLimited(WarpsealError):
    """The caller has used up its compute units for now.

    limit_units: in window_s seconds. retry_after_s: when there are enough again.
    """

    code = "rate_limited"

    def __init__(self, limit_units: int, window_s: int, retry_after_s: float) -> None:
        super().__init__(f"rate limit exceeded: {limit_units} compute units in {window_s} s")
        self.limit_units = limit_units
        self.window_s = window_s
        self.retry_after_s = retry_after_s

    def detail(self) -> Mapping[str, Any]:
        return {"limitUnits": self.limit_units, "windowSeconds": self.window_s}
