"""torch.compile."""

from __future__ import annotations

from dynotune.schema.knob import Knob, Module

KNOBS = (
    Knob(
        id="compile.mode",
        site=Module("compile"),
        type="str",
        values=("off", "default", "reduce-overhead", "max-autotune-no-cudagraphs"),
        default="off, unless the program calls torch.compile",
        when="any",
        effect="numerics",
        doc="Compiles the outermost module in place after its first call, so that what this makes once breaks no "
        "graph. `reduce-overhead` also replays CUDA graphs, which takes the launches away; "
        "`max-autotune-no-cudagraphs` times kernels for matrix products. `off` makes the program's own torch.compile "
        "run eagerly.",
        hurts="The second call takes seconds to minutes, and so does each new input shape; after eight of them the "
        "module runs uncompiled, silently. With CUDA graphs an output is overwritten by the next call. Without a GPU "
        "`reduce-overhead` is the same as `default`, which needs a C++ compiler there.",
        source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    ),
)
