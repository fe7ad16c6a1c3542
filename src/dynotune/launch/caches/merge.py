"""Putting checked files into a cache that may be in use: file by file, none overwritten, none half."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from dynotune.launch.caches import contents
from dynotune.schema.cache_pack import LeftOut
from dynotune.schema.caches import TITLES, CacheName
from dynotune.schema.errors import CannotRunHere

# Triton lists a kernel's files by their absolute paths; a kernel whose list leads nowhere is compiled again.
GROUP_PREFIX, GROUP_SUFFIX = "__grp__", ".json"
LARGEST_GROUP_BYTES = 1 << 20
CUDA_INDEX = "index"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


@dataclass(slots=True)
class Merged:
    """What came of all caches together."""

    num_new: int = 0
    num_kept: int = 0
    new_bytes: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def relocate(staged: Path, target: Path) -> None:
    """Let Triton's lists of files name those in `target`, where `staged` is going to be."""
    for path, status in contents.entries(staged):
        name = path.rpartition("/")[2]
        is_group = name.startswith(GROUP_PREFIX) and name.endswith(GROUP_SUFFIX)
        if not is_group or status.st_size > LARGEST_GROUP_BYTES:
            continue
        try:
            found = json.loads((staged / path).read_bytes())
        except (ValueError, RecursionError):
            continue
        children = found.get("child_paths") if isinstance(found, dict) else None
        if not isinstance(children, dict):
            continue
        # All of them stand beside the list.
        folder = (target / path).parent
        found["child_paths"] = {child: str(folder / Path(child).name) for child in children}
        (staged / path).write_text(json.dumps(found), encoding="utf-8")


def merge(cache: CacheName, staged: Path, target: Path, merged: Merged) -> None:
    """Move the files of `staged` to `target`, which may exist; files that are there stay. `merged` counts them.

    Raises CannotRunHere: `target` belongs to another user, holds a link where a folder should be, or cannot be written.
    """
    try:
        _refuse_foreign(target)
        if cache == "headers":
            # In a folder that anybody could have made first, of a name that anybody knows.
            _refuse_foreign(target.parent)
        files = list(contents.entries(staged))
        if cache == "cuda" and _keeps_its_index(staged, target):
            merged.num_kept += len(files)
            reason = f"there is one in {target} already, whose index cannot be merged"
            merged.left_out.append(LeftOut(cache=cache, path="", reason=reason))
            merged.notes.append(
                f"{TITLES[cache]}: {len(files)} files were not taken. Empty {target} first, or name another folder "
                "with --caches."
            )
            return
        made: set[Path] = set()
        for path, status in files:
            destination = target / path
            if destination.parent not in made:
                _make_folders(target, destination.parent)
                made.add(destination.parent)
            if _put(staged / path, destination):
                merged.num_new += 1
                merged.new_bytes += status.st_size
            else:
                merged.num_kept += 1
    except OSError as error:
        raise CannotRunHere(
            f"Cannot write in the cache {target}: {error.strerror or error}. Files that are there already are whole.",
            hint="Free some space there, or name another folder with --caches.",
        ) from error


def _put(source: Path, destination: Path) -> bool:
    """Give a whole file its name there; false where there is one of that name."""
    try:
        # Unlike a rename, a link never takes the place of what is there.
        os.link(source, destination, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(destination):
            return False
        source.rename(destination)
    return True


def _make_folders(target: Path, folder: Path) -> None:
    """The folders from `target` down to `folder`, each a real one: a link could lead anywhere."""
    target.mkdir(parents=True, exist_ok=True)
    at = target
    for part in folder.relative_to(target).parts:
        at /= part
        try:
            at.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(at.lstat().st_mode):
                raise CannotRunHere(
                    f"{at} in the cache is no folder.", hint="Look at what it is; empty the cache, or name another."
                ) from None


def _refuse_foreign(target: Path) -> None:
    try:
        status = target.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise CannotRunHere(f"{target} is no folder.", hint="Name another with --caches.")
    if os.geteuid() not in (0, status.st_uid):
        raise CannotRunHere(
            f"The cache {target} belongs to another user, who could put other code into it.",
            hint="Name a folder of your own with --caches.",
        )


def _keeps_its_index(staged: Path, target: Path) -> bool:
    """The driver finds its entries by an index of its own, which cannot be merged: the cache that is there stays."""
    there, new = target / CUDA_INDEX, staged / CUDA_INDEX
    return there.exists() and new.exists() and there.read_bytes() != new.read_bytes()
