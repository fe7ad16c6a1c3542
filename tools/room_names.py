"""Count the names of each room that other rooms import: what a room cannot change by itself.

    python tools/room_names.py            prints the counts, as tools/room_names.toml keeps them
    python tools/room_names.py ROOM       prints the names of one room, each with the modules that import it

A room is a package below src/dynotune. A name counts for the innermost room that it is imported from, if the
importing module lies outside that room. Where a module is imported, the names that are read from it count,
because a face that offers modules would hide them otherwise. A name that is imported in two ways counts once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "dynotune"
KEPT = Path(__file__).with_suffix(".toml")


class Use(NamedTuple):
    """One name of a room in a module outside it. `name` is where the room defines it, such as
    `run.RunSpec`."""

    room: str
    name: str
    importer: str


class Module:
    """What one file imports of the package, defines, and reads from names.

    Attributes:
        imports: (module, name, name it is bound to) of each `from` import.
        bound: the import behind each name that one binds, as (module, name).
        chains: by name, the attributes that are read from it: `host.facts` of `probe.host.facts`.
        defined: names that the module has, a face's names that it imports late among them.
        homes: of a face that imports late, the module of each name.
    """

    def __init__(self, name: str, text: str, is_room: bool) -> None:
        self.imports: list[tuple[str, str, str]] = []
        self.chains: dict[str, set[str]] = {}
        self.defined: set[str] = set()
        self.homes: dict[str, str] = {}
        parts, tree = name.split("."), ast.parse(text)
        if "lazy_face" in text and is_room:
            # A face that imports late has one table: modules, each with its names.
            homes = next(ast.literal_eval(node) for node in ast.walk(tree) if isinstance(node, ast.Dict))
            self.homes = {word: home for home, words in homes.items() for word in words.split()}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                here = parts[: len(parts) - node.level + is_room] if node.level else []
                target = ".".join([*here, *filter(None, [node.module])])
                self.imports += [(target, alias.name, alias.asname or alias.name) for alias in node.names]
            elif isinstance(node, ast.Attribute):
                self._read(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.defined.add(node.id)
        self.bound = {bound: (target, other) for target, other, bound in self.imports}
        self.defined |= {*self.bound, *self.homes}

    def _read(self, node: ast.Attribute) -> None:
        attributes: list[str] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            attributes.insert(0, value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self.chains.setdefault(value.id, set()).add(".".join(attributes))


class Sources:
    """All modules of a package, read but never imported.

    Args:
        source: the package's folder.
    """

    def __init__(self, source: Path) -> None:
        self.package = source.name
        self.modules: dict[str, Module] = {}
        self.rooms: set[str] = set()
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source.parent).with_suffix("").parts
            is_room = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_room else parts)
            self.modules[name] = Module(name, path.read_text(encoding="utf-8"), is_room)
            if is_room:
                self.rooms.add(name)

    def uses(self) -> set[Use]:
        """Return each use of a room's name by a module outside the room."""
        return {
            Use(room, name.removeprefix(f"{room}."), importer)
            for importer, module in self.modules.items()
            for target, other, bound in module.imports
            if target in self.modules
            for room, name in self._followed(target, other, module.chains.get(bound, set()))
            if room != self.package and not self._is_of(room, importer)
        }

    def _is_of(self, room: str, importer: str) -> bool:
        """Whether a module lies in a room, or is a face above it, which only passes names on."""
        is_face = importer in self.rooms and f"{room}.".startswith(f"{importer}.")
        return is_face or f"{importer}.".startswith(f"{room}.")

    def _followed(self, target: str, name: str, chains: set[str]) -> Iterator[tuple[str, str]]:
        """Yield (room, where the name is defined) of what an import and the attributes read from it come
        to."""
        found = self._step(target, name)
        room = found if f"{target}.{name}" in self.rooms else self._room_of(target)
        ends = {self._end(room, found, chain) for chain in chains} if found in self.modules else set()
        yield from {end for end in ends if end[1] not in self.modules} or {(room, found)}

    def _end(self, room: str, place: str, chain: str) -> tuple[str, str]:
        """Follow attributes from a module as long as they are modules, and one further."""
        for attribute in chain.split("."):
            if place not in self.modules or not self._has(place, attribute):
                break
            if f"{place}.{attribute}" in self.rooms:
                room = f"{place}.{attribute}"
            place = self._step(place, attribute)
        return room, place

    def _has(self, module: str, name: str) -> bool:
        return name in self.modules[module].defined or f"{module}.{name}" in self.modules

    def _step(self, module: str, name: str) -> str:
        """Return where a name of a module is defined, through the faces that pass it on."""
        if f"{module}.{name}" in self.modules:
            return f"{module}.{name}"
        known = self.modules[module]
        if name in known.homes:
            return self._step(f"{module}.{known.homes[name]}", name)
        target, other = known.bound.get(name, ("", ""))
        return self._step(target, other) if target in self.modules else f"{module}.{name}"

    def _room_of(self, module: str) -> str:
        """Return the innermost package that holds a module; a package is its own."""
        while module not in self.rooms:
            module = module.rpartition(".")[0]
        return module


def counted(source: Path = SOURCE) -> dict[str, int]:
    """Return the number of names of each room that other rooms use, by the room's name without the
    package's."""
    names: dict[str, set[str]] = {}
    for use in Sources(source).uses():
        names.setdefault(use.room.partition(".")[2], set()).add(use.name)
    return {room: len(names[room]) for room in sorted(names)}


def complaints(
    counts: dict[str, int], kept: dict[str, int], file: str = "tools/room_names.toml"
) -> list[str]:
    """Return what to do about each room whose count is not the kept one; nothing where all agree."""
    told = []
    for room in sorted({*counts, *kept}):
        now, was = counts.get(room, 0), kept.get(room, 0)
        if now > was:
            told.append(
                f"{room}: other rooms import {now} names, and {was} are kept. Let them do with fewer "
                "(`python "
                f"tools/room_names.py {room}` lists the names), or write {now} into {file} and say why in "
                "a record in "
                f"docs/decisions/, in the same commit."
            )
        elif now < was:
            told.append(
                f"{room}: other rooms import {now} names, fewer than the {was} kept. Write {now} into {file}."
            )
    return told


def main() -> int:
    words = sys.argv[1:]
    if not words:
        print(*(f'"{room}" = {count}' for room, count in counted().items()), sep="\n")
        return 0
    importers: dict[str, set[str]] = {}
    for use in Sources(SOURCE).uses():
        if use.room == f"{SOURCE.name}.{words[0]}":
            importers.setdefault(use.name, set()).add(use.importer.partition(".")[2])
    for name, modules in sorted(importers.items()):
        print(f"{name:40} {', '.join(sorted(modules))}")
    return 0 if importers else 2


if __name__ == "__main__":
    sys.exit(main())
