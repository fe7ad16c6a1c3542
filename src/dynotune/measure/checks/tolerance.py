"""By how much a setting of effect `numerics` may round, and what may differ for that where there is no reference.

Rounding differs, so results do; these say from where on it is no longer rounding. What is broken (a wrong kernel, a
layout that the program does not stand, gradients that underflow) differs by tens of per cent, or is no number at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dynotune import knobs
from dynotune.schema.knob import Effect
from dynotune.schema.setting import Setting

GUARDED: tuple[Effect, ...] = ("exact", "numerics")
"""Settings that take part in guarded runs. Others change what is computed on purpose: `sampling` draws other random
numbers, so losses differ step by step though nothing is wrong; `semantics` is asked for by name, and named."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Relative differences that are allowed.

    Args:
        first: of each of the first losses, before they could drift apart.
        later: of the mean over a stretch of later ones.
        outputs: of an output's elements, moments included, by the tensor's root mean square.
        rounding: of one number.
        redraws: its kernels may draw other random numbers from the same seed.
        why: in words, after "allowed for".
    """

    first: float
    later: float
    outputs: float
    rounding: float
    why: str
    redraws: bool = False


# 23 bits of mantissa, sums in another order: 1e-6 of a product, 1e-4 after a deep network with batch normalisation.
# Training amplifies what there is from step to step, so that later losses need room in any case.
ORDER = Tolerance(first=0.002, later=0.02, outputs=0.005, rounding=1e-6, why="sums in another order")
# 10 bits of mantissa, in products alone: 5e-4 each, some 1e-3 at the output of a deep network.
TF32 = Tolerance(first=0.005, later=0.03, outputs=0.02, rounding=2**-12, why="products with 10 bits of mantissa")
# 10 bits, stored so between operations, and gradients that may underflow.
FP16 = Tolerance(
    first=0.01, later=0.05, outputs=0.03, rounding=2**-12, why="16-bit floating point with 10 bits of mantissa"
)
# 7 bits: 4e-3 each, 1 to 3% of an output after some tens of layers.
BF16 = Tolerance(first=0.02, later=0.05, outputs=0.08, rounding=2**-9, why="bfloat16 with 7 bits of mantissa")
# Steps of a 127th of a row's largest number, which is some four times its root mean square.
INT8 = Tolerance(first=0.02, later=0.05, outputs=0.15, rounding=2**-7, why="8-bit whole numbers")
# 3 bits: up to 6e-2 each.
FP8 = Tolerance(first=0.05, later=0.1, outputs=0.3, rounding=2**-5, why="8-bit floating point with 3 bits of mantissa")

# A value of None stands for all others of the knob.
BY_SETTING: dict[tuple[str, object], tuple[Tolerance, bool]] = {
    ("matmul.fp32_precision", "high"): (TF32, False),
    ("matmul.fp32_precision", "medium"): (BF16, False),
    ("matmul.fp32_precision", "highest"): (ORDER, False),
    # Kernels that draw (dropout) do it by the number of elements that they handle at a time.
    ("precision.autocast", "bf16"): (BF16, True),
    ("precision.autocast", "fp16"): (FP16, True),
    ("precision.autocast", "off"): (ORDER, True),
    ("precision.quantize", "int8"): (INT8, False),
    ("precision.quantize", "int8-weights"): (INT8, False),
    ("precision.quantize", None): (FP8, False),
    ("precision.quantize_keep", None): (ORDER, False),
    # The order of elements in memory is the order of draws.
    ("layout.channels_last", None): (ORDER, True),
    # The compiler draws by a generator of its own.
    ("compile.mode", None): (ORDER, True),
    # Winograd's and Fourier's algorithms round more than a direct convolution does.
    ("cudnn.benchmark", None): (TF32, False),
    ("cudnn.deterministic", None): (TF32, False),
    ("determinism.algorithms", None): (ORDER, False),
    ("optimizer.fused", None): (ORDER, False),
    ("ddp.bucket_cap_mb", None): (ORDER, False),
    ("ddp.comm_hook", "none"): (ORDER, False),
    ("ddp.comm_hook", "bf16"): (BF16, False),
    ("ddp.comm_hook", "fp16"): (FP16, False),
    # Decoders differ by one or two of 255 in a pixel.
    ("decode.backend", None): (BF16, False),
    ("host.num_threads", None): (ORDER, True),
    ("loader.worker_threads", None): (ORDER, True),
}

# What is rounded in another order is rounded to what the program computes in.
BY_PRECISION = {"bfloat16": BF16, "float16": FP16, "tf32": TF32}


def guarded(settings: Iterable[Setting]) -> list[Setting]:
    """Of an arm, the settings that take part in its guarded run; none where nothing in it needs one."""
    chosen = [setting for setting in settings if knobs.get(setting.knob).effect in GUARDED]
    return chosen if any(knobs.get(setting.knob).effect == "numerics" for setting in chosen) else []


def allowed(settings: Iterable[Setting], precision: str) -> Tolerance:
    """Of these settings together, for a program that computes in `precision`: the widest of each.

    `precision`: of the baseline, as the agent saw it; "" where it could not be seen.
    """
    rows = [
        BY_SETTING.get((one.knob, one.value)) or BY_SETTING.get((one.knob, None)) or (ORDER, False)
        for one in settings
        if knobs.get(one.knob).effect == "numerics"
    ]
    found = [tolerance for tolerance, _ in rows] or [ORDER]
    if precision in BY_PRECISION:
        found.append(BY_PRECISION[precision])
    widest = max(found, key=lambda tolerance: tolerance.outputs)
    return Tolerance(
        first=max(tolerance.first for tolerance in found),
        later=max(tolerance.later for tolerance in found),
        outputs=widest.outputs,
        rounding=widest.rounding,
        redraws=any(redraws for _, redraws in rows),
        why=widest.why,
    )


def rounding(settings: Sequence[Setting]) -> float:
    """Share by which an arm may round a number, in a program that computes in float32; 0 where nothing is guarded."""
    chosen = guarded(settings)
    return allowed(chosen, "").rounding if chosen else 0.0
