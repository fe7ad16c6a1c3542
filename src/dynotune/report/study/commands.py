"""The commands that repeat a study, each exactly as a shell takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dynotune.report.study.rows import Tried, tried
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import Study
from dynotune.text import words

RECIPE = "recipe.toml"


@dataclass(frozen=True, slots=True)
class Command:
    """What it does, in a few words, and its words as a shell takes them."""

    what: str
    words: list[str]

    @property
    def line(self) -> str:
        return " ".join(self.words)


def repeats(study: Study, *, recipe: str = RECIPE) -> list[Command]:
    """To go on or tune again, to run with the recipe, to prove it again, and to compare it by hand."""
    found = (
        []
        if study.finished
        else [Command("Go on where it stopped", words.shell(["dynotune", "tune", "--resume", study.id]))]
    )
    found.append(Command("Tune again", words.shell(_tune(study))))
    if study.recipe:
        command = ["--", *study.run.command]
        found += [
            Command(
                "Run with the recipe", words.shell(["dynotune", "run", "--recipe", recipe, *_typed(study), *command])
            ),
            Command(
                "Prove the recipe again",
                words.shell(["dynotune", "recipe", "verify", recipe, *_typed(study), *command]),
            ),
            Command(f"Compare the recipe with the command {study.begun}", _compare(study, study.recipe, [])),
        ]
        # A step that became shorter asks for another window.
        anew = replace(study, run=replace(study.run, warmup_steps=None, window_steps=None))
        found.append(Command("Go on from the recipe", words.shell(_tune(anew, recipe))))
    return found


def _typed(study: Study) -> list[str]:
    """Options for the recipe's variables that the user typed: a recipe alone cannot set every variable."""
    typed = [*study.extra, *study.values, *map(str, study.run.settings)]
    knobs = {word.partition("=")[0] for word in typed if word.startswith("env.")}
    chosen = over(study.run.settings, study.recipe or [])
    return [word for setting in chosen if setting.knob in knobs for word in _set(setting)]


def _set(setting: Setting) -> tuple[str, ...]:
    return ("--set", str(setting)) if setting.knob.startswith("env.") else ()


def compares(study: Study) -> list[Command]:
    """One comparison a setting: of the recipe's, the whole without it; of the others, it alone."""
    recipe = list(study.recipe or [])
    found = []
    if len(recipe) > 1:
        for setting in recipe:
            needing = {one.setting for one in study.candidates if str(setting) in one.needs}
            rest = [other for other in recipe if other != setting and other not in needing]
            found.append(Command(f"The recipe with and without {setting}", _compare(study, recipe, rest)))
    rows = [row for row in tried(study) if row.kind not in ("not-tried", "open")]
    return found + [_compare_alone(study, row) for row in rows]


def _compare_alone(study: Study, row: Tried) -> Command:
    """Of one that needs another: with that, against that."""
    setting = row.candidate.setting
    needed = [one.setting for one in study.candidates if one.id in row.candidate.needs]
    told = row.alone.against if row.alone is not None else ""
    beside = [one for one in needed if str(one) == told] or needed[:1]
    if not beside:
        return Command(f"{setting} alone", _compare(study, [setting], []))
    return Command(f"{setting} beside {beside[0]}", _compare(study, [setting, *beside], beside))


def _tune(study: Study, recipe: str = "") -> list[str]:
    options = ["--budget", _time(study.budget_s)]
    if began_from := recipe or (study.base_recipe.file if study.base_recipe is not None else ""):
        typed = _typed(study) if recipe else [word for one in study.run.settings for word in _set(one)]
        options += ["--recipe", began_from, *typed]
    if study.run.objective != "throughput":
        options += ["--objective", study.run.objective]
    for option, values in (
        ("--allow", study.allow),
        ("--try", study.extra),
        ("--exclude", study.exclude),
        ("--values", study.values),
    ):
        options += [word for value in values for word in (option, value)]
    return ["dynotune", "tune", *options, *_measured_as(study), "--", *study.run.command]


def _compare(study: Study, settings: Sequence[Setting], against: Sequence[Setting]) -> list[str]:
    baseline = [word for setting in over(study.run.settings, against) for word in ("--baseline", str(setting))]
    objective = [] if study.run.objective == "throughput" else ["--objective", study.run.objective]
    names = list(map(str, over(study.run.settings, settings)))
    return words.shell(
        ["dynotune", "compare", *names, *baseline, *objective, *_measured_as(study), "--", *study.run.command]
    )


def _measured_as(study: Study) -> list[str]:
    """Options that `tune` and `compare` share."""
    options = []
    if study.run.warmup_steps is not None:
        options += ["--warmup", str(study.run.warmup_steps)]
    if study.run.window_steps is not None:
        options += ["--steps", str(study.run.window_steps)]
    if study.run.step_function is not None:
        options += ["--step-function", study.run.step_function]
    if study.run.phase is not None:
        options += ["--phase", study.run.phase]
    if study.margin != 0.01:
        options += ["--margin", f"{study.margin:g}"]
    if study.run.timeout_s is not None:
        options += ["--timeout", _time(study.run.timeout_s)]
    if study.run.seed:
        options += ["--seed", str(study.run.seed)]
    if study.run.caches != "warm":
        options += ["--caches", study.run.caches]
    if study.run.nice:
        options += ["--nice", str(study.run.nice)]
    return options + (["--no-sandbox"] if not study.run.sandbox else [])


def _time(seconds: float) -> str:
    """As `--budget` reads it."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{_plainly(seconds)}s"


def _plainly(number: float) -> str:
    """Without an exponent."""
    return re.sub(r"\.?0+$", "", f"{number:.3f}") or "0"
