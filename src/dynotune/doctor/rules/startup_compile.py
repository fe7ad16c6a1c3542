"""The start of a compiled program: what torch.compile keeps, where, and how many processes compile."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.machine import known, known_number, place_of, told, unset, whole_number
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.doctor.registry import rule
from dynotune.doctor.startup_shared import severity_of_start, what_it_saves
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
USUAL_THREADS = 32
"""That torch takes at most by itself."""


@rule("program")
def compile_cold_cache(seen: Seen) -> Iterator[Finding]:
    """Each start in a container compiles anew.

    Sees: of starts that were timed, what torch.compile leaves in its cache, and that the folder which the command has
    for it cannot be written or does not last; of a watched program, a long way to its first step, in a container, with
    the cache in a folder that goes with it.

    Costs: the time that compiling takes, at each start of a new container.

    Wrong when: the folder is on a volume that stays.
    """
    if known_number(seen, "start.compiler_added_bytes") is not None:
        yield from _by_timed_starts(seen)
        return
    compilation = seen.process.compilation
    if isinstance(compilation, Unknown):
        if any(model.compiled for model in seen.models) or "not used" not in compilation.reason:
            raise Missing("what torch.compile did", compilation.reason)
        return
    if not compilation.num_graphs or known(seen, "host.container") is None:
        return
    started_s = seen.timing.time_to_first_step_s
    if started_s is None or started_s < policy.LONG_START_S:
        return
    folder = seen.variable("TORCHINDUCTOR_CACHE_DIR")
    if folder is not None and not folder.startswith("/tmp"):
        return
    yield Finding(
        id="compile-cold-cache",
        severity="low",
        kind="start",
        claim="What torch.compile makes is kept in a folder of the container, and goes with it.",
        share=Unknown("it costs time before the first step"),
        evidence=[
            f"{started_s:.0f} s to the first step, {compilation.num_graphs} graphs",
            f"TORCHINDUCTOR_CACHE_DIR: {folder or 'not set: a folder in /tmp'}",
            seen.mentions("host.container"),
        ],
        remedy="Set TORCHINDUCTOR_CACHE_DIR (and TRITON_CACHE_DIR) to a folder on a volume that stays.",
    )


def _by_timed_starts(seen: Seen) -> Iterator[Finding]:
    if not seen.number("start.compiler_added_bytes") or known(seen, "cache.inductor.off"):
        return
    writable = seen.truth("cache.inductor.writable")
    lasts = writable and seen.truth("cache.inductor.lasts")
    if lasts:
        return
    yield Finding(
        id="compile-cold-cache",
        severity=severity_of_start(seen),
        kind="start",
        claim="What torch.compile makes is kept in a folder that does not last."
        if writable
        else "What torch.compile makes cannot be kept: the folder of its cache cannot be written.",
        share=Unknown("it costs time before the first step"),
        evidence=[seen.mentions("cache.inductor.path"), seen.mentions("cache.inductor.storage"), *what_it_saves(seen)],
        remedy="Set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR to folders on a volume that stays, or bring the "
        "caches along: dynotune startup pack.",
    )


@rule("machine")
def compile_threads(seen: Seen) -> Iterator[Finding]:
    """torch.compile compiles in more processes than there are cores, or in one although there are many.

    Sees: of starts that were timed, how many processes inductor compiles in, where compiling is a fifth of a cold start
    or more; otherwise TORCHINDUCTOR_COMPILE_THREADS alone. torch takes one for each core that it may run on, at most
    32; it does not ask for a container's quota, nor how many ranks there are on the host.

    Costs: more processes than cores take turns and each holds its own torch; one alone compiles kernels one after
    another. The first steps only.

    Wrong when: compiling must leave cores to others; or memory is short.
    """
    threads = known_number(seen, "start.compile_threads") or whole_number(seen.variable(THREADS))
    if threads is None or threads < 1:
        return
    if known_number(seen, "start.compile_cold_s") is not None and not _compiles_for_long(seen):
        return
    cores = seen.number("host.num_cores")
    ranks = whole_number(seen.variable("LOCAL_WORLD_SIZE")) or 1
    fair = max(1, int(cores // ranks))
    too_many, too_few = threads > 2 * fair, threads == 1 and fair > 2 and seen.variable(THREADS) is not None
    if not (too_many or too_few):
        return
    each = f" for each of {ranks} ranks" if ranks > 1 else ""
    yield Finding(
        id="compile-threads",
        severity="low",
        kind="start",
        claim=f"torch.compile compiles in {threads:g} processes{each}, on {cores:g} cores."
        if too_many
        else f"torch.compile compiles in one process, on {cores:g} cores.",
        share=0.0,
        evidence=[*told(seen, THREADS), seen.mentions("host.num_cores"), *what_it_saves(seen)],
        where=place_of(seen, THREADS),
        candidates=unset(THREADS)
        if fair == min(cores, USUAL_THREADS) and seen.variable(THREADS) is not None
        else [Setting(f"env.{THREADS}", str(min(fair, USUAL_THREADS)))],
        remedy=f"Set {THREADS} to the cores of a rank; compare it by the time to the first step, with cold caches.",
    )


def _compiles_for_long(seen: Seen) -> bool:
    return seen.number("start.compile_cold_s") >= policy.COMPILING_PART * seen.number("start.cold_s")
