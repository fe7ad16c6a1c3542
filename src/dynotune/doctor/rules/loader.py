"""Input: what the program waits for before it has a batch."""

from __future__ import annotations

from collections.abc import Iterator

from dynotune.doctor import policy
from dynotune.doctor.registry import rule
from dynotune.doctor.seen import Seen, evidence_of
from dynotune.schema.diagnosis import Finding
from dynotune.schema.trace_summary import Place


@rule("program")
def loader_bound(seen: Seen) -> Iterator[Finding]:
    """The program waits for its data loader.

    Sees: the share of a step in which nothing but the loader's next batch was waited for. With a device that is its
    idle time while the program is inside the loader; without one, the time inside the loader.

    Costs: all of that share, if batches were always ready.

    Wrong when: the window began with a cold page cache and later epochs read from memory.
    """
    share = seen.attribution.shares.input
    if share < policy.LEAST_SHARE:
        return
    losses = seen.losses("loader-bound")
    yield Finding(
        id="loader-bound",
        severity=policy.severity(share),
        claim=f"A step waits {share:.0%} of its time for the data loader.",
        share=share,
        evidence=evidence_of(losses),
        where=losses[0].where if losses else seen.loaders[0].place if seen.loaders else Place(),
    )
