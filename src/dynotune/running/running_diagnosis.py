"""Diagnose a program that runs already: look at it from outside, and climb as far as it and this machine
allow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.doctor import ObservationView, examine
from dynotune.running import parts, rungs, stacks, target_facts, targets, thread_states
from dynotune.running.attachments import attached
from dynotune.running.gpu_use import GpuUse
from dynotune.running.parts import Judged
from dynotune.running.rungs import Inside
from dynotune.running.targets import Target
from dynotune.running.thread_states import Activity
from dynotune.schema import redaction
from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import Observation
from dynotune.schema.running import RankView, RunningDiagnosis, Stacks

LOOK_S = 5.0


def diagnose_running(
    pid: int,
    *,
    look_s: float = LOOK_S,
    with_stacks: bool = True,
    record: bool = False,
    delays: bool = False,
    running: Callable[[str], None] = lambda _: None,
) -> RunningDiagnosis:
    """Say what holds up the program of a process, and what its environment costs.

    Args:
        pid: the program's process; a shell, a launcher or `torchrun` above it; or a worker of its loader.
        look_s: seconds of looking from outside.
        with_stacks: also read stacks, if py-spy and the right to trace are there.
        record: also have the program time and record some steps of itself, which slows them: by the agent,
            which is loaded into Python 3.14 and later, else by torch's own profiler.
        delays: also delay parts of some steps, to see which ones a step waits for; needs the agent.
        running: is told what is in progress.

    Raises:
        UsageError: the process is this dynotune.
        CannotRunHere: the process is gone, of another user, or no Python; another dynotune looks at it; the
            program ended before enough was seen; or it cannot record at all.
    """
    target = targets.find(pid)
    first = target.ranks[0].process
    for rank in target.ranks:
        if not isinstance(rank.process.environment, Unknown):
            redaction.learn(rank.process.environment, rank.process.arguments)
    with ExitStack() as stack:
        for rank in target.ranks:
            stack.enter_context(attached(rank.process))
        running(f"looking at process {first.pid} from outside")
        seen = _observe(target, look_s)
        judged = [
            parts.judge(one, _number(busy)) for one, (_, busy) in zip(seen.activities, seen.gpus, strict=True)
        ]
        found: Stacks | Unknown = Unknown("stacks were not asked for")
        if with_stacks and not seen.activities[0].ended:
            running(f"reading the stacks of process {first.pid}")
            found = stacks.read(target.ranks[0])
        inside = Inside()
        if (record or delays) and not seen.activities[0].ended:
            inside = rungs.seen_inside(target, seen.facts, running, delays=delays)
    _refuse_few_looks(pid, seen.activities, look_s)
    if not isinstance(found, Unknown):
        judged[0] = parts.with_stacks(judged[0], seen.activities[0], _number(seen.gpus[0][1]), found)
    whole = parts.job([(_rank_name(one), each) for one, each in zip(target.ranks, judged, strict=True)])
    views = [_view(*row) for row in zip(seen.activities, seen.gpus, judged, strict=True)]
    rung, reached, following = rungs.described(target, found, inside, seen.facts)
    return RunningDiagnosis(
        pid=pid,
        command=redaction.words(target.command),
        part=whole.part,
        verdict=whole.told,
        rung=rung,
        reached=reached,
        next_rung=following,
        observed_s=seen.activities[0].length_s,
        ranks=views,
        stacks=found,
        recorded=inside.recorded,
        pressure=seen.pressure,
        throttled_share=seen.throttled_share,
        findings=seen.findings,
        unknown=seen.unknown,
        facts=seen.facts,
        notes=[*target.notes, *_notes(target, seen)],
    )


def _refuse_few_looks(pid: int, activities: Sequence[Activity], look_s: float) -> None:
    if any(len(one.looks) >= parts.FEWEST_LOOKS for one in activities):
        return
    if any(one.ended for one in activities):
        raise CannotRunHere(
            f"The program of process {pid} ended while dynotune observed it.",
            hint=(
                f"It has to run for {look_s:.0f} s longer. Or start it with dynotune: dynotune diagnose -- "
                "COMMAND"
            ),
        )
    num = max(len(one.looks) for one in activities)
    raise CannotRunHere(
        f"The program of process {pid} was sampled only {num} times in {look_s:.0f} s, too rarely to say "
        "what holds it up.",
        hint="The machine is busy, or the program has very many processes. Try the id of one rank's process.",
    )


class _Seen(msgspec.Struct):
    """What was seen of the program from outside. `gpus`: of each rank, with the share of time that they
    work."""

    activities: list[Activity]
    gpus: list[tuple[list[int], float | Unknown]]
    pressure: dict[str, float]
    throttled_share: float | Unknown | None
    facts: Facts
    findings: list[Finding]
    unknown: list[NotKnown]


def _observe(target: Target, look_s: float) -> _Seen:
    """Look at threads, GPUs and control group at once, and collect the facts of the environment beside
    that."""
    first = target.ranks[0].process
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="dynotune-facts") as pool:
        asked = pool.submit(target_facts.facts, first)
        before = probe.group_load(first.pid)
        gpus = GpuUse(target)
        try:
            activities = thread_states.observe(target, look_s, threading.Event())
        finally:
            gpus.stop()
        after = probe.group_load(first.pid)
        facts = target_facts.without_own_gpu_use(asked.result(), target.pids)
    length_s = activities[0].length_s
    findings, unknown = examine(ObservationView(Observation(facts=facts)), "machine")
    return _Seen(
        activities=activities,
        gpus=[gpus.of(rank) for rank in target.ranks],
        pressure={
            name: min(1.0, max(0.0, value - before.pressure_s[name]) / length_s)
            for name, value in after.pressure_s.items()
            if name in before.pressure_s
        },
        throttled_share=_throttled(before, after, length_s),
        facts=facts,
        findings=findings,
        unknown=unknown,
    )


def _throttled(before: probe.GroupLoad, after: probe.GroupLoad, length_s: float) -> float | Unknown | None:
    if isinstance(before.throttled_s, float) and isinstance(after.throttled_s, float):
        return max(0.0, after.throttled_s - before.throttled_s) / length_s
    return after.throttled_s if isinstance(after.throttled_s, Unknown) else None


def _view(activity: Activity, gpus: tuple[list[int], float | Unknown], judged: Judged) -> RankView:
    return RankView(
        pid=activity.rank.process.pid,
        rank=activity.rank.number,
        part=judged.part,
        told=judged.told,
        evidence=list(judged.evidence),
        gpus=gpus[0],
        device_busy=gpus[1],
        processes=list(activity.processes),
    )


def _notes(target: Target, seen: _Seen) -> list[str]:
    notes = []
    first = target.ranks[0].process
    if any(activity.ended for activity in seen.activities):
        notes.append("The program ended while dynotune observed it.")
    for namespace in ("pid", "mnt"):
        if (elsewhere := target_facts.in_another(first.pid, namespace)) is not None:
            notes.append(f"{elsewhere.reason[0].upper()}{elsewhere.reason[1:]}.")
    if not first.has_torch:
        notes.append("The program has not loaded torch, so it may not train at all, or not yet.")
    mapped, imported = first.torch_file(""), seen.facts.get("torch.folder")
    if mapped is not None and isinstance(imported, str) and mapped.resolve() != Path(imported).resolve():
        notes.append(
            "The program has loaded a different torch from the one that its interpreter would load now."
        )
    if first.variable("DYNOTUNE_RUN"):
        notes.append(
            "Another dynotune already watches the program. Its run folder shows more: dynotune watch RUN_DIR"
        )
    return notes


def _rank_name(rank: targets.Rank) -> str:
    return str(rank.process.pid if rank.number is None else rank.number)


def _number(value: float | Unknown) -> float | None:
    return None if isinstance(value, Unknown) else value
