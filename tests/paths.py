"""Folders that tests read from."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
VECTORS: Final = ROOT / "tests" / "vectors"
LOCALNET: Final = VECTORS / "localnet"
