"""Facts about machine, environment and processes, and samples over time. Reads, never writes.

`host`, `nvml` and `environment` each have `facts(…)` for one family of names (`host.*`, `gpu.*`, `env.*`);
`torch_build.ask` answers `torch.*` and `python.*`. What could not be had is Unknown with a reason. `Sampler`
watches beside a measured run, and `judge` says what it saw from outside the arm's own processes.

Nothing here concludes what is wrong with a program, changes a setting, starts the user's command or makes a
CUDA context. `samples.jsonl` is the one file written, where the caller says.
"""

from dynotune.probe import environment, host, nvml, torch_build
from dynotune.probe.counters import descendants
from dynotune.probe.foreign import Judgement, foreign, judge
from dynotune.probe.interpreter import interpreter
from dynotune.probe.sampler import Sampler
from dynotune.probe.samples import Sample, read_samples

__all__ = [
    "Judgement",
    "Sample",
    "Sampler",
    "descendants",
    "environment",
    "foreign",
    "host",
    "interpreter",
    "judge",
    "nvml",
    "read_samples",
    "torch_build",
]
