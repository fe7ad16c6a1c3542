"""Needless work: operators that compute known results, or results that nobody uses."""

import math
from collections.abc import Mapping, Sequence

from dynotune.doctor import bounds, policy
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.hot_lines import known, of_forward, place, told, updating
from dynotune.doctor.memory_pressure import has_room
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.program_loops import LONG_LOOP, ProgramLoop, line_in, main_loop, told_of
from dynotune.schema.model import Model
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Called, Caller, Operator, Place
from dynotune.text import words

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv")
"""Operators that multiply by weights, each once in a forward pass and once or twice in its backward pass."""
_COMPILED = Setting("compile.mode", "default")
WORDS_ADAM, WORDS_SGD = 9, 5
"""How often a dense gradient's table is read or written in a step: it is filled with zeros, added to and
read, and the weights and the optimizer's state are read and written."""


@rule(family="work")
def embedding_grads_dense(view: ObservationView) -> Judgements:
    model = bounds.main_model(view)
    if model is None or not view.is_training or model.table is None or model.table.sparse:
        return
    table, asked = model.table, _numbers_asked(model)
    if not asked or asked > policy.FEW_ROWS * table.num_rows:
        return
    words = WORDS_SGD if all("SGD" in each.name for each in view.optimizers) else WORDS_ADAM
    moved_s = words * table.num_bytes / bounds.bytes_per_s(view)
    optimizing = view.kernel_share("optimizer") if view.uses_cuda else updating(view)
    part = min(1.0, table.num_bytes / max(1, model.parameter_bytes))
    taken = moved_s / view.timing.step_s if not optimizing else optimizing * part
    share = bounds.saving(view, min(1.0, taken)) * (1 - asked / table.num_rows)
    yield Judgement(
        claim=(
            f"Each step updates all {table.num_rows:,} rows of an embedding, but uses at most {asked:,} "
            "of them."
        ),
        share=share,
        evidence=[f"weights of {table.num_bytes / 1e6:,.0f} MB, read or written {words} times per step"],
        model=model,
    )


def _numbers_asked(model: Model) -> int:
    """Return the number of whole numbers that a call receives, a bound of the embedding rows that it uses."""
    inputs = model.call.inputs if model.call is not None else []
    return sum(math.prod(tensor.shape) for tensor in inputs if tensor.dtype.startswith("int"))


@rule(family="work")
def cache_absent(view: ObservationView) -> Judgements:
    growing = [
        (model, model.call)
        for model in view.models
        if model.call is not None and bounds.inputs_grow(view, model)
    ]
    if not growing:
        return
    model, call = growing[0]
    length = max((max(tensor.shape, default=1) for tensor in call.inputs), default=1)
    new = call.growth / call.num_grown if call.growth else 1.0
    share = (view.attribution.shares.device + view.attribution.shares.host) * max(
        0.0, 1 - new / max(2, length)
    )
    yield Judgement(
        claim=(
            f"The model gets {new:.0f} more {'item' if new < 1.5 else 'items'} at each call, and "
            "computes all again."
        ),
        share=share,
        evidence=[f"{call.num_grown} of {call.num} calls had longer inputs than the call before"],
        model=model,
    )


@rule(family="work")
def double_precision(view: ObservationView) -> Judgements:
    model = bounds.main_model(view)
    if model is None or not _is_double(model):
        return
    share = bounds.saving(view, view.attribution.shares.device / 2)
    yield Judgement(
        share=share,
        evidence=[", ".join(f"{num:,} parameters of {name}" for name, num in sorted(model.dtypes.items()))],
        model=model,
    )


def _is_double(model: Model) -> bool:
    inputs = model.call.inputs if model.call is not None else []
    return 2 * model.dtypes.get("float64", 0) > sum(model.dtypes.values()) or any(
        tensor.dtype == "float64" for tensor in inputs
    )


@rule(family="work")
def small_operators(view: ObservationView) -> Judgements:
    if view.uses_cuda or not view.trace.num_steps:
        return
    rows = bounds.operators(view, lambda name: name.startswith("aten::"))
    called = _called_by_program(rows)
    per_step = sum(each.num for each in called.values()) / view.trace.num_steps
    small = [row for row in rows if row.self_s < policy.SMALL_OPERATOR_S * row.num]
    all_s = sum(row.self_s for row in rows)
    part = sum(called[row.name].self_s for row in small) / all_s if all_s else 0.0
    loop = main_loop(view)
    claim = (
        f"The program calls {per_step:,.0f} operators a step; {part:.0%} of the time of all operators is in "
        "those of less than 20 µs."
    )
    if loop is not None and loop.loop.share > part and _repeats_its_weights(view, loop):
        part = loop.loop.share
        claim = (
            f"The program calls {per_step:,.0f} operators a step; {part:.0%} of their time is in a loop of "
            f"{loop.loop.turns} turns."
        )
    share = policy.CALLING_PART * (part * view.attribution.shares.device + bounds.waits_for_host(view))
    if per_step < policy.MANY_SMALL_OPERATORS or part < policy.LARGE_PART or share < policy.LEAST_SHARE:
        return
    lines, is_long = known(of_forward, view), loop is not None and loop.is_long
    yield Judgement(
        claim=claim,
        share=share,
        evidence=[*told_of(loop), *told(lines), _commonest(small, called, view.trace.num_steps)],
        where=loop.where if loop is not None else place(lines, bounds.place_of([], bounds.main_model(view))),
        candidates=[] if is_long or any(model.compiled for model in view.models) else [_COMPILED],
        remedy=LONG_LOOP if is_long else "",
    )


def _repeats_its_weights(view: ObservationView, loop: ProgramLoop) -> bool:
    """Tell whether the loop calls one small module again and again, as one over time steps does.

    Threads that wait for a core make small operators long, but change neither the number of turns nor how
    many products there are for each weight.
    """
    launches = loop.loop.turns * loop.loop.calls * loop.loop.launches
    operator_s = loop.loop.share * view.timing.step_s / max(1.0, launches)
    products = bounds.operators(view, lambda name: name in PRODUCTS)
    num_products = sum(row.num for row in products) / (view.trace.num_steps or 1)
    num_weights = sum(model.num_tensors for model in view.models)
    is_repeated = num_weights > 0 and num_products >= policy.MANY_TURNS * num_weights
    return loop.is_of_many_turns and is_repeated and operator_s < policy.LOOPED_OPERATOR_S


def _called_by_program(rows: Sequence[Operator]) -> dict[str, Called]:
    """Return how often the program calls each operator, and their self time, by name.

    No program can call less often what an operator or a library composes of many others, such as a recurrent
    layer. The backward pass repeats what the forward pass does, so it is the program's by as much.
    """

    def num_by(*callers: Caller) -> int:
        return sum(row.callers[caller].num for row in rows for caller in callers if caller in row.callers)

    composed = num_by("library")
    own = 1.0 - composed / max(1, num_by("program", "unknown") + composed)
    parts: dict[Caller, float] = {"library": 0.0, "loader": 0.0, "backward": own}
    found = {}
    for row in rows:
        by = row.callers or {"unknown": Called(num=row.num, self_s=row.self_s)}
        found[row.name] = Called(
            num=round(sum(parts.get(caller, 1.0) * each.num for caller, each in by.items())),
            self_s=sum(parts.get(caller, 1.0) * each.self_s for caller, each in by.items()),
        )
    return found


def _commonest(rows: list[Operator], called: Mapping[str, Called], num_steps: int) -> str:
    most = sorted(rows, key=lambda row: -called[row.name].num)[:3]
    counts = [f"{row.name} {called[row.name].num / num_steps:,.0f} times per step" for row in most]
    return f"most often: {', '.join(counts)}"


@rule(family="work")
def parameter_free_work(view: ObservationView) -> Judgements:
    rows = view.trace.ungraded
    if not rows or not view.is_training:
        return
    share = _of_step(view, sum(row.share for row in rows))
    if share < policy.LEAST_SHARE:
        return
    line = line_in(view, rows[0].function)
    where = line.function if line is not None else rows[0].function
    yield Judgement(
        claim=(
            f"{share:.0%} of a step computes values inside the model that depend on none of its parameters."
        ),
        share=share,
        severity=None if share >= policy.MUCH_UNGRADED else "low",
        evidence=[f"{_of_step(view, row.share):.0%} of a step in {row.function}" for row in rows[:3]]
        + ([f"mostly at {line.function}: {line.text}"] if line is not None and line.text else []),
        where=Place(function=where),
    )


@rule(family="work")
def forward_recomputed(view: ObservationView) -> Judgements:
    if view.trace.recomputed is None:
        return
    share, room = _of_step(view, view.trace.recomputed), has_room(view)
    if share < policy.LEAST_SHARE:
        return
    yield Judgement(
        claim=f"The backward pass runs forward passes again, for {share:.0%} of a step"
        + (", although memory has room." if room else "."),
        share=share,
        severity=None if room else "low",
        evidence=[view.mentions("host.memory_available_bytes")] if not view.uses_cuda else _levels(view),
        model=bounds.main_model(view),
    )


def _levels(view: ObservationView) -> list[str]:
    return [
        (
            f"GPU {one.device}: at most {words.num_bytes(one.peak_reserved_bytes)} of "
            f"{words.num_bytes(one.total_bytes)}"
        )
        for one in view.allocators
    ]


def _of_step(view: ObservationView, share: float) -> float:
    """Return a share of the device's recorded work, or of the recorded window without a device, as one of a
    step."""
    return bounds.saving(view, share * view.attribution.shares.device) if view.uses_cuda else share
