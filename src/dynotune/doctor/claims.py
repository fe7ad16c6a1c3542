"""Claims found by what people call them, by the findings that they bear on, and by their traces on a machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.claims import Claim

SHORTEST_PART = 4
"""Characters of a word that may stand for a longer one: `rmem` for `net.core.rmem_max`."""
Trace = Callable[[ObservationView], str]


def by_name(word: str, claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims that `word` names wholly; if there are none, those that it names in part."""
    plain = _plain(word)
    names = [(claim, {_plain(name) for name in [claim.id, *claim.about]}) for claim in claims]
    exact = [claim for claim, own in names if plain in own]
    if exact or len(plain) < SHORTEST_PART:
        return exact
    return [claim for claim, own in names if any(plain in name for name in own)]


def seen_here(view: ObservationView, claims: Iterable[Claim], finding_ids: Collection[str] = ()) -> Iterator[Claim]:
    """Yield the claims whose traces are on this machine, with the trace.

    Args:
        finding_ids: of findings that were made. Claims that bear on one of these are left out, but for kernels.
    """
    for claim in claims:
        is_covered = claim.id != "preempt-rt" and any(id_ in finding_ids for id_ in claim.bears_on)
        traces = () if is_covered else TRACES.get(claim.id, ())
        if text := "; ".join(filter(None, (trace(view) for trace in traces))):
            yield msgspec.structs.replace(claim, seen=text)


def _plain(text: str) -> str:
    """Drop case, dashes, dots and spaces: people write `rmem-max` and `RMEM_MAX`."""
    return re.sub(r"[\W_]+", "", text).lower()


def _differs(fact: str, name: str, *defaults: float) -> Trace:
    """Make a trace of a kernel setting that is at none of its defaults."""

    def trace(view: ObservationView) -> str:
        value = view.number_or_none(fact)
        if value is None or value in defaults:
            return ""
        return f"{name} is {value:.15g} (default {' or '.join(f'{each:.15g}' for each in defaults)})"

    return trace


def _variable(name: str, *values: str) -> Trace:
    """Make a trace of a variable that is set, to one of `values` if any are given."""

    def trace(view: ObservationView) -> str:
        value = view.fact_or_none(f"env.{name}")
        if not isinstance(value, str) or (values and value.lower() not in values):
            return ""
        return f"{name}={value}"

    return trace


def _real_time(view: ObservationView) -> str:
    return "the kernel is built with PREEMPT_RT" if view.fact_or_none("host.preempt_rt") is True else ""


def _raised(fact: str, name: str, at: int, largest: int) -> Trace:
    """Make a trace of a number in a row, `tcp_rmem`, above its largest default. Below, it depends on memory."""

    def trace(view: ObservationView) -> str:
        row = view.fact_or_none(fact)
        value = row[at] if isinstance(row, list) and len(row) > at else None
        if not isinstance(value, int) or value <= largest:
            return ""
        return f"the largest of {name} is {value} (default up to {largest})"

    return trace


# Since Linux 6.18 the defaults of socket buffers are 4 MiB.
BUFFERS = (212_992, 229_376, 4_194_304)
TRACES: dict[str, tuple[Trace, ...]] = {
    "preempt-rt": (_real_time,),
    "socket-buffers": (
        _differs("host.rmem_max", "net.core.rmem_max", *BUFFERS),
        _differs("host.wmem_max", "net.core.wmem_max", *BUFFERS),
    ),
    "dirty-ratio": (
        _differs("host.dirty_ratio", "vm.dirty_ratio", 20),
        _differs("host.dirty_background_ratio", "vm.dirty_background_ratio", 10),
    ),
    "swappiness": (_differs("host.swappiness", "vm.swappiness", 60),),
    "tcp-autotuning": (
        _raised("host.tcp_rmem", "net.ipv4.tcp_rmem", 2, 33_554_432),
        _raised("host.tcp_wmem", "net.ipv4.tcp_wmem", 2, 4_194_304),
    ),
    "launch-blocking": (_variable("CUDA_LAUNCH_BLOCKING", "1"),),
    "pin-memory-variable": (_variable("PIN_MEMORY"),),
    "cublas-workspace": (_variable("CUBLAS_WORKSPACE_CONFIG"),),
    "jit-cache": (_variable("CUDA_CACHE_MAXSIZE"),),
    "no-bytecode": (_variable("PYTHONDONTWRITEBYTECODE"),),
}
