"""Mutations: the small faults that a program may have, as changes of its syntax tree.

Code outside functions, and the calls of a logger, have none.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_PAIRS: list[tuple[type[ast.AST], type[ast.AST]]] = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.LShift, ast.RShift),
    (ast.BitAnd, ast.BitOr),
    (ast.Break, ast.Continue),
]
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitXor: ast.BitAnd,
}


class Mutation(NamedTuple):
    """A change of a syntax tree, which `apply` makes in place."""

    lines: range
    text: str
    apply: Callable[[], None]


def find_mutations(tree: ast.AST) -> Iterator[Mutation]:
    """Yield each mutation of the functions of a module or class."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in child.body:
                yield from _mutate(child, statement)
        elif isinstance(child, ast.ClassDef | ast.If | ast.Try):
            yield from find_mutations(child)


def _mutate(parent: ast.AST, node: ast.AST) -> Iterator[Mutation]:
    if _is_log_call(node) or isinstance(node, ast.JoinedStr):
        return
    for new in _replacements(node):
        text = f"{_first_line(node)} -> {_first_line(new)}"
        changed = _keep_names(node, new)
        yield Mutation(_lines(node), text, lambda changed=changed: _replace(parent, node, changed))  # type: ignore[misc]
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _mutate(node, child)


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare() | ast.BinOp() | ast.AugAssign() | ast.BoolOp():
            yield from _swap_operators(node)
        case ast.Break() | ast.Continue():
            yield _SWAPS[type(node)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Name(id="min" | "max"):
            yield ast.Name("max" if node.id == "min" else "min", ast.Load())
        case ast.If() | ast.While() | ast.IfExp():
            # Comparisons, `not` and constants have mutations of their own.
            if not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.Constant):
                negated = copy.copy(node)
                negated.test = ast.UnaryOp(ast.Not(), node.test)
                yield negated
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Expr(value=value) if not isinstance(value, ast.Constant):
            # A function without its only `yield` is no generator.
            if not any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(value)):
                yield ast.Pass()


def _keep_names(old: ast.AST, new: ast.AST) -> ast.AST:
    """Return a new statement, with the old one beside it where it never runs.

    Without its names, such as the class that `super()` needs, a method or a closure would have
    other variables, and an existing function could not get its code.
    """
    if isinstance(new, ast.Pass | ast.Return):
        return ast.If(ast.Constant(False), [old], [new])  # type: ignore[list-item]
    return new


def _swap_operators(
    node: ast.Compare | ast.BinOp | ast.AugAssign | ast.BoolOp,
) -> Iterator[ast.AST]:
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()
    operators: list[Any] = list(node.ops) if isinstance(node, ast.Compare) else [node.op]
    for position, operator in enumerate(operators):
        swap = _SWAPS.get(type(operator))
        if swap is None:
            continue
        changed: Any = copy.copy(node)
        if isinstance(node, ast.Compare):
            changed.ops = [*operators[:position], swap(), *operators[position + 1 :]]
        else:
            changed.op = swap()
        yield changed


def _is_log_call(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target))):
            return ast.unparse(target).split(".")[-1].lower().strip("_") in ("log", "logger")
    return False


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:90]


def _lines(node: Any) -> range:
    """Return the lines of a node; for `if` and `while` those of their condition."""
    end: Any = node.test if isinstance(node, ast.If | ast.While) else node
    return range(node.lineno, end.end_lineno + 1)


def _replace(parent: ast.AST, node: ast.AST, new: ast.AST) -> None:
    for part in [new, *ast.iter_child_nodes(new)]:
        if not hasattr(part, "lineno"):
            ast.copy_location(part, node)
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, new)
        elif isinstance(value, list):
            setattr(parent, name, [new if child is node else child for child in value])
