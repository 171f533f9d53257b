"""The tables of the metrics database. Times are unix seconds."""

from __future__ import annotations

from typing import Final

from warpseal.store.tables import TableIndex, Tables, declare_table

TABLES: Final = Tables()

# Sums of calls. level, dimension: numbers of periods.py and calls.py. start: first second of the
# bucket. Labels that the dimension does not have are empty. times: counts of response_times.py.
USAGE: Final = declare_table(
    TABLES,
    "usage",
    "level int16*, dimension int16*, start int64*, path text*, method text*, status text*, api_key"
    " text*, country text*, user_agent text*, requests int64, invalid int64, failed int64, credits"
    " int64, credits_wasted int64, times bytes",
)
# Buckets with rows. combinations: number of rows of all labels. size_bytes: approximate size of all
# rows.
BUCKETS: Final = declare_table(
    TABLES,
    "usage_buckets",
    "level int16+, start int64+, combinations int64, size_bytes int64",
)
# Usage of one minute that one daemon recorded until one flush. run: random id of a daemon's run,
# which numbers its flushes. sums: encoded sums until they are added to the buckets, then null: the
# row is kept for a day, so that they count once.
FLUSHES: Final = declare_table(
    TABLES,
    "usage_flushes",
    "run bytes+, sequence int64+, minute int64, written_at int64, sums bytes?",
    TableIndex("usage_flushes_by_time", "written_at"),
)

# One row for each page token of the Metrics API. id: the 16 bytes of a UUID.
PAGE_TOKENS: Final = declare_table(
    TABLES,
    "page_tokens",
    "id bytes+, expires_at int64, body bytes",
    TableIndex("page_tokens_by_time", "expires_at"),
)
