"""Unpacking compile caches from a file that may come from anywhere.

What is unpacked is run: the caches hold libraries, machine code and pickles. So nothing is taken unless the user trusts
the file or names its digest; nothing is put in place before every digest in it was checked; and the reader knows one
plain kind of tar member and no other.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import IO

from dynotune import knobs
from dynotune.launch.caches import contents
from dynotune.launch.caches.contents import Place
from dynotune.launch.caches.pack import member_name
from dynotune.launch.process import temporary_folder
from dynotune.probe.facts import mounts
from dynotune.schema import document
from dynotune.schema.cache_pack import (
    MANIFEST_NAME,
    MOST_MANIFEST_BYTES,
    Difference,
    LeftOut,
    Manifest,
    Unpacked,
    check,
    hostile,
)
from dynotune.schema.caches import TITLES, CacheName
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError, may_fail
from dynotune.text import words

MOST_BYTES = 64 << 30
"""Of all files together; the limit of `--max-size`."""
# Left free: a disk that is full to the last byte stops others too.
ROOM_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
OTHER_FOLDER = "Free some space there, or name another folder with --caches."
# Triton lists a kernel's files by their absolute paths; a kernel whose list leads nowhere is compiled again.
GROUP = re.compile(r"__grp__.*\.json")
LARGEST_GROUP_BYTES = 1 << 20
CUDA_INDEX = "index"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The pack, as one open file: what is checked is what is read.

    Raises RecordError: there is none, or it is no ordinary file.
    """
    with may_fail(f"read {path}", "", RecordError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecordError(f"{path} is no ordinary file.", hint="Give the file that dynotune startup pack wrote.")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def refuse_digest(file: BufferedReader, expected: str, name: str) -> None:
    """Refuse the whole file where its SHA-256 is another, before anything in it is looked at.

    Raises UsageError: `expected` is no digest. RecordError: it is not that of the file.
    """
    wanted = expected.strip().lower()
    if re.fullmatch("[0-9a-f]{64}", wanted) is None:
        raise UsageError(f"--sha256 {expected} is no SHA-256 digest.", hint="It has 64 digits of 0-9 and a-f.")
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    if found != wanted:
        raise RecordError(
            f"{name} is not the pack that was meant: its SHA-256 is {found}. Nothing of it was used.",
            hint="It was changed or cut short on its way, or the digest is of another pack. Get it anew.",
        )


def read_manifest(file: BufferedReader, name: str) -> Manifest:
    """The manifest, which comes first; nothing else is read.

    Raises RecordError: it is no pack, is damaged, or says what no pack says.
    """
    file.seek(0)
    with gzip.GzipFile(fileobj=file, mode="rb") as stream:
        return _read_manifest(stream, name)


def unpack(
    file: BufferedReader,
    name: str,
    places: Sequence[Place],
    *,
    most_bytes: int = MOST_BYTES,
    below: str = "",
    variables: Mapping[str, str] | None = None,
    differences: Sequence[Difference] = (),
) -> Unpacked:
    """Put the files of the pack into these caches. Those that are there already stay as they are.

    `below`, `variables`, `differences`: for the answer: the folder of `--caches`, what leads the command to the caches,
    and what was found to be other here.

    Raises:
        RecordError: the pack is damaged or hostile; nothing of it was put in place.
        CannotRunHere: no room, a cache is not writable or belongs to somebody else.
    """
    file.seek(0)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb"))
        manifest = _read_manifest(stream, name)
        folders, left_out = _folders(manifest, places)
        _refuse_size(manifest, folders, name, most_bytes)
        staged = {cache: _staging(folder, stack) for cache, folder in folders.items()}
        with may_fail("write the files of the pack", OTHER_FOLDER, left="Nothing of them was put in place."):
            _extract(stream, manifest, staged, name)
        for cache, folder in staged.items():
            _relocate(folder, folders[cache])
        merged = _Merged()
        for cache, folder in staged.items():
            left = "Files that are there already are whole."
            with may_fail(f"write in the cache {folders[cache]}", OTHER_FOLDER, left=left):
                _merge(cache, folder, folders[cache], merged)
    # What decides how things are compiled may also name what compiles them.
    allowed, others = knobs.check_variables(manifest.variables.items())
    return Unpacked(
        file=name,
        folders={cache: str(folder) for cache, folder in folders.items()},
        below=below,
        num_new=merged.num_new,
        num_kept=merged.num_kept,
        new_bytes=merged.new_bytes,
        differences=list(differences),
        left_out=[*left_out, *merged.left_out],
        variables={**(variables or {}), **allowed},
        notes=[*merged.notes, *map(_not_set, others.items())],
    )


def _not_set(variable: tuple[str, str]) -> str:
    name, value = variable
    return (
        f"It was packed with {name}={value}, which is not set for you: a pack sets only variables that are known to "
        f"tune and do nothing else. If you trust it, set it yourself: export {name}={words.command([value])}"
    )


def _read_manifest(stream: gzip.GzipFile, name: str) -> Manifest:
    size_bytes = _header(stream, MANIFEST_NAME, name)
    if size_bytes > MOST_MANIFEST_BYTES:
        raise hostile(name, f"its manifest claims {size_bytes:,} bytes")
    raw = b"".join(_content(stream, size_bytes, name))
    manifest = document.decode(raw, Manifest, name=f"the manifest of {name}")
    check(manifest, name)
    return manifest


def _folders(manifest: Manifest, places: Sequence[Place]) -> tuple[dict[CacheName, Path], list[LeftOut]]:
    """Where each cache of the pack goes, and those that have no place here."""
    by_name = {place.name: place for place in places}
    folders: dict[CacheName, Path] = {}
    left_out = []
    for cache in manifest.caches:
        place = by_name.get(cache)
        if place is None or not isinstance(place.path, Path):
            reason = "it was not wanted" if place is None else f"it has no folder here: {place.path}"
            left_out.append(LeftOut(cache=cache, path="", reason=reason))
        else:
            folders[cache] = place.path
    return folders, left_out


def _refuse_size(manifest: Manifest, folders: Mapping[CacheName, Path], name: str, most_bytes: int) -> None:
    if manifest.total_bytes > most_bytes:
        raise CannotRunHere(
            f"{name} holds {manifest.total_bytes:,} bytes of files, more than the {most_bytes:,} that are taken.",
            hint="If you know that it is as large, allow more with --max-size.",
        )
    by_device = Counter[int]()
    for cache, folder in folders.items():
        there = mounts.nearest(folder)
        device, free = there.stat().st_dev, shutil.disk_usage(there).free
        by_device[device] += sum(file.size_bytes for file in manifest.files if file.cache == cache)
        if by_device[device] + ROOM_BYTES > free:
            raise CannotRunHere(
                f"There is no room for the pack in {folder}: {free:,} bytes are free, its files take "
                f"{manifest.total_bytes:,}.",
                hint=OTHER_FOLDER,
            )


def _staging(folder: Path, stack: contextlib.ExitStack) -> Path:
    """A fresh folder beside the cache, on its file system, that nobody else can look into; removed with `stack`."""
    with may_fail(f"write beside the cache {folder}", "Give it a folder that can be written with --caches."):
        folder.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(temporary_folder(folder.parent))


def _extract(stream: gzip.GzipFile, manifest: Manifest, staged: Mapping[CacheName, Path], name: str) -> None:
    """Every file into its staging folder, its digest checked; exactly those that the manifest lists."""
    for number, listed in enumerate(manifest.files):
        size_bytes = _header(stream, member_name(number), name)
        if size_bytes != listed.size_bytes:
            raise hostile(name, f"{listed.path!r} is not as large as its manifest says")
        digest = hashlib.sha256()
        with contextlib.ExitStack() as stack:
            out: IO[bytes] | None = None
            if listed.cache in staged:
                path = staged[listed.cache] / listed.path
                path.parent.mkdir(parents=True, exist_ok=True)
                # The paths are told apart by their bytes; a file system that folds case would show here.
                out = stack.enter_context(path.open("xb"))
            for chunk in _content(stream, size_bytes, name):
                digest.update(chunk)
                if out is not None:
                    out.write(chunk)
        if digest.hexdigest() != listed.sha256:
            raise hostile(name, f"{listed.path!r} is not what its manifest says")
    _refuse_more(stream, name)


def _header(stream: gzip.GzipFile, expected: str, name: str) -> int:
    """The size of the next member, which must be an ordinary file of that name."""
    block = _exactly(stream, tarfile.BLOCKSIZE, name)
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError, ValueError) as error:
        raise hostile(name, f"there is no file where {expected} should be") from error
    if member.type != tarfile.REGTYPE or member.name != expected or member.size < 0:
        raise hostile(name, f"it has {member.name[:100]!r} where {expected} should be, or that is no ordinary file")
    return member.size


def _content(stream: gzip.GzipFile, size_bytes: int, name: str) -> Iterator[bytes]:
    left = size_bytes
    while left:
        chunk = _exactly(stream, min(left, CHUNK_BYTES), name)
        left -= len(chunk)
        yield chunk
    _exactly(stream, -size_bytes % tarfile.BLOCKSIZE, name)


def _exactly(stream: gzip.GzipFile, num_bytes: int, name: str) -> bytes:
    found = b""
    while len(found) < num_bytes:
        if not (more := _read(stream, num_bytes - len(found), name)):
            raise _damaged(name)
        found += more
    return found


def _read(stream: gzip.GzipFile, num_bytes: int, name: str) -> bytes:
    try:
        return stream.read(num_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(name) from error


def _refuse_more(stream: gzip.GzipFile, name: str) -> None:
    """Nothing but the zeros that end a tar may follow."""
    rest = _read(stream, 2 * tarfile.RECORDSIZE + 1, name)
    if len(rest) > 2 * tarfile.RECORDSIZE or rest.strip(b"\0"):
        raise hostile(name, "it holds more than its manifest lists")


def _damaged(name: str) -> RecordError:
    return RecordError(
        f"{name} is no pack, or is cut short or damaged. Nothing of it was used.",
        hint="Get it anew, or make it anew with dynotune startup pack.",
    )


@dataclass(slots=True)
class _Merged:
    """Hold what came of all caches together."""

    num_new: int = 0
    num_kept: int = 0
    new_bytes: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _relocate(staged: Path, target: Path) -> None:
    """Let Triton's lists of files name those in `target`, where `staged` is going to be."""
    for path, status in contents.entries(staged):
        if GROUP.fullmatch(Path(path).name) is None or status.st_size > LARGEST_GROUP_BYTES:
            continue
        try:
            found = json.loads((staged / path).read_bytes())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(children := found.get("child_paths"), dict):
            # All of them stand beside the list.
            folder = (target / path).parent
            found["child_paths"] = {child: str(folder / Path(child).name) for child in children}
            (staged / path).write_text(json.dumps(found), encoding="utf-8")


def _merge(cache: CacheName, staged: Path, target: Path, merged: _Merged) -> None:
    """Move the files of `staged` to `target`, which may be in use: file by file, none overwritten, none half.

    Raises CannotRunHere: `target` belongs to another user, or holds a link where a folder should be.
    """
    # Headers are in a folder that anybody could have made first, of a name that anybody knows.
    for folder in (target, target.parent) if cache == "headers" else (target,):
        _refuse_foreign(folder)
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
    for path, status in files:
        _make_folders(target, (target / path).parent)
        if _put(staged / path, target / path):
            merged.num_new += 1
            merged.new_bytes += status.st_size
        else:
            merged.num_kept += 1


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
