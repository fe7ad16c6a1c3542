"""Precision: types that cost needless time, and types that make results wrong."""

from dynotune.doctor import policy
from dynotune.doctor.bounds import capability, is_at, main_model, place_of, saving
from dynotune.doctor.declaration import Judgement, Judgements, cuda_rule, rule
from dynotune.doctor.float32_products import is_ieee, rates, saved_by_tf32, without_tf32
from dynotune.doctor.observation_view import Missing, ObservationView, evidence_of
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import PRODUCTS

HALF = ("float16", "bfloat16")
_POINTWISE = ("elementwise", "normalisation", "pooling", "softmax", "copy", "random", "inductor")


@cuda_rule(family="precision")
def fp32_matmul_no_tf32(view: ObservationView) -> Judgements:
    losses = without_tf32(view)
    lost = sum(loss.share for loss in losses)
    if lost < policy.LEAST_SHARE or not saved_by_tf32(view):
        return
    if view.text("live.matmul_fp32_precision") != "ieee":
        return
    beyond = _gain_of_half(view)[0] if view.models else 0.0
    share = max(saving(view, saved_by_tf32(view)), beyond)
    yield Judgement(
        share=share,
        losses=losses,
        evidence=[view.mentions("live.matmul_fp32_precision")],
        model=main_model(view),
        candidates=[
            Setting("matmul.fp32_precision", "high"),
            *([Setting("precision.autocast", "bf16")] if beyond >= policy.LEAST_SHARE else []),
        ],
    )


@rule(family="precision")
def amp_absent(view: ObservationView) -> Judgements:
    share, evidence = _gain_of_half(view)
    yield Judgement(
        share=share, evidence=evidence, where=place_of(view.losses("amp-absent"), main_model(view))
    )


@rule(family="precision")
def inference_fp32_weights(view: ObservationView) -> Judgements:
    model = main_model(view)
    if (
        not view.uses_cuda
        or view.is_training
        or model is None
        or model.call is None
        or model.call.grad_enabled
    ):
        return
    if not _is_float32(model):
        return
    autocast = model.call.autocast is not None
    if autocast:
        share, evidence = saving(view, view.lost("casts")), evidence_of(view.losses("casts"))
    else:
        share, evidence = _gain_of_half(view)
    yield Judgement(
        claim="Autocast converts the model's float32 weights at each call."
        if autocast
        else "The model serves in float32. Half types change results in their last digits.",
        share=share,
        evidence=[f"{model.parameter_bytes / 1e6:,.0f} MB of weights in float32", *evidence],
        where=model.call.place,
        candidates=[] if autocast else [Setting("precision.autocast", "bf16")],
    )


@rule(family="precision")
def amp_fp16_no_scaler(view: ObservationView) -> Judgements:
    if not view.is_training:
        return
    if "float16" not in _autocast_types(view) or view.truth("live.grad_scaler"):
        return
    yield Judgement(
        severity="high",
        evidence=["autocast: float16", view.mentions("live.grad_scaler")],
        model=main_model(view),
    )


@rule(family="precision")
def scaler_with_bf16(view: ObservationView) -> Judgements:
    if not view.is_training or not view.truth("live.grad_scaler") or _autocast_types(view) != {"bfloat16"}:
        return
    share: float | Unknown = Unknown("the device's work was not recorded")
    severity: Severity = "low"
    if view.uses_cuda:
        waits = sum(
            loss.share for loss in view.losses("sync-per-step") if is_at(loss.where, "item", "optimizer")
        )
        share = min(1.0, saving(view, 0.5 * view.kernel_share("optimizer")) + waits)
        severity = policy.severity(share)
    yield Judgement(
        severity=severity,
        share=share,
        evidence=["autocast: bfloat16", view.mentions("live.grad_scaler")],
        where=view.optimizers[0].place,
    )


@rule(family="precision")
def model_half_under_autocast(view: ObservationView) -> Judgements:
    model = main_model(view)
    if model is None or model.call is None or model.call.autocast is None:
        return
    in_half = sum(num for dtype, num in model.dtypes.items() if _plain(dtype) in HALF)
    if 2 * in_half <= model.num_parameters:
        return
    trains = view.is_training
    yield Judgement(
        severity="medium" if trains else "low",
        kind="correctness" if trains else "speed",
        claim="The weights are in a half type, so autocast has no float32 weights to update."
        if trains
        else "The model is in a half type and runs under autocast, which only converts back and forth.",
        share=None if trains else saving(view, view.lost("casts")) if view.uses_cuda else 0.0,
        evidence=[f"parameters: {', '.join(model.dtypes)}", f"autocast: {model.call.autocast}"],
        model=model,
        remedy="Remove .half() or .to(bfloat16): autocast converts tensors where it needs to."
        if trains
        else "Remove autocast.",
    )


@cuda_rule(family="precision")
def casts(view: ObservationView) -> Judgements:
    losses = view.losses("casts")
    share = saving(view, sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE:
        return
    yield Judgement(
        severity="medium"
        if share >= policy.MUCH_CASTING and not view.words("live.autocast_dtypes")
        else "low",
        claim=f"Conversions between types take {share:.0%} of a step.",
        share=share,
        losses=losses,
    )


def _gain_of_half(view: ObservationView) -> tuple[float, list[str]]:
    """Return the most that bfloat16 saves of an unrecorded step in float32, with evidence; 0 if the step uses
    other types."""
    model = main_model(view)
    if not view.uses_cuda:
        return 0.0, []
    if model is None:
        raise Missing("the model's types", "no module was called")
    if not _is_float32(model) or _autocast_types(view) or capability(view) < (8, 0):
        return 0.0, []
    float32, tf32, half = rates(view)
    slow = sum(loss.share for loss in without_tf32(view))
    without = view.lost("amp-absent")
    products = view.kernel_share(*PRODUCTS)
    gain = without * (1 - float32 / half) + max(0.0, products - slow - without) * (1 - tf32 / half)
    tf32_first = slow >= policy.LEAST_SHARE and is_ieee(view)
    gain += slow * ((float32 / tf32 if tf32_first else 1.0) - float32 / half)
    # Kernels between products run in the products' type, but the more such kernels, the smaller the part that
    # does.
    between = (
        0.0 if tf32_first or products < policy.LEAST_SHARE else min(products, view.kernel_share(*_POINTWISE))
    )
    gain += between / 2
    evidence = [
        f"products, convolutions and attention take {products:.0%} of a step",
        *([f"other pointwise kernels: {between:.0%}, of which half types save half"] if between else []),
        *(["without the gain of TF32 alone"] if tf32_first else []),
        f"parameters: {', '.join(model.dtypes)}, no autocast",
        *evidence_of(view.losses("amp-absent")),
    ]
    return saving(view, gain), evidence


def _is_float32(model: Model) -> bool:
    num = sum(num for dtype, num in model.dtypes.items() if _plain(dtype) == "float32")
    return 2 * num > model.num_parameters


def _autocast_types(view: ObservationView) -> set[str]:
    """Return the types of autocast regions around outermost modules, such as `float16`."""
    dtypes = {model.call.autocast for model in view.models if model.call is not None and model.call.autocast}
    value = view.process.live.get("live.autocast_dtypes")
    if isinstance(value, list):
        dtypes |= {str(dtype) for dtype in value}
    elif not view.models:
        raise Missing("live.autocast_dtypes", getattr(value, "reason", "it was not asked for"))
    return {_plain(dtype) for dtype in dtypes}


def _plain(dtype: str) -> str:
    return dtype.removeprefix("torch.")
