"""Distributed: how ranks exchange gradients, and whether they keep in step."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import at_least, bytes_per_s, main_model, place_of, saved, severity_of
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown, Value
from dynotune.schema.observation import Model
from dynotune.schema.trace_summary import Place


@rule("program", explains=["launch-bound", "host-bound", "communication-exposed"])
def dataparallel_used(seen: Seen) -> Iterator[Finding]:
    """A model runs under DataParallel.

    Sees: an outermost module that is `torch.nn.DataParallel`.

    Costs: at most what the devices idle for or only exchange data: one process copies the model to all devices in
    each step, and its threads take turns at Python's lock. On one device a little of the host's time.

    Wrong when: the batch is split so for inference of a few seconds.
    """
    model = next((model for model in seen.models if model.wrapper == "DataParallel"), None)
    if model is None:
        return
    share = _idle_of_all(seen)
    yield Finding(
        id="dataparallel-used",
        severity=at_least(severity_of(share, "medium"), "medium"),
        claim="DataParallel copies the model to each device in every step, from one process.",
        share=share,
        evidence=[f"{model.name}: {model.num_parameters:,} parameters", *_devices(seen)],
        where=place_of([], model),
        remedy="Start a process for each device with torchrun, and wrap the model in DistributedDataParallel; on one "
        "device leave the wrapper out.",
    )


def _idle_of_all(seen: Seen) -> float | Unknown:
    """Of the devices' time, what they idle or only exchange; of one device what it waits for the host."""
    try:
        devices = seen.trace.devices
        if len(devices) > 1:
            window_s = sum(row.window_s for row in devices)
            idle = 1.0 - sum(row.busy_s for row in devices) / window_s if window_s else 0.0
            return min(1.0, idle + seen.attribution.shares.communication)
        return seen.attribution.shares.host
    except Missing as missing:
        return Unknown(f"{missing.name}: {missing.reason}")


def _devices(seen: Seen) -> list[str]:
    trace = seen.observation.trace
    if isinstance(trace, Unknown):
        return []
    return [
        f"device {row.device} is busy for {row.busy_s / row.window_s:.0%} of the time"
        for row in trace.devices
        if row.window_s
    ]


@rule("program", explains=["host-bound"])
def ddp_find_unused_on(seen: Seen) -> Iterator[Finding]:
    """DistributedDataParallel looks for unused parameters where there are none.

    Sees: `find_unused_parameters=True`, and that no parameter was without a gradient.

    Costs: walking the graph after each forward pass, and one more collective: at most what the device waits for the
    host, and that collective's part of the exposed communication.

    Wrong when: parameters are unused in some steps only.
    """
    model = _ddp(seen)
    if model is None or model.ddp.get("find_unused_parameters") is not True:
        return
    if _told(model, "unused_parameters") not in (0, False):
        return
    share = _of_unused(seen)
    yield Finding(
        id="ddp-find-unused-on",
        severity=severity_of(share, "medium"),
        claim="DistributedDataParallel walks the graph in each step for parameters that got no gradient, and there "
        "are none.",
        share=share,
        evidence=["find_unused_parameters=True, unused: none", f"{model.num_tensors} parameters"],
        where=place_of([], model),
        remedy="Leave out find_unused_parameters=True.",
    )


def _of_unused(seen: Seen) -> float | Unknown:
    try:
        shares = seen.attribution.shares
        num = sum(row.num for row in seen.trace.communication if row.rank == seen.trace.communication[0].rank)
        per_step = num / (seen.trace.num_steps or 1)
        return min(1.0, shares.host + shares.communication / max(1.0, per_step))
    except Missing as missing:
        return Unknown(f"{missing.name}: {missing.reason}")


@rule("program")
def ddp_bucket_cap(seen: Seen) -> Iterator[Finding]:
    """Gradients are reduced while the device does nothing else.

    Sees: all-reduces of DistributedDataParallel beside which nothing ran; what one rank waits for another is left to
    `rank-imbalance`.

    Costs: that time, if all of it were hidden under the backward pass.

    Wrong when: communication takes longer than the backward pass: no size of buckets hides it then.
    """
    losses = seen.losses("ddp-bucket-cap")
    share = sum(loss.share for loss in losses) - seen.lost("rank-imbalance")
    if share < policy.LEAST_SHARE:
        return
    model = _ddp(seen)
    cap = None if model is None else model.ddp.get("bucket_cap_mb")
    yield Finding(
        id="ddp-bucket-cap",
        severity=policy.severity(share),
        claim=f"For {share:.0%} of a step the device only reduces gradients.",
        share=share,
        evidence=[*evidence_of(losses), *([f"bucket_cap_mb: {cap}"] if isinstance(cap, int | float) else [])],
        where=place_of(losses, model),
        remedy="Try bucket_cap_mb from 10 to 100 with gradient_as_bucket_view=True; accumulate gradients under "
        "no_sync(), or send them in bfloat16 (bf16_compress_hook), which changes results.",
    )


@rule("program")
def ddp_bucket_view(seen: Seen) -> Iterator[Finding]:
    """Gradients are copied into buckets and back.

    Sees: `gradient_as_bucket_view=False`, and the time of copying kernels.

    Costs: at most that time, and no more than copying all gradients twice takes the device's memory.

    Wrong when: the program detaches gradients in place, which fails with views.
    """
    model = _ddp(seen)
    if model is None or model.ddp.get("gradient_as_bucket_view") is not False or not seen.uses_cuda:
        return
    step_s = seen.timing.step_s
    copied = 4 * model.parameter_bytes / bytes_per_s(seen) / step_s if step_s else 1.0
    share = saved(seen, min(copied, seen.kernel_share("copy") + seen.lost("device-copies")))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="ddp-bucket-view",
        severity=policy.severity(share),
        claim="DistributedDataParallel copies all gradients into buckets and back.",
        share=share,
        evidence=[f"{model.parameter_bytes / 1e6:,.0f} MB of parameters", "gradient_as_bucket_view=False"],
        where=place_of([], model),
        remedy="Pass gradient_as_bucket_view=True; it spares the memory of one copy too.",
    )


@rule("program")
def ddp_static_graph(seen: Seen) -> Iterator[Finding]:
    """DistributedDataParallel does not know that the graph stays the same.

    Sees: torch says that `static_graph=True` could be set, and it is not.

    Costs: little: unused parameters are then looked for once.

    Wrong when: the graph changes later on.
    """
    model = _ddp(seen)
    if model is None or model.ddp.get("static_graph") is not False or model.ddp.get("can_set_static_graph") is not True:
        return
    yield Finding(
        id="ddp-static-graph",
        severity="low",
        claim="The graph was the same in all steps, and DistributedDataParallel was not told so.",
        share=Unknown("what it spares is not known"),
        where=place_of([], model),
        remedy="Pass static_graph=True, if no step takes another path.",
    )


@rule("program")
def communication_exposed(seen: Seen) -> Iterator[Finding]:
    """Ranks communicate while nothing else is done.

    Sees: collectives beside which the device ran nothing, other than all-reduces of DistributedDataParallel; without
    a device, collectives beside which no operator ran. What one rank waits for another is left to `rank-imbalance`.

    Costs: that time, if all of it were hidden under other work.

    Wrong when: what follows needs the result at once, as in tensor parallelism.
    """
    losses = seen.losses("communication-exposed")
    if seen.uses_cuda:
        exposed = sum(loss.share for loss in losses)
        share = exposed - (0.0 if seen.lost("ddp-bucket-cap") else _imbalance(seen)[0])
    else:
        share = seen.attribution.shares.communication * (1.0 - _waiting(seen))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="communication-exposed",
        severity=policy.severity(share),
        claim=f"For {share:.0%} of a step ranks exchange data and do nothing else.",
        share=share,
        evidence=evidence_of(losses) or [seen.mentions("live.distributed_backend")],
        where=place_of(losses, main_model(seen)),
        remedy="Start collectives early (async_op=True, DistributedDataParallel's buckets), send fewer or smaller "
        "tensors, or accumulate gradients under no_sync().",
    )


@rule("program", explains=["communication-exposed"])
def rank_imbalance(seen: Seen) -> Iterator[Finding]:
    """Ranks wait for the slowest one.

    Sees: time in collectives before the last rank has joined them; without a device, that in which no operator runs.

    Costs: that time: with equal work all would join at once. Its severity is, without a device, that of what one rank
    waits longer than another, and works less.

    Wrong when: another rank is the slow one in each step; then no rank stands out, and the finding is a low one.
    """
    if len(seen.processes) < 2:
        return
    share, evidence = _imbalance(seen)
    if share < policy.LEAST_SHARE:
        return
    losses = seen.losses("rank-imbalance")
    # Ranks that wait as long for one another, or work as long, wait by chance: for a core, or what comes in between.
    beyond = min(share, _beyond_slowest(seen)) if losses and not seen.uses_cuda else share
    small = beyond < policy.RANKS_DIFFER or not losses
    yield Finding(
        id="rank-imbalance",
        severity="low" if small else policy.severity(beyond),
        claim=losses[0].claim if losses else "Ranks wait for one another in collectives, now for one, now for another.",
        share=share,
        evidence=evidence,
        where=losses[0].where if losses else Place(),
        remedy="Give all ranks as much work (sequences of like length in a batch, as many samples), and look at the "
        "slow rank's loader, device clock and cores.",
    )


def _imbalance(seen: Seen) -> tuple[float, list[str]]:
    """Of a plain step, what ranks wait for the slowest, with evidence."""
    if len(seen.processes) < 2:
        return 0.0, []
    losses = seen.losses("rank-imbalance")
    if losses or seen.uses_cuda:
        return sum(loss.share for loss in losses), evidence_of(losses)
    step_s = seen.timing.step_s
    waits = {row.rank: row.waits_s for row in seen.trace.ranks.ranks if row.waits_s} if seen.trace.ranks else {}
    if not waits or not seen.trace.num_steps or not step_s:
        return 0.0, []
    rank, longest_s = max(waits.items(), key=lambda item: item[1])
    each_s = longest_s / seen.trace.num_steps
    return min(1.0, each_s / step_s), [f"rank {rank} waits {each_s * 1e3:.3g} ms a step"]


def _beyond_slowest(seen: Seen) -> float:
    """Of a recorded step, what the rank that waits most waits longer than the one that waits least.

    At most what one rank works longer than another outside of collectives: equal work takes no more than that away.
    """
    trace = seen.trace
    waits = [row.waits_s for row in trace.ranks.ranks if row.waits_s is not None] if trace.ranks else []
    if not waits or not trace.window_s:
        return 0.0
    beyond_s = max(waits) - min(waits)
    works = [row.window_s - row.communication_s for row in trace.hosts]
    if len(works) == len(waits) > 1:
        beyond_s = min(beyond_s, max(works) - min(works))
    return beyond_s / trace.window_s


def _waiting(seen: Seen) -> float:
    """Of the collectives of a program without a device, the part in which its longest rank waits for others to join."""
    host = max(seen.trace.hosts, key=lambda row: row.window_s, default=None)
    if host is None or not host.communication_s or seen.trace.ranks is None:
        return 0.0
    waits_s = next((row.waits_s for row in seen.trace.ranks.ranks if row.rank == host.rank), None)
    return min(1.0, (waits_s or 0.0) / host.communication_s)


def _ddp(seen: Seen) -> Model | None:
    return next((model for model in seen.models if model.wrapper == "DistributedDataParallel"), None)


def _told(model: Model, name: str) -> Value:
    """What DistributedDataParallel says of itself.

    Raises:
        Missing: it does not.
    """
    value = model.ddp.get(name, Unknown("DistributedDataParallel did not say"))
    if isinstance(value, Unknown):
        raise Missing(f"{name} of DistributedDataParallel", value.reason)
    return value
