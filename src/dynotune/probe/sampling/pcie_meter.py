"""Read the PCIe link of GPUs and its traffic, in a thread of its own, because each reading takes 20 ms."""

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from dynotune.probe.sources.nvml import NvmlUnavailable, answer, session
from dynotune.schema.facts import Unknown

INTERVAL_S = 1.0
CPU_SHARE = 0.002
"""Largest share of one core for this thread.

If the driver waits by spinning, readings become less frequent.
"""

STOP_S = 1.0

KIB = 1024
"""NVML's KB."""


class PcieRates(NamedTuple):
    """PCIe rates of one GPU over 20 ms, and the state of its link right afterwards."""

    rx_bytes_per_s: int | Unknown
    tx_bytes_per_s: int | Unknown
    generation: int | Unknown
    width: int | Unknown


class PcieMeter:
    """Reader of each GPU's PCIe rates in turn, repeatedly.

    `indices`: NVML indices; if empty, no thread starts.
    """

    def __init__(self, indices: Sequence[int], *, interval_s: float = INTERVAL_S, nvml: Any = None) -> None:
        self._indices = list(indices)
        self._interval_s = interval_s
        self._nvml = nvml
        self._lock = threading.Lock()
        self._rates: dict[int, PcieRates] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: str | None = None
        """The error that ended the readings early, if any."""

    def start(self) -> None:
        """Read PCIe rates in a thread until `stop`."""
        if self._indices:
            self._thread = threading.Thread(target=self._run, name="dynotune-pcie", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread without waiting for a driver that does not answer."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def take(self) -> dict[int, PcieRates]:
        """Return the newest reading of each GPU since the last call."""
        with self._lock:
            taken, self._rates = self._rates, {}
        return taken

    def _run(self) -> None:
        try:
            with session(self._nvml) as library:
                while not self._stopping.wait(self._ask(library)):
                    pass
        except NvmlUnavailable:
            # The sampler uses the same library and reports why it does not answer.
            return
        except Exception as error:
            self.error = f"asking for PCIe throughput ended: {error!r}"

    def _ask(self, library: Any) -> float:
        """Read every GPU; return the seconds to wait before the next round."""
        begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
        rates: dict[int, PcieRates] = {}
        for index in self._indices:
            if not self._stopping.is_set():
                rates[index] = self._rates_of(library, index)
        with self._lock:
            self._rates |= rates
        took_s, cpu_s = time.monotonic() - begin_s, time.thread_time() - begin_cpu_s
        return max(self._interval_s, cpu_s / CPU_SHARE) - took_s

    def _rates_of(self, library: Any, index: int) -> PcieRates:
        handle = answer(library, lambda: library.nvmlDeviceGetHandleByIndex(index))
        if isinstance(handle, Unknown):
            return PcieRates(handle, handle, handle, handle)

        def ask(counter: int) -> int | Unknown:
            return answer(library, lambda: KIB * int(library.nvmlDeviceGetPcieThroughput(handle, counter)))

        return PcieRates(
            ask(library.NVML_PCIE_UTIL_RX_BYTES),
            ask(library.NVML_PCIE_UTIL_TX_BYTES),
            answer(library, lambda: int(library.nvmlDeviceGetCurrPcieLinkGeneration(handle))),
            answer(library, lambda: int(library.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        )
