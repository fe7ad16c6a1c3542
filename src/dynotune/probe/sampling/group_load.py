"""Read how long a process's control group was throttled, and how long its processes waited for cpu, io or
memory."""

import re
from pathlib import Path
from typing import NamedTuple

from dynotune.probe.sources import container, counters, kernel_files
from dynotune.probe.sources.samples import Quota
from dynotune.schema.facts import Unknown

RESOURCES = ("cpu", "io", "memory")


class GroupLoad(NamedTuple):
    """Counters since the control group was made, or since the machine started.

    Args:
        throttled_s: seconds in which a CPU quota stopped the group, summed over cores; None without a quota.
        pressure_s: by resource, the seconds in which some process waited for it; without resources that the
            kernel does not count.
    """

    throttled_s: float | Unknown | None
    pressure_s: dict[str, float]


def group_load(pid: int, root: Path = Path("/")) -> GroupLoad:
    """Read the counters of the control group of a process; of the whole machine where a group has no
    pressure.

    Source: https://docs.kernel.org/accounting/psi.html
    """
    quota = counters.quota(container.cpu_limits(root, pid))
    levels = container.cgroup_levels("cpu", root, pid)
    innermost = None if isinstance(levels, Unknown) or not levels else levels[0]
    found = {}
    for resource in RESOURCES:
        files = [innermost / f"{resource}.pressure"] if innermost is not None else []
        texts = (kernel_files.read(file) for file in (*files, root / f"proc/pressure/{resource}"))
        totals = (re.search(r"^some .*\btotal=(\d+)", text, re.MULTILINE) for text in texts)
        if (total := next(filter(None, totals), None)) is not None:
            found[resource] = int(total[1]) / 1e6
    return GroupLoad(quota.throttled_s if isinstance(quota, Quota) else quota, found)
