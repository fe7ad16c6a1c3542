"""Kernels: attention, layouts and sizes that give a busy device needless work."""

from dynotune.doctor import policy
from dynotune.doctor.bounds import is_at, main_model, operator_share, operators, place_of, saving
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.observation_view import ObservationView, evidence_of
from dynotune.schema.model import Model
from dynotune.schema.setting import Setting

_OF_TORCH = ("aten::_scaled_dot_product_attention_math", "aten::_native_multi_head_attention")
_POINTWISE = ("elementwise", "cast", "random", "copy")


@cuda_rule(family="kernels")
def channels_last(view: ObservationView) -> Judgements:
    losses = view.losses("channels-last")
    share = saving(view, sum(loss.share for loss in losses))
    if view.models and all(model.channels_last_share is None for model in view.models):
        return  # convolutions of one or three dimensions have no such layout
    model = main_model(view)
    already = model is not None and (model.channels_last_share or 0.0) > 0.5
    if already and model is not None and _inputs_are_channels_last(model):
        # The remaining conversions pad channels, as of images with three channels, which no setting avoids.
        return
    yield Judgement(
        claim=(
            "Images are converted between layouts around convolutions, although the weights are "
            "channels-last."
        )
        if already
        else "Images are converted between layouts around convolutions. A change of layout uses other "
        "kernels, which "
        "round differently.",
        share=share,
        losses=losses,
        evidence=[]
        if model is None
        else [f"{model.channels_last_share or 0:.0%} of the weights are channels-last"],
        model=model,
        candidates=[] if already else [Setting("layout.channels_last", True)],
        remedy="Give the model channels-last inputs, and remove calls that make them contiguous again."
        if already
        else "Convert model and inputs with .to(memory_format=torch.channels_last).",
    )


def _inputs_are_channels_last(model: Model) -> bool:
    images = [
        tensor for tensor in (model.call.inputs if model.call is not None else []) if len(tensor.shape) == 4
    ]
    return bool(images) and all(tensor.channels_last for tensor in images)


@cuda_rule(family="kernels")
def sdpa_math(view: ObservationView) -> Judgements:
    losses = view.losses("sdpa-math")
    forward = sum(loss.share for loss in losses)
    share = saving(view, forward * (1 + policy.BACKWARD_OF_ATTENTION) if view.is_training else forward)
    switched_off = [
        name for name in ("flash", "mem_efficient", "cudnn") if view.fact_or_none(f"live.sdp_{name}") is False
    ]
    yield Judgement(
        share=share,
        losses=losses,
        evidence=[*(f"{name} attention is switched off" for name in switched_off)],
        remedy=(
            "Switch the fused kernels on again (torch.backends.cuda.enable_flash_sdp, "
            "enable_mem_efficient_sdp)."
        )
        if switched_off
        else "Call torch.backends.cuda.can_use_flash_attention(params, debug=True) for the reason: mostly "
        "the type, "
        "the mask or the size of a head.",
    )


@rule(family="kernels")
def manual_attention(view: ObservationView) -> Judgements:
    softmax, most = _softmax_of_attention(view)
    softmax *= _replaceable(view)
    share = saving(view, min(policy.UNFUSED_ATTENTION * softmax, most)) if softmax else 0.0
    losses = view.losses("manual-attention")
    yield Judgement(
        share=share,
        evidence=evidence_of(losses) or [f"softmax between batched products: {softmax:.0%} of a step"],
        where=place_of(losses, main_model(view)),
    )


def _replaceable(view: ObservationView) -> float:
    """Return the share of the softmax operators whose attention a fused kernel can compute.

    Such a kernel multiplies, scales and masks, and gives nobody the weights. On a CPU it has no dropout.
    """
    written = view.trace.attention
    if written is None or not written.num_softmax:
        return 1.0
    num = written.num_whole - (0 if view.uses_cuda else written.num_dropped)
    return num / written.num_softmax


def _softmax_of_attention(view: ObservationView) -> tuple[float, float]:
    """Return two shares of a step: softmax between batched products, and all work that may be attention; else
    zeros."""
    batched = operators(view, lambda name: name in ("aten::bmm", "aten::baddbmm"))
    softmax = operators(view, lambda name: name in ("aten::_softmax", "aten::_softmax_backward_data"))
    if not batched or not softmax or sum(row.num for row in batched) < sum(row.num for row in softmax):
        return 0.0, 0.0
    of_torch = sum(row.num for row in operators(view, _OF_TORCH.__contains__))
    if of_torch and of_torch >= sum(row.num for row in softmax if row.name == "aten::_softmax"):
        return 0.0, 0.0
    batched_forward, softmax_forward = (
        sum(called.num for row in rows for name, called in row.callers.items() if name != "backward")
        for rows in (batched, softmax)
    )
    if view.uses_cuda:
        most = view.kernel_share("matmul", "softmax", *_POINTWISE)
        # Two batched products for each softmax are attention, even if it is a small part of the step.
        is_attention = batched_forward >= 2 * softmax_forward > 0
        return view.lost("manual-attention") or (view.kernel_share("softmax") if is_attention else 0.0), most
    share = operator_share(view, lambda name: "softmax" in name and "log_softmax" not in name)
    at_least = policy.UNFUSED_ATTENTION * share >= policy.MEDIUM_SHARE
    return (share, view.attribution.shares.device) if at_least else (0.0, 0.0)


@cuda_rule(family="kernels")
def gemm_misaligned(view: ObservationView) -> Judgements:
    losses = [loss for loss in view.losses("gemm-misaligned") if not is_at(loss.where, "conv")]
    share = saving(view, policy.MISALIGNED * sum(loss.share for loss in losses))
    yield Judgement(share=share, losses=losses)


@rule(family="kernels")
def conv_bn_unfused(view: ObservationView) -> Judgements:
    model = main_model(view)
    if model is None or view.is_training or model.compiled or model.call is None or model.call.grad_enabled:
        return
    norms = model.num_modules.get("norm-batch", 0)
    if not norms or not model.num_modules.get("convolution") or model.training or model.num_training:
        return
    share = saving(
        view,
        view.kernel_share("normalisation")
        if view.uses_cuda
        else operator_share(view, lambda name: "batch_norm" in name),
    )
    if share < policy.LEAST_SHARE:
        return
    yield Judgement(
        severity="low",  # nothing is wrong; fusing is an opportunity
        claim=f"{norms} batch norms run separately, although their convolutions could include them.",
        share=share,
        evidence=[f"normalisation takes {share:.0%} of a step"],
        where=model.call.place,
    )


@cuda_rule(family="kernels")
def device_copies(view: ObservationView) -> Judgements:
    losses = view.losses("device-copies")
    share = saving(view, sum(loss.share for loss in losses))
    yield Judgement(share=share, losses=losses)


@cuda_rule(family="kernels")
def d2h_not_overlapped(view: ObservationView) -> Judgements:
    losses = view.losses("d2h-not-overlapped")
    lost = sum(loss.share for loss in losses)
    share = min(lost, 1.0 - lost)
    yield Judgement(
        claim=f"The device only sends results to the host for {lost:.0%} of a step.",
        share=share,
        losses=losses,
    )


@cuda_rule(family="kernels")
def queue_stalled(view: ObservationView) -> Judgements:
    losses = view.losses("queue-stalled")
    share = sum(loss.share for loss in losses)
    if share < policy.LEAST_SHARE:
        return
    in_graphs = bool(view.kernels.in_graphs)
    much = share >= policy.MUCH_WAITING_IN_QUEUE and not in_graphs
    yield Judgement(
        severity="medium" if much else "low",
        share=share,
        losses=losses,
        evidence=[*(["part of the work is in CUDA graphs"] if in_graphs else [])],
    )
