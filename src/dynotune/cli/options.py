"""Options that several subcommands share, each declared once, and the folder for records.

An option of a run is a field of `schema.run.RunSpec` and an entry of `RUN_OPTIONS` here. A subcommand with a parameter
`run: RunSpec` gets all options of a run from the decorator `runs_a_command`.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dynotune.cli import command_of, completion
from dynotune.schema import private, redaction
from dynotune.schema.comparison import MOST_PAIRS
from dynotune.schema.diagnosis import SEVERITIES
from dynotune.schema.errors import CONTRADICTIONS, UsageError
from dynotune.schema.run import Caches, Objective, Phase, RunSpec
from dynotune.schema.task import PageCache

if TYPE_CHECKING:
    from dynotune.fleet import Store
    from dynotune.schema.setting import Setting

LONGEST_NAME = 100
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
RUN_PANEL = "How the command is run"
_TOLD = tomllib.loads(files(__package__).joinpath("options.toml").read_text("utf-8"))
_UNITS_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_UNITS_S = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str, option: str) -> float:
    """Convert `90s`, `15m`, `15min` or `1.5h` to seconds.

    Raises UsageError if the text is not a length of time, or has no unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)?", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text} is not a length of time.", hint=f"For example {option} 90s or {option} 15m.")
    if match[2] is None:
        raise UsageError(
            f"{option} {text} has no unit.",
            hint=f"Say {option} {match[1]}s for seconds or {option} {match[1]}m for minutes.",
        )
    return float(match[1]) * _UNITS_S[match[2]]


def seconds_of(param: typer.CallbackParam, value: str | None) -> float | None:
    """Convert the value of an option that is a length of time; used as the option's callback."""
    return None if value is None else seconds(value, param.opts[0])


def _num_lanes(value: object) -> int:
    """Convert the value of `--lanes`: a number from 1, or `auto`, which becomes 0."""
    text = str(value)
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise UsageError(f"--lanes {text} is not a number of lanes.", hint="For example --lanes 2, or --lanes auto.")
    return 0 if text == "auto" else int(text)


def one_of(*names: str) -> Callable[[typer.CallbackParam, Any], Any]:
    """Build a callback for an option that takes one of `names`; the callback raises UsageError for any other word."""

    def check(param: typer.CallbackParam, value: Any) -> Any:
        if value is not None and value not in names:
            known = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
            raise UsageError(f"{param.opts[0]} {value} does not exist.", hint=f"{param.opts[0]} takes {known}.")
        return value

    return check


def number(least: float, most: float = math.inf) -> dict[str, Any]:
    """Build the callback of an option that takes a number; its error names the range, which the help omits."""

    def check(value: Any) -> Any:
        if value is not None and not least <= value <= most:
            upto = "or more" if most == math.inf or most >= 10**12 > value else f"to {most:,.0f}"
            raise typer.BadParameter(f"it takes {least:g} {upto}, not {value}.")
        return value

    return {"metavar": "N", "callback": check}


def option(name: str, *flags: str, **about: Any) -> Any:
    """Declare an option with the texts that `options.toml` has under this name."""
    return typer.Option(*flags, **(about | _TOLD[name]))


def _study_name(name: str) -> str:
    if name and not (name.isprintable() and len(name) <= LONGEST_NAME):
        raise UsageError(
            f"--study {ascii(name)[:50]} is no name.", hint=f"At most {LONGEST_NAME} printable characters."
        )
    return name


Budget = Annotated[float | None, option("budget", parser=str, callback=seconds_of)]
Margin = Annotated[float, option("margin")]
InProcess = Annotated[str, option("in_process", "--in-process", callback=one_of("auto", "only", "never"))]
Pairs = Annotated[int, option("pairs", **number(2, MOST_PAIRS))]
Precision = Annotated[float | None, option("precision", **number(0.01))]
Resume = Annotated[str | None, option("resume", autocompletion=completion.runs)]
Storage = Annotated[str | None, option("storage", envvar="DYNOTUNE_STORAGE")]
StudyName = Annotated[str, option("study_name", "--study", callback=_study_name)]
Python = Annotated[str | None, option("python")]
FailOnSeverity = Annotated[str | None, option("fail_on_severity", "--fail-on", callback=one_of(*SEVERITIES))]
Json = Annotated[str | None, option("json", "--json")]


def _of_a_run(name: str, flag: str, *, among: Sequence[str] = (), **about: Any) -> Any:
    """Declare an option of a run; `among` lists the words that the option accepts."""
    words = {"parser": str, "callback": one_of(*among), "autocompletion": completion.words(among)} if among else {}
    return option(name, flag, rich_help_panel=RUN_PANEL, **words, **about)


Settings = Annotated[list[str] | None, _of_a_run("settings", "--set", autocompletion=completion.settings)]
StepFunction = Annotated[str | None, _of_a_run("step_function", "--step-function")]
RunDir = Annotated[Path | None, _of_a_run("base", "--run-dir")]

_STEPS, _WARM_OR_COLD, _COMPARED = number(1, 10**12), ("warm", "cold"), f"What is compared: {', '.join(OBJECTIVES)}."
RUN_OPTIONS: dict[str, Any] = {
    "settings": Settings,
    "objective": Annotated[Objective, _of_a_run("objective", "--objective", among=OBJECTIVES, help=_COMPARED)],
    "warmup_steps": Annotated[int | None, _of_a_run("warmup_steps", "--warmup", **_STEPS)],
    "window_steps": Annotated[int | None, _of_a_run("window_steps", "--steps", **_STEPS)],
    "step_function": StepFunction,
    "phase": Annotated[Phase | None, _of_a_run("phase", "--phase", among=("training", "inference"))],
    "ready_pattern": Annotated[str | None, _of_a_run("ready_pattern", "--ready-pattern")],
    "timeout_s": Annotated[float | None, _of_a_run("timeout_s", "--timeout", parser=str, callback=seconds_of)],
    "seed": Annotated[int | None, _of_a_run("seed", "--seed", **number(0, 2**32 - 1))],
    "caches": Annotated[Caches, _of_a_run("caches", "--caches", among=_WARM_OR_COLD)],
    "page_cache": Annotated[PageCache, _of_a_run("page_cache", "--page-cache", among=_WARM_OR_COLD)],
    "run_to_end": Annotated[bool, _of_a_run("run_to_end", "--run-to-end")],
    "sandbox": Annotated[bool, _of_a_run("sandbox", "--sandbox/--no-sandbox")],
    "nice": Annotated[int, _of_a_run("nice", "--nice", **number(0, 19))],
    "lock": Annotated[bool, _of_a_run("lock", "--lock/--no-lock")],
    "lanes": Annotated[int, _of_a_run("lanes", "--lanes", parser=_num_lanes)],
    "base": RunDir,
}
"""The options of a run by the field of RunSpec, in the order of the help."""
OF_EVERY_RUN = ("step_function", "phase", "timeout_s", "sandbox", "nice", "lock", "base")
_OWN_DEFAULTS: dict[str, Any] = {"base": None, "settings": None}


def runs_a_command(*names: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `run` of a subcommand by options, and call the subcommand with the resulting RunSpec.

    The RunSpec names this folder, the environment, and the command after `--`; without a command, `check_run` refuses
    the run.

    Args:
        names: fields of RunSpec that are options of this subcommand in addition to the options of every run.
        defaults: default values of these options that differ from the defaults of RunSpec.
    """
    import msgspec

    own = {field.name: field.default for field in msgspec.structs.fields(RunSpec)} | _OWN_DEFAULTS | defaults
    chosen = [name for name in RUN_OPTIONS if name in (*OF_EVERY_RUN, *names)]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=own[name], annotation=RUN_OPTIONS[name])
        for name in chosen
    ]

    def with_options(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]
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


def given(context: typer.Context, *, but: Collection[str] = ()) -> list[str]:
    return [
        param.opts[0]
        for param in context.command.params
        if param.name not in (*but, "quiet", "verbose")
        and getattr(context.get_parameter_source(param.name or ""), "name", "") == "COMMANDLINE"
    ]


def runs_folder(run_dir: Path | None) -> Path:
    if run_dir is not None:
        return run_dir.expanduser().absolute()
    return private.state_folder() / "runs"


def resumed_folder(context: typer.Context, resume: str, base: Path, file: str, *, but: Collection[str] = ()) -> Path:
    """Find the folder for `--resume NAME|PATH`: any folder, or the name of a folder below `base`.

    Args:
        file: the file by which such a folder is recognised, for example `comparison.json`.
        but: parameters that may be given together with `--resume`; all others keep the values of the first run.

    Raises UsageError if the folder does not exist, or another parameter was given.
    """
    from dynotune import launch

    what = file.removesuffix(".json")
    places = (Path(resume).expanduser().absolute(), base / resume)
    folder = next((place for place in places if (place / file).is_file()), None)
    is_typed_again = folder is not None and _is_typed_again(folder, file)
    typed = ("settings", "baseline") if is_typed_again else ()
    extra = given(context, but=("resume", "base", "lock", "json", *typed, *but))
    if context.find_root().obj and not is_typed_again:
        extra.append("command")
    if extra:
        raise UsageError(
            f"--resume continues a {what} as it was begun, and takes no {' and no '.join(extra)}.",
            hint=f"Leave it out: {context.command_path} --resume {resume}; or leave --resume out to begin a new one.",
        )
    if folder is not None:
        launch.hold(folder)
        return folder
    known = sorted(path.parent.name for path in base.glob(f"*/{file}"))[-3:]
    raise UsageError(
        f"There is no {what} {resume}.",
        hint=f"The last ones in {base} are: {', '.join(known)}." if known else "Was it made with another --run-dir?",
    )


def _is_typed_again(folder: Path, file: str) -> bool:
    """Return whether command and settings may be typed with --resume: if secrets are missing, or the folder is foreign.

    `schema.resumption.completed` and `origin.refuse_foreign` report what is missing.
    """
    from dynotune.launch.process import origin
    from dynotune.schema import atomic

    try:
        raw = atomic.read(folder / file)
        return redaction.MARK.encode() in raw or any(origin.to_type(folder, raw))
    except (OSError, *CONTRADICTIONS):
        return False  # whoever reads it says what is wrong


def resume_with(folder: Path) -> str:
    """Return the argument of `--resume` for this folder: its name if the name is enough, else its path."""
    from dynotune.text import words

    return folder.name if folder.parent == runs_folder(None) else words.command([str(folder)])


def num_bytes(text: str | None, option: str) -> int | None:
    """Convert `500M`, `2G`, `1.5GiB` (powers of 1024) or `2GB` (of 1000) to bytes; UsageError if `text` is no size."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text} is not a size.", hint=f"For example {option} 500M or {option} 8G.")
    power = _UNITS_BYTES[match[2]]
    if match[3] == "b":
        power = 1000 ** ((power.bit_length() - 1) // 10)
    return int(float(match[1]) * power)


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


def opened(url: str | None) -> Store:
    """Open the database of `--storage`, and report its loss on stderr. Raises the same errors as `open_store`."""
    from dynotune import fleet
    from dynotune.cli.answers import say

    if url is None:
        raise UsageError("There is no database of studies.", hint="Name it: --storage URL, or DYNOTUNE_STORAGE.")
    return fleet.open_store(url, say)


def check_json(target: str | None) -> None:
    """Refuse a JSON file that cannot be written, before hours of measuring; UsageError as `check_output`."""
    if target != "-":
        from dynotune.api import check_output

        check_output(target, "--json")


def check_run(context: typer.Context, run: RunSpec, candidate: Iterable[Setting] = ()) -> None:
    """Refuse a run that cannot begin, before dynotune waits for another dynotune or measures.

    `candidate`: settings of an arm in addition to the run's own settings.

    Raises:
        UsageError: if there is no command, or the command is not found.
        CannotRunHere: if no folder for records can be made.
    """
    from dynotune import launch

    if not run.command:
        command_of(context)
    launch.check_run(run, candidate)
