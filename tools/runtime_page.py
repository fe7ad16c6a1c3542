"""Writes docs/reference/runtime.md from docstrings: `python tools/runtime_page.py > FILE`.

The sources are read, not imported: this works without torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dynotune

RUNTIME = Path(dynotune.__file__).parent / "runtime"

# What is imported from where, and the files that hold it, in the order of the page.
MODULES = {
    "dynotune.runtime": (
        "transfer/staging",
        "data/prefetch",
        "transfer/pool",
        "engine/engine",
        "engine/stats",
        "errors",
    ),
    "dynotune.runtime.data": ("data/cache", "data/decoding", "data/lengths", "data/packing"),
    "dynotune.runtime.vision": ("vision/detector", "vision/stages", "vision/serve"),
    "dynotune.runtime.train": ("train",),
    "dynotune.runtime.letterbox": ("vision/letterbox",),
    "dynotune.runtime.nms": ("vision/nms",),
}

HEAD = """\
# The runtime's reference

`make runtime-reference` generates this page from the docstrings. The guides to
[running models](../guides/runtime.md) and to [training loops](../guides/training-loop.md) show how the parts work
together.

Shapes are in brackets, and units are the last part of a name (`_s`, `_bytes`). "Current stream" is
`torch.cuda.current_stream()` of the calling thread; on the CPU there are no streams, and nothing to wait for.
Importing `dynotune.runtime` imports neither torch nor the rest of dynotune; its parts need torch.
"""  # noqa: E501

SECTIONS = ("Args", "Returns", "Yields", "Raises", "Attributes")

Documented = ast.ClassDef | ast.FunctionDef


def page() -> str:
    """The page as it should be."""
    parts = [HEAD]
    for module, files in MODULES.items():
        parts.append(f"## {module}\n")
        for name in files:
            tree = ast.parse((RUNTIME / f"{name}.py").read_text())
            parts += [_entry(node) for node in _public(tree)]
    return "\n".join(parts)


def _public(tree: ast.Module) -> Iterator[Documented]:
    """Classes and functions of the module's `__all__`, as they stand in the file."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = set(ast.literal_eval(node.value))
    for node in tree.body:
        if isinstance(node, Documented) and node.name in names and ast.get_docstring(node):
            yield node


def _entry(node: Documented) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"### `{node.name}`\n\n{_code(_signature(node.name, node))}\n{_text(node)}"
    parts = [f"### `{node.name}`\n"]
    made = next(
        (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None
    )
    if made is not None:
        parts.append(_code(_signature(node.name, made)))
    elif fields := [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign)]:
        parts.append(_code("\n".join([f"{node.name}:", *(f"    {field}" for field in fields)])))
    elif node.bases:
        parts.append(_code(f"{node.name}({', '.join(map(ast.unparse, node.bases))})"))
    parts.append(_text(node))
    for member in node.body:
        if (
            isinstance(member, ast.FunctionDef)
            and not member.name.startswith("_")
            and ast.get_docstring(member)
        ):
            parts.append(_member(node.name, member))
    return "\n".join(parts)


def _member(owner: str, node: ast.FunctionDef) -> str:
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        kind = f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    else:
        kind = _signature(node.name, node)
    return f"#### `{owner}.{node.name}`\n\n{_code(kind)}\n{_text(node)}"


def _signature(name: str, node: ast.FunctionDef) -> str:
    """One line where it fits, else an argument a line."""
    arguments = [one for one in _arguments(node.args) if one.split(":")[0] != "self"]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {one}," for one in arguments), f"){returns}"])


def _arguments(args: ast.arguments) -> Iterator[str]:
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    for argument, default in zip(plain, defaults, strict=True):
        yield _argument(argument, default)
    if args.vararg:
        yield "*" + ast.unparse(args.vararg)
    elif args.kwonlyargs:
        yield "*"
    for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _argument(argument, default)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _text(node: Documented) -> str:
    """The docstring in Markdown: sections in bold, their entries as a list."""
    lines, out, inside = (ast.get_docstring(node) or "").splitlines(), [], False
    for line in lines:
        section = re.match(rf"({'|'.join(SECTIONS)})( \(.*\))?:\s*(.*)", line)
        if section:
            name, note, rest = section.groups()
            # A list needs a blank line before it.
            out += ["", f"**{name}{note or ''}**" + (f" {rest}" if rest else ""), ""]
            inside = not rest
        elif inside and (entry := re.match(r"    (\*{0,2}[\w, ]+): (.*)", line)):
            out.append(f"- `{entry[1]}`: {entry[2]}")
        elif inside and line.startswith("    "):
            out.append(("  " if out and out[-1].startswith(("- ", "  ")) else "") + line.strip())
        else:
            inside = inside and not line
            out.append(line)
    text = "\n".join(out).strip()
    return re.sub(r"\n{3,}", "\n\n", text) + "\n"


if __name__ == "__main__":
    print(page(), end="")
