"""Fill the compilers' caches by a second start of the command, beside a live run that measures what compiles
nothing.

Compiling takes a minute in large programs, during which a live run makes no step. The second start runs on
the other half of the cores, ends after its first steps, and measures nothing; then the live run finds the
compiled code.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from functools import partial

from dynotune import probe
from dynotune.launch.records import Record
from dynotune.measure.live import Outcome, Watcher, lane_order, lanes
from dynotune.schema.arm import Arm
from dynotune.schema.errors import DynotuneError

STEPS = 5
"""Steps of the second start: the first runs as written, the next compile forward, backward and optimizer, and
a graph is captured after one more."""
FEWEST_CORES = 4
"""Fewest cores for a second start: with fewer, compiling takes them from the run that is measured."""
NICE = 10

Launch = Callable[[Arm, lanes.Lane, Callable[[list[Record]], bool], Callable[[], object]], Outcome]
"""Run the command with an arm on the cores of a lane, until the records are enough; the last function may
stop it."""


class Beside:
    """A second start of the command, at most one at a time. Call `end` before anything else runs.

    Args:
        launch: starts the command.
        cpus: the cores that the command may use.
    """

    def __init__(self, launch: Launch, cpus: list[int], watcher: Watcher) -> None:
        self._launch, self._watcher = launch, watcher
        # Whole cores: two logical processors of one would take time from each other.
        self._lane = lanes.divide([lanes.WHOLE] * 2, probe.host.cores(cpus))[1]
        self._can = len(cpus) >= FEWEST_CORES
        self._side = lane_order.SideBySide()
        self._begun: Future[str] | None = None
        self._has_ended = False

    def begin(self, arm: Arm) -> bool:
        """Start the command with the arm, if there are cores for it and none was started; return whether it
        started."""
        if not self._can or self._begun is not None:
            return False
        self._watcher.say(
            f"A second start of the command compiles at the same time, on {len(self._lane.cpus)} cores."
        )
        self._begun = self._side.begin(self._lane, partial(self._compiled, arm))
        return True

    def wait(self, limit_s: float) -> None:
        """Wait until the second start has ended, and end it after `limit_s`; without one, return at once."""
        if self._begun is None or self._has_ended:
            return
        began_s, failed, self._has_ended = time.monotonic(), "", True
        with suppress(TimeoutError):
            failed = self._begun.result(timeout=max(0.0, limit_s))
        if failed:
            self._watcher.say(f"The second start failed, so compilation is tried in the first one: {failed}")
        elif not self._begun.done():
            self._watcher.say(
                f"The second start compiled for {time.monotonic() - began_s:.0f} s more, and was ended."
            )
        self.end()

    def end(self) -> None:
        self._side.__exit__()

    def _compiled(self, arm: Arm) -> str:
        """Return why the second start failed; empty if it made its steps, or nobody waits for it any more."""
        try:
            self._launch(arm, self._lane, _has_compiled, self._side.go_on)
        except lane_order.Stopped:
            return ""
        except Exception as error:
            # Ignore every error: the live run does not need this start.
            return error.message if isinstance(error, DynotuneError) else f"{type(error).__name__}: {error}"
        return ""


def _has_compiled(records: list[Record]) -> bool:
    return bool(records) and len(records[0].steps) >= STEPS
