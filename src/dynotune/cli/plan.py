"""`dynotune plan`: plan an engine for a command's model, or how much of something holds limits."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from dynotune.cli import HELP_OF, answers, option_values, resumption, run_options, with_command
from dynotune.cli.option_values import number, seconds_of
from dynotune.cli.options import Budget, Json, Resume, check_json, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.errors import UsageError
from dynotune.schema.largest import MOST_VALUE, OF_FRAMES, WINDOW_S, Limit, Quantity
from dynotune.schema.run import PERCENTILES, RunSpec
from dynotune.text import time_spans

COUNTED_S = 60.0
OF_STEPS: tuple[Quantity, ...] = tuple(name for name in get_args(Quantity) if name not in OF_FRAMES)
"""Quantities that `--limit` names; those of frames have options of their own."""
NAME = "NAME"


class _PlanGroup(TyperGroup):
    """Subcommands of `plan`; a word that is none of them is the name of a placeholder."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return args[0], self.commands[NAME], args
        return super().resolve_command(ctx, args)


plan = typer.Typer(no_args_is_help=True, cls=_PlanGroup, help=HELP_OF["plan"]["help"])


@plan.command(NAME, cls=with_command(), help=HELP_OF["plan NAME"]["help"])
@runs_a_command("settings", "warmup_steps", "window_steps", "seed", seed=0)
def largest(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar=NAME, help="Name of the placeholder: streams for {streams}.")
    ],
    fps: Annotated[float | None, option("plan_fps", **number(0.01, 10_000))] = None,
    deadline: Annotated[float | None, option("plan_deadline", parser=str, callback=seconds_of)] = None,
    limit: Annotated[list[str] | None, option("plan_limit")] = None,
    window: Annotated[float | None, option("plan_window", parser=str, callback=seconds_of)] = None,
    least: Annotated[int, option("plan_least", **number(1))] = 1,
    most: Annotated[int, option("plan_most", **number(1))] = MOST_VALUE,
    fail_under: Annotated[int | None, option("plan_fail_under", **number(1))] = None,
    budget: Budget = None,
    resume: Resume = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    check_json(json)
    from dynotune.measure.bench import Interrupted
    from dynotune.report import Progress, console, on_terminal
    from dynotune.search import planning

    folder = None
    if resume is not None:
        folder = resumption.resumed_folder(
            context, resume, run.base, planning.FILE, but=("budget", "fail_under", "name")
        )
    else:
        run_options.check_run(context, run)
    request = planning.PlanRequest(
        run=run,
        name=name.strip("{}"),
        limits=[limit_of(text) for text in limit or []],
        fps=fps,
        deadline_s=deadline,
        window_s=WINDOW_S if window is None else window,
        least=least,
        most=most,
    )
    screen = console(stderr=True)
    with Progress(screen) as progress:
        try:
            if folder is None:
                folder, found = planning.plan(request, progress, budget_s=budget)
            else:
                folder, found = planning.resume(folder, run, progress, budget_s=budget)
        except Interrupted as stopped:
            which = resumption.resume_with(stopped.folder)
            screen.print(f"Stopped. To go on: dynotune plan {name} --resume {which}", soft_wrap=True)
            raise
    answers.say(f"Recorded: {folder}")
    answers.show(on_terminal, found, json)
    if fail_under is not None and (found.largest or 0) < fail_under:
        raise typer.Exit(1)


def limit_of(text: str) -> Limit:
    """Convert `latency-p99=40ms`, `memory=20GiB` or `throughput=100` to a limit.

    Raises UsageError: there is no such quantity, or the bound has no fitting unit.
    """
    quantity, _, bound = (part.strip() for part in text.partition("="))
    if quantity not in OF_STEPS:
        raise UsageError(
            f"--limit {text} names no quantity.",
            hint=f"--limit takes {', '.join(OF_STEPS)}, as in memory=20GiB.",
        )
    if quantity == "memory":
        return Limit("memory", float(option_values.num_bytes(bound, "--limit memory") or 0))
    if quantity in (*PERCENTILES, "time-to-first-step"):
        return Limit(quantity, time_spans.seconds(bound, f"--limit {quantity}"))
    try:
        value = float(bound.removesuffix("/s").removesuffix("J"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(
            f"--limit {text} has no bound above 0.",
            hint="throughput=100 is in samples per second, energy=2.5 in joules per sample.",
        )
    return Limit(quantity, value)


@plan.command(cls=with_command(), help=HELP_OF["plan tensorrt"]["help"])
@runs_a_command("settings")
def tensorrt(
    context: typer.Context,
    source: Annotated[
        Path | None, typer.Argument(metavar="RUN_DIR|SHAPES.json|MODEL.onnx", exists=True)
    ] = None,
    shapes: Annotated[list[str] | None, option("plan_shapes")] = None,
    profiles: Annotated[int | None, option("plan_profiles", **number(1, 8))] = None,
    memory: Annotated[Path | None, option("plan_memory", exists=True)] = None,
    precision: Annotated[Path | None, option("plan_precision", exists=True)] = None,
    onnx: Annotated[bool, option("plan_onnx", "--onnx")] = False,
    budget: Budget = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    check_json(json)
    is_model = source is not None and source.suffix == ".onnx"
    if (source is None) is not bool(run.command) or (shapes and not is_model) or (onnx and source):
        raise UsageError(
            "Shapes come either from a command or from a file. --shapes needs a model file, --onnx "
            "needs a command.",
            hint="For example: dynotune plan tensorrt -- python infer.py",
        )
    from dynotune import diagnose, engines, launch
    from dynotune.report import Progress, console
    from dynotune.schema import document
    from dynotune.schema.engine_plan import ShapeHistogram
    from dynotune.schema.facts import Unknown

    is_dynamic = reason = None
    if source is None:
        run_options.check_run(context, run, [])
        with Progress(console(stderr=True)) as progress:
            histogram, folder, reason = diagnose.live_shapes(run, progress, budget or COUNTED_S, onnx=onnx)
    elif is_model:
        (histogram, is_dynamic), folder = (
            engines.shapes_for(source, shapes or []),
            launch.new_run_folder(run.base),
        )
    else:
        path = source / "shapes.json" if source.is_dir() else source
        histogram, folder = document.read(path, ShapeHistogram), launch.new_run_folder(run.base)
    found = diagnose.plan_engine(
        histogram,
        folder,
        num_profiles=profiles,
        memory=memory,
        precision=precision,
        model=str(source if is_model else folder / "model.onnx" if onnx else "model.onnx"),
        is_dynamic=is_dynamic,
        onnx=reason if onnx else None,
    )
    if json != "-":
        answers.write_bytes(found.script.encode())
    if json is not None:
        answers.write_json(found, json)
    check = (
        found.onnx.reason
        if isinstance(found.onnx, Unknown)
        else f"ONNX Runtime's results are {found.onnx.verdict}"
    )
    answers.say(f"{found.why} {f'Model: {check}. ' * onnx}Recorded: {folder}")
