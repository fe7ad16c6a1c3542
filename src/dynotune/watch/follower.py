"""Follows a run folder: new steps, samples of the machine and processes, into the store."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from statistics import median

from dynotune import probe
from dynotune.launch.process import processes
from dynotune.launch.records import EPOCH, Reader, Record, Records
from dynotune.schema import document
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Run
from dynotune.schema.watch import Mark, MarkKind
from dynotune.watch.process_table import ProcessTable
from dynotune.watch.store import Store

MOST_MARKS = 200
PAUSE = 10.0
"""Times the median: a step that is so long holds something else, at least `PAUSE_S` of it."""
PAUSE_S = 0.25
CHECKPOINT_BYTES = 1 << 20
GONE_S = 5.0
"""A run without a living process is over after this time, if dynotune did not write down how it ended."""
GPU_SERIES = ("utilisation_percent", "sm_active_percent", "tensor_active_percent", "memory_used_bytes", "power_w",
              "sm_clock_mhz", "temperature_c", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")  # fmt: skip


class Rank:
    """One process that makes steps."""

    def __init__(self, name: str, record: Record) -> None:
        self.name, self.pid = name, record.pid
        self.num_steps, self.num_cycles, self.num_files = 0, 0, 0
        self.last_end_s: float | None = None
        self.longest_s = 0.0


class Follower:
    """A run as it is now.

    Args:
        samples: written as `samples.jsonl` by whoever started the run; a watcher that joins writes nothing.
        replay: nothing is sampled; what was recorded is told up to the time that `update` is given.

    Raises:
        RecordError: the folder is not a run folder.
    """

    def __init__(self, folder: Path, *, writes: bool = False, replay: bool = False) -> None:
        if not (folder / "plan.json").exists() and not writes:
            raise RecordError(
                f"{folder} is not the folder of a run.",
                hint="`dynotune run` and `dynotune watch` make one in ~/.local/state/dynotune/runs, or in --run-dir.",
            )
        self.folder, self.store = folder, Store()
        self.ranks: dict[Path, Rank] = {}
        self.marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self.table = ProcessTable()
        self.sample: probe.Sample | None = None
        self.begun_s: float | None = None
        self.end: Run | None = None
        self.is_over = False
        self.notes: list[str] = []
        self.command: list[str] = []
        self.room_bytes: int | None = None
        self._records = Records(folder)
        self._more: dict[Path, Reader] = {}
        self._known: list[Record] = []
        self._replayed = _replayed(folder, self.notes) if replay else None
        self._before: probe.Sample | None = None
        self._alive_s = time.perf_counter()
        self._memory_s = 0.0
        self._mine: dict[int, bool] = {}
        self._listed: list[int] = []
        self._sampler: probe.Sampler | None = None
        if not replay:
            # Known before the first sample: what its processes used before is none of the first second's.
            self._known = self._records.update()
            self._listed = self.pids()
            file = folder / "samples.jsonl" if writes else None
            gpus = probe.nvml.visible_gpus(os.environ)
            cpus = probe.host.usable_cpus()
            self._sampler = probe.Sampler(cpus, gpus, lambda: self._listed, 1.0, file=file, gpm=True, keep=2)
            self._sampler.start()

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def pids(self) -> list[int]:
        """The run's living processes, parents before children."""
        found: dict[int, None] = {}
        for record in list(self._known):
            if record.pid not in found and self._is_ours(record.pid):
                found |= dict.fromkeys(probe.descendants(record.pid))
        return list(found)

    def _is_ours(self, pid: int) -> bool:
        """Whether it lives and is of this run: ids are used again, environments are not."""
        alive = processes.read(pid)
        if alive is None or alive.state in "ZX":
            return False
        if pid not in self._mine:
            self._mine[pid] = processes.environment_holds(pid, b"DYNOTUNE_RUN=" + os.fsencode(self.folder))
        return self._mine[pid]

    def update(self, now: float) -> None:
        """Read what has come, up to `now` (CLOCK_MONOTONIC)."""
        self._known = records = self._records.update()
        if records and not self.command:
            # The first process is the command, or what a script began first.
            self.command = list((records[0].last("process") or {}).get("argv") or [])
        self.begun_s = min((record.start_s for record in records), default=None)
        if self._replayed is None:
            many = len(self.ranks) > 1
            roles = {rank.pid: f"rank {rank.name}" if many else "program" for rank in self.ranks.values()}
            self._listed = self.pids()
            self.table.update(self._listed, roles, now)
            if self.table.rows:
                self.store.add("rss", "", now, sum(row.rss_bytes for row in self.table.rows))
            self._look_for_room(now)
        for record in records:
            self._take_steps(record, now)
        self._take_more(now)
        self._take_sample(now)
        self._look_for_end(now)

    def _take_steps(self, record: Record, now: float) -> None:
        cycles = record.events.get("cycle", [])
        if not cycles:
            return
        rank = self.ranks.get(record.path)
        if rank is None:
            if not record.steps:
                return
            number, taken = record.among_ranks("rank"), {rank.name for rank in self.ranks.values()}
            name = str(len(self.ranks) if number is None or str(number) in taken else number)
            rank = self.ranks[record.path] = Rank(name, record)
        if rank.num_cycles != len(cycles):
            if rank.num_cycles == 0 or any(cycle.get("num_superseded") for cycle in cycles[rank.num_cycles :]):
                rank.num_steps, rank.last_end_s = 0, record.begin_s
            rank.num_cycles = len(cycles)
        self._take_all(rank, record, now)

    def _take_all(self, rank: Rank, record: Record, now: float) -> None:
        steps = record.steps
        if self._replayed is not None:
            steps = [step for step in steps if step.end_s <= now]
        for step in steps:
            self._take(rank, step.end_s, step.wait_s, step.num_samples, bool(step.flags & EPOCH))
        # Kept here alone, in bounded room.
        del record.steps[: len(steps)]

    def _take_more(self, now: float) -> None:
        """What processes wrote when their first record was full, in files of which the newest are kept."""
        paths = sorted(self.folder.glob("process-*.more"), key=lambda path: int(path.stem.rpartition("-")[2]))
        self._more = {path: self._more.get(path) or Reader(path) for path in paths}
        for path, reader in self._more.items():
            with contextlib.suppress(RecordError):  # gone since it was listed
                record = reader.update()
                for rank in [rank for rank in self.ranks.values() if rank.pid == record.pid and record.steps]:
                    number = int(path.stem.rpartition("-")[2])
                    if number > rank.num_files:
                        rank.last_end_s = None  # files between were gone before they were read
                    rank.num_files = max(rank.num_files, number + 1)
                    self._take_all(rank, record, now)

    def _take(self, rank: Rank, end_s: float, wait_s: float, num_samples: int | None, begins: bool) -> None:
        before_s, rank.last_end_s = rank.last_end_s, end_s
        rank.num_steps += 1
        if before_s is None:
            return
        took_s, add, name = max(0.0, end_s - before_s), self.store.add, rank.name
        usual = self.store.of("step", name).ever if took_s > max(PAUSE_S, rank.longest_s / 2) else None
        rank.longest_s = max(rank.longest_s, took_s)
        add("step", name, end_s, took_s, rank.num_steps - 1)
        add("wait", name, end_s, min(wait_s, took_s), rank.num_steps - 1)
        if num_samples is not None:
            add("samples", name, end_s, num_samples, rank.num_steps - 1)
        if name == next(iter(self.ranks.values())).name:
            if usual is not None and usual.num > 5 and took_s > PAUSE * usual.quantile(0.5):
                written = self.table.written_bytes(rank.pid, before_s)
                saved = written is not None and written > CHECKPOINT_BYTES
                text = "files were written" if saved else "a validation, a start of workers or another pause"
                self._mark(end_s, rank, "checkpoint" if saved else "pause", f"{took_s:.3g} s: {text}")
            if begins:
                self._mark(end_s, rank, "epoch", "a loader was begun anew")

    def _mark(self, at_s: float, rank: Rank, kind: MarkKind, text: str) -> None:
        self.marks.append(Mark(at_s=at_s, step=rank.num_steps - 1, kind=kind, text=text))

    def _take_sample(self, now: float) -> None:
        if self._sampler is not None:
            taken = self._sampler.samples[-1:]
            self.notes = [*self._sampler.errors]
        else:
            taken = [sample for sample in self._replayed or [] if sample.time_s <= now]
        for sample in taken:
            if self.sample is None or sample.time_s > self.sample.time_s:
                self._before, self.sample = self.sample, sample
                self._add_sample(sample)
        if self._replayed:
            self._replayed = self._replayed[len(taken) :]

    def _add_sample(self, sample: probe.Sample) -> None:
        for gpu in [] if isinstance(sample.gpus, Unknown) else sample.gpus:
            for name in GPU_SERIES:
                value = getattr(gpu, name)
                if not isinstance(value, Unknown):
                    self.store.add(f"gpu.{name}", str(gpu.nvml_index), sample.time_s, value)
        before = self._before
        if before is None or any(isinstance(each, Unknown) for s in (before, sample) for each in (s.cores, s.tree)):
            return
        took_s = sample.time_s - before.time_s
        ours = (sample.tree.cpu_s - before.tree.cpu_s) / took_s  # type: ignore[union-attr]
        busy = (sample.cores.busy_s - before.cores.busy_s) / took_s  # type: ignore[union-attr]
        own = (sample.own_cpu_s - before.own_cpu_s) / took_s
        self.store.add("cores", "", sample.time_s, ours)
        self.store.add("watcher", "", sample.time_s, own)
        self.store.add("others", "", sample.time_s, max(0.0, busy - ours - own))

    def _look_for_room(self, now: float) -> None:
        if now - self._memory_s >= 5.0:
            self._memory_s = now
            room = probe.host_memory.facts().get("host.memory_available_bytes")
            self.room_bytes = room if isinstance(room, int) else None

    def _look_for_end(self, now: float) -> None:
        if self._replayed is not None:
            last_s = max((rank.last_end_s or 0.0 for rank in self.ranks.values()), default=0.0)
            self.is_over = (
                not any(record.steps and record.events.get("cycle") for record in self._known) and last_s < now
            )
        elif self.table.rows:
            self._alive_s = now
        path = self.folder / "run.json"
        if self.end is None and (self.is_over or not self.table.rows) and path.exists():
            try:
                self.end = document.read(path, Run)
            except RecordError as error:
                self.notes.append(str(error))
        if self._replayed is None:
            self.is_over = self.is_over or self.end is not None or (bool(self._known) and now - self._alive_s > GONE_S)

    @property
    def typical_s(self) -> float | None:
        """Median step over the ranks, so far."""
        found = [
            ever.quantile(0.5) for name in self.store.whose("step") if (ever := self.store.of("step", name).ever).num
        ]
        return median(found) if found else None


def _replayed(folder: Path, notes: list[str]) -> list[probe.Sample]:
    try:
        return probe.read_samples(folder / "samples.jsonl")
    except RecordError:
        notes.append("The machine was not sampled in this run: GPUs and processes are not shown.")
        return []
