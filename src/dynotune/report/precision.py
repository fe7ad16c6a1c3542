"""Show one table of precisions, and say how low the precision can go."""

from rich.console import Group, RenderableType

from dynotune.report.layout import spaced, table
from dynotune.report.trace_parts import prose, title
from dynotune.schema.precision import Precision, PrecisionArm
from dynotune.schema.study import Guarded
from dynotune.text import words


def precision_report(found: Precision) -> RenderableType:
    """Show the whole answer about precision."""
    known = [arm.results for arm in found.arms if arm.results is not None and arm.results.reference]
    against = (
        f"errors against {known[0].reference}, 95%"
        if known
        else "errors unknown: no run in float64 could be had"
    )
    rows = table("precision:whole", "speed (95%):whole", "error (95%):whole", "memory:number")
    error = f"{known[0].baseline_error:.2g}" if known else ""
    rows.add_row(f"{found.own}, as written", "1×", error, _memory(found.peak_bytes))
    made = [arm for arm in found.arms if arm.speed is not None or arm.results is not None]
    for arm in made:
        speed = "" if arm.speed is None else f"{words.speedup(arm.speed)} ({words.interval(arm.speed.ci)})"
        rows.add_row(arm.name, speed, _error(arm.results), _memory(arm.peak_bytes))
    lines = [*map(in_words, made), *_not_made(found), boundary_in_words(found)]
    return spaced([Group(title("Precision", against), rows), Group(*map(prose, lines))])


def in_words(arm: PrecisionArm) -> str:
    """Write a precision's result as `bf16: 1.90× faster; errors 300 times the baseline's, which its bits
    explain.`"""
    results, parts = arm.results, ["speed unknown" if arm.speed is None else words.verdict(arm.speed)]
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
        parts.append(f"errors {times:.3g} times the baseline's, which its bits explain")
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
    """Say which precision to use for this command."""
    worth = [arm for arm in found.arms if arm.is_worth_it]
    best = max(worth, key=lambda arm: (arm.speed and arm.speed.speedup) or 0.0, default=None)
    if best is None:
        return "No other precision is worth it here."
    is_proved = best.metric is not None or (best.results is not None and best.results.no_worse)
    return f"Worth it here: {words.settings(best.settings, separator=' ')}." + (
        "" if is_proved else " Whether your task stands its errors, --metric says."
    )


def _error(results: Guarded | None) -> str:
    if results is None or not results.reference:
        return words.UNKNOWN
    low, high = results.error_ci or (results.difference, results.difference)
    return f"{results.difference:.2g} ({low:.2g} to {high:.2g})"


def _memory(size: int | None) -> str:
    return "" if size is None else words.num_bytes(size)
