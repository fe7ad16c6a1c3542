"""Memory: what the caching allocator does in the loop, what it wastes, and what grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from dynotune.doctor import policy
from dynotune.doctor.bounds import num_input_shapes
from dynotune.doctor.machine import known
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.doctor.slow_steps import slow_steps
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Allocator, LostTime
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place


@rule("program", explains=["alloc-retries", "host-bound", "alloc-jitter"])
def empty_cache_in_loop(seen: Seen) -> Iterator[Finding]:
    """The allocator's cache is emptied in the loop.

    Sees: `torch.cuda.empty_cache()` is called within the window about as often as steps are made, or each step gives
    memory back to the driver and takes it anew.

    Costs: the time in which the device waits for these calls. Each waits for the device first. Where the slowest steps
    allocated memory and lost more than the recorded ones, what those lost.

    Wrong when: another process needs the memory in between.
    """
    if not seen.uses_cuda:
        return
    calls = _calls_per_step(seen, "live.empty_cache_calls")
    often = calls is not None and calls >= policy.CALLS_PER_STEP
    losses = seen.losses("empty-cache-in-loop", *(["alloc-retries"] if often else []))
    share = sum(loss.share for loss in losses)
    if not often and (calls is not None or share < policy.LEAST_SHARE):
        return  # nobody calls it: memory is given back for another reason
    slow = slow_steps(seen, "allocation") if often else None
    if slow:
        share = max(share, slow.share)
    place = seen.process.live.get("live.empty_cache_place")
    yield Finding(
        id="empty-cache-in-loop",
        severity=policy.severity(share),
        claim="Device memory is given back to the driver and taken anew in the loop.",
        share=share if share >= policy.LEAST_SHARE else Unknown("less than a hundredth of the recorded steps"),
        evidence=[
            *([f"empty_cache(): {calls:.3g} calls a step"] if calls else []),
            *evidence_of(losses),
            *(slow.evidence() if slow else []),
        ],
        where=Place(place) if isinstance(place, str) and place else _where(losses),
        remedy="Leave torch.cuda.empty_cache() out of the loop: the allocator reuses its cache.",
    )


@rule("program", explains=["host-bound", "alloc-jitter"])
def alloc_retries(seen: Seen) -> Iterator[Finding]:
    """The allocator runs out of memory, empties its cache and tries again.

    Sees: the allocator's counters of retries or failures grew within the window, or calls that take memory from the
    driver and give it back while the device has nothing to do.

    Costs: that idle time. Each retry waits for the device and gives all cached memory back.

    Wrong when: sizes still settle, as with inputs that grow longer for a while.
    """
    if not seen.uses_cuda:
        return
    allocators = _allocators(seen)
    retries, ooms = sum(one.num_alloc_retries for one in allocators), sum(one.num_ooms for one in allocators)
    # The trace tells both apart by what is called; who calls, the process knows.
    calls = _calls_per_step(seen, "live.empty_cache_calls")
    emptied = calls is None or calls >= policy.CALLS_PER_STEP
    losses = seen.losses("alloc-retries", *([] if emptied else ["empty-cache-in-loop"]))
    share = sum(loss.share for loss in losses)
    if not retries and not ooms and share < policy.LEAST_SHARE:
        return
    driver = sum(one.num_device_allocations for one in allocators), sum(one.num_device_frees for one in allocators)
    severity = policy.severity(share)
    if retries and severity == "low":
        severity = "medium"  # a retry is a stall in the middle of a step, whatever the recorded steps show
    yield Finding(
        id="alloc-retries",
        severity=severity,
        claim="The allocator takes memory from the driver and gives it back in the middle of training."
        if not retries
        else "The allocator ran out of memory, emptied its cache and tried again.",
        share=share if share or not retries else Unknown("no retry fell into the recorded steps"),
        evidence=[
            f"in the window: {retries} retries, {ooms} failures, {driver[0]} allocations and {driver[1]} releases",
            *evidence_of(losses),
        ],
        where=_where(losses),
        candidates=[
            *_expandable(seen),
            *(
                [Setting("alloc.garbage_collection_threshold", 0.8)]
                if retries and not _is_set(seen, "garbage_c")
                else []
            ),
        ],
        remedy="Make the peak smaller: a smaller batch, checkpointing, fewer tensors kept alive.",
    )


@rule("program")
def fragmentation(seen: Seen) -> Iterator[Finding]:
    """Reserved memory is cut into pieces that nothing fits into.

    Sees: at least a fifth of the reserved memory, and 64 MiB, lies in unused pieces of split blocks
    (`inactive_split_bytes`), and at the peak as much was reserved and not allocated. Reserved less allocated memory
    alone is the cache, and no fragmentation.

    Costs: memory: the program runs out of it earlier than it need.

    Wrong when: other steps, evaluation for instance, use those pieces.
    """
    if not seen.uses_cuda:
        return
    for one in _allocators(seen):
        wasted = min(one.inactive_split_bytes, one.peak_reserved_bytes - one.peak_allocated_bytes)
        if not one.reserved_bytes or wasted < max(policy.SPLIT_BYTES, policy.SPLIT_SHARE * one.reserved_bytes):
            continue
        scarce = one.peak_reserved_bytes >= policy.FULL_SHARE * one.total_bytes or one.num_alloc_retries > 0
        yield Finding(
            id="fragmentation",
            severity="medium" if scarce else "low",
            kind="memory",
            claim=f"{wasted / one.reserved_bytes:.0%} of the reserved memory is in pieces that go unused.",
            share=Unknown("it costs memory"),
            evidence=[
                f"{one.device}: {one.inactive_split_bytes / 1e9:.2f} GB inactive in split blocks",
                f"at the peak {one.peak_reserved_bytes / 1e9:.2f} of {one.total_bytes / 1e9:.1f} GB reserved",
                f"at the peak {one.peak_allocated_bytes / 1e9:.2f} GB allocated",
            ],
            candidates=_expandable(seen),
            remedy="Keep sizes few: pad to multiples, and run the largest size first.",
        )
        return


@rule("program")
def pinned_alloc_slow(seen: Seen) -> Iterator[Finding]:
    """Page-locked memory is allocated in the loop.

    Sees: calls that allocate or register page-locked memory on threads that queue work, while the device has nothing
    to do.

    Costs: that idle time.

    Wrong when: only the first steps do it, until the cache of page-locked memory holds all sizes.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("pinned-alloc-slow")
    share = sum(loss.share for loss in losses)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="pinned-alloc-slow",
        severity=policy.severity(share),
        claim="The host allocates page-locked memory while the device waits.",
        share=share,
        evidence=evidence_of(losses),
        where=_where(losses),
        candidates=[
            Setting("alloc.pinned_use_cuda_host_register", True),
            Setting("alloc.pinned_use_background_threads", True),
        ],
        remedy="Allocate the buffer once and use it again.",
    )


@rule("program")
def leak_graph_kept(seen: Seen) -> Iterator[Finding]:
    """Memory grows with each step.

    Sees: at the end of the window tensors hold on to more of autograd's graph than at its begin, by a node a step or
    more. Or allocated device memory, or the process's own, is higher at its end by so much a step, and rose all along
    where its levels are known, in the second half at least half as much as in the first; the process's without ever
    falling by a third of that.

    Costs: memory, until there is none. Often a loss is summed up with its graph (`total += loss`).

    Wrong when: the program fills a cache that has an end, or its inputs grow: where their shapes vary and memory grew
    by little, the finding is a low one. So it is where the process grows and no graph does, or no gradient is computed:
    it may keep its results, or a buffer that fills up. Growth of the process is not judged while the program runs
    torch's profiler, which keeps each event.
    """
    num_steps = max(1, seen.timing.num_steps)
    for one in seen.allocators:
        grown = one.allocated_growth_bytes
        steady = _rises(one.allocated_levels_bytes) and not _slows(one.allocated_levels_bytes)
        if steady and grown >= max(policy.LEAK_BYTES, policy.LEAK_STEP_BYTES * num_steps):
            free = max(0, one.total_bytes - one.allocated_bytes)
            small = grown < policy.LEAK_OF_ALL * one.allocated_bytes and num_input_shapes(seen) > policy.FEW_SHAPES
            yield _leak(seen, f"allocated memory of GPU {one.device}", grown, None if small else free)
            return
    if known(seen, "live.profiler_place"):
        return
    grown_rss = seen.process.rss_growth_bytes
    if grown_rss is None:
        raise Missing("growth of the process's memory", "it was not followed")
    levels = seen.process.rss_levels_bytes
    followed = len(levels) > policy.LEAK_SURE_RISES and all(after > before for before, after in pairwise(levels))
    least = policy.LEAK_FOLLOWED_BYTES if followed else policy.LEAK_HOST_BYTES
    steady = _rises(levels) and not _wanders(levels) and not _slows(levels)
    kept = _grown_graph(seen)
    if steady and grown_rss >= max(least, policy.LEAK_HOST_STEP_BYTES * num_steps):
        may_keep = _keeps_graphs(seen) if kept is None else kept > 0
        yield _leak(seen, "memory of the process", grown_rss, _free_host_bytes(seen) if may_keep else None)
    elif kept:
        yield Finding(
            id="leak-graph-kept",
            severity="medium",
            kind="memory",
            claim=f"Each step leaves {kept:,.0f} {'nodes' if kept >= 1.5 else 'node'} of its autograd graph behind.",
            share=Unknown("it costs memory"),
            evidence=[f"{seen.process.graph_nodes_growth:,} nodes more after {num_steps} steps"],
            remedy=_KEEP_NO_GRAPH,
        )


_KEEP_NO_GRAPH = "Sum up loss.detach() or its value, and keep no tensor that still has its graph."


def _grown_graph(seen: Seen) -> float | None:
    """Nodes of autograd's graph that each step leaves behind; 0 for none, None where it is not known."""
    grown = seen.process.graph_nodes_growth
    if grown is None:
        return None
    each = grown / max(1, seen.timing.num_steps)
    return each if each >= 1 else 0.0


def _leak(seen: Seen, what: str, grown: int, free: float | None) -> Finding:
    timing, kept = seen.timing, _grown_graph(seen)
    left_s = None if free is None else free / grown * timing.window_s
    severity: Severity = "medium" if kept and free is not None else "low"
    if left_s is not None and left_s < policy.SOON_S:
        severity = "high" if left_s < policy.VERY_SOON_S else "medium"
    until = [] if left_s is None else [f"at that rate memory is full in {_duration(left_s)}"]
    if kept is not None:
        until.append(
            f"of autograd's graph {kept:,.0f} nodes more a step" if kept else "no part of autograd's graph is kept"
        )
    remedy = "See what the program keeps: results, a buffer that fills up, a cache." if kept == 0 else _KEEP_NO_GRAPH
    return Finding(
        id="leak-graph-kept",
        severity=severity,
        kind="memory",
        claim=f"The {what} grows by {_size(grown / timing.num_steps)} a step.",
        share=Unknown("it costs memory"),
        evidence=[f"{_size(grown)} in {timing.num_steps} steps ({timing.window_s:.1f} s)", *until],
        remedy=remedy,
    )


def _keeps_graphs(seen: Seen) -> bool:
    """Whether there can be graphs: gradients are computed, or it is not known."""
    calls = [model.call for model in seen.models]
    return seen.is_training or not calls or any(call is None or call.grad_enabled for call in calls)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.1f} kB"


def _duration(time_s: float) -> str:
    return f"{time_s / 3600:.1f} h" if time_s >= 3600 else f"{time_s / 60:.1f} min"


@rule("program")
def oom_or_batch_capped(seen: Seen) -> Iterator[Finding]:
    """The device's memory is full.

    Sees: at the peak nine tenths of the device's memory were reserved, or an allocation failed.

    Costs: a larger batch does not fit, and a little more ends the program.

    Wrong when: the program takes all memory on purpose, as servers do for their caches.
    """
    if not seen.uses_cuda:
        return
    for one in _allocators(seen):
        if one.num_ooms or one.peak_reserved_bytes >= policy.FULL_SHARE * one.total_bytes:
            yield Finding(
                id="oom-or-batch-capped",
                severity="low",
                kind="memory",
                claim=f"{one.device} had {one.peak_reserved_bytes / one.total_bytes:.0%} of its memory reserved.",
                share=Unknown("it bounds the batch, not the step"),
                evidence=[
                    f"peak {one.peak_allocated_bytes / 1e9:.2f} GB allocated of {one.total_bytes / 1e9:.1f} GB",
                    f"allocations that failed in the window: {one.num_ooms}",
                ],
                remedy="Use activation checkpointing, half precision or gradient accumulation for a larger batch.",
            )
            return


# What the rules share


def _allocators(seen: Seen) -> list[Allocator]:
    if not seen.allocators:
        raise Missing("counters of the allocator", "the process did not tell them")
    return seen.allocators


def _calls_per_step(seen: Seen, name: str) -> float | None:
    """A count within the window, a step; None where it is not known."""
    try:
        return seen.number(name) / max(1, seen.timing.num_steps)
    except Missing:
        return None


def _free_host_bytes(seen: Seen) -> float | None:
    try:
        return seen.number("host.memory_available_bytes")
    except Missing:
        return None


def _rises(levels: Sequence[int]) -> bool:
    """Whether nearly all stretches between levels rise; true where only the two ends are known."""
    if len(levels) < 3:
        return True
    rises = sum(after > before for before, after in pairwise(levels))
    return rises >= policy.LEAK_RISES * (len(levels) - 1)


def _slows(levels: Sequence[int]) -> bool:
    """Whether much less came in the second half than in the first: what fills ends, and what is lost goes on."""
    if len(levels) < 5:
        return False
    middle = levels[len(levels) // 2]
    return levels[-1] - middle < policy.LEAK_SLOWS * (middle - levels[0])


def _wanders(levels: Sequence[int]) -> bool:
    """Whether memory once fell by so much of what it grew that the growth may be chance, as of malloc's arenas."""
    falls = max((high - low for high, low in zip(accumulate(levels, max), levels, strict=True)), default=0)
    return len(levels) >= 3 and falls > policy.LEAK_FALLS * (levels[-1] - levels[0])


def _expandable(seen: Seen) -> list[Setting]:
    return [] if _is_set(seen, "expandable_segments") else [Setting("alloc.expandable_segments", True)]


def _is_set(seen: Seen, key: str) -> bool:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return any(key in (seen.variable(name) or "") for name in names if _variable_is_known(seen, name))


def _variable_is_known(seen: Seen, name: str) -> bool:
    return not isinstance(seen.observation.facts.get(f"env.{name}"), Unknown)


def _where(losses: list[LostTime]) -> Place:
    return losses[0].where if losses else Place()
