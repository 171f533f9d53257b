"""Calls of the P-Chain: to the node itself, through a bare aiohttp proxy, and through the daemon,
in turns.

The benchmark works as evm_front, without batches: it sends a call of the P-Chain
(`platform.getTxStatus`) to the node, through the bare proxy, and through the daemon as a gateway,
which meters each call.
"""

from __future__ import annotations

from functools import partial

from benchmarks.evm_front import measure
from benchmarks.evm_sides import fronted
from benchmarks.report import Report

CALL = (
    b'{"jsonrpc":"2.0","id":1,"method":"platform.getTxStatus",'
    b'"params":{"txID":"2oYMBNV4eNHyqk2fjjV5nVQLDbtmNJzq5s3qs3Lo6ftnC6FByM"}}'
)


def run(quick: bool) -> Report:
    """Ask the three in turns: by one connection, by 32, and by 32 at a rate.

    The daemon meters each call.
    """
    return measure("gateway", quick, partial(fronted, gateway_path="/ext/bc/P"), CALL)
