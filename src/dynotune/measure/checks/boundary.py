"""How low the precision of a command can go: each one's speed, by a comparison, and its results, by `guard`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynotune import knobs
from dynotune.launch import new_run_folder
from dynotune.measure.checks import guard
from dynotune.measure.checks.tolerance import allowed
from dynotune.measure.comparison import protocol
from dynotune.measure.live.machine import facts_of
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.switching import mean_of
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.precision import Change, Precision, PrecisionArm
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

FILE = "precision.json"
ARMS = {
    "float32": "matmul.fp32_precision=highest",
    "tf32": "matmul.fp32_precision=high",
    "bf16": "precision.autocast=bf16",
    "fp16": "precision.autocast=fp16",
}
# The program's own autocast stays on under another one.
OF_AUTOCAST = {"float32": "precision.autocast=off"}
OWN = {"bfloat16": "bf16", "float16": "fp16"}


def boundary(
    run: RunSpec, watcher: Watcher, *, metric: str = "", budget_s: float | None = None
) -> tuple[Precision, Path]:
    """Compare each precision with the command as written; the answer, and the folder it is kept in.

    Raises CommandFailed, CannotRunHere, UsageError: the command or the machine, not a precision.
    """
    folder, facts = new_run_folder(run.base), facts_of(run)
    plan = msgspec.structs.replace(guard.PLAIN, metric=metric)

    def computed(name: str, *settings: Setting) -> guard.Readings:
        watcher.running(f"results in {name}")
        found = guard.computed(run, settings, folder / name, facts, plan=plan)
        if isinstance(found, Unknown):
            raise CannotRunHere(f"What the command computes could not be seen: {found.reason}.")
        if failed := found[0].metric_error:
            raise CommandFailed(f"{metric} failed: {failed}.", command_exit_code=1)
        return found

    def judged(name: str, setting: Setting) -> PrecisionArm:
        found = PrecisionArm(name=name, setting=setting)
        try:
            knobs.check_applies(setting, facts)
            arm = computed(name, setting)
            guard.refer(own, allowed([setting], precision).rounding, run, folder, facts)
            results, metric = guard.compared([setting], own, arm), changed(own.first[0].metric, arm[0].metric)
            found = msgspec.structs.replace(
                found,
                results=None if isinstance(results, Unknown) else results,
                peak_bytes=arm[0].peak_bytes,
                metric=None if isinstance(metric, Unknown) else metric,
                reasons=[one.reason for one in (results, metric) if isinstance(one, Unknown) and one.reason],
            )
            request = CompareRequest(run=run, candidate=[setting], budget_s=budget_s, in_process="auto")
            return msgspec.structs.replace(found, speed=protocol.compare(request, watcher))
        except DynotuneError as error:
            return msgspec.structs.replace(found, reasons=[*found.reasons, error.message])

    own = guard.Own(first=computed("as written"))
    precision = own.first[0].precision
    arms = OF_AUTOCAST if precision in OWN else {name: words for name, words in ARMS.items() if name != precision}
    answer = Precision(
        command=run.command,
        own=OWN.get(precision, precision or "float32"),
        peak_bytes=own.first[0].peak_bytes,
        metric=metric,
        arms=[judged(name, knobs.parse(words)) for name, words in arms.items()],
    )
    document.write(folder / FILE, answer)
    return answer, folder


def changed(baseline: list[float], candidate: list[float]) -> Change | Unknown:
    """Return how much an arm adds to a metric, paired over samples."""
    if not baseline or len(baseline) != len(candidate) or len(baseline) < 2:
        both = f"{len(baseline)} values, and {len(candidate)} in this precision"
        return Unknown(f"The metric has {both}: no pairs." if baseline else "")
    mean, _, reach = mean_of([mine - ours for ours, mine in zip(baseline, candidate, strict=True)])
    return Change(mean, (mean - reach, mean + reach), len(baseline))
