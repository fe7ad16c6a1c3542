"""Host: what the device waits for while the program runs Python and launches kernels."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import (
    PRODUCTS,
    after_waits,
    main_model,
    operators,
    place_of,
    saved,
    waits_for_host,
)
from dynotune.doctor.machine import known, known_number
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Called, Caller, Operator, Place

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_PROGRAM: tuple[Caller, ...] = ("program", "unknown")
_FORWARD: tuple[Caller, ...] = (*_PROGRAM, "library")
_SMALL = (
    "select add sub mul div neg abs pow sqrt rsqrt exp log sin cos tanh sigmoid relu clamp clamp_min clamp_max minimum "
    "maximum where lt le gt ge eq ne index copy_ fill_ slice unbind item _local_scalar_dense remainder floor round "
    "logical_and logical_or masked_fill index_put_ scalar_tensor"
)
_SMALL_NAMES = frozenset(f"aten::{name}" for name in _SMALL.split())


@rule("program", explains=["launch-latency"])
def launch_bound(seen: Seen) -> Iterator[Finding]:
    """Kernels are shorter than launching them takes.

    Sees: a device that has nothing to do for short times, again and again, between kernels of less than 10 µs. Or
    hundreds of them a step, three quarters of all kernels or more, which with the pauses before them take a tenth of
    it, be they queued in time or not.

    Costs: these pauses, and the longer ones that the host causes where they are the smaller part. Only fewer launches
    (larger batches, fused kernels, CUDA graphs) take them away; faster kernels do not. Where the device is kept busy,
    the time of the short kernels too, which no graph takes away: most of it is what any kernel takes to begin and end.

    Wrong when: the program is made of many small steps that depend on one another's results.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("launch-bound")
    pauses = sum(loss.share for loss in losses)
    others = seen.lost("host-bound")
    late = min(seen.lost("launch-latency"), seen.attribution.shares.host)
    share = min(pauses + (others if others <= pauses else 0.0) + late, seen.attribution.shares.host)
    share -= after_waits(seen)
    if not losses:
        yield from _many_short_kernels(seen)
        return
    if share < policy.LEAST_SHARE:
        return
    # Where others are long, the mean says nothing of those that wait.
    took = (
        f"{mean_s * 1e6:.2g} µs on average, " if (mean_s := seen.kernels.mean_s or 1.0) < policy.SHORT_KERNEL_S else ""
    )
    candidates = [] if any(model.compiled for model in seen.models) else [Setting("compile.mode", "reduce-overhead")]
    yield Finding(
        id="launch-bound",
        severity=policy.severity(share),
        claim=f"Kernels take {took}less than launching them: the device waits for {share:.0%} of a step.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses, main_model(seen)),
        candidates=candidates,
        remedy="Launch less: larger batches, torch.compile with CUDA graphs (reduce-overhead), fused optimizers.",
    )


def _many_short_kernels(seen: Seen) -> Iterator[Finding]:
    """The device works nearly all the time, on kernels that each do next to nothing."""
    kernels, num_steps, step_s = seen.kernels, seen.trace.num_steps, seen.timing.step_s
    num, short_s = kernels.num_short, kernels.short_s
    if num is None or short_s is None or not num_steps or not step_s:
        return
    if num < policy.MANY_SHORT_KERNELS * num_steps or num < policy.MOSTLY_SHORT * kernels.num:
        return
    working = min(seen.attribution.shares.device, short_s / num_steps / step_s)
    share = saved(seen, working) + seen.lost("launch-latency")
    if share < policy.HIGH_SHARE:
        return
    compiled = any(model.compiled for model in seen.models)
    yield Finding(
        id="launch-bound",
        severity=policy.severity(share),
        claim=f"{num / num_steps:,.0f} of {kernels.num / num_steps:,.0f} kernels a step take less than 10 µs each: "
        f"with the pauses between them {share:.0%} of a step.",
        share=share,
        evidence=[f"they work for {working:.0%} of a step, {short_s / num * 1e6:.2g} µs each"],
        where=place_of([], main_model(seen)),
        candidates=[] if compiled else [Setting("compile.mode", "reduce-overhead")],
        remedy="Do the same in fewer kernels: batch small layers into one product, or fuse them (torch.compile).",
    )


@rule("program")
def host_bound(seen: Seen) -> Iterator[Finding]:
    """The device waits for the host's own work.

    Sees: idle time of the device in which the host ran Python or operators of its own, and which nothing more special
    explains; where kernels are short and most pauses are, `launch-bound` counts it. What the host would do beside the
    device's work if it did not wait for it counts for these waits. Without a device, Python between operators, if it
    takes a quarter of a step or more.

    Costs: all of that time.

    Wrong when: the host's work is what the program is for, as a simulation's.
    """
    if not seen.uses_cuda:
        yield from _python_bound(seen)
        return
    losses = seen.losses("host-bound")
    share = min(sum(loss.share for loss in losses), seen.attribution.shares.host) - after_waits(seen)
    if share < policy.LEAST_SHARE or share <= seen.lost("launch-bound"):
        return
    yield Finding(
        id="host-bound",
        severity=policy.severity(policy.SPARED_OF_HOST * share),
        claim=f"For {share:.0%} of a step the device waits for the host's own work.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses, main_model(seen)),
        remedy="Do that work less often, on the device, or in a thread or process beside the loop.",
    )


def _between_operators_of_optimizer(seen: Seen) -> float:
    """Of a step without a device, the Python in what an optimizer's loop over parameters costs."""
    causes = [cause for cause in seen.trace.causes if cause.id == "optimizer-forloop"]
    return sum(cause.share * (1 - cause.work_s / cause.lost_s) for cause in causes if cause.lost_s)


def _python_bound(seen: Seen) -> Iterator[Finding]:
    share = waits_for_host(seen) - _between_operators_of_optimizer(seen)
    if seen.attribution.busy_share is not None or share < policy.MUCH_PYTHON:
        return
    yield Finding(
        id="host-bound",
        severity=policy.severity(share),
        claim=f"For {share:.0%} of a step Python runs between operators.",
        share=share,
        evidence=[f"{seen.timing.step_s * share * 1e3:.3g} ms a step in no operator and not in the loader"],
        where=place_of([], main_model(seen)),
        remedy="Move that work out of the loop, or into operators on whole tensors.",
    )


@rule("program")
def launch_latency(seen: Seen) -> Iterator[Finding]:
    """The device pauses between kernels that are queued.

    Sees: pauses of up to 100 µs although the next kernel was queued.

    Costs: these pauses: one or two microseconds for each kernel. Only fewer kernels, or CUDA graphs, take them away.

    Wrong when: kernels are long; then they are no matter.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("launch-latency")
    share = sum(loss.share for loss in losses)
    if share < policy.LEAST_SHARE:
        return
    short = (seen.kernels.mean_s or 0.0) < policy.SHORT_KERNEL_S and not seen.kernels.in_graphs
    much = short and share >= policy.MUCH_WAITING_IN_QUEUE
    yield Finding(
        id="launch-latency",
        severity=policy.severity(share) if much else "low",
        claim=f"For {share:.0%} of a step the device pauses between kernels that are queued already.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses, main_model(seen)),
        remedy="Fuse kernels (torch.compile), or replay them as CUDA graphs.",
    )


@rule("program", explains=["launch-bound", "launch-latency"])
def optimizer_forloop(seen: Seen) -> Iterator[Finding]:
    """The optimizer updates each parameter by kernels of its own.

    Sees: more than 300 short kernels in each call of an optimizer's step; without a device more than 100 short
    operators that take one parameter each.

    Costs: their time and that in which the device waits for them to be queued; without a device what the optimizer
    takes beside operators that take many parameters at once.

    Wrong when: the optimizer exists in that form alone.
    """
    losses = seen.losses("optimizer-forloop")
    share = min(1.0, sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE:
        return
    device = "cuda" if seen.uses_cuda else "cpu"
    here = [each for each in seen.optimizers if any(name.startswith(device) for name in each.devices)]
    # The first group alone is known: where that is fused, others are not.
    slow = [each for each in here if not each.fused] or here
    fusable = any(each.name.rpartition(".")[2] in FUSED for each in slow)
    kernels = "kernels" if seen.uses_cuda else "operators"
    yield Finding(
        id="optimizer-forloop",
        severity=policy.severity(share),
        claim=f"The optimizer updates each parameter by {kernels} of its own.",
        share=share,
        evidence=[
            *evidence_of(losses),
            *(
                f"{each.name}(foreach={each.foreach}, fused={each.fused}), {each.num_tensors} tensors"
                + ", of groups that set it for themselves" * each.groups_differ
                for each in slow
            ),
        ],
        where=place_of(losses),
        candidates=[Setting("optimizer.fused", True)] if fusable else [],
        remedy=("Pass fused=True, or leave foreach at its default." if seen.uses_cuda else "Pass fused=True.")
        if fusable
        else "Leave foreach at its default, or update with torch._foreach_ functions.",
    )


@rule("program", explains=["launch-bound", "host-bound"])
def python_elementwise_loops(seen: Seen) -> Iterator[Finding]:
    """A Python loop works on a tensor element by element.

    Sees: hundreds of pointwise and indexing operators a step that functions of the program's own call one by one, short
    ones and twenty or more for each matrix product or convolution. What optimizers, backward passes and loops of
    libraries call does not count.

    Costs: the part of all short operators that the program calls often, and of such in the backward pass, of the time
    that the device waits for the host; without a device their own time, and their part of Python's.

    Wrong when: each element depends on the one before, as in a recurrence.
    """
    num_steps = seen.trace.num_steps
    if not num_steps:
        raise Missing("steps in the trace", "they are neither marked nor found")
    small = [(row, _by_program(row)) for row in operators(seen, _SMALL_NAMES.__contains__)]
    num = sum(called.num for _, called in small)
    products = sum(row.num for row in operators(seen, PRODUCTS.__contains__)) / num_steps
    per_step = num / num_steps
    if per_step < policy.MANY_SMALL_OPERATORS or per_step < policy.SMALL_PER_PRODUCT * products:
        return
    short = sum(called.self_s for _, called in small) / num < policy.SHORT_OPERATOR_S
    share = _of_loop(seen, num_steps) if short else 0.0
    if share < policy.LEAST_SHARE:
        return
    losses = seen.losses("launch-bound", "host-bound")
    commonest = sorted(small, key=lambda pair: -pair[1].num)[:3]
    yield Finding(
        id="python-elementwise-loops",
        severity=policy.severity(share),
        claim=f"{per_step:,.0f} pointwise and indexing operators run in a step, as of a Python loop over elements.",
        share=share,
        evidence=[f"{row.name}: {called.num / num_steps:,.0f} a step" for row, called in commonest]
        + evidence_of(losses, 1),
        where=place_of(losses, main_model(seen)),
        remedy="Write the loop as operations on the whole tensor (masks, where, cumsum, indexing by tensors).",
    )


def _by_program(row: Operator) -> Called:
    """Those that the program itself calls one by one; where no stacks were recorded, that nobody else is known to."""
    if not row.callers:
        return Called(num=row.num, self_s=row.self_s)
    own = [row.callers[caller] for caller in _PROGRAM if caller in row.callers]
    return Called(num=sum(called.num for called in own), self_s=sum(called.self_s for called in own))


def _of_loop(seen: Seen, num_steps: int) -> float:
    """Of a plain step, what a loop's operators and those of its backward pass take at most, with the Python around."""
    rows = [row for row in seen.trace.operators if row.name.startswith("aten::") and row.name not in PRODUCTS]
    all_s = sum(row.self_s for row in seen.trace.operators if row.name.startswith("aten::"))
    if not all_s:
        return 0.0

    def is_looped(called: Called) -> bool:
        return called.num >= policy.LOOPED * num_steps and called.self_s < policy.SHORT_OPERATOR_S * called.num

    own = [(row, called) for row in rows if is_looped(called := _by_program(row))]
    forward = sum(sum(row.callers[caller].num for caller in _FORWARD if caller in row.callers) for row, _ in own)
    looped = sum(called.num for _, called in own) / forward if forward else 0.0
    backward = [row.callers["backward"] for row in rows if "backward" in row.callers]
    backward_s = sum(called.self_s for called in backward if is_looped(called))
    part = min(1.0, (sum(called.self_s for _, called in own) + looped * backward_s) / all_s)
    if seen.uses_cuda:
        return min(waits_for_host(seen), part * seen.lost("launch-bound", "host-bound", "launch-latency"))
    return min(1.0, part * (seen.attribution.shares.device + waits_for_host(seen)))


@rule("program", explains=["host-bound"])
def cpu_oversubscribed(seen: Seen) -> Iterator[Finding]:
    """More threads compute than there are cores.

    Sees: threads of torch, over all ranks, or of OpenCV in all workers, beyond the cores that may be used, while these
    cores are busy, with others' work too, or while threads that are ready to run wait for one. So many threads wake one
    another, and leave cores idle meanwhile.

    Costs: at most the threads' part beyond the cores, of the time of operators, or of the wait for the loader.

    Wrong when: the threads do not run at the same time.
    """
    cores = seen.number("host.num_cores")
    if cores < 1 or not (_cores_are_busy(seen, cores) or _threads_wait(seen)):
        return
    ranks = len(seen.processes)
    threads = ranks * seen.number("live.num_threads")
    workers = sum(loader.num_workers for loader in seen.loaders) * ranks
    decoding = known(seen, "live.cv2_num_threads")
    in_workers = workers * decoding if isinstance(decoding, int) and decoding > 1 else 0
    shares = seen.attribution.shares
    computing = shares.host if seen.uses_cuda else shares.device
    bound = [
        ("torch", threads, computing * (1 - cores / threads) if threads else 0.0, policy.OVERSUBSCRIBED),
        ("OpenCV in workers", in_workers, shares.input * (1 - cores / in_workers) if in_workers else 0.0, 2.0),
    ]
    over = [(name, num, share) for name, num, share, most in bound if num > most * cores and share > 0]
    if not over:
        return
    share = min(1.0, sum(share for _, _, share in over))
    if share < policy.LEAST_SHARE:
        return
    of_torch = over[0][0] == "torch"
    each = max(1, int(cores) // ranks)
    waited = known_number(seen, "live.core_wait_s_per_s")
    yield Finding(
        id="cpu-oversubscribed",
        severity=policy.severity(share),
        claim=f"{over[0][1]:.0f} threads of {over[0][0]} share {cores:.0f} cores.",
        share=share,
        evidence=[
            *(f"{num:.0f} threads of {name} in {ranks} {'rank' if ranks == 1 else 'ranks'}" for name, num, _ in over),
            f"{workers} loader workers",
            seen.mentions("host.num_cores"),
            seen.mentions("window.tree_cpu_s_per_s"),
            *([] if waited is None else [f"threads that are ready to run wait {waited:.2g} s a second for a core"]),
        ],
        where=Place(),
        candidates=[Setting("host.num_threads", each)] if of_torch else [],
        remedy=f"Call torch.set_num_threads({each}), or set OMP_NUM_THREADS."
        if of_torch
        else "Call cv2.setNumThreads(0) in the data set.",
    )


def _cores_are_busy(seen: Seen, cores: float) -> bool:
    """With others' work too; or it is not known."""
    used, by_others = (known_number(seen, f"window.{whose}_cpu_s_per_s") for whose in ("tree", "others"))
    return used is None or used + max(0.0, by_others or 0.0) >= policy.CORES_BUSY * cores


def _threads_wait(seen: Seen) -> bool:
    """Whether the first rank's threads would use so much more of the cores if these were free."""
    used, waited = (known_number(seen, name) for name in ("window.tree_cpu_s_per_s", "live.core_wait_s_per_s"))
    return used is not None and waited is not None and used + waited >= policy.OVERSUBSCRIBED * used
