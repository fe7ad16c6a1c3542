"""Follow a run folder: put new steps, samples of the machine, and processes into the store."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynotune import probe
from dynotune.launch.process import processes
from dynotune.launch.records import EPOCH, Record, Records
from dynotune.schema import document
from dynotune.schema.errors import RecordError
from dynotune.schema.events import CycleFound, ProcessBegun
from dynotune.schema.facts import Missing, Unknown, needed
from dynotune.schema.run import Run
from dynotune.schema.watch import Epoch, GpuView, Mark
from dynotune.text import words
from dynotune.watch.processes import Processes
from dynotune.watch.store import Store

MOST_MARKS = 200
PAUSE, PAUSE_S = 10.0, 0.25
"""A step that takes this many times the median, and at least this many seconds, includes other work."""
GONE_S = 5.0
"""Seconds after which a run without a living process is over, if dynotune did not record the run's end."""


class Rank:
    """One process that makes steps."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self.num_steps = self.num_cycles = self.num_files = 0
        self.num_epochs = self.epoch_begin = 0
        self.epoch_steps: int | None = None
        self.last_end_s: float | None = None
        self.longest_s = 0.0
        self.stacks_by: Any = None  # what the record says, of any type

    @property
    def epoch(self) -> Epoch | None:
        """Return the epoch in progress; None if no loader began."""
        if not self.num_epochs:
            return None
        return Epoch(
            number=self.num_epochs, step=self.num_steps - self.epoch_begin, num_steps=self.epoch_steps
        )

    def begin_epoch(self, step: int) -> None:
        """Begin an epoch with the step of this number, from 0. Steps before the first epoch are one, too."""
        if self.num_epochs or step:
            self.num_epochs = self.num_epochs or 1
            self.epoch_steps = step - self.epoch_begin
        self.num_epochs, self.epoch_begin = self.num_epochs + 1, step


class Follower:
    """Follows a live run without writing into the run's folder.

    `lives`: whether a process of a program that was joined lives; None if dynotune started the run, whose
        processes have its folder in their environment.
    """

    def __init__(self, folder: Path, lives: Callable[[int], bool] | None = None) -> None:
        self._lives = lives or self._is_of_run
        self.folder, self.store, self.processes = folder, Store(), Processes()
        self.ranks: dict[int, Rank] = {}
        self.marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self.gpus: list[GpuView] | Unknown = Unknown("not sampled yet")
        self.begun_s: float | None = None
        self.exit_code: int | None = None
        self.is_over = False
        self.notes: list[str] = []
        self.command: list[str] = []
        # A run that ended may be of before a restart of the machine, which sets this clock back.
        launched_s = None if (folder / "run.json").exists() else 0.0
        self._records, self._more = Records(folder, launched_s=launched_s), Records(folder, "process-*.more")
        self._before: probe.Sample | None = None
        self._used: set[int] = set()
        self._alive_s = time.perf_counter()
        # Read before the first sample, so that the processes' earlier use does not count in the first second.
        self._known = self._records.update()
        gpus = probe.nvml.visible_gpus(os.environ)
        self._sampler = probe.Sampler(probe.host.usable_cpus(), gpus, self.pids, 1.0, watched=True)
        self._sampler.start()

    def close(self) -> None:
        self._sampler.stop()

    def pids(self) -> list[int]:
        """Return the run's living processes, parents before children, by environment: ids can be reused."""
        found: dict[int, None] = {}
        for pid in {record.pid: None for record in self._known}:
            if pid not in found and self._lives(pid):
                found |= dict.fromkeys(probe.descendants(pid))
        return list(found)

    def _is_of_run(self, pid: int) -> bool:
        return processes.environment_holds(pid, b"DYNOTUNE_RUN=" + os.fsencode(self.folder))

    def update(self, now: float) -> None:
        """Read all new data. `now`: on CLOCK_MONOTONIC."""
        self._known = self._records.update()
        if self._known and not self.command:
            # The first process is the command, or the first one that a script started.
            self.command = list((self._known[0].last(ProcessBegun) or ProcessBegun()).argv)
        self.begun_s = min((record.start_s for record in self._known), default=None)
        self.notes = [*self._sampler.errors]
        for sample in self._sampler.samples[-1:]:
            self._take_sample(sample)
        for record in self._known:
            self._rank(record)  # first, since processes are named by their rank
        name = "rank {}" if len(self.ranks) > 1 else "program"
        self.processes.update(
            self.pids(), {rank.pid: name.format(rank.name) for rank in self.ranks.values()}, now
        )
        if self.processes.rows:
            self._alive_s = now
            self.store.add("rss", "", now, sum(row.rss_bytes for row in self.processes.rows))
        more: list[Record] = []
        with contextlib.suppress(RecordError):  # one may have disappeared since it was listed
            more = self._more.update()
        for record in [*self._known, *more]:
            self._take(record)
        if not self.processes.rows and (self.folder / "run.json").exists():
            self.exit_code, self.is_over = document.read(self.folder / "run.json", Run).exit_code, True
        self.is_over |= bool(self._known) and now - self._alive_s > GONE_S

    def _rank(self, record: Record) -> Rank | None:
        """Return the rank of a process's record; None if the process has made no steps so far."""
        if record.pid not in self.ranks and record.steps and record.all(CycleFound):
            number, taken = record.rank, {rank.name for rank in self.ranks.values()}
            name = str(len(self.ranks) if number is None or str(number) in taken else number)
            self.ranks[record.pid] = Rank(name, record.pid)
        return self.ranks.get(record.pid)

    def _take(self, record: Record) -> None:
        rank = self._rank(record)
        if rank is None:
            return
        for cycle in record.all(CycleFound)[rank.num_cycles :]:
            if rank.num_cycles == 0 or cycle.num_superseded:
                rank.num_steps, rank.last_end_s = 0, cycle.begin_s
                rank.num_epochs = rank.epoch_begin = 0
                rank.epoch_steps = None
            rank.num_cycles, rank.stacks_by = rank.num_cycles + 1, cycle.stacks_by
        number = int(record.path.stem.rpartition("-")[2])
        if record.path.suffix == ".more" and record.steps and number >= rank.num_files:
            if number > rank.num_files:
                rank.last_end_s = None  # files in between were deleted before they were read
            rank.num_files = number + 1
        # Steps are kept only in the store, in bounded memory.
        steps, record.steps[:] = record.steps[:], []
        for step in steps:
            self._take_step(rank, step)

    def _take_step(self, rank: Rank, step: Any) -> None:
        begin_s, rank.last_end_s = rank.last_end_s, step.end_s
        rank.num_steps += 1
        if begin_s is None:
            return
        took_s, number = max(0.0, step.end_s - begin_s), rank.num_steps - 1
        is_long = took_s > max(PAUSE_S, rank.longest_s / 2)
        ever, is_first = self.store.of("step", rank.name).ever, rank is next(iter(self.ranks.values()))
        if is_first and step.flags & EPOCH:
            rank.begin_epoch(number)
            self.marks.append(Mark(at_s=step.end_s, step=number, kind="epoch", text="a new epoch"))
        elif is_first and is_long and ever.num > 5 and took_s > PAUSE * ever.quantile(0.5):
            text = f"a pause of {words.duration(took_s)}: a validation, a checkpoint, or something else"
            self.marks.append(Mark(at_s=step.end_s, step=number, kind="pause", text=text))
        rank.longest_s = max(rank.longest_s, took_s)
        values = {"step": took_s, "wait": min(step.wait_s, took_s), "samples": step.num_samples}
        for name, value in values.items():
            if value is not None:
                self.store.add(name, rank.name, step.end_s, value, number)

    def _take_sample(self, sample: probe.Sample) -> None:
        before, self._before = self._before, sample
        if before is not None and sample.time_s <= before.time_s:
            return
        known = {} if isinstance(self.gpus, Unknown) else {gpu.nvml_index: gpu for gpu in self.gpus}
        sampled = [] if isinstance(sample.gpus, Unknown) else self._of_the_run(sample, sample.gpus)
        found = [_gpu(sample, gpu, known.get(gpu.nvml_index)) for gpu in sampled]
        self.gpus = sample.gpus if isinstance(sample.gpus, Unknown) else found
        for gpu in found:
            for name, value in msgspec.structs.asdict(gpu).items():
                if isinstance(value, int | float):
                    self.store.add(f"gpu.{name}", str(gpu.nvml_index), sample.time_s, value)
        if before is not None:
            with contextlib.suppress(Missing):
                self._take_cores(before, sample)

    def _of_the_run(self, sample: probe.Sample, gpus: Sequence[probe.Gpu]) -> list[probe.Gpu]:
        """Return the GPUs that the run's processes use; before any is seen, all GPUs that not only others
        use."""
        listed = {
            gpu.nvml_index: [] if isinstance(gpu.processes, Unknown) else gpu.processes
            for gpu in (gpus if sample.pids_comparable else [])
        }
        self._used.update(index for index, known in listed.items() if any(each.ours for each in known))
        return [
            gpu
            for gpu in gpus
            if gpu.nvml_index in self._used or not (self._used or listed.get(gpu.nvml_index))
        ]

    def _take_cores(self, before: probe.Sample, sample: probe.Sample) -> None:
        took_s = sample.time_s - before.time_s
        ours = (needed(sample.tree).cpu_s - needed(before.tree).cpu_s) / took_s
        busy = (needed(sample.cores).busy_s - needed(before.cores).busy_s) / took_s
        own = (sample.own_cpu_s - before.own_cpu_s) / took_s
        for name, cores in {"cores": ours, "others": max(0.0, busy - ours - own)}.items():
            self.store.add(name, "", sample.time_s, cores)


def _gpu(sample: probe.Sample, gpu: probe.Gpu, before: GpuView | None) -> GpuView:
    fields = {name: getattr(gpu, name) for name in GpuView.__struct_fields__ if hasattr(gpu, name)}
    for name in ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"):
        if before is not None and isinstance(fields[name], Unknown):  # asked less often than the others
            fields[name] = getattr(before, name)
    known = [] if isinstance(gpu.processes, Unknown) or not sample.pids_comparable else gpu.processes
    others = {each: each.sm_percent for each in known if not each.ours and isinstance(each.sm_percent, int)}
    return GpuView(
        kernel_running_percent=gpu.utilisation_percent,
        **fields,
        clock_limits=[]
        if isinstance(gpu.clock_reasons, Unknown)
        else probe.nvml.reason_names(gpu.clock_reasons),
        others=[
            f"{each.name or '?'} ({each.pid}), {share}% of the time"
            for each, share in others.items()
            if share
        ],
    )
