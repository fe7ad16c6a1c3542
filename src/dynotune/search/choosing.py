"""From the race and the joint race to the one arm that is worth proving."""

from __future__ import annotations

from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate
from dynotune.search.bench import Arm
from dynotune.search.fit import Fit, Gain
from dynotune.search.joining import best_of, members
from dynotune.search.racing import optimistic
from dynotune.search.running import Search, alone

# A screen may let an idle one through, since ablation follows; one that is left out here is lost.
ENTER_P = 0.15
MOST_SETTINGS = 6


def parts(search: Search) -> list[tuple[Arm, Gain]]:
    """What seems to help: of each group, and of each knob in none, the best arm; the strongest first."""
    fit = Fit(search.trials("race", "join"))
    found = [best for group in members(search) if (best := best_of(search, fit, group)) is not None]
    taken = {one.id for those in members(search).values() for one in those}
    by_knob: dict[str, list[Candidate]] = {}
    for one in search.alive():
        if one.id not in taken and search.failure(one.id) is None:
            by_knob.setdefault(one.setting.knob, []).append(one)
    for those in by_knob.values():
        gains = [(alone(one), gain) for one in those if (gain := _within_bound(fit, one)) is not None]
        if gains:
            found.append(max(gains, key=lambda pair: pair[1].log))
    good = [(one, gain) for one, gain in found if gain.log > search.margin / 2 and gain.p < ENTER_P]
    return sorted(good, key=lambda pair: -pair[1].log)


def whole(search: Search) -> list[Setting]:
    """The settings of the parts, those of the strongest part first."""
    chosen: dict[str, Setting] = {}
    for one, _ in parts(search):
        fresh = [setting for setting in one.settings if setting.knob not in chosen]
        if len(chosen) + len(fresh) <= MOST_SETTINGS:
            chosen.update({setting.knob: setting for setting in fresh})
    return list(chosen.values())


def _within_bound(fit: Fit, candidate: Candidate) -> Gain | None:
    gain = fit.gain(candidate.id)
    return gain._replace(log=min(gain.log, optimistic(candidate, gain))) if gain is not None else None
