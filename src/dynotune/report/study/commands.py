"""Write the commands that repeat a study or a comparison, exactly as a shell takes them."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from dynotune.report.repetition import compared, measured_as, time_in_words
from dynotune.report.study.header import spent_s
from dynotune.report.study.rows import Tried, long_time, tried
from dynotune.schema.arm import arm_key
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import Study
from dynotune.text import words

RECIPE = "recipe.toml"
MORE_TIME = 5
"""Factor on the budget with which a study is suggested to go on if nothing tells how long it takes."""
SPARE = 1.25
"""Factor on the seconds that should settle what is open."""


class Command(NamedTuple):
    """A command: its kind, a short description, and its words as a shell takes them."""

    kind: Literal["resume", "more-time", "tune", "run", "prove", "compare"]
    what: str
    words: list[str]


def repeats(study: Study, *, recipe: str = RECIPE) -> list[Command]:
    """Return the commands to go on or tune again, run with the recipe, prove the recipe again, and
    compare."""
    found = []
    if not study.finished:
        resume = ["dynotune", "tune", "--resume", study.id]
        found.append(Command("resume", "Go on where it stopped", words.shell(resume)))
    found.append(Command("tune", "Tune again", words.shell(_tune(study))))
    if study.recipe:
        rest = [*_typed(study), "--", *study.run.command]
        found += [
            Command(
                "run", "Run with the recipe", words.shell(["dynotune", "run", "--recipe", recipe, *rest])
            ),
            Command(
                "prove",
                "Prove the recipe again",
                words.shell(["dynotune", "recipe", "verify", recipe, *rest]),
            ),
            Command(
                "compare",
                f"Compare the recipe with the command {study.begun}",
                _compare(study, study.recipe, []),
            ),
        ]
        # With the settings, steps are shorter, so the window needs another number of them.
        anew = replace(study, run=replace(study.run, warmup_steps=None, window_steps=None))
        found.append(Command("tune", "Go on from the recipe", words.shell(_tune(anew, recipe))))
    if study.wants_time:
        what, budget_s = "Go on with more time", MORE_TIME * study.budget_s
        if study.settles_in_s is not None:
            more_s = SPARE * study.settles_in_s
            budget_s = 60.0 * math.ceil((spent_s(study) + more_s) / 60)
            what = f"About {long_time(60 * math.ceil(more_s / 60))} more should settle it"
        more = ["dynotune", "tune", "--resume", study.id, "--budget", time_in_words(budget_s)]
        found.append(Command("more-time", what, words.shell(more)))
    return found


def _typed(study: Study) -> list[str]:
    """Return options for the recipe's variables that the user typed: a recipe alone cannot set every
    variable."""
    typed = [*study.extra, *study.values, *map(str, study.run.settings)]
    knobs = {word.partition("=")[0] for word in typed if word.startswith("env.")}
    chosen = over(study.run.settings, study.recipe or [])
    return [word for setting in chosen if setting.knob in knobs for word in _set(setting)]


def _set(setting: Setting) -> tuple[str, ...]:
    return ("--set", str(setting)) if setting.knob.startswith("env.") else ()


def compares(study: Study) -> list[Command]:
    """Return a comparison per setting: of the recipe's, the recipe without that setting; of others, it
    alone."""
    recipe = list(study.recipe or [])
    found = []
    if len(recipe) > 1:
        for setting in recipe:
            needing = {one.setting for one in study.candidates if str(setting) in one.needs}
            rest = [other for other in recipe if other != setting and other not in needing]
            found.append(
                Command("compare", f"The recipe with and without {setting}", _compare(study, recipe, rest))
            )
    rows = [row for row in tried(study) if row.kind not in ("not-tried", "open")]
    return found + [_compare_alone(study, row) for row in rows]


def _compare_alone(study: Study, row: Tried) -> Command:
    """Compare a setting that depends on another setting: both settings against the other setting alone."""
    setting = row.candidate.setting
    needed = [one.setting for one in study.candidates if one.id in row.candidate.needs]
    told = row.alone.against if row.alone is not None else ""
    beside = [one for one in needed if arm_key([one]) == told] or needed[:1]
    if not beside:
        return Command("compare", f"{setting} alone", _compare(study, [setting], []))
    return Command("compare", f"{setting} beside {beside[0]}", _compare(study, [setting, *beside], beside))


def _tune(study: Study, recipe: str = "") -> list[str]:
    options = ["--budget", time_in_words(study.budget_s)]
    if began_from := recipe or (study.base_recipe.file if study.base_recipe is not None else ""):
        typed = _typed(study) if recipe else [word for one in study.run.settings for word in _set(one)]
        options += ["--recipe", began_from, *typed]
    if study.run.objective != "throughput":
        options += ["--objective", study.run.objective]
    options += ["--exact"] * study.exact
    for option, values in (
        ("--allow", [effect for effect in study.allow if effect != "numerics"]),
        ("--try", study.extra),
        ("--exclude", study.exclude),
        ("--values", study.values),
    ):
        options += [word for value in values for word in (option, value)]
    return ["dynotune", "tune", *options, *measured_as(study), "--", *study.run.command]


def _compare(study: Study, settings: Sequence[Setting], against: Sequence[Setting]) -> list[str]:
    return compared(study, over(study.run.settings, settings), over(study.run.settings, against))
