"""Our contracts, compiled by solc with @openzeppelin/contracts; `make test` installs both."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests import paths

_INSTALLED: Final = paths.ROOT / ".venv" / "solidity"
_FOLDER: Final = Path(__file__).parent
_NODE: Final = shutil.which("node")


def is_installed() -> bool:
    """Return whether contracts can be compiled here."""
    return _NODE is not None and (_INSTALLED / "node_modules").is_dir()


@cache
def creation_code(contract: str) -> bytes:
    """Return the code that creates a contract, before the arguments of its constructor."""
    return bytes.fromhex(_compiled()[contract])


@cache
def _compiled() -> dict[str, str]:
    """Return the code of all contracts, compiled again only if a source has changed."""
    script = (_FOLDER / "compile.mjs").read_bytes()
    sources = {path.name: path.read_text() for path in sorted(_FOLDER.glob("*.sol"))}
    lock = (_FOLDER / "package-lock.json").read_bytes()
    digest = hashlib.sha256(repr((script, sources, lock)).encode()).hexdigest()[:16]
    stored = _INSTALLED / f"compiled-{digest}.json"
    if not stored.exists():
        assert _NODE is not None
        # A script finds the packages of the folder that it is in.
        shutil.copy(_FOLDER / "compile.mjs", _INSTALLED)
        command = [_NODE, "compile.mjs"]
        done = subprocess.run(
            command, input=json.dumps(sources).encode(), capture_output=True, cwd=_INSTALLED
        )
        assert done.returncode == 0, done.stderr.decode()
        temporary = stored.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(done.stdout)
        temporary.replace(stored)
    compiled: dict[str, str] = json.loads(stored.read_bytes())
    return compiled
