"""Write the options and commands that repeat a comparison, exactly as a shell takes them."""

import re
from collections.abc import Sequence

from dynotune.schema.comparison import Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import Study
from dynotune.text import words


def again(comparison: Comparison) -> list[str]:
    """Return the words that repeat a comparison."""
    return compared(comparison, comparison.candidate_settings, comparison.run.settings)


def compared(of: Study | Comparison, candidate: Sequence[Setting], against: Sequence[Setting]) -> list[str]:
    """Return the words that compare two arms as the study or the comparison did."""
    baseline = [word for setting in against for word in ("--baseline", str(setting))]
    objective = [] if of.run.objective == "throughput" else ["--objective", of.run.objective]
    options = [*baseline, *objective, *measured_as(of)]
    return words.shell(["dynotune", "compare", *map(str, candidate), *options, "--", *of.run.command])


def measured_as(of: Study | Comparison) -> list[str]:
    """Return the options that `tune` and `compare` share."""
    run = of.run
    given = {
        "--warmup": run.warmup_steps,
        "--steps": run.window_steps,
        "--step-function": run.step_function,
        "--phase": run.phase,
        "--margin": f"{of.margin:g}" if of.margin != 0.01 else None,
        "--timeout": None if run.timeout_s is None else time_in_words(run.timeout_s),
        "--seed": run.seed or None,
        "--caches": run.caches if run.caches != "warm" else None,
        "--nice": run.nice or None,
    }
    options = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    flags = {"--no-sandbox": not run.sandbox, "--offline-trackers": run.offline_trackers}
    return options + [flag for flag, given in flags.items() if given]


def time_in_words(seconds: float) -> str:
    """Write a time as options take it: `3m`, `2.5s`."""
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    return (re.sub(r"\.?0+$", "", f"{seconds:.3f}") or "0") + "s"
