"""Format numbers and verdicts as text for people. None is written as unknown, never as zero."""

import re
from collections.abc import Callable, Sequence

from dynotune.schema.attribution import Predicted
from dynotune.schema.comparison import MOST_PAIRS, BaselineShift, BlocksAnswer, Comparison
from dynotune.schema.run import Objective
from dynotune.schema.setting import Setting
from dynotune.text.exit_codes import ending as ending
from dynotune.text.quoting import command as command
from dynotune.text.quoting import plain as plain
from dynotune.text.quoting import shell as shell

UNKNOWN = "unknown"
HOUR_S = 3600.0
# Up to this ratio a percentage is easier to read than a factor.
LARGE_RATIO = 1.1
# Ratios beyond these come from an unknown value or an error, so no digits are shown.
LARGEST_RATIO, SMALLEST_RATIO = 100.0, 0.01
# An interval from below the first to above the second decides nothing, so none of its digits is shown.
OPEN_BELOW, OPEN_ABOVE = 0.1, 10.0
TOO_WIDE = "too wide to tell anything"
# Nouns for what an arm uses, for objectives other than speed; and words for what else can be faster.
_USED: dict[Objective, str] = {"memory": "memory", "energy": "energy"}
_IN_WHAT: dict[Objective, str] = {
    "latency-p99": " at the 99th percentile",
    "call-latency-p99": " in the 99th percentile of calls",
    "time-to-first-step": " to its first step",
}
# From this fraction on, a number with three digits rounds up to one of the next unit.
ROUNDS_UP = 0.9995

# Patterns for template arguments, of torch's and NVIDIA's kernels, that name the operation; and for their
# wrappers.
_TELLING = re.compile(r"\b(?:cutlass_\w+\b(?!::)|\w+_kernel_cuda|CUDAFunctor_\w+|\w*[Ff]unctor|\w+Ops)\b")
_WRAPPERS = ("AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor")


def verdict(comparison: Comparison) -> str:
    """Write the verdict: what the comparison proved, and no more."""
    match comparison.verdict:
        case "faster" | "slower" if comparison.speedup:
            return difference(comparison.speedup, comparison.run.objective)
        case "same" if comparison.speedup is None:
            return "no effect"
        case "same":
            return f"no effect: within ±{comparison.margin * 100:g}%"
        case "undecided":
            # Turns of a new comparison: extending this one would break its error rate.
            num, turns = comparison.num_pairs_to_settle, "blocks" if comparison.within else "pairs"
            if num is None:
                return "undecided"
            if num > MOST_PAIRS:
                longer = f"it would take {num} {turns}, more than {MOST_PAIRS}; lengthen runs: --steps"
                return f"undecided: {longer}"
            return f"undecided: {num} {turns} would likely settle it"
        case None:
            return "no verdict"
        case other:
            return other


def difference(speedup: float, objective: Objective) -> str:
    """Write a proved difference in the terms of its objective: `1.42× faster`, `uses 12% less memory`.

    Args:
        speedup: the baseline's value over the candidate's, above 0; below 1 the candidate is slower.
    """
    used, in_what = _USED.get(objective), _IN_WHAT.get(objective, "")
    if used and speedup >= 1:
        return f"uses {100 * (1 - 1 / speedup):.2g}% less {used}"
    if used:
        return f"uses {_more(1 / speedup)} {used}"
    return f"{_ratio(max(speedup, 1 / speedup))} {'faster' if speedup >= 1 else 'slower'}{in_what}"


def value(number: float | None, objective: Objective, unit: str = "sample") -> str:
    """Write a run's value of an objective, with its unit; for throughput its inverse, samples per second."""
    if number is None:
        return UNKNOWN
    match objective:
        case "throughput":
            return f"{rate(1 / number)} {unit}s/s"
        case "latency-p99" | "call-latency-p99" | "time-to-first-step":
            return duration(number)
        case "memory":
            return num_bytes(number)
        case "energy":
            return f"{_threedigits(number)} J" if number >= ROUNDS_UP else f"{_threedigits(1000 * number)} mJ"


def times(ratio: float | None, *, digits: int = 2) -> str:
    """Write a ratio of times: `1.42×`; `> 100×` and `< 0.01×` beyond."""
    if ratio is None:
        return UNKNOWN
    if ratio > LARGEST_RATIO:
        return f"> {LARGEST_RATIO:g}×"
    return f"< {SMALLEST_RATIO:g}×" if ratio < SMALLEST_RATIO else f"{ratio:.{digits}f}×"


def speedup(comparison: Comparison) -> str:
    """Write the speed-up, with as many digits as the width of its interval deserves."""
    return times(comparison.speedup, digits=digits(comparison.ci))


def interval(ci: tuple[float, float] | None) -> str:
    """Write `1.38× to 1.47×`, with as many digits as its width deserves; an extreme end is written as in
    `times`."""
    return _interval(ci, lambda end: times(end, digits=digits(ci)))


def with_interval(ratio: float | None, ci: tuple[float, float] | None, *, digits: int = 3) -> str:
    """Write a ratio of times with its interval, `1.800× (1.45× to 2.22×)`; the ratio alone if no interval is
    known."""
    known = f" ({interval(ci)})" if ci is not None and all(end > 0 for end in ci) else ""
    return f"{times(ratio, digits=digits)}{known}"


def single(ratio: float) -> str:
    """Write the ratio of a single pair or block, in the direction in which `so_far` writes all of them."""
    ratio, _, slower = _above_one(ratio, None)
    return f"{times(ratio)}{slower}"


def _above_one(ratio: float, ci: tuple[float, float] | None) -> tuple[float, tuple[float, float] | None, str]:
    """Turn a ratio well below 1 round: return ratio, interval, and ` slower` if they were turned."""
    if not 0 < ratio < 1 / LARGE_RATIO or (ci is not None and not all(end > 0 for end in ci)):
        return ratio, ci, ""
    return 1 / ratio, None if ci is None else (1 / ci[1], 1 / ci[0]), " slower"


def so_far(speedup: float | None, ci: tuple[float, float] | None) -> str:
    """Write the progress, `so far 1.71× (1.22× to 2.40×)`; "" if nothing is known. A ratio well below 1 is
    written as `1.89× slower`."""
    if speedup is None:
        return ""
    speedup, ci, slower = _above_one(speedup, ci)
    known = f" ({interval(ci)})" if ci is not None else ""
    return f"so far {times(speedup, digits=digits(ci))}{slower}{known}"


def baseline_shift(shift: BaselineShift) -> str:
    """Write the time of a step of the blocks' baseline over that of the plain window: `1.004× (0.99× to
    1.02×)`."""
    return with_interval(shift.ratio, shift.ci)


def blocks_before(blocks: BlocksAnswer) -> str:
    """Write what blocks within one process said before fresh pairs, as a sentence."""
    if blocks.speedup is None:
        return "Blocks within one process said nothing before."
    known = with_interval(blocks.speedup, blocks.ci, digits=digits(blocks.ci))
    return f"Before the fresh pairs, {len(blocks.pairs)} blocks within one process said {known}."


def baseline_in_blocks(shift: BaselineShift) -> str:
    """Write how the baseline of the blocks compares with the plain window, as a sentence."""
    told = (
        f"In these blocks, a step of the baseline took {baseline_shift(shift)} as long as in the window "
        "before anything was recorded or switched."
    )
    if shift.pace == 1:
        return told
    return f"{told} The host took {times(shift.pace)} as long for the same Python code."


def basis(comparison: Comparison) -> str:
    """Write on what an answer rests: `4 fresh pairs`, `6 blocks within one process`, or both."""
    unit = "block" if comparison.within else "fresh pair"
    rests_on = f"{comparison.num_pairs} {unit}{'s' if comparison.num_pairs != 1 else ''}"
    if comparison.within:
        return f"{rests_on} within one process"
    if comparison.pooled and comparison.blocks is not None:
        return f"{rests_on} and {len(comparison.blocks.pairs)} blocks within one process"
    return rests_on


def answered(comparison: Comparison) -> tuple[str, str]:
    """Write what was found and its interval, both in one direction: `1.80× slower` with `1.45× to 2.22×`.

    A difference below a tenth is a percentage, and so are its ends. Of memory and energy: `uses 12% less
    memory` and `9.0% to 15.0%`. Undecided and equal arms have the ratio of the baseline over the candidate.
    """
    ratio, ci, objective = comparison.speedup, comparison.ci, comparison.run.objective
    if comparison.verdict not in ("faster", "slower") or not ratio:
        return verdict(comparison), interval(ci) if ci is not None else ""
    if ci is None:
        return verdict(comparison), ""
    if comparison.verdict == "slower":
        ratio, ci = 1 / ratio, (1 / ci[1], 1 / ci[0]) if all(end > 0 for end in ci) else ci
    if objective in _USED:
        ends = saved_interval(ci) if comparison.verdict == "faster" else percent_interval(ci)
        return verdict(comparison), ends
    return verdict(comparison), interval(ci) if ratio >= LARGE_RATIO else percent_interval(ci)


def arrow(before: str, after: str) -> str:
    """Write `763 → 1,760 samples/s`: a unit that both values share is written once."""
    unit = before.partition(" ")[2]
    return f"{before.removesuffix(' ' + unit) if unit and after.endswith(' ' + unit) else before} → {after}"


def share_margin(margin: float) -> str:
    """Write a share of 1 as a percentage without trailing zeros: `1%`, `2.5%`."""
    return f"{margin * 100:g}%"


def percent_interval(ci: tuple[float, float] | None) -> str:
    """Write an interval of ratios as `+0.4% to +5.9%`; an end beyond a factor of ten as `< −90%` or `>
    +900%`."""
    return _interval(ci, lambda end: _percent(end - 1, least=OPEN_BELOW - 1, most=OPEN_ABOVE - 1, sign="+"))


def saved_interval(ci: tuple[float, float] | None) -> str:
    """Write an interval of ratios as the share of the time that is saved: `−2.1% to 33.5%`; `< −900%`
    beyond."""
    return _interval(ci, saved)


def saved(ratio: float | None) -> str:
    """Write what a ratio of times saves, as a share of the time: `12.3%`, `−4.0%` if it costs."""
    if ratio is None or not ratio > 0:
        return UNKNOWN
    return _percent(1 - 1 / ratio, least=1 - 1 / OPEN_BELOW, most=1.0)


def says_nothing(ci: tuple[float, float]) -> bool:
    """Tell whether an interval is so wide that the result may be ten times better or ten times worse."""
    return ci[0] < OPEN_BELOW and ci[1] > OPEN_ABOVE


def rate(per_s: float | None) -> str:
    """Write samples or steps per second, with three significant digits."""
    if per_s is None:
        return UNKNOWN
    if per_s >= 100:
        return f"{per_s:,.0f}"
    return f"{per_s:.3g}"


def hours(took_s: float) -> str:
    """Write a time, from six minutes on in hours, too: a training is bought by the hour."""
    if took_s < 0:
        return f"−{hours(-took_s)}"
    text = f"{took_s / HOUR_S:.3g} h"
    if took_s >= HOUR_S:
        return text
    return f"{duration(took_s)} ({text})" if took_s >= 0.1 * HOUR_S else duration(took_s)


def energy(joules: float) -> str:
    """Write an energy in Wh, from 10 Wh on in kWh."""
    if joules < 0:
        return f"−{energy(-joules)}"
    return f"{joules / 3.6e6:.3g} kWh" if joules >= 3.6e4 else f"{joules / HOUR_S:.3g} Wh"


def duration(seconds: float | None, *, column: bool = False) -> str:
    """Write seconds, milliseconds or microseconds, with three significant digits; minutes from two minutes
    on.

    Args:
        column: keep trailing zeros, for numbers that stand below each other.
    """
    if seconds is None:
        return UNKNOWN
    if seconds >= 120:
        return f"{seconds / 60:.3g} min"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * ROUNDS_UP:
            return f"{_threedigits(seconds / size, zeros=column)} {unit}"
    return f"{_threedigits(seconds * 1e6, zeros=column)} µs"


def clock(seconds: float) -> str:
    """Write whole seconds as a clock shows them: `2:05`, or `1:02:05`."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def change(seconds: float | None, *, column: bool = False) -> str:
    """Write a difference of times, with its sign: `+8.1 ms`, `−350 µs`; `column` as for `duration`."""
    if not seconds:
        return duration(seconds if seconds is None else 0.0)
    return f"{'−' if seconds < 0 else '+'}{duration(abs(seconds), column=column)}"


def share(part: float | None) -> str:
    """Write a fraction (0 to 1) as a percentage."""
    return UNKNOWN if part is None else f"{part:.0%}"


def fine_share(part: float | None) -> str:
    """Write a fraction as a percentage, with tenths below 10%, so that small fractions differ and none is
    0%."""
    if not part or part >= 0.0995:
        return share(part)
    return f"{part:.1%}" if part >= 0.0005 else "< 0.1%"


def predicted(found: Predicted) -> str:
    """Write the saving that a replay of the timeline predicts for a setting, as an unproved prediction."""
    low, high = round(found.low, 2), round(found.high, 2)
    if low < 0:
        saves = f" or save up to {high:.0%}" if high > 0 else ""
        return f"predicted to cost up to {-low:.0%} of a step{saves}, not proved"
    if high <= 0:
        return "predicted to change next to nothing, not proved"
    ends = f"{high:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
    return f"predicted to save {ends} of a step, not proved"


def count(number: float | None) -> str:
    """Write a count, or an average if it is not a whole number."""
    if number is None:
        return UNKNOWN
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def bandwidth(bytes_per_s: float | None) -> str:
    """Write bytes per second in powers of 1000, as links and memories are sold."""
    if bytes_per_s is None:
        return UNKNOWN
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_per_s >= size * ROUNDS_UP:
            return f"{_threedigits(bytes_per_s / size)} {unit}/s"
    return f"{_threedigits(bytes_per_s)} B/s"


def num_bytes(size: float | None) -> str:
    """Write bytes in powers of 1024."""
    if size is None:
        return UNKNOWN
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    for unit, power in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= power:
            return f"{_threedigits(size / power)} {unit}"
    return f"{size:.0f} B"


def settings(chosen: Sequence[Setting], *, separator: str = "\n") -> str:
    """Write the settings of an arm; an arm without any is the command as it is."""
    return separator.join(plain(str(setting)) for setting in chosen) or "as it is"


def _threedigits(number: float, *, zeros: bool = False) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:#.3g}" if zeros and number else f"{number:.3g}"


def digits(ci: tuple[float, float] | None) -> int:
    """Return the number of decimals for a ratio with this interval."""
    return 3 if ci is not None and ci[1] - ci[0] < 0.05 else 2


def _interval(ci: tuple[float, float] | None, said: Callable[[float], str]) -> str:
    if ci is None or not all(end > 0 for end in ci):
        return UNKNOWN
    if says_nothing(ci):
        return TOO_WIDE
    return " to ".join(map(said, ci))


def _percent(share: float, *, least: float, most: float, sign: str = "") -> str:
    beyond = "< " if share < least else "> " if share > most else ""
    share = min(max(share, least), most)
    return beyond + f"{share:{sign}{',.0%' if beyond else ',.1%'}}".replace("-", "−")


def _more(ratio: float) -> str:
    """Write how much more memory or energy is used, for a ratio above 1."""
    return f"{ratio:.2f} times the" if ratio >= 2 else f"{100 * (ratio - 1):.2g}% more"


def _ratio(ratio: float) -> str:
    return times(ratio) if ratio >= LARGE_RATIO else f"{(ratio - 1) * 100:.2g}%"


def short_kernel_name(name: str) -> str:
    """Shorten a kernel's name: no return type, parameters or namespaces, and only distinctive template
    arguments.

    >>> short_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)")
    'vectorized_elementwise_kernel<FillFunctor>'
    """  # noqa: E501
    depth, kept = 0, []
    name = name[:2000]
    for character in name.replace("(anonymous namespace)::", ""):
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif not depth:
            kept.append(character)
    bare = "".join(kept).strip().removeprefix("void ").rpartition("::")[2].strip()
    tells = next((found for found in _TELLING.findall(name) if found not in (*_WRAPPERS, bare)), "")
    if tells.startswith("cutlass_"):
        bare = tells
    elif tells:
        bare = f"{bare}<{tells}>"
    return bare or name
