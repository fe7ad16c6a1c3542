"""The cycle of events that is a step of a program."""

from typing import Annotated, Literal

import msgspec

CycleEvent = Literal["draw", "call", "step", "replay"]
"""Events among which a step is found: a batch is drawn, an outermost module is called, an optimizer steps, or
a captured CUDA graph is replayed."""


class CyclePart(msgspec.Struct, frozen=True, kw_only=True):
    """Equal events of a cycle that follow each other. `name`: the class of the loader, module or
    optimizer."""

    kind: CycleEvent
    name: str
    num: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] = 1
