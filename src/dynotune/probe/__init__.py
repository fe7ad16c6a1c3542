"""Facts about machine, environment and processes, and samples over time. Reads, never writes.

`machine` gathers all facts within a deadline. Of its parts, `host`, `host_memory` and `host_processors` tell
`host.*`, `nvml` and `gpu` tell `gpu.*`, `environment` tells `env.*`; `torch_build` asks an interpreter for
`python.*`, `torch.*` and `package.*`. What could not be had is Unknown with a reason. `Sampler` watches beside a
run; of its samples, `over` gives the facts of a window and `judge` says what came from outside the arm's own
processes. Every fact is listed in docs/reference/facts.md.

Imported by those who need them: `device_code` reads which GPU code the files of `code_places` hold.

Nothing here concludes what is wrong with a program, changes a setting, starts the user's command or makes a
CUDA context. `samples.jsonl` is the one file written, where the caller says.
"""

from dynotune.probe.facts import compatibility, environment, gpu, host, torch_build
from dynotune.probe.facts.machine import machine
from dynotune.probe.sampling.energy import Energy, energy
from dynotune.probe.sampling.interference import Interference, foreign, judge
from dynotune.probe.sampling.sampler import Sampler
from dynotune.probe.sampling.window import over
from dynotune.probe.sources import nvml
from dynotune.probe.sources.counters import descendants
from dynotune.probe.sources.interpreter import interpreter
from dynotune.probe.sources.samples import Sample, read_samples

__all__ = [
    "Energy",
    "Interference",
    "Sample",
    "Sampler",
    "compatibility",
    "descendants",
    "energy",
    "environment",
    "foreign",
    "gpu",
    "host",
    "interpreter",
    "judge",
    "machine",
    "nvml",
    "over",
    "read_samples",
    "torch_build",
]
