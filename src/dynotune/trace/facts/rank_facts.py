"""The facts about one rank, for the rules that find causes."""

from dataclasses import dataclass

from dynotune.schema.trace_summary import Communication, Copies, Kernels
from dynotune.trace.facts.busy_time import Busy
from dynotune.trace.facts.idle import Gaps
from dynotune.trace.facts.source_locations import PlaceRows, Places
from dynotune.trace.facts.steps import Steps
from dynotune.trace.timeline import Timeline


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Facts about one device in the time window.

    `gap_places`: the code place where the host spent most of each gap.
    """

    busy: Busy
    gaps: Gaps
    gap_places: PlaceRows


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Facts about one rank in its time window.

    Args:
        devices: facts by device index; empty if no device was recorded.
        device: index of the busiest device; causes of idle time are about this device. None without a device.
        kernels: facts about the rank's kernels; None without a device.
    """

    timeline: Timeline
    window: tuple[int, int]
    steps: Steps
    places: Places
    devices: dict[int, OnDevice]
    device: int | None
    kernels: Kernels | None
    copies: list[Copies]
    communication: Communication | None

    @property
    def busiest(self) -> OnDevice | None:
        return None if self.device is None else self.devices[self.device]

    @property
    def window_ns(self) -> int:
        return self.window[1] - self.window[0]

    @property
    def num_steps(self) -> int | None:
        return len(self.steps) or None
