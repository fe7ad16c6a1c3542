"""Settings that mean something only beside others: an arm holds both, or only the one that can stand alone.

A DataLoader without workers has nothing to prefetch, so a setting of `loader.prefetch_factor` names the candidates of
`loader.num_workers` of which an arm with it must hold one. What is needed needs nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynotune.recipes import ON_WORKERS
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate


def workers(setting: Setting) -> bool:
    """Whether it means something only to a loader with workers. Not to have persistent ones is true of none."""
    return setting.knob in ON_WORKERS and setting.value is not False


def complete(settings: Sequence[Setting], candidates: Iterable[Candidate]) -> list[Setting]:
    """The same of settings, in their order; of one that is no candidate nothing is known to be needed."""
    needed = {one.id: one.needs for one in candidates if one.needs}
    ids = set(map(str, settings))
    return [one for one in settings if str(one) not in needed or not ids.isdisjoint(needed[str(one)])]


def needed_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates in their order, those last that need others: what is needed needs nothing itself."""
    return sorted(candidates, key=lambda one: bool(one.needs))


def each_left_out(settings: Sequence[Setting], candidates: Sequence[Candidate]) -> dict[str, list[Setting]]:
    """By id of each of `settings`, the others without it, and without what means nothing then."""
    gone = {str(one): [one, *dependants(str(one), settings, candidates)] for one in settings}
    return {id_: [one for one in settings if one not in out] for id_, out in gone.items()}


def dependants(id_: str, settings: Iterable[Setting], candidates: Iterable[Candidate]) -> list[Setting]:
    """Of these settings, those that mean nothing once `id_` is left out."""
    needing = {one.id for one in candidates if id_ in one.needs}
    return [setting for setting in settings if str(setting) in needing]
