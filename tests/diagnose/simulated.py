"""A program with a host that queues and a device that works, simulated: what a step takes is known, with and
without.

A recorder slows the host by a factor and leaves the device and the loader's sleep as they are. So the plain
step, the recorded timeline and the truth about any part all come from one list of actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from dynotune.schema.timing import Timing
from dynotune.trace.timeline import Timeline

from ..trace.made import Made

US, MS = 1_000, 1_000_000
LATENCY = 4 * US
"""From a launch's return to the start of its kernel."""
WARM_UP, NUM_STEPS = 20, 10


@dataclass(frozen=True)
class Act:
    """One action of a step, nanoseconds.

    Args:
        kind: "load" (a batch, fetched in the process itself), "drawn" (a batch of a worker that makes one in
            `host` ns), "python", "launch" (a kernel), "copy" (pageable, to the device), "pinned" or "sync".
        host: on the host; of launches, until the call returns. device: the work's own. name: of a launched
            kernel.
    """

    kind: str
    host: int = 0
    device: int = 0
    name: str = "ampere_sgemm"


def load(host: int) -> Act:
    return Act("load", host)


def drawn(period: int) -> Act:
    return Act("drawn", period)


def python(host: int) -> Act:
    return Act("python", host)


def kernels(num: int, host: int, device: int, name: str = "ampere_sgemm") -> list[Act]:
    return [Act("launch", host, device, name)] * num


def copy(device: int) -> Act:
    return Act("copy", 5 * US, device)


def pinned(device: int) -> Act:
    return Act("pinned", 5 * US, device)


SYNC = Act("sync", 5 * US)


class Unrecorded:
    """Keeps nothing: a plain run is long, and its events are nobody's."""

    @staticmethod
    def nothing(*event: object, **more: object) -> None: ...

    annotation = call = copy = kernel = launch = operator = nothing


@dataclass
class Simulation:
    """Runs steps one after another; `slower`: what the recorder makes of the host's own time."""

    slower: float = 1.0
    made: Made | Unrecorded = field(default_factory=Made)
    host_ns: int = 0
    device_ns: int = 0
    ready_ns: int = 0
    wait_ns: int = 0
    number: int = 0

    def step(self, acts: Sequence[Act]) -> None:
        for act in acts:
            getattr(self, f"_{act.kind}")(act)

    def _own(self, ns: int) -> int:
        return round(ns * self.slower)

    def _python(self, act: Act) -> None:
        self.host_ns += self._own(act.host)

    def _load(self, act: Act) -> None:
        self._wait_until(self.host_ns + act.host)

    def _drawn(self, act: Act) -> None:
        # Two batches lie ready at most: a worker that is ahead stops.
        self.ready_ns = max(self.ready_ns + act.host, self.host_ns - 2 * act.host)
        self._wait_until(max(self.host_ns + 20 * US, self.ready_ns))

    def _wait_until(self, until: int) -> None:
        self.made.annotation("enumerate(DataLoader)#_Iter.__next__", self.host_ns, until)
        self.wait_ns += until - self.host_ns
        self.host_ns = until

    def _launch(self, act: Act) -> None:
        begin = self.host_ns
        self.host_ns += self._own(act.host)
        self.made.operator("aten::mm", begin, self.host_ns)
        self._queue("cudaLaunchKernel", act.name, begin + (self.host_ns - begin) // 2, act.device)

    def _queue(self, call: str, name: str, called: int, device: int) -> None:
        self.number += 1
        self.made.launch(call, called, self.host_ns, correlation=self.number)
        start = max(self.device_ns, self.host_ns + LATENCY)
        self.device_ns = start + device
        add = self.made.copy if name.startswith("Memcpy") else self.made.kernel
        add(name, start, self.device_ns, correlation=self.number)

    def _pinned(self, act: Act) -> None:
        begin = self.host_ns
        self.host_ns += self._own(act.host)
        self._queue("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", begin, act.device)

    def _copy(self, act: Act) -> None:
        begin = self.host_ns
        start = max(self.device_ns, begin + act.host + LATENCY)
        self.number += 1
        self.device_ns = self.host_ns = start + act.device
        self.made.launch("cudaMemcpyAsync", begin, self.host_ns, correlation=self.number)
        self.made.copy("Memcpy HtoD (Pageable -> Device)", start, self.device_ns, correlation=self.number)

    def _sync(self, act: Act) -> None:
        begin = self.host_ns
        self.host_ns = max(begin + act.host, self.device_ns + act.host)
        self.made.operator("aten::item", begin, self.host_ns)
        self.made.call("cudaStreamSynchronize", begin + 1, self.host_ns - 1)


def recorded(acts: Sequence[Act], *, slower: float) -> Timeline:
    """Ten steps as a recorder sees them, steady, from a device that has nothing left to do."""
    return _recorded(tuple(acts), slower)


@cache
def _recorded(acts: tuple[Act, ...], slower: float) -> Timeline:
    run = Simulation(slower)
    for _ in range(WARM_UP):
        run.step(acts)
    run.made = Made()
    run.host_ns = max(run.host_ns, run.device_ns)
    run.wait_ns = 0
    for number in range(NUM_STEPS):
        begin = run.host_ns
        run.step(acts)
        run.made.annotation(f"ProfilerStep#{number}", begin, run.host_ns)
    return run.made.timeline()


def timed(acts: Sequence[Act], num_steps: int = 200) -> Timing:
    """The plain run: the device synchronised at both ends of its window."""
    return _timed(tuple(acts), num_steps)


@cache
def _timed(acts: tuple[Act, ...], num_steps: int) -> Timing:
    run = Simulation(made=Unrecorded())
    for _ in range(WARM_UP):
        run.step(acts)
    begin = run.host_ns = max(run.host_ns, run.device_ns)
    run.wait_ns = 0
    for _ in range(num_steps):
        run.step(acts)
    window_s = (max(run.host_ns, run.device_ns) - begin) / 1e9
    step_s = window_s / num_steps
    return Timing(
        num_steps=num_steps,
        window_s=window_s,
        step_s=step_s,
        median_step_s=step_s,
        p99_step_s=step_s,
        longest_step_s=step_s,
        wait_s=run.wait_ns / 1e9 / num_steps,
    )


def saved(acts: Sequence[Act], *kinds: str) -> float:
    """The truth: what a step without the actions of these kinds saves, as a share of one with them."""
    return 1 - timed([act for act in acts if act.kind not in kinds]).step_s / timed(acts).step_s
