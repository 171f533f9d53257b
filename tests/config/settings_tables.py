"""The tables of settings in docs/operations.md, made from the declarations.

`python -m tests.config.settings_tables` writes them into the page (`make docs-table`).
"""

from __future__ import annotations

from tests import paths
from warpseal.config.keys import GROUP_CONTENTS, KEYS
from warpseal.runtime.settings import Group

PAGE = paths.DOCS / "operations.md"
BEGIN, END = "<!-- settings -->", "<!-- end of settings -->"


def settings_tables() -> str:
    """Return the tables of all keys for the docs, one for each group."""
    return "\n\n".join(
        f"### {_title(group)}\n\n{_settings_table(group)}" for group in GROUP_CONTENTS
    )


def replace_settings_tables(page: str) -> str:
    """Return docs/operations.md with the current tables."""
    start = page.index(BEGIN) + len(BEGIN)
    return page[:start] + f"\n\n{settings_tables()}\n\n" + page[page.index(END) :]


def _title(group: Group) -> str:
    return f"{group[0].upper()}{group[1:]}: {GROUP_CONTENTS[group]}"


def _settings_table(group: Group) -> str:
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for key in KEYS:
        if key.setting.group is group:
            default = (
                f"`{key.default_text}`"
                if any(char in key.default_text for char in "*$~")
                else key.default_text
            )
            rows.append(f"| `{key.name}` | {default} | {key.setting.help.replace('|', '&#124;')} |")
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(replace_settings_tables(PAGE.read_text()))
