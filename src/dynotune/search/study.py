"""Search for settings in four stages: know, switch, prune, confirm.

Know: settings that cannot gain the margin by the diagnosis's bounds are dropped. Switch: settings that can
change at any step are compared with the baseline within one live run. Prune: the bundle of the others runs in
fresh processes, and without each of its settings. Confirm: what stayed is proved on fresh pairs, or in one
process if time is short.

Every decision is stored in the study before the next run, so an interrupted search can always continue.
"""

import math

from dynotune.measure.live import Watcher
from dynotune.schema.arm import arm
from dynotune.schema.study import Candidate, CandidateOutcome, Study
from dynotune.search.bench import StudyBench
from dynotune.search.bounds import bound_log, worth_trying
from dynotune.search.conclusion import conclude
from dynotune.search.confirmation import confirm
from dynotune.search.prune import prune, started
from dynotune.search.running import OutOfTime, Search
from dynotune.search.switch import switch


def search(bench: StudyBench, watcher: Watcher) -> Study:
    """Find the candidates of the bench's study that are proved to help, before its deadline.

    Every run and every decision is in the journal of the bench before the next one begins.

    Raises:
        CannotRunHere: the machine, or the command as written, gives no measurements; completed work is saved.
    """
    if bench.journal.document.finished:
        return bench.journal.document
    work = Search(bench, watcher)
    try:
        _go(work)
    except OutOfTime:
        watcher.say("The time is up.")
    conclude(work)
    return work.study


def _go(work: Search) -> None:
    if work.study.stage == "know":
        worth = worth_trying(work.study)
        work.settle({one.id: _bounded(work, one) for one in work.alive() if one not in worth})
        work.update(stage="switch")
    if work.study.stage == "switch":
        switch(work)
        work.update(stage="prune")
    if work.study.stage == "prune":
        work.update(selected=prune(work), stage="confirm")
    if work.study.selected:
        confirm(work, work.study.selected)
        started(work, arm(work.study.selected))


def _bounded(work: Search, one: Candidate) -> CandidateOutcome:
    by = f" ({one.bound_by})" if one.bound_by else ""
    most = f"It can gain {math.expm1(bound_log(one)):.1%} at most{by}"
    return CandidateOutcome("not-tried", f"{most}, less than the margin of {work.study.margin:.0%}.")
