"""Find out how low a command's precision can go: compare the speed and check the results of each
precision."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from dynotune import knobs
from dynotune.launch import new_run_folder
from dynotune.measure.bench import protocol
from dynotune.measure.checks import guard
from dynotune.measure.checks.readings import Readings
from dynotune.measure.checks.tolerance import allowed
from dynotune.measure.live.blocks import mean_of
from dynotune.measure.live.machine import facts_of
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.reservation import machine_lock
from dynotune.measure.live.turns import Live
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.precision import Band, Change, Precision, PrecisionArm
from dynotune.schema.run import LIMIT_S, RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Guarded

FILE = "precision.json"
QUANTIZE, KEEP = "precision.quantize", "precision.quantize_keep"
ARMS = {
    "bf16": "precision.autocast=bf16",
    "fp16": "precision.autocast=fp16",
    "tf32": "matmul.fp32_precision=high",
    "float32": "matmul.fp32_precision=highest",
}
"""In the order of trying: the precision that helps most often comes first, in case time runs out."""
# Under another autocast, the program's own autocast stays on.
OF_AUTOCAST = {"float32": "precision.autocast=off"}
QUANTIZED = {str(kind): f"{QUANTIZE}={kind}" for kind in knobs.get(QUANTIZE).values}
OWN = {"bfloat16": "bf16", "float16": "fp16"}
MOST_KEPT, NUM_SEEDS = 3, 3
PATIENCE = 60.0, 10.0
"""Limit of a precision's run for results: seconds, plus a multiple of the duration of the command as
written."""
LAST = 8
"""Number of losses at the end of a run whose mean shows the loss that training reaches."""
Settled = tuple[list[Setting], Readings, Guarded | Unknown]


def boundary(
    run: RunSpec, watcher: Watcher, *, metric: str = "", budget_s: float | None = None
) -> tuple[Precision, Path]:
    """Compare each precision with the command as written; return the answer and the folder that contains the
    answer.

    `budget_s`: seconds for comparisons of speed; each comparison gets an equal part of the time that is left.

    Raises CommandFailed, CannotRunHere, UsageError: the command or the machine failed, whatever the
    precision.
    """
    program = _Program(run, watcher, metric, budget_s)
    reading = program.own.first[0]
    answer = Precision(
        command=run.command,
        own=OWN.get(reading.precision, reading.precision or "float32"),
        peak_bytes=reading.peak_bytes,
        metric=metric,
        arms=program.judged(),
    )
    document.write(program.folder / FILE, answer)
    return answer, program.folder


class _Program:
    """The command as written, the results that the command computed, and the comparisons with these
    results."""

    def __init__(self, run: RunSpec, watcher: Watcher, metric: str, budget_s: float | None) -> None:
        self.folder = new_run_folder(run.base)
        self._runs, self._watcher, self._metric = (
            guard.Guard(run, self.folder, facts_of(run)),
            watcher,
            metric,
        )
        self._left_s = self._share_s = budget_s
        began_s = time.monotonic()
        self.own = guard.Own(first=self._computed("as written"))
        self._run_s = time.monotonic() - began_s
        self._runs = replace(self._runs, patience_s=PATIENCE[0] + PATIENCE[1] * self._run_s)
        precision = self.own.first[0].precision
        self.arms = (OF_AUTOCAST if precision in OWN else ARMS) | QUANTIZED
        self.arms.pop(precision, None)
        self._seeded: list[Readings] = []
        self._readings: dict[str, Readings] = {}

    def judged(self) -> list[PrecisionArm]:
        """Judge speed and results of each precision; for a precision that fails, return the reason.

        Results come first: only precisions with right results are timed, all within one live run.
        """
        asked = {name: knobs.parse(words) for name, words in self.arms.items()}
        found = {name: PrecisionArm(name=name, settings=[setting]) for name, setting in asked.items()}
        unfit = {name: reason for name, setting in asked.items() if (reason := self._why_not(setting))}
        found |= {name: replace(found[name], reasons=[reason]) for name, reason in unfit.items()}
        fit = [name for name in asked if name not in unfit]
        what = "results in all precisions at once, where there is room"
        self._watcher.running(what, left_s=self._left_s)
        roundings = [allowed([asked[name]], self.own.first[0].precision).rounding for name in fit]
        self._runs.ahead(
            self.own, [(name, [asked[name]], {"metric": self._metric}) for name in fit], roundings
        )
        found |= {name: self._tried(found[name], self._results) for name in fit}
        wrong = {name for name, arm in found.items() if arm.results is not None and not arm.results.ok}
        timed = [name for name in fit if name in self._readings and name not in wrong]
        if timed:
            self._share_s = None if self._left_s is None else self._left_s / len(timed)
            self._time(timed, found)
        found |= {name: self._tried(found[name], self._with_band) for name in timed}
        return [found[name] for name in asked]

    def _time(self, names: Sequence[str], found: dict[str, PrecisionArm]) -> None:
        """Compare the speed of the named precisions, each in an equal part of the time that is left."""
        run = self._runs.run
        limit_s = run.timeout_s or (len(names) * LIMIT_S if self._left_s is None else self._left_s)
        live = Live(run, self.folder, self._runs.facts, self._watcher, limit_s=limit_s)
        with machine_lock(run, self._watcher), live:
            for num_done, name in enumerate(names):
                share_s = None if self._left_s is None else self._left_s / (len(names) - num_done)
                found[name] = self._tried(found[name], partial(self._timed, live, share_s))

    def _tried(self, found: PrecisionArm, work: Callable[[PrecisionArm], PrecisionArm]) -> PrecisionArm:
        """Return what `work` adds to a precision, or the precision with the reason why `work` failed."""
        try:
            return work(found)
        except DynotuneError as error:
            reason = f"{error.why}." if isinstance(error, knobs.DoesNotApply) else error.message
            return replace(found, reasons=[*found.reasons, reason, *getattr(error, "last_lines", ())[-1:]])

    def _why_not(self, setting: Setting) -> str:
        try:
            knobs.check_applies(setting, self._runs.facts)
        except knobs.DoesNotApply as error:
            return f"{error.why}."
        if setting.knob == QUANTIZE and self.own.first[0].what == "losses":
            return "torchao's quantization is for inference, and the command trains."
        return ""

    def _results(self, found: PrecisionArm) -> PrecisionArm:
        settings, arm, results = self._settled(found.name, found.settings[0])
        self._readings[found.name] = arm
        metric = changed(self.own.first[0].metric, arm[0].metric)
        return replace(
            found,
            settings=settings,
            results=None if isinstance(results, Unknown) else results,
            peak_bytes=arm[0].peak_bytes,
            metric=None if isinstance(metric, Unknown) else metric,
            reasons=[one.reason for one in (results, metric) if isinstance(one, Unknown) and one.reason],
        )

    def _timed(self, live: Live, share_s: float | None, found: PrecisionArm) -> PrecisionArm:
        began_s, run = time.monotonic(), replace(self._runs.run, lock=False)
        request = CompareRequest(run=run, candidate=found.settings, budget_s=share_s, in_process="auto")
        try:
            return replace(found, speed=protocol.compare(request, self._watcher, live=live))
        finally:
            if self._left_s is not None:
                self._left_s = max(1.0, self._left_s - (time.monotonic() - began_s))

    def _with_band(self, found: PrecisionArm) -> PrecisionArm:
        asks = found.is_worth_it or (found.results is None and found.speed is not None)
        return replace(found, band=self._band(found.name, found.settings) if asks else None)

    def _settled(self, name: str, setting: Setting, kept: tuple[str, ...] = ()) -> Settled:
        """Leave modules out of quantization, each time the first module with wrong results, if results become
        right."""
        settings = [setting, *([Setting(KEEP, ",".join(kept))] if kept else [])]
        label = f"{name} without {len(kept)}" if kept else name
        arm = self._computed(label, settings)
        results = self._runs.judged(settings, self.own, arm, label)
        module = results.module if isinstance(results, Guarded) and setting.knob == QUANTIZE else ""
        if module and module not in kept and len(kept) < MOST_KEPT:
            fewer = self._settled(name, setting, (*kept, module))
            if isinstance(fewer[2], Guarded) and fewer[2].ok:
                return fewer
        return settings, arm, results

    def _band(self, name: str, settings: Sequence[Setting]) -> Band | None:
        """Train under further seeds, with and without the settings, if the runs fit into one comparison's
        time."""
        if self.own.first[0].what != "losses" or (
            self._share_s is not None and self._share_s < 2 * self._run_s
        ):
            return None
        seeds = range(1, NUM_SEEDS)
        self._seeded = self._seeded or [
            self._computed(f"as written, seed {seed}", seed=seed) for seed in seeds
        ]
        others = [self._computed(f"{name}, seed {seed}", settings, seed) for seed in seeds]
        return band([self.own.first, *self._seeded], [self._readings[name], *others])

    def _computed(self, name: str, settings: Sequence[Setting] = (), seed: int = 0) -> Readings:
        what = f"results in {name}" if settings else f"results {name}"
        self._watcher.running(what, left_s=self._left_s)
        run = self._runs.run
        seeded = replace(run, seed=(run.seed or 0) + seed) if seed else run
        found = replace(self._runs, run=seeded).computed(name, settings, metric=self._metric)
        if isinstance(found, Unknown):
            raise CannotRunHere(f"What the command computes could not be seen: {found.reason}.")
        if failed := found[0].metric_error:
            raise CommandFailed(f"{self._metric} failed: {failed}.", command_exit_code=1)
        return found


def band(baseline: Sequence[Readings], candidate: Sequence[Readings]) -> Band | None:
    """Return the final losses under the same seeds; None if a loss is not a number, or the seeds have no
    effect."""
    ends = [[one[0].losses[-LAST:] for one in side] for side in (baseline, candidate)]
    ours, mine = (
        [fmean(math.nan if loss is None else loss for loss in losses or [None]) for losses in side]
        for side in ends
    )
    if not all(map(math.isfinite, [*ours, *mine])) or min(ours) == max(ours):
        return None
    return Band(len(ours), (min(ours), max(ours)), fmean(mine))


def changed(baseline: list[float], candidate: list[float]) -> Change | Unknown:
    """Return by how much a candidate changes the mean of a metric, paired by sample."""
    if not baseline or len(baseline) != len(candidate) or len(baseline) < 2:
        both = f"{len(baseline)} values, and {len(candidate)} in this precision"
        return Unknown(f"The metric has {both}: no pairs." if baseline else "")
    mean, _, reach = mean_of([mine - ours for ours, mine in zip(baseline, candidate, strict=True)])
    return Change(mean, (mean - reach, mean + reach), len(baseline))
