"""What benchmarks of programs and parts are asked by, and the lanes that they run in."""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from lab.tuning.programs import Program

Taken = TypeVar("Taken", bound=Program)


def in_lanes(num: int, begin: Sequence[str], words: Sequence[str]) -> None:
    """A benchmark once for each lane, on a GPU and cores of its own; the last value of an option counts.

    Args:
        begin: of Python, how the benchmark is started.
        words: what it is asked.
    """
    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // num)
    running = []
    for lane in range(num):
        cores = ",".join(map(str, cpus[lane * size : (lane + 1) * size]))
        mine = [*words, "--lanes", "1", "--lane", f"{lane}/{num}", "--no-lock"]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(lane)}
        running.append(subprocess.Popen(["taskset", "-c", cores, sys.executable, *begin, *mine], env=env))
    try:
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.terminate()


def options(about: str | None, kinds: Sequence[str], work: str) -> argparse.ArgumentParser:
    """A parser; `work`: a name for the folder of what programs read."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--part", action="append", choices=kinds, metavar="KIND")
    parser.add_argument("--lane", default="0/1", metavar="I/N")
    parser.add_argument("--lanes", type=int, default=1, metavar="N")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument(
        "--until-s", type=float, default=math.inf, help="begin nothing that would end after so many seconds"
    )
    parser.add_argument("--tune-s", type=float, help="budget of each tune, in place of the program's")
    parser.add_argument("--pairs-s", type=float, help="most seconds of each comparison in fresh pairs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / work)
    parser.add_argument("--keep", type=Path, help="folder for each study, its recipe and its report")
    parser.add_argument("--no-lock", action="store_true")
    return parser


def end_whole() -> None:
    """Let a termination end what runs, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def in_this_lane(programs: Sequence[Taken], given: argparse.Namespace) -> list[Taken]:
    lane, lanes = map(int, given.lane.split("/"))
    return [program for program in programs if not given.only or program.name in given.only][lane::lanes]


def left_of(until_s: float) -> Callable[[], float]:
    """Seconds that are left of so many from now."""
    end_s = time.monotonic() + until_s
    return lambda: end_s - time.monotonic()
