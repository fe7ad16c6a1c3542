"""Memory: calls of the caching allocator inside the loop."""

from dynotune.doctor import policy
from dynotune.doctor.bounds import place_of
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule
from dynotune.doctor.observation_view import ObservationView, evidence_of, needs
from dynotune.doctor.slow_steps import slow_steps
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

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
    driver = (
        sum(one.num_device_allocations for one in allocators),
        sum(one.num_device_frees for one in allocators),
    )
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
            (
                f"in the window: {retries} retries, {ooms} failures, {driver[0]} allocations and {driver[1]} "
                "releases"
            ),
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


def expandable(view: ObservationView) -> list[Setting]:
    """Return the setting for expandable segments, unless it is already set."""
    return [] if _is_set(view, "expandable_segments") else [Setting("alloc.expandable_segments", True)]


def _is_set(view: ObservationView, key: str) -> bool:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    known = (name for name in names if not isinstance(view.observation.facts.get(f"env.{name}"), Unknown))
    return any(key in (view.variable(name) or "") for name in known)
