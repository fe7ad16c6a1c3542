"""The plain run: nothing records it, and the device is synchronised at the two ends of its window only."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynotune import knobs, probe
from dynotune.diagnose.window import restlessness, soon, within
from dynotune.launch import new_run_folder
from dynotune.launch.process import environment
from dynotune.launch.records.batch_costs import with_loading
from dynotune.launch.records.process_state import failures, state
from dynotune.launch.records.record import Record
from dynotune.measure.live import cautions
from dynotune.measure.live.arm_run import Job, Outcome, launch, refuse_failed, refuse_rejected
from dynotune.measure.live.machine import alone, facts_of
from dynotune.measure.live.pilot import UntilStep, steady_steps
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.start_signal import Director, calm_steps
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import Plan, RecordFrom, Run, RunSpec

LIMIT_S = 900.0


class PlainRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the plain run.

    Args:
        folder: the run's.
        processes: those that make steps, in the order of ranks.
        samples: of the machine beside it; `begin_s`, `end_s`: the window, of all ranks, on the same clock.
        outside: what others did within the window; None where the samples do not tell.
        facts: `window.*`, of the samples within the window.
        notes: what to be wary of.
        calm_steps: after so many another run of the command is steady, too; None where that is not known.
    """

    folder: Path
    run: Run
    processes: list[ProcessState]
    samples: list[probe.Sample] = []
    begin_s: float
    end_s: float
    outside: probe.Judgement | None = None
    facts: Facts = {}
    notes: list[str] = []
    calm_steps: int | None = None


def plain_run(request: RunSpec, watcher: Watcher) -> PlainRun:
    """Run the command, in a copy-on-write view of its folder where it can be, and time its steps once they are steady.

    A command that ends before its window is complete is run once more, now that the number of its steps is known.

    Raises:
        UsageError: the settings or numbers asked for do not exist or fit together.
        CommandFailed: the command ended with an error.
        CannotRunHere: it made no step, too few steps, or took longer than its limit.
    """
    for name, value in (("--steps", request.window_steps), ("--warmup", request.warmup_steps)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is not a number of steps.", hint=f"For example {name} 50.")
    # Only settings ask for them, and the target takes seconds to import its torch.
    facts = facts_of(request) if request.settings else {}
    for setting in request.settings:
        knobs.check_applies(setting, facts)
        if caution := knobs.caution(setting, facts):
            watcher.warn(caution)
    with alone(request, watcher):
        watcher.running("the command, plain, until its steps are steady and timed")
        run = _Run(request, facts, None, watcher)
        if run.ended_too_early:
            again = within(run.record, request)
            watcher.say(
                f"The command ended after {run.outcome.num_steps} steps, before they were timed. It is run once more, "
                f"to time {again.num_steps} of them after {again.step}."
            )
            watcher.running("the command once more")
            steady = steady_steps(run.record) is not None
            run = _Run(request, facts, again, watcher, steady=steady)
    run.refuse_without_window()
    refuse_rejected(run.outcome, "in the plain run")
    return run.seen()


class _Run:
    """One plain run of the command.

    Args:
        exact: where its window begins, and how many steps it holds; None to tell it when its steps are steady.
    """

    def __init__(
        self,
        request: RunSpec,
        facts: Facts,
        exact: RecordFrom | None,
        watcher: Watcher,
        *,
        steady: bool = True,
    ) -> None:
        self._request, self._is_exact = request, exact is not None
        self._limit_s = request.timeout_s or LIMIT_S
        if exact is None and request.warmup_steps is not None and request.window_steps is not None:
            exact = RecordFrom(step=request.warmup_steps, num_steps=request.window_steps)
        folder = new_run_folder(request.base)
        env, planned = environment.build(
            request.settings, request.env, run_dir=folder, agent_dir=environment.AGENT, facts=facts
        )
        self._job = Job(
            id=folder.name,
            what="the plain run",
            purpose="observed",
            command=request.command,
            cwd=request.cwd,
            env=env,
            settings=request.settings,
            plan=Plan(
                settings=planned,
                warmup_steps=exact.step if exact else None,
                window_steps=exact.num_steps if exact else None,
                step_on=request.step_function,
                seed=request.seed,
                observe=True,
            ),
            sandbox=request.sandbox,
            finish=request.run_to_end,
        )
        self._director = Director(request, folder, soon, told=exact, is_over=_is_timed)
        self._director.steady = steady
        enough = UntilStep(self._is_enough, watcher.say)
        self.outcome: Outcome = launch(self._job, folder=folder, limit_s=self._limit_s, enough=enough)

    def _is_enough(self, records: list[Record]) -> bool:
        return self._director(records) and len(records) >= _world_size(records)

    @property
    def record(self) -> Record:
        """Of the process whose steps count; of the first rank."""
        return self.outcome.records[0]

    @property
    def _timed(self) -> list[Record]:
        records = [record for record in self.outcome.records if _is_timed(record)]
        return sorted(records, key=lambda record: record.among_ranks("rank") or 0)

    @property
    def _is_complete(self) -> bool:
        timed = self._timed
        return bool(timed) and len(timed) >= _world_size(timed)

    @property
    def ended_too_early(self) -> bool:
        """Whether the command made steps and ended by itself before they were timed, for no other reason."""
        run = self.outcome.run
        by_itself = run.ended_by == "command" and run.exit_code == 0
        return by_itself and bool(self.outcome.records) and not self._is_complete and not self._is_exact

    def refuse_without_window(self) -> None:
        """Say why nothing was timed.

        Raises:
            CommandFailed, CannotRunHere: it was not.
        """
        if self._is_complete:
            return
        refuse_failed(self.outcome, self._job, self._limit_s)
        told = self._director.told
        raise CannotRunHere(
            f"The command ended by itself after {self.outcome.num_steps} steps, before "
            + (f"{told.num_steps} steps after {told.step} of warm-up were timed." if told else "they were steady."),
            hint="Let it run longer (more epochs, more data), or ask for a shorter window with --warmup and --steps.",
        )

    def seen(self) -> PlainRun:
        outcome, windows = self.outcome, self.outcome.windows
        return PlainRun(
            folder=outcome.folder,
            run=outcome.run,
            processes=[self._state(record) for record in self._timed],
            samples=probe.read_samples(outcome.folder / "samples.jsonl"),
            begin_s=min(window.begin_s for window in windows),
            end_s=max(window.end_s for window in windows),
            outside=outcome.outside,
            notes=self._notes(),
            calm_steps=calm_steps(self.record),
        )

    def _state(self, record: Record) -> ProcessState:
        """Of one process, with what its workers told of making batches."""
        outcome = self.outcome
        found = state(record, outcome.launched_s, steady=self._director.steady)
        window = next(each.window for each in outcome.run.processes if each.pid == record.pid)
        if window is None:
            return found
        loaders = with_loading(found.loaders, found.pid, outcome.all_records, window.begin_s, window.end_s)
        return msgspec.structs.replace(found, loaders=loaders)

    def _notes(self) -> list[str]:
        outcome, told = self.outcome, self._director.told
        found = []
        if not self._director.steady:
            found.append(restlessness(self.record, min(window.first_step for window in outcome.windows)))
        if told is not None and any(window.first_step != told.step for window in outcome.windows):
            found.append("The window began later than it should have: ranks may have timed different steps.")
        if outcome.run.ended_by == "timeout":
            found.append(f"The command was ended after {self._limit_s:.0f} s.")
        elif outcome.run.ended_by == "command" and outcome.run.exit_code:
            found.append(f"Afterwards the command failed, with exit code {outcome.run.exit_code}.")
        found += [f"Could not be looked at: {what}" for record in self._timed for what in failures(record)]
        found += cautions.sandbox_warnings(outcome)
        if outcome.outside is not None:
            found += [f"Meanwhile {reason}." for reason in outcome.outside.foreign]
        return found + cautions.warnings([outcome])


def _is_timed(record: Record) -> bool:
    return record.last("window") is not None


def _world_size(records: list[Record]) -> int:
    return max(int((record.last("window") or {}).get("world_size", 1)) for record in records)
