"""Find and set values in Hydra's configuration files, leaving all their other bytes alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst

from dynotune.recipes.patch.source import NoPlace, SourceFile

_MOST_FILES = 500


@dataclass
class Configuration:
    """A file of YAML.

    Args:
        prefix: keys below which Hydra puts the file's content: its group.
        edits: begin and end, in characters, and the new text.
    """

    path: Path
    name: str
    raw: bytes
    prefix: list[str]
    tree: Any
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    def edited(self) -> bytes:
        text = self.raw.decode("utf-8")
        for begin, end, new in sorted(self.edits, reverse=True):
            text = text[:begin] + new + text[end:]
        return text.encode("utf-8")


class Configurations:
    """The configuration of a program whose main function Hydra calls; nothing for other programs."""

    def __init__(self, files: Iterable[SourceFile], root: Path) -> None:
        self.files: list[Configuration] = []
        for file in files:
            for call in file.calls():
                if "hydra.main" in file.qualified(call.func):
                    self._read(file, call, root)

    def _read(self, file: SourceFile, call: cst.Call, root: Path) -> None:
        given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        folder, main = (_text(given.get(key)) for key in ("config_path", "config_name"))
        if not folder or not main:
            return
        base = file.path.parent / folder
        first = base / f"{main.removesuffix('.yaml')}.yaml"
        self._add(first, [], root)
        for group, choice in _defaults(self.files[-1].tree) if self.files else ():
            self._add(base / group / f"{choice}.yaml", group.split("/"), root)

    def _add(self, path: Path, prefix: list[str], root: Path) -> None:
        import yaml

        path = path.resolve()
        if not path.is_file() or not path.is_relative_to(root) or len(self.files) > _MOST_FILES:
            return
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8")
            tree = None if text.startswith("\ufeff") else yaml.compose(text, yaml.SafeLoader)
        except (yaml.YAMLError, UnicodeError, RecursionError):
            return
        if isinstance(tree, yaml.MappingNode):
            self.files.append(Configuration(path, path.relative_to(root).as_posix(), raw, prefix, tree))

    def has(self, keys: Sequence[str]) -> bool:
        return bool(self._found(keys))

    def _found(self, keys: Sequence[str]) -> list[tuple[Configuration, Any]]:
        found = []
        for file in self.files:
            num = len(file.prefix)
            if list(keys[:num]) == file.prefix:
                node = _at(file.tree, keys[num:])
                if node is not None:
                    found.append((file, node))
        return found

    def set(self, keys: Sequence[str], value: str) -> str:
        """Set the value of a key to `value`, a text of Python, and return the place.

        Raises NoPlace: several files have the key, or its value is no plain one.
        """
        found = self._found(keys)
        if len(found) != 1:
            places = " and ".join(_place(file, node) for file, node in found)
            raise NoPlace(f"{places}: several files set {'.'.join(keys)}")
        file, node = found[0]
        _replace(file, node, value)
        return f"{_place(file, node)}: {'.'.join(keys)}: {_yaml(value)}"

    def targets(self) -> list[str]:
        """Return the dotted paths of all that Hydra instantiates."""
        found = [_scalar(node, "_target_") for file in self.files for node in _mappings(file.tree)]
        return [node.value for node in found if node is not None]

    def made_by(self, target: str) -> list[tuple[Configuration, Any]]:
        """Return the mappings from which Hydra instantiates `target`."""
        return [
            (file, node)
            for file in self.files
            for node in _mappings(file.tree)
            if _scalar(node, "_target_") is not None
            and _is_target(str(_scalar(node, "_target_").value), target)
        ]


def set_key(file: Configuration, mapping: Any, key: str, value: str) -> str:
    """Set a key of a mapping that Hydra instantiates, or add it after `_target_`, and return the place.

    Raises NoPlace: the mapping is written in one line, or the value is no plain one.
    """
    node = _value(mapping, key)
    target = _scalar(mapping, "_target_")
    if node is not None:
        _replace(file, node, value)
        return f"{_place(file, node)}: {key}: {_yaml(value)}"
    if mapping.flow_style:
        raise NoPlace(f"{_place(file, mapping)}: the mapping is written in one line")
    text = file.raw.decode("utf-8")
    end = text.find("\n", target.end_mark.index)
    ending = "\r\n" if "\r\n" in text else "\n"
    end = len(text) if end < 0 else end + 1
    before = ending if not text[:end].endswith("\n") else ""
    indent = " " * mapping.value[0][0].start_mark.column
    after = "" if before else ending
    file.edits.append((end, end, f"{before}{indent}{key}: {_yaml(value)}{after}"))
    return f"{_place(file, target)}: {target.value}: {key}: {_yaml(value)}"


def _replace(file: Configuration, node: Any, value: str) -> None:
    import yaml

    if not isinstance(node, yaml.ScalarNode) or "${" in node.value or node.style in ("|", ">"):
        raise NoPlace(f"{_place(file, node)}: the value is not a plain one")
    file.edits.append((node.start_mark.index, node.end_mark.index, _yaml(value)))


def _yaml(value: str) -> str:
    return {"True": "true", "False": "false", "None": "null"}.get(value, value)


def _place(file: Configuration, node: Any) -> str:
    return f"{file.name}:{node.start_mark.line + 1}"


def _at(node: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        node = _value(node, key)
        if node is None:
            return None
    return node


def _value(node: Any, key: str) -> Any:
    pairs = node.value if isinstance(node.value, list) and hasattr(node, "flow_style") else []
    return next((pair[1] for pair in pairs if isinstance(pair, tuple) and pair[0].value == key), None)


def _scalar(node: Any, key: str) -> Any:
    value = _value(node, key)
    return value if value is not None and isinstance(value.value, str) else None


def _mappings(node: Any) -> Iterator[Any]:
    if not isinstance(node.value, list):
        return
    pairs = [entry for entry in node.value if isinstance(entry, tuple)]
    if pairs:
        yield node
    for entry in node.value:
        yield from _mappings(entry[1] if isinstance(entry, tuple) else entry)


def _defaults(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield group and choice of Hydra's list of defaults."""
    listed = _value(tree, "defaults")
    for entry in listed.value if listed is not None and isinstance(listed.value, list) else ():
        for pair in entry.value if isinstance(entry.value, list) else ():
            if isinstance(pair, tuple) and isinstance(pair[1].value, str):
                words = pair[0].value.split()
                if words and "@" not in words[-1]:
                    yield words[-1].lstrip("/"), pair[1].value.removesuffix(".yaml")


def _is_target(name: str, target: str) -> bool:
    package, _, last = target.rpartition(".")
    return name == target or (name.startswith(f"{package}.") and name.endswith(f".{last}"))


def _text(node: cst.BaseExpression | None) -> str:
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""
