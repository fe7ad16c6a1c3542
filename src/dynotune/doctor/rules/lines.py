"""Lines: common mistakes that a source line of the program, or the function that the line calls, shows by itself."""

import re
import tomllib
from importlib.resources import files

import msgspec

from dynotune.doctor import hot_lines, policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import Judgement, Judgements, Rule, rule
from dynotune.doctor.machine import cores_in_use
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.doctor.slow_steps import periodic
from dynotune.schema.observation import Line, PeriodicKind
from dynotune.schema.trace_summary import Place

_GENERAL = ("host-bound", "loader-bound", "launch-bound", "loader-jitter", "epoch-jitter")


class _Habit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One habit of habits.toml, whose head explains the fields. A line must match one of several patterns."""

    title: str
    what: str
    remedy: str
    wrong_when: str
    calls: str | list[str] = ""
    text: str | list[str] = ""
    at: str | list[str] = ""
    in_steps: PeriodicKind | None = None
    least: float = policy.LEAST_SHARE

    def is_at(self, line: Line) -> bool:
        """Return whether the source line shows the habit."""
        if self.at and not _found(self.at, line.text):
            return False
        if self.calls and _found(self.calls, f"{line.callee}\n{line.leaf}"):
            return True
        return bool(self.text) and not line.callee and _found(self.text, line.text)


def _found(pattern: str | list[str], text: str) -> bool:
    return re.search(pattern if isinstance(pattern, str) else "|".join(pattern), text) is not None


def _rule_of(id: str, habit: _Habit) -> Rule:
    @rule(
        family="lines",
        id=id,
        title=habit.title,
        sees=f"The rule looks for source lines at which a sampler saw the loader's workers, or the thread that runs "
        f"the steps, do this work: {habit.what[0].lower()}{habit.what[1:]}.",
        costs="The cost is the source line's share of the time between operators, or of the wait for the loader; with "
        "a device, at most the time for which the device waits for the host.",
        wrong_when=habit.wrong_when,
        explains=_GENERAL,
    )
    def judge(view: ObservationView) -> Judgements:
        found = [*hot_lines.of_python(view, habit.is_at), *hot_lines.of_loader(view, habit.is_at)]
        if habit.in_steps is not None:
            some = periodic(view, habit.in_steps)
            rare = [(Line(function=one.function, text=one.text, num=0), one.share) for one in some]
            # Steps that save may do other work as well, so the samples of saving itself are more exact.
            seen = hot_lines.known(lambda view: hot_lines.of_thread(view, habit.is_at), view)
            found = max(found, seen or rare, key=lambda lines: sum(part for _, part in lines))
        share = min(1.0, sum(part for _, part in found))
        if share < habit.least:
            return
        yield Judgement(
            claim=f"{habit.what} takes {share:.0%} of a step.",
            share=share,
            evidence=hot_lines.told(found),
            where=hot_lines.place(found),
            remedy=habit.remedy,
        )

    return judge


_TOLD = tomllib.loads(files("dynotune.doctor").joinpath("habits.toml").read_text("utf-8"))
HABITS = tuple(_rule_of(id, habit) for id, habit in msgspec.convert(_TOLD, dict[str, _Habit]).items())


@rule(family="lines")
def program_waits(view: ObservationView) -> Judgements:
    found = hot_lines.asleep(view)
    share = unless_waited(view, min(1.0, sum(part for _, part in found)))
    if share < policy.LEAST_SHARE:
        return
    largest, _ = max(found, key=lambda pair: pair[1])
    producer = _producer(view) if hot_lines.HANDS_OVER.search(f"{largest.callee}{largest.leaf}") else None
    remedy = "Wait less: shorten the sleep or the time limit, or do the next piece of work meanwhile."
    if producer is not None:
        remedy = f"The thread that it waits for is at {producer.function}: make that faster, or use processes."
    yield Judgement(
        claim=f"The program waits for {share:.0%} of a step, mostly at {hot_lines.in_words(largest)}.",
        share=share,
        evidence=hot_lines.told(found)
        + ([f"meanwhile: {hot_lines.in_words(producer)}"] if producer is not None else []),
        where=Place(function=largest.function),
        remedy=remedy,
    )


# Functions that release the interpreter lock while they run in C.
_UNLOCKED = re.compile(
    r"\b(cv2|zlib|bz2|lzma|hashlib|av|turbojpeg|simplejpeg)\.\w+|(np|numpy)\.(fromfile|load)\(|\.read\w*\(|"
    r"/(torch|PIL|cv2)/"
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
    # Its processor time is its own. In its other time, without its waits, it may have waited for the interpreter lock.
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
    yield Judgement(
        claim=f"Other threads of the program take {taken:.0%} of a core in Python while a step needs it.",
        share=share,
        evidence=[f"thread {one.name or 'without a name'}: {hot_lines.in_words(one.lines[0])}" for one in others[:3]],
        where=Place(function=busiest.lines[0].function),
    )
