"""A second diagnosis, with the best settings so far: what holds the command up then is tried beside them.

A step that half precision makes twice as fast may wait for its loader, which it did not before. No finding of the
command as written says so, and no run without the settings shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, SecondLook, Study
from dynotune.search import words
from dynotune.search.bench import BASELINE
from dynotune.search.joining import ARMS_A_BLOCK
from dynotune.search.running import Search


def look_again(search: Search, settings: Sequence[Setting], reserve_s: float) -> bool:
    """Diagnose with `settings`, once a study, if a block of runs fits in after it; whether there is more to try."""
    block_s = (ARMS_A_BLOCK + 1) * search.bench.run_s(BASELINE)
    if search.study.looked is not None or search.bench.left_s() - reserve_s < block_s:
        return False
    look = search.bench.look_again(settings)
    if look is None:
        return False
    names = words.names([str(setting) for setting in settings])
    search.watcher.say(f"With {names}: {look.diagnosis.verdict}")
    added = beside(search.study, settings, look.candidates)
    study = search.study
    known = {one.setting for one in (*added, *study.candidates)}
    known |= {row.setting for row in study.not_offered}
    search.update(
        looked=SecondLook(list(settings), look.diagnosis),
        candidates=_merged(study.candidates, added),
        not_offered=[*study.not_offered, *(row for row in look.not_offered if row.setting not in known)],
        fates={id_: fate for id_, fate in study.fates.items() if id_ not in {one.id for one in added}},
    )
    if added:
        search.watcher.say(f"To try beside: {words.names([one.id for one in added])}.")
    return bool(added)


def beside(study: Study, settings: Sequence[Setting], offered: Sequence[Candidate]) -> list[Candidate]:
    """Of what is offered with `settings`, what is new, or was out of the race for want of a gain without them.

    They mean something beside `settings`, as far as is known: what stands alone of these they need.
    """
    by_id = {one.id: one for one in study.candidates}
    held = [one for one in settings if str(one) not in by_id or not by_id[str(one)].needs]
    found = []
    for one in offered:
        before, fate = by_id.get(one.id), study.fates.get(one.id)
        in_the_race = before is not None and fate is None
        lost = fate is not None and fate.kind not in ("not-tried", "no-effect", "slower")
        if one.setting in settings or in_the_race or lost:
            continue
        company = [str(setting) for setting in held if setting.knob != one.setting.knob]
        found.append(replace(one, needs=one.needs or company, why=one.why or (before.why if before else [])))
    return found


def _merged(candidates: Sequence[Candidate], added: Sequence[Candidate]) -> list[Candidate]:
    new = {one.id: one for one in added}
    return [*(new.pop(one.id, one) for one in candidates), *new.values()]
