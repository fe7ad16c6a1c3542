"""State how much rounding a setting of effect `numerics` may cause, and the differences allowed without a
reference.

A change of rounding changes results slightly; the tolerances limit the differences that rounding explains.
Defects (a wrong kernel, an unsupported layout, gradients that underflow) change results by tens of per cent
or to NaN.
"""

from collections.abc import Iterable, Sequence

import msgspec

from dynotune import knobs
from dynotune.schema.data_file import table
from dynotune.schema.knob import Effect
from dynotune.schema.setting import Setting

GUARDED: tuple[Effect, ...] = ("exact", "numerics")
"""Effects of settings that guarded runs check. Other settings change results on purpose: `sampling` draws
other random numbers, so losses differ step by step without an error, and users choose `semantics` explicitly."""  # noqa: E501


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative differences that are allowed.

    Args:
        first: allowed difference of each of the first losses, before losses can drift apart.
        later: allowed difference of the mean over a stretch of later losses.
        outputs: allowed difference of an output's elements and means, relative to the tensor's root mean
            square.
        rounding: relative rounding error of one number.
        least: rounding explains errors up to this size in any case.
        redraws: whether kernels may draw other random numbers from the same seed.
        why: the reason for the tolerance in words, printed after "allowed for".
    """

    first: float
    later: float
    outputs: float
    rounding: float
    least: float
    why: str
    redraws: bool = False


class _Tolerances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file tolerance.toml. A knob's entry in the catalogue names the tolerance of its settings."""

    tolerances: dict[str, Tolerance]
    by_precision: dict[str, str]


_TABLE = table(__package__, "tolerance.toml", _Tolerances)
TOLERANCES, BY_PRECISION = _TABLE.tolerances, _TABLE.by_precision


def guarded(settings: Iterable[Setting]) -> list[Setting]:
    """Return the candidate's settings whose results a guarded run checks; empty if no setting needs a check.

    The number of workers takes no part, since it changes the samples. So a setting that would need these
    workers, such as the batches that each of them prefetches, takes no part either.
    """
    given = list(settings)
    brings_workers = any(setting.knob == "loader.num_workers" for setting in given)
    chosen = [
        setting
        for setting in given
        if knobs.get(setting.knob).effect in GUARDED and not (brings_workers and knobs.needs_workers(setting))
    ]
    return chosen if any(knobs.get(setting.knob).effect == "numerics" for setting in chosen) else []


def allowed(settings: Iterable[Setting], precision: str) -> Tolerance:
    """Return the widest tolerance of all given settings together, for a program that computes in `precision`.

    `precision`: precision of the baseline, as the agent saw it; "" if unknown.
    """
    chosen = [one for one in settings if knobs.get(one.knob).effect == "numerics"]
    names = [knobs.get(one.knob).rounding_of(one.value) for one in chosen]
    found = [TOLERANCES[name] for name in [*names, BY_PRECISION.get(precision, "order")]]
    widest = max(found, key=lambda tolerance: tolerance.outputs)
    return msgspec.structs.replace(
        widest,
        first=max(tolerance.first for tolerance in found),
        later=max(tolerance.later for tolerance in found),
        redraws=any(knobs.get(one.knob).redraws for one in chosen),
    )


def rounding(settings: Sequence[Setting]) -> float:
    """Return the share by which a candidate may round a number in a float32 program; 0 without guarded
    settings."""
    chosen = guarded(settings)
    return allowed(chosen, "").rounding if chosen else 0.0
