"""Figures of a search in words for the user."""

from collections.abc import Iterable

from dynotune.schema.facts import Unknown
from dynotune.schema.run import PERCENTILES
from dynotune.schema.study import Estimate, Study
from dynotune.text import words

TWICE = 2.0
"""From this ratio on, a factor is easier to read than a percentage."""
BUSY = 0.9
"""Share of a step from which on the device's work is all that a step consists of."""
_SAVES_TIME = ("throughput", *PERCENTILES, "time-to-first-step")


def gained(study: Study, estimate: Estimate) -> str:
    """Write `3.1% faster (95% interval +0.4% to +5.9%, 4 blocks)`."""
    unit, plural = ("switch", "es") if estimate.phase == "switch" else ("block", "s")
    num = f"{estimate.num_blocks} {unit}{plural * (estimate.num_blocks != 1)}"
    return f"{size(study, estimate.speedup)} ({interval(study, estimate.ci)}, {num})"


def size(study: Study, speedup: float) -> str:
    """Write how much faster an arm is; for memory and energy, the share by which it is better."""
    better, worse = ("faster", "slower") if study.run.objective in _SAVES_TIME else ("better", "worse")
    if not 1 / words.LARGEST_RATIO <= speedup <= words.LARGEST_RATIO:
        return f"more than {words.LARGEST_RATIO:g} times {better if speedup > 1 else worse}"
    saves_time = study.run.objective in _SAVES_TIME
    if saves_time and speedup >= TWICE:
        return f"{speedup:.3g} times as fast"
    percent = f"{abs(speedup - 1 if saves_time else 1 - 1 / speedup):,.1%}"
    return f"{percent} {better if speedup >= 1 else worse}" if percent != "0.0%" else "as good as equal"


def interval(study: Study, ci: tuple[float, float] | None) -> str:
    if ci is None:
        return "too few runs for an interval"
    if study.run.objective not in _SAVES_TIME:
        return f"95% interval {words.saved_interval(ci)}"
    is_large = ci[0] > 1 and ci[0] * ci[1] >= TWICE**2
    return f"95% interval {words.interval(ci) if is_large else words.percent_interval(ci)}"


def either(ids: list[str]) -> str:
    """Write `loader.num_workers=1 or 2`: a knob that all share is written once."""
    knob = ids[0].partition("=")[0]
    if all(id_.startswith(f"{knob}=") for id_ in ids):
        ids = [ids[0], *(id_.removeprefix(f"{knob}=") for id_ in ids[1:])]
    return ids[0] if len(ids) == 1 else f"{', '.join(ids[:-1])} or {ids[-1]}"


def names(settings: Iterable[object]) -> str:
    ids = list(map(str, settings))
    return ", ".join(ids) if len(ids) < 3 else f"{', '.join(ids[:-1])} and {ids[-1]}"


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def nothing_to_try(study: Study) -> str:
    """Explain why there is no candidate, and what would change that."""
    if not study.not_offered:
        told = "Nothing to try: no finding names a setting. --try KNOB tries one all the same."
        return f"{_busy_device(study)} {told}".lstrip()
    rounding = [str(row.setting) for row in study.not_offered if row.forbidden == "numerics"]
    if len(rounding) == len(study.not_offered):
        return f"Nothing to try: --exact leaves out {_at_most(rounding)}."
    held = f"Nothing to try; not offered: {_not_offered(study)}"
    waiting = any(row.forbidden == "semantics" for row in study.not_offered)
    if waiting:
        held += "; --allow semantics widens that"
    if rounding:
        return f"{held}. Of these, --exact leaves out {_at_most(rounding)}."
    reasons = {row.reason for row in study.not_offered}
    if not waiting:
        held += f": {reasons.pop()}" if len(reasons) == 1 else "; the report says why"
    return f"{held}."


def _busy_device(study: Study) -> str:
    """Say that the device works nearly all the time, so that only less work makes a step shorter; else ""."""
    shares = Unknown("") if isinstance(study.diagnosis, Unknown) else study.diagnosis.shares
    if isinstance(shares, Unknown) or shares.device < BUSY:
        return ""
    return f"Shorter waits gain nothing: the device works for {shares.device:.0%} of a step."


def to_try(study: Study) -> str:
    """Write how many candidates there are."""
    num, knobs = len(study.candidates), {candidate.setting.knob for candidate in study.candidates}
    left_out = f"; not offered: {_not_offered(study)}" if study.not_offered else ""
    settings = (
        "1 setting"
        if num == 1
        else f"{num} settings of {len(knobs)} {'knob' if len(knobs) == 1 else 'knobs'}"
    )
    return f"To try: {settings}{left_out}."


def _not_offered(study: Study) -> str:
    return _at_most([str(row.setting) for row in study.not_offered])


def _at_most(ids: list[str], most: int = 4) -> str:
    return names(ids if len(ids) <= most else [*ids[:most], f"{len(ids) - most} more"])
