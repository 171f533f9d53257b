"""The table of paths in docs/data-api.md, made of the rows of endpoints.

`python -m tests.api.data.endpoints_table` writes it into the page (`make docs-table`).
"""

from __future__ import annotations

from tests import paths
from warpseal.api.data.endpoints import ENDPOINTS

PAGE = paths.DOCS / "data-api.md"
BEGIN, END = "<!-- endpoints -->", "<!-- end of endpoints -->"


def endpoints_table() -> str:
    """Return the table; the deprecated paths are left out."""
    lines = ["| # | operation | path | units | since |", "|---|---|---|---|---|"]
    for endpoint in ENDPOINTS:
        if endpoint.deprecated_at is None:
            number = "" if endpoint.number is None else str(endpoint.number)
            path = f"`{endpoint.method} {endpoint.path}`"
            if endpoint.admission == "admin":
                path += ", with the admin token"
            lines.append(
                f"| {number} | `{endpoint.name}` | {path} | {endpoint.units} | {endpoint.since} |"
            )
    return "\n".join(lines)


def replace_endpoints_table(page: str) -> str:
    """Return docs/data-api.md with the current table."""
    start = page.index(BEGIN) + len(BEGIN)
    return page[:start] + f"\n\n{endpoints_table()}\n\n" + page[page.index(END) :]


if __name__ == "__main__":
    PAGE.write_text(replace_endpoints_table(PAGE.read_text()))
