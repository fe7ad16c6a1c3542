"""Threads of the program: they wait at a source line, or take the interpreter lock while a step needs it."""

import re

from dynotune.doctor import hot_lines, policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.machine import cores_in_use
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.schema.host import Line
from dynotune.schema.trace_summary import Place

# Functions that release the interpreter lock while they run in C.
_UNLOCKED = re.compile(
    r"\b(cv2|zlib|bz2|lzma|hashlib|av|turbojpeg|simplejpeg)\.\w+|(np|numpy)\.(fromfile|load)\(|\.read\w*\(|"
    r"/(torch|PIL|cv2)/"
)


@rule(family="lines")
def service_idle(view: ObservationView) -> Judgements:
    found = _idle(view)
    share = min(1.0, sum(part for _, part in found))
    # A program that works for longer than it waits is no idle one.
    if share < max(policy.MEDIUM_SHARE, view.attribution.shares.device):
        return
    largest, _ = max(found, key=lambda pair: pair[1])
    yield Judgement(
        claim=f"The program is idle for {share:.0%} of a step, as no request is waiting: "
        f"{hot_lines.in_words(largest)}.",
        severity="low",
        evidence=hot_lines.told(found),
        where=Place(function=largest.function),
    )


def _idle(view: ObservationView) -> list[hot_lines.Seen]:
    """Return the lines at which a program that serves requests waits for the next one.

    A wait for a thread of the program counts if that thread only waits, too: for a client, or for its time.
    """
    if view.is_training:
        return []
    producer = _producer(view)
    return [
        (line, share)
        for line, share in hot_lines.asleep(view)
        if hot_lines.listens(line)
        or (_is_handed(line) and producer is not None and hot_lines.only_waits(producer))
    ]


def _is_handed(line: Line) -> bool:
    return hot_lines.HANDS_OVER.search(f"{line.callee}{line.leaf}") is not None


@rule(family="lines")
def program_waits(view: ObservationView) -> Judgements:
    idle = _idle(view)
    found = [pair for pair in hot_lines.asleep(view) if pair not in idle]
    share = unless_waited(view, min(1.0, sum(part for _, part in found)))
    if share < policy.LEAST_SHARE:
        return
    largest, _ = max(found, key=lambda pair: pair[1])
    producer = _producer(view) if _is_handed(largest) else None
    remedy = "Wait less: shorten the sleep or the time limit, or do the next piece of work meanwhile."
    if producer is not None:
        awaited = f"The thread that it waits for is at {producer.function}"
        remedy = f"{awaited}: make that faster, or use processes."
    yield Judgement(
        claim=f"The program waits for {share:.0%} of a step, mostly at {hot_lines.in_words(largest)}.",
        share=share,
        evidence=hot_lines.told(found)
        + ([f"meanwhile: {hot_lines.in_words(producer)}"] if producer is not None else []),
        where=Place(function=largest.function),
        remedy=remedy,
    )


def _producer(view: ObservationView) -> Line | None:
    """Return the line at which the busiest other thread of the program was seen most."""
    others = [thread for thread in view.process.threads if not thread.of_steps and thread.lines]
    busiest = max(others, key=lambda thread: thread.cpu_s or 0.0, default=None)
    return None if busiest is None else busiest.lines[0]


@rule(family="lines")
def threads_compete(view: ObservationView) -> Judgements:
    steps, window_s = hot_lines.steps_thread(view), view.timing.window_s
    others = [one for one in view.process.threads if not one.of_steps and one.lines]
    if steps.cpu_s is None or any(one.cpu_s is None for one in others):
        raise Missing("processor time of threads", "the kernel does not say")
    # A library's own thread, such as torch's pinning thread, is never seen at a line of the program.
    taken = sum(
        min(
            (one.cpu_s or 0.0) / window_s,
            sum(line.num for line in one.lines if not _UNLOCKED.search(line.leaf or line.callee or line.text))
            / one.num,
        )
        for one in others
    )
    # Its processor time is its own. In its other time, without its waits, it may have waited for the
    # interpreter lock.
    waits = sum(part for _, part in hot_lines.asleep(view)) + view.attribution.shares.input
    idle = max(0.0, 1.0 - steps.cpu_s / window_s - waits)
    share = min(taken, view.attribution.shares.host if view.uses_cuda else idle)
    if not view.uses_cuda:
        # If no core was free, the thread may have waited for a core, in proportion to the cores in use.
        used, cores = cores_in_use(view), view.number_or_none("host.num_cores")
        part = taken / used if used and cores is not None and used >= policy.USED_UP * cores else 1.0
        share = min(share, part if part >= policy.LARGE_PART else 0.0)
    if share < policy.MEDIUM_SHARE:
        return
    busiest = max(others, key=lambda one: one.cpu_s or 0.0)
    seen = [(one.name or "without a name", hot_lines.in_words(one.lines[0])) for one in others[:3]]
    yield Judgement(
        claim=f"Other threads of the program take {taken:.0%} of a core in Python while a step needs it.",
        share=share,
        evidence=[f"thread {name}: {line}" for name, line in seen],
        where=Place(function=busiest.lines[0].function),
    )
