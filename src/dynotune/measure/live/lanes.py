"""Lanes: fresh runs of a single-GPU program side by side, each on a GPU and cores of its own.

A lane is a GPU, named by its UUID, with its share of the cores, those near it first; without any GPU, a share of the
cores alone. A pair of runs stays in one lane, and so does a block of two pairs, ABBA or BAAB. How fast a lane is
cancels in the ratio within a pair, and what it does to the second run of a pair cancels within a block. So lanes enter
as blocks, need no weights, and may differ in speed without a wrong verdict.

A lane in which steps take longer than on the whole machine is left out all the same: the program has too few cores
there, waits for a disk that lanes share, or has a worse GPU. What a setting does there says little of what it does to
the user. If fewer than two lanes are left, half as many share the machine, and at last there is one.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from dynotune import probe
from dynotune.measure.live.live_run import num_ranks
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.pilot import steady_steps, steps_from
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.warmup import PRIOR_BETWEEN_RUNS, batch_means
from dynotune.schema.errors import CannotRunHere, DynotuneError, UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

T = TypeVar("T")

AUTO = 0
"""`RunSpec.lanes`: as many as there are idle GPUs of one kind."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
BUSY_PERCENT, BUSY_MEMORY = 10, 0.1
"""Of a GPU's time, and of its memory: more in use before anything of ours runs, and it is another program's."""
SURE = 3.0
"""Standard errors by which a lane is slower than the fastest: by less, eight lanes that are alike might lose one."""


class Place(NamedTuple):
    """Where a lane may be: a GPU as `CUDA_VISIBLE_DEVICES` names it, empty without one, and the cores near it."""

    gpu: str = ""
    near: frozenset[int] = frozenset()


class Lane(msgspec.Struct, frozen=True):
    """A GPU and cores that one run at a time has. `number` counts from 1."""

    number: int = 0
    gpu: str = ""
    cpus: frozenset[int] = frozenset()

    def of(self, run: RunSpec) -> RunSpec:
        """Return the run as it is in this lane; its cores are those of the thread that starts it."""
        return msgspec.structs.replace(run, env=run.env | {VISIBLE: self.gpu}) if self.gpu else run

    def cache_folder(self, folder: Path, arm: str) -> Path:
        """Of an arm: each lane has its own, so that no lane finds, or empties, what another has compiled."""
        return folder / "caches" / (f"lane-{self.number}" if self.number else "") / arm

    def __str__(self) -> str:
        return f"lane {self.number}" + (f" ({self.gpu})" if self.gpu else "")


WHOLE = Lane()
"""The machine as it is: one run has all of it, and runs go one after another."""


def refuse_impossible(run: RunSpec, settings: Iterable[Setting]) -> None:
    """Find out before anything runs which lanes cannot be. `settings`: of all arms.

    Raises UsageError, CannotRunHere: there are fewer GPUs or cores, or runs must not go side by side.
    """
    if run.lanes == 1:
        return
    if run.objective == "time-to-first-step":
        raise UsageError(
            "Starts are not timed side by side: all of them read the same disk.", hint="Leave --lanes out."
        )
    if chosen := next((one for one in settings if one.knob == f"env.{VISIBLE}"), None):
        raise UsageError(f"{chosen} chooses the GPU, as lanes do.", hint="Leave --lanes out, or that setting.")
    gpus = probe.nvml.visible_gpus(run.env)
    if isinstance(gpus, Unknown):
        raise CannotRunHere(
            f"Lanes need to know which GPUs the command sees: {gpus.reason}.", hint="Leave --lanes out."
        )
    num, what = (len(gpus), "GPUs") if gpus else (len(probe.host.usable_cpus()), "cores")
    if run.lanes > num:
        raise UsageError(
            f"The command sees {num} {what}: too few for {run.lanes} lanes.",
            hint=f"Give --lanes {num} at most, or --lanes auto.",
        )


def places(run: RunSpec, watcher: Watcher) -> list[Place]:
    """Return a place a lane, as many as are asked for at most; none where runs are to go one after another.

    A GPU that is busy, or is of another kind than the first idle one, is left out, which the watcher is told.
    """
    if run.lanes == 1:
        return []
    facts = probe.gpu.facts(run.env)
    count = facts["gpu.count"]
    if not count or isinstance(count, Unknown):
        return [Place()] * run.lanes
    found = idle_places(facts, run.env.get(VISIBLE, ""), watcher)[: run.lanes or None]
    if len(found) < 2:
        watcher.say("Fewer than two GPUs are idle and of one kind.")
    return found if len(found) > 1 else []


def idle_places(facts: Facts, visible: str, watcher: Watcher) -> list[Place]:
    """Return the places of idle GPUs of one kind. `facts`: as `probe.gpu.facts`; `visible`: the user's own variable."""
    found: list[Place] = []
    kind: tuple[object, object] | None = None
    names = visible.split(",") if visible else []
    for place in range(int(str(facts["gpu.count"]))):
        fact = {name: facts.get(f"gpu{place or ''}.{name}", Unknown("")) for name in _ASKED}
        uuid, near = fact["uuid"], fact["cpu_affinity"]
        name = uuid if isinstance(uuid, str) else names[place] if names else str(place)
        kind = kind or (None if _busy(fact) else (fact["name"], fact["memory_bytes"]))
        if why := _busy(fact) or (
            kind != (fact["name"], fact["memory_bytes"]) and f"it is another kind, {fact['name']}"
        ):
            watcher.say(f"GPU {place} ({name}) is left out: {why}.")
            continue
        found.append(Place(name, frozenset(map(int, near)) if isinstance(near, list) else frozenset()))
    return found


_ASKED = ("uuid", "name", "memory_bytes", "utilisation_percent", "memory_used_bytes", "cpu_affinity")


def _busy(fact: Mapping[str, object]) -> str:
    """Whether another program works on a GPU; what is not known speaks for none."""
    percent, used, held = (fact[name] for name in ("utilisation_percent", "memory_used_bytes", "memory_bytes"))
    if isinstance(percent, int) and percent >= BUSY_PERCENT:
        return f"it is busy with other work ({percent}% of the time)"
    if isinstance(used, int) and isinstance(held, int) and used >= BUSY_MEMORY * held:
        return f"other programs hold {used / held:.0%} of its memory"
    return ""


def divide(among: Sequence[Place], cores: Sequence[list[int]]) -> list[Lane]:
    """Share the cores out, as many a lane: in turns, the cores near its GPU before others.

    `cores`: the logical processors of each, which stay together unless there are fewer cores than lanes.
    """
    left = [*cores] if len(cores) >= len(among) else [[cpu] for core in cores for cpu in core]
    share = len(left) // len(among)
    taken: list[list[list[int]]] = [[] for _ in among]
    for only_near in (True, False):
        for mine, place in [(mine, place) for _ in range(share) for mine, place in zip(taken, among, strict=True)]:
            core = next((core for core in left if not only_near or place.near.issuperset(core)), None)
            if core is not None and len(mine) < share:
                left.remove(core)
                mine.append(core)
    return [
        Lane(number, place.gpu, frozenset(cpu for core in mine for cpu in core))
        for number, (mine, place) in enumerate(zip(taken, among, strict=True), 1)
    ]


# Runs in lanes


class Stopped(Exception):
    """Nobody waits for this run any more."""


class SideBySide(AbstractContextManager["SideBySide"]):
    """A thread a lane. Leaving the `with` block ends what runs; after that it can be used again.

    The kernel keeps the affinity of each thread, and whatever a thread starts inherits it: the command, and the sampler
    that looks at its cores. So the work of other lanes does not pass for interference.
    """

    def __init__(self) -> None:
        self._threads: dict[Lane, ThreadPoolExecutor] = {}
        self._is_over = threading.Event()

    def begin(self, lane: Lane, job: Callable[[], T]) -> Future[T]:
        """Do the job once what the lane was given before is done; now, if it has the whole machine."""
        if not lane.cpus:
            done = Future[T]()
            done.set_result(job())
            return done
        if lane not in self._threads:
            self._threads[lane] = ThreadPoolExecutor(
                1, f"dynotune-lane-{lane.number}", initializer=os.sched_setaffinity, initargs=(0, lane.cpus)
            )
        return self._threads[lane].submit(job)

    def go_on(self) -> None:
        """Called again and again while a run goes on. Raises Stopped: nobody waits for it any more."""
        if self._is_over.is_set():
            raise Stopped

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        while self._threads:
            self._threads.popitem()[1].shutdown(cancel_futures=True)
        self._is_over.clear()


class InOrder(Generic[T]):
    """Pairs that are begun ahead, each in the lane of its block, and taken in the order in which they were drawn.

    `job`: makes the pair of this number, counted from 0, in this lane.
    """

    def __init__(self, side: SideBySide, among: Sequence[Lane], job: Callable[[Lane, int], T]) -> None:
        self._side, self._lanes, self._job = side, among, job
        self._begun: dict[int, Future[T]] = {}

    def take(self, pair: int, num_pairs: int, most: float = math.inf) -> T | None:
        """Wait for a pair, while its lane and the others have those that come next; None if there is no time for it.

        A pair that was taken is made again if it is asked for again.

        Args:
            num_pairs: none from this one on is begun.
            most: pairs that a lane can make in the time left. However long it takes, one pair is made.
        """
        num = len(self._lanes)
        # One lane has a pair at a time. Several are given the next one while one runs, so that no lane waits.
        for ahead in range(pair, min(pair + 2 * num - 1, num_pairs)):
            at = lane_of(ahead, num)
            has_time = sum(lane_of(other, num) == at for other in self._begun) < most
            if ahead not in self._begun and (has_time or ahead == pair == 0):
                job = functools.partial(self._job, self._lanes[at], ahead)
                self._begun[ahead] = self._side.begin(self._lanes[at], job)
        begun = self._begun.pop(pair, None)
        return None if begun is None else begun.result()


def lane_of(pair: int, num_lanes: int) -> int:
    """Return the index of the lane that has the pair, counted from 0: both pairs of a block have the same."""
    return pair // 2 % num_lanes


def most_in_a_lane(num_pairs: int, num_lanes: int) -> int:
    """Return how many of the pairs the first lane has, which has most: so long they take together."""
    return sum(lane_of(pair, num_lanes) == 0 for pair in range(num_pairs))


def numbers(num: int, runs: Iterable[str]) -> Iterator[int]:
    """Count on from the `num` that were taken before, past the numbers that their run folders begin with.

    Those of lanes are not taken in the order in which they begin.
    """
    known = (run.rpartition("/")[2].partition("-")[0] for run in runs)
    return itertools.count(1 + max([num, *(int(number) for number in known if number.isdecimal())]))


# Whether lanes are alike


def alike(
    run: RunSpec,
    among: Sequence[Place],
    alone: Outcome,
    side: SideBySide,
    launch: Callable[[Lane], Outcome],
    watcher: Watcher,
) -> dict[Lane, Outcome]:
    """Return the lanes in which steps take no longer than on the whole machine, each with its pilot; none or several.

    Args:
        alone: a pilot of the command that had the whole machine.
        launch: runs such a pilot in a lane.

    Raises UsageError: the program uses several GPUs itself, and lanes were asked for by number.
    """
    if reason := among and _why_several(alone):
        if run.lanes != AUTO:
            raise UsageError(f"Lanes are for a program of one GPU: {reason}.", hint="Leave --lanes out.")
        watcher.say(f"Lanes are for a program of one GPU: {reason}.")
        return {}
    while len(among) > 1:
        made = divide(among, probe.host.cores(probe.host.usable_cpus()))
        watcher.running(f"the command in {len(made)} lanes at once")
        pilots = on_each(side, made, launch, watcher)
        slow = slower(alone, pilots)
        for lane, share in slow.items():
            watcher.say(f"{str(lane).capitalize()} is left out: steps take {share:.0%} longer there.")
        if len(pilots) - len(slow) > 1:
            return {lane: pilot for lane, pilot in pilots.items() if lane not in slow}
        among = among[: len(among) // 2]
        watcher.say(f"{len(made)} lanes are too many here.")
    return {}


def on_each(side: SideBySide, made: Iterable[Lane], launch: Callable[[Lane], T], watcher: Watcher) -> dict[Lane, T]:
    """Launch in all lanes at once, and return what came of those that did not fail.

    What fails beside others may still run if it has the machine to itself: the runs that follow tell.
    """
    begun = {lane: side.begin(lane, functools.partial(launch, lane)) for lane in made}
    found = {}
    for lane, future in begun.items():
        try:
            found[lane] = future.result()
        except DynotuneError as error:
            watcher.say(f"{str(lane).capitalize()} is left out: {error.message}")
    return found


def _why_several(alone: Outcome) -> str:
    """Why the program is none of a single GPU; empty if it is."""
    if (num := num_ranks(alone.records)) > 1:
        return f"this one runs in {num} ranks"
    num = max((process.num_devices or 0 for process in alone.run.processes), default=0)
    return f"this one uses {num} GPUs itself" if num > 1 else ""


def slower(alone: Outcome, together: Mapping[Lane, Outcome]) -> dict[Lane, float]:
    """By how much a lane is slower than the fastest of all, as a share, of lanes where that is no noise.

    `alone`: a pilot that had the whole machine. It may be slower than all lanes, as the first run of all reads a cold
    disk: then the fastest lane shows what the machine can do.
    """
    paces = {lane: _pace(outcome) for lane, outcome in {WHOLE: alone, **together}.items()}
    best, best_se = min(paces.values())
    found = {}
    for lane in together:
        log, se = paces[lane]
        # Two runs of one lane differ as well, by what a single pilot cannot tell.
        if log - best > SURE * math.sqrt(se**2 + best_se**2 + 2 * PRIOR_BETWEEN_RUNS**2):
            found[lane] = math.expm1(log - best)
    return found


def _pace(outcome: Outcome) -> tuple[float, float]:
    """Logarithm of the time of a steady step, and its standard error; infinite where the steps are too few for one."""
    record = outcome.records[0]
    first = steady_steps(record)
    times = steps_from(len(record.steps) // 2 if first is None else first, record)
    means, mean = batch_means(times), statistics.fmean(times)
    se = statistics.stdev(means) / math.sqrt(len(means)) / mean if len(means) > 1 else math.inf
    return math.log(mean), se
