"""Collect facts about machine, environment and processes, and samples over time. This room only reads.

`machine` gathers all facts within a deadline: `host.*`, `gpu.*` and `env.*` of this machine, and `python.*`,
`torch.*` and `package.*` of an interpreter, through `torch_build`. An unavailable fact is Unknown with a
reason. `Sampler` takes samples beside a run. `over` computes facts from the samples of a time window. `judge`
reports disturbances from outside the measured processes. docs/reference/facts.md lists every fact.

`sources/` reads, `facts/` names facts, `sampling/` takes samples, and `gpu_code/` lists the GPU code in
files. Only the rooms that need `gpu_code` import it.

This room does not judge programs, change settings, start the user's command or create a CUDA context. The
only file written is `samples.jsonl`, at a path that the caller gives.
"""

from dynotune.probe.facts import compatibility, environment, gpu, host, host_memory, torch_build
from dynotune.probe.facts.machine import machine
from dynotune.probe.sampling.energy import Energy, energy
from dynotune.probe.sampling.group_load import GroupLoad, group_load
from dynotune.probe.sampling.interference import Interference, Neighbours, judge, neighbours
from dynotune.probe.sampling.process_memory import DeviceMemory, device_memory, own_bytes
from dynotune.probe.sampling.sampler import Sampler
from dynotune.probe.sampling.window_facts import over
from dynotune.probe.sources import nvml
from dynotune.probe.sources.counters import descendants
from dynotune.probe.sources.interpreter import interpreter, interpreter_asked, run_python
from dynotune.probe.sources.samples import Gpu, Sample, read_samples

__all__ = [
    "DeviceMemory",
    "Energy",
    "Gpu",
    "GroupLoad",
    "Interference",
    "Neighbours",
    "Sample",
    "Sampler",
    "compatibility",
    "descendants",
    "device_memory",
    "energy",
    "environment",
    "gpu",
    "group_load",
    "host",
    "host_memory",
    "interpreter",
    "interpreter_asked",
    "judge",
    "machine",
    "neighbours",
    "nvml",
    "over",
    "own_bytes",
    "read_samples",
    "run_python",
    "torch_build",
]
