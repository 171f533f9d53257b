"""Documentation names only files and pages that exist, and its lines fit an editor."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.paths import DOCS, ROOT
from warpseal.daemon.subsystems import SUBSYSTEMS

PAGES = (*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")))
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
ANCHORED_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
MODULE = re.compile(r"`((?:[a-z0-9_]+/)*[a-z0-9_]+(?:\.py|/))`")
SOURCE = ROOT / "src" / "warpseal"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = LINK.findall(page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_into_a_page_leads_to_a_heading(page: Path) -> None:
    links = [
        (page.parent / target if target else page, anchor)
        for target, anchor in ANCHORED_LINK.findall(page.read_text())
    ]
    assert [link for link in links if link[1] not in anchors_of(link[0])] == []


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page.

    A heading that stands twice counts once, because its second anchor would change with the first.
    """
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_module_and_package_that_the_architecture_page_names_exists() -> None:
    text = (DOCS / "architecture.md").read_text()
    packages = {path.name for path in SOURCE.rglob("*") if path.is_dir()} | {"proto", "pb"}
    modules = MODULE.findall(text)
    missing = [
        name
        for name in modules
        if not ((SOURCE / name).exists() or name.rstrip("/") in packages or (ROOT / name).exists())
    ]
    assert len(modules) > 20
    assert [name for name in missing if name != "__init__.py"] == []


def test_every_package_is_in_the_picture_and_in_the_table_of_the_architecture_page() -> None:
    text = (DOCS / "architecture.md").read_text()
    picture = text.partition("```\n")[2].partition("```\n")[0]
    packages = [path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()]
    assert [name for name in packages if not re.search(rf"(?<![\w/]){name}/", picture)] == []
    assert [name for name in packages if f"| `{name}/` |" not in text] == []


def test_the_architecture_page_lists_the_subsystems_in_their_order() -> None:
    text = (DOCS / "architecture.md").read_text()
    table = text.partition("| subsystem | stage |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\w+) \| (\w+) \|", table, re.MULTILINE)
    assert rows == [(row.name, row.stage.value) for row in SUBSYSTEMS]


@pytest.mark.parametrize(
    ("column", "container"), [("package", "warpseal"), ("room", "warpseal.api")]
)
def test_the_architecture_page_has_the_levels_of_the_import_rules(
    column: str, container: str
) -> None:
    text = (DOCS / "architecture.md").read_text()
    table = text.partition(f"| level | {column} |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| `(?:api/)?(\w+)(?:/|\.py)?` \|", table, re.MULTILINE)
    levels: dict[int, set[str]] = {}
    for level, name in rows:
        levels.setdefault(int(level), set()).add(name)
    assert [names for _, names in sorted(levels.items(), reverse=True)] == layers_of(container)


def layers_of(container: str) -> list[set[str]]:
    """Return the layers of an import rule from top to bottom."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    contracts = tools["importlinter"]["contracts"]
    (contract,) = [rule for rule in contracts if rule.get("containers") == [container]]
    return [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]


def test_every_test_that_holds_a_guarantee_exists() -> None:
    text = (DOCS / "guarantees.md").read_text()
    tests = ROOT / "tests"
    files = sorted({tests / name for name in re.findall(r"`((?:\w+/)*\w+\.py)`", text)})
    assert len(files) > 40
    assert [file for file in files if not file.exists()] == []
    sources = "".join(file.read_text() for file in files)
    names = set(re.findall(r"`(test_\w+)`", text))
    assert [name for name in sorted(names) if f"def {name}(" not in sources] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_longer_than_120_characters_except_rows_of_tables_and_long_words(
    page: Path,
) -> None:
    lines = [line for line in page.read_text().splitlines() if not line.lstrip().startswith("|")]
    assert [line for line in lines if len(line) > 120 and max(map(len, line.split())) < 50] == []
