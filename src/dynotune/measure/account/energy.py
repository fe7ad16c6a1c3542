"""Measure the energy of a command's GPUs over its whole run, by NVML's counters alone."""

from __future__ import annotations

from collections.abc import Mapping

from dynotune import probe
from dynotune.schema.facts import Unknown


class EnergyMeter:
    """The energy counters of the GPUs that a command under `env` may use, read at the begin and at the end.

    Nothing runs in between. Other programs on these GPUs, and idle power, are included.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        gpus = probe.nvml.visible_gpus(env)
        self._reason = gpus if isinstance(gpus, Unknown) else None
        self._sampler = None
        if not self._reason and gpus:
            self._sampler = probe.Sampler(probe.host.usable_cpus(), gpus, list)
            self._sampler.sample()

    def joules(self) -> float | Unknown:
        """Return the energy since the meter was made; Unknown without a GPU or a counter."""
        if self._sampler is None:
            return self._reason or Unknown("no GPU is visible")
        self._sampler.stop()
        samples = self._sampler.samples
        if len(samples) < 2:
            return Unknown("the GPUs' counters could not be read")
        found = probe.energy(samples, samples[0].time_s, samples[-1].time_s)
        if isinstance(found, Unknown):
            return found
        return found.joules if found.source == "counter" else Unknown("NVML has no energy counter here")
