"""Attribute a step's time: its parts, the causes of lost time, and predicted savings of settings."""

import msgspec

from dynotune.schema.trace_summary import Place


class Shares(msgspec.Struct, frozen=True, kw_only=True, tag="shares"):
    """Shares of a step of the plain window by kind of work; they sum to 1."""

    input: float
    transfer: float
    host: float
    device: float
    communication: float
    other: float


class LostTime(msgspec.Struct, frozen=True, kw_only=True):
    """A cause in the trace, as a share of a plain step: an upper bound of the saving without this cause."""

    id: str
    share: float
    claim: str
    where: Place = Place()
    evidence: list[str] = []


class Predicted(msgspec.Struct, frozen=True):
    """The predicted share of a step that a setting saves, from `low` to `high`; below 0 if it costs time."""

    low: float
    high: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True, tag="attribution"):
    """The recorded window's facts, rescaled to the plain window's step.

    Args:
        busy_share: share of the plain window for which the device worked; None if that is not known.
        slowed: factor by which the recorder made a step longer.
        counterfactual_savings: by cause, the share of a step that a replay of the recorded timeline saves without the
            cause. A wait can save more than its own idle time, as the host's work after it would overlap the device's.
        predicted: savings by setting.
    """

    shares: Shares
    lost_time: list[LostTime]
    busy_share: float | None = None
    slowed: float | None = None
    notes: list[str] = []
    counterfactual_savings: dict[str, float] = {}
    predicted: dict[str, Predicted] = {}
