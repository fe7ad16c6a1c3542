"""Choose lanes in which runs of a single-GPU program go side by side, each lane with its own GPU and cores.

A lane is a GPU, identified by its UUID, with a share of the cores, nearest cores first; without a GPU, a lane
is only a share of the cores. A pair of runs stays in one lane, and so does a block of two pairs, ABBA or
BAAB. A lane's speed cancels in the ratio within a pair, and a lane's effect on the second run of a pair
cancels within a block. So lanes need no weights in the statistics, and lanes of different speed do not cause
wrong verdicts.
"""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from dynotune import probe
from dynotune.measure.live.live_run import num_ranks
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.request import Watcher
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

AUTO = 0
"""Value of `RunSpec.lanes` that means as many lanes as there are idle GPUs of one model."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Limits of concurrent untimed runs: each has a context on the GPU, and float64 makes tensors larger by
# `GROWTH`.
MOST_AT_ONCE = 6
CORES_EACH = 2
CONTEXT_BYTES = 2 << 30
GROWTH = 4
BUSY = 0.1
"""Share of a GPU's time or memory: if more is in use before dynotune runs anything, another program uses the
GPU."""
SAME_SIZE = 0.01
"""Share by which the memory of GPUs of one model may differ: the driver reserves some, and retires pages."""
SETTLE_S = 5.0
"""Longest wait for a busy GPU to become idle: the driver reports utilisation of up to the last second."""
LOOK_S = 0.5


class Lane(NamedTuple):
    """A GPU as `CUDA_VISIBLE_DEVICES` names it (empty without a GPU) and cores, for one run at a time.

    `number` counts from 1. Before the cores are divided, `cpus` are those near the GPU. `host` names another
    machine whose runs the lane waits for; its `cpus` are then those of the waiting thread.
    """

    number: int = 0
    gpu: str = ""
    cpus: frozenset[int] = frozenset()
    host: str = ""

    def of(self, run: RunSpec) -> RunSpec:
        """Return the run changed for this lane; the run gets the cores of the thread that starts the run."""
        return replace(run, env=run.env | {VISIBLE: self.gpu}) if self.gpu else run

    def cache_folder(self, folder: Path, run: RunSpec) -> Path:
        """Return the cache folder: lanes share `folder` like ranks do, except for cold caches, which are
        emptied."""
        return folder / f"lane-{self.number}" if self.number and run.caches == "cold" else folder


class Notes:
    """Messages about lanes: shown to the user at once, and kept for readers of the record."""

    def __init__(self, watcher: Watcher, said: Iterable[str] = ()) -> None:
        self.said, self.running, self._tell = [*said], watcher.running, watcher.say

    def say(self, text: str) -> None:
        self.said.append(text)
        self._tell(text)


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
        few = [
            f"{num} {what}"
            for what, num in (("GPUs", len(gpus)), ("cores", len(cpus)))
            if 0 < num < run.lanes
        ]
        why = f"The command sees {few[0]}, too few for {run.lanes} lanes." if few else ""
    if why:
        raise UsageError(why, hint="Leave --lanes out, or ask for fewer.")


def wanted(run: RunSpec, notes: Notes) -> list[Lane]:
    """Return at most the requested number of lanes, with cores near their GPUs; no lanes mean runs one after
    another.

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

    `facts`: result of `probe.gpu.facts`. `visible`: the user's `CUDA_VISIBLE_DEVICES`, to name GPUs without
        UUID.
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
    """Return how many untimed runs like `alone` fit on its GPU at once; 1 if concurrent runs could
    collide."""
    made, free = alone.run, probe.host_memory.available_bytes()
    peak = sum(process.peak_device_bytes or 0 for process in made.processes)
    host = sum(process.peak_rss_bytes or 0 for process in made.processes)
    num = max([num_ranks(alone.records), *(process.num_devices or 0 for process in made.processes)])
    meets = num > 1 or run.caches == "cold" or (made.sandbox != "overlay" and made.changed_files)
    if not peak or meets or isinstance(free, Unknown):
        return 1
    known: dict[str, int] = {
        name: size for name, size in probe.gpu.facts(run.env).items() if isinstance(size, int)
    }
    used = {name: name.replace("memory_", "memory_used_") for name in known if name.endswith(".memory_bytes")}
    left = min((known[name] - known[of] for name, of in used.items() if of in known), default=0)
    memory = min(left // (GROWTH * peak + CONTEXT_BYTES), free // (2 * host + 1))
    return max(1, min(MOST_AT_ONCE, len(probe.host.usable_cpus()) // CORES_EACH, memory))
