"""Every default, unit and bound of prices; docs/data-api.md tells what the sources look like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PriceSettings:
    """Where prices of AVAX come from; without any, none is ever told.

    file: CSV, asked first. url: of a JSON document, with what is asked for in braces (see urls.py). path: where in it
    the price stands: keys and places in lists with dots between, with `{currency}`.
    """

    file: Path | None = None
    url: str = ""
    path: str = ""
    timeout_s: float = 3.0
    max_answer_bytes: int = 1024 * 1024
    retry_failed_after_s: float = 60.0
    max_remembered: int = 50_000

    @property
    def is_off(self) -> bool:
        """Whether there is no source at all."""
        return self.file is None and not self.url
