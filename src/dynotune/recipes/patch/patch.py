"""Put the edits of a recipe's settings together into one patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dynotune.recipes.patch.diff import unified
from dynotune.recipes.patch.program import entry_of, file_of, files_of
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.setting import Setting

if TYPE_CHECKING:
    from dynotune.recipes.patch.configuration import Configuration
    from dynotune.recipes.patch.source import SourceFile

INSTALL = "pip install 'dynotune[patch]'"


@dataclass(frozen=True)
class Patch:
    """A recipe as edits of the program's files.

    Args:
        root: folder from which paths of the diff count: the repository's, else that of the command.
        diff: the unified diff, without a heading.
        places: setting to its places and what was written there.
        refused: setting to the reason why it is not in the patch.
        edited: path relative to `root` to the file's new bytes.
    """

    root: Path
    diff: bytes
    places: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    edited: dict[str, bytes] = field(default_factory=dict)


def patch_of(
    settings: Sequence[Setting], command: Sequence[str], root: Path, cwd: Path, *, has_gpu: bool
) -> Patch:
    """Return the patch that sets `settings` in the files that `command` runs in `cwd`.

    A setting is in the patch with all its places, or not at all. `has_gpu`: whether it was proved on a GPU.

    Raises CannotRunHere: libcst is not installed, or the command names no file that can be patched.
    """
    if find_spec("libcst") is None:
        raise CannotRunHere(
            "A patch needs libcst, which edits Python files without changing their other bytes.",
            hint=f"Install it beside dynotune: {INSTALL}",
        )
    from dynotune.recipes.patch.configuration import Configurations
    from dynotune.recipes.patch.options import Origins
    from dynotune.recipes.patch.settings import Places
    from dynotune.recipes.patch.source import NoPlace

    root, cwd = root.resolve(), cwd.resolve()
    entry = entry_of(command, cwd)
    if not entry.is_relative_to(root):
        raise CannotRunHere(f"{entry} lies outside {root}, so a patch cannot name it.")
    sources, unread = _parsed(entry, root, cwd)
    configurations = Configurations(sources, root, command)
    made = [file_of(target, entry, root, cwd) for target in configurations.targets()]
    for file in made:
        # What Hydra instantiates is imported by its name alone.
        more, failed = _parsed(file, root, cwd) if file is not None else ([], [])
        known = {source.path for source in sources}
        sources += [source for source in more if source.path not in known]
        unread += failed
    parts: list[SourceFile | Configuration] = [*sources, *configurations.files]
    places = Places(
        sources,
        Origins(sources, command, configurations),
        {setting.knob: setting.value for setting in settings},
        device="cuda" if has_gpu else "cpu",
        is_script=not (entry.parent / "__init__.py").exists(),
    )
    found: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    for setting in settings:
        before = [part.edits.copy() for part in parts]
        try:
            written = places.put(setting)
            for part in parts:
                part.edited()
            found[str(setting)] = written
        except NoPlace as error:
            for part, edits in zip(parts, before, strict=True):
                part.edits = edits
            refused[str(setting)] = "; ".join([error.message, *unread])
    edited = {part.name: (part.raw, part.edited()) for part in parts}
    diff = b"".join(unified(name.encode("utf-8", "surrogateescape"), *pair) for name, pair in edited.items())
    changed = {name: after for name, (before, after) in edited.items() if before != after}
    return Patch(root, diff, found, refused, changed)


def _parsed(entry: Path, root: Path, cwd: Path) -> tuple[list[SourceFile], list[str]]:
    """Parse the files of the program, the entry first; return also why other files cannot be edited.

    Raises CannotRunHere: the entry cannot be edited.
    """
    from dynotune.recipes.patch.source import MOST_NODES, NoPlace, SourceFile

    sources, unread = list[SourceFile](), list[str]()
    left = MOST_NODES
    for file in files_of(entry, root, cwd):
        try:
            sources.append(SourceFile(file, file.relative_to(root).as_posix(), left))
            left -= sources[-1].num_nodes
        except NoPlace as error:
            if file == entry:
                raise CannotRunHere(f"There is no patch: {error.message}.") from error
            unread.append(error.message)
    return sources, unread
