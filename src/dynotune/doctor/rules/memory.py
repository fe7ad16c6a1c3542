"""Memory: calls of the caching allocator inside the loop, and growth."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from dynotune.doctor import policy
from dynotune.doctor.bounds import inputs_grow, num_input_shapes, place_of
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.observation_view import Missing, ObservationView, evidence_of, needs
from dynotune.doctor.slow_steps import slow_steps
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place
from dynotune.text import words

COLLECTS = Setting("alloc.garbage_collection_threshold", 0.8)


@cuda_rule(family="memory")
def empty_cache_in_loop(view: ObservationView) -> Judgements:
    calls = view.per_step("live.empty_cache_calls")
    often = calls is not None and calls >= policy.CALLS_PER_STEP
    losses = view.losses("empty-cache-in-loop", *(["alloc-retries"] if often else []))
    share = sum(loss.share for loss in losses)
    if not often and (calls is not None or share < policy.LEAST_SHARE):
        return  # the program never calls empty_cache: memory is returned for another reason
    slow = slow_steps(view, "allocation") if often else None
    if slow:
        share = max(share, slow.share)
    place = view.process.live.get("live.empty_cache_place")
    yield Judgement(
        severity=policy.severity(share),
        share=share if share >= policy.LEAST_SHARE else Unknown("less than 1% of the recorded steps"),
        evidence=[
            *([f"empty_cache(): {calls:.3g} calls per step"] if calls else []),
            *evidence_of(losses),
            *(slow.evidence() if slow else []),
        ],
        where=Place(place) if isinstance(place, str) and place else place_of(losses),
    )


@cuda_rule(family="memory")
def alloc_retries(view: ObservationView) -> Judgements:
    needs(bool(view.allocators), "counters of the allocator", "the process did not report them")
    allocators = view.allocators
    retries, ooms = sum(one.num_alloc_retries for one in allocators), sum(one.num_ooms for one in allocators)
    # The trace shows which calls return memory; the process counts its calls of empty_cache.
    calls = view.per_step("live.empty_cache_calls")
    emptied = calls is None or calls >= policy.CALLS_PER_STEP
    losses = view.losses("alloc-retries", *([] if emptied else ["empty-cache-in-loop"]))
    share = sum(loss.share for loss in losses)
    if not retries and not ooms and share < policy.LEAST_SHARE:
        return
    driver = sum(one.num_device_allocations for one in allocators), sum(one.num_device_frees for one in allocators)
    severity = policy.severity(share)
    if retries and severity == "low":
        severity = "medium"  # a retry delays a step, even if no retry fell into the recorded steps
    yield Judgement(
        severity=severity,
        claim="The allocator takes memory from the driver and returns it in the middle of training."
        if not retries
        else "The allocator ran out of memory, emptied its cache and tried again.",
        share=share if share or not retries else Unknown("no retry fell into the recorded steps"),
        evidence=[
            f"in the window: {retries} retries, {ooms} failures, {driver[0]} allocations and {driver[1]} releases",
            *evidence_of(losses),
        ],
        where=place_of(losses),
        candidates=[*expandable(view), *([COLLECTS] if retries and not _is_set(view, "garbage_c") else [])],
    )


@cuda_rule(family="memory")
def pinned_alloc_slow(view: ObservationView) -> Judgements:
    losses = view.losses("pinned-alloc-slow")
    share = sum(loss.share for loss in losses)
    yield Judgement(share=share, losses=losses)


@rule(family="memory")
def leak_graph_kept(view: ObservationView) -> Judgements:
    num_steps = max(1, view.timing.num_steps)
    for one in view.allocators:
        grown = one.allocated_growth_bytes
        steady = _rises(one.allocated_levels_bytes) and not _slows(one.allocated_levels_bytes)
        if steady and grown >= max(policy.LEAK_BYTES, policy.LEAK_STEP_BYTES * num_steps):
            left = max(0, one.total_bytes - one.allocated_bytes)
            small = grown < policy.LEAK_OF_ALL * one.allocated_bytes and num_input_shapes(view) > policy.FEW_SHAPES
            known = None if small or any(inputs_grow(view, model) for model in view.models) else left
            yield _leak(view, f"allocated memory of GPU {one.device}", grown, known)
            return
    if view.fact_or_none("live.profiler_place"):
        return
    grown_rss = view.process.rss_growth_bytes
    if grown_rss is None:
        raise Missing("growth of the process's memory", "it was not followed")
    levels = view.process.rss_levels_bytes
    followed = len(levels) > policy.LEAK_SURE_RISES and all(after > before for before, after in pairwise(levels))
    least = policy.LEAK_FOLLOWED_BYTES if followed else policy.LEAK_HOST_BYTES
    steady = _rises(levels) and not _wanders(levels) and not _slows(levels)
    kept = _grown_graph(view)
    if steady and grown_rss >= max(least, policy.LEAK_HOST_STEP_BYTES * num_steps):
        may_keep = _keeps_graphs(view) if kept is None else kept > 0
        may_keep = may_keep and not any(inputs_grow(view, model) for model in view.models)
        free = view.number_or_none("host.memory_available_bytes") if may_keep else None
        yield _leak(view, "memory of the process", grown_rss, free)
    elif kept:
        yield Judgement(
            severity="medium",
            claim=f"Each step leaves {kept:,.0f} {'nodes' if kept >= 1.5 else 'node'} of its autograd graph behind.",
            evidence=[f"{view.process.graph_nodes_growth:,} nodes more after {num_steps} steps"],
            remedy=_KEEP_NO_GRAPH,
        )


_KEEP_NO_GRAPH = "Sum up loss.detach() or its value, and keep no tensor that still has its graph."


def _grown_graph(view: ObservationView) -> float | None:
    """Return the nodes of autograd's graph that each step leaves behind; None if that is not known.

    A longer input makes a step's graph larger, so the window's two ends may not compare. A step that takes other
    branches also has another graph, but that differs by only some nodes, whereas a leak adds whole graphs.
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
        until.append(
            f"autograd's graph grows by {kept:,.0f} nodes per step" if kept else "no part of autograd's graph is kept"
        )
    remedy = (
        "Look for what the program keeps: results, a buffer that fills up, a cache." if kept == 0 else _KEEP_NO_GRAPH
    )
    return Judgement(
        severity=severity,
        kind="memory",
        claim=f"The {what} grows by {words.num_bytes(grown / timing.num_steps)} a step.",
        evidence=[f"{words.num_bytes(grown)} in {timing.num_steps} steps ({timing.window_s:.1f} s)", *until],
        remedy=remedy,
    )


def _keeps_graphs(view: ObservationView) -> bool:
    """Tell whether a graph can exist: gradients are computed, or that is not known."""
    calls = [model.call for model in view.models]
    return view.is_training or not calls or any(call is None or call.grad_enabled for call in calls)


def _duration(time_s: float) -> str:
    return f"{time_s / 3600:.1f} h" if time_s >= 3600 else f"{time_s / 60:.1f} min"


def _rises(levels: Sequence[int]) -> bool:
    """Tell whether memory rises in nearly all stretches between levels; true if only the two ends are known."""
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


def expandable(view: ObservationView) -> list[Setting]:
    """Return the setting for expandable segments, unless it is already set."""
    return [] if _is_set(view, "expandable_segments") else [Setting("alloc.expandable_segments", True)]


def _is_set(view: ObservationView, key: str) -> bool:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    known = (name for name in names if not isinstance(view.observation.facts.get(f"env.{name}"), Unknown))
    return any(key in (view.variable(name) or "") for name in known)
