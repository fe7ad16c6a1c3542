"""Result of a bisection: which of many steps between a good and a bad end made a command slow."""

from typing import Literal

import msgspec

from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec

BisectionKind = Literal["revisions", "versions", "differences"]
Side = Literal["good", "bad", "skipped"]
Ending = Literal["found", "range", "not-reproducible", "unsure"]


class BisectionPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A point between the ends; the first is good, the last is bad.

    Args:
        name: commit, version, or what was changed last.
        title: the commit's subject; "" for other kinds.
        num_parents: of a commit; 2 for a merge.
    """

    name: str
    title: str = ""
    num_parents: int = 1


class BisectionStep(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of two points: the first of `good` and the last of `bad`, or `good` and a point between.

    Args:
        baseline, candidate: numbers of the points, from 0.
        side: where the candidate belongs; `skipped` if it could not be measured, for `reason`.
        is_sure: whether the comparison decided that within its error.
        speedup, ci: as in a comparison: below 1, the candidate is slower.
        error: rate of a wrong side, as it was allotted.
        comparison: path of the comparison's folder.
    """

    baseline: int
    candidate: int
    side: Side
    is_sure: bool = True
    speedup: float | None = None
    ci: tuple[float, float] | None = None
    num_pairs: int = 0
    error: float = 0.0
    reason: str = ""
    comparison: str = ""


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """Document `bisection.json`.

    Args:
        good, bad: the ends, as typed.
        points: all points, from good to bad.
        not_switched: differences of the ends that cannot be made here; of files of `doctor` alone.
        shown: whether the difference of the ends is there; None before it was measured.
        steps: the halving comparisons, in order of time.
        confirmed: the comparison of the last good point with the first bad one; None if points
            between them were skipped.
        last_good, first_bad: numbers of the points; neighbours if `ending` is `found`.
        against: the speed-up that a point must be below to be bad: half of the difference, as a logarithm.
        error: rate of searches that end at a wrong step, if one step made the difference.
        changed: what the first bad step changed, in lines.
        next_command: words of the bisection that goes on within a merge.
    """

    schema: str = "dynotune.bisection/1"
    id: str
    run: RunSpec
    good: str
    bad: str
    kind: BisectionKind
    points: list[BisectionPoint]
    not_switched: list[str] = []
    max_pairs: int
    margin: float
    error: float
    shown: BisectionStep | None = None
    against: float = 1.0
    steps: list[BisectionStep] = []
    confirmed: BisectionStep | None = None
    ending: Ending | None = None
    last_good: int | None = None
    first_bad: int | None = None
    reason: str = ""
    changed: list[str] = []
    next_command: list[str] = []
    warnings: list[str] = []
    facts: Facts = {}
