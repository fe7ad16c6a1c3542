"""Write the head of a study's report: the answer in a few words, and the figures beside it."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from dynotune.report import machine
from dynotune.report.blocks import Answer
from dynotune.report.places import prose
from dynotune.report.study.rows import amount, interval_of, level, long_time
from dynotune.report.study.sides import levels, thousand_steps
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import Attempt, BaseRecipe, Estimate, Parts, Study
from dynotune.text import words

WITHOUT_ROUNDING, ROUNDING_ADDS = "Without rounding", "Rounding adds"


def headline(study: Study) -> Answer:
    """Say what was proved, that nothing was proved, or that the study is not finished."""
    confirmed = study.confirmed
    if (
        study.recipe
        and confirmed is not None
        and confirmed.verdict == "faster"
        and confirmed.speedup is not None
    ):
        gained, between = words.answered(confirmed)
        rest = f"{between} at {confirmed.confidence:.0%}, on {words.basis(confirmed)}"
        if study.base_recipe is not None:
            rest += f", on top of {_name(study.base_recipe)}"
        line = f"{gained} ({rest})"
        return Answer(large=gained, rest=rest, sentence=study.verdict, line=line, tone="good")
    if not study.finished:
        sentence = study.verdict or "Nothing is proved yet."
        return _open("Not finished", "what is known so far", sentence)
    if study.recipe:
        return _open("Unproved", "settings that were not confirmed", study.verdict)
    rest = "no setting was proved to help"
    if study.base_recipe is not None:
        rest = f"no further setting was proved to help on top of {_name(study.base_recipe)}, which stands"
    return _open("Nothing proved", rest, study.verdict or "No setting was proved to help.")


def _open(large: str, rest: str, sentence: str) -> Answer:
    # "Nothing is proved: …" says "Nothing proved" itself.
    beside = "" if sentence.partition(" ")[0] == large.partition(" ")[0] else f"{large}: "
    line = prose(f"{beside}{sentence}" if sentence else f"{large}: {rest}.")
    return Answer(large=large, rest=rest, sentence=sentence, line=line, tone="wary")


def _name(beginning: BaseRecipe) -> str:
    return words.plain(Path(beginning.file).name)


def stats(study: Study) -> Iterator[tuple[str, str]]:
    """Yield a few figures with their names."""
    yield from _parts(study)
    if (values := levels(study)) is not None:
        yield "Before and after", words.arrow(*(level(study, value) for value in values))
    if (thousand := thousand_steps(study)) is not None:
        before, after = (amount(study, value) for value in thousand)
        yield "1,000 steps", words.arrow(before, after)
    if study.break_even is not None:
        yield "The slower start breaks even", pays_off(study)
    if study.base_recipe is not None:
        yield "Began from", f"{study.base_recipe.file}: {' '.join(map(str, study.run.settings))}"
    num = len(study.trials)
    yield (
        "Search",
        f"{num:,} run{'' if num == 1 else 's'}, {long_time(spent_s(study))} of {long_time(study.budget_s)}",
    )
    if study.noise is not None:
        yield "Noise between runs", words.fine_share(study.noise)
    yield "Machine", machine.name_of(study.facts) or words.UNKNOWN


def _parts(study: Study) -> Iterator[tuple[str, str]]:
    """Yield what the recipe gives without its settings that round, and what those add, each with its
    settings."""
    if isinstance(study.parts, Unknown):
        yield WITHOUT_ROUNDING, f"not known: {study.parts.reason}"
    if not isinstance(study.parts, Parts):
        return
    rounding = {candidate.setting for candidate in study.candidates if candidate.rounds}
    recipe = study.recipe or []
    exact, rest = ([one for one in recipe if (one in rounding) == rounds] for rounds in (False, True))
    yield WITHOUT_ROUNDING, _gained_by(exact, study.parts.exact)
    yield ROUNDING_ADDS, _gained_by(rest, study.parts.rounding)


def _gained_by(settings: Sequence[Setting], estimate: Estimate) -> str:
    """Write `1.12× (1.10× to 1.14×; 6 blocks within one process), by loader.num_workers=4`."""
    by = words.settings(settings, separator=", ")
    ci = interval_of(estimate)
    where = " within one process" if estimate.phase == "switch" else " of fresh runs"
    between = f"{words.interval(ci)}; " if ci is not None else ""
    gained = words.times(estimate.speedup, digits=words.digits(ci))
    return f"{gained} ({between}{estimate.num_blocks} blocks{where}), by {by}"


def spent_s(study: Study) -> float:
    """Return the seconds of all attempts so far, without the pauses between attempts."""
    sat_s = math.fsum(_sat_s(attempt) for attempt in study.attempts)
    return max([sat_s, *(trial.began_s + trial.wall_s for trial in study.trials)])


def _sat_s(attempt: Attempt) -> float:
    try:
        ended, began = map(datetime.fromisoformat, (attempt.ended, attempt.began))
        return max(0.0, (ended - began).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def pays_off(study: Study) -> str:
    """Return the number of steps after which a recipe with a slower start has saved the time that its start
    lost."""
    if study.break_even is None:
        return words.UNKNOWN
    later_s = study.break_even.start_s - study.break_even.baseline_start_s
    if later_s <= 0:
        return "at once: the start is not slower"
    if study.break_even.after_steps is None:
        return f"never: it starts {words.duration(later_s)} later"
    steps = study.break_even.after_steps
    return f"after {steps:,} step{'' if steps == 1 else 's'} ({words.duration(later_s)} later)"
