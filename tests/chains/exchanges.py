"""What the recorded nodes answered about X- and C-Chain, and the bytes in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from tests import paths

VECTORS = paths.VECTORS
LOCALNET = VECTORS / "localnet"
# Ids of the transactions that the recorded network's wallet made, by kind.
WALLET: dict[str, str] = json.loads((LOCALNET / "wallet-txs.json").read_text())


def vector(file: str) -> Any:
    """Return what a JSON file of vectors holds."""
    return json.loads((VECTORS / file).read_text())


def lines(file: str) -> Iterator[dict[str, Any]]:
    """Yield every recorded call: its method, params and result."""
    for line in (LOCALNET / file).read_text().splitlines():
        yield json.loads(line)


def results(file: str, method: str, **params: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield (params, result) of every recorded call of `method` that has these named params."""
    for call in lines(file):
        if call["method"] == method and params.items() <= call["params"].items():
            yield call["params"], call["result"]


def checked(text: str) -> bytes:
    """Return the bytes behind a node's `hex` encoding, whose last four bytes are a checksum."""
    raw = bytes.fromhex(text.removeprefix("0x"))
    assert sha256(raw[:-4]).digest()[-4:] == raw[-4:]
    return raw[:-4]
