"""Find the files that were created, changed or deleted below a directory, by comparing two walks of the
directory."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MOST_ENTRIES = 200_000


class Changes(NamedTuple):
    """Changed paths relative to the directory, sorted. A folder's path ends in `/`; only empty folders are
    listed."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        return sorted({*self.created, *self.changed, *self.deleted})


class Entry(NamedTuple):
    """Properties by which a file is compared with an earlier file of the same name. Contents are not read."""

    mtime_ns: int
    size_bytes: int
    inode: int
    is_folder: bool


class Snapshot(NamedTuple):
    """State of a directory at one time.

    Args:
        entries: map of each entry's path relative to the directory.
        listed: folders that were listed completely; `""` is the directory itself.
    """

    entries: dict[str, Entry]
    listed: frozenset[str]


def scan(root: Path, *, skip: Iterable[Path] = (), most: int = MOST_ENTRIES) -> Snapshot:
    """Walk `root`, nearest folders first, without following links or entering other file systems.

    Args:
        skip: folders to leave out together with their contents; absolute paths with links resolved.
        most: number of entries after which the walk stops.

    Raises OSError: `root` itself cannot be read. Unreadable folders below `root` are left out and are not in
    `listed`.
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
    """Return the changes between two walks of one directory.

    A name counts as created or deleted only if the other walk listed the folder completely, or lacks the
    folder.
    """
    old, new = before.entries, after.entries
    return Changes(
        created=tuple(_only_in(new, old, before.listed)),
        changed=tuple(
            sorted(
                name
                for name, entry in new.items()
                # A new entry changes the modification time of its folder; the entry itself already shows that
                # change.
                if not entry.is_folder and name in old and old[name] != entry
            )
        ),
        deleted=tuple(_only_in(old, new, after.listed)),
    )


def parent_of(name: str) -> str:
    """Return the path of the folder that contains `name`, ending in `/`; `""` for the top folder."""
    head, slash, _ = name.rstrip("/").rpartition("/")
    return head + slash


def without_parents(names: set[str]) -> list[str]:
    """Sort names, and leave out folders that are listed only because of their contents."""
    return sorted(names - {parent_of(name) for name in names})


def _only_in(these: dict[str, Entry], those: dict[str, Entry], those_listed: frozenset[str]) -> list[str]:
    only: set[str] = set()
    # The walk lists a folder before its contents.
    for name in these:
        if name not in those and (parent_of(name) in those_listed or parent_of(name) in only):
            only.add(name)
    return without_parents(only)
