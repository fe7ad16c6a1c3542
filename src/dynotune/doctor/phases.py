"""Rules on phases share this: work that some steps do beside what all do."""

import re

from dynotune.doctor import policy
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.observation import PeriodicKind, PeriodicWork

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3")
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


def is_librarys(work: PeriodicWork) -> bool:
    """Tell whether it begins inside a library, in a call that other steps make too."""
    return _LIBRARY.search(work.function) is not None


def when(work: PeriodicWork) -> str:
    """Return how often it comes, to end a claim with."""
    return f", after every {work.every} steps" if work.every is not None and work.every > 1 else ""


def seen(view: ObservationView, work: PeriodicWork) -> list[str]:
    """Return where it was seen, as evidence."""
    called = f", in {short_name(work.callee)}" if work.callee else ""
    text = f": {work.text}" if work.text else ""
    return [f"in {work.num_steps} of {view.timing.num_steps} steps, {work.function}{called}{text}"]


def short_name(function: str) -> str:
    """Return a function of a library by its module: `json.loads`; of the program as it is."""
    match = re.match(r"(?P<file>.+?)(\(\d+\)|(?<=\.py)): (?P<name>.+)", function)
    if match is None:
        return function
    parts = match["file"].removesuffix(".py").removesuffix("/__init__").split("/")
    after = [
        at for at, part in enumerate(parts) if part in ("site-packages", "dist-packages") or part.startswith("python3")
    ]
    return ".".join([*parts[(after[-1] + 1 if after else len(parts) - 1) :], match["name"]])
