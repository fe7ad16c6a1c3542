"""Follows a run folder: new steps, samples of the machine and processes, into the store."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dynotune import probe
from dynotune.launch.process import processes
from dynotune.launch.records import EPOCH, Record, Records
from dynotune.schema import document
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Missing, Unknown, needed
from dynotune.schema.run import Run
from dynotune.schema.watch import GpuView, Mark, MarkKind
from dynotune.text import words
from dynotune.watch.processes import Processes
from dynotune.watch.store import Store

T = TypeVar("T")

MOST_MARKS = 200
PAUSE, PAUSE_S = 10.0, 0.25
"""A step of so many times the median, and so long at least, holds something else."""
CHECKPOINT_BYTES = 1 << 20
GONE_S = 5.0
"""A run without a living process is over after this time, if dynotune did not write down how it ended."""
PAUSES: dict[MarkKind, str] = {
    "validation": "another loader was begun",
    "checkpoint": "files were written",
    "pause": "a start of workers, or something else",
}


class Sight(msgspec.Struct):
    """What a process says of itself each second (event `sight`): per step, in bytes, and batches."""

    at_s: float
    at_step: int
    backward_s: float
    loss: str = ""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    num_ready: int | None = None
    num_asked: int | None = None


class Rank:
    """One process that makes steps."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self.num_steps = self.num_cycles = self.num_files = 0
        self.last_end_s: float | None = None
        self.longest_s = 0.0
        self.stacks_by: int | None = None
        self.stacks: dict[str, list[str]] = {}
        self.beside_s: deque[float] = deque(maxlen=16)


class Follower:
    """A run as it is now.

    Args:
        writes: `samples.jsonl`, of the run that this dynotune started; a watcher that joins writes nothing.
        replay: nothing is sampled; what was recorded is told up to the time that `update` is given.

    Raises RecordError: the folder is not a run folder.
    """

    def __init__(self, folder: Path, *, writes: bool = False, replay: bool = False) -> None:
        if not (folder / "plan.json").exists() and not writes:
            raise RecordError(
                f"{folder} is not the folder of a run.",
                hint="`dynotune run` and `dynotune watch` make one in ~/.local/state/dynotune/runs, or in --run-dir.",
            )
        self.folder, self.store, self.processes = folder, Store(), Processes()
        self.ranks: dict[int, Rank] = {}
        self.losses: dict[str, tuple[int, float]] = {}
        self.marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self.gpus: list[GpuView] | Unknown = Unknown("not sampled yet")
        self.begun_s: float | None = None
        self.end: Run | None = None
        self.is_over = False
        self.notes: list[str] = []
        self.command: list[str] = []
        self._records, self._more = Records(folder), Records(folder, "process-*.more")
        self._known: list[Record] = []
        self._waiting: list[probe.Sample] = []
        self._before: probe.Sample | None = None
        self._alive_s = time.perf_counter()
        self._sampler: probe.Sampler | None = None
        if replay:
            try:
                self._waiting = probe.read_samples(folder / "samples.jsonl")
            except RecordError:
                self.notes = ["The machine was not sampled in this run: GPUs and processes are not shown."]
            return
        # Known before the first sample: what its processes used before is none of the first second's.
        self._known = self._records.update()
        file, gpus = folder / "samples.jsonl" if writes else None, probe.nvml.visible_gpus(os.environ)
        self._sampler = probe.Sampler(probe.host.usable_cpus(), gpus, self.pids, 1.0, file=file, gpm=True, keep=2)
        self._sampler.start()

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def pids(self) -> list[int]:
        """The run's living processes, parents before children. Ids are used again, environments are not."""
        found: dict[int, None] = {}
        for pid in {record.pid: None for record in self._known}:
            if pid not in found and processes.environment_holds(pid, b"DYNOTUNE_RUN=" + os.fsencode(self.folder)):
                found |= dict.fromkeys(probe.descendants(pid))
        return list(found)

    def update(self, now: float) -> None:
        """Read what has come, up to `now` (CLOCK_MONOTONIC)."""
        self._known = self._records.update()
        if self._known and not self.command:
            # The first process is the command, or what a script began first.
            self.command = list((self._known[0].last("process") or {}).get("argv") or [])
        self.begun_s = min((record.start_s for record in self._known), default=None)
        if self._sampler is not None:
            self._waiting, self.notes = self._sampler.samples[-1:], [*self._sampler.errors]
        while self._waiting and self._waiting[0].time_s <= now:
            self._take_sample(self._waiting.pop(0))
        for record in self._known:
            self._rank(record)  # known before processes are called by their part in it
        if self._sampler is not None:
            name = "rank {}" if len(self.ranks) > 1 else "program"
            roles = {rank.pid: name.format(rank.name) for rank in self.ranks.values()}
            self.processes.update(self.pids(), roles, self._gpu_bytes(), now)
            if self.processes.rows:
                self.store.add("rss", "", now, sum(row.rss_bytes for row in self.processes.rows))
        more: list[Record] = []
        with contextlib.suppress(RecordError):  # one is gone since it was listed
            more = self._more.update()
        for record in [*self._known, *more]:
            self._take(record, now)
        self._look_for_end(now)

    def _rank(self, record: Record) -> Rank | None:
        """Whose record it is; None for a process that makes no steps, or none yet."""
        if record.pid not in self.ranks and record.steps and record.events.get("cycle"):
            number, taken = record.among_ranks("rank"), {rank.name for rank in self.ranks.values()}
            name = str(len(self.ranks) if number is None or str(number) in taken else number)
            self.ranks[record.pid] = Rank(name, record.pid)
        return self.ranks.get(record.pid)

    def _take(self, record: Record, now: float) -> None:
        rank = self._rank(record)
        if rank is None:
            return
        for cycle in record.events.get("cycle", [])[rank.num_cycles :]:
            if rank.num_cycles == 0 or cycle.get("num_superseded"):
                rank.num_steps, rank.last_end_s = 0, cycle.get("begin_s")
            rank.num_cycles, rank.stacks_by = rank.num_cycles + 1, cycle.get("stacks_by")
        if record.path.suffix == ".more" and record.steps and _number(record.path) >= rank.num_files:
            if _number(record.path) > rank.num_files:
                rank.last_end_s = None  # files between were gone before they were read
            rank.num_files = _number(record.path) + 1
        rank.beside_s.extend(_at(event) for event in _until(record.events.get("beside", []), now, _at))
        for event in _until(record.events.get("stacks", []), now, _at):
            rank.stacks = event["threads"]
        for step in _until(record.steps, now, lambda step: step.end_s):
            self._take_step(rank, step)
        for event in _until(record.events.get("sight", []), now, _at):
            self._take_sight(rank, document.convert(event, Sight))

    def _take_step(self, rank: Rank, step: Any) -> None:
        begin_s, rank.last_end_s = rank.last_end_s, step.end_s
        rank.num_steps += 1
        if begin_s is None:
            return
        took_s, number = max(0.0, step.end_s - begin_s), rank.num_steps - 1
        is_long = took_s > max(PAUSE_S, rank.longest_s / 2)
        ever, is_first = self.store.of("step", rank.name).ever, rank is next(iter(self.ranks.values()))
        if is_first and is_long and ever.num > 5 and took_s > PAUSE * ever.quantile(0.5):
            kind = self._pause(rank, begin_s, step.end_s)
            text = f"{words.duration(took_s)}: {PAUSES[kind]}"
            self.marks.append(Mark(at_s=step.end_s, step=number, kind=kind, text=text))
        if is_first and step.flags & EPOCH:
            self.marks.append(Mark(at_s=step.end_s, step=number, kind="epoch", text="a loader was begun anew"))
        rank.longest_s = max(rank.longest_s, took_s)
        values = {"step": took_s, "wait": min(step.wait_s, took_s), "samples": step.num_samples}
        for name, value in values.items():
            if value is not None:
                self.store.add(name, rank.name, step.end_s, value, number)

    def _pause(self, rank: Rank, begin_s: float, end_s: float) -> MarkKind:
        if any(begin_s <= at_s <= end_s for at_s in rank.beside_s):
            return "validation"
        return "checkpoint" if self.processes.written_bytes(rank.pid, begin_s) > CHECKPOINT_BYTES else "pause"

    def _take_sight(self, rank: Rank, sight: Sight) -> None:
        if sight.loss:
            self.losses[rank.name] = sight.at_step, float(sight.loss)
        for name, value in {**msgspec.structs.asdict(sight), "backward": sight.backward_s}.items():
            if isinstance(value, int | float) and not name.startswith("at_"):
                self.store.add(name, rank.name, sight.at_s, value)

    def _take_sample(self, sample: probe.Sample) -> None:
        before, self._before = self._before, sample
        if before is not None and sample.time_s <= before.time_s:
            return
        known = {} if isinstance(self.gpus, Unknown) else {gpu.nvml_index: gpu for gpu in self.gpus}
        sampled = [] if isinstance(sample.gpus, Unknown) else sample.gpus
        found = [_gpu(sample, gpu, known.get(gpu.nvml_index)) for gpu in sampled]
        self.gpus = sample.gpus if isinstance(sample.gpus, Unknown) else found
        for gpu in found:
            for name, value in msgspec.structs.asdict(gpu).items():
                if isinstance(value, int | float):
                    self.store.add(f"gpu.{name}", str(gpu.nvml_index), sample.time_s, value)
        if before is not None:
            with contextlib.suppress(Missing):
                self._take_cores(before, sample)

    def _take_cores(self, before: probe.Sample, sample: probe.Sample) -> None:
        took_s = sample.time_s - before.time_s
        ours = (needed(sample.tree).cpu_s - needed(before.tree).cpu_s) / took_s
        busy = (needed(sample.cores).busy_s - needed(before.cores).busy_s) / took_s
        own = (sample.own_cpu_s - before.own_cpu_s) / took_s
        for name, cores in {"cores": ours, "watcher": own, "others": max(0.0, busy - ours - own)}.items():
            self.store.add(name, "", sample.time_s, cores)

    def _gpu_bytes(self) -> dict[int, float]:
        """Device memory of each process, by NVML."""
        found: dict[int, float] = {}
        gpus = self._before.gpus if self._before is not None else []
        for gpu in [] if isinstance(gpus, Unknown) else gpus:
            for process in [] if isinstance(gpu.processes, Unknown) else gpu.processes:
                if isinstance(process.memory_bytes, int):
                    found[process.pid] = found.get(process.pid, 0.0) + process.memory_bytes
        return found

    def _look_for_end(self, now: float) -> None:
        if self._sampler is None:
            self.is_over = not any(record.steps for record in self._known) and not self._waiting
        elif self.processes.rows:
            self._alive_s = now
        if self.end is None and (self.is_over or not self.processes.rows) and (self.folder / "run.json").exists():
            self.end = document.read(self.folder / "run.json", Run)
        if self._sampler is not None:
            self.is_over |= self.end is not None or (bool(self._known) and now - self._alive_s > GONE_S)


def _until(found: list[T], now: float, at_s: Callable[[T], float]) -> list[T]:
    """Those until then, taken out: they are kept in the store alone, in bounded room."""
    num = next((at for at, each in enumerate(found) if at_s(each) > now), len(found))
    taken, found[:num] = found[:num], []
    return taken


def _at(event: dict[str, Any]) -> float:
    return float(event["at_s"])


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _gpu(sample: probe.Sample, gpu: probe.Gpu, before: GpuView | None) -> GpuView:
    known = [] if isinstance(gpu.processes, Unknown) else gpu.processes
    foreign = [each for each in known if sample.pids_comparable and not each.ours and isinstance(each.sm_percent, int)]
    fields = {name: getattr(gpu, name) for name in GpuView.__struct_fields__ if hasattr(gpu, name)}
    for name in ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"):
        if before is not None and isinstance(fields[name], Unknown):  # asked less often than the rest
            fields[name] = getattr(before, name)
    return GpuView(
        kernel_running_percent=gpu.utilisation_percent,
        **fields,
        clock_limits=[] if isinstance(gpu.clock_reasons, Unknown) else probe.clock_reasons.names(gpu.clock_reasons),
        others=[
            f"{each.name or 'another container'} ({each.pid}), {each.sm_percent}% of the time"
            for each in foreign
            if each.sm_percent
        ],
    )
