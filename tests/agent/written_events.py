"""Find, in the agent's source, the events that it writes: their kinds and the names of their fields.

Three forms are known: a dict with the key `event`; a call `….event(event="kind", …)`; and `self.complete(…)`
and `self.give_up(…)` of a task, whose class names the event. A part `**mapping` of a dict is followed to a
dict in the same function, or to the dict that a function of the agent returns; elsewhere its names stay open.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GIVE_UP_FIELDS = frozenset({"event", "task", "kind", "code", "reason", "at_exit"})
COMPLETE_FIELDS = frozenset({"event", "task", "done_s"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Written:
    """An event that the source writes. `is_open`: whether it may have fields that the source does not
    name."""

    kind: str
    fields: frozenset[str]
    is_open: bool
    place: str


@dataclass(frozen=True)
class Names:
    """Names of a mapping's keys, as far as the source shows them."""

    known: frozenset[str] = frozenset()
    is_open: bool = False

    def __or__(self, other: Names) -> Names:
        return Names(self.known | other.known, self.is_open or other.is_open)


OPEN = Names(is_open=True)


def written(sources: Mapping[str, str]) -> list[Written]:
    """Return the events that these modules write. `sources`: text by name of the module."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    functions: dict[str, list[Function]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                functions.setdefault(node.name, []).append(node)
    return [event for name, tree in trees.items() for event in _Module(name, functions).events(tree)]


class _Module:
    def __init__(self, name: str, functions: Mapping[str, list[Function]]) -> None:
        self._name, self._functions = name, functions

    def events(
        self, node: ast.AST, function: Function | None = None, task_event: str = ""
    ) -> Iterator[Written]:
        """Walk the tree with the function around each node, and the event of the task's class around it."""
        if isinstance(node, ast.ClassDef):
            task_event = _class_event(node)
        elif isinstance(node, Function):
            function = node
        elif isinstance(node, ast.Dict):
            yield from self._of_dict(node, function)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, function, task_event)
        for inner in ast.iter_child_nodes(node):
            yield from self.events(inner, function, task_event)

    def _of_dict(self, node: ast.Dict, function: Function | None) -> Iterator[Written]:
        for key, value in zip(node.keys, node.values, strict=True):
            # Another value is the event of a task, whose calls of `complete` are looked at.
            if _text(key) == "event" and (kind := _text(value)):
                yield self._written(kind, self._names(node, function), node)

    def _of_call(self, node: ast.Call, function: Function | None, task_event: str) -> Iterator[Written]:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        names = self._keywords(node, function)
        if called == "event":
            kinds = [_text(word.value) for word in node.keywords if word.arg == "event"]
            for kind in kinds:
                yield self._written(kind, names, node)
        elif called == "complete" and task_event:
            yield self._written(task_event, Names(COMPLETE_FIELDS) | names, node)
        elif called == "give_up" and task_event:
            yield self._written("given_up", Names(GIVE_UP_FIELDS) | names, node)

    def _written(self, kind: str, names: Names, node: ast.expr) -> Written:
        return Written(kind, names.known, names.is_open, f"{self._name}:{node.lineno}")

    # Names of a mapping's keys

    def _keywords(self, node: ast.Call, function: Function | None) -> Names:
        found = Names()
        for word in node.keywords:
            found |= self._names(word.value, function) if word.arg is None else Names(frozenset({word.arg}))
        return found

    def _names(self, node: ast.expr | None, function: Function | None, depth: int = 6) -> Names:
        match node:
            case ast.Dict():
                found = Names()
                for key, value in zip(node.keys, node.values, strict=True):
                    found |= self._names(value, function, depth) if key is None else _named(key)
                return found
            case ast.YieldFrom():
                return self._names(node.value, function, depth)
            case ast.IfExp():
                return self._names(node.body, function, depth) | self._names(node.orelse, function, depth)
            case ast.Name() if function is not None and depth:
                return self._of_variable(node.id, function, depth - 1)
            case ast.Call() if depth:
                called = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                homes = self._functions.get(called, [])
                return self._returned(homes[0], depth - 1) if len(homes) == 1 else OPEN
        return OPEN

    def _of_variable(self, name: str, function: Function, depth: int) -> Names:
        """Return the keys that the function gives a variable: at its assignment, item by item, and by
        `update`."""
        found, is_assigned = Names(), False
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    found, is_assigned = found | self._names(value, function, depth), True
                case ast.AnnAssign(target=ast.Name(id=target), value=value) if target == name:
                    found, is_assigned = found | self._names(value, function, depth), True
                case ast.NamedExpr(target=ast.Name(id=target)) if target == name:
                    found, is_assigned = found | OPEN, True
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target), slice=key)]) if (
                    target == name
                ):
                    found |= _named(key)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="update")) if target == name:
                    found |= OPEN if node.args else self._keywords(node, function)
        return found if is_assigned else OPEN

    def _returned(self, function: Function, depth: int) -> Names:
        found = Names()
        for node in ast.walk(function):
            is_none = (
                isinstance(node, ast.Return)
                and isinstance(node.value, ast.Constant)
                and node.value.value is None
            )
            if isinstance(node, ast.Return) and node.value is not None and not is_none:
                found |= self._names(node.value, function, depth)
        return found


def _named(key: ast.expr) -> Names:
    return Names(frozenset({_text(key)})) if _text(key) else OPEN


def _class_event(node: ast.ClassDef) -> str:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="event")], value=value):
                return _text(value)
    return ""


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
