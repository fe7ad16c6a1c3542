"""Choose optimisation profiles for recorded shapes: few profiles that waste little memory and cover all
calls.

TensorRT chooses kernels for a profile's `opt` and plans the memory of a context for its `max`, so the cost of
a profile is the part of `max` that its calls leave unused. Source: `ExecutionContextAllocationStrategy` in
https://github.com/NVIDIA/TensorRT/blob/v11.1/include/NvInferRuntime.h
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dynotune.schema.engine_plan import Calls, EnginePlan, Profile, ShapeHistogram, Shapes
from dynotune.schema.errors import RecordError

MOST_PROFILES = 8
"""TensorRT tunes each profile separately, and the engine contains the kernels of each."""
MOST_DIFFERENT = 2048
MOST_WORK, WORK_OF_AN_INPUT = 3e8, 250.0
"""Limits for planning, which takes a few seconds: multiplications and sums, and their number per input."""
MOST_DIMENSIONS, MOST_ELEMENTS = 8, 1 << 48
SUFFICES = 0.1
"""One profile is enough if calls leave no more than this share of its largest shape unused."""
Floats = npt.NDArray[np.float64]


def plan_profiles(histogram: ShapeHistogram, asked: int | None = None) -> EnginePlan:
    """Plan profiles that cover all calls; if only one dimension varies, no other profiles of that number
    waste less.

    Args:
        asked: number of profiles; None for the fewest that waste at most half as much as a single profile.

    Raises RecordError: no call has tensors, or there are too many different shapes.
    """
    calls, notes = _usable(histogram.calls)
    points = np.array(
        [[size for sizes in call.shapes.values() for size in sizes] for call in calls], dtype=np.float64
    )
    ends = np.cumsum([len(sizes) for sizes in calls[0].shapes.values()]).tolist()
    weights, areas = np.array([call.num for call in calls], dtype=np.float64), _areas(points, ends)
    used = float(weights @ areas)
    wastes, parts = [np.inf] * MOST_PROFILES, [[np.arange(len(calls))]] * MOST_PROFILES
    # Sorted by one dimension or by size, the calls of one profile are neighbours.
    columns = [column for column in np.unique(points, axis=1).T if np.ptp(column)]
    if (len(columns) + 1) * len(calls) * (points.size + WORK_OF_AN_INPUT * len(ends)) > MOST_WORK:
        said = f"{len(calls)} different shapes of {points.shape[1]} dimensions, {len(columns)} of which vary"
        hint = "Round sizes up to multiples, of 32 say, or leave rare shapes out."
        raise RecordError(f"There are {said}: more than can be planned for in seconds.", hint=hint)
    for column in [*columns, areas]:
        order = np.lexsort((areas, column))
        for at, (waste, cuts) in enumerate(_partitions(points[order], weights[order], ends)):
            if waste < wastes[at]:
                wastes[at], parts[at] = waste, np.split(order, cuts)
    shares = [round(waste / (used + waste), 9) for waste in wastes[: len(calls)]]
    num, why = _number(shares, wastes[0] / (2 * used + wastes[0]), asked)
    # All profiles begin at the smallest shape: a size between two profiles uses the larger, and `min` takes
    # no memory.
    least = _corner(np.min, calls)
    found = []
    for part in parts[num - 1]:
        mine = [calls[at] for at in part]
        usual = max(mine, key=lambda call: call.num)
        found.append(Profile(sum(call.num for call in mine), least, usual.shapes, _corner(np.max, mine)))
    return EnginePlan(
        histogram=msgspec.structs.replace(histogram, calls=calls),
        profiles=sorted(found, key=lambda one: num_elements(one.max)),
        why=why,
        wasted=shares[num - 1],
        wasted_by_one=shares[0],
        notes=notes,
    )


def _usable(calls: Sequence[Calls]) -> tuple[list[Calls], list[str]]:
    """Merge equal calls and keep those with the usual inputs, since an engine has fixed inputs and
    dimensions."""
    order = {
        name: at for at, name in enumerate(dict.fromkeys(name for call in calls for name in call.shapes))
    }
    counts: Counter[tuple[tuple[str, tuple[int, ...]], ...]] = Counter()
    for call in calls:
        named = sorted(call.shapes.items(), key=lambda item: order[item[0]])
        counts[tuple((name, tuple(sizes)) for name, sizes in named)] += call.num
    kinds: dict[object, list[Calls]] = {}
    for key, num in counts.items():
        if key and all(size for _, sizes in key for size in sizes):
            one = Calls(num, {name: list(sizes) for name, sizes in key})
            if any(len(sizes) > MOST_DIMENSIONS or math.prod(sizes) >= MOST_ELEMENTS for _, sizes in key):
                raise RecordError("A shape is larger than any that TensorRT takes.", hint="Leave it out.")
            kinds.setdefault(tuple((name, len(sizes)) for name, sizes in key), []).append(one)
    usual = max(kinds.values(), key=lambda kind: sum(call.num for call in kind), default=[])
    if not 0 < len(usual) <= MOST_DIFFERENT:
        raise RecordError(
            f"There are {len(usual)} different shapes; 1 to {MOST_DIFFERENT} can be planned for."
        )
    left = counts.total() - sum(call.num for call in usual)
    note = f"{left} of {counts.total()} calls had other inputs, or empty ones: keep them from the engine."
    return usual, [note] * bool(left)


def num_elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def holds(shapes: Shapes, profile: Profile) -> bool:
    """Tell whether the profile accepts inputs of these shapes."""
    low, high = profile.min, profile.max
    return shapes.keys() <= low.keys() and all(
        all(a <= size <= b for a, size, b in zip(low[name], sizes, high[name], strict=True))
        for name, sizes in shapes.items()
    )


def _areas(points: Floats, ends: Sequence[int]) -> Floats:
    """Return the elements of all inputs at each point. `ends`: last column of each input's dimensions."""
    parts = zip([0, *ends], ends, strict=False)
    return np.asarray(sum(points[:, begin:end].prod(axis=1) for begin, end in parts))


def _partitions(points: Floats, weights: Floats, ends: Sequence[int]) -> Iterator[tuple[float, list[int]]]:
    """Cut the ordered points into 1, 2, … stretches with the least waste; yield the waste and the cuts."""
    num, used = len(points), weights * _areas(points, ends)
    most = min(MOST_PROFILES, num)
    # By number of stretches and of calls in them: the least waste, and where the last stretch begins.
    best, origin = np.full((most + 1, num + 1), np.inf), np.zeros((most + 1, num + 1), dtype=np.intp)
    best[0, 0] = 0.0
    for begin in range(num):
        largest = _areas(np.maximum.accumulate(points[begin:]), ends)
        total = best[:-1, begin, None] + np.cumsum(weights[begin:]) * largest - np.cumsum(used[begin:])
        better = total < best[1:, begin + 1 :]
        best[1:, begin + 1 :][better], origin[1:, begin + 1 :][better] = total[better], begin
    for number in range(1, most + 1):
        cuts = [num]
        for left in range(number, 0, -1):
            cuts.insert(0, int(origin[left, cuts[0]]))
        yield max(0.0, float(best[number, num])), cuts[1:-1]


def _number(shares: Sequence[float], half: float, asked: int | None) -> tuple[int, str]:
    """Return the number of profiles, and why. `shares`: the share that 1, 2, … profiles waste."""
    most = min(asked or len(shares), len(shares))
    limit = SUFFICES if shares[0] <= SUFFICES else min(shares[:most]) if asked else max(half, shares[-1])
    num = next(num for num in range(1, most + 1) if shares[num - 1] <= limit)
    why = (
        f"{num} profiles leave {shares[num - 1]:.0%} of their largest shapes unused; one leaves "
        f"{shares[0]:.0%}."
    )
    if num == 1:
        why = (
            f"One profile {'suffices: it ' * (limit == SUFFICES)}leaves {shares[0]:.0%} of its largest "
            "shapes unused."
        )
    return num, why + f" {asked} would hardly save more, and each costs time to build." * (num < (asked or 0))


def _corner(of: Callable[..., npt.NDArray[np.float64]], calls: Sequence[Calls]) -> Shapes:
    return {name: of([call.shapes[name] for call in calls], axis=0).tolist() for name in calls[0].shapes}
