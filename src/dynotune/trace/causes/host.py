"""Attribute lost time of the host to causes if no device was recorded."""

import re
from collections.abc import Iterator

import numpy as np

from dynotune.schema.trace_summary import Place
from dynotune.trace.causes.figures import duration
from dynotune.trace.causes.idle import draws
from dynotune.trace.causes.lost_time import LostTime, heaviest
from dynotune.trace.facts.idle import in_loader, working_thread
from dynotune.trace.facts.nesting import begins_inside, outermost
from dynotune.trace.facts.optimizer_updates import updates
from dynotune.trace.facts.rank_facts import RankFacts
from dynotune.trace.timeline import HostKind, told_by_name

MANY_OPTIMIZER_OPERATORS = 100
"""Number of one-parameter operators in one `Optimizer.step`: an optimizer for many parameters at once calls
only a dozen operators per parameter group."""
SHORT_OPERATOR_NS = 50_000
"""In an operator that takes longer than this, the work itself takes longer than the call."""
_AT_ONCE = re.compile(r"aten::_(fused|foreach)_")


def losses(facts: RankFacts) -> list[LostTime]:
    """Return causes if no device was recorded: waits and needless work of the thread that works most."""
    thread = np.array([working_thread(facts.timeline)], dtype=np.int64)
    start, end = (np.array([time], dtype=np.int64) for time in facts.window)
    found = [*_optimizer_on_host(facts)]
    lost = int(in_loader(facts.timeline, start, end, thread)[0])
    if lost:
        where, evidence = draws(facts)
        claim = "The program waited for its data loader."
        found.append(LostTime("loader-bound", lost, where, evidence, claim=claim))
    return found


def _optimizer_on_host(facts: RankFacts) -> Iterator[LostTime]:
    """Yield the time of optimizers, minus the time of operators that update many parameters."""
    host = facts.timeline.host
    spans, begin_ns = updates(facts.timeline, facts.window)
    rows = np.flatnonzero(host.kind == HostKind.OPERATOR)
    rows = outermost(host, np.setdiff1d(rows[begins_inside(host, rows, spans, begin_ns)], spans))
    at_once = told_by_name(facts.timeline.names, host.name[rows], _AT_ONCE.match)
    took = host.end_ns[rows] - host.start_ns[rows]
    num = int((~at_once).sum())
    if not num or num <= MANY_OPTIMIZER_OPERATORS * len(spans):
        return
    median_ns = np.median(took[~at_once])
    if median_ns >= SHORT_OPERATOR_NS:
        return
    lost = int((host.end_ns[spans] - begin_ns).sum() - took[at_once].sum())
    operators = f"{num / len(spans):,.0f} operators in each call of the optimizer"
    evidence = f"{operators}, {duration(median_ns)} each"
    where = heaviest(facts, facts.places.of_spans(spans), host.end_ns[spans] - host.start_ns[spans])
    claim = "The optimizer updates each parameter with separate operators."
    work = int(took[~at_once].sum())
    yield LostTime(
        "optimizer-forloop", max(lost, work), Place(where.function, where.operator), (evidence,), work, claim
    )
