"""Errors of the metrics database and of its page tokens."""

from __future__ import annotations

from warpseal.errors import RETRY_LATER_S, WarpsealError


class TooManyPageTokens(WarpsealError):
    """The metrics database holds as many page tokens as it may, and the page has a next one."""

    code = "too_many_page_tokens"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} page tokens are valid, and no more are given out", limit=limit)


class UsageQueryTooLong(WarpsealError):
    """A query of usage was given up, because it takes too long."""

    code = "usage_query_too_long"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"the query takes more than {limit_s:g} s: ask for less time, or with fewer filters"
        )
