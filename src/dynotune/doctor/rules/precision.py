"""Precision: types that cost more than they must, and such that make results wrong."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.bounds import capability, is_at, main_model, place_of, saved
from dynotune.doctor.observation_view import Missing, Seen, evidence_of
from dynotune.doctor.registry import rule
from dynotune.schema.diagnosis import Finding, Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import LostTime, Model
from dynotune.schema.setting import Setting

HALF = ("float16", "bfloat16")
RATES = {
    (8, 0): (1.0, 8.0, 16.0),
    (8, 6): (1.0, 2.0, 4.0),
    (8, 7): (1.0, 4.0, 8.0),
    (8, 9): (1.0, 2.0, 4.0),
    (9, 0): (1.0, 7.4, 14.8),
    (10, 0): (1.0, 15.0, 30.0),
    (10, 3): (1.0, 15.0, 30.0),
    (12, 0): (1.0, 2.0, 4.0),
}
"""By capability: float32, TF32 and half types, dense, in float32's rate, as NVIDIA's data sheets have them for the
fastest device of each (A100, A40, Orin, L40S, H100, B200, B300, RTX PRO 6000)."""
_PRODUCTS = (
    "matmul",
    "convolution",
    "recurrent",
    "attention-flash",
    "attention-memory-efficient",
    "attention-cudnn",
    "attention-math",
    "attention-other",
)
_POINTWISE = ("elementwise", "normalisation", "pooling", "softmax", "copy", "random", "inductor")


@rule("program", explains=["amp-absent"])
def fp32_matmul_no_tf32(seen: Seen) -> Iterator[Finding]:
    """Matrix products run in float32 without tensor cores.

    Sees: kernels of float32 products that use no tensor cores, on a device of capability 8.0 or later, while torch is
    not allowed to use TF32 for them, which is its default.

    Costs: their time, times one less the rate of float32 over that of TF32, as far as the device sets the pace. Where
    bfloat16 would spare more than that beyond it, that counts, and autocast is named too.

    Wrong when: ten bits of mantissa are too few. It changes results: errors of a product grow about a hundredfold.
    """
    if not seen.uses_cuda:
        return
    losses = _no_tf32(seen)
    lost = sum(loss.share for loss in losses)
    if lost < policy.LEAST_SHARE or seen.variable("NVIDIA_TF32_OVERRIDE") == "0":
        return
    if seen.text("live.matmul_fp32_precision") != "ieee":
        return
    float32, tf32, _ = rates(seen)
    beyond = _gain_of_half(seen)[0] if seen.models else 0.0
    share = max(saved(seen, lost * (1 - float32 / tf32)), beyond)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="fp32-matmul-no-tf32",
        severity=policy.severity(share),
        claim="Matrix products run in full float32, without tensor cores. TF32 changes results: it rounds to ten bits.",
        share=share,
        evidence=[*evidence_of(losses), seen.mentions("live.matmul_fp32_precision")],
        where=place_of(losses, main_model(seen)),
        candidates=[
            Setting("matmul.fp32_precision", "high"),
            *([Setting("precision.autocast", "bf16")] if beyond >= policy.LEAST_SHARE else []),
        ],
        remedy='Call torch.set_float32_matmul_precision("high"), and check the loss.',
    )


@rule("program")
def amp_absent(seen: Seen) -> Iterator[Finding]:
    """Products and convolutions run in float32.

    Sees: a model in float32 that is called outside of autocast, on a device of capability 8.0 or later, and time in
    matrix products, convolutions and attention.

    Costs: their time, times one less the rate of their type over that of bfloat16. Of float32 products that could use
    TF32 only what bfloat16 gives beyond it. Where that is not so, half of the pointwise kernels' time too, which read
    and write half as much. All as far as the device sets the pace.

    Wrong when: bfloat16 is not exact enough. It changes results; compare the loss. Models that wait for launches get
    slower, since casts are launches too.
    """
    share, evidence = _gain_of_half(seen)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="amp-absent",
        severity=policy.severity(share),
        claim="Products and convolutions run in float32. Autocast to bfloat16 changes results: it rounds to 8 bits.",
        share=share,
        evidence=evidence,
        where=place_of(seen.losses("amp-absent"), main_model(seen)),
        candidates=[Setting("precision.autocast", "bf16")],
        remedy='Call the model and the loss inside torch.autocast("cuda", dtype=torch.bfloat16), and check the loss.',
    )


@rule("program", explains=["amp-absent"])
def inference_fp32_weights(seen: Seen) -> Iterator[Finding]:
    """A model serves with weights in float32.

    Sees: a program without gradients whose model holds float32: it computes in float32, or autocast converts the
    weights at each call.

    Costs: what bfloat16 would save of products and pointwise kernels, see `amp-absent`; under autocast, the
    conversions.

    Wrong when: bfloat16 is not exact enough. It changes results; compare the outputs.
    """
    model = main_model(seen)
    if not seen.uses_cuda or seen.is_training or model is None or model.call is None or model.call.grad_enabled:
        return
    if not _is_float32(model):
        return
    autocast = model.call.autocast is not None
    if autocast:
        share, evidence = saved(seen, seen.lost("casts")), evidence_of(seen.losses("casts"))
    else:
        share, evidence = _gain_of_half(seen)
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="inference-fp32-weights",
        severity=policy.severity(share),
        claim="Autocast converts the model's float32 weights at each call."
        if autocast
        else "The model serves in float32. Half types change results in their last digits.",
        share=share,
        evidence=[f"{model.parameter_bytes / 1e6:,.0f} MB of weights in float32", *evidence],
        where=model.call.place,
        candidates=[] if autocast else [Setting("precision.autocast", "bf16")],
        remedy="Convert the model once (model.to(torch.bfloat16) or model.half()), and compare its outputs.",
    )


@rule("program")
def amp_fp16_no_scaler(seen: Seen) -> Iterator[Finding]:
    """Training in float16 without scaling the loss.

    Sees: autocast to float16 in a program whose optimizer is not stepped by a GradScaler.

    Costs: right results: gradients smaller than 6e-8 become zero, and weights stop learning.

    Wrong when: the program scales its loss by means of its own.
    """
    if not seen.is_training:
        return
    if "float16" not in _autocast_types(seen) or seen.truth("live.grad_scaler"):
        return
    yield Finding(
        id="amp-fp16-no-scaler",
        severity="high",
        kind="correctness",
        claim="The model trains under float16 autocast without a GradScaler: small gradients become zero.",
        share=Unknown("it costs right results, not time"),
        evidence=["autocast: float16", seen.mentions("live.grad_scaler")],
        where=place_of([], main_model(seen)),
        remedy='Step the optimizer through torch.amp.GradScaler("cuda"), or use bfloat16, which needs none.',
    )


@rule("program")
def scaler_with_bf16(seen: Seen) -> Iterator[Finding]:
    """A GradScaler scales gradients of bfloat16, which need it not.

    Sees: autocast to bfloat16 alone, and an optimizer that a GradScaler steps.

    Costs: its kernels over all gradients, which run with the optimizer's, and its wait for the device before each
    step: at most half of the former and the synchronisations' idle time.

    Wrong when: other parts of the model run in float16.
    """
    if not seen.is_training or not seen.truth("live.grad_scaler") or _autocast_types(seen) != {"bfloat16"}:
        return
    share: float | Unknown = Unknown("the device's work was not recorded")
    severity: Severity = "low"
    if seen.uses_cuda:
        waits = sum(loss.share for loss in seen.losses("sync-per-step") if is_at(loss.where, "item", "optimizer"))
        share = min(1.0, saved(seen, 0.5 * seen.kernel_share("optimizer")) + waits)
        severity = policy.severity(share)
    yield Finding(
        id="scaler-with-bf16",
        severity=severity,
        claim="A GradScaler scales the loss of a model that computes in bfloat16, which has float32's range.",
        share=share,
        evidence=["autocast: bfloat16", seen.mentions("live.grad_scaler")],
        where=seen.optimizers[0].place,
        remedy="Leave the GradScaler out.",
    )


@rule("program")
def model_half_under_autocast(seen: Seen) -> Iterator[Finding]:
    """A model that is in a half type already runs under autocast.

    Sees: most parameters are float16 or bfloat16, and the model is called in an autocast region.

    Costs: in training right results: updates smaller than a half type's last digit are lost, which autocast avoids by
    keeping float32 weights. At inference the conversions between types.

    Wrong when: the optimizer keeps float32 copies of its own.
    """
    model = main_model(seen)
    if model is None or model.call is None or model.call.autocast is None:
        return
    in_half = sum(num for dtype, num in model.dtypes.items() if _plain(dtype) in HALF)
    if 2 * in_half <= model.num_parameters:
        return
    evidence = [f"parameters: {', '.join(model.dtypes)}", f"autocast: {model.call.autocast}"]
    if seen.is_training:
        yield Finding(
            id="model-half-under-autocast",
            severity="medium",
            kind="correctness",
            claim="The weights themselves are in a half type, so autocast has no float32 weights to keep updates in.",
            share=Unknown("it costs right results, not time"),
            evidence=evidence,
            where=model.call.place,
            remedy="Leave out .half() or .to(bfloat16): autocast converts what it needs.",
        )
        return
    share = saved(seen, seen.lost("casts")) if seen.uses_cuda else 0.0
    yield Finding(
        id="model-half-under-autocast",
        severity="low",
        claim="The model is in a half type and runs under autocast, which only converts back and forth.",
        share=share,
        evidence=evidence,
        where=model.call.place,
        remedy="Leave out autocast.",
    )


@rule("program")
def casts(seen: Seen) -> Iterator[Finding]:
    """Tensors are converted between types.

    Sees: kernels that do nothing but convert.

    Costs: their time, as far as the device sets the pace. Autocast itself converts the weights in each step, which is
    its price, and more than a tenth of a step where batches are small: under autocast that alone is no fault.

    Wrong when: the conversions are needed, as at the edge of an operator that wants another type.
    """
    if not seen.uses_cuda:
        return
    losses = seen.losses("casts")
    share = saved(seen, sum(loss.share for loss in losses))
    if share < policy.LEAST_SHARE:
        return
    yield Finding(
        id="casts",
        severity="medium" if share >= policy.MUCH_CASTING and not seen.words("live.autocast_dtypes") else "low",
        claim=f"Conversions between types take {share:.0%} of a step.",
        share=share,
        evidence=evidence_of(losses),
        where=place_of(losses),
        remedy="Keep tensors in one type from where they are made; torch.compile fuses conversions with what follows.",
    )


# What the rules share


def rates(seen: Seen) -> tuple[float, float, float]:
    """Of float32, TF32 and half types on this device. One that is not known is taken for the one with most to gain."""
    return RATES.get(capability(seen), max(RATES.values()))


def _no_tf32(seen: Seen) -> list[LostTime]:
    """Float32 products without tensor cores, those of attention by its plain formula left to that finding."""
    return [loss for loss in seen.losses("fp32-matmul-no-tf32") if not is_at(loss.where, "scaled_dot_product")]


def _gain_of_half(seen: Seen) -> tuple[float, list[str]]:
    """Of a plain step, what bfloat16 in place of float32 saves at most, with evidence; 0 where it is not in float32."""
    model = main_model(seen)
    if not seen.uses_cuda:
        return 0.0, []
    if model is None:
        raise Missing("the model's types", "no module was called")
    if not _is_float32(model) or _autocast_types(seen) or capability(seen) < (8, 0):
        return 0.0, []
    float32, tf32, half = rates(seen)
    slow = sum(loss.share for loss in _no_tf32(seen))
    without = seen.lost("amp-absent")
    products = seen.kernel_share(*_PRODUCTS)
    gain = without * (1 - float32 / half) + max(0.0, products - slow - without) * (1 - tf32 / half)
    tf32_first = slow >= policy.LEAST_SHARE and seen.process.live.get("live.matmul_fp32_precision") == "ieee"
    gain += slow * ((float32 / tf32 if tf32_first else 1.0) - float32 / half)
    if not tf32_first and products >= policy.LEAST_SHARE:
        gain += 0.5 * seen.kernel_share(*_POINTWISE)
    evidence = [
        f"products, convolutions and attention take {products:.0%} of a step",
        *(["without counting what TF32 alone gives"] if tf32_first else []),
        f"parameters: {', '.join(model.dtypes)}, no autocast",
        *evidence_of(seen.losses("amp-absent")),
    ]
    return saved(seen, gain), evidence


def _is_float32(model: Model) -> bool:
    num = sum(num for dtype, num in model.dtypes.items() if _plain(dtype) == "float32")
    return 2 * num > model.num_parameters


def _autocast_types(seen: Seen) -> set[str]:
    """Types of autocast regions around outermost modules, `float16`."""
    told = {model.call.autocast for model in seen.models if model.call is not None and model.call.autocast}
    value = seen.process.live.get("live.autocast_dtypes")
    if isinstance(value, list):
        told |= {str(dtype) for dtype in value}
    elif not seen.models:
        raise Missing("live.autocast_dtypes", getattr(value, "reason", "it was not asked for"))
    return {_plain(dtype) for dtype in told}


def _plain(dtype: str) -> str:
    return dtype.removeprefix("torch.")
