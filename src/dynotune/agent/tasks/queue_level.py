"""Tell whether the loader's queue keeps as many batches ready at a candidate's pace as at the baseline's.

A candidate that draws the same batches faster draws from a reserve at first. By Little's law, workers are
busy in proportion to the pace at which batches are drawn: as long as they would keep up, the level stays.
"""

from __future__ import annotations

import math
from statistics import median

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.annotations import Stops
    from ..core.program import Program
    from ..sites.loader_router import Router
    from .arm_switch import ArmSwitch

# Largest share of the workers that may be busy at a candidate's pace, for the queue to keep its level.
SPARE = 0.5
MOST_QUEUES = 4  # most steps in which the level settles, in lengths of the queue


class QueueLevel:
    """The level of the queue, looked at after each step outside of stretches, and after each stretch."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._busy_shares: list[float] = []  # of the loader's workers, at steps without a candidate
        self._busy_with: dict[ArmSwitch, float] = {}  # the same, after a stretch with the candidate
        self._drained: set[ArmSwitch] = set()

    def router(self, arm: ArmSwitch | None) -> Router | None:
        """Return the router if it knows how many batches are ready, with this candidate too."""
        router: Router | None = self._program.loader_router
        if router is None or not router.sees_loaders:
            return None
        return None if arm is not None and arm.num_queued and not arm.draws_elsewhere else router

    def look(self, arm: ArmSwitch | None) -> None:
        router = self.router(arm)
        share = None if router is None else router.busy_share()
        if share is None:
            return
        if arm is not None and arm.is_on:
            self._busy_with[arm] = share
        else:
            self._busy_shares.append(share)

    def is_known(self, arm: ArmSwitch | None) -> bool:
        """Tell whether the level is known, of the queue that is drawn from with and without the candidate."""
        same = arm is None or not arm.num_queued
        return same and bool(self._busy_shares) and self.router(arm) is not None

    def is_kept(self, arm: ArmSwitch | None, times_as_fast: float) -> bool:
        """Tell whether the level stays when the candidate, whose steps are so much faster, is switched."""
        if arm is None or arm in self._drained or not self.is_known(arm):
            return False
        share = max(times_as_fast * median(self._busy_shares), self._busy_with.get(arm, 0.0))
        return share <= SPARE

    def drain_with(self, arm: ArmSwitch) -> None:
        """Note that workers might not keep up with the candidate: each switch then settles the level."""
        self._drained.add(arm)

    def settle(self, arm: ArmSwitch, num_queued: int, one_step: Callable[[], Stops]) -> Stops:
        """Wait until the number of ready batches neither falls nor rises: the present pace leaves that.

        Both arms draw the same batches, so only their number can favour one of them. Without any, it falls no
        more.
        """
        router = self.router(arm)
        assert router is not None
        patience = num_queued + 1
        lowest, highest, since = math.inf, -math.inf, 0
        waits = arm.is_on or median(self._busy_shares) >= 1
        for _ in range(MOST_QUEUES * num_queued):
            yield from one_step()
            arm.refuse_failed()
            num_ready = router.num_ready()
            since = since + 1 if lowest <= num_ready <= highest else 0
            lowest, highest = min(lowest, num_ready), max(highest, num_ready)
            if since >= patience or (waits and not num_ready):
                return
