"""The rows of an index, without the keys that depend on the order in which chains were read."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

from warpseal.index.schema import ALL_SPENDS, ALL_UNSPENT

_TABLES = {
    "blocks": (
        "SELECT key, hex(block_id), time, kind, size, txs, supply, fees, active, hex(proposer)"
        " FROM blocks"
    ),
    "txs": "SELECT hex(tx_id), height, time, kind, outcome, outs, moved FROM txs",
    "outputs": (
        "SELECT hex(t.tx_id), hex(r.tx_id), o.position, hex(a.id), o.amount, o.flags,"
        " hex(w.id), hex(s.tx_id)"
        " FROM outputs o"
        " LEFT JOIN txs t ON t.key = o.tx"
        " LEFT JOIN txs r ON r.key = o.origin"
        " JOIN ids a ON a.key = o.asset"
        " LEFT JOIN ids w ON w.key = o.owner"
        f" LEFT JOIN {ALL_SPENDS} p ON p.output = o.key"
        " LEFT JOIN txs s ON s.key = p.tx"
    ),
    "unspent": (
        "SELECT u.prefix, hex(u.rest), hex(a.id), u.amount, u.held_on"
        f" FROM {ALL_UNSPENT} AS u JOIN ids a ON a.key = u.asset"
    ),
    "early_spends": "SELECT prefix, hex(rest) FROM early_spends",
    "address_txs": (
        "SELECT hex(i.id), hex(t.tx_id), t.kind FROM address_txs x JOIN ids i ON i.key = x.address"
        " JOIN txs t ON t.key = x.tx"
    ),
    "assets": (
        "SELECT hex(i.id), name, symbol, denomination, is_nft, is_fixed, made_at"
        " FROM assets x JOIN ids i ON i.key = x.asset"
    ),
    "stakings": (
        "SELECT hex(t.tx_id), s.start_s, s.end_s, s.weight, s.shares, s.state, s.potential,"
        " s.earned, s.fees"
        " FROM stakings s"
        " JOIN txs t ON t.key = s.tx"
    ),
    "chains": (
        "SELECT chain, first_height, height, hex(block_id), time, next_tx, is_complete FROM chains"
    ),
}


def rows(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the index in a folder, by table."""
    with sqlite3.connect(folder / "index.db") as database:
        return {
            name: sorted(database.execute(text).fetchall(), key=repr)
            for name, text in _TABLES.items()
        }


def query(folder: Path, text: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement over the index in a folder."""
    with sqlite3.connect(folder / "index.db") as database:
        return database.execute(text, values).fetchall()


def flip_stored_bytes(folder: Path, random: Random, share: float) -> None:
    """Change a share of the bytes of stored blocks, at least one of each row."""
    with sqlite3.connect(folder / "index.db") as database:
        for number, body in database.execute("SELECT number, body FROM raw_blocks").fetchall():
            content = bytearray(body)
            for _ in range(max(1, int(share * len(content)))):
                content[random.randrange(len(content))] ^= random.randrange(1, 256)
            database.execute(
                "UPDATE raw_blocks SET body = ? WHERE number = ?", (bytes(content), number)
            )
