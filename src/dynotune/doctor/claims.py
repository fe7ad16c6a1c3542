"""Find claims (common pieces of advice) by what people call them, or by their traces on a machine."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.claims import Claim

SHORTEST_PART = 4
"""Fewest characters of a word that may stand for a longer name: `rmem` for `net.core.rmem_max`."""


def by_name(word: str, claims: Iterable[Claim], *, in_part: bool = True) -> list[Claim]:
    """Return the claims that `word` names; without one, claims that `word` names `in_part` or asks about."""
    plain, is_question = _plain(word), " " in word.strip()
    names = [(claim, {_plain(name) for name in [claim.id, *claim.about]}) for claim in claims]
    exact = [claim for claim, own in names if plain in own]
    if exact or not in_part or len(plain) < SHORTEST_PART:
        return exact
    long = [(claim, {name for name in own if len(name) >= SHORTEST_PART}) for claim, own in names]

    def is_meant(name: str) -> bool:
        return plain in name or (is_question and name in plain)

    return [claim for claim, own in long if any(map(is_meant, own))]


def seen_here(
    view: ObservationView,
    claims: Iterable[Claim],
    finding_ids: Collection[str] = (),
) -> Iterator[Claim]:
    """Yield the claims whose traces are on this machine, each with its trace.

    Claims that bear on one of the made findings are left out, except those about real-time kernels.
    """
    for claim in claims:
        is_covered = claim.id != "preempt-rt" and any(id_ in finding_ids for id_ in claim.bears_on)
        traces = {} if is_covered else claim.traces
        if text := "; ".join(filter(None, (_trace(view, *of) for of in traces.items()))):
            yield msgspec.structs.replace(claim, seen=text)


def _plain(text: str) -> str:
    """Drop case, dashes, dots and spaces: people write `rmem-max` and `RMEM_MAX`."""
    return re.sub(r"[\W_]+", "", text).lower()


def _trace(view: ObservationView, name: str, usual: Sequence[int | str]) -> str:
    """Return the trace of a variable that is set or of an unusual kernel setting; "" if there is none.

    `usual`: a setting's usual values (of `tcp_rmem` the largest one), or a variable's values that count;
    empty for all.
    """
    variable = name.removeprefix("env.")
    match view.fact_or_none(name if variable != name else f"host.{name.rpartition('.')[2].lower()}"):
        case str(text) if variable != name and (not usual or text.lower() in usual):
            return f"{variable}={text}"
        case True if name == "PREEMPT_RT":
            return f"the kernel is built with {name}"
        case [_, _, int(largest), *_] if usual and variable == name and largest > max(map(int, usual)):
            return f"the largest of {name} is {largest} (default up to {usual[0]})"
        case bool():
            return ""
        case int(value) | float(value) if variable == name and value not in usual:
            return f"{name} is {value:.15g} (default {' or '.join(map(str, usual))})"
    return ""
