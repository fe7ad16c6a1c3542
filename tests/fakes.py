"""Stand-ins for the clock, the launcher's runs and the person who watches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from dynotune import probe
from dynotune.launch.records.record import COMPILED, EPOCH, Record, Step
from dynotune.measure.live.outcome import Outcome
from dynotune.schema import document
from dynotune.schema.run import Process, Readback, Run, RunSpec, TimedWindow

START_S = 2.0


def spec(**fields) -> RunSpec:
    """How `train` is run in `/`, but for `fields`."""
    return RunSpec(**({"command": ["train"], "cwd": Path("/"), "base": Path("/runs")} | fields))


def of_run(type_, **fields):
    """A request or a document of `type_`; fields that are not its own are the run's."""
    own = {name: fields.pop(name) for name in list(fields) if name in type_.__struct_fields__}
    return type_(**{"run": spec(**fields), **own})


def changed(made, **fields):
    """The same request or document, but for `fields`, which may be the run's."""
    own = {name: fields.pop(name) for name in list(fields) if name in made.__struct_fields__}
    return replace(made, run=replace(made.run, **fields), **own)


def record(
    step_s, *, samples=32, epoch=None, found_after=3, rank=None, begin_s=START_S, compiled=()
) -> Record:
    """A process that made these steps, seconds each.

    Args:
        epoch: steps after which the loader is begun anew; `compiled`: numbers of those in which something was
            compiled.
    """
    steps, at_s = [], begin_s
    for index, duration_s in enumerate(step_s):
        at_s += duration_s
        begins = EPOCH if epoch and index % epoch == 0 else 0
        steps.append(Step(at_s, 0.0, samples, begins | (COMPILED if index in compiled else 0)))
    parts = [{"kind": "draw", "name": "Loader"}, {"kind": "step", "name": "SGD"}]
    found = {"parts": parts, "num_parts": 2, "kinds": ["draw", "step"]}
    cycle = {**found, "begin_s": begin_s, "num_steps": found_after}
    made = Record(Path("process-1-0.rec"), 1, 0.0, steps)
    return take(made, {"event": "cycle", **cycle}, {"event": "process", "rank": rank})


def take(made: Record, *events: dict[str, Any]) -> Record:
    """Add events to the record as the agent writes them; return the record."""
    for event in events:
        made.take(json.dumps(event).encode())
    return made


def window(*, wall_s=1.0, num_steps=100, num_samples=3200, first_step=5, begin_s=10.0) -> TimedWindow:
    return TimedWindow(
        first_step=first_step,
        num_steps=num_steps,
        begin_s=begin_s,
        end_s=begin_s + wall_s,
        num_samples=num_samples,
        wait_s=0.0,
    )


def process(timed=None, **fields) -> Process:
    fields = {"step": "draw Loader, step SGD", "num_steps": 200} | fields
    return Process(
        pid=1,
        argv=["train.py"],
        executable="python",
        python="3.11.0",
        windows=[timed] if timed else [],
        **fields,
    )


def run(*processes, name="c/001-baseline", **fields) -> Run:
    fields = {
        "purpose": "measured",
        "command": ["train"],
        "cwd": "/",
        "settings": [],
        "started_s": 0.0,
    } | fields
    return Run(id=name, processes=list(processes), **fields)


class Clock:
    """`time`, for those who only ask for `monotonic`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Runs:
    """Stands for `run_settings`: no process, times as they are given.

    Args:
        step_s: of each arm's steps; a function is asked for each run's, by its folder's name.
        instead: by folder's name, what happens instead: it may raise, or change the outcome that it is given.
    """

    def __init__(self, clock: Clock, **fields) -> None:
        self.clock = clock
        self.step_s: dict[str, float | Callable[[str], float]] = {"baseline": 0.02, "candidate": 0.01}
        self.instead: dict[str, Callable[[Outcome], Outcome]] = {}
        self.samples: int | None = 32
        self.num_steps: int | None = None
        self.readback: list[Readback] = []
        self.names: list[str] = []
        self.asked: list[SimpleNamespace] = []
        self.seen: list[int] = []
        self.__dict__.update(fields)

    def arm_of(self, run_of, settings) -> str:
        """Return the key of the settings in `step_s`."""
        return "baseline" if settings == run_of.settings else "candidate"

    def __call__(
        self, run_of, settings, *, label, folder, purpose, limit_s, warmup_steps=None, window_steps=None, **_
    ) -> Outcome:
        self.names.append(folder.name)
        self.asked.append(
            SimpleNamespace(limit_s=limit_s, warmup_steps=warmup_steps, window_steps=window_steps)
        )
        self.seen.append(len(_pairs_on_disk(folder.parent)))
        given = self.step_s[self.arm_of(run_of, settings)]
        step_s = given(folder.name) if callable(given) else given
        num_steps = self.num_steps or 200
        self.clock.now_s += START_S + step_s * (window_steps or num_steps)
        timed = None
        if window_steps:
            samples = None if self.samples is None else self.samples * window_steps
            wall_s = step_s * window_steps
            timed = window(
                wall_s=wall_s, num_steps=window_steps, num_samples=samples, first_step=warmup_steps
            )
        made = run(
            process(timed),
            name=f"{folder.parent.name}/{folder.name}",
            purpose=purpose,
            ended_by="command" if self.num_steps and purpose == "pilot" else "window",
            readback=self.readback,
        )
        outcome = Outcome(
            run=made,
            folder=folder,
            launched_s=0.0,
            records=[] if timed else [record([step_s] * num_steps, samples=self.samples)],
            warmup_steps=warmup_steps,
        )
        if folder.name in self.instead:
            outcome = self.instead[folder.name](outcome)
        document.write(folder / "run.json", outcome.run)
        return outcome


def disturbed(outcome: Outcome) -> Outcome:
    """The same run with another process on its cores."""
    cause = ["another process computes on GPU 0"]
    return replace(outcome, outside=probe.Interference(foreign=cause, void=cause))


def raises(error: BaseException) -> Callable[[Outcome], Outcome]:
    def fail(outcome: Outcome) -> Outcome:
        raise error

    return fail


class Watcher:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.pairs: list[tuple[int, int]] = []
        self.void: list[int] = []

    def say(self, text):
        self.said.append(text)

    def warn(self, text):
        self.warned.append(text)

    def begun(self, folder):
        pass

    def running(self, what, *, left_s=None):
        pass

    def running_arm(self, arm, *, pair, max_pairs, so_far="", left_s=None):
        pass

    def finished(self, pair, *, number, max_pairs, unit="sample", objective="throughput", what="pair"):
        self.pairs.append((number, max_pairs))

    def voided(self, voided):
        self.void.append(voided.pair)


def _pairs_on_disk(folder: Path) -> list:
    from dynotune.schema.comparison import Comparison

    file = folder / "comparison.json"
    return document.read(file, Comparison).pairs if file.exists() else []
