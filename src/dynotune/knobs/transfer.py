"""Copies between host and GPU."""

from __future__ import annotations

from dynotune.knobs.conditions import ON_GPU
from dynotune.schema.knob import Knob, Method

KNOBS = (
    Knob(
        id="transfer.non_blocking",
        site=Method(("torch.Tensor.to", "torch.Tensor.cuda", "torch.Tensor.copy_"), "non_blocking"),
        type="bool",
        default="false, unless the program passes non_blocking itself",
        when="any",
        # Exact for batches from a loader; a pinned buffer of the program's own may be refilled too early.
        effect="semantics",
        **ON_GPU,
        doc="Copies from pinned host memory to the GPU without waiting for them, so that the program goes on launching "
        "work meanwhile. Other copies are left as they are: from unpinned memory it would do nothing, and towards the "
        "host it would let the program read what has not arrived.",
        hurts="Does nothing without pinned memory (loader.pin_memory). A program that refills one pinned buffer of its "
        "own right after the copy would overwrite what is still being sent.",
        source="https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    ),
)
