"""Field names of JSON objects as Go reads them into structs: in any case.

Keys of maps are read exactly.

Source of truth: Go's `encoding/json`, `Unmarshal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ReadNames = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Takes an object; returns it with the exact names of its fields. Other keys stay.

Of several spellings of a field the last one counts.
"""


def field_names(*names: str) -> ReadNames:
    """Return the function that gives the fields of a struct their exact names."""
    exact = {name.lower(): name for name in names}

    def read(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {exact.get(key.lower(), key): value for key, value in fields.items()}

    return read
