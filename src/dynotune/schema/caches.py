"""Compile and kernel caches: place and size of each, and what warming runs of a command added to them."""

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

CacheName = Literal["cuda", "inductor", "headers", "triton", "jiterator"]

TITLES: dict[CacheName, str] = {
    "cuda": "CUDA ComputeCache",
    "inductor": "inductor",
    "headers": "inductor's precompiled headers",
    "triton": "Triton",
    "jiterator": "jiterator",
}

WarmEnd = Literal["warm", "nothing", "not-warm"]


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """One cache, as the environment of a command configures it.

    Args:
        path: its folder, which need not exist; Unknown if nothing names a folder.
        variable: the variable that moves the cache; "" if none does.
        is_set: whether that variable is set.
        off: why the program keeps nothing in this cache, in words; "" if it keeps something.
        size_bytes, num_files: of the cache's own files, without locks, temporary files and caches below it. 0 if the
            folder does not exist yet.
        writable: whether the folder, or the nearest existing one above it, can be written to.
        lasts: whether files in the folder remain for later processes in a fresh container or after a restart.
        storage: kind of storage of the folder, in words, and why it lasts or not.
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
        num_removed: number of files that disappeared, as when a full cache drops some.
        kinds: folders below the cache with most of the growth, such as `fxgraph`.
    """

    name: CacheName
    num_files: int
    size_bytes: int
    num_removed: int = 0
    kinds: list[str] = []


class WarmRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command.

    Args:
        time_to_first_step_s: from launch to the end of the first step, or to the line that matches `--ready-pattern`;
            None if there was neither.
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
    """A command that was run until it compiled nothing more, or as often as allowed.

    Args:
        end: `warm`: the last run added nothing; `nothing`: no run added anything and the caches were empty; `not-warm`:
            every run added something.
        why: the reasons why the caches are not warm, one line each.
        notes: warnings.
        variables: variables that the command needs to find these caches; those of `--caches DIR`.
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
