"""Floating-point operations and bytes of matrix products, convolutions and attention in a trace recorded with shapes.

Each multiplication and each addition counts, as `torch.utils.flop_counter` has it; of grouped convolutions it counts
the gradient of the weights as often as there are groups, which is left out here. Bytes are those of operands and
results, each read or written once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.trace.readers.chunks import chunks

_CHUNK_BYTES = 1 << 24
_STEP = re.compile(r"ProfilerStep#\d+")
COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction", "CompiledFxGraph")
"""Names of spans begin so where torch.compile's code runs."""
UNSEEN = (
    "mkldnn::", "mkl::", "onednn::", "quantized::", "cudaGraphLaunch", "cuGraphLaunch", "triton_tem_",
    "aten::_cudnn_rnn", "aten::mkldnn_rnn_layer", "aten::_scaled_mm", "aten::_grouped_mm", "aten::_scaled_grouped_mm",
    "aten::_int_mm",
)  # fmt: skip
"""Products in these have no shapes that are understood here."""

SIZES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2}
NAMES = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
Shape = Sequence[int]


class Work(msgspec.Struct, frozen=True, kw_only=True, tag="work"):
    """Of one step.

    Args:
        flops: by type, and by whether they are of convolutions: ("float32", False).
        num_bytes: of operands and results.
        num: operations that were counted.
        notes: what is not in it.
    """

    flops: dict[tuple[str, bool], float]
    num_bytes: float
    num: float
    notes: list[str] = []

    @property
    def total(self) -> float:
        return sum(self.flops.values())


class _Args(msgspec.Struct):
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    values: Any = msgspec.field(name="Concrete Inputs", default=None)


class _Event(msgspec.Struct):
    name: Any = ""
    cat: Any = ""
    ts: Any = 0
    dur: Any = 0
    tid: Any = 0
    args: _Args = msgspec.field(default_factory=_Args)


class _Document(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents", default_factory=list)


class _Counted(msgspec.Struct, frozen=True):
    """One operation."""

    flops: float
    num_elements: float


def work_of_step(path: Path) -> Work | Unknown:
    """Of a step, on average over those that are marked in the trace; Unknown where shapes are missing.

    Raises:
        UsageError: the file cannot be read, or is no trace.
    """
    events = _read(path)
    steps = [event for event in events if isinstance(event.name, str) and _STEP.fullmatch(event.name)]
    steps = [event for event in steps if event.cat in ("user_annotation", "cpu_op", "Operator")]
    if not steps:
        return Unknown("no step is marked in the trace")
    begin, end = min(step.ts for step in steps), max(step.ts + step.dur for step in steps)
    within = [event for event in events if isinstance(event.name, str) and begin <= event.ts < end]
    if (unseen := next((event.name for event in within if event.name.startswith(UNSEEN)), None)) is not None:
        return Unknown(f"a part of the step has no shapes in a trace: {unseen}")
    return _sum(outermost(within), len(steps), any(event.name.startswith(COMPILED) for event in within))


def _sum(events: Iterable[_Event], num_steps: int, is_compiled: bool) -> Work | Unknown:
    flops: dict[tuple[str, bool], float] = {}
    num_bytes, num, without = 0.0, 0, 0
    for event in events:
        types = event.args.types
        type_ = types[0] if isinstance(types, list) and types else None
        try:
            counted = _COUNTS[event.name](event.args.dims, event.args.values)
        except (TypeError, ValueError, IndexError, KeyError):
            without += 1
            continue
        if type_ not in SIZES:
            return Unknown(f"the operations of {event.name} in {type_} are not counted")
        key = NAMES[type_], "convolution" in event.name
        flops[key] = flops.get(key, 0.0) + counted.flops
        num_bytes += counted.num_elements * SIZES[type_]
        num += 1
    if without:
        return Unknown(f"the shapes of {without:,} products are missing in the trace")
    if not num:
        what = "what is compiled has no shapes" if is_compiled else "it has no product, convolution or attention"
        return Unknown(f"no operation of a step was counted: {what}")
    notes = ["left out: pointwise work, reductions, optimizers, the softmax of attention, kernels of other libraries"]
    if is_compiled:
        notes.append("parts are compiled: products inside generated kernels are left out")
    return Work(
        flops={key: total / num_steps for key, total in flops.items()},
        num_bytes=num_bytes / num_steps,
        num=num / num_steps,
        notes=notes,
    )


def outermost(events: Iterable[_Event]) -> list[_Event]:
    """Those that are counted, and lie in no other that is: a convolution may be made of products."""
    found: list[_Event] = []
    until: dict[Any, float] = {}
    known = [event for event in events if event.name in _COUNTS and event.cat in ("cpu_op", "Operator")]
    for event in sorted(known, key=lambda event: (event.ts, -event.dur)):
        if event.ts >= until.get(event.tid, -math.inf):
            found.append(event)
            until[event.tid] = event.ts + event.dur
    return found


def _read(path: Path) -> list[_Event]:
    text = b"".join(piece for _, piece in chunks(path, _CHUNK_BYTES))
    try:
        return msgspec.json.decode(text, type=_Document).events
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no trace of torch.profiler: {error}", hint="record it again") from error


# The operations, by what their inputs are


def _product(first: Shape, second: Shape, added: Shape = ()) -> _Counted:
    """Of matrices, or of as many pairs of them as the first size says."""
    *num, rows, inner = first
    *num_other, inner_other, columns = second
    if inner != inner_other or num != num_other or len(num) > 1:
        raise ValueError("these are no factors")
    pairs = math.prod(num)
    elements = pairs * (rows * inner + inner * columns + rows * columns) + (math.prod(added) if added else 0)
    return _Counted(2.0 * pairs * rows * columns * inner, elements)


def _convolution(dims: Sequence[Shape], values: Sequence[str]) -> _Counted:
    x, weight = dims[0], dims[1]
    stride, padding, dilation, is_transposed, more = (
        _numbers(values[3]), _numbers(values[4]), _numbers(values[5]), _truth(values[6]), _numbers(values[7]),
    )  # fmt: skip
    out = []
    for at, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True)):
        step, pad, spread = _at(stride, at), _at(padding, at), _at(dilation, at) * (kernel - 1)
        if is_transposed:
            out.append((size - 1) * step - 2 * pad + spread + _at(more, at) + 1)
        else:
            out.append((size + 2 * pad - spread - 1) // step + 1)
    groups = int(values[8])
    channels = weight[1] * groups if is_transposed else weight[0]
    elements = math.prod(x) + math.prod(weight) + x[0] * channels * math.prod(out)
    return _Counted(_of_convolution(x[0], weight, x[2:] if is_transposed else out), elements)


def _of_convolution(num: int, weight: Shape, places: Shape) -> float:
    return 2.0 * num * math.prod(weight) * math.prod(places)


def _convolution_backward(dims: Sequence[Shape], values: Sequence[str]) -> _Counted:
    """The gradient of the input and that of the weights each take what the convolution takes."""
    grad, x, weight = dims[0], dims[1], dims[2]
    of_input, of_weight, *_ = (word == "True" for word in re.findall(r"True|False", values[10]))
    forward = _of_convolution(x[0], weight, (x if _truth(values[7]) else grad)[2:])
    # Of the three, each gradient takes two and gives the third.
    num = of_input + of_weight
    return _Counted(forward * num, (math.prod(grad) + math.prod(x) + math.prod(weight)) * num)


def _attention(query: Shape, key: Shape, value: Shape, *, backward: bool = False) -> _Counted:
    """Scores, and what they weigh; a mask that leaves half of them out is not seen.

    Backward: the scores once more, and two products for each of the two.
    """
    num, heads, queries, width = query
    keys, width_out = key[2], value[3]
    widths = 3 * width + 2 * width_out if backward else width + width_out
    out = num * heads * queries * width_out
    elements = math.prod(query) + math.prod(key) + math.prod(value) + out
    return _Counted(2.0 * num * heads * queries * keys * widths, elements * (2 if backward else 1))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def _at(numbers: Sequence[int], at: int) -> int:
    """One number may stand for all dimensions."""
    return numbers[at] if len(numbers) > 1 else numbers[0]


def _truth(text: str) -> bool:
    return {"True": True, "False": False, "1": True, "0": False}[text]


_ATTENTIONS = tuple(
    f"aten::_scaled_dot_product_{kind}"
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
)
_Count = Callable[[Any, Any], _Counted]
_COUNTS: dict[str, _Count] = {
    **{f"aten::{name}": lambda dims, _: _product(dims[0], dims[1]) for name in ("mm", "bmm")},
    **{
        f"aten::{name}": lambda dims, _: _product(dims[1], dims[2], dims[0])
        for name in ("addmm", "addmm_", "_addmm_activation", "baddbmm", "baddbmm_")
    },
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    **{name: lambda dims, _: _attention(*dims[:3]) for name in _ATTENTIONS},
    **{f"{name}_backward": lambda dims, _: _attention(*dims[1:4], backward=True) for name in _ATTENTIONS},
}
