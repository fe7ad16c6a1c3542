"""Event with the state of the program, written when the timed window of an observed run has ended."""

from __future__ import annotations

import msgspec

from dynotune.schema.compilation import Compilation
from dynotune.schema.events.process import Int
from dynotune.schema.host import Collections
from dynotune.schema.observation import InspectedState


class Moments(msgspec.Struct, frozen=True, kw_only=True):
    """Stack samples of the thread that runs the steps.

    Args:
        frames, texts: places in the code, as `Place.function`, each with the text of its line.
        stacks: indices of frames, the outermost first.
        seen: for each sample, the index of its stack and the number of the step.
    """

    frames: list[str] = []
    texts: list[str] = []
    stacks: list[list[Int]] = []
    seen: list[tuple[Int, Int]] = []


class StateRead(InspectedState, frozen=True, kw_only=True, tag_field="event", tag="state"):
    """The state of the program.

    Args:
        compilation, collections: None if torch.compile was not used, and if the part failed.
        moments: None without samples.
        failed: reason by name of the part that could not be inspected.
        rank, world_size: from the process group; None without one.
    """

    compilation: Compilation | None = None
    collections: Collections | None = None
    moments: Moments | None = None
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    rank: Int | None = None
    world_size: Int | None = None
