"""Unpack compile caches from a file of any origin.

Programs execute unpacked files: caches contain libraries, machine code and pickles. So dynotune unpacks
nothing unless the user trusts the file or gives its digest. dynotune checks the digests of all files before
moving any of them into a cache. The reader accepts plain files only, not the other kinds of tar members.
"""

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
from typing import Self, cast

from dynotune import knobs
from dynotune.launch.caches import contents
from dynotune.launch.caches.contents import Place
from dynotune.launch.caches.pack import member_name
from dynotune.launch.process import temporary_folder
from dynotune.probe.facts import mounts
from dynotune.schema import document, untrusted
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
"""Limit of the total size of all files; the default of `--max-size`."""
# Space that stays free, because a completely full disk stops other programs too.
ROOM_BYTES = 64 << 20
OTHER_FOLDER = "Free some space there, or name another folder with --caches."
# Triton lists a kernel's files by absolute path; if a listed path does not exist, Triton compiles the kernel
# again.
GROUP = re.compile(r"__grp__.*\.json")
LARGEST_GROUP_BYTES = 1 << 20
CUDA_INDEX = "index"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open the pack once, so that the checked file is the file that is read.

    Raises RecordError: the file does not exist, or is not a regular file.
    """
    with contextlib.ExitStack() as stack:
        with may_fail(f"read {path}", "Give the file that dynotune startup pack wrote.", RecordError):
            file = stack.enter_context(untrusted.opened(path))
        yield file


def refuse_digest(file: BufferedReader, expected: str, name: str) -> None:
    """Refuse the pack if its SHA-256 is not `expected`, before interpreting any content.

    Raises UsageError: `expected` is not a digest. RecordError: the file has another digest.
    """
    wanted = expected.strip().lower()
    if re.fullmatch("[0-9a-f]{64}", wanted) is None:
        raise UsageError(
            f"--sha256 {expected} is not a SHA-256 digest.", hint="It has 64 digits of 0-9 and a-f."
        )
    file.seek(0)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    if found != wanted:
        raise RecordError(
            f"{name} is not the expected pack: its SHA-256 is {found}. Nothing of it was used.",
            hint=(
                "The file was changed or cut short on its way, or the digest belongs to another pack. "
                "Get the pack again."
            ),
        )


def read_manifest(file: BufferedReader, name: str) -> Manifest:
    """Read the manifest, which comes first in the pack, and nothing else.

    Raises RecordError: the file is not a pack, is damaged, or its manifest is invalid.
    """
    with _archive(file, name) as (_, archive):
        return _read_manifest(archive, name)


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
    """Put the files of the pack into the caches at `places`, and keep files that already exist there.

    `below`, `variables` and `differences` are copied into the answer: the folder of `--caches`, the variables
    that lead the command to the caches, and the conditions that differ here.

    Raises:
        RecordError: the pack is damaged or hostile; no file was put into a cache.
        CannotRunHere: a full disk, a cache that is not writable or another user's, or a Python without tar
            filters.
    """
    if not hasattr(tarfile, "data_filter"):
        raise CannotRunHere(
            "This Python's tarfile has no extraction filters, so it cannot refuse unsafe paths.",
            hint="Use Python 3.11.4 or newer.",
        )
    with _archive(file, name) as (stream, archive), contextlib.ExitStack() as stack:
        manifest = _read_manifest(archive, name)
        folders, left_out = _folders(manifest, places)
        _refuse_size(manifest, folders, name, most_bytes)
        staged = {cache: _staging(cache, folder, stack) for cache, folder in folders.items()}
        left = "No file of the pack was put in place."
        with may_fail("write the files of the pack", OTHER_FOLDER, left=left), _whole(name):
            _extract(archive, manifest, staged, name)
            _refuse_more(stream, name)
        for cache, folder in staged.items():
            _relocate(folder, folders[cache])
        merged = _Merged()
        for cache, folder in staged.items():
            left = "The files that were already put there are whole."
            with may_fail(f"write in the cache {folders[cache]}", OTHER_FOLDER, left=left):
                _merge(cache, folder, folders[cache], merged)
    # Variables that decide how code is compiled may also name the program that compiles it.
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
        f"It was packed with {name}={value}, which is not set for you: a pack sets only variables that are "
        "known to "
        f"tune and do nothing else. If you trust it, set it yourself: export {name}={words.command([value])}"
    )


class _Plain(tarfile.TarInfo):
    """Accept the tar header of a plain file; any other header, such as the header for a long name, ends the
    reading."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type != tarfile.REGTYPE or member.size < 0:
            raise tarfile.ReadError(f"it has {member.name[:100]!r}, which is not an ordinary file")
        return member


@contextlib.contextmanager
def _archive(file: BufferedReader, name: str) -> Iterator[tuple[gzip.GzipFile, tarfile.TarFile]]:
    file.seek(0)
    with (
        _whole(name),
        gzip.GzipFile(fileobj=file, mode="rb") as stream,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=_Plain) as archive,
    ):
        yield stream, archive


@contextlib.contextmanager
def _whole(name: str) -> Iterator[None]:
    """Raise RecordError if the file that is read in the `with` block is not a pack, or is damaged."""
    try:
        yield
    except tarfile.TarError as error:
        raise hostile(name, str(error)) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RecordError(
            f"{name} is not a pack, or is cut short or damaged. Nothing of it was used.",
            hint="Get the pack again, or make it again with dynotune startup pack.",
        ) from error


def _read_manifest(archive: tarfile.TarFile, name: str) -> Manifest:
    member = _next(archive, MANIFEST_NAME, name)
    if member.size > MOST_MANIFEST_BYTES:
        raise hostile(name, f"its manifest claims {member.size:,} bytes")
    content = archive.extractfile(member)
    assert content is not None, "an ordinary file"
    manifest = document.decode(content.read(), Manifest, name=f"the manifest of {name}")
    check(manifest, name)
    return manifest


def _next(archive: tarfile.TarFile, expected: str, name: str) -> tarfile.TarInfo:
    member = archive.next()
    # The archive remembers all members, and each is wanted once.
    archive.members.clear()  # type: ignore[attr-defined]
    if member is None or member.name != expected:
        raise hostile(
            name, f"it has {member.name[:100] if member else 'nothing'!r} where {expected} should be"
        )
    return member


def _folders(manifest: Manifest, places: Sequence[Place]) -> tuple[dict[CacheName, Path], list[LeftOut]]:
    """Return the folder for each cache of the pack, and the pack's caches that have no folder on this
    machine."""
    by_name = {place.name: place for place in places}
    folders: dict[CacheName, Path] = {}
    left_out = []
    for cache in manifest.caches:
        place = by_name.get(cache)
        if place is None or not isinstance(place.path, Path):
            reason = "--caches DIR says where" if place is None else f"it has no folder here: {place.path}"
            left_out.append(LeftOut(cache=cache, path="", reason=reason))
        else:
            folders[cache] = place.path
    return folders, left_out


def _refuse_size(manifest: Manifest, folders: Mapping[CacheName, Path], name: str, most_bytes: int) -> None:
    if manifest.total_bytes > most_bytes:
        raise CannotRunHere(
            f"{name} holds {manifest.total_bytes:,} bytes of files, more than the limit of {most_bytes:,}.",
            hint="If you expect a pack of this size, allow more with --max-size.",
        )
    by_device = Counter[int]()
    for cache, folder in folders.items():
        there = mounts.nearest(folder)
        device, free = there.stat().st_dev, shutil.disk_usage(there).free
        by_device[device] += sum(file.size_bytes for file in manifest.files if file.cache == cache)
        if by_device[device] + ROOM_BYTES > free:
            raise CannotRunHere(
                f"There is no room for the pack in {folder}: {free:,} bytes are free, but its files take "
                f"{manifest.total_bytes:,}.",
                hint=OTHER_FOLDER,
            )


def _staging(cache: CacheName, folder: Path, stack: contextlib.ExitStack) -> Path:
    """Make a private folder on the file system of the cache; `stack` removes the folder.

    The folder is made inside an existing cache, since the cache may be a mount or a link to another file
    system.
    """
    _refuse_foreign(cache, folder)
    with may_fail(f"write beside the cache {folder}", "Give it a folder that can be written with --caches."):
        folder.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(temporary_folder(folder if folder.is_dir() else folder.parent))


def _extract(
    archive: tarfile.TarFile, manifest: Manifest, staged: Mapping[CacheName, Path], name: str
) -> None:
    """Extract the files that have a staging folder, check digests, and refuse files that the manifest does
    not list."""
    for number, listed in enumerate(manifest.files):
        member = _next(archive, member_name(number), name)
        if member.size != listed.size_bytes:
            raise hostile(name, f"{listed.path!r} is not as large as its manifest says")
        if folder := staged.get(listed.cache):
            archive.extract(
                member.replace(name=listed.path, deep=False), folder, set_attrs=False, filter="data"
            )
        else:
            content = cast("BufferedReader", archive.extractfile(member))
            if hashlib.file_digest(content, "sha256").hexdigest() != listed.sha256:
                raise hostile(name, f"{listed.path!r} is not what its manifest says")
    # Check after the last file, because on a file system that ignores case one file may have replaced
    # another.
    for listed in manifest.files:
        if folder := staged.get(listed.cache):
            with untrusted.opened(folder / listed.path, link=False) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != listed.sha256:
                    raise hostile(name, f"{listed.path!r} is not what its manifest says")


def _refuse_more(stream: gzip.GzipFile, name: str) -> None:
    """Refuse any data after the archive other than the zeros that end a tar file."""
    rest = stream.read(2 * tarfile.RECORDSIZE + tarfile.BLOCKSIZE)
    if len(rest) >= 2 * tarfile.RECORDSIZE + tarfile.BLOCKSIZE or rest.strip(b"\0"):
        raise hostile(name, "it holds more than its manifest lists")


@dataclass(slots=True)
class _Merged:
    """Collect the merged caches and the totals over all of them."""

    num_new: int = 0
    num_kept: int = 0
    new_bytes: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _relocate(staged: Path, target: Path) -> None:
    """Change the paths in Triton's lists of files from `staged` to `target`, where the files will be."""
    for path, status in contents.entries(staged):
        if GROUP.fullmatch(Path(path).name) is None or status.st_size > LARGEST_GROUP_BYTES:
            continue
        try:
            found = json.loads(untrusted.read(staged / path, LARGEST_GROUP_BYTES, link=False))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and isinstance(children := found.get("child_paths"), dict):
            # All listed files lie beside the list.
            folder = (target / path).parent
            found["child_paths"] = {child: str(folder / Path(child).name) for child in children}
            (staged / path).write_text(json.dumps(found), encoding="utf-8")


def _merge(cache: CacheName, staged: Path, target: Path, merged: _Merged) -> None:
    """Move the files of `staged` into `target`, which may be in use: one by one, atomically, without
    overwriting.

    Raises CannotRunHere: `target` belongs to another user, or has a link in place of a folder.
    """
    _refuse_foreign(cache, target)
    files = list(contents.entries(staged))
    if cache == "cuda" and _keeps_its_index(staged, target):
        merged.num_kept += len(files)
        reason = f"{target} already holds one, whose index cannot be merged"
        merged.left_out.append(LeftOut(cache=cache, path="", reason=reason))
        merged.notes.append(
            f"{TITLES[cache]}: {len(files)} files were not unpacked. Empty {target} first, or name another "
            "folder with --caches."
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
    """Link a complete file to its final name; return False if that name already exists."""
    try:
        # Unlike a rename, a link never replaces an existing file.
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
    """Make the folders from `target` down to `folder`; refuse links among the folders: a link could lead
    anywhere."""
    target.mkdir(parents=True, exist_ok=True)
    at = target
    for part in folder.relative_to(target).parts:
        at /= part
        try:
            at.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(at.lstat().st_mode):
                raise CannotRunHere(
                    f"{at} in the cache is not a folder.",
                    hint="Look at what it is; empty the cache, or name another.",
                ) from None


def _refuse_foreign(cache: CacheName, target: Path) -> None:
    # Precompiled headers are in a folder with a predictable name that any user could have created first.
    for folder in (target, target.parent) if cache == "headers" else (target,):
        if not folder.exists():
            continue
        status = folder.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise CannotRunHere(f"{folder} is not a folder.", hint="Name another with --caches.")
        if os.geteuid() not in (0, status.st_uid):
            raise CannotRunHere(
                f"The cache {folder} belongs to another user, who could put other code into it.",
                hint="Name a folder of your own with --caches.",
            )


def _keeps_its_index(staged: Path, target: Path) -> bool:
    """Tell whether the existing cache must stay unchanged: the index of the CUDA driver's cache cannot be
    merged."""
    there, new = target / CUDA_INDEX, staged / CUDA_INDEX
    return there.exists() and new.exists() and untrusted.read(there) != untrusted.read(new)
