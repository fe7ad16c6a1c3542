"""Pack compile caches into one file: a manifest first, then the files, in standard tar and gzip formats.

The manifest has the digest of every file, so the files are first written to a temporary file, and the
manifest is then put before the files. Two concatenated gzip members form a valid gzip file. Archive members
have numbers for names, and the manifest maps numbers to paths. So the reader needs none of tar's name
extensions, which hostile archives exploit.
"""

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from dynotune import __version__
from dynotune.launch.caches import contents
from dynotune.launch.caches.contents import Place
from dynotune.launch.process import temporary_folder
from dynotune.schema import document, untrusted
from dynotune.schema.cache_pack import (
    MANIFEST_NAME,
    MOST_FILES,
    Conditions,
    LeftOut,
    Manifest,
    ManifestRoom,
    Packed,
    PackedFile,
    is_compilers,
    path_problem,
)
from dynotune.schema.caches import TITLES, CacheName
from dynotune.schema.errors import UsageError, may_fail

# A higher level makes machine code only a little smaller, and gzip takes most of the time.
COMPRESSION = 3
IN_MEMORY_BYTES = 16 << 20
TRIES = 3
LARGE_HEADERS_BYTES = 200 << 20


def pack(
    target: Path,
    places: Sequence[Place],
    conditions: Conditions,
    *,
    command: Sequence[str] = (),
    env: Mapping[str, str],
    without: Collection[CacheName] = (),
    packages: Sequence[Path] = (),
) -> Packed:
    """Write to `target` the files of the caches and the conditions that the files depend on, all or nothing.

    If another process writes a file meanwhile, the pack has a consistent state of the file or leaves it out.
    Locks, temporary files, links and special files are not packed.

    Args:
        env: environment of the command; some variables decide what is compiled.
        packages: files that the program loads itself, such as those of AOTInductor.

    Raises:
        UsageError: the caches have no files to pack or too many, `target` is a folder, a package, or lies in
            a cache, or two packages have one name.
        CannotRunHere: the disk is full, or `target` cannot be written; no partial file remains.
    """
    _refuse_target(target, places)
    _refuse_packages(packages, target)
    kept = [place for place in places if place.name not in without and isinstance(place.path, Path)]
    head = Manifest(
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        dynotune=__version__,
        command=list(command),
        conditions=conditions,
        folders={place.name: str(place.path) for place in kept},
        variables={
            name: value for name, value in sorted(env.items()) if is_compilers(name) and value.isprintable()
        },
    )
    # Copying hundreds of thousands of files takes minutes, and counting them seconds.
    _refuse_many(_sources(kept, places, packages), ManifestRoom(head))
    left_out: list[LeftOut] = []
    hint = (
        f"Free some space there, or name a file elsewhere; {TITLES['headers']} can stay out: --without "
        "headers."
    )
    with (
        may_fail(f"write {target}", hint, left="Nothing of it is left."),
        temporary_folder(target.absolute().parent) as folder,
    ):
        body, whole = folder / "body", folder / "whole"
        whole.touch(0o600)
        with body.open("wb") as file:
            room = ManifestRoom(head)
            files = _write_files(file, _sources(kept, places, packages), left_out, room, folder=folder)
        if not files:
            raise _nothing(kept, left_out)
        packed_from = {file.cache for file in files}
        folders = {name: path for name, path in head.folders.items() if name in packed_from}
        manifest = msgspec.structs.replace(head, folders=folders, files=files)
        digest = _join(manifest, body, whole)
        size_bytes = whole.stat().st_size
        whole.replace(target)
    return Packed(
        file=str(target),
        size_bytes=size_bytes,
        sha256=digest,
        manifest=manifest,
        left_out=left_out,
        notes=_notes(manifest),
    )


def _sources(
    kept: Sequence[Place], places: Sequence[Place], packages: Sequence[Path]
) -> Iterator[tuple[CacheName, Path, str]]:
    """Yield cache, file and path in the cache of each file to pack."""
    for place in kept:
        assert isinstance(place.path, Path)
        for path, _ in contents.entries(place.path, contents.inner(place, places)):
            yield place.name, place.path / path, path
    for package in packages:
        yield "packages", package.resolve(), package.name


def _refuse_many(sources: Iterable[tuple[CacheName, Path, str]], room: ManifestRoom) -> None:
    num_files = Counter[CacheName]()
    has_room = True
    for cache, _, path in sources:
        if not _path_problem(path):
            num_files[cache] += 1
            has_room = has_room and room.add(path)
    if not has_room:
        counted = ", ".join(f"{TITLES[cache]} {num:,}" for cache, num in num_files.most_common())
        raise UsageError(
            f"The caches have {num_files.total():,} files ({counted}), and a pack has room for "
            f"{room.num_files:,} of them, at most {MOST_FILES:,}. Nothing was packed.",
            hint="Leave a cache out with --without, or fill new caches with what this command needs alone: "
            "dynotune startup warm --caches DIR -- COMMAND",
        )


def _path_problem(path: str) -> str:
    return path_problem(path) if path.isprintable() else "has characters that are not printable"


def member_name(number: int) -> str:
    """Name the file `number` (from 0) in the archive."""
    return f"files/{number:07}"


def _write_files(
    file: IO[bytes],
    sources: Iterable[tuple[CacheName, Path, str]],
    left_out: list[LeftOut],
    room: ManifestRoom,
    *,
    folder: Path,
) -> list[PackedFile]:
    """Write all files of the caches as tar members into one gzip member; return a description of each
    file."""
    files: list[PackedFile] = []
    with (
        _compressed(file) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for cache, source, path in sources:
            problem = _path_problem(path)
            if not problem and not room.add(path):
                problem = f"it came while the pack was written, which has room for {room.num_files:,} files"
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=str(folder)) as spool:
                found = problem or _copy(source, spool)
                if isinstance(found, str):
                    left_out.append(LeftOut(cache=cache, path=path, reason=found))
                    continue
                size_bytes, digest = found
                archive.addfile(_member(member_name(len(files)), size_bytes), spool)
            # The archive remembers all members, which no writer of a stream needs.
            archive.members.clear()  # type: ignore[attr-defined]
            files.append(PackedFile(cache=cache, path=path, size_bytes=size_bytes, sha256=digest))
    return files


def _copy(path: Path, spool: IO[bytes]) -> tuple[int, str] | str:
    """Copy a consistent state of a file; return its size and digest, or the reason why the file was left out.

    Raises OSError: the copy of the file cannot be written.
    """
    for _ in range(TRIES):
        try:
            # Never follow a link, and never wait for the other end of a pipe.
            with untrusted.opened(path, link=False) as file:
                found = _copied(file, spool)
        except FileNotFoundError:
            return "it was gone when it was read"
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        if not isinstance(found, str):
            spool.seek(0)
            break
    return found


def _copied(file: IO[bytes], spool: IO[bytes]) -> tuple[int, str] | str:
    spool.seek(0)
    spool.truncate()
    digest = hashlib.sha256()
    before = os.fstat(file.fileno())
    while True:
        try:
            chunk = file.read(1 << 20)
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        if not chunk:
            break
        digest.update(chunk)
        spool.write(chunk)
    after, size_bytes = os.fstat(file.fileno()), spool.tell()
    if (before.st_size, before.st_mtime_ns, size_bytes) != (after.st_size, after.st_mtime_ns, after.st_size):
        return "another process was writing it"
    return size_bytes, digest.hexdigest()


def _join(manifest: Manifest, body: Path, whole: Path) -> str:
    """Write the manifest and then the files; return the digest of the complete pack."""
    text = document.encode(manifest, indent=0)
    with whole.open("wb") as file:
        with _compressed(file) as stream:
            # The tar continues in the next gzip member, so this member has no end-of-archive marker.
            stream.write(_member(MANIFEST_NAME, len(text)).tobuf(tarfile.USTAR_FORMAT))
            stream.write(text)
            stream.write(bytes(-len(text) % tarfile.BLOCKSIZE))
        with body.open("rb") as rest:
            shutil.copyfileobj(rest, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    with whole.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compressed(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=COMPRESSION, mtime=0)


def _member(name: str, size_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size_bytes
    member.mode = 0o600
    return member


def _refuse_target(target: Path, places: Sequence[Place]) -> None:
    if not target.absolute().parent.is_dir():
        raise UsageError(
            f"There is no folder {target.absolute().parent}.", hint="Name a file in a folder that exists."
        )
    if target.is_dir():
        raise UsageError(
            f"{target} is a folder.", hint="Name the file to write: dynotune startup pack caches.pack"
        )
    for place in places:
        if isinstance(place.path, Path) and target.resolve().is_relative_to(place.path.resolve()):
            raise UsageError(
                f"{target} lies in the cache {place.path} that is to be packed.", hint="Write it elsewhere."
            )


def _refuse_packages(packages: Sequence[Path], target: Path) -> None:
    for package in packages:
        if not package.is_file():
            raise UsageError(
                f"There is no file {package}.",
                hint="Name a file that the program loads, such as one of "
                "torch._inductor.aoti_compile_and_package.",
            )
        if package.resolve() == target.resolve() or (target.exists() and package.samefile(target)):
            raise UsageError(
                f"The pack {target} would replace the package {package}.", hint="Name another file to write."
            )
    names = [package.name for package in packages]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(
            f"Two packages are called {twice}.",
            hint="Files of a pack share a folder, so each needs a name of its own.",
        )


def _nothing(kept: Sequence[Place], left_out: Sequence[LeftOut]) -> UsageError:
    looked = ", ".join(str(place.path) for place in kept) or "nowhere: all were left out"
    return UsageError(
        f"There is nothing to pack. Looked in: {looked}."
        + (
            f" {len(left_out)} files could not be taken, the first since {left_out[0].reason}."
            if left_out
            else ""
        ),
        hint="Fill the caches first: dynotune startup warm -- COMMAND. Name their folder with --caches; or "
        "give the command after --, if its environment names them.",
    )


def _notes(manifest: Manifest) -> list[str]:
    headers_bytes = sum(file.size_bytes for file in manifest.files if file.cache == "headers")
    note = (
        f"{TITLES['headers']} take {headers_bytes >> 20} MiB of it before compression; a start only "
        "checks that they exist. --without headers leaves them out: each is then compiled once more, in "
        "about ten seconds. TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0, set for `dynotune startup warm` "
        "and for every start, avoids them."
    )
    return [note] if headers_bytes > LARGE_HEADERS_BYTES else []
