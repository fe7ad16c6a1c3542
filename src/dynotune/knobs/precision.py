"""What may be given up in rounding for speed."""

from __future__ import annotations

from dynotune.knobs.conditions import compute_capability_from
from dynotune.schema.knob import Call, Knob, Module

QUANTIZED = ("int8", "int8-weights", "fp8", "fp8-weights")

KNOBS = (
    Knob(
        id="matmul.fp32_precision",
        # The older call: once the newer attribute has been used, getters in the user's own code raise.
        site=Call(set="torch.set_float32_matmul_precision", get="torch.get_float32_matmul_precision"),
        type="str",
        values=("highest", "high", "medium"),
        default="highest",
        when="any",
        effect="numerics",
        needs=("gpu.compute_capability",),
        applies=compute_capability_from(8, 0),
        unless="TF32 needs a GPU of compute capability 8.0 (Ampere) or newer",
        doc="Arithmetic inside float32 matrix products: `high` allows TF32 with 10 bits of mantissa (float32 has 23), "
        "`medium` bfloat16 where there is a kernel for it. Convolutions are not meant: cuDNN uses TF32 for them "
        "already.",
        hurts="Errors of a product grow about a hundredfold. Does nothing where products are in half precision "
        "already.",
        source="https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html",
    ),
    Knob(
        id="precision.autocast",
        site=Module("autocast"),
        type="str",
        values=("off", "bf16", "fp16"),
        default="off, unless the program uses torch.autocast",
        when="any",
        effect="numerics",
        doc="Runs the outermost module under torch.autocast: matrix products and convolutions in half precision, the "
        "rest in float32, the outputs back in float32. `off` switches the program's own autocast off around that "
        "module; with the other values a program inside its own autocast keeps it.",
        hurts="Small models that wait for kernel launches get slower: the casts are launches too. fp16 in training is "
        "refused unless the program has a GradScaler, since small gradients would become zero. On GPUs before compute "
        "capability 8.0 bf16 has no fast kernels.",
        source="https://docs.pytorch.org/docs/stable/amp.html",
    ),
    Knob(
        id="precision.quantize",
        site=Module("quantize"),
        type="str",
        values=QUANTIZED,
        default="off, unless the program quantizes",
        when="any",
        effect="numerics",
        packages=dict.fromkeys(QUANTIZED, ("torchao",)),
        doc="Holds the weights of the outermost module's `nn.Linear` in 8 bits, by torchao: as whole numbers (`int8`) "
        "or floating point (`fp8`). Inputs are rounded to 8 bits at each call; with `-weights` products are made in "
        "the type of the inputs. For inference alone: what trains keeps its weights.",
        hurts="Without a compiler the roundings are launches of their own, and small layers get slower. `fp8` needs a "
        "GPU of compute capability 8.9 or newer. Convolutions stay as they are.",
        source="https://docs.pytorch.org/ao/stable/api_reference/api_ref_quantization.html",
    ),
    Knob(
        id="precision.quantize_keep",
        site=Module("quantize"),
        type="str",
        default="none",
        when="any",
        effect="numerics",
        doc="Names of modules, with commas between them, whose layers `precision.quantize` leaves as they are.",
        source="https://docs.pytorch.org/ao/stable/api_reference/generated/torchao.quantization.quantize_.html",
    ),
)
