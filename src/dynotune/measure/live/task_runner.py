"""Have a command carry out tasks in one live run, and start the command again only if it ended too early."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from dynotune.launch import new_run_folder
from dynotune.launch.records import Record
from dynotune.measure.live import cautions
from dynotune.measure.live.alignment import skips
from dynotune.measure.live.launch_plan import LaunchPlan, launch_plan
from dynotune.measure.live.live_run import PLANNED, Answer, Join, LiveRun, Order, has_answered
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.placement import is_steady, recent_step_s
from dynotune.measure.live.readiness import RESTLESS_S, UntilStep, steady_steps
from dynotune.measure.live.request import Watcher
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts
from dynotune.schema.run import LIMIT_S, Plan, RunSpec
from dynotune.schema.task import AlignSteps, Task

SILENT_S, SILENT_STEPS = 3.0, 4
MOST_FRAMES = 1 << 14
"""Calls of models that are recorded before the first task of an observed run, and frames that it marks."""

Place = Callable[[Sequence[Record]], Task]
"""Make the task from the records of a program whose steps are steady."""
Within = Callable[[Record], Task]
"""Make the task for a command with no more steps than the record has; raises CannotRunHere."""


class TaskRunner(AbstractContextManager["TaskRunner"]):
    """Live runs of one command in sequence, usually a single run. Leaving the `with` block ends the last run.

    Args:
        run: how to run the command. `run.warmup_steps` are the fewest before the first task; None waits for
            steady steps.
        label: description of the run, such as `the observed run`.
        limit_s: time limit (s) of each live run.
        observe: whether to record the state of the process.
        cache_folder: folder of compile and kernel caches; None keeps the user's.
        join: joins a program that runs already, which can be done once; None starts the command.
    """

    def __init__(
        self,
        run: RunSpec,
        watcher: Watcher,
        *,
        facts: Facts,
        label: str,
        limit_s: float | None = None,
        observe: bool = False,
        cache_folder: Path | None = None,
        join: Join | None = None,
    ) -> None:
        self._join = join
        self._run, self._watcher, self._facts = run, watcher, facts
        self._label, self._observe = label, observe
        self._cache_folder = cache_folder
        self.limit_s = limit_s or run.timeout_s or LIMIT_S
        self.live: LiveRun | None = None
        self.launch: LaunchPlan | None = None
        self.steady = True
        self.restless_s = RESTLESS_S
        """Seconds of steps after which a task begins although steps are not steady."""
        self.step_s = 0.0
        """Seconds of a steady step of the present live run, before any task; 0 if unknown."""
        self.whole_s: float | None = None
        """Seconds of a run of the command that ended by itself, before any task; None if none did."""
        self._is_known_steady = False

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.__exit__(*error)

    @property
    def goes_on(self) -> bool:
        """Look whether a live run goes on that can take a further task."""
        return self.live is not None and self.live.until(lambda records: True)

    def makes_steps(self) -> bool:
        """Tell whether a step ends within the time of several steps; while compiling, no step may end for
        minutes."""
        assert self.live is not None
        records = self.live.records()
        if not records or not records[0].steps:
            return False
        num_steps = len(records[0].steps)
        until_s = time.monotonic() + max(SILENT_S, SILENT_STEPS * recent_step_s(records[0]))
        self.live.until(lambda found: len(found[0].steps) > num_steps or time.monotonic() > until_s)
        return len(self.live.records()[0].steps) > num_steps

    def start(self, tasks: Sequence[Task] = ()) -> LiveRun:
        """Start the command again; `tasks` begin at known steps."""
        if self.live is not None:
            self.live.end()
            self.live.__exit__(None, None, None)
            self.live = None
        if self._join is not None and self.launch is not None:
            raise CannotRunHere("The program has ended, and dynotune did not start it.", hint="")
        folder = new_run_folder(self._run.base)
        if self.launch is None and self._join is None:
            cautions.say_where(self._run, folder, self._watcher)
        self.launch = launch_plan(
            self._run,
            self._run.settings,
            folder=folder,
            label=self._label,
            purpose="live",
            facts=self._facts,
            cache_folder=self._cache_folder,
            plan=Plan(
                tasks=list(tasks),
                live=True,
                note_events=True,
                observe=self._observe,
                account=self._observe and self._join is None,
                frames=MOST_FRAMES if self._observe and self._join is None else 0,
            ),
        )
        self._is_known_steady, self.step_s = False, 0.0
        self.live = LiveRun(self.launch, folder=folder, limit_s=self.limit_s, join=self._join)
        return self.live

    def order(self, place: Place, *, limit_s: float | None = None) -> Order | None:
        """Order a task of all ranks once steps are steady; None if the command ended before.

        `limit_s`: time limit (s) of the task; None for the time limit of the live run.
        """
        live = self.live or self.start()
        if not live.is_over and not self._is_known_steady:
            self._is_known_steady = live.until(UntilStep(_Steady(self), self._watcher.say, live.compiles))
            self.step_s = recent_step_s(live.records()[0]) if self._is_known_steady else 0.0
            self._align(live)
        return None if live.is_over else live.order(place(live.records()), limit_s=limit_s)

    def _align(self, live: LiveRun) -> None:
        """Have the ranks of a program that was joined count their steps from the same one."""
        records = live.records()
        if self._join is not None and len(records) > 1 and not live.is_over:
            live.do(AlignSteps(skip=skips(records)))

    @property
    def ended_well(self) -> bool:
        """Tell whether the command has made steps and ended by itself, without an error."""
        assert self.live is not None
        run = self.live.outcome().run
        return bool(self.live.records()) and run.ended_by == "command" and not run.exit_code

    def do(self, place: Place, within: Within, *, what: str, limit_s: float | None = None) -> Answer:
        """Have all ranks carry out one task.

        Args:
            place, within: functions that make the task, for steady steps and for a command that is known to
                be short.
            what: the verb for the task's effect on steps, such as `timed`.
            limit_s: as for `order`.

        Raises CannotRunHere: as `within` does, or for reasons of the machine.
        """
        order, live = self.order(place, limit_s=limit_s), self.live
        assert live is not None
        if order is not None:
            live.until(order)
            answer = live.answer(order)
            if not answer.reason or not answer.at_exit:
                return answer
        if not self.ended_well or self._join is not None:
            return live.answer_at_end()
        records, self.whole_s = live.records(), live.outcome().run.wall_s
        task = within(records[0])
        self._watcher.say(
            f"The command ended after {len(records[0].steps)} steps, before they were {what}. It is run "
            "once more, now "
            "that their number is known."
        )
        self._watcher.running("the command once more")
        # A run whose steps were not steady before does not wait again.
        self.steady = steady_steps(records[0]) is not None
        self.start([task])
        return self.planned()

    def planned(self) -> Answer:
        assert self.live is not None
        live = self.live
        live.sample()
        live.until(
            UntilStep(lambda records: has_answered(records, PLANNED), self._watcher.say, live.compiles)
        )
        return live.answer_to(PLANNED)

    def outcome(self) -> Outcome:
        assert self.live is not None
        return self.live.outcome()

    def end(self) -> Outcome:
        assert self.live is not None
        return self.live.end()


class _Steady:
    """Test for `enough`: the steps are steady, or will never be steady."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner, self._next_look = runner, 1

    def __call__(self, records: list[Record]) -> bool:
        if not records or records[0].begin_s is None or len(records[0].steps) < self._next_look:
            return False
        # Each check takes time in proportion to the number of steps.
        self._next_look = len(records[0].steps) + 1 + len(records[0].steps) // 8
        steady = is_steady(records[0], self._runner._run.warmup_steps, self._runner.restless_s)
        self._runner.steady = steady is not False
        return steady is not None
