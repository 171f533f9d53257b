"""Errors of the Data API and of the Metrics API."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from warpseal.api.http.errors import NotFound
from warpseal.errors import HOUR_S, RETRY_LATER_S, InvalidRequest, WarpsealError
from warpseal.resources.evm import ErcType


class InvalidPageToken(InvalidRequest):
    """This service did not issue the page token, or not for this path."""

    code = "invalid_page_token"


class ExpiredPageToken(InvalidRequest):
    """A page token is older than 24 hours."""

    code = "expired_page_token"


class PageTokenMismatch(InvalidRequest):
    """A parameter differs from the request that the page token continues."""

    code = "page_token_mismatch"


class IndexNotEnabled(NotFound):
    """The request needs an index that this daemon does not keep.

    missing: the chain or the resource.
    setting: the setting that enables it.
    change: the value to set there.
    """

    code = "index_not_enabled"

    def __init__(self, missing: str, setting: str, change: str) -> None:
        text = f"index not enabled: this daemon does not index {missing}; {change} in {setting}"
        super().__init__(text, missing=missing, setting=setting)


class IndexNotReady(WarpsealError):
    """The index has not begun with a chain that it will have."""

    code = "index_not_ready"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, chain: str) -> None:
        super().__init__(
            f"the {chain} is going to be indexed, and its first block is not there yet", chain=chain
        )


class NotAPrimaryChain(NotFound):
    """The path names a blockchain that is none of the three primary ones."""

    code = "not_a_primary_chain"

    def __init__(self, name: str, primary_chains: Mapping[str, str]) -> None:
        text = (
            f"blockchain {name[:64]!r} is none of the primary chains: {', '.join(primary_chains)}"
        )
        super().__init__(text, blockchain_ids=dict(primary_chains))


class IndexStale(WarpsealError):
    """The index lags further behind than `max-index-lag-seconds` allows."""

    code = "index_stale"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, chain: str, lag_s: int, limit_s: float) -> None:
        text = f"the index of the {chain} lags {lag_s} s behind, and {limit_s:g} s are allowed"
        super().__init__(text, chain=chain, lag_seconds=lag_s, allowed_seconds=limit_s)


class IndexBehind(WarpsealError):
    """The index of an EVM chain does not have the token or message yet, and it lacks blocks that
    may hold it.
    """

    code = "index_behind"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, chain: str, height: int, node_height: int) -> None:
        text = (
            f"the index of EVM chain {chain} does not have it at block {height}; the chain is at"
            f" {node_height}"
        )
        super().__init__(text, chain=chain, height=str(height), node_height=str(node_height))


class BlockNotFound(NotFound):
    """The EVM chain has no accepted block of this number or hash (yet)."""

    code = "block_not_found"

    def __init__(self, block: str, chain: str) -> None:
        super().__init__(
            f"EVM chain {chain} has no block {block} (yet)", block_id=block, chain=chain
        )


class MessageNotFound(NotFound):
    """No indexed chain has an ICM message with this id, as far as the indexes go back, or the store
    no Warp message.
    """

    code = "message_not_found"

    def __init__(
        self, message_id: str, reason: str = "no indexed chain has an ICM message"
    ) -> None:
        super().__init__(f"{reason} {message_id}", message_id=message_id)


class TokenNotFound(NotFound):
    """No token of this contract with this id was ever minted, as far as the index goes back."""

    code = "token_not_found"

    def __init__(self, contract: str, token_id: str) -> None:
        super().__init__(
            f"contract {contract} has no token {token_id}", address=contract, token_id=token_id
        )


class NotAnErc20Token(NotFound):
    """The contract has ERC-20 transfers and another kind, so that its ERC-20 balances are not
    listed.
    """

    code = "not_an_erc20_token"

    def __init__(self, contract: str, kind: ErcType) -> None:
        reason = f"its calls say that its kind is {kind}"
        text = (
            f"the ERC-20 holders of {contract} are not listed: it emits ERC-20 transfers, but"
            f" {reason}"
        )
        super().__init__(text, address=contract, reason=reason)


class ReindexedRecently(WarpsealError):
    """The metadata of a token may be reindexed once per hour.

    retry_after_s: seconds until the hour is over.
    """

    code = "reindexed_recently"
    http_status = 429
    retry_after_s: float = HOUR_S
    max_retry_after_s = HOUR_S

    def __init__(self, contract: str, token_id: str, retry_after_s: float) -> None:
        text = (
            f"token {token_id} of {contract} was reindexed within the hour; try again in"
            f" {ceil(retry_after_s)} s"
        )
        super().__init__(text, address=contract, token_id=token_id)
        self.retry_after_s = retry_after_s


class ReindexUnavailable(WarpsealError):
    """The metadata of a token cannot be fetched within 20 seconds now: the indexer is down, or has
    too much to do.
    """

    code = "reindex_unavailable"
    http_status = 503
    retry_after_s: float = RETRY_LATER_S

    def __init__(self, reason: str) -> None:
        super().__init__(f"the metadata cannot be fetched now: {reason}", reason=reason)


class EventsNotEnabled(NotFound):
    """The request needs the event log, and this daemon has no store."""

    code = "events_not_enabled"

    def __init__(self) -> None:
        super().__init__(
            "events not enabled: this daemon has no store, which has the event log",
            setting="store-url",
        )


class UsageNotEnabled(NotFound):
    """The request needs the usage of RPC routes, which this daemon does not record."""

    code = "usage_not_enabled"

    def __init__(self) -> None:
        super().__init__(
            "usage not enabled: this daemon does not record the usage of RPC routes",
            setting="usage-enabled",
        )
