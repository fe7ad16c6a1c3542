"""Histories with a slow step in them: simulated ones, and real ones of a small program in a repository."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from unittest import mock

import msgspec

from dynotune.bisect import protocol as bisection
from dynotune.bisect.halving import ERROR
from dynotune.bisect.line import Line
from dynotune.measure.bench import protocol as bench
from dynotune.measure.comparison import judge_comparison, orders
from dynotune.measure.live import CompareRequest
from dynotune.schema import document
from dynotune.schema.bisection import Bisection, BisectionPoint
from dynotune.schema.comparison import Comparison, FailedArm, Pair
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from lab.silent import Silent

PROGRAM = '''"""Busy work in steps: it computes, and never sleeps."""

import work


def step():
    total = 0
    for number in range(work.TURNS):
        total += number * number % 7
    return total


if __name__ == "__main__":
    import train

    while True:
        train.step()
'''
TURNS = 20000


class SimulatedLine:
    """A line of points that are settings of a variable."""

    kind = "revisions"
    not_switched: Sequence[str] = ()

    def __init__(self, num_points: int) -> None:
        self.points = [
            BisectionPoint(name=f"{point:040}", title=f"Change {point}") for point in range(num_points)
        ]

    def settings(self, point: int) -> list[Setting]:
        return [Setting("env.POINT", str(point))]

    def changed(self, before: int, after: int) -> list[str]:
        return [f"Change {point}" for point in range(before + 1, after + 1)]

    def next_command(self, after: int) -> list[str]:
        return []


def simulated(
    folder: Path,
    times_s: Sequence[float],
    *,
    sd: float,
    seed: int,
    failing: Collection[int] = (),
    max_pairs: int = bisection.MAX_PAIRS,
) -> tuple[Bisection, int]:
    """Search a line whose point `i` takes `times_s[i]`, by the shipped rules; also return how many pairs.

    Args:
        sd: standard deviation of a pair's log ratio.
        failing: points at which the command fails.
    """
    draw, num_pairs = random.Random(seed), 0

    def compare(request: CompareRequest, watcher: object) -> Comparison:
        nonlocal num_pairs
        ends = [int(str(arm[-1].value)) for arm in (request.run.settings, request.candidate)]
        comparison = Comparison(
            id="simulated",
            run=request.run.recorded,
            candidate_settings=request.candidate,
            margin=request.margin,
            max_pairs=request.max_pairs,
            precision=request.precision,
            against=request.against,
            confidence=request.confidence,
            seen=request.seen,
        )
        if failed := [
            arm for arm, end in zip(("baseline", "candidate"), ends, strict=True) if end in failing
        ]:
            comparison = msgspec.structs.replace(comparison, failed=FailedArm(failed[0], 1, ["it broke"]))
            return _kept(request, comparison)
        pairs: list[Pair] = []
        order = orders(request.max_pairs, draw.randrange(2**32))
        while not (judgement := judge_comparison(comparison, pairs)).finished:
            noise = draw.gauss(0, sd)
            ratio = times_s[ends[1]] / times_s[ends[0]] * 2.718281828459045**noise
            pairs.append(Pair(order[len(pairs)], 1.0, ratio))
        num_pairs += len(pairs)
        return _kept(request, judgement.conclude(comparison, pairs=pairs))

    line: Line = SimulatedLine(len(times_s))
    run = RunSpec(command=["simulated"], cwd=folder, env={}, base=folder)
    begun = Bisection(
        id=folder.name,
        run=run,
        good="good",
        bad="bad",
        kind=line.kind,
        points=list(line.points),
        max_pairs=max_pairs,
        margin=bisection.MARGIN,
        error=ERROR,
    )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / bisection.FILE).exists():
        document.write(folder / bisection.FILE, begun)
    with mock.patch.object(bench, "compare", compare):
        return bisection.search(run, line, folder, Silent(), None), num_pairs


def _kept(request: CompareRequest, comparison: Comparison) -> Comparison:
    place = request.run.base / comparison.id
    place.mkdir(parents=True, exist_ok=True)
    document.write(place / bench.FILE, comparison)
    return comparison


def planted(num_points: int, first_bad: int, share: float) -> list[float]:
    """Return the times of points of which those from `first_bad` on take `share` more."""
    return [1.0 + share * (point >= first_bad) for point in range(num_points)]


def write_history(folder: Path, num_points: int, first_bad: int, share: float) -> None:
    """Make a repository of a program whose steps take `share` more work from the commit `first_bad` on."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "train.py").write_text(PROGRAM)
    for point, time in enumerate(planted(num_points, first_bad, share)):
        (folder / "work.py").write_text(f"TURNS = {round(TURNS * time)}\n")
        (folder / "notes.txt").write_text(f"{point}\n")
        commit(folder, f"Change {point}")


def commit(folder: Path, subject: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as an author of its own, and return what it prints."""
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout
