"""Timed starts with all that their report tells, for the tests of that."""

from __future__ import annotations

from dynotune.schema.caches import Cache, Growth
from dynotune.schema.startup import PHASES, Ratio, Start, StartBlock, Startup

from ..fakes import of_run


def start(arm, value_s, **phases):
    known = dict.fromkeys(PHASES, 0.0) | {"other": value_s} | phases
    added = [Growth(name="inductor", num_files=3, size_bytes=5 << 20)] if arm == "cold" else []
    return Start(arm=arm, run=arm, value_s=value_s, phases=known, added=added, held={"inductor": 5 << 20})


BLOCK = StartBlock(
    [start("warm", 5.0, torch_import=1.5), start("cold", 20.0, compile=14.0), start("off", 21.0)]
)
OWN = Cache(
    name="inductor", path="/tmp/torchinductor_me", size_bytes=7 << 20, lasts=False, storage="in memory"
)
FOUND = of_run(
    Startup,
    id="s",
    command=["python", "train.py"],
    step="draw Loader, step SGD",
    blocks=[BLOCK],
    own=[OWN, Cache(name="cuda", path="/root/.nv/ComputeCache")],
    ratios=[
        Ratio(
            arm="cold", verdict="faster", ratio=4.0, ci=(3.9, 4.1), num_blocks=4, median_s=20.0, saved_s=15.0
        ),
        Ratio(arm="off", verdict="undecided", ratio=1.2, num_blocks=4, reason="The budget is used up."),
    ],
    said=["A warm cache saves 15 s of a cold start's 20 s."],
    to_set={"TORCHINDUCTOR_CACHE_DIR=/path": "it is kept"},
    warm_caches="/runs/s/caches/warm",
)
