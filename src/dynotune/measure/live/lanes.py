"""Make runs of a single-GPU program side by side in lanes, each lane with its own GPU and cores.

A lane is a GPU, identified by its UUID, with a share of the cores, nearest cores first; without a GPU, a lane is only a
share of the cores. A pair of runs stays in one lane, and so does a block of two pairs, ABBA or BAAB. A lane's speed
cancels in the ratio within a pair, and a lane's effect on the second run of a pair cancels within a block. So lanes
need no weights in the statistics, and lanes of different speed do not cause wrong verdicts.

A lane with longer steps than on the whole machine is still left out, whatever the cause: too few cores, a shared
disk, a slower GPU. A setting's effect in such a lane says little to the user.
"""

import functools
import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from dynotune import probe
from dynotune.measure.live.live_run import num_ranks
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.pilot import lane_of, steady_steps, steps_from
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.warmup import PRIOR_BETWEEN_RUNS, batch_means
from dynotune.schema.errors import DynotuneError, UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.text import words

T = TypeVar("T")

AUTO = 0
"""Value of `RunSpec.lanes` that means as many lanes as there are idle GPUs of one model."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_AT_ONCE, CORES_EACH, CONTEXT_BYTES, GROWTH = 6, 2, 2 << 30, 4
"""Limits of concurrent untimed runs: each has a context on the GPU, and float64 makes tensors larger by `GROWTH`."""
BUSY = 0.1
"""Share of a GPU's time or memory: if more is in use before dynotune runs anything, another program uses the GPU."""
SAME_SIZE = 0.01
"""Share by which the memory of GPUs of one model may differ: the driver reserves some, and retires pages."""
SURE = 3.0
"""Standard errors by which a lane must be slower; with fewer, one of eight equal lanes would often be left out."""
SETTLE_S = 5.0
"""Longest wait for a busy GPU to become idle: the driver reports utilisation of up to the last second."""
LOOK_S = 0.5


class Lane(NamedTuple):
    """A GPU as `CUDA_VISIBLE_DEVICES` names it (empty without a GPU) and cores, for one run at a time.

    `number` counts from 1. Before the cores are divided, `cpus` are those near the GPU. `host` names another machine
    whose runs the lane waits for; its `cpus` are then those of the waiting thread.
    """

    number: int = 0
    gpu: str = ""
    cpus: frozenset[int] = frozenset()
    host: str = ""

    def of(self, run: RunSpec) -> RunSpec:
        """Return the run changed for this lane; the run gets the cores of the thread that starts the run."""
        return replace(run, env=run.env | {VISIBLE: self.gpu}) if self.gpu else run

    def cache_folder(self, folder: Path, run: RunSpec) -> Path:
        """Return the cache folder: lanes share `folder` like ranks do, except for cold caches, which are emptied."""
        return folder / f"lane-{self.number}" if self.number and run.caches == "cold" else folder


class Notes:
    """Messages about lanes: shown to the user at once, and kept for readers of the record."""

    def __init__(self, watcher: Watcher, said: Iterable[str] = ()) -> None:
        self.said, self.running, self._tell = [*said], watcher.running, watcher.say

    def say(self, text: str) -> None:
        self.said.append(text)
        self._tell(text)


Launch = Callable[[Lane], Outcome]
WHOLE = Lane()
"""The machine without lanes: one run has all of it, and runs follow one another."""


def refuse_impossible(run: RunSpec, settings: Iterable[Setting]) -> None:
    """Refuse impossible lanes before the command runs. `settings`: settings of baseline and candidate.

    Raises UsageError: there are fewer GPUs or cores, or the runs must not be concurrent.
    """
    if run.lanes == 1:
        return
    gpus, cpus, why = probe.nvml.visible_gpus(run.env), probe.host.usable_cpus(), ""
    if run.objective == "time-to-first-step":
        why = "Starts are not timed side by side: they read the same disk."
    elif any(one.knob == f"env.{VISIBLE}" for one in settings):
        why = f"A setting of {VISIBLE} chooses the GPU, as lanes do."
    elif isinstance(gpus, Unknown):
        why = f"Which GPUs the command sees is not known: {gpus.reason}."
    else:
        few = [f"{num} {what}" for what, num in (("GPUs", len(gpus)), ("cores", len(cpus))) if 0 < num < run.lanes]
        why = f"The command sees {few[0]}, too few for {run.lanes} lanes." if few else ""
    if why:
        raise UsageError(why, hint="Leave --lanes out, or ask for fewer.")


def wanted(run: RunSpec, notes: Notes) -> list[Lane]:
    """Return at most the requested number of lanes, with cores near their GPUs; no lanes mean runs one after another.

    Call `wanted` before dynotune runs the command: a GPU that is busy then, and stays busy, is left out.
    """
    if run.lanes == 1:
        return []
    until_s = time.monotonic() + SETTLE_S
    while True:
        facts = probe.gpu.facts(run.env)
        if not (num := facts["gpu.count"]) or not isinstance(num, int):
            return [Lane()] * run.lanes
        if time.monotonic() >= until_s or not any(_is_busy(_in_use(facts, place)) for place in range(num)):
            break
        time.sleep(LOOK_S)
    found = idle(facts, num, run.env.get(VISIBLE, ""), notes)
    notes.say(f"Of {num} GPUs that the command sees, {len(found)} can have a lane.")
    if len(found) == 1 < num:
        notes.say(f"To run on that GPU alone: {VISIBLE}={found[0].gpu} before dynotune.")
    return found[: run.lanes or None]


def _in_use(facts: Facts, place: int) -> dict[str, float]:
    """Return the used shares of a GPU's time and of its memory, as far as NVML reports them."""
    names = ("utilisation_percent", "memory_used_bytes", "memory_bytes")
    told = [facts.get(f"gpu{place or ''}.{name}") for name in names]
    percent, used, size = (one if isinstance(one, int) else None for one in told)
    shares = {} if percent is None else {"time": percent / 100}
    return shares | ({"memory": used / size} if size and used is not None else {})


def _is_busy(shares: Mapping[str, float]) -> bool:
    return max(shares.values(), default=0.0) >= BUSY


def idle(facts: Facts, num: int, visible: str, notes: Notes) -> list[Lane]:
    """Return the GPUs among `num` that are idle and of the same model as the first idle GPU.

    `facts`: result of `probe.gpu.facts`. `visible`: the user's `CUDA_VISIBLE_DEVICES`, to name GPUs without UUID.
    """
    found: list[Lane] = []
    usual: tuple[str, float] | None = None
    known: dict[str, Any] = {name: value for name, value in facts.items() if not isinstance(value, Unknown)}
    for place, name in enumerate((visible or ",".join(map(str, range(num)))).split(",")[:num]):
        gpu = f"gpu{place or ''}"
        kind = known.get(f"{gpu}.name", ""), known.get(f"{gpu}.memory_bytes", math.inf)
        shares = _in_use(facts, place)
        if _is_busy(shares):
            much = " and ".join(f"{share:.0%} of its {what}" for what, share in shares.items())
            notes.say(f"GPU {name} is left out: another program uses it, {much}.")
        elif kind[0] != (usual := usual or kind)[0] or not math.isclose(kind[1], usual[1], rel_tol=SAME_SIZE):
            notes.say(f"GPU {name} is left out: it is of another kind, {kind[0]} of {kind[1] / 1e9:.1f} GB.")
        else:
            if not shares:
                notes.say(f"Whether another program uses GPU {name} is unknown: NVML does not report it.")
            near = frozenset(known.get(f"{gpu}.cpu_affinity", ()))
            found.append(Lane(0, known.get(f"{gpu}.uuid", name), near))
    return found


def divide(among: Sequence[Lane], cores: Sequence[list[int]]) -> list[Lane]:
    """Divide the cores equally among lanes: in turns, each taking cores near its GPU first.

    `cores`: logical processors of each core, which stay together unless there are fewer cores than lanes.
    """
    left = [*cores] if len(cores) >= len(among) else [[cpu] for core in cores for cpu in core]
    share = len(left) // len(among)
    taken: list[list[list[int]]] = [[] for _ in among]
    for only_near, _ in itertools.product((True, False), range(share)):
        for mine, lane in zip(taken, among, strict=True):
            core = next((core for core in left if not only_near or lane.cpus.issuperset(core)), None)
            if core is not None and len(mine) < share:
                left.remove(core)
                mine.append(core)
    return [Lane(at + 1, lane.gpu, frozenset(itertools.chain(*taken[at]))) for at, lane in enumerate(among)]


def room(run: RunSpec, alone: Outcome) -> int:
    """Return how many untimed runs like `alone` fit on its GPU at once; 1 if concurrent runs could collide."""
    made, free = alone.run, probe.host_memory.available_bytes()
    peak = sum(process.peak_device_bytes or 0 for process in made.processes)
    host = sum(process.peak_rss_bytes or 0 for process in made.processes)
    num = max([num_ranks(alone.records), *(process.num_devices or 0 for process in made.processes)])
    meets = num > 1 or run.caches == "cold" or (made.sandbox != "overlay" and made.changed_files)
    if not peak or meets or isinstance(free, Unknown):
        return 1
    known: dict[str, int] = {name: size for name, size in probe.gpu.facts(run.env).items() if isinstance(size, int)}
    used = {name: name.replace("memory_", "memory_used_") for name in known if name.endswith(".memory_bytes")}
    left = min((known[name] - known[of] for name, of in used.items() if of in known), default=0)
    memory = min(left // (GROWTH * peak + CONTEXT_BYTES), free // (2 * host + 1))
    return max(1, min(MOST_AT_ONCE, len(probe.host.usable_cpus()) // CORES_EACH, memory))


class Stopped(Exception):
    """Error: a run stops because nobody needs its result any more."""


class SideBySide(AbstractContextManager["SideBySide"]):
    """Threads, one per lane. Leaving the `with` block ends all runs; the object can then be used again.

    The kernel keeps each thread's CPU affinity, and the command and the sampler that the thread starts inherit it. So
    the sampler of a lane does not count the work of other lanes as interference.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Lock for data that several runs write."""
        self._threads: dict[Lane, ThreadPoolExecutor] = {}
        self._is_over = threading.Event()

    def begin(self, lane: Lane, job: Callable[[], T]) -> Future[T]:
        """Start the job after the lane's previous job; run it at once if the lane is the whole machine."""
        if lane == WHOLE:
            done = Future[T]()
            done.set_result(job())
            return done
        if lane not in self._threads:
            self._threads[lane] = ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, lane.cpus))
        return self._threads[lane].submit(job)

    def go_on(self) -> None:
        """Raise Stopped if nobody waits for the run's result any more."""
        if self._is_over.is_set():
            raise Stopped

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        while self._threads:
            self._threads.popitem()[1].shutdown(cancel_futures=True)
        self._is_over.clear()


class InOrder(Generic[T]):
    """Start pairs ahead, each in the lane of its block, and return them in the order in which they were drawn.

    The duration of a pair depends on the value that the pair measures. If pairs were taken in the order of their ends,
    an interim look would judge only quick pairs, which are a biased selection.

    `job`: function that makes pair `number` (from 0) in a lane.
    """

    def __init__(self, side: SideBySide, among: Sequence[Lane], job: Callable[[Lane, int], T]) -> None:
        self._side, self._lanes, self._job = side, among, job
        self._begun: dict[int, Future[T]] = {}

    def take(self, pair: int, num_pairs: int, most: float = math.inf) -> T | None:
        """Wait for a pair; make the pair again if it was taken before. Return None if no time is left for the pair.

        Args:
            num_pairs: start no pair from this number on.
            most: number of pairs that a lane can make in the time left. One pair is always made, however long it takes.
        """
        num = len(self._lanes)
        # With several lanes, each gets its next pair early, so that no lane waits.
        for ahead in range(pair, min(pair + 2 * num - 1, num_pairs)):
            at = lane_of(ahead, num)
            has_time = sum(lane_of(other, num) == at for other in self._begun) < most
            if ahead not in self._begun and (has_time or ahead == pair == 0):
                job = functools.partial(self._job, self._lanes[at], ahead)
                self._begun[ahead] = self._side.begin(self._lanes[at], job)
        begun = self._begun.pop(pair, None)
        return None if begun is None else begun.result()


def numbers(num: int, runs: Iterable[str]) -> Iterator[int]:
    """Continue counting from `num` and the highest number of a run folder, since lanes end in another order."""
    known = (run.rpartition("/")[2].partition("-")[0] for run in runs)
    return itertools.count(1 + max([num, *(int(number) for number in known if number.isdecimal())]))


def alike(
    run: RunSpec, among: Sequence[Lane], alone: Outcome, side: SideBySide, launch: Launch, notes: Notes
) -> list[Lane]:
    """Return the lanes in which steps take hardly longer than on the whole machine; `WHOLE` if fewer than two.

    `alone`: pilot of the command on the whole machine. `launch`: function that runs such a pilot in a lane.

    Raises UsageError: the program itself uses several GPUs, and lanes were requested by number.
    """
    num = max([num_ranks(alone.records), *(process.num_devices or 0 for process in alone.run.processes)])
    moves = [change for process in alone.run.processes for change in process.environment_changes if not change.kept]
    why = f"Lanes are for a program of one GPU, and this one has {num} ranks or GPUs." if num > 1 else ""
    if any(change.name == VISIBLE for change in moves) and among and among[0].gpu:
        why = f"The program sets {VISIBLE} itself, so it would leave its lane."
    if among and why:
        if run.lanes != AUTO:
            raise UsageError(why, hint="Leave --lanes out.")
        notes.say(why)
        among = []
    cores = probe.host.cores(probe.host.usable_cpus())
    if len(among) > (num_cpus := sum(map(len, cores))):
        notes.say(f"There are {num_cpus} logical processors, so there are no more lanes than that.")
    among = among[:num_cpus]
    while len(among) > 1:
        notes.running(f"the command in {len(among)} lanes at once")
        made = divide(among, cores)
        pilots = {}
        with side:
            begun = {lane: side.begin(lane, functools.partial(launch, lane)) for lane in made}
            for lane, future in begun.items():
                try:
                    pilots[lane] = future.result()
                except DynotuneError as error:
                    notes.say(f"Lane {lane.number} is left out: {error.message}")
        slow = slower(alone, pilots)
        for lane, (share, noise) in slow.items():
            notes.say(f"Lane {lane.number} is left out: steps take {share:.1%} longer there; {noise:.1%} may be noise.")
        told = {"with the whole machine": alone} | {f"in lane {lane.number}": pilots[lane] for lane in pilots}
        paces = [f"{words.duration(_step_s(outcome))} {where}" for where, outcome in told.items()]
        notes.say(f"A step takes {', '.join(paces)}; {len(made)} lanes ran at once.")
        if len(found := [lane for lane in pilots if lane not in slow]) > 1:
            notes.say(f"Fresh runs go side by side in {len(found)} lanes.")
            return found
        among = among[: len(among) // 2]
    if run.lanes != 1:
        notes.say("Runs go one after another.")
    return [WHOLE]


def slower(alone: Outcome, together: Mapping[Lane, Outcome]) -> dict[Lane, tuple[float, float]]:
    """Return by which share slow lanes exceed the machine alone, or the middle lane, and how much of it may be noise.

    A lane is slow if its excess is above the noise. `alone` may be slower than all lanes, since the first run reads a
    cold disk. One fast lane does not make the others slow: runs that wait for the host differ by a tenth.
    """
    paces = {lane: _pace(outcome) for lane, outcome in {WHOLE: alone, **together}.items()}
    best, best_se = min(paces[WHOLE], statistics.median_high([paces[lane] for lane in together] or [paces[WHOLE]]))
    found = {}
    for lane in together:
        log, se = paces[lane]
        # Two runs in one lane differ as well, by an amount that a single pilot cannot show.
        noise = math.expm1(SURE * math.sqrt(se**2 + best_se**2 + 2 * PRIOR_BETWEEN_RUNS**2))
        if (share := math.expm1(log - best)) > noise:
            found[lane] = share, noise
    return found


def _step_s(outcome: Outcome) -> float | None:
    log, _ = _pace(outcome)
    return math.exp(log) if math.isfinite(log) else None


def _pace(outcome: Outcome) -> tuple[float, float]:
    """Return the log of a steady step's time, and its standard error; infinite if there are too few steps."""
    record = outcome.records[0]
    times = steps_from(steady_steps(record) or len(record.steps) // 2, record)
    if not times:
        return math.inf, math.inf
    means, mean = batch_means(times), statistics.fmean(times)
    return math.log(mean), statistics.stdev(means) / math.sqrt(len(means)) / mean if len(means) > 1 else math.inf
