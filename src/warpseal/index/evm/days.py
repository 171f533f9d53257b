"""Transactions per second of UTC days, from the last block of each: endpoint 17."""

from __future__ import annotations

from typing import Final

from warpseal.index.evm.keys import day_of
from warpseal.index.evm.queries import read_state
from warpseal.index.read_session import ReadSession
from warpseal.resources.evm import DailyTps

_LAST_BLOCK_BEFORE: Final = "SELECT time, txs FROM days WHERE day < ? AND number >= ? ORDER BY day DESC LIMIT 1"
_LAST_BLOCKS: Final = "SELECT day, time, txs FROM days WHERE day BETWEEN ? AND ? AND number >= ? ORDER BY day"


def daily_tps(session: ReadSession, first_day: int, last_day: int) -> DailyTps | None:
    """Return the transactions per second of days with blocks; None before the first block.

    A day lasts from the last block before it to its last block. The first day lasts from block 1, since the time of
    block 0 may be 0. The first day of an index that begins later is left out.
    """
    state = read_state(session)
    if state is None:
        return None
    ((advanced_at,),) = session.rows("SELECT advanced_at FROM derived_state")
    begin = max(1, state.chain.first_height)
    if state.height < begin:
        return DailyTps(None, day_of(state.time), {}, advanced_at)
    ((time, txs),) = session.rows("SELECT time, txs - tx_count FROM blocks WHERE number = ?", begin)
    complete_from = day_of(time) + (begin > 1)
    low = max(first_day, complete_from)
    for row in session.rows(_LAST_BLOCK_BEFORE, low, begin):
        time, txs = row
    values: dict[int, float] = {}
    for day, day_time, day_txs in session.rows(_LAST_BLOCKS, low, last_day, begin):
        seconds = day_time - time
        values[day] = max(0, day_txs - txs) / seconds if seconds > 0 else 0.0
        time, txs = day_time, day_txs
    return DailyTps(complete_from, day_of(state.time), values, advanced_at)
