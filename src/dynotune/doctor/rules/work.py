"""Work that need not be: operators that compute what is known, or what nobody asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import (
    bytes_per_s,
    inputs_grow,
    main_model,
    operators_per_step,
    place_of,
    saving,
    waits_for_host,
)
from dynotune.doctor.declaration import rule
from dynotune.doctor.hot_lines import is_torchs, known, place, steps_thread, told, updating
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.diagnosis import Finding
from dynotune.schema.observation import Line, Model
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Operator

WORDS_ADAM, WORDS_SGD = 9, 5
"""Times that a dense gradient's table is read or written in a step: filled with zeros, added to, read, and the weights
and the optimizer's state read and written."""


@rule(
    "embedding-grads-dense",
    "program",
    title="Gradients of an embedding are dense, and few of its rows are used.",
    sees="a trained embedding without `sparse=True`, whose steps ask for less than a tenth of its rows.",
    costs="its part of the optimizer's time, by its part of the parameters, less the rows that are used. Where that "
    "time is not known: what filling, reading and writing the whole table and the optimizer's state takes at the "
    "bandwidth of memory, at most the time of the operators.",
    wrong_when="the optimizer has no sparse version, or weight decay must reach every row.",
)
def embedding_grads_dense(view: ObservationView) -> Iterator[Finding]:
    model = main_model(view)
    if model is None or not view.is_training or model.table is None or model.table.sparse:
        return
    table, asked = model.table, _numbers_asked(model)
    if not asked or asked > policy.FEW_ROWS * table.num_rows:
        return
    words = WORDS_SGD if all("SGD" in each.name for each in view.optimizers) else WORDS_ADAM
    moved_s = words * table.num_bytes / bytes_per_s(view)
    optimizing = view.kernel_share("optimizer") if view.uses_cuda else updating(view)
    part = min(1.0, table.num_bytes / max(1, model.parameter_bytes))
    taken = moved_s / view.timing.step_s if not optimizing else optimizing * part
    share = saving(view, min(1.0, taken)) * (1 - asked / table.num_rows)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="embedding-grads-dense",
        severity=policy.severity(share),
        claim=f"Each step updates all {table.num_rows:,} rows of an embedding, and asks for at most {asked:,} of them.",
        share=share,
        evidence=[f"weights of {table.num_bytes / 1e6:,.0f} MB, read or written {words} times a step"],
        where=place_of([], model),
        remedy="Pass sparse=True to the embedding, and update it by torch.optim.SparseAdam or SGD.",
    )


def _numbers_asked(model: Model) -> int:
    """Return how many whole numbers a call is given: no more rows of an embedding are used."""
    inputs = model.call.inputs if model.call is not None else []
    return sum(math.prod(tensor.shape) for tensor in inputs if tensor.dtype.startswith("int"))


@rule(
    "cache-absent",
    "program",
    title="Each call computes again what the call before has computed.",
    sees="a model that is called with inputs that are longer than those of the call before, by one item or a few, as "
    "in generation without a cache of keys and values, or in a talk that is read anew for an answer. In a training: by "
    "the same number each time, as where all that was read so far is kept.",
    costs="nearly all of the model's time: with a cache a call computes the new items alone.",
    wrong_when="what comes later changes what was computed before, as without a causal mask.",
    explains=("launch-bound", "host-bound", "amp-absent", "compile-default", "small-operators"),
)
def cache_absent(view: ObservationView) -> Iterator[Finding]:
    growing = [(model, model.call) for model in view.models if model.call is not None and inputs_grow(view, model)]
    if not growing:
        return
    model, call = growing[0]
    length = max((max(tensor.shape, default=1) for tensor in call.inputs), default=1)
    new = call.growth / call.num_grown if call.growth else 1.0
    share = (view.attribution.shares.device + view.attribution.shares.host) * max(0.0, 1 - new / max(2, length))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="cache-absent",
        severity=policy.severity(share),
        claim=f"The model gets {new:.0f} more {'item' if new < 1.5 else 'items'} at each call, and computes all again.",
        share=share,
        evidence=[f"{call.num_grown} of {call.num} calls had longer inputs than the call before"],
        where=place_of([], model),
        remedy="Keep what does not change: use_cache=True (transformers), or pass past keys, values or states and the "
        "new items alone. Or pass no more than the latest items.",
    )


@rule(
    "double-precision",
    "program",
    title="The model computes in float64.",
    sees="most of the outermost module's parameters, or the inputs that it is called with, are float64.",
    costs="half of the time of operators: twice the bytes, and half the rate or, on GPUs that are no data centre's, a "
    "thirty-second of it.",
    wrong_when="the results need more than seven digits.",
)
def double_precision(view: ObservationView) -> Iterator[Finding]:
    model = main_model(view)
    if model is None or not _is_double(model):
        return
    share = saving(view, view.attribution.shares.device / 2)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="double-precision",
        severity=policy.severity(share),
        claim="The model computes in float64.",
        share=share,
        evidence=[", ".join(f"{num:,} parameters of {name}" for name, num in sorted(model.dtypes.items()))],
        where=place_of([], model),
        remedy="Convert inputs and model to float32 (.float()): numpy's arrays are float64 unless told otherwise.",
    )


def _is_double(model: Model) -> bool:
    inputs = model.call.inputs if model.call is not None else []
    return 2 * model.dtypes.get("float64", 0) > sum(model.dtypes.values()) or any(
        tensor.dtype == "float64" for tensor in inputs
    )


@rule(
    "small-operators",
    "program",
    title="Operators do less than calling them takes.",
    sees="a program without a device whose step calls hundreds of operators of less than 20 µs, which together take a "
    "large part of the operators' time.",
    costs="half of their time: as much as calling an operator takes at least.",
    wrong_when="each operator needs the result of the one before, and none has more to do.",
    candidates=["compile.mode=default"],
)
def small_operators(view: ObservationView) -> Iterator[Finding]:
    if view.uses_cuda or not view.trace.num_steps:
        return
    per_step = operators_per_step(view, lambda name: name.startswith("aten::"))
    rows = [row for row in view.trace.operators if row.name.startswith("aten::")]
    small = [row for row in rows if row.self_s < policy.SMALL_OPERATOR_S * row.num]
    all_s = sum(row.self_s for row in rows)
    part = sum(row.self_s for row in small) / all_s if all_s else 0.0
    share = policy.CALLING_PART * (part * view.attribution.shares.device + waits_for_host(view))
    if per_step < policy.MANY_SMALL_OPERATORS or part < policy.LARGE_PART or share < policy.LEAST_SHARE:
        return
    lines = known(_calling, view)
    yield Finding(
        id="small-operators",
        severity=policy.severity(share),
        claim=f"A step calls {per_step:,.0f} operators; {part:.0%} of their time is in those of less than 20 µs.",
        share=share,
        evidence=[*told(lines), _commonest(small, view.trace.num_steps)],
        where=place(lines, place_of([], main_model(view))),
        candidates=[] if any(model.compiled for model in view.models) else [Setting("compile.mode", "default")],
        remedy="Give each operator more to do: larger batches, whole tensors in place of loops, torch.compile.",
    )


def _calling(view: ObservationView) -> list[tuple[Line, float]]:
    """Return the lines that call modules of torch, or operators."""
    thread = steps_thread(view)
    return [
        (line, line.num / thread.num)
        for line in thread.lines
        if not line.inside and (is_torchs(line) or not line.callee)
    ]


def _commonest(rows: list[Operator], num_steps: int) -> str:
    most = sorted(rows, key=lambda row: -row.num)[:3]
    return "most often: " + ", ".join(f"{row.name} {row.num / num_steps:,.0f} times a step" for row in most)


RULES = (embedding_grads_dense, cache_absent, double_precision, small_operators)
