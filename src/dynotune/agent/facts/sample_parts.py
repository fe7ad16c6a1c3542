"""Divide the time to make a sample: map each stack of a loading thread to a part, a function and a user line.

The innermost frame in the table decides, up to the first frame of the user's code. C functions have no frame,
so the call that a frame makes is read from the frame's source (Python 3.11 and later) or source line (before
3.11).

A stack sample comes late while code holds the interpreter's lock. So each stack sample counts for all the
time since the previous stack sample.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import re
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType

from ..core.source_location import WHOSE_AGENT, WHOSE_INSTALLED, WHOSE_USER, function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from ..core.annotations import Taken

Place = tuple[int, int]  # identity of code, and one of its lines

MOST_PARTS, MOST_TEXT = 40, 160
READ, DECODE, TRANSFORM, COLLATE, MOVE, PIN, WAIT, OWN = (
    "read", "decode", "transform", "collate", "move", "pin", "wait", "own"
)  # fmt: skip
QUEUE = "queue"
# Lines of part, worker function, and a pattern of `module:function`, or of `:text` for a call on an object.
# First match wins.
with open(os.path.splitext(__file__)[0] + ".txt", encoding="utf-8") as file:
    _LINES = file.read().splitlines()
_ENTRIES = tuple(
    (re.compile(pattern), part, what.replace("_", " ").strip("-"))
    for part, what, pattern in map(str.split, _LINES)
)
_METHODS = ("__call__", "forward", "apply", "transform", "preprocess")
_CONTAINERS = re.compile(
    r"(Compose|Sequential|Lambda|OneOf|SomeOf|RandomApply|RandomChoice|RandomOrder|Pipeline)$"
)
_PLAIN = (FunctionType, BuiltinFunctionType, MethodType, MethodDescriptorType, type)


class SampleParts:
    """Wall time of one thread, by part of making a sample, by working function, and by line of the user's
    code.

    Args:
        owner: function that returns the owner of a frame's code.
    """

    def __init__(self, owner: Callable[[CodeType, dict[str, Any]], str]) -> None:
        self._owner = owner
        self._wall_ns: dict[tuple[str, str, Place], list[int]] = {}
        self._frames: dict[int, tuple[Any, str]] = {}  # by identity of code: table entry, transform's class
        self._calls: dict[
            tuple[int, int], Any
        ] = {}  # by code and instruction: the table's entry for the call
        self._codes: dict[int, CodeType] = {}  # objects that are kept alive, so that no identity is reused

    def add(self, stack: list[Taken], wall_ns: int) -> None:
        """Add `stack`, whose first frame is the innermost."""
        part, what, place = self._classified(stack)
        if part:
            found = self._wall_ns.setdefault((part, what, place), [0, 0])
            found[0] += 1
            found[1] += wall_ns

    def facts(self) -> list[dict[str, Any]]:
        """Return the fields of `schema.loader.SamplePart`, the part with the most time first."""
        rows = sorted(self._wall_ns.items(), key=lambda row: -row[1][1])[:MOST_PARTS]
        return [
            {"part": part, "what": what, "num": num, "wall_s": wall_ns * 1e-9, **self._at(place)}
            for (part, what, place), (num, wall_ns) in rows
        ]

    def _at(self, place: Place) -> dict[str, str]:
        code = self._codes.get(place[0])
        if code is None:
            return {"function": "", "text": ""}
        return {"function": function(code, place[1]), "text": text_of(code, place[1])}

    def _classified(self, stack: list[Taken]) -> tuple[str, str, Place]:
        part = what = class_ = inner = ""
        place, is_leaf, is_callee = (0, 0), True, False
        for code, line, module, lasti in stack:
            owner = self._owner(code, module)
            if owner == WHOSE_AGENT:
                # The user's collate function, outside of reading, decoding and transforms.
                if code.co_name == "collate" and (part in ("", TRANSFORM) and (not class_ or is_callee)):
                    part, what = COLLATE, class_ or inner
                if part == COLLATE or code.co_name == "fetch":
                    break  # the state at the time of a fork is not the child's own work
                continue
            entry, own_class = self._frame(code, module)
            if is_leaf:
                call = self._call(code, line, lasti, module)
                entry, is_leaf = call or entry, False
            if entry and not place[0] and not part:
                part, what = entry
            if code.co_name == "_feed" and entry == (MOVE, QUEUE):
                # The thread that feeds a queue, unless it waits for input.
                moved = QUEUE if what == QUEUE else QUEUE + ", " + what
                return ("", "", place) if part == WAIT else (MOVE, moved, place)
            if owner == WHOSE_USER and not place[0]:
                place = (id(code), line)
                inner = code.co_name
            is_callee = False
            if own_class and not class_ and owner in (WHOSE_USER, WHOSE_INSTALLED):
                named = (
                    inner if _CONTAINERS.search(own_class) and inner and inner not in _METHODS else own_class
                )
                class_, is_callee = named, True
        if part in ("", TRANSFORM) and class_:
            part, what = TRANSFORM, class_ + (" (%s)" % what if what and what not in class_.lower() else "")
        if part:
            return part, what, place
        return OWN, "" if place[0] else "torch", place

    def _frame(self, code: CodeType, module: dict[str, Any]) -> tuple[Any, str]:
        found = self._frames.get(id(code))
        if found is None:
            self._codes[id(code)] = code
            name = str(module.get("__name__"))
            entry = (
                None if self._owner(code, module) == WHOSE_USER else _entry("%s:%s" % (name, code.co_name))
            )
            found = self._frames[id(code)] = entry, _class_of(code, module, name)
        return found

    def _call(self, code: CodeType, line: int, lasti: int, module: dict[str, Any]) -> Any:
        key = (id(code), lasti)
        if key not in self._calls:
            text = _called(code, lasti) if hasattr(code, "co_positions") else _first_call(code, line)
            self._calls[key] = _entry(_resolved(text, module)) if text else None
        return self._calls[key]


def text_of(code: CodeType, line: int) -> str:
    return line_of(code.co_filename, line)


def line_of(file: str, line: int) -> str:
    """Return the text of a line; "" if the name is that of a pipe, which would be waited for."""
    if os.path.exists(file) and not os.path.isfile(file):
        return ""
    return linecache.getline(file, line).strip()[:MOST_TEXT]


def _entry(name: str) -> Any:
    """Return the part and the function that does the work; None if the table does not list the function."""
    for pattern, part, what in _ENTRIES:
        if pattern.match(name):
            return part, what or name.partition(":")[0].partition(".")[0]
    return None


def _class_of(code: CodeType, module: dict[str, Any], name: str) -> str:
    """Return the class of a method's object if the class is a transform; else ""."""
    if code.co_name not in _METHODS or name.startswith("torch."):
        return ""
    owner = str(getattr(code, "co_qualname", "")).rpartition(".")[0].rpartition(".")[2]
    if not hasattr(code, "co_qualname"):
        classes = (value for value in list(module.values()) if isinstance(value, type))
        owner = next((one.__name__ for one in classes if _has(one, code)), "")
    if not owner or owner == "<locals>":
        return ""
    return owner if name in ("__main__", "__mp_main__") else "%s.%s" % (name, owner)


def _has(class_: type, code: CodeType) -> bool:
    return getattr(vars(class_).get(code.co_name), "__code__", None) is code


def _called(code: CodeType, lasti: int) -> str:
    """Return the function called at this instruction, as written, without arguments; else the expression."""
    at: Any = list(code.co_positions())[max(0, lasti) // 2]
    line, end, column, end_column = at
    if None in at:
        return ""
    lines = [
        linecache.getline(code.co_filename, number).encode()
        for number in range(line, min(end, line + 20) + 1)
    ]
    if not lines:
        return ""
    lines[-1] = lines[-1][: end_column if end - line < 20 else None]
    lines[0] = lines[0][column:]
    text = b"".join(lines).decode(errors="replace").strip()
    if text.startswith("with "):  # Python 3.11 gives the whole statement
        text = re.split(r" as |:\s*$", text.partition("\n")[0][5:])[0]
    try:
        tree = ast.parse(text, mode="eval").body
        return ast.unparse(tree.func if isinstance(tree, ast.Call) else tree)
    except (SyntaxError, ValueError):
        return text[:MOST_TEXT]


def _first_call(code: CodeType, line: int) -> str:
    found = re.search(r"[\w.]+(?=\()", linecache.getline(code.co_filename, line).partition("=")[2])
    return found[0] if found else ""


def _resolved(text: str, module: dict[str, Any]) -> str:
    """Return `module:name` of the object behind a dotted name; `:text` if only the running code can resolve
    it."""
    head, *rest = text.split(".")
    value = module.get(head, getattr(builtins, head, None))
    for each in rest:
        value = vars(value).get(each) if issubclass(type(value), (ModuleType, type)) else None
    # Other objects may run code of the program when asked for a name.
    if not issubclass(type(value), _PLAIN):
        return ":" + text
    asked, name = module.get(head), getattr(value, "__name__", "")
    named = getattr(value if name else type(value), "__module__", None)
    if not isinstance(named, str) and isinstance(asked, ModuleType):
        named = asked.__name__  # for many functions written in C, only this names their module
    return "%s:%s" % (named or "builtins", name or text)
