"""What the alerts of `dynotune watch` mean: for `dynotune explain`, and the page of findings."""

from __future__ import annotations

from dynotune.schema.explanation import Explained


def _alert(id_: str, title: str, *, sees: str, costs: str, wrong: str, explains: tuple[str, ...] = ()) -> Explained:
    return Explained(
        id=id_, title=title, scope="watch", family="watch", sees=sees, costs=costs, wrong=wrong, explains=list(explains)
    )


ALERTS = {
    alert.id: alert
    for alert in (
        _alert(
            "input-bound",
            "Steps waited for input for a minute.",
            sees="over the last minute, the loader let steps wait a quarter of their time or more, and the GPU, if "
            "there is one, ran kernels less than 85% of the time.",
            costs="at most the share that steps waited. `dynotune diagnose` says how much of it each remedy saves.",
            wrong="the steps of the minute are the first of an epoch, for which workers start anew.",
        ),
        _alert(
            "throughput-drop",
            "Throughput is 10% below its own past.",
            sees="the median of the last ten seconds' step times, against all the last ten minutes that was as usual. "
            "It is also below the slowest of that past.",
            costs="the difference, until what changed is undone.",
            wrong="the program changed what a step is: longer sequences, larger images, another phase.",
        ),
        _alert(
            "memory-growth",
            "Memory grows, and will reach its limit.",
            sees="the least memory in each sixth of the last 15 s, 2 min or 10 min is more than in the sixth before, "
            "by 64 MiB or more in all, and what is left would be used up within 10 min, an hour, a day.",
            costs="the run: the kernel kills it, or CUDA says that it is out of memory.",
            wrong="the program fills a cache of a size that it knows. The step is a straight line drawn on.",
        ),
        _alert(
            "rank-lag",
            "One rank is behind the others.",
            sees="a rank whose steps wait for input longer than those of the others, by 10% of a step; or take longer, "
            "by 12%. The others wait for it in their collectives, so that all steps are equally long.",
            costs="the difference, in every rank.",
            wrong="ranks do different work on purpose. A rank that is late in its forward or backward is not seen "
            "where a collective makes all steps equally long: record a trace of all ranks, `dynotune trace --ranks`.",
            explains=("rank-imbalance",),
        ),
        _alert(
            "stalled",
            "No step ends, and nothing computes.",
            sees="no step for 10 s, ten times the usual and twice the longest one, while all processes together use "
            "less than a tenth of a core and the GPU runs no kernel; or for 5 min whatever they do. The details say "
            "what each thread waits for, by the kernel.",
            costs="all of the time.",
            wrong="the program waits on purpose, for a file or a person.",
        ),
        _alert(
            "device-shared",
            "Other processes run kernels on this GPU.",
            sees="NVML's list of processes with their share of time, and that they are not of this run. In a container "
            "NVML's process ids are not comparable, and then nothing is said.",
            costs="up to the share of time that their kernels run.",
            wrong="the other process is the run's own service.",
            explains=("gpu-shared",),
        ),
    )
}
