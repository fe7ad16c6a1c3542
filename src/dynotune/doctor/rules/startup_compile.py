"""The start of a compiled program: torch.compile's cache, and the number of processes that compile."""

from __future__ import annotations

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, machine_rule, rule
from dynotune.doctor.machine import unset, whole_number
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.rules.compile import compiled
from dynotune.doctor.startup_shared import severity_of_start, what_it_saves
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
USUAL_THREADS = 32
"""torch's own maximum."""


@rule(
    title="Each start in a new container compiles anew.",
    sees="in timed starts, what torch.compile leaves in its cache, and a cache folder that is not writable or does not "
    "last. In a watched program, a long time to the first step, in a container whose removal deletes the cache folder.",
    costs="the compilation time, at each start of a new container.",
    wrong_when="the folder is on a volume that lasts.",
)
def compile_cold_cache(view: ObservationView) -> Judgements:
    if view.number_or_none("start.compiler_added_bytes") is not None:
        yield from _by_timed_starts(view)
        return
    compilation = compiled(view)
    if compilation is None or not compilation.num_graphs or view.fact_or_none("host.container") is None:
        return
    started_s = view.timing.time_to_first_step_s
    if started_s is None or started_s < policy.LONG_START_S:
        return
    folder = view.variable("TORCHINDUCTOR_CACHE_DIR")
    if folder is not None and not folder.startswith("/tmp"):
        return
    yield Judgement(
        severity="low",
        kind="start",
        claim="torch.compile keeps its results in a folder of the container, which is lost with it.",
        share=Unknown("it costs time before the first step"),
        evidence=[
            f"{started_s:.0f} s to the first step, {compilation.num_graphs} graphs",
            f"TORCHINDUCTOR_CACHE_DIR: {folder or 'not set: a folder in /tmp'}",
            view.mentions("host.container"),
        ],
        remedy="Set TORCHINDUCTOR_CACHE_DIR (and TRITON_CACHE_DIR) to a folder on a volume that lasts.",
    )


def _by_timed_starts(view: ObservationView) -> Judgements:
    if not view.number("start.compiler_added_bytes") or view.fact_or_none("cache.inductor.off"):
        return
    writable = view.truth("cache.inductor.writable")
    lasts = writable and view.truth("cache.inductor.lasts")
    if lasts:
        return
    yield Judgement(
        severity=severity_of_start(view),
        kind="start",
        claim="torch.compile keeps its results in a folder that does not last."
        if writable
        else "torch.compile cannot keep its results: its cache folder is not writable.",
        share=Unknown("it costs time before the first step"),
        evidence=[view.mentions("cache.inductor.path"), view.mentions("cache.inductor.storage"), *what_it_saves(view)],
        remedy="Set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR to folders on a volume that lasts, or pack the "
        "caches: dynotune startup pack.",
    )


@machine_rule(
    title="torch.compile uses more processes than there are cores, or one process on many cores.",
    sees="in timed starts, how many processes inductor compiles in, if compilation takes a fifth of a cold start or "
    "more; otherwise only TORCHINDUCTOR_COMPILE_THREADS. torch's default counts cores, and no quota and no ranks.",
    costs="more processes than cores take turns; one alone compiles kernels one by one. Only the first steps are "
    "slower.",
    wrong_when="compilation must leave cores to other work, or memory is short.",
    candidates=[f"env.{THREADS}"],
)
def compile_threads(view: ObservationView) -> Judgements:
    threads = view.number_or_none("start.compile_threads") or whole_number(view.variable(THREADS))
    if threads is None or threads < 1:
        return
    if view.number_or_none("start.compile_cold_s") is not None and not _compiles_for_long(view):
        return
    cores = view.number("host.num_cores")
    ranks = whole_number(view.variable("LOCAL_WORLD_SIZE")) or 1
    fair = max(1, int(cores // ranks))
    too_many, too_few = threads > 2 * fair, threads == 1 and fair > 2 and view.variable(THREADS) is not None
    if not (too_many or too_few):
        return
    each = f" for each of {ranks} ranks" if ranks > 1 else ""
    yield Judgement(
        severity="low",
        kind="start",
        claim=f"torch.compile compiles in {threads:g} processes{each}, on {cores:g} cores."
        if too_many
        else f"torch.compile compiles in one process, on {cores:g} cores.",
        variables=[THREADS],
        evidence=[view.mentions("host.num_cores"), *what_it_saves(view)],
        candidates=unset(THREADS)
        if fair == min(cores, USUAL_THREADS) and view.variable(THREADS) is not None
        else [Setting(f"env.{THREADS}", str(min(fair, USUAL_THREADS)))],
        remedy=f"Set {THREADS} to the cores of a rank, and compare the time to the first step with cold caches.",
    )


def _compiles_for_long(view: ObservationView) -> bool:
    return view.number("start.compile_cold_s") >= policy.COMPILING_PART * view.number("start.cold_s")
