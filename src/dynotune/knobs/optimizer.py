"""How the optimizer's step is carried out."""

from __future__ import annotations

from dynotune.schema.knob import Constructor, Knob

KNOBS = (
    Knob(
        id="optimizer.fused",
        site=Constructor(("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.SGD", "torch.optim.Adagrad"), "fused"),
        type="bool",
        default="false: several kernels, each over all parameters at once on a GPU (foreach)",
        when="construct",
        effect="numerics",
        doc="Updates all parameters in one kernel, for Adam, AdamW, SGD and Adagrad. False gives back torch's own "
        "choice, which is foreach on a GPU.",
        hurts="Takes floating-point parameters and dense gradients only; where torch would refuse, the program's own "
        "arguments stay and the read-back says so. Lightning refuses to clip gradients beside a fused optimizer under "
        "fp16 scaling.",
        source="https://docs.pytorch.org/docs/stable/optim.html",
    ),
)
