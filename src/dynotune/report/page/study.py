"""The view of a study."""

from dataclasses import dataclass
from typing import NamedTuple

from dynotune.report.page import plots, study_tables
from dynotune.report.page.plots import Figure
from dynotune.report.page.view import Lines, View, drawn, objective_beside, percent, title_of
from dynotune.report.study.commands import compares, repeats
from dynotune.report.study.header import headline, stats
from dynotune.report.study.rows import KINDS, ablated, tried
from dynotune.report.study.sides import before_and_after, breakdowns
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import Study
from dynotune.text import words


class LegendEntry(NamedTuple):
    """What a kind of point in a plot means, beside the mark that stands for the point."""

    colour: str
    mark: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView(View):
    """View of the page of a study.

    Args:
        id, cwd, begun: of the study; `begun` is "as written" or "as begun".
        objective: what was compared; "" for throughput.
        date: the day on which the study began; "" before its first attempt.
        settings: the recipe's settings.
        diagnosis: the verdict of the first diagnosis; "" if there is none.
        with_recipe: sentences on the step with the recipe; "" if that step is not shown.
        not_shown: the sentence that says why the step with the recipe is not shown; "" if that step is shown,
            or there is no recipe.
        of_settings: sentences on how each setting was tried.
        legend: what the points of the plot of settings mean.
        compares: the command that compares each setting.
    """

    id: str
    cwd: str
    begun: str
    objective: str
    date: str
    settings: list[Setting]
    diagnosis: str
    with_recipe: str
    not_shown: str
    of_settings: str
    legend: list[LegendEntry]
    compares: Lines


def view_of(study: Study) -> StudyView:
    compared = before_and_after(study)
    figures = drawn(_figures(study))
    return StudyView(
        title=title_of(study.run.command),
        command=words.shell(study.run.command),
        headline=headline(study),
        stats=list(stats(study)),
        figures=figures,
        tables=study_tables.tables(study),
        commands=[(command.what, command.words) for command in repeats(study)],
        warnings=study_tables.warnings(study),
        id=study.id,
        cwd=str(study.run.cwd),
        begun=study.begun,
        objective=objective_beside(study.run.objective),
        date=study.attempts[0].began[:10] if study.attempts else "",
        settings=list(study.recipe or []),
        diagnosis="" if isinstance(study.diagnosis, Unknown) else study.diagnosis.verdict,
        with_recipe=_with_recipe(study.diagnosis_with_recipe) if not isinstance(compared, Unknown) else "",
        not_shown=_not_shown(compared.reason) if isinstance(compared, Unknown) and study.recipe else "",
        of_settings=_of_settings(study),
        legend=_legend(figures),
        compares=[(command.what, command.words) for command in compares(study)],
    )


def _with_recipe(diagnosis: Diagnosis | Unknown) -> str:
    if isinstance(diagnosis, Unknown):
        return ""
    limits = f"{diagnosis.bottleneck} limits this command"
    if diagnosis.bottleneck == "none":
        limits = "nothing that could be avoided holds this command up"
    sources = "The confirmation timed both lengths; one diagnosis of each side gives the parts."
    return f"With the recipe, {limits}. {sources}"


def _not_shown(reason: str) -> str:
    return f"The step with the recipe is not shown: {reason}."


def _of_settings(study: Study) -> str:
    alone = f"Each alone against the command {study.begun}, above 1× faster"
    if any(candidate.needs for candidate in study.candidates):
        alone += "; what means something only beside another setting, beside that and against it"
    return f"{alone}. Within the grey band, ±{percent(study.margin)}, two arms count as the same."


def _legend(figures: dict[str, Figure]) -> list[LegendEntry]:
    kinds = figures["settings"]["kinds"] if "settings" in figures else []
    looks = [look for kind, look in KINDS.items() if look.meaning and kind in kinds]
    return [LegendEntry(look.colour, look.mark, look.meaning) for look in looks]


def _figures(study: Study) -> dict[str, Figure | None]:
    sides = breakdowns(study, (study.begun, "with the recipe"))
    of_what, named = sides[0].of_what if sides else "step", " and ".join(side.name for side in sides)
    return {
        "step": plots.shares(sides, f"Where a {of_what} goes, {named}"),
        "settings": plots.forest(tried(study), margin=study.margin),
        "worth": plots.worths(ablated(study), margin=study.margin),
    }
