"""Gathers an observation: machine facts, the plain run, the profiled run, and what the two say together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.diagnose.attribute import attribute
from dynotune.diagnose.observe import PlainRun, plain_run
from dynotune.diagnose.profiled import Profiled, profiled
from dynotune.measure.live.request import Watcher
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import FRESH_CACHES, Attribution, Observation, ProcessState
from dynotune.schema.run import EnvironmentChange, RunSpec
from dynotune.schema.trace_summary import TraceSummary
from dynotune.trace.summarise import summarise
from dynotune.trace.timeline import Timeline
from dynotune.trace.what_if.retimed import retimed, savings

OBSERVATION_FILE = "observation.json"
OLDEST_TORCH = (2, 4)
CACHE_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
MACHINE_S = 20.0
"""Importing the target's torch, to ask it what it was built for, takes seconds; longer if its disk is cold."""


def gather(request: RunSpec, watcher: Watcher) -> tuple[Observation, Path]:
    """Run the command twice, plain and under a profiler, and write what was observed.

    Returns:
        The observation, and the file that it stands in: it replays the diagnosis anywhere.

    Raises:
        UsageError: the settings or numbers asked for do not exist or fit together.
        CommandFailed: the command ended with an error in the plain run.
        CannotRunHere: its torch is missing or too old, it made no step, or too few.
    """
    watcher.running("looking at the machine")
    python = probe.interpreter(request.command, request.env, request.cwd)
    facts = probe.machine(request.env, python=python, cwd=request.cwd, deadline_s=MACHINE_S)
    refuse_torch(facts)
    try:
        plain = plain_run(request, watcher)
    except CommandFailed as error:
        raise _without_torch(facts, error) or error from error
    recorded = profiled(_as_soon(request, plain), watcher)
    trace = recorded if isinstance(recorded, Unknown) else recorded.summary
    observation = Observation(
        command=request.command,
        facts={**facts, **_watched(plain), **_fresh_caches(plain.processes, recorded)},
        processes=plain.processes,
        trace=trace,
        attribution=attributed(plain.processes, trace, [] if isinstance(recorded, Unknown) else recorded.timelines),
        notes=plain.notes,
    )
    path = plain.folder / OBSERVATION_FILE
    document.write(path, observation)
    return observation, path


def _as_soon(request: RunSpec, plain: PlainRun) -> RunSpec:
    """The recorded run need not find out once more when it is steady, which of slow steps takes as long as the rest."""
    if request.warmup_steps is not None or plain.calm_steps is None:
        return request
    return msgspec.structs.replace(request, warmup_steps=plain.calm_steps)


def attributed(
    processes: Sequence[ProcessState], trace: TraceSummary | Unknown, timelines: Sequence[Timeline] = ()
) -> Attribution | Unknown:
    """Where a step goes, of the first rank.

    Args:
        timelines: what the trace was summarised from, to be brought to the plain step as a whole.
    """
    if not processes:
        return Unknown("no process of the command made steps")
    timing = processes[0].timing
    if isinstance(timing, Unknown):
        return timing
    if isinstance(trace, Unknown):
        return Unknown(f"nothing was recorded: {trace.reason}")
    slowed, without = None, {}
    if timelines and trace.window_s and trace.num_steps:
        slowed = trace.window_s / trace.num_steps / timing.step_s
        brought = [retimed(timeline, timing.step_s, timing.wait_s) for timeline in timelines]
        trace = summarise([timeline for timeline, _ in brought])
        without = savings(timelines[0], timing.wait_s, brought[0][1])
    return attribute(
        timing,
        trace,
        uses_device=uses_device(processes),
        slowed=slowed,
        garbage_s=_garbage_s(processes[0]),
        without=without,
    )


def _garbage_s(process: ProcessState) -> float:
    """Of a plain step, what collecting garbage took; 0 where nobody counted it."""
    found, timing = process.collections, process.timing
    if isinstance(found, Unknown) or isinstance(timing, Unknown):
        return 0.0
    return found.total_s / timing.num_steps


def uses_device(processes: Sequence[ProcessState]) -> bool:
    """Whether a model of theirs lies on a CUDA device, or its allocator was used."""
    on_device = any(
        name.startswith("cuda") for process in processes for model in process.models for name in model.devices
    )
    return on_device or any(row.peak_allocated_bytes > 0 for process in processes for row in process.allocators)


def refuse_torch(facts: Facts) -> None:
    """Refuse a torch that is known to be too old for the agent.

    Raises:
        CannotRunHere: it is.
    """
    version = facts.get("torch.version")
    if not isinstance(version, str):
        return
    numbers = version.split("+")[0].split(".")[:2]
    if all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) < OLDEST_TORCH:
        raise CannotRunHere(
            f"The command's torch is {version}; watching it takes {'.'.join(map(str, OLDEST_TORCH))} or newer.",
            hint="dynotune doctor looks at machine and environment with any torch.",
        )


def _without_torch(facts: Facts, error: CommandFailed) -> CannotRunHere | None:
    """That there is no torch, where the command failed for want of one."""
    version = facts.get("torch.version")
    missing = any("No module named 'torch'" in line for line in error.last_lines)
    if not missing or not isinstance(version, Unknown):
        return None
    return CannotRunHere(
        f"The command failed as it has no torch: {version.reason}.",
        hint="Install torch there, or name another interpreter in the command. dynotune doctor needs none.",
    )


def _watched(plain: PlainRun) -> Facts:
    """What the samples beside the plain run's window say: `window.*`."""
    if not plain.begin_s < plain.end_s:
        return plain.facts
    return {**probe.over(plain.samples, plain.begin_s, plain.end_s), **plain.facts}


def _fresh_caches(processes: Sequence[ProcessState], recorded: Profiled | Unknown) -> Facts:
    """Variables that name a compile cache, and to which the program gave another folder in each of its two runs."""
    if isinstance(recorded, Unknown):
        return {}
    plain = [change for process in processes for change in process.environment_changes]
    first, second = _cache_folders(plain), _cache_folders(recorded.environment_changes)
    fresh = [name for name in first if name in second and not first[name] & second[name]]
    return {FRESH_CACHES: " ".join(fresh)} if fresh else {}


def _cache_folders(changes: Sequence[EnvironmentChange]) -> dict[str, set[str]]:
    """Of all processes, what the program itself set: torch derives one from the other."""
    found: dict[str, set[str]] = {}
    for change in changes:
        if change.name in CACHE_FOLDERS and change.value and not change.kept and "/torch/" not in change.file:
            found.setdefault(change.name, set()).add(change.value)
    return found


def replayed(path: Path) -> Observation:
    """An observation that was written before, with an attribution where there was none.

    Raises:
        RecordError: it cannot be read, or is no observation.
    """
    observation = document.read(path, Observation)
    known = isinstance(observation.attribution, Attribution)
    if known or isinstance(observation.processes, Unknown) or isinstance(observation.trace, Unknown):
        return observation
    found = attributed(observation.processes, observation.trace)
    return msgspec.structs.replace(observation, attribution=found)
