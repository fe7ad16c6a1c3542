"""Memory that grows from step to step: a kept graph of autograd, results, or a buffer that fills up."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from dynotune.doctor import policy
from dynotune.doctor.bounds import inputs_grow, num_input_shapes
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.text import words

_KEEP_NO_GRAPH = "Sum up loss.detach() or its value, and keep no tensor that still has its graph."


@rule(family="memory")
def leak_graph_kept(view: ObservationView) -> Judgements:
    num_steps = max(1, view.timing.num_steps)
    for one in view.allocators:
        grown = one.allocated_growth_bytes
        steady = _rises(one.allocated_levels_bytes) and not _slows(one.allocated_levels_bytes)
        if steady and grown >= max(policy.LEAK_BYTES, policy.LEAK_STEP_BYTES * num_steps):
            left = max(0, one.total_bytes - one.allocated_bytes)
            is_small = grown < policy.LEAK_OF_ALL * one.allocated_bytes
            small = is_small and num_input_shapes(view) > policy.FEW_SHAPES
            known = None if small or any(inputs_grow(view, model) for model in view.models) else left
            yield _leak(view, f"allocated memory of GPU {one.device}", grown, known)
            return
    if view.fact_or_none("live.profiler_place"):
        return
    grown_rss = view.process.rss_growth_bytes
    if grown_rss is None:
        raise Missing("growth of the process's memory", "it was not followed")
    levels = view.process.rss_levels_bytes
    always_rises = all(after > before for before, after in pairwise(levels))
    followed = len(levels) > policy.LEAK_SURE_RISES and always_rises
    least = policy.LEAK_FOLLOWED_BYTES if followed else policy.LEAK_HOST_BYTES
    steady = _rises(levels) and not _wanders(levels) and not _slows(levels)
    kept = _grown_graph(view)
    if steady and grown_rss >= max(least, policy.LEAK_HOST_STEP_BYTES * num_steps):
        may_keep = _keeps_graphs(view) if kept is None else kept > 0
        may_keep = may_keep and not any(inputs_grow(view, model) for model in view.models)
        free = view.number_or_none("host.memory_available_bytes") if may_keep else None
        yield _leak(view, "memory of the process", grown_rss, free)
    elif kept:
        nodes = "nodes" if kept >= 1.5 else "node"
        yield Judgement(
            severity="medium",
            claim=f"Each step leaves {kept:,.0f} {nodes} of its autograd graph behind.",
            evidence=[
                f"{view.process.graph_nodes_growth:,} nodes more after {num_steps} steps",
                *_left_objects(view),
            ],
            remedy=_KEEP_NO_GRAPH,
        )


def _grown_graph(view: ObservationView) -> float | None:
    """Return the nodes of autograd's graph that each step leaves behind; None if that is not known.

    A longer input makes a step's graph larger, so the window's two ends may not compare. A step that takes
    other branches also has another graph, but that differs by only some nodes, whereas a leak adds whole
    graphs.
    """
    grown, held = view.process.graph_nodes_growth, view.process.graph_nodes
    if grown is None or (grown > 0 and num_input_shapes(view) > policy.FULL_AND_LAST):
        return None
    if held is not None and grown < policy.LEAK_OF_GRAPH * held:
        return 0.0
    if any(inputs_grow(view, model) for model in view.models):
        return None
    each = grown / max(1, view.timing.num_steps)
    return each if each >= 1 else 0.0


def _leak(view: ObservationView, what: str, grown: int, free: float | None) -> Judgement:
    timing, kept = view.timing, _grown_graph(view)
    left_s = None if free is None else free / grown * timing.window_s
    severity: Severity = "medium" if kept and free is not None else "low"
    if left_s is not None and left_s < policy.SOON_S:
        severity = "high" if left_s < policy.VERY_SOON_S else "medium"
    until = [] if left_s is None else [f"at that rate memory is full in {_duration(left_s)}"]
    if kept is not None:
        grows = f"autograd's graph grows by {kept:,.0f} nodes per step"
        until.append(grows if kept else "no part of autograd's graph is kept")
    until += _left_objects(view)
    remedy = _KEEP_NO_GRAPH
    if kept == 0:
        remedy = "Look for what the program keeps: results, a buffer that fills up, a cache."
    return Judgement(
        severity=severity,
        kind="memory",
        claim=f"The {what} grows by {words.num_bytes(grown / timing.num_steps)} a step.",
        evidence=[f"{words.num_bytes(grown)} in {timing.num_steps} steps ({timing.window_s:.1f} s)", *until],
        remedy=remedy,
    )


def _left_objects(view: ObservationView) -> list[str]:
    """Say which objects of Python each step leaves behind, if that was counted."""
    objects = view.observation.objects
    if isinstance(objects, Unknown) or not objects.num_steps:
        return []
    each = [(one.name, one.growth / objects.num_steps) for one in objects.grown]
    left = [f"{num:,.1f} {name}" for name, num in each if num >= policy.LEAK_OBJECTS]
    return [f"each step leaves behind {', '.join(left[:3])}"] if left else []


def _keeps_graphs(view: ObservationView) -> bool:
    """Tell whether a graph can exist: gradients are computed, or that is not known."""
    calls = [model.call for model in view.models]
    return view.is_training or not calls or any(call is None or call.grad_enabled for call in calls)


def _duration(time_s: float) -> str:
    return f"{time_s / 3600:.1f} h" if time_s >= 3600 else f"{time_s / 60:.1f} min"


def _rises(levels: Sequence[int]) -> bool:
    """Tell whether memory rises in nearly all stretches between levels; true if only both ends are known."""
    if len(levels) < 3:
        return True
    rises = sum(after > before for before, after in pairwise(levels))
    return rises >= policy.LEAK_RISES * (len(levels) - 1)


def _slows(levels: Sequence[int]) -> bool:
    """Tell whether growth slows in the second half: a cache fills up, whereas a leak goes on."""
    if len(levels) < 5:
        return False
    middle = levels[len(levels) // 2]
    return levels[-1] - middle < policy.LEAK_SLOWS * (middle - levels[0])


def _wanders(levels: Sequence[int]) -> bool:
    """Tell whether memory once fell by so much that its growth may be chance, as with malloc's arenas."""
    falls = max((high - low for high, low in zip(accumulate(levels, max), levels, strict=True)), default=0)
    return len(levels) >= 3 and falls > policy.LEAK_FALLS * (levels[-1] - levels[0])
