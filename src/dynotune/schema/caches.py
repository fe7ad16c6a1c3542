"""Compile and kernel caches: folder and size of each cache, and its growth in warming runs of a command."""

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

CacheName = Literal["cuda", "inductor", "headers", "triton", "jiterator", "packages"]

TITLES: dict[CacheName, str] = {
    "cuda": "CUDA ComputeCache",
    "inductor": "inductor",
    "headers": "inductor's precompiled headers",
    "triton": "Triton",
    "jiterator": "jiterator",
    "packages": "precompiled packages",
}

WarmEnd = Literal["warm", "nothing", "not-warm"]


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """One cache, as the environment of a command configures it.

    Args:
        path: the cache's folder, which need not exist; Unknown if nothing names a folder.
        variable: the environment variable that moves the cache; "" if none does.
        is_set: whether the environment variable `variable` is set.
        off: as text, why the program does not use this cache; "" if the program uses it.
        size_bytes, num_files: total size and number of the cache's files, without locks, temporary files and
            caches in subfolders. 0 if the folder does not exist yet.
        writable: whether the folder, or the nearest existing one above it, can be written to.
        lasts: whether files in the folder remain for later processes in a fresh container or after a restart.
        storage: as text, the kind of storage of the folder, and why files there last or not.
        limit_bytes: the largest size that the cache may reach; None without a limit.
    """

    name: CacheName
    path: str | Unknown
    variable: str = ""
    is_set: bool = False
    off: str = ""
    size_bytes: int | Unknown = 0
    num_files: int | Unknown = 0
    writable: bool | Unknown = True
    lasts: bool | Unknown = True
    storage: str = ""
    limit_bytes: int | Unknown | None = None


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Change of one cache by one run.

    Args:
        num_files, size_bytes: number of new files, and total growth of all files.
        num_removed: number of files that disappeared, for instance because a full cache deletes old files.
        kinds: subfolders of the cache with most of the growth, such as `fxgraph`.
    """

    name: CacheName
    num_files: int
    size_bytes: int
    num_removed: int = 0
    kinds: list[str] = []


class WarmRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command.

    Args:
        time_to_first_step_s: seconds from launch to the end of the first step, or to the output line that
            matches `--ready-pattern`; None if the run had neither.
        ended_by: as in `RunRecord`.
    """

    added: list[Growth]
    wall_s: float
    time_to_first_step_s: float | None
    ended_by: str
    folder: str

    @property
    def num_added(self) -> int:
        return sum(growth.num_files for growth in self.added)

    @property
    def added_bytes(self) -> int:
        return sum(growth.size_bytes for growth in self.added)


class Warmed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of running a command until it compiles nothing more, or as often as allowed.

    Args:
        end: `warm`: the last run added nothing; `nothing`: no run added anything and the caches were empty;
            `not-warm`: every run added something.
        why: the reasons why the caches are not warm, one line per reason.
        notes: warnings for the user.
        variables: environment variables, set by `--caches DIR`, with which the command finds these caches.
        caches: the caches after the last run.
    """

    schema: str = "dynotune.warm/1"
    command: list[str]
    end: WarmEnd
    runs: list[WarmRun]
    caches: list[Cache]
    why: list[str] = []
    notes: list[str] = []
    variables: dict[str, str] = {}
