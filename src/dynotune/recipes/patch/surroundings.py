"""Tell of a node what the code around it means: whether it runs, what it is assigned to, what loops bind."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dynotune.recipes.patch.source import SourceFile


def is_conditional(file: SourceFile, node: cst.CSTNode) -> bool:
    """Tell whether a statement may not be reached: it lies inside an `if`, a loop or a `try`."""
    return any(
        isinstance(above, cst.If | cst.Else | cst.For | cst.While | cst.Try | cst.TryStar)
        and "__name__" not in (file.code(above.test) if isinstance(above, cst.If) else "")
        for above in file.above(node)
    )


def is_sure_to_run(file: SourceFile, node: cst.CSTNode) -> bool:
    """Tell whether a statement is reached whenever its file runs: a function may never be called."""
    is_inside = any(isinstance(above, cst.FunctionDef | cst.Lambda) for above in file.above(node))
    return not is_inside and not is_conditional(file, node)


def is_assigned_to(path: str, file: SourceFile, node: cst.CSTNode) -> bool:
    """Tell whether `node` is what is assigned to the attribute of this dotted path."""
    assign = next(file.above(node))
    return (
        isinstance(assign, cst.Assign)
        and assign.value is node
        and any(path in file.qualified(target.target) for target in assign.targets)
    )


def bound_by_loops(file: SourceFile, node: cst.CSTNode) -> set[str]:
    """Return the names that loops around a node bind in their heads."""
    names: set[str] = set()
    for above in file.above(node):
        if isinstance(above, cst.For):
            names |= {name.value for name in _names(above.target)}
    return names


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    for child in node.children:
        yield from _names(child)
