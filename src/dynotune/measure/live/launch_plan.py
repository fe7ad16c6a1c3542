"""Turn a RunSpec and settings into a run to launch: an environment, a plan for the agent, and folders to
keep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dynotune.launch.caches import contents
from dynotune.launch.process import environment, revision, variants
from dynotune.measure.live import trackers
from dynotune.measure.live.machine import facts_of_arm
from dynotune.schema import private, redaction
from dynotune.schema.errors import may_fail
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, Purpose, RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.task import TimeWindow

PLAIN = Plan()

# With a real GPU present, torch's own code would find that GPU.
PRETENDED_ENV = {"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A run to launch.

    Args:
        id: id of the run in its record.
        label: description of the run, such as `a run of the baseline`.
        keep: folders, such as caches, to which the command's writes go for real.
        revision: git's name of the revision that the command sees; None for the present working tree.
        memory: whether to sample the memory of the process tree.
        samples: whether to sample the machine, from the launch or once the program has imported torch or made
            a step.
        ready_pattern: pattern of the output line that ends the run; None if steps end it.
    """

    id: str
    label: str
    purpose: Purpose
    command: list[str]
    cwd: Path
    env: dict[str, str]
    settings: list[Setting]
    plan: Plan
    sandbox: bool
    nice: int = 0
    keep: list[Path] = []
    revision: str | None = None
    run_to_end: bool = False
    memory: bool = False
    samples: Literal["launch", "torch"] | None = None
    ready_pattern: str | None = None

    @property
    def window(self) -> TimeWindow | None:
        return next((task for task in self.plan.tasks if isinstance(task, TimeWindow)), None)


def launch_plan(
    run: RunSpec,
    settings: Sequence[Setting],
    *,
    folder: Path,
    label: str,
    purpose: Purpose,
    facts: Facts,
    cache_folder: Path | None = None,
    more_env: dict[str, str] | None = None,
    keep: Sequence[Path] = (),
    plan: Plan = PLAIN,
    times_start: bool = False,
    memory: bool = False,
    samples: bool = False,
    run_to_end: bool | None = None,
    other_arm: Sequence[Setting] = (),
) -> LaunchPlan:
    """Plan how to launch `run` under `settings` in the run folder `folder`.

    Args:
        facts: facts of the target; `torch.version` decides which name of the allocator's variable to use.
        cache_folder: folder of compile and kernel caches that only these settings use; None keeps the user's.
        more_env: variables that override the inherited environment.
        plan: the agent's plan, without the parts that follow from `run` and `settings`.
        times_start: the start itself is timed, so bytecode stays where the user keeps it.
        samples: sample the machine once torch is imported or a step made; with `times_start` or `memory`,
            from launch.
        run_to_end: overrides `RunSpec.run_to_end` unless None.
        other_arm: settings of another arm, for which the agent looks; secrets, which no plan holds, are left
            out.

    Raises UsageError, CannotRunHere: as for `launch.process.environment.build`.
    """
    command, inherited = variants.variant(run.command, run.env, settings, run.cwd)
    env = inherited | (more_env or {}) | (PRETENDED_ENV if run.pretend is not None else {})
    env |= trackers.OFFLINE if run.offline_trackers else {}
    kept = list(keep)
    if cache_folder is not None:
        env |= contents.environment(cache_folder)
        kept += [cache_folder, *contents.named(settings, run.cwd).values()]
    if run.seed is not None:
        env.setdefault("PYTHONHASHSEED", str(run.seed % 2**32))
    if not (plan.startup or times_start):
        env["DYNOTUNE_BYTECODE"] = str(_bytecode_folder())
        kept.append(_bytecode_folder())
    facts = facts_of_arm(run, settings, facts)
    others = environment.build(other_arm, env, run_dir=None, facts=facts)[1]
    env, planned = environment.build(settings, env, run_dir=folder, facts=facts)
    return LaunchPlan(
        id=folder.name if folder.parent == run.base else f"{folder.parent.name}/{folder.name}",
        label=label,
        purpose=purpose,
        command=command,
        cwd=run.cwd,
        env=env,
        settings=list(settings),
        plan=msgspec.structs.replace(
            plan,
            settings=planned,
            other_arm=[one for one in others if one.value != redaction.MARK],
            step_function=run.step_function,
            phase=run.phase,
            seed=run.seed,
            pretend=run.pretend,
        ),
        sandbox=run.sandbox,
        nice=run.nice,
        keep=kept,
        revision=revision.pinned(settings, facts),
        run_to_end=run.run_to_end if run_to_end is None else run_to_end,
        memory=memory,
        samples="launch"
        if samples and (plan.startup or times_start or memory)
        else "torch"
        if samples
        else None,
        ready_pattern=run.ready_pattern if plan.startup else None,
    )


def _bytecode_folder() -> Path:
    """Return the folder for bytecode of modules without bytecode, so that all measured runs compile each
    module once.

    A start of a GPT trainer on an H100 took 14.8 s without any bytecode, and 6.3 s with it.
    """
    state = private.state_folder()
    hint = "Set XDG_STATE_HOME to a folder of your own that can be written to."
    with may_fail(f"make {state / 'bytecode'}", hint):
        return private.folder(state, "bytecode")
