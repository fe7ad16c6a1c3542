"""What some steps do beside what all do, for the rules that tell of it."""

from __future__ import annotations

import re

from dynotune.doctor import policy
from dynotune.doctor.hot_lines import short_name
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.observation import PeriodicKind, PeriodicWork

_SAMPLES = re.compile(r"[sS]ampler|randperm")


def periodic(view: ObservationView, kind: PeriodicKind) -> list[PeriodicWork]:
    """Return what some steps alone do, of this kind and worth telling. Of what was seen once nobody knows how often."""
    return [
        work
        for work in view.process.periodic
        if work.kind == kind and work.num_steps > 1 and work.share >= policy.LEAST_SHARE
    ]


def sampling(view: ObservationView) -> PeriodicWork | None:
    """Return where an epoch begins with a sampler that orders all items anew; None if something else takes the time."""
    return next((one for one in periodic(view, "epoch") if _SAMPLES.search(f"{one.function} {one.callee}")), None)


def when(work: PeriodicWork) -> str:
    """Return how often it comes, to end a claim with."""
    return f", after every {work.every} steps" if work.every is not None and work.every > 1 else ""


def seen(view: ObservationView, work: PeriodicWork) -> list[str]:
    """Return where it was seen, as evidence."""
    called = f", in {short_name(work.callee)}" if work.callee else ""
    text = f": {work.text}" if work.text else ""
    return [f"in {work.num_steps} of {view.timing.num_steps} steps, {work.function}{called}{text}"]
