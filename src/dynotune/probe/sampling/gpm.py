"""Read a GPU's GPM counters: the share of time in which multiprocessors and tensor cores were active."""

from typing import Any

from dynotune.probe.sources.nvml import answer
from dynotune.schema.facts import Unknown

FIRST = Unknown("there is no earlier reading")
NOT_HERE = Unknown("this GPU has no GPM counters; Hopper and later GPUs have them")

Fullness = tuple[float | Unknown, float | Unknown]


class Gpm:
    """Read the counters of one GPU between one reading and the next. Call `close` before closing NVML."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle
        self._samples: list[Any] = []  # the last reading, and a buffer for the next one
        self._is_first = True
        found = answer(library, lambda: bool(library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice))
        self._unknown = found if isinstance(found, Unknown) else None if found else NOT_HERE

    def read(self) -> Fullness:
        """Return the mean percentages of time with a warp on multiprocessors and with active tensor cores."""
        found: Any = self._unknown or answer(self._library, self._read)
        return (found, found) if isinstance(found, Unknown) else found

    def close(self) -> None:
        while self._samples:
            answer(self._library, lambda: self._library.nvmlGpmSampleFree(self._samples.pop()))

    def _read(self) -> Fullness:
        library = self._library
        while len(self._samples) < 2:
            self._samples.append(library.nvmlGpmSampleAlloc())
        library.nvmlGpmSampleGet(self._handle, self._samples[1])
        self._samples.reverse()
        if self._is_first:
            self._is_first = False
            return FIRST, FIRST
        asked = library.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = library.NVML_GPM_METRICS_GET_VERSION, 2
        asked.sample2, asked.sample1 = self._samples
        asked.metrics[0].metricId = library.NVML_GPM_METRIC_SM_UTIL
        asked.metrics[1].metricId = library.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        found = library.nvmlGpmMetricsGet(asked).metrics
        unsaid = Unknown("NVML gave no value: the counter does not exist")

        def percentage(metric: Any) -> float | Unknown:
            return metric.value if metric.nvmlReturn == library.NVML_SUCCESS else unsaid

        return percentage(found[0]), percentage(found[1])
