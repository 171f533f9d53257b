"""The P-Chain's genesis: of mainnet and Fuji it comes with the program, of any other network from a file.

Source of truth: `genesis_data/NOTE.md`. Nothing is believed before its hash is the parent of the node's block 0.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

import zstandard

from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.p_blocks import PGenesis, parse_p_genesis
from warpseal.errors import StartupError

MAX_GENESIS_BYTES: Final = 64 * 1024 * 1024
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_KNOWN: Final = {1: "mainnet", 5: "fuji"}


def load_genesis(network_id: int, file: Path | None) -> PGenesis | None:
    """Return the genesis in `file`, else the one that is known of the network; None: there is none.

    Raises StartupError for a file that holds no genesis.
    """
    name = _KNOWN.get(network_id)
    if file is not None:
        return _of_file(file)
    if name is None:
        return None
    packed = files("warpseal.indexer").joinpath("genesis_data", f"{name}.bin.zst").read_bytes()
    return parse_p_genesis(_unpacked(packed))


def _of_file(file: Path) -> PGenesis:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_GENESIS_BYTES + 1)
        if len(raw) > MAX_GENESIS_BYTES:
            raise StartupError(f"genesis-file {file}: more than {MAX_GENESIS_BYTES} bytes")
        return parse_p_genesis(_unpacked(raw) if raw.startswith(_ZSTD_MAGIC) else raw)
    except OSError as error:
        raise StartupError(f"genesis-file {file} cannot be read: {error.strerror}") from None
    except (MalformedChainBytes, zstandard.ZstdError) as error:
        raise StartupError(f"genesis-file {file} is no P-Chain genesis: {error}") from None


def _unpacked(packed: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
        raw = reader.read(MAX_GENESIS_BYTES + 1)
    if len(raw) > MAX_GENESIS_BYTES:
        raise zstandard.ZstdError(f"more than {MAX_GENESIS_BYTES} bytes")
    return raw
