"""A Python file as a concrete syntax tree: names, positions, and edits that leave all other bytes alone."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import libcst as cst
from libcst import metadata

from dynotune.recipes.patch.program import LARGEST_BYTES
from dynotune.schema import untrusted
from dynotune.schema.errors import DynotuneError

Body = cst.Module | cst.IndentedBlock
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
MOST_NODES = 100_000
"""Nodes of Python's own tree, about 12,000 lines. The concrete tree takes half a millisecond for each."""
_DEEPEST = 150
"""Levels of Python's own tree. Beyond some hundreds libcst's parser ends this process by overflowing its
stack."""
_BOM = b"\xef\xbb\xbf"


class NoPlace(DynotuneError):
    """A setting has no place in the program's files; the message is the reason."""


@dataclass
class Edits:
    """Edits of one file; nodes are those of the file's tree.

    Args:
        replaced: node to the node in its place.
        before, after: statement to the statements that are put beside it.
        wrapped: first statement to the number of statements, and the header of the `with` around them.
    """

    replaced: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    before: dict[cst.CSTNode, list[cst.SimpleStatementLine]] = field(default_factory=dict)
    after: dict[cst.CSTNode, list[cst.SimpleStatementLine]] = field(default_factory=dict)
    wrapped: dict[cst.CSTNode, tuple[int, str]] = field(default_factory=dict)

    def copy(self) -> Edits:
        """Return a copy that later edits do not change."""
        return Edits(
            dict(self.replaced),
            {node: list(lines) for node, lines in self.before.items()},
            {node: list(lines) for node, lines in self.after.items()},
            dict(self.wrapped),
        )


class SourceFile:
    """A parsed file, and the edits that were asked for.

    Args:
        name: path from the root of the patch, with slashes.
        most_nodes: refuse a larger file. `num_nodes` says how large it is.

    Raises NoPlace: the file cannot be read, is no Python that is understood, is too large, or would not be
    written back byte by byte.
    """

    def __init__(self, path: Path, name: str, most_nodes: int = MOST_NODES) -> None:
        self.path, self.name = path, name
        try:
            self.raw = untrusted.read(path, LARGEST_BYTES)
        except OSError as error:
            raise NoPlace(f"{name} cannot be read: {error.strerror}") from error
        self._bom = _BOM if self.raw.startswith(_BOM) else b""
        self.num_nodes = _num_nodes(self.raw, name, most_nodes)
        try:
            self._wrapper = metadata.MetadataWrapper(cst.parse_module(self.raw.removeprefix(_BOM)))
        except (cst.ParserSyntaxError, SyntaxError, UnicodeError, LookupError, RecursionError) as error:
            raise NoPlace(f"{name} cannot be parsed: {str(error).strip().splitlines()[0]}") from error
        self.module = self._wrapper.module
        if self._bom + self.module.bytes != self.raw:
            raise NoPlace(f"{name} would not keep all of its other bytes")
        self.edits = Edits()

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, metadata.CodeRange]:
        return self._wrapper.resolve(metadata.PositionProvider)

    @cached_property
    def _names(self) -> Mapping[cst.CSTNode, object]:
        return self._wrapper.resolve(metadata.QualifiedNameProvider)

    @cached_property
    def _parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        return self._wrapper.resolve(metadata.ParentNodeProvider)

    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        """All nodes, in the order of the text."""
        return list(walk(self.module))

    def place(self, node: cst.CSTNode) -> str:
        """Return `train.py:12`."""
        return f"{self.name}:{self._positions[node].start.line}"

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of a node in one line."""
        return " ".join(self.module.code_for_node(node).split())

    def qualified(self, node: cst.CSTNode) -> set[str]:
        """Return the full dotted names that a name may have, by the imports of the file."""
        found: Any = self._names.get(node, ())
        return {name.name for name in (found() if callable(found) else found)}

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes that contain `node`, inside out."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """Return the line that contains `node`; None in the head of a compound statement, or in a
        body of one line."""
        for above in (node, *self.above(node)):
            if isinstance(above, cst.SimpleStatementLine):
                return above
            if isinstance(above, cst.BaseCompoundStatement | cst.SimpleStatementSuite):
                return None
        return None

    def block(self, statement: cst.CSTNode) -> Body | None:
        parent = self._parents.get(statement)
        return parent if isinstance(parent, cst.Module | cst.IndentedBlock) else None

    def calls(self) -> Iterator[cst.Call]:
        return (node for node in self.nodes if isinstance(node, cst.Call))

    def binding(self, name: str) -> cst.SimpleStatementLine | None:
        """Return the first import at the top level of the file that binds `name`."""
        for line in self.module.body:
            for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                aliases = part.names if isinstance(part, cst.Import | cst.ImportFrom) else ()
                for alias in aliases if not isinstance(aliases, cst.ImportStar) else ():
                    bound = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
                    if bound == name and (isinstance(part, cst.Import) or alias.evaluated_name == name):
                        assert isinstance(line, cst.SimpleStatementLine)
                        return line
        return None

    def runs_before(self, statement: cst.CSTNode, node: cst.CSTNode) -> bool:
        """Tell whether a statement of the top level runs before `node`; what a function holds runs last."""
        body: list[cst.CSTNode] = list(self.module.body)
        top = next(each for each in (node, *self.above(node)) if each in body)
        return isinstance(top, cst.FunctionDef | cst.ClassDef) or body.index(statement) < body.index(top)

    def last_import(self) -> cst.SimpleStatementLine | None:
        """Return the last import before the first function, class or loop of the file."""
        last = None
        for line in self.module.body:
            if isinstance(line, cst.FunctionDef | cst.ClassDef | cst.For | cst.While) or _is_main(line):
                break
            if isinstance(line, cst.SimpleStatementLine) and _imports(line):
                last = line
        return last

    def first_code(self) -> cst.CSTNode | None:
        """Return the first statement after the docstring and the imports from `__future__`."""
        for line in self.module.body:
            if not isinstance(line, cst.SimpleStatementLine):
                return line
            first = line.body[0]
            is_text = isinstance(first, cst.Expr) and isinstance(
                first.value, cst.SimpleString | cst.ConcatenatedString
            )
            is_future = isinstance(first, cst.ImportFrom) and (
                isinstance(first.module, cst.Name) and first.module.value == "__future__"
            )
            if not is_text and not is_future:
                return line
        return None

    def edited(self) -> bytes:
        """Return the file's bytes with all edits.

        Raises NoPlace: the edits would not compile, or hold a character that the file's encoding lacks.
        """
        if self.edits == Edits():
            return self.raw
        try:
            module = self.module.visit(_Editor(self.edits))
            assert isinstance(module, cst.Module)
            edited = self._bom + module.bytes
            with warnings.catch_warnings(action="ignore"):
                # Not all that parses compiles: an argument that is passed twice does not.
                compile(edited, self.name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, cst.CSTValidationError) as error:
            raise NoPlace(f"the edits would make {self.name} invalid: {error}") from error
        return edited


def _num_nodes(raw: bytes, name: str, most: int) -> int:
    """Count the nodes of Python's own tree.

    Raises NoPlace: the file cannot be parsed, has more than `most` nodes, or has too many levels.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            level: list[ast.AST] = [ast.parse(raw)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = (str(error).strip() or "it is nested too deep").splitlines()[0]
        raise NoPlace(f"{name} cannot be parsed: {reason}") from error
    num = depth = 0
    while level and num <= most and depth <= _DEEPEST:
        num, depth = num + len(level), depth + 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise NoPlace(f"{name} is too large, or nested too deep, to be edited")
    return num


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        """Put the replacement in place of the node, then statements beside and around those of a block."""
        updated: Any = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.Module | cst.IndentedBlock):
            body = self._body(original_node.body, updated.body)
            return updated.with_changes(body=body)
        replacement = self._edits.replaced.get(original_node)
        if replacement is None:
            return updated
        if isinstance(replacement, cst.Call) and isinstance(updated, cst.Call):
            # Calls may lie within each other, so only the arguments are replaced.
            return updated.with_changes(args=_merged(original_node, updated, replacement))
        return replacement

    def _body(self, before: Sequence[cst.CSTNode], after: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
        body: list[cst.CSTNode] = []
        ends: list[tuple[int, int, str]] = []
        for index, (original, updated) in enumerate(zip(before, after, strict=True)):
            body += self._edits.before.get(original, [])
            if original in self._edits.wrapped:
                num, header = self._edits.wrapped[original]
                ends.append((index + num, len(body), header))
            body += [updated, *self._edits.after.get(original, [])]
            while ends and ends[-1][0] == index + 1:
                _, begin, header = ends.pop()
                body[begin:] = [_with(header, body[begin:])]
        return body


def _merged(original: cst.Call, updated: cst.Call, replacement: cst.Call) -> list[cst.Arg]:
    """Return the replacement's arguments; a value that the replacement left alone keeps its own edits."""
    own = {arg.value: new.value for arg, new in zip(original.args, updated.args, strict=True)}
    return [arg.with_changes(value=own.get(arg.value, arg.value)) for arg in replacement.args]


def _with(header: str, body: Sequence[Any]) -> cst.With:
    statement = cst.parse_statement(f"with {header}:\n    pass\n")
    assert isinstance(statement, cst.With)
    first = body[0]
    leading = getattr(first, "leading_lines", ())
    return statement.with_changes(
        leading_lines=leading,
        body=cst.IndentedBlock(body=[first.with_changes(leading_lines=()), *body[1:]]),
    )


def line(code: str) -> cst.SimpleStatementLine:
    """Parse one simple statement."""
    statement = cst.parse_statement(code)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and all nodes in it, in the order of the text."""
    waiting = [node]
    while waiting:
        last = waiting.pop()
        yield last
        waiting += reversed(last.children)


def _imports(line: cst.SimpleStatementLine) -> bool:
    return any(isinstance(part, cst.Import | cst.ImportFrom) for part in line.body)


def _is_main(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.If) and "__name__" in cst.Module([]).code_for_node(line.test)
