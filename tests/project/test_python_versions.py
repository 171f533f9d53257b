"""The code works on every release of the supported Python versions, also on the oldest ones of
distributions.
"""

from __future__ import annotations

import ast

from tests.paths import ROOT


def test_nothing_is_raised_inside_except_star() -> None:
    texts = {file: file.read_text() for file in sorted((ROOT / "src").rglob("*.py"))}
    # Python 3.11.0 to 3.11.3 wraps it into a group, so that an error at the start would be a
    # traceback.
    raised = [
        f"{file.name}:{statement.lineno}"
        for file, text in texts.items()
        # Only a few files are worth a parse; ruff writes the clause so.
        if "except*" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.TryStar)
        for handler in node.handlers
        for statement in ast.walk(handler)
        if isinstance(statement, ast.Raise)
    ]
    assert raised == []
