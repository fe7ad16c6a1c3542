"""Work that only some steps do, for rules: which work, how often, and where it was seen."""

import re

from dynotune.doctor import policy
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.schema.timing import PeriodicKind, PeriodicWork

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3")
_SAMPLES = re.compile(r"[sS]ampler|randperm")


_JOINS = re.compile(r"concat|nested_numpify|pad_across_processes")
_JOINS_BY_TEXT = re.compile(r"\b(cat|concat|concatenate|vstack|hstack)\(")
"""Functions, and calls in the text of a line, that join the outputs of a batch to those of batches before."""


def keeps_outputs(view: ObservationView, work: PeriodicWork) -> str:
    """Return the place at which most of the work joins outputs of batches; "" if it mostly does something
    else."""
    place = work.callee or work.function
    row = next((row for row in or_else(lambda: view.process.stack, []) if row.function == place), None)
    text = row.text if row is not None else "" if work.callee else work.text
    name = place.rpartition(": ")[2]
    if not _JOINS.search(name) and not _JOINS_BY_TEXT.search(text):
        return ""
    return f"{short_name(place)}: {text}" if text else short_name(place)


def periodic(view: ObservationView, kind: PeriodicKind) -> list[PeriodicWork]:
    """Return notable work of this kind that only some steps do.

    Work that was seen once is left out if no earlier step was as long, because it has no known frequency.
    """
    return [
        work
        for work in view.process.periodic
        if work.kind == kind
        and (work.num_steps > 1 or work.every is not None)
        and work.share >= policy.LEAST_SHARE
    ]


def sampling(view: ObservationView) -> PeriodicWork | None:
    """Return the begin of epochs whose sampler orders all items anew; None if other work takes the time."""
    epochs = periodic(view, "epoch")
    return next((one for one in epochs if _SAMPLES.search(f"{one.function} {one.callee}")), None)


def is_librarys(work: PeriodicWork) -> bool:
    """Tell whether the work begins inside a library, in a call that other steps also make."""
    return _LIBRARY.search(work.function) is not None


def when(work: PeriodicWork) -> str:
    """Return a text on how often the work occurs, as the end of a claim."""
    return f", after every {work.every} steps" if work.every is not None and work.every > 1 else ""


def seen(view: ObservationView, work: PeriodicWork) -> list[str]:
    """Return a line of evidence on where the work was seen."""
    called = f", in {short_name(work.callee)}" if work.callee else ""
    text = f": {work.text}" if work.text else ""
    return [f"in {work.num_steps} of {view.timing.num_steps} steps, {work.function}{called}{text}"]


def short_name(function: str) -> str:
    """Shorten a library's function to module and name, `json.loads`; leave the program's own unchanged."""
    match = re.match(r"(?P<file>.+?)(\(\d+\)|(?<=\.py)): (?P<name>.+)", function)
    if match is None:
        return function
    parts = match["file"].removesuffix(".py").removesuffix("/__init__").split("/")
    packages = ("site-packages", "dist-packages")
    after = [at for at, part in enumerate(parts) if part in packages or part.startswith("python3")]
    return ".".join([*parts[(after[-1] + 1 if after else len(parts) - 1) :], match["name"]])
