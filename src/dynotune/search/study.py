"""The search, in four stages: know, switch, prune, confirm.

1. Know: the diagnosis has named the candidates and bounded what each can gain. What cannot gain the margin is out.
2. Switch: candidates that can change at any step are compared with the baseline within one live run: all together
   until that is decided, then each left out and each alone.
3. Prune: the bundle of all that is left runs against the baseline in fresh processes, and against itself without each
   of its settings. What it does not need goes.
4. Confirm: what is left against the baseline, on fresh pairs. If the time does not hold them, the blocks of stage 2 are
   the proof.

Every decision is in the study before the next run, so a search that was stopped anywhere goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dynotune.measure.live import Watcher
from dynotune.schema.study import CandidateOutcome, Study
from dynotune.search.bench import Bench
from dynotune.search.bounds import bound_log, worth_trying
from dynotune.search.confirm import confirm
from dynotune.search.outcomes import conclude
from dynotune.search.prune import prune
from dynotune.search.running import OutOfTime, Search
from dynotune.search.switch import fresh_fits, proved_within, switch


def search(study: Study, bench: Bench, save: Callable[[Study], None], watcher: Watcher) -> Study:
    """Find the settings of `study.candidates` that are proved to help, before the deadline of `bench`.

    Args:
        save: called after every run and every decision.

    Raises:
        CannotRunHere: the machine, or the command as written, gives no measurements; what was done is saved.
    """
    if study.finished:
        return study
    work = Search(study, bench, save, watcher)
    try:
        _go(work)
    except OutOfTime:
        watcher.say("The time is up.")
    conclude(work)
    return work.study


def _go(work: Search) -> None:
    if work.study.stage == "know":
        worth = worth_trying(work.study)
        work.settle({one.id: _bounded(work, bound_log(one), one.bound_by) for one in work.alive() if one not in worth})
        work.update(stage="switch")
    if work.study.stage == "switch":
        switch(work)
        work.update(stage="prune")
    if work.study.stage == "prune":
        work.update(selected=prune(work), stage="confirm")
    if work.study.selected and (work.study.rounds or proved_within(work.study) is None or fresh_fits(work)):
        confirm(work, work.study.selected)


def _bounded(work: Search, most: float, by: str) -> CandidateOutcome:
    named = f" ({by})" if by else ""
    gain, margin = math.expm1(most), work.study.margin
    return CandidateOutcome(
        "not-tried", f"It can gain {gain:.1%} at most{named}, less than the margin of {margin:.0%}."
    )
