"""`dynotune plan`: plan an engine for a command's model."""

from pathlib import Path
from typing import Annotated

import typer

from dynotune.cli import HELP_OF, answers, run_options, with_command
from dynotune.cli.option_values import number
from dynotune.cli.options import Budget, Json, check_json, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec

COUNTED_S = 60.0
plan = typer.Typer(no_args_is_help=True, help="Plan engines of other libraries for your model.")


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
            "It takes shapes from one place, a command or a file; --shapes is for a model, --onnx for a "
            "command.",
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
