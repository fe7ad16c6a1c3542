"""Options that describe a run of the user's command, and the run that they make.

An option of a run is a field of `schema.run.RunSpec` and an entry of `RUN_OPTIONS` here. A subcommand with a
parameter `run: RunSpec` gets all options of a run from the decorator `runs_a_command`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dynotune.cli import RUN_PANEL, command_of, completion
from dynotune.cli.option_values import num_lanes, number, one_of, seconds_of
from dynotune.cli.options import option
from dynotune.schema import private, redaction
from dynotune.schema.home import expanded
from dynotune.schema.run import Caches, Objective, Phase, RunSpec
from dynotune.schema.task import PageCache

if TYPE_CHECKING:
    from dynotune.schema.setting import Setting

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def _of_a_run(name: str, flag: str, *, among: Sequence[str] = (), **about: Any) -> Any:
    """Declare an option of a run; `among` lists the words that the option accepts."""
    words = (
        {"parser": str, "callback": one_of(*among), "autocompletion": completion.words(among)}
        if among
        else {}
    )
    return option(name, flag, rich_help_panel=RUN_PANEL, **words, **about)


Settings = Annotated[list[str] | None, _of_a_run("settings", "--set", autocompletion=completion.settings)]
StepFunction = Annotated[str | None, _of_a_run("step_function", "--step-function")]
RunDir = Annotated[Path | None, _of_a_run("base", "--run-dir")]
_STEPS = number(1, 10**12)
_WARM_OR_COLD = ("warm", "cold")
_COMPARED = f"What is compared: {', '.join(OBJECTIVES)}."
RUN_OPTIONS: dict[str, Any] = {
    "settings": Settings,
    "objective": Annotated[
        Objective, _of_a_run("objective", "--objective", among=OBJECTIVES, help=_COMPARED)
    ],
    "warmup_steps": Annotated[int | None, _of_a_run("warmup_steps", "--warmup", **_STEPS)],
    "window_steps": Annotated[int | None, _of_a_run("window_steps", "--steps", **_STEPS)],
    "step_function": StepFunction,
    "phase": Annotated[Phase | None, _of_a_run("phase", "--phase", among=("training", "inference"))],
    "ready_pattern": Annotated[str | None, _of_a_run("ready_pattern", "--ready-pattern")],
    "timeout_s": Annotated[
        float | None, _of_a_run("timeout_s", "--timeout", parser=str, callback=seconds_of)
    ],
    "seed": Annotated[int | None, _of_a_run("seed", "--seed", **number(0, 2**32 - 1))],
    "caches": Annotated[Caches, _of_a_run("caches", "--caches", among=_WARM_OR_COLD)],
    "page_cache": Annotated[PageCache, _of_a_run("page_cache", "--page-cache", among=_WARM_OR_COLD)],
    "run_to_end": Annotated[bool, _of_a_run("run_to_end", "--run-to-end")],
    "sandbox": Annotated[bool, _of_a_run("sandbox", "--sandbox/--no-sandbox")],
    "nice": Annotated[int, _of_a_run("nice", "--nice", **number(0, 19))],
    "offline_trackers": Annotated[bool, _of_a_run("offline_trackers", "--offline-trackers")],
    "lock": Annotated[bool, _of_a_run("lock", "--lock/--no-lock")],
    "lanes": Annotated[int, _of_a_run("lanes", "--lanes", parser=num_lanes)],
    "base": RunDir,
}
"""The options of a run by the field of RunSpec, in the order of the help."""
OF_EVERY_RUN = ("step_function", "phase", "timeout_s", "sandbox", "nice", "offline_trackers", "lock", "base")
_OWN_DEFAULTS: dict[str, Any] = {"base": None, "settings": None}


def runs_a_command(*names: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `run` of a subcommand by options, and call the subcommand with the resulting
    RunSpec.

    The RunSpec names this folder, the environment, and the command after `--`; without a command, `check_run`
    refuses the run.

    Args:
        names: fields of RunSpec that are options of this subcommand in addition to the options of every run.
        defaults: default values of these options that differ from the defaults of RunSpec.
    """
    import msgspec

    own = {field.name: field.default for field in msgspec.structs.fields(RunSpec)} | _OWN_DEFAULTS | defaults
    chosen = [name for name in RUN_OPTIONS if name in (*OF_EVERY_RUN, *names)]
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=own[name], annotation=RUN_OPTIONS[name]
        )
        for name in chosen
    ]

    def with_options(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        parameters = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()
        ]
        at = next(index for index, one in enumerate(parameters) if one.name == "run")
        parameters[at : at + 1] = options

        @functools.wraps(function)
        def command(**given: Any) -> None:
            run = run_of(given["context"], **{name: given.pop(name) for name in chosen})
            function(**given, run=run)

        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return with_options


def run_of(
    context: typer.Context, *, settings: Sequence[str] | None = None, base: Path | None = None, **options: Any
) -> RunSpec:
    """Return the run of the command after `--`, in this folder and with this environment.

    Raises UsageError if a setting does not exist, or a knob was given twice.
    """
    run = RunSpec(
        command=list(context.find_root().obj or []),
        cwd=Path.cwd(),
        env=environment(),
        base=runs_folder(base),
        settings=typed_settings(settings),
        **options,
    )
    redaction.learn(run.env, run.command)
    return run


def typed_settings(texts: Sequence[str] | None) -> list[Setting]:
    """Return the settings on the command line, one per knob.

    Raises UsageError if a setting does not exist, or a knob was given twice.
    """
    if not texts:
        return []
    from dynotune import knobs

    return knobs.parse_all(texts)


def runs_folder(run_dir: Path | None) -> Path:
    if run_dir is not None:
        return expanded(run_dir)
    return private.state_folder() / "runs"


def environment() -> dict[str, str]:
    """Return the environment in which dynotune was started, for the command to inherit.

    `os.environ` is not used: in the C locale, Python adds LC_CTYPE to its own environment (PEP 538).
    """
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def check_run(
    context: typer.Context, run: RunSpec, candidate: Iterable[Setting] = (), *, looks_for_script: bool = False
) -> None:
    """Refuse a run that cannot begin, before dynotune waits for another dynotune or measures.

    `candidate`: settings of an arm in addition to the run's own settings. `looks_for_script`: as for
    `launch.check_run`.

    Raises:
        UsageError: if there is no command, or the command or its script is not found.
        CannotRunHere: if no folder for records can be made.
    """
    from dynotune import launch

    if not run.command:
        command_of(context)
    launch.check_run(run, candidate, looks_for_script=looks_for_script)
