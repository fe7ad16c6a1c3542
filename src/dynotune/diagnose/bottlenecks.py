"""The bottlenecks of a command with words for a verdict, read from bottlenecks.toml."""

import msgspec

from dynotune.schema.causes import StepPart
from dynotune.schema.data_file import table
from dynotune.schema.diagnosis import Bottleneck


class BottleneckEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a bottleneck.

    Args:
        parts: parts of a step whose causes belong to the bottleneck.
        on_device: the end of a verdict after "12% of a step", for a program with a device.
        on_host: the same for a program without a device; "" if the words are the same.
    """

    parts: tuple[StepPart, ...] = ()
    on_device: str = ""
    on_host: str = ""

    def words(self, *, has_device: bool) -> str:
        """Return the end of a verdict."""
        return self.on_device if has_device else self.on_host or self.on_device


BOTTLENECKS = table(__package__, "bottlenecks.toml", dict[Bottleneck, BottleneckEntry])


def bottleneck_of(part: StepPart) -> Bottleneck | None:
    """Return the bottleneck to which a part of a step belongs; None for the device's computation."""
    return next((name for name, entry in BOTTLENECKS.items() if part in entry.parts), None)
