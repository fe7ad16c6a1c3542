"""Choose optimisation profiles for recorded shapes: few profiles that waste little memory and cover all calls. Write
the script that builds the engine.

TensorRT chooses kernels for a profile's `opt` and plans the memory of a context for its `max`, so the cost of a profile
is the part of `max` that its calls leave unused. Source: `ExecutionContextAllocationStrategy` in
https://github.com/NVIDIA/TensorRT/blob/v11.1/include/NvInferRuntime.h
"""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
import msgspec
import numpy as np
import numpy.typing as npt

from dynotune.schema import document, untrusted
from dynotune.schema.engine_plan import Calls, EnginePlan, Profile, ShapeHistogram, Shapes
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError, may_fail
from dynotune.schema.facts import Unknown
from dynotune.text import words

MOST_PROFILES = 8
"""TensorRT tunes each profile separately, and the engine contains the kernels of each."""
MOST_DIFFERENT = 2048
MOST_WORK, WORK_OF_AN_INPUT = 3e8, 250.0
"""Limits for planning, which takes a few seconds: multiplications and sums, and their number per input."""
MOST_DIMENSIONS, MOST_ELEMENTS = 8, 1 << 48
SUFFICES = 0.1
"""One profile is enough if calls leave no more than this share of its largest shape unused."""
Floats = npt.NDArray[np.float64]
MOST_BYTES = (1 << 31) - 1
"""Largest accepted model file in bytes: the limit of a Protobuf message."""


def plan_profiles(histogram: ShapeHistogram, asked: int | None = None) -> EnginePlan:
    """Plan profiles that cover all calls; if only one dimension varies, no other profiles of that number waste less.

    Args:
        asked: number of profiles; None for the fewest that waste at most half as much as a single profile.

    Raises RecordError: no call has tensors, or there are too many different shapes.
    """
    calls, notes = _usable(histogram.calls)
    points = np.array([[size for sizes in call.shapes.values() for size in sizes] for call in calls], dtype=np.float64)
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
    # All profiles begin at the smallest shape: a size between two profiles uses the larger, and `min` takes no memory.
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
    """Merge equal calls and keep those with the usual inputs, since an engine has fixed inputs and dimensions."""
    order = {name: at for at, name in enumerate(dict.fromkeys(name for call in calls for name in call.shapes))}
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
        raise RecordError(f"There are {len(usual)} different shapes; 1 to {MOST_DIFFERENT} can be planned for.")
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
    why = f"{num} profiles leave {shares[num - 1]:.0%} of their largest shapes unused; one leaves {shares[0]:.0%}."
    if num == 1:
        why = f"One profile {'suffices: it ' * (limit == SUFFICES)}leaves {shares[0]:.0%} of its largest shapes unused."
    return num, why + f" {asked} would hardly save more, and each costs time to build." * (num < (asked or 0))


def _corner(of: Callable[..., npt.NDArray[np.float64]], calls: Sequence[Calls]) -> Shapes:
    return {name: of([call.shapes[name] for call in calls], axis=0).tolist() for name in calls[0].shapes}


def declared_inputs(path: Path) -> dict[str, tuple[str, list[int | None]]]:
    """Return type and sizes of each input; None for a size that varies.

    Raises CannotRunHere: the package onnx is missing. RecordError: the file is not a usable model.
    """
    try:
        import onnx
    except ImportError:
        raise CannotRunHere("ONNX models take the package onnx.", hint="pip install 'dynotune[onnx]'") from None
    with may_fail(f"read {path}", "Give the file that the export wrote.", RecordError), untrusted.opened(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes > MOST_BYTES:
        raise RecordError(f"{path} has over 2 GB.", hint="Export it again, with its weights in a file of their own.")
    try:
        onnx.checker.check_model(str(path))
        graph = onnx.load_model(str(path), load_external_data=False).graph
        weights = {one.name for one in graph.initializer}
        inputs = [(one.name, one.type.tensor_type) for one in graph.input if one.name not in weights]
        type_of, dims = onnx.helper.tensor_dtype_to_np_dtype, [one.shape.dim for _, one in inputs]
        sizes = [[None if one.dim_value in (0, -1) else one.dim_value for one in each] for each in dims]
        return {name: (str(type_of(one.elem_type)), each) for (name, one), each in zip(inputs, sizes, strict=True)}
    except Exception as error:  # protobuf, the checker and numpy have unrelated exception types
        reason = " ".join(str(error).split())[:300]
        raise RecordError(f"{path} is no valid ONNX model: {reason}", hint="Export it again.") from error


def shapes_for(model: Path, given: Sequence[str]) -> tuple[ShapeHistogram, bool]:
    """Return the given shapes, or those that the model declares, and whether the model's sizes vary.

    Args:
        given: files of shapes, or the shapes of one call each, `x:1x3x640x640,mask:1x640`.

    Raises UsageError: the model does not take the shapes, or a varying dimension has none.
    """
    declared = declared_inputs(model)
    example = ",".join(f"{name}:{'x'.join(str(one or 1) for one in each)}" for name, (_, each) in declared.items())
    is_dynamic = any(None in sizes for _, sizes in declared.values())
    if is_dynamic and not given:
        raise UsageError(f"Sizes of {model} vary. Say which are used.", hint=f"For example: --shapes {example}")
    calls = [call for one in given or [example] for call in _calls(one)]
    for call in calls:
        pairs = [(sizes, declared[name][1]) for name, sizes in call.shapes.items() if name in declared]
        fits = [
            len(ours) == len(its) and all(b in (None, a) for a, b in zip(ours, its, strict=True)) for ours, its in pairs
        ]
        if not (all(fits) and len(fits) == len(declared) == len(call.shapes)):
            raise UsageError(f"{model} does not take {call.shapes}.", hint=f"For example: --shapes {example}")
    dtypes = {name: dtype for name, (dtype, _) in declared.items()}
    return ShapeHistogram(module=str(model), dtypes=dtypes, calls=calls), is_dynamic


def _calls(given: str) -> list[Calls]:
    if given.endswith(".json"):
        return document.read(Path(given), ShapeHistogram).calls
    parts = [one.rpartition(":") for one in given.split(",")]
    if not all(name and re.fullmatch(r"(\d{1,9}(x\d{1,9})*)?", sizes) for name, _, sizes in parts):
        raise UsageError(f"{given!r} names no shapes that an engine takes.", hint="For example: x:1x3x640x640")
    return [Calls(1, {name: [int(one) for one in sizes.split("x") if one] for name, _, sizes in parts})]


def build_script(plan: EnginePlan, *, is_dynamic: bool, model: str = "model.onnx") -> str:
    """Return the bash script that builds an engine by a plan, compares it with ONNX Runtime and times it.

    Options are those of trtexec in TensorRT 11.1 (`help` in
    https://github.com/NVIDIA/TensorRT/blob/v11.1/samples/common/sampleOptions.cpp; networks are strongly typed there,
    and `--stronglyTyped` does nothing), of `polygraphy run --help` in Polygraphy 0.53.6, and of `Input` in
    torch_tensorrt 2.14 (https://github.com/pytorch/TensorRT/blob/main/py/torch_tensorrt/_Input.py).

    `is_dynamic`: the model's sizes vary; a model of fixed sizes takes no shape options.
    """

    def inputs(name: str) -> str:
        rows = [{f"{at}_shape": tuple(getattr(one, at)[name]) for at in ("min", "opt", "max")} for one in plan.profiles]
        shape = f"profiles={rows}" if rows[1:] else ", ".join(f"{key}={value}" for key, value in rows[0].items())
        return shape + f", dtype=torch.{plan.histogram.dtypes.get(name)}" * (name in plan.histogram.dtypes)

    made = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, finalize=_on_one_line)
    made.filters |= {"repr": repr, "trtexec": _trtexec, "polygraphy": _polygraphy, "files": _files, "fit": holds}
    template = made.from_string(files("dynotune.engines").joinpath("build.sh.jinja").read_text(encoding="utf-8"))
    return template.render(
        plan=plan,
        model=words.command([model]),
        num_calls=sum(call.num for call in plan.histogram.calls),
        inputs=inputs,
        dynamic=is_dynamic,
        workspace_mib=0 if isinstance(plan.workspace_bytes, Unknown) else max(1, plan.workspace_bytes >> 20),
        decibels=round(-20 * math.log10(plan.most_error)),
    )


def _on_one_line(value: object) -> object:
    """Escape line breaks and control characters, so that no name ends a comment or hides in the terminal."""
    return words.plain(value, longest=100_000) if isinstance(value, str) else value


def _trtexec(shapes: Shapes) -> str:
    """Write shapes as `x:1x3x224x224,y:scalar`: the last colon separates a name from its sizes."""
    sized = (f"{name}:{'x'.join(map(str, sizes)) or 'scalar'}" for name, sizes in shapes.items())
    return words.command([",".join(sized)])


def _polygraphy(shapes: Shapes) -> str:
    return words.command([f"{name}:[{','.join(map(str, sizes))}]" for name, sizes in shapes.items()])


def _files(of: dict[str, str]) -> str:
    return words.command([",".join(f"{name}:{file}" for name, file in of.items())])
