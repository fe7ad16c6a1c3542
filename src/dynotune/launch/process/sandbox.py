"""Decide whether a measured run can have a copy-on-write view, where the copies go, and list the copies.

The copies go into the run folder. If the run folder is unsuitable (below the working directory, on NFS or on
an overlay), the copies go into the folder for temporary files or /var/tmp. The copies never go into memory,
because a checkpoint written there would affect the measurement.
"""

import contextlib
import itertools
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import dynotune
from dynotune.launch.process import overlay
from dynotune.launch.process.changes import MOST_ENTRIES, Changes, without_parents
from dynotune.launch.process.leases import Lease, temporary_folder
from dynotune.launch.process.overlay import View
from dynotune.text import exit_codes

_TRY_OUT_S = 60.0
_TRY_OUT = """\
import os, sys
sys.path.append(sys.argv[1])
from dynotune.launch.process import overlay, proof
try:
    proof.try_out(overlay.View(sys.argv[2], sys.argv[3], sys.argv[4:]))
except overlay.NoOverlay as error:
    print(error)
    sys.exit(1)
"""


def available(cwd: Path, run_dir: Path) -> str | None:
    """Return the reason why no copy-on-write view of `cwd` is possible here; None if a view is possible.

    A view is made as a test, once per process for the same two file trees.
    """
    place = _find_place(cwd.resolve(), run_dir.resolve().parent)
    return place if isinstance(place, str) else None


class Seed(NamedTuple):
    """Differences between a view and the folder that the view covers.

    `root`: covered folder, which contains the working directory. The other fields are those of
        `overlay.View`.
    """

    root: Path
    files: Path
    gone: Sequence[str]


def prepare(
    cwd: Path, run_dir: Path, keep: Sequence[Path] = (), seed: Seed | None = None, lease: Lease | None = None
) -> View | str:
    """Make a view with its layers for one run, or return the reason why no view is possible.

    Args:
        keep: folders below `cwd` to which writes go for real, in addition to the run folder.
        seed: differences to show; the view covers the seed's root in place of `cwd`.
    """
    cwd = cwd if seed is None else seed.root
    cwd, run_dir = cwd.resolve(), run_dir.resolve()
    place = _find_place(cwd, run_dir.parent)
    if isinstance(place, str):
        return place
    kept = _below(cwd, [run_dir, *(path.resolve() for path in keep)])
    try:
        scratch = (lease or Lease()).make_scratch(place or run_dir)
        view = View(str(cwd), str(scratch), kept)
        if seed is not None:
            view = view._replace(seed=str(seed.files), gone=list(seed.gone))
        overlay.make_layers(view)
    except OSError as error:
        return f"the copies have no place: {error}"
    return view


def changes_in(view: View) -> Changes:
    """List the files that the copies show as created, changed or deleted; all processes must have ended
    before."""
    created: set[str] = set()
    changed: set[str] = set()
    deleted: set[str] = set()
    linked: dict[bytes, os.stat_result] = {}
    for path, status in itertools.islice(_inside(Path(view.upper)), MOST_ENTRIES):
        name = str(path.relative_to(view.upper))
        if _is_as_seeded(view, name, status):
            continue
        below = _status(Path(view.cwd, name))
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            deleted.update(_all_of(Path(view.cwd), name, below))
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_nlink > 1 and not is_folder and (original := _handle_of_original(path)):
            linked[original] = status
        if below is None or is_folder != stat.S_ISDIR(below.st_mode):
            created.add(name + "/" if is_folder else name)
            deleted.update(_all_of(Path(view.cwd), name, below))
        elif is_folder and _is_opaque(path):
            inside = _all_of(Path(view.cwd), name, below)
            deleted.update(gone for gone in inside if _status(Path(view.upper, gone)) is None)
        elif not is_folder and _differs(status, below):
            changed.add(name)
    if linked:
        changed |= _other_names(view, linked) - created - deleted
    return Changes(
        created=tuple(without_parents(created)),
        changed=tuple(sorted(changed)),
        deleted=tuple(without_parents({name for name in deleted if not _was_gone(view, name)})),
    )


def _other_names(view: View, linked: Mapping[bytes, os.stat_result]) -> set[str]:
    """List the other hard links of changed files that the view copied under only one of their names.

    `linked`: copies by the handles of their originals.
    """
    found, device = set(), Path(view.cwd).stat().st_dev
    for path, status in itertools.islice(_inside(Path(view.cwd)), MOST_ENTRIES):
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode) and status.st_dev == device:
            copy = linked.get(overlay.file_handle(str(path)))
            name = str(path.relative_to(view.cwd))
            if copy is not None and _differs(copy, status) and _status(Path(view.upper, name)) is None:
                found.add(name)
    return found


def _handle_of_original(copy: Path) -> bytes:
    """Return the handle of the overlay copy's original, as `overlay.file_handle` does; empty if the file is
    no copy."""
    try:
        # Version, magic, length, flags and type take one byte each; 16 bytes identify the file system.
        origin = os.getxattr(copy, "trusted.overlay.origin", follow_symlinks=False)
    except OSError:
        return b""
    return origin[4:5] + origin[21:]


def _is_as_seeded(view: View, name: str, status: os.stat_result) -> bool:
    """Tell whether the copy is an unchanged file of the seed."""
    seeded = _status(Path(view.seed, name)) if view.seed else None
    if seeded is None:
        return False
    is_folder = stat.S_ISDIR(status.st_mode)
    return is_folder == stat.S_ISDIR(seeded.st_mode) and (is_folder or not _differs(status, seeded))


def _was_gone(view: View, name: str) -> bool:
    """Tell whether `name` was hidden before the program began: a hidden file, or a folder with a hidden
    file."""
    return name in view.gone or (name.endswith("/") and any(gone.startswith(name) for gone in view.gone))


@cache
def _find_place(cwd: Path, runs: Path) -> Path | str | None:
    """Find the place of the copies: a temporary folder, None for the run folder, or why no place is
    suitable."""
    if cwd == Path("/"):
        return "the working directory is the root of the file system"
    reasons = []
    for base in (None, *dict.fromkeys((tempfile.gettempdir(), "/var/tmp"))):
        folder = runs if base is None else Path(base)
        if folder.resolve().is_relative_to(cwd):
            reasons.append(f"{folder} lies below the working directory")
        elif base is not None and _in_memory(folder):
            reasons.append(f"{folder} lies in memory")
        elif reason := _try_out(cwd, folder, _below(cwd, [runs])):
            reasons.append(reason)
        else:
            return None if base is None else folder
    if mounts := overlay.mounts_below(str(cwd)):
        reasons.append(f"{mounts[0]} is a file system of its own")
    return "; ".join(dict.fromkeys(reasons))


def _try_out(cwd: Path, folder: Path, keep: Sequence[str]) -> str | None:
    try:
        with temporary_folder(folder) as scratch:
            source = str(Path(dynotune.__file__).parent.parent)
            command = [sys.executable, "-I", "-S", "-c", _TRY_OUT, source, str(cwd), str(scratch), *keep]
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
            )
            try:
                stdout, stderr = child.communicate(timeout=_TRY_OUT_S)
            except subprocess.TimeoutExpired:
                child.kill()  # Do not wait for the child: it may be stuck in the kernel.
                return f"{folder}: trying it took longer than {_TRY_OUT_S:.0f} s"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if child.returncode == 0:
        return None
    said = stdout.strip() or stderr.strip() or f"it ended {exit_codes.ending(child.returncode)}"
    return said.splitlines()[-1]


def _below(cwd: Path, folders: Sequence[Path]) -> list[str]:
    return [str(folder) for folder in folders if folder != cwd and folder.is_relative_to(cwd)]


def _in_memory(folder: Path) -> bool:
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 1] in ("tmpfs", "ramfs")
    return False


def _inside(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = Path(folder, name)
            if (status := _status(path)) is not None:
                yield path, status


def _all_of(cwd: Path, name: str, below: os.stat_result | None) -> Iterator[str]:
    """Yield `name` and, for a folder, all of its contents in the real directory."""
    if below is None:
        return
    if not stat.S_ISDIR(below.st_mode):
        yield name
        return
    yield name + "/"
    for folder, folders, files in os.walk(cwd / name):
        inside = Path(folder).relative_to(cwd)
        yield from (f"{inside / item}/" for item in folders)
        yield from (str(inside / item) for item in files)


def _is_opaque(path: Path) -> bool:
    for kind in ("trusted", "user"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, f"{kind}.overlay.opaque", follow_symlinks=False) == b"y":
                return True
    return False


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _differs(copy: os.stat_result, original: os.stat_result) -> bool:
    """Tell whether the copy differs from the original: opening a file for writing copies it before any
    write."""

    def seen(status: os.stat_result) -> tuple[int, int, int]:
        return status.st_mtime_ns, status.st_size, status.st_mode

    return seen(copy) != seen(original)
