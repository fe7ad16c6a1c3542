"""GPM counters: what is between two readings, and every sample given back."""

from __future__ import annotations

import pynvml
import pytest

from dynotune.probe.sampling.gpm import Gpm
from dynotune.schema.facts import Unknown


class Library:
    """As much of `pynvml` as the counters ask for; values come from `found`."""

    NVMLError, NVML_SUCCESS = pynvml.NVMLError, pynvml.NVML_SUCCESS
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    NVML_GPM_METRIC_SM_UTIL = pynvml.NVML_GPM_METRIC_SM_UTIL
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t

    def __init__(self, *, supported: bool = True, fails: bool = False) -> None:
        self.supported, self.fails, self.num_held = supported, fails, 0
        self.found = {
            self.NVML_GPM_METRIC_SM_UTIL: (0, 87.5),
            self.NVML_GPM_METRIC_ANY_TENSOR_UTIL: (0, 41.25),
        }

    def nvmlGpmQueryDeviceSupport(self, handle):
        support = pynvml.c_nvmlGpmSupport_t()
        support.isSupportedDevice = self.supported
        return support

    def nvmlGpmSampleAlloc(self):
        self.num_held += 1
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, handle, sample):
        if self.fails:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return sample

    def nvmlGpmSampleFree(self, sample):
        self.num_held -= 1

    def nvmlGpmMetricsGet(self, asked):
        for at in range(asked.numMetrics):
            asked.metrics[at].nvmlReturn, asked.metrics[at].value = self.found[asked.metrics[at].metricId]
        return asked


@pytest.fixture
def library() -> Library:
    return Library()


def test_the_second_reading_says_what_was_since_the_first(library):
    gpm = Gpm(library, None)
    assert all(isinstance(value, Unknown) for value in gpm.read())
    assert gpm.read() == (87.5, 41.25)
    assert gpm.read() == (87.5, 41.25)
    assert library.num_held == 2
    gpm.close()
    assert library.num_held == 0


def test_a_counter_that_is_not_there_is_unknown_and_the_other_is_told(library):
    library.found[library.NVML_GPM_METRIC_ANY_TENSOR_UTIL] = (pynvml.NVML_ERROR_NOT_SUPPORTED, 0.0)
    gpm = Gpm(library, None)
    gpm.read()
    sm, tensor = gpm.read()
    assert sm == 87.5
    assert isinstance(tensor, Unknown)


def test_a_gpu_before_hopper_has_none_and_that_is_said():
    sm, tensor = Gpm(Library(supported=False), None).read()
    assert sm == tensor
    assert "Hopper and later" in sm.reason


def test_a_driver_that_fails_is_unknown_and_may_come_back(library):
    gpm = Gpm(library, None)
    gpm.read()
    library.fails = True
    assert all(isinstance(value, Unknown) for value in gpm.read())
    library.fails = False
    assert gpm.read() == (87.5, 41.25)
    assert library.num_held == 2
