"""Read how busy the GPUs of a running program are, by the driver's management library, without a CUDA
context."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from statistics import fmean

from dynotune import probe
from dynotune.running.targets import Rank, Target
from dynotune.schema.facts import Unknown

INTERVAL_S = 0.5
NONE = Unknown("the program has not loaded CUDA")


class GpuUse:
    """Samples the GPUs that the program sees, in a thread, until `stop`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._samples: list[probe.Sample] = []
        self._stopping = threading.Event()
        with_cuda = [rank.process for rank in target.ranks if rank.process.has_cuda]
        self._thread: threading.Thread | None = None
        if not with_cuda:
            return
        # Ranks may see different GPUs, so ask for each rank with its own environment.
        seen = [probe.nvml.visible_gpus(_variables(process.environment)) for process in with_cuda]
        unknown = next((one for one in seen if isinstance(one, Unknown)), None)
        indices = sorted({index for one in seen if not isinstance(one, Unknown) for index in one})
        self._sampler = probe.Sampler([], unknown or indices, lambda: target.pids, watched=True)
        self._thread = threading.Thread(target=self._sample, name="dynotune-gpus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def of(self, rank: Rank) -> tuple[list[int], float | Unknown]:
        """Return the GPUs of a rank, and the share of the time in which a kernel ran on them.

        If the driver's process ids can be compared with ours, its GPUs are those with a context of the rank's
        process; else all that the program sees.
        """
        if not rank.process.has_cuda:
            return [], NONE
        rows = [sample.gpus for sample in self._samples]
        unknown = next((row for row in rows if isinstance(row, Unknown)), None)
        known = [row for row in rows if not isinstance(row, Unknown)]
        if unknown or not known:
            return [], unknown or Unknown("no sample of the GPUs was taken")
        used = {gpu.nvml_index for row in known for gpu in row if _computes_on(gpu, rank)}
        comparable = any(sample.pids_comparable for sample in self._samples)
        chosen = used if comparable else {gpu.nvml_index for row in known for gpu in row}
        percents = [gpu.utilisation_percent for row in known for gpu in row if gpu.nvml_index in chosen]
        return sorted(chosen), _mean_share(percents)

    def _sample(self) -> None:
        while True:
            if (sample := self._sampler.sample()) is not None:
                self._samples.append(sample)
            if self._stopping.wait(INTERVAL_S):
                break
        self._sampler.stop()


def _computes_on(gpu: probe.Gpu, rank: Rank) -> bool:
    return not isinstance(gpu.processes, Unknown) and any(
        one.pid == rank.process.pid for one in gpu.processes
    )


def _mean_share(percents: Sequence[int | Unknown]) -> float | Unknown:
    known = [percent for percent in percents if not isinstance(percent, Unknown)]
    if known:
        return fmean(known) / 100
    return next(
        (one for one in percents if isinstance(one, Unknown)), Unknown("no GPU has a context of the process")
    )


def _variables(environment: dict[str, str] | Unknown) -> dict[str, str]:
    return {} if isinstance(environment, Unknown) else environment
