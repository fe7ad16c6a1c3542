"""List cautions about runs and their plans, in sentences."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dynotune.launch.caches import contents
from dynotune.launch.process import revision, sandbox
from dynotune.measure.live.machine import facts_of_arm
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.window_plan import SHORT_WINDOW_S, WindowPlan
from dynotune.schema.comparison import ArmName
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.text import words

_WORKS_THERE = "Runs work in your folder itself"
_NO_VIEW = "There is no copy-on-write view of it: {}."


def warnings(outcomes: Sequence[Outcome]) -> list[str]:
    found = []
    compiled = sum(any(window.num_compilations for window in outcome.windows) for outcome in outcomes)
    if compiled:
        found.append(f"In {compiled} runs something was compiled inside the window; lengthen --warmup.")
    late = sum(
        any(w.first_step != o.warmup_steps for w in o.windows) for o in outcomes if o.warmup_steps is not None
    )
    if late:
        found.append(f"In {late} runs the step was found late and the window began later; lengthen --warmup.")
    # Other activity beside measured runs is noise, which the interval includes.
    measured = [o.outside for o in outcomes if o.run.purpose == "measured"]
    if disturbed := [outside.foreign for outside in measured if outside is not None and outside.foreign]:
        found.append(
            f"Beside {len(disturbed)} of {len(measured)} runs something else went on, which widens the "
            "interval: "
            f"{disturbed[0][0]}."
        )
    found += sorted(
        {f"could not be judged: {why}" for o in outcomes if o.outside for why in o.outside.unknown}
    )
    mistakes = sorted({error for o in outcomes for process in o.run.processes for error in process.errors})
    found += [
        f"a mistake of dynotune's agent, which the program did not see: {error}" for error in mistakes[:3]
    ]
    return found


def of_run(outcome: Outcome, limit_s: float) -> list[str]:
    """List cautions about one run of the command, which was to end within `limit_s`."""
    found = []
    if outcome.run.ended_by == "timeout":
        found.append(f"The command was ended after {limit_s:.0f} s, the limit of a run.")
    elif outcome.run.ended_by == "command" and outcome.run.exit_code:
        found.append(f"Afterwards the command failed, {words.ending(outcome.run.exit_code)}.")
    found += sandbox_warnings(outcome)
    if outcome.outside is not None:
        found += [f"Meanwhile {reason}." for reason in outcome.outside.foreign]
    return found + warnings([outcome])


def window_cautions(run: RunSpec, window: WindowPlan) -> list[str]:
    if not window.num_steps:
        return []
    found = []
    if not window.steady:
        found.append("A first run never became steady; the timed window begins in the middle of it.")
    if run.warmup_steps is not None and window.warmup_steps > run.warmup_steps:
        found.append(
            f"The step is found after {window.warmup_steps - 1} steps: --warmup is {window.warmup_steps}."
        )
    if window.window_s < SHORT_WINDOW_S:
        found.append(
            f"The window is {1000 * window.window_s:.0f} ms long: little noise is too much. Lengthen it "
            "with --steps, "
            "or let the command run longer."
        )
    return found


def cache_cautions(run: RunSpec, arms: Mapping[ArmName, Sequence[Setting]]) -> list[str]:
    """List cautions about caches that settings move: baseline and candidate share these caches, without
    emptying."""
    of_arm = {name: contents.named(settings, run.cwd) for name, settings in arms.items()}
    places = [set(folders.values()) for folders in of_arm.values()]
    shared = set.intersection(*places) if len(places) > 1 else set()
    both = "Baseline and candidate share the caches in {}, so the second reuses what the first compiled."
    found = [both.format(folder) for folder in sorted(shared)]
    for arm, folders in of_arm.items():
        for variable, folder in folders.items():
            what = f"The {arm} keeps what it compiles in {folder}, as env.{variable} says"
            if run.caches == "cold":
                found.append(f"{what}: that is yours and never emptied, so its runs are not cold.")
            elif folder not in shared and folder.is_dir() and any(folder.iterdir()):
                found.append(f"{what}, and finds there what is there already.")
    return found


def launch_cautions(run: RunSpec, arms: Mapping[ArmName, Sequence[Setting]], facts: Facts) -> list[str]:
    """Describe baseline and candidate if these differ in more than settings of the program."""
    found = []
    for arm, settings in arms.items():
        if commit := revision.pinned(settings, facts):
            of = revision.find(run.cwd, commit)
            found.append(f"The {arm}'s code is commit {of.commit[:12]} ({of.subject}).")
        elif of_other := _pinned_by_another(arms, arm, facts):
            dirty = revision.find(run.cwd, of_other).is_dirty
            more = ", with changes that are not committed" if dirty else ""
            found.append(f"The {arm}'s code is the working tree{more}.")
        if any(setting.knob == "python" for setting in settings):
            has = facts_of_arm(run, settings, facts)
            found.append(f"The {arm} has Python {has['python.version']} and torch {has['torch.version']}.")
    return found


def _pinned_by_another(arms: Mapping[ArmName, Sequence[Setting]], arm: ArmName, facts: Facts) -> str | None:
    """Return the revision of an arm other than `arm`, if it has one."""
    pinned = (revision.pinned(settings, facts) for name, settings in arms.items() if name != arm)
    return next(filter(None, pinned), None)


def unit_cautions(request: CompareRequest, unit: str) -> list[str]:
    """Warn that a step may mean different work if arguments differ; a comparison by samples is fair."""
    named = {one.knob for one in (*request.candidate, *request.run.settings) if one.knob.startswith("arg.")}
    if unit == "sample" or request.run.objective != "throughput" or not named:
        return []
    names = " and ".join(sorted(named))
    return [f"Samples could not be counted: the ratio is of steps, and {names} may change what a step holds."]


def say_where(run: RunSpec, folder: Path, watcher: Watcher) -> list[str]:
    """Announce that runs in `folder` will work in the user's folder itself, and why; return the
    announcement."""
    reason = sandbox.available(run.cwd, folder) if run.sandbox else None
    if not reason:
        return []
    watcher.warn(said := f"{_WORKS_THERE}. {_NO_VIEW.format(reason)}")
    return [said]


def sandbox_warnings(outcome: Outcome) -> list[str]:
    """Report that runs worked in the user's folder itself, why, and which files they created or changed
    there."""
    run = outcome.run
    if run.sandbox == "overlay" or not (run.changed_files or run.sandbox_reason):
        return []
    shown = ", ".join(run.changed_files[:5]) + (", …" if len(run.changed_files) > 5 else "")
    changed = f" and changed {len(run.changed_files)} files there: {shown}" if shown else ""
    why = f" {_NO_VIEW.format(run.sandbox_reason)}" if run.sandbox_reason else ""
    return [f"{_WORKS_THERE}{changed}.{why}"]
