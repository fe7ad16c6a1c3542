from __future__ import annotations

import threading

from dynotune.probe import Sampler
from dynotune.probe.sampling.gpu_counters import GpuCounters
from dynotune.probe.sampling.pcie_meter import PcieMeter, PcieRates
from dynotune.schema.facts import Unknown

DEADLINE_S = 60


class Noticed:
    """Makes every call of one method of a fake NVML known."""

    def __init__(self, library):
        self.seen = threading.Semaphore(0)
        ask = library.nvmlDeviceGetPcieThroughput

        def noticed(gpu, counter):
            try:
                return ask(gpu, counter)
            finally:
                self.seen.release()

        library.nvmlDeviceGetPcieThroughput = noticed

    def wait(self, num):
        for _ in range(num):
            assert self.seen.acquire(timeout=DEADLINE_S)


def test_both_directions_of_every_gpu_are_read_once_and_taken_once(fake_nvml, h200):
    library = fake_nvml(h200, h200 | {"throughput_kib": {0: 1, 1: 2}})
    noticed = Noticed(library)
    meter = PcieMeter([1, 0], interval_s=3600, nvml=library)
    meter.start()
    noticed.wait(4)
    meter.stop()
    assert meter.take() == {1: PcieRates(2048, 1024, 5, 8), 0: PcieRates(2000 * 1024, 100 * 1024, 5, 8)}
    assert meter.take() == {}
    assert library.num_open == 0
    assert meter.error is None


def test_without_gpus_or_a_driver_nothing_is_asked(fake_nvml):
    for meter in (PcieMeter([]), PcieMeter([0], nvml=fake_nvml(init_error=9))):
        meter.start()
        meter.stop()
        assert meter.take() == {}
        assert meter.error is None


def test_a_gpu_lost_in_the_middle_is_unknown(fake_nvml, h200):
    library = fake_nvml(h200)
    noticed = Noticed(library)
    meter = PcieMeter([0], interval_s=0, nvml=library)
    meter.start()
    noticed.wait(2)
    library.lose()
    noticed.wait(6)
    meter.stop()
    rates = meter.take()[0]
    assert isinstance(rates.rx_bytes_per_s, Unknown)
    assert isinstance(rates.tx_bytes_per_s, Unknown)
    assert isinstance(rates.generation, Unknown)
    assert meter.error is None


def test_a_driver_that_does_not_come_back_is_not_waited_for_and_the_sampler_goes_on(fake_nvml, h200, root):
    asked, never = threading.Event(), threading.Event()

    class Hanging(fake_nvml):
        def nvmlDeviceGetPcieThroughput(self, gpu, counter):
            asked.set()
            never.wait()

    root.cpus((0, 1, 0))
    root.process(10)
    with Sampler({0}, [0], lambda: [10], 3600, root=root.path, nvml=Hanging(h200)) as sampler:
        assert asked.wait(DEADLINE_S)
        assert sampler.sample().gpus[0].temperature_c == 61
    never.set()
    assert isinstance(sampler.samples[-1].gpus[0].pcie_rx_bytes_per_s, Unknown)


def test_a_mistake_in_the_thread_is_told(fake_nvml, h200):
    class Broken(fake_nvml):
        def nvmlDeviceGetPcieThroughput(self, gpu, counter):
            raise ZeroDivisionError

    meter = PcieMeter([0], nvml=Broken(h200))
    meter.start()
    meter._thread.join(DEADLINE_S)
    assert "ZeroDivisionError" in meter.error


def test_a_sample_asks_nothing_of_the_link_itself(fake_nvml, h200, monkeypatch):
    library, asked = fake_nvml(h200), []
    for name in ("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth"):
        monkeypatch.setattr(library, name, asked.append, raising=True)
    (gpu,) = GpuCounters([0], nvml=library).read([])
    assert asked == [] and gpu.pcie_replays == 4
