"""Tell where a step of a command goes, what it is lost to, and what settings would save of it."""

import msgspec

from dynotune.schema.trace_summary import Place


class Shares(msgspec.Struct, frozen=True, kw_only=True, tag="shares"):
    """Shares of a step of the plain window, by where they go; sum to 1."""

    input: float
    transfer: float
    host: float
    device: float
    communication: float
    other: float


class LostTime(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of the trace, in shares of a step of the plain window: an upper bound of what its absence would save."""

    id: str
    share: float
    claim: str
    where: Place = Place()
    evidence: list[str] = []


class Predicted(msgspec.Struct, frozen=True):
    """The share of a step that a setting would save, from `low` to `high`; below 0 where it would cost."""

    low: float
    high: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True, tag="attribution"):
    """The recorded window's facts, brought to the plain window's step.

    Args:
        busy_share: of the plain window, for which the device worked; None where it is not known.
        slowed: by how much the recorder made a step longer.
        counterfactual_savings: by cause, the share of a step that would be saved without it, by running the recorded
            timeline again: of a wait more than its own idle time, for what the host does after it would be hidden
            behind the device.
        predicted: by setting.
    """

    shares: Shares
    lost_time: list[LostTime]
    busy_share: float | None = None
    slowed: float | None = None
    notes: list[str] = []
    counterfactual_savings: dict[str, float] = {}
    predicted: dict[str, Predicted] = {}
