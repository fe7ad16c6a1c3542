"""What the plan asks for beside a timed window, or in its place: a trace, ceilings, screening, phases of the start."""

from __future__ import annotations

import sys
from time import perf_counter

from ..core import observe
from .start_signal import Told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Optional

    from ..core.hooks import Event, Log
    from .ceilings import Ceilings
    from .profile import Profile
    from .screen import Screen
    from .startup_spans import Starting

    Recorders = tuple[Optional[Profile], Optional[Ceilings], Optional[Screen]]


def recorders(
    folder: str,
    plan: dict[str, Any],
    *,
    place: Callable[[], dict[str, int]],
    num_compilations: Callable[[], int],
    prepare: Callable[[], None],
    complete: Event,
    event: Event,
    log: Log,
) -> Recorders:
    """At most one of the three; each is imported only where it is asked for.

    Args:
        folder: of the run.
        place: gives rank and world size where a process group says them.
        num_compilations: tells how many graphs were compiled so far.
        prepare: called before it begins; `complete`: called with its event when it is over.
    """
    if plan.get("trace"):
        from .profile import Profile

        profile = Profile(
            folder,
            plan.get("warmup_steps"),
            plan["trace"],
            rank=lambda: place().get("rank", observe.number("RANK")),
            prepare=prepare,
            complete=_named("trace", complete),
            log=log,
        )
        return profile, None, None
    told = Told(folder, None, None)
    if plan.get("ceilings"):
        from .ceilings import Ceilings

        over = _named("ceilings", complete)
        page_cache = plan.get("page_cache", "warm")
        return None, Ceilings(told, page_cache=page_cache, prepare=prepare, complete=over, log=log), None
    if plan.get("screen"):
        from .screen import Screen

        screen = Screen(
            told,
            plan["screen"],
            world_size=lambda: place().get("world_size", observe.number("WORLD_SIZE") or 1),
            num_compilations=num_compilations,
            prepare=prepare,
            complete=_named("screened", complete),
            event=event,
            log=log,
        )
        return None, None, screen
    return None, None, None


def starting(plan: dict[str, Any], event: Event, log: Log) -> Optional[Starting]:
    """Where it is asked what the start is made of. The bootstrap knows when this process came to its first line."""
    if not plan.get("starting"):
        return None
    from .startup_spans import Starting

    package = sys.modules.get(__name__.rsplit(".", 2)[0])
    return Starting(getattr(package, "begun_s", perf_counter()), event, log)


def _named(name: str, complete: Event) -> Event:
    return lambda fields: complete({"event": name, **fields})
