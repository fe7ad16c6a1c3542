"""How ranks exchange gradients."""

from __future__ import annotations

from dynotune.schema.knob import Constructor, Knob

_DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"


def _argument(name: str) -> Constructor:
    return Constructor(("torch.nn.parallel.DistributedDataParallel",), name)


KNOBS = (
    Knob(
        id="ddp.bucket_cap_mb",
        site=_argument("bucket_cap_mb"),
        type="float",
        minimum=1.0,
        maximum=4096.0,
        default="25 MiB, and 1 MiB for the first bucket",
        when="construct",
        effect="numerics",
        doc="The size of the buckets in which gradients are exchanged: small ones begin earlier beside the backward "
        "pass, large ones use the link better.",
        hurts="With more than two ranks sums may be made in another order.",
        source=_DDP,
    ),
    Knob(
        id="ddp.gradient_as_bucket_view",
        site=_argument("gradient_as_bucket_view"),
        type="bool",
        default="false: each gradient is copied into its bucket and back",
        when="construct",
        effect="exact",
        doc="Gradients are views of the buckets, which spares a copy of all of them and its memory.",
        hurts="A program that detaches gradients in place fails.",
        source=_DDP,
    ),
    Knob(
        id="ddp.static_graph",
        site=_argument("static_graph"),
        type="bool",
        default="false",
        when="construct",
        effect="semantics",
        doc="Promises that each step uses the same parameters in the same order; unused ones are looked for once.",
        hurts="A step that takes another path breaks the promise, and its gradients are not exchanged right.",
        source=_DDP,
    ),
    Knob(
        id="ddp.find_unused_parameters",
        site=_argument("find_unused_parameters"),
        type="bool",
        default="false",
        when="construct",
        effect="exact",
        doc="Looks through the graph of each step for parameters that take no part in it.",
        hurts="Off, a program that leaves parameters out ends with an error at its second step.",
        source=_DDP,
    ),
    Knob(
        id="ddp.comm_hook",
        site=_argument("comm_hook"),
        type="str",
        values=("none", "bf16", "fp16"),
        default="none: gradients are exchanged in their own type",
        when="construct",
        effect="numerics",
        doc="Exchanges gradients in half the bytes, by torch's own compression hooks.",
        hurts="Gradients are rounded; float16 overflows beyond 65,504. bf16 needs NCCL. A hook of the program's stays.",
        source="https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
    ),
)
