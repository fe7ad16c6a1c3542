"""Host: Python and kernel launches that the device waits for."""

from dynotune.doctor import bounds, hot_lines, policy
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.float32_products import is_ieee, saved_by_tf32
from dynotune.doctor.machine import cores_in_use
from dynotune.doctor.observation_view import Missing, ObservationView, evidence_of
from dynotune.doctor.program_loops import LONG_LOOP, main_loop, told_of
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import SHORT_KERNEL_S, Called, Caller, Operator

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_PROGRAM: tuple[Caller, ...] = ("program", "unknown")
_FORWARD: tuple[Caller, ...] = (*_PROGRAM, "library")
_SMALL = (
    "select add sub mul div neg abs pow sqrt rsqrt exp log sin cos tanh sigmoid relu clamp clamp_min "
    "clamp_max minimum "
    "maximum where lt le gt ge eq ne index copy_ fill_ slice unbind item _local_scalar_dense remainder "
    "floor round "
    "logical_and logical_or masked_fill index_put_ scalar_tensor"
)
_SMALL_NAMES = frozenset(f"aten::{name}" for name in _SMALL.split())


@cuda_rule(family="host")
def launch_bound(view: ObservationView) -> Judgements:
    losses, launches = view.losses("launch-bound"), _mostly_launches(view)
    pauses = sum(loss.share for loss in losses)
    others = view.lost("host-bound")
    late = min(view.lost("launch-latency"), view.attribution.shares.host)
    counted = others if others <= pauses or launches else 0.0
    share = min(pauses + counted + late, view.attribution.shares.host)
    share = min(share - bounds.after_waits(view), bounds.faster_host_saving(view))
    if not losses and not (launches and others):
        yield from _many_short_kernels(view)
        return
    if share < policy.LEAST_SHARE:
        return
    # If other kernels are long, the mean says nothing about the short ones.
    took = (
        f"{mean_s * 1e6:.2g} µs on average, "
        if (mean_s := view.kernels.mean_s or 1.0) < SHORT_KERNEL_S
        else ""
    )
    claim = f"Kernels take {took}less than launching them: {share:.0%} of a step is lost to that."
    if others > pauses:
        claim = f"The device waits for {share:.0%} of a step while the host launches its kernels."
    loop = main_loop(view)
    is_long = loop is not None and loop.is_long
    compiled = is_long or any(model.compiled for model in view.models)
    candidates = [] if compiled else [Setting("compile.mode", "reduce-overhead")]
    if _has_fusable_optimizer(view):
        candidates.append(Setting("optimizer.fused", True))
    if not compiled and is_ieee(view) and saved_by_tf32(view) >= policy.LEAST_SHARE:
        # Replayed graphs leave the device's own time, of which the host hides this part now.
        candidates.append(Setting("matmul.fp32_precision", "high"))
    yield Judgement(
        claim=claim,
        share=share,
        evidence=[*told_of(loop), *evidence_of([*losses, *view.losses("host-bound")] if counted else losses)],
        where=loop.where if loop is not None else bounds.place_of(losses, bounds.main_model(view)),
        candidates=candidates,
        remedy=LONG_LOOP if is_long else "",
    )


def _has_fusable_optimizer(view: ObservationView) -> bool:
    """Tell whether an optimizer of torch launches several kernels to update parameters on the device, where
    its fused form launches one."""
    of_device = [one for one in view.optimizers if any(name.startswith("cuda") for name in one.devices)]
    return any(
        one.name.startswith("torch.optim.") and one.name.rpartition(".")[2] in FUSED and not one.fused
        for one in of_device
    )


def _many_short_kernels(view: ObservationView) -> Judgements:
    """Find a device that works nearly all the time on very short kernels."""
    kernels, num_steps, step_s = view.kernels, view.trace.num_steps, view.timing.step_s
    num, short_s = kernels.num_short, kernels.short_s
    if num is None or short_s is None or not num_steps or not step_s:
        return
    if num < policy.MANY_SHORT_KERNELS * num_steps or num < policy.MOSTLY_SHORT * kernels.num:
        return
    working = min(view.attribution.shares.device, short_s / num_steps / step_s)
    share = bounds.saving(view, working) + view.lost("launch-latency")
    if share < policy.HIGH_SHARE:
        return
    compiled = any(model.compiled for model in view.models)
    loop = main_loop(view)
    yield Judgement(
        claim=f"{num / num_steps:,.0f} of {kernels.num / num_steps:,.0f} kernels per step take less than "
        "10 µs each: "
        f"with the pauses between them {share:.0%} of a step.",
        share=share,
        evidence=[
            *told_of(loop),
            f"they work for {working:.0%} of a step, {short_s / num * 1e6:.2g} µs each",
        ],
        where=None if loop is None else loop.where,
        model=bounds.main_model(view),
        candidates=[] if compiled else [Setting("compile.mode", "reduce-overhead")],
        remedy="Use fewer kernels: batch small layers into one product, or fuse them (torch.compile).",
    )


@rule(family="host")
def host_bound(view: ObservationView) -> Judgements:
    if not view.uses_cuda:
        yield from _python_bound(view)
        return
    losses = view.losses("host-bound")
    after = bounds.after_waits(view)
    share = min(sum(loss.share for loss in losses), view.attribution.shares.host) - after
    # The waits already include the work that computes the values that are read.
    reads = sum(part for _, part in hot_lines.known(hot_lines.of_reads, view))
    share -= max(0.0, reads - view.lost("sync-per-step") - after)
    share = min(share, bounds.faster_host_saving(view))
    if share < policy.LEAST_SHARE or share <= view.lost("launch-bound") or _mostly_launches(view):
        return
    lines = hot_lines.known(hot_lines.of_python, view)
    yield Judgement(
        severity=policy.severity(policy.SPARED_OF_HOST * share),
        claim=f"The device waits for the host's own work for {share:.0%} of a step.",
        share=share,
        evidence=[*hot_lines.told(lines), *evidence_of(losses)],
        where=hot_lines.place(lines, bounds.place_of(losses, bounds.main_model(view))),
    )


def _mostly_launches(view: ObservationView) -> bool:
    """Tell whether the host's own work is mostly torch's: modules, backward passes and optimizers launching
    kernels."""
    working = [
        line for line, _ in hot_lines.known(lambda view: hot_lines.of_thread(view, lambda line: True), view)
    ]
    num, of_torch = (
        sum(line.num for line in lines) for lines in (working, filter(hot_lines.ends_in_torch, working))
    )
    return num > 0 and of_torch >= policy.MOSTLY_LAUNCHES * num


def _between_operators_of_optimizer(view: ObservationView) -> float:
    """Return the share of a step without a device that Python takes in an optimizer's loop over
    parameters."""
    causes = [cause for cause in view.trace.causes if cause.id == "optimizer-forloop"]
    return sum(cause.share * (1 - cause.work_s / cause.lost_s) for cause in causes if cause.lost_s)


def _crowded_out(view: ObservationView) -> float:
    """Return Python's share of a step without a device if the recorded operators alone exceed an unrecorded
    step.

    Other programs or the recording then slowed the operators, which seems to leave no time for Python. So
    Python counts as often as it was sampled, at most by its recorded share. Some of the lines call operators:
    a bound, and no alarm.
    """
    row = max(view.trace.hosts, key=lambda row: row.window_s, default=None)
    if row is None or not view.trace.num_steps or not row.window_s:
        return 0.0
    recorded_s = row.loader_s + row.operator_s + row.communication_s
    if recorded_s < view.timing.step_s * view.trace.num_steps:
        return 0.0
    return min(
        sum(part for _, part in hot_lines.known(hot_lines.of_python, view)),
        max(0.0, 1 - recorded_s / row.window_s),
    )


def _python_bound(view: ObservationView) -> Judgements:
    sleeps = hot_lines.known(hot_lines.asleep, view)
    surely = (
        bounds.waits_for_host(view) - _between_operators_of_optimizer(view) - sum(part for _, part in sleeps)
    )
    share = max(surely, _crowded_out(view))
    lines = hot_lines.within(hot_lines.known(hot_lines.of_python, view), share)
    if view.attribution.busy_share is not None or share < policy.HIGH_SHARE:
        return
    yield Judgement(
        # Python takes as long between operators of usual size, so this finding only tells the verdict the
        # place in the code.
        severity=policy.severity(surely) if surely >= policy.MUCH_PYTHON else "low",
        claim=f"Python runs between operators for {share:.0%} of a step.",
        share=share,
        evidence=[
            f"{view.timing.step_s * share * 1e3:.3g} ms per step in no operator and not in the loader",
            *hot_lines.told(lines),
        ],
        where=hot_lines.place(lines, bounds.place_of([], bounds.main_model(view))),
        remedy="Move this work out of the loop, or into operators on whole tensors.",
    )


@cuda_rule(family="host")
def launch_latency(view: ObservationView) -> Judgements:
    losses = view.losses("launch-latency")
    share = sum(loss.share for loss in losses)
    if share < policy.LEAST_SHARE:
        return
    short = (view.kernels.mean_s or 0.0) < SHORT_KERNEL_S and not view.kernels.in_graphs
    much = short and share >= policy.MUCH_WAITING_IN_QUEUE
    yield Judgement(
        severity=policy.severity(share) if much else "low",
        claim=f"The device pauses between queued kernels for {share:.0%} of a step.",
        share=share,
        losses=losses,
        model=bounds.main_model(view),
    )


@rule(family="host")
def optimizer_forloop(view: ObservationView) -> Judgements:
    losses = view.losses("optimizer-forloop")
    share = min(1.0, sum(loss.share for loss in losses))
    if not view.uses_cuda and all(each.name.startswith("torch.optim.") for each in view.optimizers):
        share = min(share, policy.SEEN_TOO_SELDOM * (hot_lines.updating(view) or share))
    device = "cuda" if view.uses_cuda else "cpu"
    here = [each for each in view.optimizers if any(name.startswith(device) for name in each.devices)]
    # Only the first group is known: if it is fused, other groups are not.
    slow = [each for each in here if not each.fused] or here
    fusable = any(each.name.rpartition(".")[2] in FUSED for each in slow)
    kernels = "kernels" if view.uses_cuda else "operators"
    unalike = ", of groups that set it for themselves"
    # On the CPU, foreach loops as well, and only some optimizers have a fused form.
    is_torchs = bool(slow) and all(each.name.startswith("torch.optim.") for each in slow)
    is_lasting = is_torchs and not fusable and not view.uses_cuda
    yield Judgement(
        severity="low" if is_lasting else None,
        claim=f"The optimizer updates each parameter with separate {kernels}.",
        share=share,
        losses=losses,
        evidence=[
            f"{each.name}(foreach={each.foreach}, fused={each.fused}), {each.num_tensors} tensors"
            + (unalike if each.groups_differ else "")
            for each in slow
        ],
        candidates=[Setting("optimizer.fused", True)] if fusable else [],
        remedy=(
            "Pass fused=True, or leave foreach at its default: one kernel then updates many parameters."
            if view.uses_cuda
            else "Pass fused=True."
        )
        if fusable
        else "It has no fused form on the CPU; Adam, AdamW, SGD and Adagrad have one (fused=True)."
        if is_lasting
        else "Leave foreach at its default, or update with torch._foreach_ functions.",
    )


@rule(family="host")
def python_elementwise_loops(view: ObservationView) -> Judgements:
    num_steps = view.trace.num_steps
    if not num_steps:
        raise Missing("steps in the trace", "they are neither marked nor found")
    small = [(row, _by_program(row)) for row in bounds.operators(view, _SMALL_NAMES.__contains__)]
    num = sum(called.num for _, called in small)
    products = sum(row.num for row in bounds.operators(view, bounds.PRODUCTS.__contains__)) / num_steps
    per_step = num / num_steps
    if per_step < policy.MANY_SMALL_OPERATORS or per_step < policy.SMALL_PER_PRODUCT * products:
        return
    short = sum(called.self_s for _, called in small) / num < policy.SHORT_OPERATOR_S
    share = _of_loop(view, num_steps) if short else 0.0
    losses = view.losses("launch-bound", "host-bound")
    commonest = sorted(small, key=lambda pair: -pair[1].num)[:3]
    loop = main_loop(view)
    yield Judgement(
        claim=(
            f"{per_step:,.0f} pointwise and indexing operators run in a step, as in a Python loop over "
            "elements."
        ),
        share=share,
        evidence=told_of(loop)
        + [f"{row.name}: {called.num / num_steps:,.0f} a step" for row, called in commonest]
        + evidence_of(losses, 1),
        where=loop.where if loop is not None else bounds.place_of(losses, bounds.main_model(view)),
    )


def _by_program(row: Operator) -> Called:
    """Return the calls that the program itself makes one by one; without recorded stacks, return all
    calls."""
    if not row.callers:
        return Called(num=row.num, self_s=row.self_s)
    own = [row.callers[caller] for caller in _PROGRAM if caller in row.callers]
    return Called(num=sum(called.num for called in own), self_s=sum(called.self_s for called in own))


def _of_loop(view: ObservationView, num_steps: int) -> float:
    """Return a bound of a loop's operators, their backward pass and Python around them, as a share of an
    unrecorded step."""
    every = bounds.operators(view, lambda name: name.startswith("aten::"))
    rows, all_s = [row for row in every if row.name not in bounds.PRODUCTS], sum(row.self_s for row in every)
    if not all_s:
        return 0.0

    def is_looped(called: Called) -> bool:
        return (
            called.num >= policy.LOOPED * num_steps and called.self_s < policy.SHORT_OPERATOR_S * called.num
        )

    own = [(row, called) for row in rows if is_looped(called := _by_program(row))]
    forward = sum(
        sum(row.callers[caller].num for caller in _FORWARD if caller in row.callers) for row, _ in own
    )
    looped = sum(called.num for _, called in own) / forward if forward else 0.0
    backward = [row.callers["backward"] for row in rows if "backward" in row.callers]
    backward_s = sum(called.self_s for called in backward if is_looped(called))
    part = min(1.0, (sum(called.self_s for _, called in own) + looped * backward_s) / all_s)
    if view.uses_cuda:
        return min(
            bounds.waits_for_host(view), part * view.lost("launch-bound", "host-bound", "launch-latency")
        )
    return min(1.0, part * (view.attribution.shares.device + bounds.waits_for_host(view)))


@rule(family="host")
def cpu_oversubscribed(view: ObservationView) -> Judgements:
    cores = view.number("host.num_cores")
    if cores < 1 or not _cores_are_short(view, cores):
        return
    ranks = len(view.processes)
    num_threads, waited = view.number("live.num_threads"), view.number_or_none("live.core_wait_s_per_s")
    threads = ranks * num_threads
    workers = sum(loader.num_workers for loader in view.loaders) * ranks
    decoding = view.fact_or_none("live.cv2_num_threads")
    in_workers = workers * decoding if isinstance(decoding, int) and decoding > 1 else 0
    of_workers = sum(loader.num_workers * _threads_of_torch(loader) for loader in view.loaders) * ranks
    shares = view.attribution.shares
    computing = shares.host if view.uses_cuda else shares.device
    if of_workers > workers and not view.uses_cuda:
        # Each of the workers' threads takes a core from the steps' operators, which then wait for a core.
        threads += of_workers
        computing = min(computing, waited / num_threads if waited and num_threads else computing)
    bound = [
        ("torch", threads, computing * (1 - cores / threads) if threads else 0.0, policy.OVERSUBSCRIBED),
        ("torch in workers", of_workers, shares.input * (1 - cores / of_workers) if of_workers else 0.0, 2.0),
        (
            "OpenCV in workers",
            in_workers,
            shares.input * (1 - cores / in_workers) if in_workers else 0.0,
            2.0,
        ),
    ]
    over = [(name, num, share) for name, num, share, most in bound if num > most * cores and share > 0]
    if not over:
        return
    share = min(1.0, sum(share for _, _, share in over))
    of_torch = over[0][0] == "torch" and of_workers <= workers
    each = max(1, int(cores) // ranks)
    yield Judgement(
        claim=f"{over[0][1]:.0f} threads of {over[0][0]} share {cores:.0f} cores.",
        share=share,
        evidence=[
            *(
                f"{num:.0f} threads of {name} in {ranks} {'rank' if ranks == 1 else 'ranks'}"
                for name, num, _ in over
            ),
            f"{workers} loader workers",
            view.mentions("host.num_cores"),
            view.mentions("window.tree_cpu_s_per_s"),
            *(
                []
                if waited is None
                else [f"threads that are ready to run wait {waited:.2g} s per second for a core"]
            ),
        ],
        candidates=[Setting("host.num_threads", each)] if of_torch else [],
        remedy=f"Call torch.set_num_threads({each}), or set OMP_NUM_THREADS."
        if of_torch
        else (
            "Call torch.set_num_threads(1) in the workers: that is their default, which worker_init_fn "
            "changed."
        )
        if of_workers > workers
        else "Call cv2.setNumThreads(0) in the data set.",
    )


def _threads_of_torch(loader: Loader) -> int:
    """Return the number of torch's threads in each worker; torch's default there is one."""
    return 1 if isinstance(loader.loading, Unknown) else loader.loading.num_threads or 1


def _cores_are_short(view: ObservationView, cores: float) -> bool:
    """Tell whether the cores are busy, other programs included, or the first rank's threads need far more of
    them.

    True if that is not known.
    """
    used, waited = cores_in_use(view), view.number_or_none("live.core_wait_s_per_s")
    own = view.number_or_none("window.tree_cpu_s_per_s")
    waits = own is not None and waited is not None and own + waited >= policy.OVERSUBSCRIBED * own
    return used is None or used >= policy.CORES_BUSY * cores or waits
