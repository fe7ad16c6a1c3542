"""A comparison from beginning to end: pilots, pairs in randomised order, verdict, and all of it on disk."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from dynotune import knobs, probe
from dynotune.launch import measuring, new_run_folder
from dynotune.measure import schedule, summary
from dynotune.measure.one_run import Outcome, run_arm
from dynotune.measure.pilot import Steadiness, Window, affordable_pairs, plan_window
from dynotune.measure.request import Request, Watcher
from dynotune.measure.stats import Judgement, judge
from dynotune.schema import document
from dynotune.schema.comparison import ArmName, Comparison, FailedArm, Pair, Voided
from dynotune.schema.errors import CannotRunHere, CommandFailed, UsageError
from dynotune.schema.facts import Facts, Unknown

FILE = "comparison.json"
PILOT_LIMIT_S = 900.0
# A run of known length may take longer than its pilot: other arms, cold pages, a busy machine.
PATIENCE = 4.0
PATIENCE_S = 60.0
ARMS: tuple[ArmName, ArmName] = ("baseline", "candidate")


def facts_of(request: Request) -> Facts:
    """What is known of machine and target before anything runs."""
    facts: Facts = {**probe.host.facts(), **probe.nvml.facts(request.env)}
    python = probe.interpreter(request.command, request.env, request.cwd)
    if isinstance(python, str):
        facts |= probe.torch_build.ask(python, request.cwd, request.env)
    else:
        facts |= dict.fromkeys(probe.torch_build.NAMES, python)
    return facts


def compare(request: Request, watcher: Watcher) -> Comparison:
    """Compare the two arms of `request`. Every finished pair is on disk when the next one begins.

    Raises:
        UsageError, CannotRunHere: as knobs, pilots and runs say; nothing of the user's is changed.
        KeyboardInterrupt: children are gone, finished pairs are kept, `resume` goes on.
    """
    facts = facts_of(request)
    for setting in [*request.settings, *request.against]:
        knobs.check_applies(setting, facts)
        if caution := knobs.caution(setting, facts):
            watcher.warn(caution)
    folder = new_run_folder(request.base)
    comparison = Comparison(
        id=folder.name,
        command=request.command,
        settings=request.settings,
        against=request.against,
        margin=request.margin,
        max_pairs=request.max_pairs,
        caches=request.caches,
        seed=request.seed,
        cwd=str(request.cwd),
        step_on=request.step_on,
        timeout_s=request.timeout_s,
        sandbox="auto" if request.sandbox else "none",
        finish=request.finish,
        facts={**facts, **probe.environment.facts(request.env)},
    )
    return _Session(request, folder, comparison, watcher).run()


def resume(folder: Path, request: Request, watcher: Watcher) -> Comparison:
    """Go on with the comparison in `folder`, from its last finished pair.

    Args:
        request: only its `env`, `lock` and `budget_s` count; the rest is as it was.

    Raises:
        RecordError: there is no comparison in `folder`, or not one that can be read.
        CannotRunHere: this is another machine than the one it was begun on.
    """
    comparison = document.read(folder / FILE, Comparison)
    if comparison.verdict is not None or comparison.failed is not None:
        return comparison
    request = msgspec.structs.replace(
        request,
        command=comparison.command,
        settings=comparison.settings,
        against=comparison.against,
        cwd=Path(comparison.cwd),
        warmup_steps=comparison.warmup_steps,
        window_steps=comparison.window_steps,
        max_pairs=comparison.max_pairs,
        margin=comparison.margin,
        timeout_s=comparison.timeout_s,
        step_on=comparison.step_on,
        seed=comparison.seed,
        caches=comparison.caches,
        sandbox=comparison.sandbox == "auto",
        finish=comparison.finish,
    )
    now = facts_of(request)
    moved = [name for name in ("host.cpu", "gpu.name", "torch.version") if now.get(name) != comparison.facts.get(name)]
    if moved:
        raise CannotRunHere(
            f"This comparison was begun elsewhere: {', '.join(moved)} differ. Pairs of two machines say nothing.",
            hint="Start it anew here.",
        )
    return _Session(request, folder, comparison, watcher).run()


class _Session:
    """One sitting of a comparison. What has to outlive it is in the comparison."""

    def __init__(self, request: Request, folder: Path, comparison: Comparison, watcher: Watcher) -> None:
        self._request = request
        self._folder = folder
        self._comparison = comparison
        self._watcher = watcher
        self._began_s = time.monotonic()
        self._outcomes: list[Outcome] = []

    def run(self) -> Comparison:
        gpus = probe.nvml.visible_gpus(self._request.env)
        self._save()
        if not self._request.lock:
            return self._run()
        with measuring(
            self._request.base.parent,
            cpus=probe.host.usable_cpus(),
            gpus=None if isinstance(gpus, Unknown) else gpus,
            on_wait=self._say_that_it_waits,
        ):
            self._began_s = time.monotonic()
            return self._run()

    def _say_that_it_waits(self, pid: int | None) -> None:
        who = f"another dynotune (process {pid})" if pid else "another dynotune"
        self._watcher.say(f"Waiting: {who} is measuring on the same cores or GPU. --no-lock does not wait.")

    def _run(self) -> Comparison:
        try:
            window = self._pilots()
            self._pairs(window)
        except _ArmFailed as failed:
            self._update(failed=failed.arm)
        return self._comparison

    # Pilots

    def _pilots(self) -> Window:
        limit_s = self._request.timeout_s or PILOT_LIMIT_S
        outcomes = []
        for arm in ARMS:
            self._watcher.running(f"pilot: {arm}")
            outcomes.append(self._launch(arm, f"pilot-{arm}", limit_s, window=None))
        num_runs = 2 * self._request.max_pairs
        window = plan_window(self._request, outcomes, num_runs=num_runs, budget_s=self._left_s())
        max_pairs = affordable_pairs(window, self._request.max_pairs, self._left_s())
        if max_pairs < schedule.MIN_PAIRS:
            raise UsageError(
                f"The budget affords {max_pairs} pairs; a comparison takes at least {schedule.MIN_PAIRS}.",
                hint=f"A pair takes about {2 * window.run_s:.0f} s here: give more with --budget.",
            )
        if self._comparison.window_steps is not None:
            # Resumed: what was decided holds, whatever these pilots would say. No look is added by resuming.
            return window
        unit = summary.unit(outcomes)
        warnings = [] if window.steady else ["A pilot never became steady; the window begins in the middle of it."]
        if window.is_short:
            length_s = window.num_steps * window.step_s
            warnings.append(f"The window is {length_s * 1e3:.0f} ms long: little noise is too much. More with --steps.")
        self._update(
            warmup_steps=window.warmup_steps,
            window_steps=window.num_steps,
            max_pairs=max_pairs - max_pairs % 2 if max_pairs < self._comparison.max_pairs else max_pairs,
            unit=unit,
            step=summary.step(outcomes[0]),
            warnings=[*self._comparison.warnings, *warnings, *summary.sandbox_warnings(outcomes[0])],
        )
        self._watcher.say(summary.cost(self._comparison, window))
        return window

    def _launch(self, arm: ArmName, name: str, limit_s: float, window: Window | None) -> Outcome:
        folder = self._folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            outcome = run_arm(
                self._request,
                arm,
                folder=folder,
                purpose="pilot" if window is None else "measured",
                facts=self._comparison.facts,
                limit_s=limit_s,
                warmup_steps=window.warmup_steps if window else None,
                window_steps=window.num_steps if window else None,
                enough=Steadiness(self._request),
            )
        except CommandFailed as error:
            raise _ArmFailed(FailedArm(arm, error.command_exit_code, list(error.last_lines), str(folder))) from error
        self._refuse_rejected(outcome, arm)
        self._outcomes.append(outcome)
        self._update(
            readback={**self._comparison.readback, **{r.knob: r for r in outcome.run.readback}},
            set_by=summary.changes_by_program(self._comparison, outcome),
        )
        return outcome

    def _refuse_rejected(self, outcome: Outcome, arm: ArmName) -> None:
        if not outcome.rejected:
            return
        first = outcome.rejected[0]
        found = first.found.reason if isinstance(first.found, Unknown) else first.found
        raise CannotRunHere(
            f"{first.knob}={first.asked} did not take effect in the {arm}: {first.witness} says {found}."
            + (f" {first.detail}" if first.detail and first.detail != found else ""),
            hint=f"The run is in {outcome.folder}. dynotune knobs {first.knob} says when it applies.",
        )

    # Pairs

    def _pairs(self, window: Window) -> None:
        limit_s = self._request.timeout_s or PATIENCE * window.run_s + PATIENCE_S
        while not (judgement := self._judge()).finished:
            valid, attempt = len(self._comparison.pairs), len(self._comparison.pairs) + len(self._comparison.voided)
            if self._out_of_time(window):
                judgement = msgspec.structs.replace(
                    judgement, verdict="undecided", finished=True, reason="The budget is used up."
                )
                break
            order = schedule.orders(self._comparison.max_pairs, self._comparison.seed)
            self._pair(attempt + 1, order[valid], window, limit_s)
        self._conclude(judgement)

    def _pair(self, number: int, first: ArmName, window: Window, limit_s: float) -> None:
        values: dict[ArmName, float] = {}
        runs: dict[ArmName, Outcome] = {}
        for arm in (first, _other(first)):
            self._watcher.running_arm(arm, pair=number, max_pairs=self._comparison.max_pairs)
            runs[arm] = self._launch(arm, f"{number:03d}-{arm}", limit_s, window)
            values[arm] = summary.value_s(runs[arm], self._comparison.unit)
        pair = Pair(first, values["baseline"], values["candidate"], runs["baseline"].run.id, runs["candidate"].run.id)
        reasons = summary.void_reasons(runs)
        if reasons:
            voided = Voided(number, "; ".join(reasons), pair)
            self._update(voided=[*self._comparison.voided, voided])
            self._watcher.voided(voided)
        else:
            self._update(pairs=[*self._comparison.pairs, pair])
            self._watcher.finished(
                pair, number=len(self._comparison.pairs), max_pairs=self._comparison.max_pairs,
                unit=self._comparison.unit,
            )  # fmt: skip

    def _judge(self) -> Judgement:
        return judge(
            self._comparison.pairs,
            margin=self._comparison.margin,
            max_pairs=self._comparison.max_pairs,
            num_voided=len(self._comparison.voided),
        )

    def _conclude(self, judgement: Judgement) -> None:
        runs = self._all_runs()
        self._update(
            verdict=judgement.verdict,
            speedup=judgement.speedup,
            ci=judgement.ci,
            num_pairs=judgement.num_pairs,
            reason=judgement.reason,
            num_pairs_to_settle=judgement.num_pairs_to_settle,
            baseline=summary.arm_summary(runs["baseline"], self._comparison.unit),
            candidate=summary.arm_summary(runs["candidate"], self._comparison.unit),
            warnings=[*self._comparison.warnings, *summary.warnings(self._outcomes)],
        )

    def _all_runs(self) -> dict[ArmName, list[summary.MeasuredRun]]:
        """The runs of the pairs that count, read from disk: some may be of an earlier sitting."""
        return {
            arm: [
                summary.read_run(self._folder.parent / (p.baseline_run if arm == "baseline" else p.candidate_run))
                for p in self._comparison.pairs
            ]
            for arm in ARMS
        }

    # Time and disk

    def _left_s(self) -> float | None:
        if self._request.budget_s is None:
            return None
        return self._request.budget_s - (time.monotonic() - self._began_s)

    def _out_of_time(self, window: Window) -> bool:
        left_s = self._left_s()
        return left_s is not None and left_s < 2 * window.run_s and len(self._comparison.pairs) > 0

    def _update(self, **changes: object) -> None:
        self._comparison = msgspec.structs.replace(self._comparison, **changes)
        self._save()

    def _save(self) -> None:
        document.write(self._folder / FILE, self._comparison)


class _ArmFailed(Exception):
    """The command of one arm failed: that is the comparison's answer."""

    def __init__(self, arm: FailedArm) -> None:
        super().__init__(arm)
        self.arm = arm


def _other(arm: ArmName) -> ArmName:
    return "candidate" if arm == "baseline" else "baseline"
