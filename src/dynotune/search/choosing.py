"""From the races to the one arm that is worth proving."""

from __future__ import annotations

from dynotune.schema.setting import Setting
from dynotune.search.fit import Gain
from dynotune.search.joining import fitted, taking_part
from dynotune.search.model import Model
from dynotune.search.running import Search

# A screen may let an idle one through, since ablation follows; one that is left out here is lost.
ENTER_P = 0.15
MOST_SETTINGS = 8


def whole(search: Search) -> list[Setting]:
    """What seems to belong in, that which adds most first."""
    return [setting for setting, _ in contributions(search)]


def contributions(search: Search) -> list[tuple[Setting, Gain]]:
    """What each setting of the best arm adds to the rest of it; one that adds too little or too unsurely is out."""
    model = fitted(search)
    if not model.num_runs:
        return []
    chosen = {one.id: one.setting for one in model.best(taking_part(search), model.mean)}
    while chosen:
        gains = {id_: _adds(model, id_, chosen) for id_ in chosen}
        weakest = min(gains, key=lambda id_: gains[id_].log / max(gains[id_].se, 1e-9))
        enters = gains[weakest].log > search.margin / 2 and gains[weakest].p < ENTER_P
        if enters and len(chosen) <= MOST_SETTINGS:
            return sorted(((chosen[id_], gains[id_]) for id_ in chosen), key=lambda pair: -pair[1].log)
        del chosen[weakest]
    return []


def _adds(model: Model, id_: str, chosen: dict[str, Setting]) -> Gain:
    whole = frozenset(chosen)
    return model.gain(whole, whole - {id_})
