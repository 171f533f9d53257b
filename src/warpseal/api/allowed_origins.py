"""The origins whose browser pages may read responses.

Source of truth: the node's `http-allowed-origins`: names in any case, each with at most one `*` for any characters.
"""

from __future__ import annotations

from collections.abc import Iterable

from warpseal.api.data.settings import ANY_ORIGIN


class AllowedOrigins:
    """is_any: all origins are allowed."""

    def __init__(self, origins: Iterable[str]) -> None:
        names = [origin.rstrip("/").lower() for origin in origins]
        self.is_any = ANY_ORIGIN in names
        self._exact = frozenset(name for name in names if "*" not in name)
        self._patterns = tuple(name.partition("*") for name in names if "*" in name)

    def allow(self, origin: str) -> bool:
        """Return whether pages of this origin may read responses."""
        name = origin.lower()
        return (
            self.is_any or name in self._exact or any(_fits(name, before, after) for before, _, after in self._patterns)
        )


def _fits(name: str, before: str, after: str) -> bool:
    is_long_enough = len(name) >= len(before) + len(after)
    return is_long_enough and name.startswith(before) and name.endswith(after)
