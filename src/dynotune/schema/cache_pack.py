"""A pack of compile caches: its manifest, and the result of unpacking it."""

import re
from typing import Literal

import msgspec

from dynotune.schema import document
from dynotune.schema.caches import CacheName
from dynotune.schema.errors import RecordError

MANIFEST_NAME = "manifest.json"
MOST_MANIFEST_BYTES = 128 << 20
MOST_FILES = 500_000
ENTRY_BYTES = 150
"""Most bytes that a manifest takes for a file, without those of the file's path."""
LONGEST_PATH = 1024
LONGEST_PART = 255
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VARIABLE = re.compile(
    r"(TORCHINDUCTOR|TORCH_COMPILE|TORCHDYNAMO|TRITON|ATEN|AOT_INDUCTOR)_[A-Z0-9_]+|TORCH_CACHING_PRECOMPILE"
    r"|CXX|CUTEDSL_ENABLE_AUTOTUNING|CUTLASS_EPILOGUE_FUSION"
    r"|ENABLE_(PERSISTENT_TMA_MATMUL|TEMPLATE_TMA_STORE|TMA_LOAD_FOR_TEMPLATE_EPILOGUE)"
)
_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"}
"""Environment variables that locate a cache; when unpacking, the user decides on the cache's location."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on which compiled code and its cache keys depend. None: not known.

    Args:
        gpus: `NAME (compute capability)` of the GPUs that the command sees, without repeats, sorted; may be
            empty.
        driver: version of the GPU's driver; "" without one.
        cuda: CUDA version with which torch was built; "" for a build without CUDA.
        python: such as `3.12`; Python's minor version decides the file names and the ABI of extensions.
        platform: operating system and processor, such as `Linux x86_64`.
        cpu_flags: instruction sets that a compiler may use under -march=native, sorted.
        compiler: first line of `g++ --version`; "" without a compiler.
        torch_folder, python_include: folders in the compiler's command line, which is in inductor's key of
            C++ kernels.
    """

    gpus: list[str] | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    triton: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cpu_flags: list[str] | None = None
    compiler: str | None = None
    torch_folder: str | None = None
    python_include: str | None = None


class PackedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a cache: `path` is relative to the cache's folder, with `/`; `sha256` of its content."""

    cache: CacheName
    path: str
    size_bytes: int
    sha256: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not packed or not unpacked, and why."""

    cache: CacheName
    path: str
    reason: str


class PackOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack's caches depend on: document `pack.json` beside unpacked caches.

    Args:
        has_cpp: whether the caches have C++ kernels or headers, whose keys depend on processor and compiler.
            Packages have such kernels, too, but no keys.
        variables: as in `Manifest`.
    """

    schema: str = "dynotune.pack-origin/1"
    created: str
    caches: list[CacheName]
    has_cpp: bool
    conditions: Conditions
    variables: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Manifest of a pack: the first file in the pack; the other files follow in the order of `files`.

    Args:
        created: UTC, ISO 8601.
        command: the command whose environment located the caches; may be empty.
        variables: environment variables that were set and decide what is compiled, without variables that
            name folders.
    """

    schema: str = "dynotune.cache-pack/1"
    created: str
    dynotune: str
    command: list[str] = []
    conditions: Conditions
    folders: dict[CacheName, str] = {}
    variables: dict[str, str] = {}
    files: list[PackedFile] = []

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def caches(self) -> list[CacheName]:
        """Return the caches that have files in this manifest, in the order of their first file."""
        return list(dict.fromkeys(file.cache for file in self.files))

    @property
    def origin(self) -> PackOrigin:
        caches = self.caches
        return PackOrigin(
            created=self.created,
            caches=caches,
            # GPU graphs depend on the processor's instruction sets only: Triton's launchers are plain C.
            has_cpp="headers" in caches
            or any(file.cache == "inductor" and file.path.endswith(".so") for file in self.files),
            conditions=self.conditions,
            variables=self.variables,
        )


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `pack`.

    Args:
        sha256: digest of the whole pack, for `unpack --sha256`.
        left_out: files that changed while they were read, and others that were not packed.
    """

    schema: str = "dynotune.packed/1"
    file: str
    size_bytes: int
    sha256: str
    manifest: Manifest
    left_out: list[LeftOut] = []
    notes: list[str] = []


Severity = Literal["dangerous", "useless", "unknown", "harmless"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of the pack that differs on this machine.

    Args:
        severity: `dangerous`: the code could crash here, and no option overrides this; `useless`: the code
            would not be found, or would be compiled again; `unknown`: a value is not known; `harmless`: the
            pack does not depend on this.
    """

    what: str
    packed: str
    here: str
    severity: Severity
    why: str


class Unpacked(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `unpack`.

    Args:
        folders: by cache, the folder in which the cache now is.
        below: the folder of `--caches`; "" if each cache is in the folder that the environment names.
        num_new, num_kept: files that were added; files that already existed and were not changed.
        variables: environment variables that the command needs in order to find and use the caches.
    """

    schema: str = "dynotune.unpacked/1"
    file: str
    folders: dict[CacheName, str]
    below: str = ""
    num_new: int
    num_kept: int
    new_bytes: int
    differences: list[Difference] = []
    left_out: list[LeftOut] = []
    variables: dict[str, str] = {}
    notes: list[str] = []


def check(manifest: Manifest, name: str) -> None:
    """Refuse a manifest that dynotune cannot have written, before the manifest is used.

    Raises:
        RecordError: the manifest has a path outside the folder or too similar to another path, a negative
            size, no digest, or a variable of no compiler.
    """
    if len(manifest.files) > MOST_FILES:
        raise hostile(name, f"it lists {len(manifest.files):,} files")
    files, folders = set[tuple[str, str]](), set[tuple[str, str]]()
    for file in manifest.files:
        _check_path(file.path, name)
        if file.size_bytes < 0 or _DIGEST.fullmatch(file.sha256) is None:
            raise hostile(name, f"{file.path!r} has no proper size or digest")
        key = (file.cache, file.path)
        if key in files:
            raise hostile(name, f"{file.path!r} is listed twice")
        files.add(key)
        parts = file.path.split("/")
        folders.update((file.cache, "/".join(parts[:depth])) for depth in range(1, len(parts)))
    if both := files & folders:
        raise hostile(name, f"{sorted(both)[0][1]!r} is both a file and a folder")
    for variable, value in manifest.variables.items():
        if not is_compilers(variable) or not value.isprintable():
            raise hostile(name, f"{variable!r} is no variable that a pack may set")


def is_compilers(variable: str) -> bool:
    """Return whether a variable decides what a compiler makes (not in which folder), and so belongs in a
    manifest."""
    return _VARIABLE.fullmatch(variable) is not None and variable not in _FOLDERS


def path_problem(path: str) -> str:
    """Return as text why `path` cannot be in a pack; "" if `path` can be."""
    parts = path.split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "leads out of its folder"
    if not path.isprintable() or "\\" in path:
        return "has characters that are not printable"
    if len(path) > LONGEST_PATH or any(len(part.encode()) > LONGEST_PART for part in parts):
        return "is too long"
    return ""


class ManifestRoom:
    """Tell whether a manifest has room for one more file, so that no pack is written that `check` refuses.

    Args:
        head: what the manifest has beside its files, such as its conditions.
    """

    def __init__(self, head: Manifest) -> None:
        self.num_files, self.num_bytes = 0, len(document.encode(head, indent=0))

    def add(self, path: str) -> bool:
        """Count a file; return whether the manifest has room for it."""
        num_bytes = len(msgspec.json.encode(path)) + ENTRY_BYTES
        has_room = self.num_files < MOST_FILES and self.num_bytes + num_bytes <= MOST_MANIFEST_BYTES
        self.num_files, self.num_bytes = self.num_files + has_room, self.num_bytes + has_room * num_bytes
        return has_room


def _check_path(path: str, name: str) -> None:
    try:
        problem = path_problem(path)
    except UnicodeEncodeError:
        problem = "is no text"
    if problem:
        raise hostile(name, f"the path {path[:200]!r} {problem}")


def hostile(name: str, why: str) -> RecordError:
    return RecordError(
        f"{name} is not a pack that dynotune wrote: {why}. Nothing of it was used.",
        hint="Do not use it: compile caches are code that the command will run. Make a new one with "
        "dynotune startup "
        "pack.",
    )
