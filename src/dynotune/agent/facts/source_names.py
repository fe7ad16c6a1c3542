"""Find names that the user's source uses in modules that mention a package."""

from __future__ import annotations

import ast
import linecache
import os
import sys

from ..core.source_location import WHOSE_USER, whose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_NAMES = 2000


def names_beside(package: str) -> list[str]:
    """Find names in attributes, keywords and imports of the user's modules.

    An entry looks like `infer.py:12 config.max_workspace_size`. Each name is listed once, with the first
    source line that uses the name.
    """
    found: dict[str, str] = {}
    for module in list(sys.modules.values()):
        file = str(getattr(module, "__file__", ""))
        if not file.endswith(".py") or whose(compile("", file, "exec"), vars(module)) != WHOSE_USER:
            continue
        if package not in (text := "".join(linecache.getlines(file))):
            continue
        kinds = (ast.Attribute, ast.keyword, ast.alias)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
        for node in sorted(nodes, key=_line):
            owner: Any = getattr(node, "value", None) if isinstance(node, ast.Attribute) else None
            names: Any = [getattr(owner, "attr", getattr(owner, "id", ""))]
            names += [getattr(node, part, None) for part in ("attr", "arg", "name")]
            if len(found) < _MOST_NAMES:
                place = "%s:%d" % (os.path.basename(file), _line(node))
                found.setdefault(".".join(filter(None, names)), place)
    return [place + " " + name for name, place in found.items()]


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
