"""By how much a setting of effect `numerics` may round, and what may differ for that where there is no reference.

Rounding differs, so results do; these say from where on it is no longer rounding. What is broken (a wrong kernel, a
layout that the program does not stand, gradients that underflow) differs by tens of per cent, or is no number at all.
"""

import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files

import msgspec

from dynotune import knobs
from dynotune.schema.knob import Effect
from dynotune.schema.setting import Setting

GUARDED: tuple[Effect, ...] = ("exact", "numerics")
"""Settings that take part in guarded runs. Others change what is computed on purpose: `sampling` draws other random
numbers, so losses differ step by step though nothing is wrong; `semantics` is asked for by name, and named."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative differences that are allowed.

    Args:
        first: of each of the first losses, before they could drift apart.
        later: of the mean over a stretch of later ones.
        outputs: of an output's elements, moments included, by the tensor's root mean square.
        rounding: of one number.
        least: errors that it explains in any case.
        redraws: its kernels may draw other random numbers from the same seed.
        why: in words, after "allowed for".
    """

    first: float
    later: float
    outputs: float
    rounding: float
    least: float
    why: str
    redraws: bool = False


_TABLE = tomllib.loads(files(__package__).joinpath("tolerance.toml").read_text("utf-8"))
TOLERANCES = msgspec.convert(_TABLE["tolerances"], dict[str, Tolerance])
BY_SETTING: dict[str, str] = _TABLE["by_setting"]
BY_PRECISION: dict[str, str] = _TABLE["by_precision"]
REDRAWS = frozenset[str](_TABLE["redraws"]["knobs"])


def guarded(settings: Iterable[Setting]) -> list[Setting]:
    """Of an arm, the settings that take part in its guarded run; none where nothing in it needs one."""
    chosen = [setting for setting in settings if knobs.get(setting.knob).effect in GUARDED]
    return chosen if any(knobs.get(setting.knob).effect == "numerics" for setting in chosen) else []


def allowed(settings: Iterable[Setting], precision: str) -> Tolerance:
    """Of these settings together, for a program that computes in `precision`: the widest of each.

    `precision`: of the baseline, as the agent saw it; "" where it could not be seen.
    """
    chosen = [one for one in settings if knobs.get(one.knob).effect == "numerics"]
    names = [BY_SETTING.get(str(one)) or BY_SETTING.get(one.knob, "order") for one in chosen]
    found = [TOLERANCES[name] for name in [*names, BY_PRECISION.get(precision, "order")]]
    widest = max(found, key=lambda tolerance: tolerance.outputs)
    return msgspec.structs.replace(
        widest,
        first=max(tolerance.first for tolerance in found),
        later=max(tolerance.later for tolerance in found),
        redraws=any(one.knob in REDRAWS for one in chosen),
    )


def rounding(settings: Sequence[Setting]) -> float:
    """Share by which an arm may round a number, in a program that computes in float32; 0 where nothing is guarded."""
    chosen = guarded(settings)
    return allowed(chosen, "").rounding if chosen else 0.0
