"""Attribution of a step's time: shares of kinds of work, causes of lost time, and predicted savings of
settings."""

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
    """Time lost to a cause in the trace, as a share of an unrecorded step: an upper bound of the saving
    without the cause."""

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
    """Facts about the recorded time window, rescaled to a step of the plain (unrecorded) window.

    Args:
        busy_share: share of the plain window for which the device worked; None if that is not known.
        slowed: factor by which the recorder made a step longer.
        counterfactual_savings: by cause, the share of a step that a replay of the recorded timeline saves
            without the cause. Removing a wait can save more than the wait's idle time, as later host work
            would overlap device work.
        predicted: predicted savings by setting.
    """

    shares: Shares
    lost_time: list[LostTime]
    busy_share: float | None = None
    slowed: float | None = None
    notes: list[str] = []
    counterfactual_savings: dict[str, float] = {}
    predicted: dict[str, Predicted] = {}
