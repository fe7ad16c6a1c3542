"""Which files came, changed or went below a directory: the same walk before and after."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MOST_ENTRIES = 200_000


class Changes(NamedTuple):
    """Paths relative to the directory, sorted. A folder ends in `/`; it is named only where nothing in it is."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        return sorted({*self.created, *self.changed, *self.deleted})


class Entry(NamedTuple):
    """Properties that tell a file from the one that was there before. The contents are not read."""

    mtime_ns: int
    size_bytes: int
    inode: int
    is_folder: bool


class Snapshot(NamedTuple):
    """Entries below a directory.

    Args:
        entries: by path relative to it.
        listed: folders whose entries are all in `entries`; `""` is the directory itself.
    """

    entries: dict[str, Entry]
    listed: frozenset[str]


def scan(root: Path, *, skip: Iterable[Path] = (), most: int = MOST_ENTRIES) -> Snapshot:
    """Walk `root`, nearest folders first. Links are not followed, other file systems not entered.

    Args:
        skip: folders that are left out, with what is in them; absolute, links resolved.
        most: entries after which the walk stops.

    Raises OSError: `root` itself cannot be read. What cannot be read below it is left out, as not listed.
    """
    left_out = {str(path) for path in skip}
    device = root.stat().st_dev
    entries: dict[str, Entry] = {}
    listed: set[str] = set()
    to_list = [""]
    for folder in to_list:
        try:
            items = sorted(os.scandir(root / folder), key=lambda item: item.name)
        except OSError:
            if not folder:
                raise
            continue
        for item in items:
            if len(entries) >= most:
                return Snapshot(entries, frozenset(listed))
            if item.path in left_out:
                continue
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            name = f"{folder}{item.name}" + ("/" if is_folder else "")
            entries[name] = Entry(status.st_mtime_ns, status.st_size, status.st_ino, is_folder)
            if is_folder and status.st_dev == device:
                to_list.append(name)
        listed.add(folder)
    return Snapshot(entries, frozenset(listed))


def between(before: Snapshot, after: Snapshot) -> Changes:
    """Return what happened between two walks of one directory.

    A name counts as created or deleted only where the other walk listed its folder whole, or the folder
    itself was created or deleted.
    """
    old, new = before.entries, after.entries
    return Changes(
        created=tuple(_only_in(new, old, before.listed)),
        changed=tuple(
            sorted(
                name
                for name, entry in new.items()
                # A folder changes its time with whatever is created in it: that is said by the created name.
                if not entry.is_folder and name in old and old[name] != entry
            )
        ),
        deleted=tuple(_only_in(old, new, after.listed)),
    )


def parent_of(name: str) -> str:
    """Return the folder that `name` lies in, ending in `/`; `""` at the top."""
    head, slash, _ = name.rstrip("/").rpartition("/")
    return head + slash


def without_parents(names: set[str]) -> list[str]:
    """Sort names, less the folders that are there only because something in them is."""
    return sorted(names - {parent_of(name) for name in names})


def _only_in(these: dict[str, Entry], those: dict[str, Entry], those_listed: frozenset[str]) -> list[str]:
    only: set[str] = set()
    # The walk puts a folder before what is in it.
    for name in these:
        if name not in those and (parent_of(name) in those_listed or parent_of(name) in only):
            only.add(name)
    return without_parents(only)
