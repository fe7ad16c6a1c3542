"""Decide by checked results which settings that round may enter a recipe."""

from collections.abc import Iterable

from dynotune.schema.setting import Setting
from dynotune.schema.study import OutcomeKind, Study

KEEPS_OUT: tuple[OutcomeKind, ...] = ("wrong-results", "unchecked")
"""Outcomes of settings that stay out of the recipe because of their results, however fast they are."""
NO_TIME = "there was no time to check them"


def rounding(study: Study, settings: Iterable[Setting]) -> list[Setting]:
    """Return those of the settings that round numbers otherwise."""
    candidates = {candidate.setting for candidate in study.candidates if candidate.rounds}
    return [setting for setting in settings if setting in candidates]


def are_right(study: Study, settings: Iterable[Setting]) -> bool:
    """Return whether a check found results with these settings right; also true if none of the settings
    rounds."""
    ids = set(map(str, rounding(study, settings)))
    # Fewer settings leave results right if more settings do.
    return not ids or any(ids <= guarded.ids for guarded in study.guarded if guarded.ok)
