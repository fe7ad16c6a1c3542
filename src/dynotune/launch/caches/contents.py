"""Find compile and kernel caches of a command, and give each candidate its own caches."""

import contextlib
import os
import pwd
import re
import shlex
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dynotune import knobs
from dynotune.probe.facts import mounts
from dynotune.schema import atomic, untrusted
from dynotune.schema.cache_pack import is_compilers
from dynotune.schema.caches import Cache, CacheName, Growth
from dynotune.schema.errors import may_fail
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import UNSET, Setting

CUDA_LARGEST_LIMIT_BYTES = 4 << 30
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"

VARIABLES: dict[str, CacheName] = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "PYTORCH_KERNEL_CACHE_PATH": "jiterator",
}
# Locks, and temporary files that are renamed once they are complete: inductor's (.PID.THREAD.tmp), Triton's
# (tmp.pid_…), filelock's, the jiterator's (KEY_tmp_PID), torch's own (.tmp). Folders: theirs, tempfile's, our
# packs'.
_PASSING = re.compile(r".*\.lock|lock|.*\.tmp|.*\.partial|tmp\.pid_.*|\.nfs.*|.*_tmp_\d+|\.dynotune-.*")
_PASSING_FOLDERS = re.compile(
    r"locks|tmp\.pid_.*|\.dynotune-.*|dt-[0-9a-f]{16}|tmp[a-z0-9_]{8}|tmp\.[0-9a-f-]{36}"
)
# torch also writes this file when it caches nothing, so the file does not show that something was compiled.
_BOOKS: dict[CacheName, Collection[str]] = {"cuda": {"index"}}
NUM_KINDS = 3
PACKAGES = "packages"
"""Folder below that of `--caches` for packages that a program loads itself."""
VARIABLES_FILE = "environment.sh"
LARGEST_VARIABLES_BYTES = 1 << 20


class Place(NamedTuple):
    """A cache: its folder (which need not exist), the variable that moves the cache, and why a cache is
    off."""

    name: CacheName
    path: Path | Unknown
    variable: str = ""
    is_set: bool = False
    off: str = ""


def environment(folder: Path) -> dict[str, str]:
    """Create `folder`; return variables that put each cache below. Raises CannotRunHere: no folder can be
    created."""
    with may_fail(f"make the caches in {folder}"):
        for name in VARIABLES.values():
            (folder / name).mkdir(parents=True, exist_ok=True)
    return variables(folder)


def variables(folder: Path) -> dict[str, str]:
    """Return the same variables as `environment`, without creating any folder."""
    return {variable: str(folder / name) for variable, name in VARIABLES.items()}


def packages(folder: Path) -> Place:
    """Return the place of packages below the folder of `--caches`."""
    return Place("packages", folder / PACKAGES)


def own_environment(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that permanently put every cache of a command below `folder`.

    Variables that an earlier call wrote to the folder stay valid. In a new folder, inductor makes no
    precompiled headers unless `env` enables these, because inductor can keep headers only in the folder for
    temporary files.

    Raises CannotRunHere: as for `environment`.
    """
    before = read_variables(folder)
    is_new = before is None and next(entries(folder), None) is None
    headers = {HEADERS: "0"} if is_new and HEADERS not in env else {}
    return {**headers, **(before or {}), **environment(folder)}


def read_variables(folder: Path) -> dict[str, str] | None:
    """Read the file of `write_variables`; keep allowed variables about caches. Return None if the file is
    missing.

    The folder may come from someone else, so its file is not trusted.
    """
    try:
        words = shlex.split(
            untrusted.read(folder / VARIABLES_FILE, LARGEST_VARIABLES_BYTES).decode(
                "utf-8", "surrogateescape"
            ),
            comments=True,
        )
    except (OSError, ValueError):
        return None
    found = dict(word.split("=", 1) for word in words if "=" in word)
    allowed, _ = knobs.check_variables((name, value) for name, value in found.items() if is_compilers(name))
    return {name: value for name, value in found.items() if name in allowed or name in VARIABLES}


def write_variables(folder: Path, chosen: Mapping[str, str]) -> None:
    """Write the variables to a file in the folder, for a shell to source. Raises CannotRunHere: writing
    failed."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in chosen.items()]
    text = "# By dynotune startup: the compile caches in this folder are found with these variables.\n"
    with may_fail(f"write in {folder}", "Name another folder with --caches."):
        atomic.write(
            folder / VARIABLES_FILE, (text + "\n".join(lines) + "\n").encode(errors="surrogateescape")
        )


def named(settings: Sequence[Setting], cwd: Path) -> dict[str, Path]:
    """Return the cache folders that settings name by variables; these replace the candidate's own cache
    folders."""
    folders = {}
    for setting in settings:
        variable = setting.knob.removeprefix("env.")
        if variable in VARIABLES and setting.value != UNSET:
            folders[variable] = Path(os.path.normpath(cwd.absolute() / str(setting.value)))
    return folders


def clear(folder: Path) -> None:
    """Delete the contents of the caches. Raises CannotRunHere: some contents remain, so the caches are not
    cold."""
    may_be_gone = contextlib.suppress(FileNotFoundError)
    with may_fail(f"empty the caches in {folder}", "Measure with --caches warm."), may_be_gone:
        shutil.rmtree(folder)


Snapshot = dict[CacheName, dict[str, int]]
"""Map each cache to its files at one moment: path below the cache's folder to size in bytes."""


def sizes(env: Mapping[str, str], cwd: Path | None = None) -> list[Cache]:
    """List every cache of a command under `env` in `cwd` (default: the working folder): path, size,
    persistence.

    Other processes may write meanwhile; files that disappear during the walk are ignored.
    """
    found = places(env, cwd or Path.cwd())
    held = snapshot(found)
    return [_measured(place, held.get(place.name, {}), env) for place in found]


def snapshot(found: Sequence[Place]) -> Snapshot:
    """Return the present files of the caches at `places`, without index files."""
    held: Snapshot = {}
    for place in found:
        if isinstance(place.path, Path):
            files, books = entries(place.path, inner(place, found)), _BOOKS.get(place.name, ())
            held[place.name] = {path: status.st_size for path, status in files if path not in books}
    return held


def growth(before: Snapshot, after: Snapshot) -> list[Growth]:
    """Return the growth of each cache between two snapshots; a cache that neither gained nor lost data is
    absent.

    A changed file of unchanged size does not count as growth: a cache's index changes in this way at each
    use.
    """
    changes = []
    for name, now in after.items():
        then = before.get(name, {})
        new = {path: size - then.get(path, 0) for path, size in now.items() if size > then.get(path, -1)}
        num_removed = sum(path not in now for path in then)
        if new or num_removed:
            size = sum(new.values())
            changes.append(
                Growth(
                    name=name, num_files=len(new), size_bytes=size, num_removed=num_removed, kinds=_kinds(new)
                )
            )
    return changes


def _kinds(files: Mapping[str, int]) -> list[str]:
    """List the folders whose names show the kind of a file; two-letter names are the first letters of a
    digest."""
    heads = [path.partition("/")[0] for path in files if "/" in path]
    named = [head for head in heads if 2 < len(head) < 20]
    return sorted(set(named), key=lambda head: (-named.count(head), head))[:NUM_KINDS]


def inner(place: Place, found: Sequence[Place]) -> list[Path]:
    """List folders of other caches that lie below the folder of `place` and do not belong to `place`."""
    paths = [other.path for other in found if isinstance(other.path, Path) and other.path != place.path]
    return [path for path in paths if isinstance(place.path, Path) and path.is_relative_to(place.path)]


def entries(folder: Path, without: Collection[Path] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a cache's files as sorted (path below `folder`, status) pairs, without locks, temporary files and
    links."""
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
    """Tell whether a file of that name belongs to a cache, and is neither a lock nor a temporary file."""
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
        # Docker mounts a tmpfs with noexec by default.
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


def places(env: Mapping[str, str], cwd: Path) -> list[Place]:
    """Return the caches that a command uses when this user starts it in `cwd` under `env`.

    cuDNN's plans are not listed, because torch keeps them in memory only.

    Sources: https://docs.nvidia.com/cuda/cuda-programming-guide (CUDA_CACHE_*); torch/_inductor/runtime/
    cache_dir_utils.py and codecache.py; triton/runtime/cache.py; aten/src/ATen/native/cuda/jit_utils.cpp.
    """
    return [_cuda(env, cwd), *_inductor(env, cwd), _triton(env, cwd), _jiterator(env, cwd)]


def cuda_limit_bytes(env: Mapping[str, str]) -> int | Unknown:
    """Return the size limit of the CUDA driver's cache in bytes; a CUDA_CACHE_MAXSIZE above 4 GiB counts as 4
    GiB."""
    text = env.get("CUDA_CACHE_MAXSIZE", "").strip()
    if not text:
        return Unknown(
            "CUDA_CACHE_MAXSIZE is not set; the driver's own limit is 1 GiB, 256 MiB of older ones"
        )
    if not text.isascii() or not text.isdecimal():
        return Unknown(f"CUDA_CACHE_MAXSIZE={text} is not a number of bytes")
    return min(int(text), CUDA_LARGEST_LIMIT_BYTES)


def _cuda(env: Mapping[str, str], cwd: Path) -> Place:
    # The driver finds its cache through HOME only.
    home = env.get("HOME")
    given = env.get("CUDA_CACHE_PATH") or (f"{home}/.nv/ComputeCache" if home else None)
    off = _off(env, "CUDA_CACHE_DISABLE") or (
        "HOME is not set, so there is no folder for it" if given is None else ""
    )
    path = Unknown("HOME is not set") if given is None else _absolute(given, cwd)
    return Place("cuda", path, "CUDA_CACHE_PATH", bool(env.get("CUDA_CACHE_PATH")), off)


def _inductor(env: Mapping[str, str], cwd: Path) -> list[Place]:
    default = _temporary_folder(env, cwd) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", _user(env)))
    given = env.get("TORCHINDUCTOR_CACHE_DIR")
    off = _off(env, "TORCHINDUCTOR_FORCE_DISABLE_CACHES")
    if not off and env.get("TORCHINDUCTOR_FX_GRAPH_CACHE", "1") != "1":
        off = "TORCHINDUCTOR_FX_GRAPH_CACHE is off: graphs are compiled anew at each start"
    # These files lie in the default folder, regardless of TORCHINDUCTOR_CACHE_DIR.
    headers_off = f"{HEADERS}=0" if env.get(HEADERS, "1") != "1" else ""
    path = default if given is None else _absolute(given, cwd)
    return [
        Place("inductor", path, "TORCHINDUCTOR_CACHE_DIR", given is not None, off),
        Place("headers", default / "precompiled_headers", off=headers_off),
    ]


def _triton(env: Mapping[str, str], cwd: Path) -> Place:
    given = env.get("TRITON_CACHE_DIR", "").strip()
    home = env.get("TRITON_HOME") or env.get("HOME", _of_user("pw_dir"))
    where = given or (None if home is None else f"{home or '.'}/.triton/cache")
    path = Unknown("there is no home folder") if where is None else _absolute(where, cwd)
    return Place("triton", path, "TRITON_CACHE_DIR", bool(given), _off(env, "TRITON_ALWAYS_COMPILE"))


def _jiterator(env: Mapping[str, str], cwd: Path) -> Place:
    off = "USE_PYTORCH_KERNEL_CACHE=0" if env.get("USE_PYTORCH_KERNEL_CACHE") == "0" else ""
    name = "PYTORCH_KERNEL_CACHE_PATH"
    if name in env:
        path = _absolute(env[name], cwd)
        # torch creates the cache folder below a home folder, but not a folder named by a variable.
        return Place(
            "jiterator", path, name, True, off or ("" if path.is_dir() else f"{path} does not exist")
        )
    base = env.get("XDG_CACHE_HOME", f"{env['HOME']}/.cache" if "HOME" in env else None)
    if base is None:
        return Place(
            "jiterator",
            Unknown("HOME is not set"),
            name,
            False,
            off or "HOME is not set, so there is no folder for it",
        )
    return Place("jiterator", _absolute(base, cwd) / "torch" / "kernels", name, False, off)


def _off(env: Mapping[str, str], name: str) -> str:
    return (
        f"{name} is set" if env.get(name, "").strip().lower() not in ("", "0", "false", "off", "no") else ""
    )


def _absolute(path: str, cwd: Path) -> Path:
    return Path(os.path.normpath(cwd.absolute() / path))


def _user(env: Mapping[str, str]) -> str:
    """Return the user's name by getpass.getuser, or torch's substitute for it if getpass.getuser fails."""
    named = next((env[name] for name in ("LOGNAME", "USER", "LNAME", "USERNAME") if env.get(name)), None)
    return named or _of_user("pw_name") or f"uid_{os.getuid()}"


def _of_user(field: str) -> str | None:
    try:
        found: str = getattr(pwd.getpwuid(os.getuid()), field)
    except KeyError:
        return None
    return found


def _temporary_folder(env: Mapping[str, str], cwd: Path) -> Path:
    """Return the folder that tempfile.gettempdir would choose: the first writable candidate."""
    named = [_absolute(env[name], cwd) for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)]
    folders = [*named, Path("/tmp"), Path("/var/tmp"), Path("/usr/tmp")]
    return next(
        (folder for folder in folders if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)), cwd
    )
