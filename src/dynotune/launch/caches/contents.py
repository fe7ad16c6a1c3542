"""Compile and kernel caches: those of an arm, so that the first does not pay for the second; and any command's own."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from dynotune import knobs
from dynotune.launch.caches.places import HEADERS, Place, cuda_limit_bytes
from dynotune.launch.caches.places import places as places
from dynotune.probe.facts import mounts
from dynotune.schema import atomic
from dynotune.schema.cache_pack import is_compilers
from dynotune.schema.caches import Cache, CacheName, Growth
from dynotune.schema.errors import may_fail
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import UNSET, Setting

VARIABLES: dict[str, CacheName] = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "PYTORCH_KERNEL_CACHE_PATH": "jiterator",
}
# Locks, and files that are renamed once they are whole: of inductor (.PID.THREAD.tmp), Triton (tmp.pid_…), filelock,
# the jiterator (KEY_tmp_PID), torch's own (.tmp). Folders: of these, of tempfile, and ours of a pack.
_PASSING = re.compile(r".*\.lock|lock|.*\.tmp|.*\.partial|tmp\.pid_.*|\.nfs.*|.*_tmp_\d+|\.dynotune-.*")
_PASSING_FOLDERS = re.compile(r"locks|tmp\.pid_.*|\.dynotune-.*|dt-[0-9a-f]{16}|tmp[a-z0-9_]{8}|tmp\.[0-9a-f-]{36}")
# Written also where nothing is kept: it says nothing of what was compiled.
_BOOKS: dict[CacheName, Collection[str]] = {"cuda": {"index"}}
NUM_KINDS = 3
VARIABLES_FILE = "environment.sh"


def environment(folder: Path) -> dict[str, str]:
    """Variables that put every cache below `folder`, which is made. Raises CannotRunHere: it cannot be made."""
    with may_fail(f"make the caches in {folder}"):
        for name in VARIABLES.values():
            (folder / name).mkdir(parents=True, exist_ok=True)
    return variables(folder)


def variables(folder: Path) -> dict[str, str]:
    """As `environment`; nothing is made."""
    return {variable: str(folder / name) for variable, name in VARIABLES.items()}


def own_environment(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that put every cache of a command below `folder`, for good: no file elsewhere.

    What an earlier answer left in the folder holds. In a new one, inductor's precompiled headers are not made, unless
    `env` decides otherwise: they know no other place than the folder for temporary files.

    Raises CannotRunHere: as `environment`.
    """
    before = read_variables(folder)
    is_new = before is None and next(entries(folder), None) is None
    headers = {HEADERS: "0"} if is_new and HEADERS not in env else {}
    return {**headers, **(before or {}), **environment(folder)}


def read_variables(folder: Path) -> dict[str, str] | None:
    """What `write_variables` wrote there, as far as it is about caches and may be set; None where it did not.

    The folder may come from elsewhere.
    """
    try:
        words = shlex.split(
            (folder / VARIABLES_FILE).read_text(encoding="utf-8", errors="surrogateescape"), comments=True
        )
    except (OSError, ValueError):
        return None
    found = dict(word.split("=", 1) for word in words if "=" in word)
    allowed, _ = knobs.check_variables((name, value) for name, value in found.items() if is_compilers(name))
    return {name: value for name, value in found.items() if name in allowed or name in VARIABLES}


def write_variables(folder: Path, chosen: Mapping[str, str]) -> None:
    """Leave the variables in the folder, for a shell to read. Raises CannotRunHere: it cannot be written."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in chosen.items()]
    text = "# By dynotune startup: the compile caches in this folder are found with these variables.\n"
    with may_fail(f"write in {folder}", "Name another folder with --caches."):
        atomic.write(folder / VARIABLES_FILE, (text + "\n".join(lines) + "\n").encode(errors="surrogateescape"))


def named(settings: Sequence[Setting], cwd: Path) -> dict[str, Path]:
    """Folders that settings give to caches, by their variables: these take the place of an arm's own."""
    folders = {}
    for setting in settings:
        variable = setting.knob.removeprefix("env.")
        if variable in VARIABLES and setting.value != UNSET:
            folders[variable] = Path(os.path.normpath(cwd.absolute() / str(setting.value)))
    return folders


def clear(folder: Path) -> None:
    """Make the caches cold. Raises CannotRunHere: some of it is still there, so they would not be."""
    may_be_gone = contextlib.suppress(FileNotFoundError)
    with may_fail(f"empty the caches in {folder}", "Measure with --caches warm."), may_be_gone:
        shutil.rmtree(folder)


Snapshot = dict[CacheName, dict[str, int]]
"""The files of the caches at one moment: by cache, path below its folder to size."""


def sizes(env: Mapping[str, str], cwd: Path | None = None) -> list[Cache]:
    """Every cache of a command under `env` in `cwd` (this folder by default): where, how large, and whether it lasts.

    Other processes may write meanwhile: what is gone when it is looked at does not count.
    """
    found = places(env, cwd or Path.cwd())
    held = snapshot(found)
    return [_measured(place, held.get(place.name, {}), env) for place in found]


def snapshot(found: Sequence[Place]) -> Snapshot:
    """What is in these caches now, but for their indexes."""
    held: Snapshot = {}
    for place in found:
        if isinstance(place.path, Path):
            files, books = entries(place.path, inner(place, found)), _BOOKS.get(place.name, ())
            held[place.name] = {path: status.st_size for path, status in files if path not in books}
    return held


def growth(before: Snapshot, after: Snapshot) -> list[Growth]:
    """What was added between both, a cache each; those that nothing was added to and nothing dropped from are absent.

    A file that changed without growing, as an index does that notes its use, is nothing added.
    """
    changes = []
    for name, now in after.items():
        then = before.get(name, {})
        new = {path: size - then.get(path, 0) for path, size in now.items() if size > then.get(path, -1)}
        num_removed = sum(path not in now for path in then)
        if new or num_removed:
            sizes = {"num_files": len(new), "size_bytes": sum(new.values()), "num_removed": num_removed}
            changes.append(Growth(name=name, kinds=_kinds(new), **sizes))
    return changes


def _kinds(files: Mapping[str, int]) -> list[str]:
    """Folders that say of what kind a file is; those of two letters are the first ones of a digest."""
    heads = [path.partition("/")[0] for path in files if "/" in path]
    named = [head for head in heads if 2 < len(head) < 20]
    return sorted(set(named), key=lambda head: (-named.count(head), head))[:NUM_KINDS]


def inner(place: Place, found: Sequence[Place]) -> list[Path]:
    """Folders of other caches below that of `place`, which are no part of it."""
    return [
        other.path
        for other in found
        if other is not place
        and isinstance(other.path, Path)
        and isinstance(place.path, Path)
        and other.path != place.path
        and other.path.is_relative_to(place.path)
    ]


def entries(folder: Path, without: Collection[Path] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """The files of a cache, sorted: path below `folder`, with `/`, and status. No locks, temporary files or links."""
    for at, folders, names in os.walk(folder):
        lasting = (name for name in folders if _PASSING_FOLDERS.fullmatch(name) is None)
        folders[:] = sorted(name for name in lasting if Path(at, name) not in without)
        for path in (Path(at, name) for name in sorted(names) if counts(name)):
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path.relative_to(folder).as_posix(), status


def counts(name: str) -> bool:
    """Whether a file of that name is part of a cache: no lock, nothing that passes."""
    return _PASSING.fullmatch(name) is None


def _measured(place: Place, files: Mapping[str, int], env: Mapping[str, str]) -> Cache:
    limit = cuda_limit_bytes(env) if place.name == "cuda" else None
    known = Cache(
        name=place.name,
        path=str(place.path),
        variable=place.variable,
        is_set=place.is_set,
        off=place.off,
        limit_bytes=limit,
    )
    if isinstance(place.path, Unknown):
        unknown = dict.fromkeys(("path", "size_bytes", "num_files", "writable", "lasts"), place.path)
        return msgspec.structs.replace(known, **unknown)
    lies, there = mounts.storage(place.path), mounts.nearest(place.path)
    if not place.off and lies.noexec and place.name == "inductor":
        # As Docker mounts a tmpfs, unless it is told otherwise.
        off = f"it is mounted noexec ({lies.why}): compiled libraries cannot be loaded from it"
        known = msgspec.structs.replace(known, off=off)
    hidden = place.path.is_dir() and not os.access(place.path, os.R_OK | os.X_OK)
    unreadable = Unknown(f"{place.path} cannot be read")
    return msgspec.structs.replace(
        known,
        size_bytes=unreadable if hidden else sum(files.values()),
        num_files=unreadable if hidden else len(files),
        writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK) and not lies.read_only,
        lasts=lies.lasts,
        storage=lies.why,
    )
