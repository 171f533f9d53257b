"""Imports between modules: one direction for each pair, imports for types and late imports included."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).parents[2] / "src"
LAZY_MODULES = sorted(
    {name for file in SOURCE.rglob("*.py") for name in re.findall(r'= LazyModule\("([\w.]+)"\)', file.read_text())}
)


@pytest.mark.parametrize("name", LAZY_MODULES)
def test_modules_that_are_imported_at_first_use_exist(name: str) -> None:
    import_module(name)


def test_a_daemon_on_sqlite_does_not_load_what_only_others_use() -> None:
    code = "import sys, warpseal.daemon.startup; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "warpseal.store.engine" in loaded
    assert {"psycopg", "sqlalchemy.dialects.postgresql", "numpy", "py_ecc", "grpc", "alembic"} & set(loaded) == set()


def test_no_two_modules_import_each_other() -> None:
    graph = grimp.build_graph("warpseal", cache_dir=None)
    arrows = {
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }
    assert len(arrows) > 1_000
    assert sorted((importer, imported) for importer, imported in arrows if (imported, importer) in arrows) == []
