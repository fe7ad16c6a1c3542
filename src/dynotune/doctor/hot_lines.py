"""Source lines at which a sampler saw the program's threads: each line's share of a step, and its code."""

import re
from collections.abc import Callable, Iterable

from dynotune.doctor.loaders import main_loader, steady_wait
from dynotune.doctor.observation_view import Missing, ObservationView, or_else
from dynotune.doctor.periodic_work import short_name
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, Thread
from dynotune.schema.loader import SamplePart
from dynotune.schema.trace_summary import Place

FEWEST = 20
"""Samples of a thread: with fewer, a single sample is more than a twentieth of a step."""
ASLEEP = 0.25
"""Processor time over wall time of a thread at a line. Below this the line waits."""
NOWHERE = Place()
MOST_TOLD, LEAST_TOLD = 3, 0.005

Seen = tuple[Line, float]
"""A source line, and the line's share of a step."""

_LIBRARY = re.compile(r"/(site|dist)-packages/")
# An environment's folder may also be named torch.
_OF_TORCH = re.compile(r"(^|/)torch/(?!.*/(lib/python3|(site|dist)-packages/))")
_SETS_UP = re.compile(
    r"/torch/(nn|optim)/(\w+/)?\w+\.py\(\d+\): __init__|/torch/nn/init\.py\(|/torch/serialization\.py\(|"
    r"/torch/nn/modules/module\.py\(\d+\): (load_state_dict|_apply|to)$",
    re.MULTILINE,
)
_WAITING = re.compile(
    r"/(threading|queue|selectors|socket|ssl|subprocess|multiprocessing/\w+|concurrent/\w+)\.py\("
)
_LISTENS = re.compile(r"/(selectors|socket|ssl)\.py\(|\.(accept|recv|recv_into|select|poll)\(")
HANDS_OVER = re.compile(r"/(queue|threading)\.py\(")
_SLEEPS = re.compile(r"^(?:await\s+)?(?:\w+\.)*sleep\(")
_WAITS_BY_TEXT = re.compile(r"sleep|wait|acquire|\.(get|join|recv|result|select|poll|accept)\(")
_READS = re.compile(
    r"\.(item|tolist|cpu|numpy)\(\)|synchronize\(|nonzero\(|(?<![\w.])(float|int|bool)\([a-z_]*(loss|norm|acc|score|metric)"
)


def steps_thread(view: ObservationView) -> Thread:
    """Return the thread that makes the steps. Raises Missing: no sampler ran, or for too short a time."""
    found = next((thread for thread in view.process.threads if thread.of_steps), None)
    if found is None or found.num < FEWEST:
        raise Missing("lines of the program", "its threads were not looked at often enough")
    return found


def is_torchs(line: Line) -> bool:
    """Tell whether the line runs torch's Python code: a module, a backward pass, an optimizer."""
    return _OF_TORCH.search(line.callee) is not None


def sets_up(line: Line) -> bool:
    """Tell whether the line has torch build, load or move a module or an optimizer, which belongs before the
    loop."""
    return is_torchs(line) and _SETS_UP.search(f"{line.callee}\n{line.leaf}") is not None


def ends_in_torch(line: Line) -> bool:
    """Tell whether the line calls torch's Python code, directly or through a library for training or
    generation."""
    return is_torchs(line) or bool(_LIBRARY.search(line.callee) and _OF_TORCH.search(line.leaf))


def asleep(view: ObservationView) -> list[Seen]:
    """Return the lines at which the thread that makes the steps sleeps or waits for a thread, socket or
    process.

    A line that takes no processor time may also wait for the device or for a core, so its code must name the
    wait.
    """
    thread = steps_thread(view)
    chosen = (
        line
        for line in thread.lines
        if line.inside == "event-loop" or (_waits(line) and _idles(view, line, line.least_cpu_s))
    )
    return [(line, line.num / thread.num) for line in chosen]


def listens(line: Line) -> bool:
    """Tell whether the line waits for a client: at a socket, or as a task of an event loop that does not
    sleep."""
    if line.inside == "event-loop":
        return not _SLEEPS.search(line.text)
    return _LISTENS.search(f"{line.callee}\n{line.leaf}\n{line.text}") is not None


def only_waits(line: Line) -> bool:
    """Tell whether a thread seen at the line mostly sleeps, or waits for a client or another thread."""
    return _SLEEPS.search(line.text) is not None or listens(line) or _WAITING.search(line.callee) is not None


def _idles(view: ObservationView, line: Line, cpu_s: float | None = None) -> bool:
    """Tell whether the thread took hardly any processor time at the line; `cpu_s` replaces the line's own
    time.

    If the thread leaves a line before its next sample, the line also gets the time of the lines that follow.
    A line that only sleeps takes none of that time.
    """
    if line.inside or is_torchs(line):
        return False
    if _SLEEPS.search(line.text) and not line.callee:
        return True
    cpu_s = line.cpu_s if cpu_s is None else cpu_s
    if cpu_s is None:
        return False
    return cpu_s < ASLEEP * line.num * view.timing.window_s / steps_thread(view).num


def _waits(line: Line) -> bool:
    return (
        _WAITING.search(f"{line.callee}\n{line.leaf}") is not None
        or _WAITS_BY_TEXT.search(line.text) is not None
    )


def of_python(view: ObservationView, chosen: Callable[[Line], bool] = lambda line: True) -> list[Seen]:
    """Return lines of Python's own work between operators, each with a bound of its share of a step.

    A line that has torch set something up counts as well: its operators are no work of the model. With a
    device, a line costs at most its own time, and at most the device's wait for the host. A line that reads a
    value of the device waits for the device: see `of_reads`.
    """
    thread = steps_thread(view)
    sleeps = [line for line, _ in asleep(view)]
    own = [line for line in thread.lines if not line.inside and (sets_up(line) or not is_torchs(line))]
    own = [line for line in own if not _idles(view, line)]
    own = [line for line in own if line not in sleeps]
    own = [line for line in own if not view.uses_cuda or line.callee or not _READS.search(line.text)]
    most = view.attribution.shares.host if view.uses_cuda else 1.0
    return [(line, min(most, line.num / thread.num)) for line in own if chosen(line)]


def within(lines: list[Seen], share: float) -> list[Seen]:
    """Return the lines with shares scaled down to sum to at most `share`: part of their time belongs to
    operators."""
    total = sum(part for _, part in lines)
    return [(line, part * min(1.0, share / total)) for line, part in lines] if total else []


def of_loader(view: ObservationView, chosen: Callable[[Line], bool] = lambda line: True) -> list[Seen]:
    """Return lines that make samples, each with its part of the step's wait for samples; `callee` is `decode:
    text`.

    Threads of the program itself count if the thread that makes the steps waits for a queue or an event.
    """
    loader = main_loader(view)
    if loader is None:
        makers = [one.parts for one in view.process.threads if not one.of_steps]
        parts = max(makers, key=lambda rows: sum(row.wall_s for row in rows), default=[])
        share = sum(part for line, part in asleep(view) if HANDS_OVER.search(f"{line.callee}{line.leaf}"))
    else:
        loading, share = loader.loading, steady_wait(view, loader)
        parts = [] if isinstance(loading, Unknown) else loading.parts
    total_s = sum(part.wall_s for part in parts)
    if sum(part.num for part in parts) < FEWEST or not total_s:
        return []
    made = [(_line(part), share * part.wall_s / total_s) for part in parts]
    return [(line, part) for line, part in made if chosen(line)]


def _line(part: SamplePart) -> Line:
    callee = "" if part.part == "own" else f"{part.part}: {part.what}"
    return Line(function=part.function, text=part.text, callee=callee, num=part.num)


def of_reads(view: ObservationView) -> list[Seen]:
    """Return the lines that read values of the device or wait for it, with the time to compute what they
    read."""
    return of_thread(view, lambda line: _READS.search(line.text) is not None)


def of_thread(view: ObservationView, chosen: Callable[[Line], bool]) -> list[Seen]:
    """Return lines of the thread that makes the steps, outside the loader, with all of their time, torch's
    included."""
    thread = steps_thread(view)
    return [(line, line.num / thread.num) for line in thread.lines if not line.inside and chosen(line)]


def of_communication(view: ObservationView) -> list[Seen]:
    """Return lines at which the thread that makes the steps was seen in torch's collectives."""
    return of_thread(view, lambda line: "torch/distributed/" in f"{line.callee} {line.leaf}")


def of_forward(view: ObservationView) -> list[Seen]:
    """Return lines that call operators or torch's code, without the line that begins the backward pass.

    The backward pass has the operators of these lines again, so its own line says nothing about where they
    come from.
    """
    lines = of_thread(view, lambda line: is_torchs(line) or not line.callee)
    return [pair for pair in lines if "_engine_run_backward" not in pair[0].leaf] or lines


def updating(view: ObservationView) -> float | None:
    """Return the share of unrecorded steps in which their thread was seen in torch's optimizers; None if it
    never was."""
    thread = or_else(lambda: steps_thread(view), None)
    if thread is None:
        return None
    num = sum(line.num for line in thread.lines if "/torch/optim/" in f"{line.callee} {line.leaf}")
    return num / thread.num if num else None


def known(lines: Callable[[ObservationView], list[Seen]], view: ObservationView) -> list[Seen]:
    """Return `lines(view)`; an empty list if no sampler ran."""
    return or_else(lambda: lines(view), [])


def place(lines: Iterable[Seen], otherwise: Place = NOWHERE) -> Place:
    """Return the place of the largest of these lines; `otherwise` without lines."""
    largest = max((pair for pair in lines if pair[0].function), key=lambda pair: pair[1], default=None)
    return otherwise if largest is None else Place(function=largest[0].function)


def told(lines: Iterable[Seen], what: str = "of a step") -> list[str]:
    """Return lines of evidence for the largest of these lines."""
    alike: dict[str, float] = {}
    for line, share in lines:
        alike[in_words(line)] = alike.get(in_words(line), 0.0) + share
    most = sorted(alike.items(), key=lambda pair: -pair[1])[:MOST_TOLD]
    return [f"{share:.0%} {what} at {words}" for words, share in most if share >= LEAST_TOLD]


def in_words(line: Line) -> str:
    """Write a line as `train.py(31): step, in json.loads, "rows = [json.loads(each) for each in lines]"`."""
    called = f", in {short_name(line.callee)}" if line.callee else ""
    return f"{line.function or 'the library'}{called}" + (f": {line.text}" if line.text else "")
