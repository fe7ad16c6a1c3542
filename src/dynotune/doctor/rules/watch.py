"""What the alerts of `dynotune watch` mean. The room `watch` judges, from a run as it is now."""

from __future__ import annotations

import functools

from dynotune.doctor.declaration import Judgements, rule
from dynotune.doctor.observation_view import ObservationView


def _nothing(view: ObservationView) -> Judgements:
    """Nothing of it is seen in a run that is over."""
    return iter(())


alert = functools.partial(rule, scope="watch")
ALERTS = (
    alert(
        id="input-bound",
        title="Steps waited for input for a minute.",
        sees="over the last minute, the loader let steps wait a quarter of their time or more, and the GPU, if there "
        "is one, ran kernels less than 85% of the time.",
        costs="at most the share that steps waited. `dynotune diagnose` says how much of it each remedy saves.",
        wrong_when="the steps of the minute are the first of an epoch, for which workers start anew.",
    )(_nothing),
    alert(
        id="throughput-drop",
        title="Throughput is 10% below its own past.",
        sees="the median of the last ten seconds' step times, against all the last ten minutes that was as usual. It "
        "is also below the slowest of that past.",
        costs="the difference, until what changed is undone.",
        wrong_when="the program changed what a step is: longer sequences, larger images, another phase.",
    )(_nothing),
    alert(
        id="memory-growth",
        title="Memory grows, and will reach its limit.",
        sees="the least memory in each sixth of the last 15 s, 2 min or 10 min is more than in the sixth before, by "
        "64 MiB or more in all, and what is left would be used up within 10 min, an hour, a day.",
        costs="the run: the kernel kills it, or CUDA says that it is out of memory.",
        wrong_when="the program fills a cache of a size that it knows. The step is a straight line drawn on.",
    )(_nothing),
    alert(
        id="rank-lag",
        title="One rank is behind the others.",
        sees="a rank whose steps wait for input, or without a GPU are outside of input and backward, longer than those "
        "of the others by 10% of a step; or whose steps take 12% longer.",
        costs="the difference, in every rank.",
        wrong_when="ranks do different work on purpose. A rank that is late in its backward, or on its GPU, is not "
        "seen where a collective makes all steps equally long: record a trace of all ranks, `dynotune trace --ranks`.",
        explains=("rank-imbalance",),
    )(_nothing),
    alert(
        id="stalled",
        title="No step ends, and nothing computes.",
        sees="no step for 10 s, ten times the usual and twice the longest one, while all processes together use less "
        "than a tenth of a core and the GPU runs no kernel; or for 5 min whatever they do. The details say where each "
        "thread of Python is.",
        costs="all of the time.",
        wrong_when="the program waits on purpose, for a file or a person.",
    )(_nothing),
    alert(
        id="device-shared",
        title="Other processes run kernels on this GPU.",
        sees="NVML's list of processes with their share of time, and that they are not of this run. In a container "
        "NVML's process ids are not comparable, and then nothing is said.",
        costs="up to the share of time that their kernels run.",
        wrong_when="the other process is the run's own service.",
        explains=("gpu-shared",),
    )(_nothing),
    alert(
        id="loss-not-finite",
        title="The loss is NaN or infinite.",
        sees="what `backward` was called on, once a second: a single value, copied without waiting for the device.",
        costs="the run, where the weights are NaN by then, too.",
        wrong_when="the loss was scaled for 16 bits, overflowed, and the scaler leaves out this one step.",
    )(_nothing),
)
