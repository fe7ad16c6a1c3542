"""Find out how low a command's precision can go: compare the speed and check the results of each precision."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from dynotune import knobs
from dynotune.launch import new_run_folder
from dynotune.measure.checks import guard
from dynotune.measure.checks.readings import Readings
from dynotune.measure.checks.tolerance import allowed
from dynotune.measure.comparison import protocol
from dynotune.measure.live.machine import facts_of
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.switching import mean_of
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.precision import Band, Change, Precision, PrecisionArm
from dynotune.schema.run import RunSpec
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
QUANTIZED = {kind: f"{QUANTIZE}={kind}" for kind in ("int8", "int8-weights", "fp8", "fp8-weights")}
OWN = {"bfloat16": "bf16", "float16": "fp16"}
MOST_KEPT, NUM_SEEDS = 3, 3
LAST = 8
"""Number of losses at the end of a run whose mean shows the loss that training reaches."""
Settled = tuple[list[Setting], Readings, Guarded | Unknown]


def boundary(
    run: RunSpec, watcher: Watcher, *, metric: str = "", budget_s: float | None = None
) -> tuple[Precision, Path]:
    """Compare each precision with the command as written; return the answer and the folder that contains the answer.

    `budget_s`: seconds for comparisons of speed, in equal parts; later comparisons get the time that is left.

    Raises CommandFailed, CannotRunHere, UsageError: the command or the machine failed, whatever the precision.
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
    """The command as written, the results that the command computed, and the comparisons with these results."""

    def __init__(self, run: RunSpec, watcher: Watcher, metric: str, budget_s: float | None) -> None:
        self.folder = new_run_folder(run.base)
        self._runs, self._watcher, self._metric = guard.Guard(run, self.folder, facts_of(run)), watcher, metric
        began_s = time.monotonic()
        self.own = guard.Own(first=self._computed("as written"))
        self._run_s = time.monotonic() - began_s
        precision = self.own.first[0].precision
        self.arms = (OF_AUTOCAST if precision in OWN else ARMS) | QUANTIZED
        self.arms.pop(precision, None)
        self._left_s = self._share_s = budget_s
        self._seeded: list[Readings] = []

    def judged(self) -> list[PrecisionArm]:
        """Judge speed and results of each precision; for a precision that fails, return the reason."""
        asked = {name: knobs.parse(words) for name, words in self.arms.items()}
        unfit = {name: reason for name, setting in asked.items() if (reason := self._why_not(setting))}
        fit = [name for name in asked if name not in unfit]
        self._watcher.running("results in all precisions at once, where there is room")
        roundings = [allowed([asked[name]], self.own.first[0].precision).rounding for name in fit]
        self._runs.ahead(self.own, [(name, [asked[name]], {"metric": self._metric}) for name in fit], roundings)
        return [
            PrecisionArm(name=name, settings=[setting], reasons=[unfit[name]])
            if name in unfit
            else self._judged(name, setting, len(fit) - fit.index(name))
            for name, setting in asked.items()
        ]

    def _why_not(self, setting: Setting) -> str:
        try:
            knobs.check_applies(setting, self._runs.facts)
        except DynotuneError as error:
            return error.message.removeprefix(f"{setting} cannot work here: ")
        if setting.knob == QUANTIZE and self.own.first[0].what == "losses":
            return "torchao's quantization is for inference, and the command trains."
        return ""

    def _judged(self, name: str, setting: Setting, num_left: int) -> PrecisionArm:
        """Judge results first; time only precisions with right results. `num_left`: precisions that share the time."""
        found = PrecisionArm(name=name, settings=[setting])
        try:
            settings, arm, results = self._settled(name, setting)
            metric = changed(self.own.first[0].metric, arm[0].metric)
            found = msgspec.structs.replace(
                found,
                settings=settings,
                results=None if isinstance(results, Unknown) else results,
                peak_bytes=arm[0].peak_bytes,
                metric=None if isinstance(metric, Unknown) else metric,
                reasons=[one.reason for one in (results, metric) if isinstance(one, Unknown) and one.reason],
            )
            if found.results is not None and not found.results.ok:
                return found
            began_s, self._share_s = time.monotonic(), None if self._left_s is None else self._left_s / num_left
            request = CompareRequest(run=self._runs.run, candidate=settings, budget_s=self._share_s, in_process="auto")
            found = msgspec.structs.replace(found, speed=protocol.compare(request, self._watcher))
            if self._left_s is not None:
                self._left_s = max(1.0, self._left_s - (time.monotonic() - began_s))
            asks = found.is_worth_it or found.results is None
            return msgspec.structs.replace(found, band=self._band(name, settings, arm) if asks else None)
        except DynotuneError as error:
            reason = error.message.removeprefix(f"{setting} cannot work here: ")
            return msgspec.structs.replace(
                found, reasons=[*found.reasons, reason, *getattr(error, "last_lines", ())[-1:]]
            )

    def _settled(self, name: str, setting: Setting, kept: tuple[str, ...] = ()) -> Settled:
        """Leave modules out of quantization, each time the first module with wrong results, if results become right."""
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

    def _band(self, name: str, settings: Sequence[Setting], arm: Readings) -> Band | None:
        """Train under further seeds, with and without the settings, if the runs fit into one comparison's time."""
        if self.own.first[0].what != "losses" or (self._share_s is not None and self._share_s < 2 * self._run_s):
            return None
        seeds = range(1, NUM_SEEDS)
        self._seeded = self._seeded or [self._computed(f"as written, seed {seed}", seed=seed) for seed in seeds]
        others = [self._computed(f"{name}, seed {seed}", settings, seed) for seed in seeds]
        return band([self.own.first, *self._seeded], [arm, *others])

    def _computed(self, name: str, settings: Sequence[Setting] = (), seed: int = 0) -> Readings:
        self._watcher.running(f"results {name}" if name.startswith("as written") else f"results in {name}")
        run = self._runs.run
        seeded = msgspec.structs.replace(run, seed=(run.seed or 0) + seed) if seed else run
        found = msgspec.structs.replace(self._runs, run=seeded).computed(name, settings, metric=self._metric)
        if isinstance(found, Unknown):
            raise CannotRunHere(f"What the command computes could not be seen: {found.reason}.")
        if failed := found[0].metric_error:
            raise CommandFailed(f"{self._metric} failed: {failed}.", command_exit_code=1)
        return found


def band(baseline: Sequence[Readings], candidate: Sequence[Readings]) -> Band | None:
    """Return the final losses under the same seeds; None if a loss is not a number, or the seeds have no effect."""
    ends = [[one[0].losses[-LAST:] for one in side] for side in (baseline, candidate)]
    ours, mine = (
        [fmean(math.nan if loss is None else loss for loss in losses or [None]) for losses in side] for side in ends
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
