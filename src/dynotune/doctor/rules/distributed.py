"""Distributed: how ranks exchange gradients, and whether they keep in step."""

from dynotune.doctor import hot_lines, policy
from dynotune.doctor.bounds import at_least, bytes_per_s, main_model, place_of, saving, severity_of
from dynotune.doctor.declaration import Judgement, Judgements, rule
from dynotune.doctor.observation_view import ObservationView, evidence_of, or_unknown, required
from dynotune.doctor.program_loops import main_loop, told_of
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place, RankPhase

_REMEDIES: dict[tuple[RankPhase, ...], str] = {
    ("input",): "Look at that rank's data: its shard, storage, loader workers and their cores.",
    (
        "upload",
    ): "Look at that rank's path to its GPU: pinned memory, PCIe link, NUMA node, what runs before the copy.",
    (
        "optimizer",
    ): "See what only that rank does after its backward pass: logging, checkpoints, clipping, its cores.",
    ("other",): "See what only that rank does between steps: logging, checkpoints, validation.",
}
"""What to do about a rank that is late by these phases alone."""


@rule(family="distributed")
def dataparallel_used(view: ObservationView) -> Judgements:
    model = next((model for model in view.models if model.wrapper == "DataParallel"), None)
    if model is None or (not isinstance(view.observation.trace, Unknown) and len(view.trace.devices) == 1):
        return  # with a single device it only calls the model, and copies nothing
    share = or_unknown(lambda: _idle_of_all(view))
    yield Judgement(
        severity=at_least(severity_of(share, "medium"), "medium"),
        share=share,
        evidence=[f"{model.name}: {model.num_parameters:,} parameters", *_devices(view)],
        model=model,
    )


def _idle_of_all(view: ObservationView) -> float:
    """Return the share of time in which devices idle or only exchange data."""
    devices = view.trace.devices
    window_s = sum(row.window_s for row in devices)
    idle = 1.0 - sum(row.busy_s for row in devices) / window_s if window_s else 0.0
    return min(1.0, idle + view.attribution.shares.communication)


def _devices(view: ObservationView) -> list[str]:
    devices = [] if isinstance(view.observation.trace, Unknown) else view.observation.trace.devices
    shares = [(row.device, row.busy_s / row.window_s) for row in devices if row.window_s]
    return [f"device {device} is busy for {share:.0%} of the time" for device, share in shares]


@rule(family="distributed")
def ddp_find_unused_on(view: ObservationView) -> Judgements:
    model = _ddp(view)
    if model is None or model.ddp.get("find_unused_parameters") is not True:
        return
    unused = model.ddp.get("unused_parameters", Unknown("DistributedDataParallel did not say"))
    if required(unused, "unused_parameters of DistributedDataParallel") not in (0, False):
        return
    yield Judgement(
        otherwise="medium",
        share=or_unknown(lambda: _of_unused(view, model)),
        evidence=["find_unused_parameters=True, unused: none", f"{model.num_tensors} parameters"],
        model=model,
    )


def _of_unused(view: ObservationView, model: Model) -> float:
    shares, calls = view.attribution.shares, view.trace.communication
    per_step = sum(row.num for row in calls if row.rank == calls[0].rank) / (view.trace.num_steps or 1)
    # The program also waits for a device, because the parameters in use come from there.
    walked = policy.WALKED_PARAMETER_S * model.num_tensors / view.timing.step_s
    walk = shares.host if view.uses_cuda else walked
    return min(1.0, walk + shares.communication / max(1.0, per_step))


@rule(family="distributed")
def ddp_no_sync_absent(view: ObservationView) -> Judgements:
    model = _ddp(view)
    num = next((part.num for part in view.process.cycle if part.kind == "call" and part.num > 1), None)
    if model is None or model.call is None or num is None or not view.is_training:
        return
    if model.call.num_synced < 0.9 * model.call.num:
        return
    share = view.attribution.shares.communication * (num - 1) / num
    yield Judgement(
        claim=f"Gradients are exchanged {num} times for each update, and once is enough.",
        share=share,
        evidence=[f"a step: {view.process.step}"],
        model=model,
    )


@rule(family="distributed")
def ddp_bucket_cap(view: ObservationView) -> Judgements:
    losses = view.losses("ddp-bucket-cap")
    share = sum(loss.share for loss in losses) - view.lost("rank-imbalance")
    model = _ddp(view)
    cap = None if model is None else model.ddp.get("bucket_cap_mb")
    yield Judgement(
        claim=f"The device only reduces gradients for {share:.0%} of a step.",
        share=share,
        losses=losses,
        evidence=[*([f"bucket_cap_mb: {cap}"] if isinstance(cap, int | float) else [])],
        model=model,
        candidates=[Setting("ddp.bucket_cap_mb", size) for size in (10.0, 100.0) if size != cap],
    )


@rule(family="distributed")
def ddp_bucket_view(view: ObservationView) -> Judgements:
    model = _ddp(view)
    if model is None or model.ddp.get("gradient_as_bucket_view") is not False or not view.uses_cuda:
        return
    step_s = view.timing.step_s
    copied = 4 * model.parameter_bytes / bytes_per_s(view) / step_s if step_s else 1.0
    share = saving(view, min(copied, view.kernel_share("copy") + view.lost("device-copies")))
    yield Judgement(
        share=share,
        evidence=[f"{model.parameter_bytes / 1e6:,.0f} MB of parameters", "gradient_as_bucket_view=False"],
        model=model,
    )


@rule(family="distributed")
def ddp_static_graph(view: ObservationView) -> Judgements:
    model = _ddp(view)
    if (
        model is None
        or model.ddp.get("static_graph") is not False
        or model.ddp.get("can_set_static_graph") is not True
    ):
        return
    yield Judgement(severity="low", share=Unknown("the saving is not known"), model=model)


@rule(family="distributed")
def communication_exposed(view: ObservationView) -> Judgements:
    losses = view.losses("communication-exposed")
    if view.uses_cuda:
        exposed = sum(loss.share for loss in losses)
        share = exposed - (0.0 if view.lost("ddp-bucket-cap") else _imbalance(view)[0])
    else:
        share = view.attribution.shares.communication * (1.0 - _waiting(view))
    # Without a device, samples see the line that waits. With one, collectives run beside the host's lines.
    lines = [] if view.uses_cuda else hot_lines.known(hot_lines.of_communication, view)
    loop = main_loop(view, of_collectives=True)
    yield Judgement(
        claim=f"Ranks exchange data and do nothing else for {share:.0%} of a step.",
        share=share,
        evidence=told_of(loop)
        + hot_lines.told(lines)
        + (evidence_of(losses) or [view.mentions("live.distributed_backend")]),
        where=hot_lines.place(lines, place_of(losses, main_model(view))),
    )


@rule(family="distributed")
def rank_imbalance(view: ObservationView) -> Judgements:
    if len(view.processes) < 2:
        return
    share, evidence = _imbalance(view)
    if share < policy.LEAST_SHARE:
        return
    losses = view.losses("rank-imbalance")
    # If ranks wait equally long or work equally long, they wait by chance, for instance for a core.
    beyond = min(share, _beyond_slowest(view)) if losses and not view.uses_cuda else share
    small = beyond < policy.RANKS_DIFFER or not losses
    stragglers = view.trace.ranks.stragglers if losses and view.trace.ranks else []
    if stragglers and stragglers[0].late_s is not None:
        late = stragglers[0].late_s / view.timing.step_s
        share = min(share, late)
        # The recording alone may make ranks differ by as much.
        small = small or late <= _slowed(view) - 1
        evidence = [*evidence, f"a recorded step is {_slowed(view):.2f} times as long as an unrecorded one"]
    yield Judgement(
        severity="low" if small else policy.severity(min(beyond, share)),
        claim=losses[0].claim
        if losses
        else (
            "Ranks wait for one another in collectives, and none works longer than the others in most steps."
        ),
        share=share,
        evidence=evidence,
        where=losses[0].where if losses else Place(),
        remedy=_REMEDIES.get(tuple(stragglers[0].phases) if len(stragglers) == 1 else ())
        or (
            "Give all ranks equal work (samples as many and as long); see the slow rank's loader, clock and "
            "cores."
        ),
    )


def _imbalance(view: ObservationView) -> tuple[float, list[str]]:
    """Return the share of an unrecorded step in which ranks wait for the slowest rank, with evidence."""
    if len(view.processes) < 2:
        return 0.0, []
    losses = view.losses("rank-imbalance")
    if losses:
        return sum(loss.share for loss in losses), evidence_of(losses)
    step_s = view.timing.step_s * _slowed(view)
    waits = (
        {row.rank: row.waits_s for row in view.trace.ranks.ranks if row.waits_s} if view.trace.ranks else {}
    )
    if not waits or not view.trace.num_steps or not step_s:
        return 0.0, []
    rank, longest_s = max(waits.items(), key=lambda item: item[1])
    each_s = longest_s / view.trace.num_steps
    return min(1.0, each_s / step_s), [f"rank {rank} waits {each_s * 1e3:.3g} ms per step"]


def _slowed(view: ObservationView) -> float:
    return max(1.0, view.attribution.slowed or 1.0)


def _beyond_slowest(view: ObservationView) -> float:
    """Return the share of a recorded step by which the longest wait of a rank exceeds the shortest.

    It is at most the time by which one rank works longer than another outside collectives: equal work saves
    no more.
    """
    trace = view.trace
    waits = [row.waits_s for row in trace.ranks.ranks if row.waits_s is not None] if trace.ranks else []
    if not waits or not trace.window_s:
        return 0.0
    beyond_s = max(waits) - min(waits)
    works = [row.window_s - row.communication_s for row in trace.hosts]
    if len(works) == len(waits) > 1:
        beyond_s = min(beyond_s, max(works) - min(works))
    return beyond_s / trace.window_s


def _waiting(view: ObservationView) -> float:
    """Return, without a device, the part of collectives in which the longest-waiting rank waits for others to
    join."""
    host = max(view.trace.hosts, key=lambda row: row.window_s, default=None)
    if host is None or not host.communication_s or view.trace.ranks is None:
        return 0.0
    waits_s = next((row.waits_s for row in view.trace.ranks.ranks if row.rank == host.rank), None)
    return min(1.0, (waits_s or 0.0) / host.communication_s)


def _ddp(view: ObservationView) -> Model | None:
    return next((model for model in view.models if model.wrapper == "DistributedDataParallel"), None)
