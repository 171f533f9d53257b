"""Keys of the Data API: who may read it and how much, whose shapes it has, and prices."""

from __future__ import annotations

from typing import Final

from warpseal.api.data.settings import Compat
from warpseal.config import values as v
from warpseal.config.key import HOUR_S, UNITS, Key

DATA_KEYS: Final = (
    Key(
        "http-allowed-origins",
        "data_api.http_allowed_origins",
        v.list_of(v.origin),
        "sites whose pages may read answers; * is any",
        "ORIGINS",
        node=True,
    ),
    Key(
        "max-index-lag-seconds",
        "data_api.max_index_lag_s",
        v.seconds(0, 365 * 24 * HOUR_S),
        "answers from an index that lags further are refused; 0: none",
        "SECONDS",
    ),
    Key(
        "compat",
        "data_api.compat",
        v.choice(Compat),
        "shapes where specification and SDKs disagree: spec, sdk, or auto (by user agent)",
        "WHOSE",
    ),
    Key("rate-limit-per-minute", "data_api.rate_limit_per_minute", UNITS, "compute units without a key; 0: any number"),
    Key("rate-limit-per-day", "data_api.rate_limit_per_day", UNITS, "the same for a day"),
    Key("rate-limit-loopback", "data_api.rate_limit_loopback", v.boolean, "limit clients on this machine, too", "BOOL"),
    Key("price-file", "prices.file", v.optional_path, "prices of AVAX: a CSV of date,currency,price", "FILE"),
    Key("price-url", "prices.url", v.price_url, "prices of AVAX: a JSON document, with {date} and {currency}", "URL"),
    Key("price-path", "prices.path", v.price_path, "where in that document the price stands: a.0.{currency}", "PATH"),
    Key("require-api-key", "data_api.require_api_key", v.boolean, "serve /v1 to callers with an API key only", "BOOL"),
)
