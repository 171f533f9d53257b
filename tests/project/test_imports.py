"""Imports between modules: one direction for each pair, imports for types and late imports included."""

from __future__ import annotations

import grimp


def test_no_two_modules_import_each_other() -> None:
    graph = grimp.build_graph("warpseal", cache_dir=None)
    arrows = {
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }
    assert len(arrows) > 1_000
    assert sorted((importer, imported) for importer, imported in arrows if (imported, importer) in arrows) == []
