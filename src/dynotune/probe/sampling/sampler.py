"""Sample the machine and the process tree beside a measured run, in a thread of dynotune's own process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dynotune.probe.facts import host_memory
from dynotune.probe.sampling.gpu_counters import GpuCounters
from dynotune.probe.sampling.pcie_meter import PcieMeter
from dynotune.probe.sources import container, counters
from dynotune.probe.sources.samples import Sample, SamplesFile
from dynotune.schema.facts import Unknown, needed, or_unknown

T = TypeVar("T")

INTERVAL_S = 0.5
"""With this interval, a window of a few seconds has several samples, and the sampling takes under 1% of a
core."""

CPU_SHARE = 0.008
"""Largest share of one core for sampling; with the thread that reads PCIe throughput, the total is 1%. If a
large tree takes longer to read, samples become less frequent."""

LIMIT_S = 10.0
"""Longest wait for one sample. A driver or a kernel that has not answered by then may never answer."""


class Sampler:
    """Take samples at the start, about every `interval_s` seconds and at the stop, without knowledge of
    candidates.

    No question waits longer than `LIMIT_S`. After a timeout, no more samples are taken, `errors` has the
    reason, and the hanging thread is abandoned. Earlier samples stay, and the rest of the window is not
    covered.

    Args:
        cpus: cores that the program may run on.
        gpus: NVML indices of the GPUs that the program sees; Unknown carries over into the judgement.
        tree_pids: function that returns the tree's process ids, parents first if possible; called for each
            sample.
        watched: keep only the newest two samples, and also read the GPM counters of utilisation.
    """

    def __init__(
        self,
        cpus: Collection[int],
        gpus: Sequence[int] | Unknown,
        tree_pids: Callable[[], Iterable[int]],
        interval_s: float = INTERVAL_S,
        *,
        file: Path | None = None,
        root: Path = Path("/"),
        nvml: Any = None,
        clock: Callable[[], float] = time.monotonic,
        memory: bool = False,
        watched: bool = False,
    ) -> None:
        self._cpus = frozenset(cpus)
        self._tree_pids = tree_pids
        self._interval_s = interval_s
        self._path = file
        self._file: SamplesFile | None = None
        self._root = root
        self._clock = clock
        self._memory = memory
        self._tree = counters.TreeCounter(root)
        self._gpus = GpuCounters(gpus, nvml=nvml, root=root, gpm=watched)
        self._pcie = PcieMeter([] if isinstance(gpus, Unknown) else gpus, nvml=nvml)
        self._memory_events = host_memory.memory_events_file(root)
        self._limits = container.cpu_limits(root)
        self._pids_comparable = container.in_initial_pid_namespace(root)
        self._samples: deque[Sample] = deque(maxlen=2 if watched else None)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_stuck = False
        self.errors: list[str] = []
        """Errors of the sampling itself; with an error, the window is not covered, or the file is
        incomplete."""

    @property
    def samples(self) -> list[Sample]:
        """Return the samples kept so far, in order of time."""
        return list(self._samples)

    def start(self) -> None:
        """Take the first sample and go on in a thread."""
        if self._path is not None:
            try:
                self._file = SamplesFile(self._path)
            except OSError as error:
                self._file_failed(error)
        self.sample()
        if not self._is_stuck:
            self._pcie.start()
            self._thread = threading.Thread(target=self._loop, name="dynotune-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> list[Sample]:
        """End the thread, take the last sample, and release all resources. A second call does nothing."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._in_time(self._end)
        return self.samples

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._pcie.stop()
        if self._pcie.error is not None:
            self.errors.append(self._pcie.error)
        self._sample()
        self._gpus.close()
        if self._file is not None:
            self._file.close()

    def sample(self) -> Sample | None:
        """Take one sample now; on a failure or timeout return None and note the error."""
        return self._in_time(self._sample)

    def _in_time(self, question: Callable[[], T]) -> T | None:
        """Run the question in its own thread, which is abandoned if it hangs."""
        if self._is_stuck:
            return None
        found: list[T] = []

        def ask() -> None:
            try:
                found.append(question())
            except Exception as error:
                self.errors.append(f"sampling failed: {error!r}")

        thread = threading.Thread(target=ask, name="dynotune-sample", daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        if thread.is_alive():
            self._is_stuck = True
            self._stopping.set()
            self._pcie.stop()
            self.errors.append(
                f"sampling ended: the kernel or the driver did not answer within {LIMIT_S:.0f} s"
            )
            return None
        return found[0] if found else None

    def _sample(self) -> Sample:
        with self._lock:
            sample = self._read()
            self._samples.append(sample)
            if self._file is not None:
                try:
                    self._file.append(sample)
                except OSError as error:
                    self._file_failed(error)
        return sample

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _loop(self) -> None:
        wait_s = self._interval_s
        while not self._stopping.wait(wait_s):
            try:
                begin_cpu_s = time.thread_time()
                self._sample()
                wait_s = max(self._interval_s, (time.thread_time() - begin_cpu_s) / CPU_SHARE)
            except Exception as error:
                # A thread would die silently; the window is then not covered, and this error gives the
                # reason.
                self.errors.append(f"sampling ended: {error!r}")
                return

    def _read(self) -> Sample:
        # The tree's time is subtracted from the cores' time, so both are read back to back. Listing the tree
        # and asking the driver take longer, and happen before and after.
        try:
            pids: list[int] | Unknown = list(self._tree_pids())
        except OSError as error:
            pids = Unknown(f"the process tree cannot be listed: {error}")
        time_s = self._clock()
        cores = counters.cores(self._cpus, self._root)
        tree = or_unknown("the process tree")(lambda: self._tree.read(needed(pids)))()
        own_cpu_s = time.process_time()
        return Sample(
            time_s=time_s,
            cores=cores,
            tree=tree,
            own_cpu_s=own_cpu_s,
            quota=counters.quota(self._limits),
            gpus=self._gpus.read(self._tree.pids, self._pcie.take()),
            pids_comparable=self._pids_comparable,
            vmstat=counters.vmstat(self._root),
            memory_events=counters.memory_events(self._memory_events),
            tree_bytes=counters.tree_bytes(pids, self._root) if self._memory else None,
        )

    def _file_failed(self, error: OSError) -> None:
        self.errors.append(f"cannot write {self._path}: {error.strerror}")
        if self._file is not None:
            self._file.close()
            self._file = None
