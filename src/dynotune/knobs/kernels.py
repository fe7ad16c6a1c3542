"""Which kernels are chosen, and how tensors lie in memory."""

from __future__ import annotations

from dynotune.knobs.conditions import ON_GPU
from dynotune.schema.knob import Attr, Call, Knob, Module

_RANDOMNESS = "https://docs.pytorch.org/docs/stable/notes/randomness.html"

KNOBS = (
    Knob(
        id="cudnn.benchmark",
        site=Attr("torch.backends.cudnn.benchmark"),
        type="bool",
        default="false",
        when="any",
        effect="numerics",
        **ON_GPU,
        doc="Lets cuDNN time several algorithms for each new convolution shape and keep the fastest.",
        hurts="Every new shape is timed anew, so inputs of many sizes get slower. The choice may differ from run to "
        "run, and the results with it in their last digits; the algorithms may take more memory.",
        # cuDNN keeps a plan under its shape, type and layout, not under how it was found: Conv_v8.cpp.
        not_switched="cuDNN keeps the plan that it chose for a shape, by whichever way, and looks there first",
        source=_RANDOMNESS + "#cuda-convolution-benchmarking",
    ),
    Knob(
        id="cudnn.deterministic",
        site=Attr("torch.backends.cudnn.deterministic"),
        type="bool",
        default="false",
        when="any",
        effect="numerics",
        **ON_GPU,
        doc="Keeps cuDNN to convolution algorithms that give the same result every time.",
        hurts="Set to true, faster algorithms are passed over. Set to false, runs are no longer repeatable bit by bit.",
        source=_RANDOMNESS + "#cuda-convolution-determinism",
    ),
    Knob(
        id="determinism.algorithms",
        site=Call(set="torch.use_deterministic_algorithms", get="torch.are_deterministic_algorithms_enabled"),
        type="bool",
        default="false",
        when="any",
        effect="numerics",
        doc="Makes torch use deterministic algorithms everywhere, and raise where there are none. It also fills "
        "uninitialised memory, one more kernel for each empty tensor.",
        hurts="Set to true, operations without such an algorithm raise, and cuBLAS wants CUBLAS_WORKSPACE_CONFIG set, "
        "which costs host time at each product before torch 2.13. Set to false, runs are no longer repeatable.",
        not_switched="an operation without a deterministic algorithm would end the program",
        source=_RANDOMNESS + "#avoiding-nondeterministic-algorithms",
    ),
    Knob(
        id="layout.channels_last",
        site=Module("channels_last"),
        type="bool",
        default="false",
        when="construct",
        effect="numerics",
        doc="Stores images and convolution weights with their channels last (NHWC), as tensor cores want them: the "
        "outermost module's 4-D weights once, its 4-D inputs at each call. Shapes stay as they are.",
        hurts="Operations without a channels-last kernel convert there and back. In float32 there is little to gain; "
        "code that calls view() on activations may raise.",
        source="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    ),
)
