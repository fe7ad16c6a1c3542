"""Kernels: attention, layouts and sizes that make a busy device do more than it must."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import is_at, main_model, operator_share, operators, place_of, saved
from dynotune.doctor.machine import known
from dynotune.doctor.observation_view import Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding
from dynotune.schema.setting import Setting

HALF = ("float16", "bfloat16")
_POINTWISE = ("elementwise", "cast", "random", "copy")


@rule("program")
def channels_last(seen: Seen) -> Iterator[Finding]:
    """Images change their layout around convolutions.

    Sees: kernels that convert between memory layouts, because cuDNN's fast convolutions want the channels last and the
    tensors have them first.

    Costs: the time of these kernels, as far as the device sets the pace.

    Wrong when: operations without a channels-last kernel convert there and back. In float32 there is little to gain.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("channels-last")
    share = saved(seen, sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE:
        return
    model = main_model(seen)
    already = model is not None and (model.channels_last_share or 0.0) > 0.5
    yield Finding(
        id="channels-last",
        severity=policy.severity(share),
        claim="Images are converted between layouts around convolutions, though the weights have their channels last."
        if already
        else "Images are converted between layouts around convolutions. Other kernels round differently.",
        share=share,
        evidence=[
            *evidence_of(losses),
            *([] if model is None else [f"{model.channels_last_share or 0:.0%} of the weights are channels-last"]),
        ],
        where=place_of(losses, model),
        candidates=[] if already else [Setting("layout.channels_last", True)],
        remedy="Give the model channels-last inputs, and leave out what makes them contiguous again."
        if already
        else "Convert model and inputs by .to(memory_format=torch.channels_last).",
    )


@rule("program")
def sdpa_math(seen: Seen) -> Iterator[Finding]:
    """Attention runs by its plain formula.

    Sees: kernels inside `_scaled_dot_product_attention_math`: torch found no fused kernel for these inputs, or was
    told not to use one.

    Costs: at most the time of these kernels, and in training twice as much for their backward pass, which a trace
    does not tell apart from other work.

    Wrong when: sequences are so short that a fused kernel has nothing to gain.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("sdpa-math")
    forward = sum(loss.share for loss in losses)
    share = saved(seen, forward * (1 + policy.BACKWARD_OF_ATTENTION) if seen.is_training else forward)
    if share < policy.LEAST_SHARE:
        return
    switched_off = [name for name in ("flash", "mem_efficient", "cudnn") if known(seen, f"live.sdp_{name}") is False]
    yield Finding(
        id="sdpa-math",
        severity=policy.severity(share),
        claim="Attention runs by its plain formula, which writes all scores to memory, not by a fused kernel.",
        share=share,
        evidence=[*evidence_of(losses), *(f"{name} attention is switched off" for name in switched_off)],
        where=place_of(losses),
        remedy="Switch the fused kernels on again (torch.backends.cuda.enable_flash_sdp, enable_mem_efficient_sdp)."
        if switched_off
        else "Ask torch.backends.cuda.can_use_flash_attention(params, debug=True) why not: mostly the type, the mask "
        "or the size of a head.",
    )


@rule("program")
def manual_attention(seen: Seen) -> Iterator[Finding]:
    """Attention is written out by hand.

    Sees: softmax kernels that take a twentieth of the kernels' time or more beside batched products, or two of these
    for each softmax, where torch's own unfused attention did not run.

    Costs: at most four times the softmax: a fused kernel also spares scaling, masking, and writing and reading the
    scores. No more than the time of such kernels and of matrix products.

    Wrong when: the scores themselves are needed, or a softmax over a large vocabulary stands beside batched products.
    """
    softmax, most = _softmax_of_attention(seen)
    share = saved(seen, min(policy.UNFUSED_ATTENTION * softmax, most)) if softmax else 0.0
    if share < policy.LEAST_SHARE:
        return
    losses = seen.losses("manual-attention")
    yield Finding(
        id="manual-attention",
        severity=policy.severity(share),
        claim="Attention is written out as products and a softmax, which writes all scores to memory.",
        share=share,
        evidence=evidence_of(losses) or [f"softmax between batched products: {softmax:.0%} of a step"],
        where=place_of(losses, main_model(seen)),
        remedy="Call torch.nn.functional.scaled_dot_product_attention.",
    )


def _softmax_of_attention(seen: Seen) -> tuple[float, float]:
    """Shares of a step: the softmax between batched products, and the work that attention can be part of; or zeros."""
    batched = operators(seen, lambda name: name in ("aten::bmm", "aten::baddbmm"))
    softmax = operators(seen, lambda name: name in ("aten::_softmax", "aten::_softmax_backward_data"))
    if not batched or not softmax or sum(row.num for row in batched) < sum(row.num for row in softmax):
        return 0.0, 0.0
    of_torch = sum(row.num for row in operators(seen, "aten::_scaled_dot_product_attention_math".__eq__))
    if of_torch and of_torch >= sum(row.num for row in softmax if row.name == "aten::_softmax"):
        return 0.0, 0.0
    batched_forward, softmax_forward = (
        sum(called.num for row in rows for name, called in row.callers.items() if name != "backward")
        for rows in (batched, softmax)
    )
    if seen.uses_cuda:
        most = seen.kernel_share("matmul", "softmax", *_POINTWISE)
        # Two batched products for each softmax: attention, however little of the step it is.
        is_attention = batched_forward >= 2 * softmax_forward > 0
        return seen.lost("manual-attention") or (seen.kernel_share("softmax") if is_attention else 0.0), most
    share = operator_share(seen, lambda name: "softmax" in name and "log_softmax" not in name)
    at_least = policy.UNFUSED_ATTENTION * share >= policy.MEDIUM_SHARE
    return (share, seen.attribution.shares.device) if at_least else (0.0, 0.0)


@rule("program")
def gemm_misaligned(seen: Seen) -> Iterator[Finding]:
    """Matrix products have sizes that tensor cores cannot take whole.

    Sees: products of half types without tensor cores, or by kernels that load one or two elements at a time, as for
    sizes that are no multiples of 8 (of 4 in TF32). Convolutions are left to `cudnn-benchmark-off`.

    Costs: at most three quarters of the time of these products: aligned ones are up to four times as fast.

    Wrong when: the sizes are given by the data, and padding them costs more than it saves.
    """
    if not seen.uses_cuda:
        return
    losses = [loss for loss in seen.losses("gemm-misaligned") if not is_at(loss.where, "conv")]
    share = saved(seen, policy.MISALIGNED * sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="gemm-misaligned",
        severity=policy.severity(share),
        claim="Matrix products run by slow kernels because their sizes or addresses are not aligned.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        remedy="Pad sizes (vocabulary, hidden size, sequence length) to multiples of 8, better of 64.",
    )


@rule("program")
def conv_bn_unfused(seen: Seen) -> Iterator[Finding]:
    """Batch norm runs by itself at inference.

    Sees: a model with convolutions and batch norm that is evaluated, not compiled, without gradients, and the time
    of normalisation in it.

    Costs: that time: in evaluation batch norm is a scale and a shift that can go into the convolution's weights.

    Wrong when: the weights are still to be trained or saved, or the norm follows something else than a convolution.
    """
    model = main_model(seen)
    if model is None or seen.is_training or model.compiled or model.call is None or model.call.grad_enabled:
        return
    norms = model.num_modules.get("norm-batch", 0)
    if not norms or not model.num_modules.get("convolution") or model.training or model.num_training:
        return
    share = saved(
        seen,
        seen.kernel_share("normalisation")
        if seen.uses_cuda
        else operator_share(seen, lambda name: "batch_norm" in name),
    )
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="conv-bn-unfused",
        severity="low",  # nothing is wrong: it is left to be gained
        claim=f"{norms} batch norms run by themselves, though their convolutions could hold them.",
        share=share,
        evidence=[f"normalisation takes {share:.0%} of a step"],
        where=model.call.place,
        remedy="Fuse them (torch.nn.utils.fusion.fuse_conv_bn_eval; in Ultralytics model.fuse()), or compile.",
    )


@rule("program")
def device_copies(seen: Seen) -> Iterator[Finding]:
    """The device copies within its own memory.

    Sees: copies from the device to itself beside which nothing ran.

    Costs: their time, as far as the device sets the pace.

    Wrong when: the copy is what the program is about.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("device-copies")
    share = saved(seen, sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="device-copies",
        severity=policy.severity(share),
        claim="The device copies tensors within its memory and does nothing else meanwhile.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        remedy="Leave out clones, or write results where they are needed (out=, views, in-place operations).",
    )


@rule("program")
def d2h_not_overlapped(seen: Seen) -> Iterator[Finding]:
    """Copies to the host run while the device does nothing else.

    Sees: copies from the device to the host beside which nothing ran.

    Costs: their time, at most as much as the rest of the step has to hide them under.

    Wrong when: the results are needed before anything else can be done.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("d2h-not-overlapped")
    lost = sum(loss.share for loss in losses)
    share = min(lost, 1.0 - lost)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="d2h-not-overlapped",
        severity=policy.severity(share),
        claim=f"For {lost:.0%} of a step the device only sends results to the host.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        remedy="Send less (reduce or convert on the device first), or copy to pinned memory with non_blocking=True on "
        "a stream of its own, and wait for an event before reading.",
    )


@rule("program")
def queue_stalled(seen: Seen) -> Iterator[Finding]:
    """Queued work does not start.

    Sees: gaps of more than 100 µs in which the device had work queued and ran none.

    Costs: these gaps: work that waits for another stream, device or rank.

    Wrong when: work ran that was not recorded, as kernels of CUDA graphs.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("queue-stalled")
    share = sum(loss.share for loss in losses)
    if share < policy.LEAST_SHARE:
        return
    in_graphs = bool(seen.kernels.in_graphs)
    much = share >= policy.MUCH_WAITING_IN_QUEUE and not in_graphs
    yield Finding(
        id="queue-stalled",
        severity="medium" if much else "low",
        claim="Work is queued and does not start: it waits for another stream, device or rank.",
        share=share,
        evidence=[*evidence_of(losses), *(["part of the work is in CUDA graphs"] if in_graphs else [])],
        where=place_of(losses),
        remedy="Look in the trace for what the other streams wait for (events, wait_stream, host functions).",
    )
