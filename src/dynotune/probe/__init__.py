"""Facts about machine, environment and processes, and samples over time. Reads, never writes.

`machine` gathers all facts within a deadline: `host.*`, `gpu.*` and `env.*` of this machine, and `python.*`, `torch.*`
and `package.*` of an interpreter that `torch_build` asks. A fact that could not be had is Unknown with a reason.
`Sampler` samples beside a run; `over` gives the facts of a window of samples, and `judge` says what came from outside
the arm's own processes. Every fact is listed in docs/reference/facts.md.

`sources/` read, `facts/` name, `sampling/` watches, and `gpu_code/` says which GPU code files hold. The last is
imported by those who need it.

Nothing here concludes what is wrong with a program, changes a setting, starts the user's command or makes a CUDA
context. `samples.jsonl` is the one file written, where the caller says.
"""

from dynotune.probe.facts import compatibility, environment, gpu, host, host_memory, torch_build
from dynotune.probe.facts.machine import machine
from dynotune.probe.sampling.interference import Interference, judge
from dynotune.probe.sampling.neighbours import Neighbours, neighbours
from dynotune.probe.sampling.process_memory import DeviceMemory, device_memory, own_bytes
from dynotune.probe.sampling.sampler import Sampler
from dynotune.probe.sampling.window import Energy, energy, over
from dynotune.probe.sources import clock_reasons, nvml
from dynotune.probe.sources.counters import descendants
from dynotune.probe.sources.interpreter import interpreter, interpreter_asked, run_python
from dynotune.probe.sources.samples import Gpu, Sample, read_samples

__all__ = [
    "DeviceMemory",
    "Energy",
    "Gpu",
    "Interference",
    "Neighbours",
    "Sample",
    "Sampler",
    "clock_reasons",
    "compatibility",
    "descendants",
    "device_memory",
    "energy",
    "environment",
    "gpu",
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
