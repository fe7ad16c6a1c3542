"""Find and set values in Hydra's configuration files, leaving all their other bytes alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import libcst as cst

from dynotune.recipes.patch.overrides import overrides_of, read_words
from dynotune.recipes.patch.source import NoPlace, SourceFile
from dynotune.schema import untrusted

_MOST_FILES = 500
_LARGEST_BYTES = 1 << 20
# In a comment at the head of a file, Hydra reads below which keys the file belongs.
_PACKAGE = re.compile(r"(?:\s*#.*\n)*?\s*#[ \t]*@package[ \t]+(\S+)")


@dataclass(frozen=True)
class Edit:
    """A value that was asked for.

    Args:
        begin, end: of the text that is replaced, in characters.
        text: in its place.
        node: of the file's tree, whose value changes, or which gets the key.
        key: that the mapping `node` gets; "" where `node` itself is replaced.
        value: in YAML.
    """

    begin: int
    end: int
    text: str
    node: Any
    key: str
    value: str


@dataclass
class Configuration:
    """A file of YAML.

    Args:
        prefix: keys below which Hydra puts the file's content: its group, or the package that it names.
        doubt: why an edit may be without effect; "" if it acts.
    """

    path: Path
    name: str
    raw: bytes
    prefix: list[str]
    tree: Any
    doubt: str = ""
    edits: list[Edit] = field(default_factory=list)

    def ask(self, edit: Edit) -> None:
        """Ask for an edit; one that was asked for already is the same edit.

        Raises NoPlace: another edit changes this text, another key has the same value, or the file may not be
            read.
        """
        if self.doubt:
            raise NoPlace(self.doubt)
        if edit in self.edits:
            return
        if any(_overlap(edit, other) for other in self.edits):
            raise NoPlace(f"{_place(self, edit.node)}: another setting has another value for it")
        if any(
            shared.start_mark.index <= edit.begin and edit.end <= shared.end_mark.index
            for shared in self._shared
        ):
            raise NoPlace(f"{_place(self, edit.node)}: another key has the same value by an alias")
        self.edits.append(edit)

    @cached_property
    def _shared(self) -> list[Any]:
        """Nodes that several keys have, by aliases."""
        counted = Counter(id(child) for node, _ in _nodes(self.tree) for child, _ in _children(node))
        return [node for node, _ in _nodes(self.tree) if counted[id(node)] > 1]

    def edited(self) -> bytes:
        """Return the file's bytes with all edits.

        Raises NoPlace: YAML would read another difference than the one that was asked for.
        """
        import yaml

        text = self.raw.decode("utf-8")
        for edit in sorted(self.edits, key=lambda edit: (edit.begin, edit.end), reverse=True):
            text = text[: edit.begin] + edit.text + text[edit.end :]
        try:
            is_asked = not self.edits or _differs_by(
                self.edits, self.tree, yaml.compose(text, yaml.SafeLoader)
            )
        except (yaml.YAMLError, RecursionError) as error:
            raise NoPlace(f"the edits would make {self.name} invalid") from error
        if not is_asked:
            raise NoPlace(f"the edits would change other values of {self.name}")
        return text.encode("utf-8")


@dataclass(frozen=True)
class Made:
    """A mapping from which Hydra makes an object.

    Args:
        keys: that lead to it in the configuration.
    """

    file: Configuration
    mapping: Any
    keys: list[str]


class Configurations:
    """The configuration of a program whose main function Hydra calls; nothing for other programs."""

    def __init__(self, files: Iterable[SourceFile], root: Path, command: Sequence[str]) -> None:
        self.files: list[Configuration] = []
        self._root, self._overrides = root, overrides_of(command)
        for file in files:
            for call in file.calls():
                if "hydra.main" in file.qualified(call.func):
                    self._read(file, call, command)

    def _read(self, file: SourceFile, call: cst.Call, command: Sequence[str]) -> None:
        given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        folder = self._overrides.folder or _text(given.get("config_path"))
        main = self._overrides.name or _text(given.get("config_name"))
        if not folder or not main:
            return
        base = file.path.parent / folder
        read_words(self._overrides, command, base)
        first = self._add(base / f"{main.removesuffix('.yaml')}.yaml", [])
        chosen = self._overrides.groups
        named = [] if first is None else [each[:2] for each in _defaults(first.tree, "", chosen)]
        waiting = [*named, *chosen.items()]
        seen = set[tuple[str, str]]()
        while waiting:
            group, choice = waiting.pop(0)
            if (group, choice) in seen:
                continue
            seen.add((group, choice))
            part = self._add(base / group / f"{choice}.yaml", group.split("/") if group else [])
            for inner, name, word in () if part is None else _defaults(part.tree, group, chosen):
                is_hydras = inner.split("/")[0] == "hydra" or word.startswith("override hydra/")
                if part is not None and word.startswith("override ") and not is_hydras:
                    self._overrides.doubt = (
                        f"{part.name} chooses other files of the configuration by `{word}`"
                    )
                waiting.append((inner, name))
        for each in self.files:
            each.doubt = self._overrides.doubt

    def _add(self, path: Path, prefix: list[str]) -> Configuration | None:
        """Read a file that belongs below the keys of `prefix`; None where it is no YAML of the user's."""
        import yaml

        try:
            path = path.resolve()
            if not path.is_file() or not path.is_relative_to(self._root) or len(self.files) > _MOST_FILES:
                return None
            raw = untrusted.read(path, _LARGEST_BYTES)
            text = raw.decode("utf-8")
            tree = None if text.startswith("\ufeff") else yaml.compose(text, yaml.SafeLoader)
        except (OSError, ValueError, RuntimeError, yaml.YAMLError):
            return None
        if not isinstance(tree, yaml.MappingNode):
            return None
        name = path.relative_to(self._root).as_posix()
        package = _PACKAGE.match(text)
        if package is not None:
            prefix = [] if package[1] == "_global_" else package[1].split(".")
        known = next((file for file in self.files if file.path == path), None)
        if known is not None:
            if known.prefix != prefix:
                self._overrides.doubt = f"{name} is read in two places of the configuration"
            return known
        self.files.append(Configuration(path, name, raw, prefix, tree))
        return self.files[-1]

    def has(self, keys: Sequence[str]) -> bool:
        return bool(self._found(keys))

    def interpolates(self, key: str) -> bool:
        """Tell whether a value of a file may take that of a key of this name."""
        wanted = re.compile(rf"\$\{{[^{{}}]*\b{re.escape(key)}\b")
        return any(wanted.search(file.raw.decode("utf-8")) for file in self.files)

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

        Raises NoPlace: the command or several files give the key, or its value is no plain one.
        """
        self._refuse_given(keys, value)
        found = self._found(keys)
        if len(found) != 1:
            places = " and ".join(_place(file, node) for file, node in found)
            raise NoPlace(f"{places}: several files set {'.'.join(keys)}")
        file, node = found[0]
        _replace(file, node, value)
        return f"{_place(file, node)}: {'.'.join(keys)}: {_yaml(value)}"

    def set_argument(self, made: Made, argument: str, value: str) -> str:
        """Set an argument of what Hydra makes to `value`, a text of Python, and return the place.

        Raises NoPlace: the command or another file gives the argument, or as `set_key`.
        """
        keys = [*made.keys, argument]
        self._refuse_given(keys, value)
        others = [_place(file, node) for file, node in self._found(keys) if file is not made.file]
        if others:
            raise NoPlace(f"{others[0]}: this file sets {'.'.join(keys)}, too")
        return set_key(made.file, made.mapping, argument, value)

    def _refuse_given(self, keys: Sequence[str], value: str) -> None:
        given = self._overrides.given(keys)
        if given is not None:
            shown = value.strip("'\"")
            raise NoPlace(f"the command gives `{given}`: write {shown} there")

    def targets(self) -> list[str]:
        """Return the dotted paths of all that Hydra instantiates."""
        found = [_scalar(node, "_target_") for file in self.files for node, _ in _nodes(file.tree)]
        return [node.value for node in found if node is not None]

    def made_by(self, targets: Sequence[str]) -> list[Made]:
        """Return the mappings from which Hydra instantiates one of the targets."""
        return [
            Made(file, node, [*file.prefix, *keys])
            for file in self.files
            for node, keys in _nodes(file.tree)
            if (made := _scalar(node, "_target_")) is not None
            and any(_is_target(made.value, target) for target in targets)
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
    line = f"{before}{indent}{key}: {_yaml(value)}{after}"
    file.ask(Edit(end, end, line, mapping, key, _yaml(value)))
    return f"{_place(file, target)}: {target.value}: {key}: {_yaml(value)}"


def plain_values(mapping: Any) -> dict[str, str]:
    """Return the scalar values of a mapping by key, with `…` in place of lists and mappings."""
    return {
        key.value: node.value if isinstance(node.value, str) else "…"
        for key, node in mapping.value
        if isinstance(key.value, str)
    }


def _replace(file: Configuration, node: Any, value: str) -> None:
    import yaml

    is_plain = isinstance(node, yaml.ScalarNode) and "${" not in node.value and node.style not in ("|", ">")
    # YAML tells the place of an empty value, but not whether a space comes before it.
    if not is_plain or node.start_mark.index == node.end_mark.index:
        raise NoPlace(f"{_place(file, node)}: the value is not a plain one")
    file.ask(Edit(node.start_mark.index, node.end_mark.index, _yaml(value), node, "", _yaml(value)))


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


def _nodes(tree: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield each node once, in the order of the text, with the first keys that lead to it.

    By aliases, a node may have many parents, or itself.
    """
    waiting: list[tuple[Any, tuple[str, ...]]] = [(tree, ())]
    seen = set[int]()
    while waiting:
        node, keys = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node, keys
            waiting += [(child, (*keys, key)) for child, key in reversed(_children(node))]


def _children(node: Any) -> list[tuple[Any, str]]:
    """Return what a sequence or a mapping holds, with its index or key."""
    if not isinstance(node.value, list):
        return []
    return [
        (entry[1], entry[0].value if isinstance(entry[0].value, str) else "")
        if isinstance(entry, tuple)
        else (entry, str(index))
        for index, entry in enumerate(node.value)
    ]


def _overlap(edit: Edit, other: Edit) -> bool:
    """Tell whether two edits change the same text, or add the same key. Lines of two keys are no overlap."""
    if edit.node is other.node and edit.key == other.key:
        return True
    return edit.begin < other.end and other.begin < edit.end


def _differs_by(edits: Sequence[Edit], tree: Any, edited: Any) -> bool:
    """Tell whether `edited` is `tree` with the values that the edits ask for, and nothing else."""
    replaced = {id(edit.node): edit.value for edit in edits if not edit.key}
    added = {(id(edit.node), edit.key): edit.value for edit in edits if edit.key}
    waiting, seen, num_added = [(tree, edited)], set[tuple[int, int]](), 0
    while waiting:
        old, new = waiting.pop()
        if (id(old), id(new)) in seen:
            continue
        seen.add((id(old), id(new)))
        if id(old) in replaced:
            if not _is_value(new, replaced[id(old)]):
                return False
            continue
        if new is None or old.tag != new.tag or isinstance(old.value, list) != isinstance(new.value, list):
            return False
        if not isinstance(old.value, list):
            if old.value != new.value:
                return False
            continue
        entries = []
        for entry in new.value:
            is_named = isinstance(entry, tuple) and isinstance(entry[0].value, str)
            key = (id(old), entry[0].value) if is_named else None
            if key not in added:
                entries.append(entry)
            elif not _is_value(entry[1], added[key]):
                return False
            else:
                num_added += 1
        if len(entries) != len(old.value):
            return False
        for before, after in zip(old.value, entries, strict=True):
            pairs = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
            waiting += pairs
    return num_added == len(added)


def _is_value(node: Any, value: str) -> bool:
    """Tell whether a node of the file has the value that the YAML text `value` stands for."""
    import yaml

    wanted: Any = yaml.compose(value, yaml.SafeLoader)
    return bool(node is not None and (node.tag, node.value) == (wanted.tag, wanted.value))


def _defaults(tree: Any, group: str, chosen: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield group, choice and the word that names them of Hydra's list of defaults in a file of `group`.

    Args:
        chosen: group to the choice that holds instead of that of the list.
    """
    listed = _value(tree, "defaults")
    for entry in listed.value if listed is not None and isinstance(listed.value, list) else ():
        if isinstance(entry.value, str) and entry.value != "_self_":
            folder, slash, choice = entry.value.rpartition("/")
            yield _group(group, folder or slash), choice.removesuffix(".yaml"), entry.value
        for pair in entry.value if isinstance(entry.value, list) else ():
            if not isinstance(pair, tuple) or not isinstance(pair[0].value, str):
                continue
            words = pair[0].value.split()
            choices = (
                [pair[1]] if isinstance(pair[1].value, str) else [node for node, _ in _children(pair[1])]
            )
            for choice in choices:
                if words and "@" not in words[-1] and isinstance(choice.value, str):
                    inner = _group(group, words[-1])
                    yield inner, chosen.get(inner, choice.value.removesuffix(".yaml")), pair[0].value


def _group(parent: str, name: str) -> str:
    """Return a group from the folder of the main file on; without a slash before it, it lies in `parent`."""
    return name.strip("/") if name.startswith("/") else "/".join(filter(None, (parent, name)))


def _is_target(name: str, target: str) -> bool:
    package, _, last = target.rpartition(".")
    return name == target or (name.startswith(f"{package}.") and name.endswith(f".{last}"))


def _text(node: cst.BaseExpression | None) -> str:
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""
