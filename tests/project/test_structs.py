"""Structs are values: a service, which has private or mutable state, is a class with `__init__`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src"
# Each instance has its own of these, but they read like the default that all calls share.
MUTABLE_DEFAULTS: Final = {"[]", "{}", "set()"}


def test_no_struct_has_a_private_field_or_a_literal_mutable_default() -> None:
    fields = [
        f"{place}.{field.target.id}"
        for place, struct in _structs()
        for field in struct.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not ast.unparse(field.annotation).startswith("ClassVar")
        and (field.target.id.startswith("_") or _default(field) in MUTABLE_DEFAULTS)
    ]
    assert fields == []


def _default(field: ast.AnnAssign) -> str:
    return "" if field.value is None else ast.unparse(field.value)


def _structs() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the subclasses of Struct, at any depth, with their files and names."""
    classes = [
        (f"{file.relative_to(SOURCE)}:{node.name}", node)
        for file in sorted(SOURCE.rglob("*.py"))
        if "pb" not in file.relative_to(SOURCE).parts
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    names = {"Struct"}
    count = 0
    while len(names) > count:
        count = len(names)
        names |= {node.name for _, node in classes if names.intersection(_bases(node))}
    assert count > 500
    yield from ((place, node) for place, node in classes if names.intersection(_bases(node)))


def _bases(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of the bases, without their modules and type arguments."""
    for base in node.bases:
        generic = base.value if isinstance(base, ast.Subscript) else base
        yield ast.unparse(generic).rpartition(".")[2]
