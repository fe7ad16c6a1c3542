"""The causes of lost time that a trace can show, read from causes.toml."""

from typing import Literal

import msgspec

from dynotune.schema.data_file import table
from dynotune.schema.diagnosis import Bottleneck

StepPart = Literal["loader", "copy", "sync", "host", "queued", "communication", "compute"]
"""Part of a recorded step: time in which the host waits for the loader, copies that nothing overlaps, waits
for a synchronisation, the host's own work, work that is queued and does not run, collectives, computation."""


class KnownCause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a cause.

    Args:
        lost: `idle` if the device was idle, which is a loss; `work` if it worked, which is a cost.
        words: the cause within a verdict, after "the largest loss is".
        claim: one sentence without the figure; "" if the sentence depends on what was found.
        part: the part of a step to which the cause belongs.
        as_recorded: whether the cause keeps its recorded share of a step if there is no device, because a
            recorder slows it as much as the rest: all ranks alike, and an optimizer's short operators with
            the Python between them.
        is_general: whether the claim only repeats the bottleneck.
        bottleneck: the bottleneck of a command that loses most time to the cause, if it is another than that
            of the part.
    """

    lost: Literal["idle", "work"]
    words: str
    claim: str = ""
    part: StepPart = "compute"
    as_recorded: bool = False
    is_general: bool = False
    bottleneck: Bottleneck | None = None


CAUSES = table(__package__, "causes.toml", dict[str, KnownCause])
"""By id. The order is that of the verdict's words, idle time first."""
