"""Compare two summaries: what changed, cause by cause."""

import re
from collections.abc import Callable, Hashable
from typing import Literal, TypeVar

from dynotune.schema.trace_summary import Cause, CauseChange, Place, TraceDifference, TraceSummary
from dynotune.text import words

T = TypeVar("T")
NO_PROOF = "one recording of each proves nothing, `dynotune compare` measures in pairs"


def difference(before: TraceSummary, after: TraceSummary) -> TraceDifference:
    """Return what changed from `before` to `after`; causes with the largest change first.

    Times are those of the time window, divided by the number of steps if both traces know their steps. A
    cause that only one trace names counts 0 in the other trace. Causes with the same id and place are
    matched; a place whose source line moved within its file still matches. If only one of the traces has
    stacks, the only causes of an id match, too.
    """
    per: Literal["step", "window"] = "step" if before.num_steps and after.num_steps else "window"
    num_before = before.num_steps if per == "step" and before.num_steps else 1
    num_after = after.num_steps if per == "step" and after.num_steps else 1
    changes = [
        CauseChange(
            id=(new or old)[0].id,
            before_s=sum(cause.lost_s for cause in old) / num_before,
            after_s=sum(cause.lost_s for cause in new) / num_after,
            where=(new or old)[0].where,
        )
        for old, new in _matched(before.causes, after.causes)
    ]
    changes.sort(
        key=lambda change: (-abs(change.after_s - change.before_s), change.id, change.where.function)
    )
    before_s = None if before.window_s is None else before.window_s / num_before
    after_s = None if after.window_s is None else after.window_s / num_after
    return TraceDifference(
        before=before,
        after=after,
        per=per,
        before_s=before_s,
        after_s=after_s,
        changes=changes,
        verdict=_verdict(per, before_s, after_s, changes),
    )


def _verdict(
    per: Literal["step", "window"], before_s: float | None, after_s: float | None, changes: list[CauseChange]
) -> str:
    if before_s is None or after_s is None:
        which = "The trace before" if before_s is None else "The trace after"
        which = "Neither trace" if before_s is after_s else which
        return f"{which} contains anything with a duration, so nothing can be compared."
    lengths = f"{words.duration(before_s)} before and {words.duration(after_s)} after"
    if per == "step":
        by = f" ({after_s / before_s - 1:+.1%})" if before_s else ""
        told = f"A step took {lengths}{by.replace('-', '−')}"
    else:
        told = f"The windows are {lengths}, and whether they hold the same work is not known"
    if changes and changes[0].before_s != changes[0].after_s:
        told += f"; the largest change is in {changes[0].id}{_at(changes[0].where)}, {_lengths(changes[0])}"
    return f"{told}; {NO_PROOF}."


def _matched(before: list[Cause], after: list[Cause]) -> list[tuple[list[Cause], list[Cause]]]:
    """Return matched causes of the two traces; [] for a trace that lacks the cause."""
    old, new = list(_by(before, _exactly).values()), list(_by(after, _exactly).values())
    pairs: list[tuple[list[Cause], list[Cause]]] = []
    for key in (_exactly, _without_line, _only_id):
        old_of, new_of = (_by(groups, _of_first(key)) for groups in (old, new))
        for name in old_of.keys() & new_of.keys():
            if len(old_of[name]) != 1 or len(new_of[name]) != 1:
                continue
            (one,), (other,) = old_of[name], new_of[name]
            one_lacks_stacks = bool(one[0].where.function) != bool(other[0].where.function)
            if key is not _only_id or one_lacks_stacks:
                pairs.append((one, other))
                old.remove(one)
                new.remove(other)
    nothing: list[Cause] = []
    return [*pairs, *((one, nothing) for one in old), *((nothing, other) for other in new)]


def _exactly(cause: Cause) -> Hashable:
    return cause.id, cause.where


def _without_line(cause: Cause) -> Hashable:
    where = cause.where
    return cause.id, re.sub(r"\(\d+\): ", ": ", where.function, count=1), where.operator, where.call


def _only_id(cause: Cause) -> Hashable:
    return cause.id


def _of_first(key: Callable[[Cause], Hashable]) -> Callable[[list[Cause]], Hashable]:
    return lambda group: key(group[0])


def _by(items: list[T], key: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _at(where: Place) -> str:
    name = where.function or where.operator or where.call
    # In a sentence, a file's name without its folders is enough.
    match = re.fullmatch(r"(?:.*/)?([^/]+)\((\d+)\): (.*)", name, flags=re.DOTALL)
    if match is not None:
        name = f"{match[1]}:{match[2]} {match[3]}"
    return f" at {name}" if name else ""


def _lengths(change: CauseChange) -> str:
    # A trace whose summary does not list a cause may still contain a small loss of that cause.
    before, after = (
        words.duration(seconds) if seconds else "not seen" for seconds in (change.before_s, change.after_s)
    )
    return f"{before} before and {after} after"
