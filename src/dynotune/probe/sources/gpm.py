"""How full GPUs are, by NVML's GPM counters: Hopper on, without root. Each reading covers the time since the last."""

from __future__ import annotations

from typing import Any

from dynotune.probe.sources.nvml import answer
from dynotune.schema.facts import Unknown

NOT_ASKED = Unknown("GPM counters were not asked for")
FIRST = Unknown("the first reading has none before it")


class Gpm:
    """The counters of one GPU, between one reading and the next; `close` before NVML is."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle
        self._before: Any = None
        supported = answer(library, lambda: bool(library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice))
        missing = Unknown("this GPU has no GPM counters: Hopper and later have them")
        self._unknown = supported if isinstance(supported, Unknown) else None if supported else missing

    def read(self) -> tuple[float | Unknown, float | Unknown]:
        """Percent of time that a multiprocessor had a warp, and that a tensor core was at work; over all of them."""
        if self._unknown is not None:
            return self._unknown, self._unknown
        before, now = self._before, answer(self._library, self._sample)
        self._before = None if isinstance(now, Unknown) else now
        found: Any = now
        if not isinstance(now, Unknown):
            found = FIRST if before is None else answer(self._library, lambda: self._between(before, now))
        self._free(before)
        return (found, found) if isinstance(found, Unknown) else found

    def close(self) -> None:
        self._free(self._before)
        self._before = None

    def _sample(self) -> Any:
        sample = self._library.nvmlGpmSampleAlloc()
        try:
            return self._library.nvmlGpmSampleGet(self._handle, sample)
        except self._library.NVMLError:
            self._free(sample)
            raise

    def _between(self, before: Any, now: Any) -> tuple[float | Unknown, float | Unknown]:
        library = self._library
        asked = library.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = library.NVML_GPM_METRICS_GET_VERSION, 2
        asked.sample1, asked.sample2 = before, now
        asked.metrics[0].metricId = library.NVML_GPM_METRIC_SM_UTIL
        asked.metrics[1].metricId = library.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        found = library.nvmlGpmMetricsGet(asked).metrics
        unsaid = Unknown("NVML does not say: the counter is not there")
        sm, tensor = (found[at].value if found[at].nvmlReturn == library.NVML_SUCCESS else unsaid for at in (0, 1))
        return sm, tensor

    def _free(self, sample: Any) -> None:
        if sample is not None:
            answer(self._library, lambda: self._library.nvmlGpmSampleFree(sample))
