"""Lay out one table of precisions, and say how low the precision can go."""

from __future__ import annotations

from dynotune.report.blocks import Answer, Cell, Column, CommandLine, Fields, Note, On, Report, Section, Table
from dynotune.report.places import prose
from dynotune.schema.comparison import MOST_PAIRS, Comparison
from dynotune.schema.precision import Precision, PrecisionArm
from dynotune.schema.study import Guarded
from dynotune.text import words


def layout(found: Precision) -> Report:
    """Lay out the whole answer about precision."""
    known = [arm.results for arm in found.arms if arm.results is not None and arm.results.reference]
    against = (
        f"errors against {known[0].reference}, 95%"
        if known
        else "errors unknown: no run in float64 succeeded"
    )
    has_memory = found.peak_bytes is not None or any(arm.peak_bytes is not None for arm in found.arms)
    names = ("precision", "speed (95%)", "error (95%)")
    header = [
        *(Column(name, "whole") for name in names),
        *([Column("memory", "number")] if has_memory else []),
    ]
    error = f"{known[0].baseline_error:.2g}" if known else ""
    own = [f"{found.own}, as written", "1×", error]
    rows: list[list[Cell]] = [[*own, *([_memory(found.peak_bytes)] if has_memory else [])]]
    made = [arm for arm in found.arms if arm.speed is not None or arm.results is not None]
    for arm in made:
        speed = "" if arm.speed is None else _speed(arm.speed)
        memory = [_memory(arm.peak_bytes)] if has_memory else []
        rows.append([arm.name, speed, _error(arm.results), *memory])
    lines = [*map(in_words, made), *_not_made(found)]
    table = Table("", header, rows, cards=False)
    conclusion = boundary_in_words(found)
    return Report(
        kicker="dynotune precision",
        answer=Answer(large=_large(found), line=conclusion, sentence=conclusion),
        command=words.shell(found.command),
        head=[Fields([("command", words.command(found.command))], on=On.LONG)],
        use=_use(found),
        sections=[Section("Precision", [table, *(Note(prose(line)) for line in lines)], aside=against)],
        footer="dynotune precision --json FILE writes all that is shown here.",
    )


def _large(found: Precision) -> str:
    best = _best(found)
    return words.settings(best.settings, separator=" ") if best is not None else f"Stay with {found.own}"


def _best(found: Precision) -> PrecisionArm | None:
    worth = [arm for arm in found.arms if arm.is_worth_it]
    return max(worth, key=lambda arm: (arm.speed and arm.speed.speedup) or 0.0, default=None)


def _open(found: Precision) -> tuple[PrecisionArm, Comparison] | None:
    """Return the precision that may be faster though its comparison is undecided, with sound results."""
    for arm in found.arms:
        speed = arm.speed
        sound = arm.results is None or arm.results.ok
        if speed is not None and speed.verdict == "undecided" and (speed.speedup or 0.0) > 1 and sound:
            return arm, speed
    return None


def _use(found: Precision) -> list[CommandLine]:
    undecided = _open(found)
    if _best(found) is not None or undecided is None:
        return []
    settings = words.shell(map(str, undecided[0].settings))
    line = ["dynotune", "compare", *settings, "--pairs", str(MOST_PAIRS), "--", *words.shell(found.command)]
    return [CommandLine("Decide it", line)]


def in_words(arm: PrecisionArm) -> str:
    """Write a precision's result as `bf16: 1.90× faster; errors 300× larger, as expected of bf16.`"""
    results, parts = arm.results, ["speed unknown" if arm.speed is None else words.answered(arm.speed)[0]]
    if results is None or not results.reference:
        against = (
            "what rounding makes of them" if results is not None and results.ratio else "fixed tolerances"
        )
        told = "unknown" if results is None else f"{'within' if results.ok else 'beyond'} {against}"
        parts.append(f"results {told}")
    elif results.ok and results.no_worse:
        parts.append("results no worse")
    elif results.ok and results.baseline_error:
        times = results.difference / results.baseline_error
        larger = f"{words.count(times)}× larger" if times >= 1.005 else "no larger"
        parts.append(f"errors {larger}, as expected of {arm.name}")
    if results is not None and not results.ok:
        parts.append(f"do not use it here: {results.reason.rstrip('.')}")
    if arm.metric is not None:
        low, high = arm.metric.ci
        parts.append(
            f"metric {arm.metric.mean:+.2g} ({low:+.2g} to {high:+.2g}) over {arm.metric.num_samples} samples"
        )
    if arm.band is not None:
        parts.append(
            f"{'within' if arm.band.is_within else 'outside'} the band of {arm.band.num_seeds} seeds"
        )
    parts += [f"without {setting.value}" for setting in arm.settings[1:]]
    return words.plain(f"{arm.name}: {'; '.join(parts)}. {' '.join(arm.reasons)}".strip())


def _not_made(found: Precision) -> list[str]:
    """Write precisions that were not measured as `int8, fp8: torchao is not installed in the command's
    environment.`"""
    names: dict[str, list[str]] = {}
    for arm in found.arms:
        if arm.speed is None and arm.results is None:
            names.setdefault(" ".join(arm.reasons), []).append(arm.name)
    return [words.plain(f"{', '.join(of)}: {reason}") for reason, of in names.items()]


def boundary_in_words(found: Precision) -> str:
    """Say which precision to use for this command, or which one may be faster."""
    best, undecided = _best(found), _open(found)
    if best is None and undecided is None:
        return "No other precision is worth it here."
    if best is None:
        assert undecided is not None
        arm, speed = undecided
        faster = sum(pair.baseline_s > pair.candidate_s for pair in speed.pairs)
        what = "block" if speed.within else "pair"
        were = f" ({faster} of {len(speed.pairs)} {what}s were)" if speed.pairs else ""
        return f"{arm.name} may be faster{were}: more pairs decide it."
    is_proved = best.metric is not None or (best.results is not None and best.results.no_worse)
    return f"Worth it here: {words.settings(best.settings, separator=' ')}." + (
        "" if is_proved else " --metric shows whether your task tolerates its errors."
    )


def _speed(speed: Comparison) -> str:
    between = f" ({words.interval(speed.ci)})" if speed.ci is not None else ""
    return f"{words.speedup(speed)}{between}"


def _error(results: Guarded | None) -> str:
    if results is None or not results.reference:
        return words.UNKNOWN
    low, high = results.error_ci or (results.difference, results.difference)
    return f"{results.difference:.2g} ({low:.2g} to {high:.2g})"


def _memory(size: int | None) -> str:
    return "" if size is None else words.num_bytes(size)
