"""Compile and kernel caches: where each is, how large, and what running a command until it is warm added to them."""

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
    """One cache as the environment of a command names it.

    Args:
        path: its folder, which need not exist; Unknown where nothing names one.
        variable: that moves it; empty where none does.
        is_set: that variable is set.
        off: why the program does not keep anything there, in words; empty where it does.
        size_bytes, num_files: of what counts: no lock, no temporary file, no other cache below it. 0 where there is no
            folder yet.
        writable: the folder, or the nearest one above it that exists.
        lasts: what is written there is still there for a later process in a fresh container or after a restart.
        storage: on what it lies, in words, and why it lasts or not.
        limit_bytes: the most it may grow to; None where it has none.
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
        num_files, size_bytes: new files, and what files grew by.
        num_removed: files that are gone, as a full cache drops them.
        kinds: folders below the cache in which most of it lies, such as `fxgraph`.
    """

    name: CacheName
    num_files: int
    size_bytes: int
    num_removed: int = 0
    kinds: list[str] = []


class WarmRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command.

    Args:
        time_to_first_step_s: from launch to the end of the first step, or to the line that `--ready-pattern` waits for;
            None where there was neither.
        ended_by: as of a run.
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
    """A command that was run until it compiled nothing more, or not.

    Args:
        end: `warm`: the last run added nothing; `nothing`: no run added anything and there was nothing; `not-warm`:
            every run added something.
        why: reasons, where it is not warm; a line each.
        notes: what to be wary of.
        variables: that the command needs to find these caches; those of `--caches DIR`.
        caches: after the last run.
    """

    schema: str = "dynotune.warm/1"
    command: list[str]
    end: WarmEnd
    runs: list[WarmRun]
    caches: list[Cache]
    why: list[str] = []
    notes: list[str] = []
    variables: dict[str, str] = {}
