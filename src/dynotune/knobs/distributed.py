"""How ranks exchange gradients."""

from __future__ import annotations

from typing import Any, Literal

from dynotune.schema.knob import Constructor, Effect, Knob

Kind = Literal["bool", "int", "float", "str"]

_DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"


def _argument(name: str, kind: Kind, default: str, effect: Effect, doc: str, hurts: str, **more: Any) -> Knob:
    site = Constructor(("torch.nn.parallel.DistributedDataParallel",), name)
    told: dict[str, Any] = {"source": _DDP, **more}
    return Knob(
        id=f"ddp.{name}", site=site, type=kind, default=default, when="construct", effect=effect, doc=doc,
        hurts=hurts, **told,
    )  # fmt: skip


KNOBS = (
    _argument(
        "bucket_cap_mb", "float", "25 MiB, and 1 MiB for the first bucket", "numerics",
        "The size of the buckets in which gradients are exchanged: small ones begin earlier beside the backward pass, "
        "large ones use the link better.",
        "With more than two ranks sums may be made in another order.",
        minimum=1.0, maximum=4096.0,
    ),
    _argument(
        "gradient_as_bucket_view", "bool", "false: each gradient is copied into its bucket and back", "exact",
        "Gradients are views of the buckets, which spares a copy of all of them and its memory.",
        "A program that detaches gradients in place fails.",
    ),
    _argument(
        "static_graph", "bool", "false", "semantics",
        "Promises that each step uses the same parameters in the same order; unused ones are looked for once.",
        "A step that takes another path breaks the promise, and its gradients are not exchanged right.",
    ),
    _argument(
        "find_unused_parameters", "bool", "false", "exact",
        "Looks through the graph of each step for parameters that take no part in it.",
        "Off, a program that leaves parameters out ends with an error at its second step.",
    ),
    _argument(
        "comm_hook", "str", "none: gradients are exchanged in their own type", "numerics",
        "Exchanges gradients in half the bytes, by torch's own compression hooks.",
        "Gradients are rounded; float16 overflows beyond 65,504. bf16 needs NCCL. A hook of the program's stays.",
        values=("none", "bf16", "fp16"), source="https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
    ),
)  # fmt: skip
