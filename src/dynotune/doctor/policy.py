"""Thresholds of the rules, each with its reason, and how much a finding weighs."""

from __future__ import annotations

from dynotune.schema.diagnosis import Severity

HIGH_SHARE = 0.10
"""Of a step: more than runs differ by on a quiet machine, and worth an hour of anyone's time."""
MEDIUM_SHARE = 0.03
"""Below it `compare` needs more than its twelve pairs to tell the gain from noise of 2%."""
LEAST_SHARE = 0.01
"""What costs less is not reported: the trace itself does not tell it apart from chance."""


def severity(share: float) -> Severity:
    """By the share of a step that a finding costs."""
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"


# loader

HANDOVER_S = 0.0005
"""What the process still spends on a batch that a worker made: taking it from the queue and mapping its memory."""
LARGE_PART = 0.3
"""Of the time that making a batch takes: less of it in one place is not what loading is about."""
WORKERS_BUSY = 0.85
"""Of their time. Above it more workers make more batches; the rest is the wait for what to load next."""
UNEVEN = 3.0
"""The longest batch over the mean one: beyond it two batches ahead do not bridge the gap."""
PIN_BUSY = 0.8
"""Of a step in which the one thread that pins batches works: it is what sets the pace."""
FORK_S = 0.02
"""For a worker to be forked and to ask for its first batch; a fresh interpreter with torch takes seconds."""
MANY_OBJECTS = 100_000
"""Python objects of a data set: some 10 MB, below which copying them into each worker is no matter."""
COPIED_BYTES = 16 << 20
"""By which all workers' own memory grows in the window; batches come and go by some megabytes."""
COPIED_MUCH_BYTES = 256 << 20
"""The same in a minute: in an hour it is memory that machines run out of."""

# transfer

SMALL_COPY_BYTES = 64 * 1024
MANY_SMALL_COPIES = 100
"""A step, as the trace's own cause has them."""
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""By generation: no copy is faster than that, pinned or not."""
IMAGE_VALUES = 256
"""Distinct values in a plane of what was made from bytes."""
IMAGE_SIDE = 16
"""Pixels. A float tensor with smaller planes is no image."""

# synchronisation and memory

CALLS_PER_STEP = 0.05
"""Once in twenty steps: rarer calls are part of an epoch's end, not of the loop."""
SPLIT_SHARE = 0.2
SPLIT_BYTES = 64 << 20
"""Of reserved memory, and at least: as for memory snapshots."""
FULL_SHARE = 0.9
"""Of the device's memory, reserved at the peak: the next larger batch does not fit."""
LEAK_BYTES = 1 << 20
LEAK_STEP_BYTES = 1024
"""Grown in the window, and a step: the allocator counts in 512 bytes."""
LEAK_HOST_BYTES = 32 << 20
LEAK_HOST_STEP_BYTES = 4096
"""The same for the process; malloc takes and keeps some megabytes at a time."""
LEAK_RISES = 0.75
"""Of the stretches between levels: what leaks rises nearly always, what varies every second time."""
SOON_S = 24 * 3600.0
VERY_SOON_S = 3600.0
"""Until memory is full at that rate: within a day it ends a training, within an hour it ends most."""
