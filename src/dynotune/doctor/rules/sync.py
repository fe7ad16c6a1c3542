"""Synchronisation: where the host waits for the device, and where it should have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from dynotune.doctor import policy
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import LostTime
from dynotune.schema.trace_summary import Place

_FUNCTION = re.compile(r"(?P<file>[^(]+)\((?P<line>\d+)\): ")
_PLACE = re.compile(r"(\S+\.py):(\d+)")
_READS = re.compile(r"aten::(item|is_nonzero|_local_scalar_dense)$")
_NEEDS_A_VALUE = re.compile(r"[Dd]ata-dependent|Tensor\.item|generic_jump")


@rule("program", explains=["d2h-not-overlapped", "python-elementwise-loops", "launch-bound"])
def sync_per_step(seen: Seen) -> Iterator[Finding]:
    """The host waits for the device in the middle of its work.

    Sees: calls that wait for the device (`.item()`, printing a tensor, `nonzero`, masks, `torch.cuda.synchronize()`),
    after which the device had nothing to do until the host had queued more.

    Costs: what a step would save if the host did not wait, and small copies to the host beside which nothing ran.
    That is more than the idle time after each wait where the host has more to do before the next: it would do it
    while the device is busy. What waits where it also breaks a graph of torch.compile counts for `graph-breaks`.
    Waiting for kernels that had to run anyway costs nothing.

    Wrong when: what follows depends on the value, as in a search that stops early.
    """
    if not seen.uses_cuda:
        return
    all_losses = seen.losses("sync-per-step")
    losses = [loss for loss in all_losses if not breaks_a_graph(seen, loss)]
    part = sum(loss.share for loss in losses) / max(1e-9, sum(loss.share for loss in all_losses))
    without = part * seen.attribution.counterfactual_savings.get("sync-per-step", 0.0)
    share = min(1.0, max(sum(loss.share for loss in losses), without) + _read_back(seen))
    if not losses or share < policy.LEAST_SHARE:
        return
    where = losses[0].where
    yield Finding(
        id="sync-per-step",
        severity=policy.severity(share),
        claim="The host waits for the device, which then waits for the host.",
        share=share,
        evidence=[*evidence_of(losses), *_other_places([loss.where for loss in losses[1:4]])],
        where=where,
        remedy=_instead(where),
    )


@rule("program")
def d2h_nonblocking_unsynced(seen: Seen) -> Iterator[Finding]:
    """A copy to the host is read before it has arrived.

    Sees: a copy from the device to the host that does not wait (`non_blocking=True`), and nothing that waits for the
    device before the host reads the copy or makes it anew.

    Costs: right results: what is read may be what was in that memory before.

    Wrong when: the program waits by means that are not recorded, as a library of its own that polls an event.
    """
    if not seen.uses_cuda:
        return
    try:
        places = seen.words("live.unsynced_reads")
    except Missing:
        places = []
        if seen.trace.devices and not any(row.kind == "DtoH" for row in seen.trace.copies):
            return
    rows = seen.trace.unsynced if not isinstance(seen.observation.trace, Unknown) else []
    if not places and not rows:
        return
    where = rows[0].where if rows else Place(places[0])
    num = sum(row.num for row in rows)
    seen_in = [f"{num} copies to page-locked memory were not waited for in the recorded steps"] if rows else []
    yield Finding(
        id="d2h-nonblocking-unsynced",
        severity="high",
        kind="correctness",
        claim="A copy to the host is read without waiting for it: its values may be old.",
        share=Unknown("it costs right results, not time"),
        evidence=[*seen_in, *(f"made in {place}" for place in places[:3])],
        where=where,
        remedy="Leave non_blocking out, or wait for an event recorded behind the copy before reading it.",
    )


def breaks_a_graph(seen: Seen, loss: LostTime) -> bool:
    """Whether a value is read there on which a compiled function branches, so that it had to be cut."""
    compilation, here = seen.process.compilation, _FUNCTION.match(loss.where.function)
    if isinstance(compilation, Unknown) or here is None or not _READS.search(loss.where.operator):
        return False
    places = [place for text in compilation.breaks if _NEEDS_A_VALUE.search(text) for place in _PLACE.findall(text)]
    # Functions are known by their first lines: a break lies in the last one that begins before it.
    known = [_FUNCTION.match(each.where.function) for each in seen.attribution.lost_time]
    begins = [int(each["line"]) for each in known if each is not None and each["file"] == here["file"]]
    lines = [int(line) for path, line in places if PurePath(path).name == PurePath(here["file"]).name]
    return any(max((begin for begin in begins if begin <= line), default=None) == int(here["line"]) for line in lines)


def _read_back(seen: Seen) -> float:
    """Of a step, exposed copies of single values to the host: who reads a value copies it, and waits for that."""
    rows = [row for row in seen.trace.copies if row.kind == "DtoH"]
    small = all((row.median_bytes or policy.SMALL_COPY_BYTES) < policy.SMALL_COPY_BYTES for row in rows)
    return seen.lost("d2h-not-overlapped") if rows and small else 0.0


def _other_places(places: list[Place]) -> list[str]:
    return [f"also at {place.operator or place.call} in {place.function}" for place in places if place.function]


def _instead(where: Place) -> str:
    """What to do, by what waits."""
    operator = where.operator
    if "item" in operator or "_local_scalar_dense" in operator or "is_nonzero" in operator:
        return "Keep the value on the device, and read it every so many steps only."
    if any(word in operator for word in ("nonzero", "index", "masked_select", "unique", "repeat_interleave")):
        return "Use an operation whose result has a known size (torch.where, a multiplication by the mask)."
    if "to" in operator.split("::") or "copy" in operator:
        return "Copy with non_blocking=True, and wait for an event only where the values are read."
    if "DeviceSynchronize" in where.call:
        return "Leave torch.cuda.synchronize() out of the loop; measure with CUDA events."
    return "Take what waits out of the loop, or do it every so many steps only."
