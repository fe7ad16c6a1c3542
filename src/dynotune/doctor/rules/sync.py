"""Synchronisation: needless waits of the host for the device, and missing waits."""

import re
from pathlib import PurePath

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule
from dynotune.doctor.hot_lines import known, of_reads, place, told
from dynotune.doctor.observation_view import Missing, ObservationView, evidence_of
from dynotune.schema.attribution import LostTime
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import SMALL_COPY_BYTES, Place

_FUNCTION = re.compile(r"(?P<file>[^(]+?)(\((?P<line>\d+)\)|(?<=\.py)): ")
_PLACE = re.compile(r"(\S+\.py):(\d+)")
_READS = re.compile(r"aten::(item|is_nonzero|_local_scalar_dense)$")
_NEEDS_A_VALUE = re.compile(r"[Dd]ata-dependent|Tensor\.item|generic_jump")


@cuda_rule(family="sync")
def sync_per_step(view: ObservationView) -> Judgements:
    all_losses = view.losses("sync-per-step")
    losses = [loss for loss in all_losses if not breaks_a_graph(view, loss)]
    part = sum(loss.share for loss in losses) / max(1e-9, sum(loss.share for loss in all_losses))
    without = part * view.attribution.counterfactual_savings.get("sync-per-step", 0.0)
    share = min(1.0, max(sum(loss.share for loss in losses), without) + _read_back(view))
    reads = known(of_reads, view)
    share = max(share, min(sum(part for _, part in reads), 1.0 - (view.attribution.busy_share or 0.0)))
    if not losses or share < policy.LEAST_SHARE:
        return
    where, *others = (loss.where for loss in losses[:4])
    yield Judgement(
        share=share,
        evidence=[
            *told(reads),
            *evidence_of(losses),
            *(f"also at {one.operator or one.call} in {one.function}" for one in others if one.function),
        ],
        where=place(reads, where),
        remedy=_instead(where),
    )


@cuda_rule(family="sync")
def d2h_nonblocking_unsynced(view: ObservationView) -> Judgements:
    try:
        places = view.words("live.unsynced_reads")
    except Missing:
        places = []
        if view.trace.devices and not any(row.kind == "DtoH" for row in view.trace.copies):
            return
    rows = view.trace.unsynced if not isinstance(view.observation.trace, Unknown) else []
    if not places and not rows:
        return
    where = rows[0].where if rows else Place(places[0])
    num = sum(row.num for row in rows)
    seen_in = (
        [f"{num} copies to page-locked memory were not waited for in the recorded steps"] if rows else []
    )
    yield Judgement(
        severity="high", evidence=[*seen_in, *(f"made in {place}" for place in places[:3])], where=where
    )


def breaks_a_graph(view: ObservationView, loss: LostTime) -> bool:
    """Tell whether a compiled function was cut because the program reads a value at this place to branch on
    it."""
    compilation, here = view.process.compilation, _FUNCTION.match(loss.where.function)
    if isinstance(compilation, Unknown) or here is None or not _READS.search(loss.where.operator):
        return False
    places = [
        place for text in compilation.breaks if _NEEDS_A_VALUE.search(text) for place in _PLACE.findall(text)
    ]
    # Only the first lines of functions are known, so a graph break lies in the last function that begins
    # before it.
    functions = [_FUNCTION.match(each.where.function) for each in view.attribution.lost_time]
    begins = [
        int(each["line"] or 0) for each in functions if each is not None and each["file"] == here["file"]
    ]
    lines = [int(line) for path, line in places if PurePath(path).name == PurePath(here["file"]).name]
    return any(
        max((begin for begin in begins if begin <= line), default=None) == int(here["line"] or 0)
        for line in lines
    )


def _read_back(view: ObservationView) -> float:
    """Return the share of a step in exposed copies of single values to the host: reading a value copies
    it."""
    rows = [row for row in view.trace.copies if row.kind == "DtoH"]
    small = all((row.median_bytes or SMALL_COPY_BYTES) < SMALL_COPY_BYTES for row in rows)
    return view.lost("d2h-not-overlapped") if rows and small else 0.0


def _instead(where: Place) -> str:
    """Return the remedy for the operator or call that waits."""
    operator = where.operator
    if "item" in operator or "_local_scalar_dense" in operator or "is_nonzero" in operator:
        return "Keep the value on the device, and read it only once in many steps."
    if any(word in operator for word in ("nonzero", "index", "masked_select", "unique", "repeat_interleave")):
        return "Use an operation whose result has a known size (torch.where, a multiplication by the mask)."
    if "to" in operator.split("::") or "copy" in operator:
        return "Copy with non_blocking=True, and wait for an event only before the values are read."
    if "DeviceSynchronize" in where.call:
        return "Remove torch.cuda.synchronize() from the loop. Measure with CUDA events."
    return "Move this wait out of the loop, or wait only once in many steps."
