"""`dynotune memory`: show where a command's device memory goes and what fits; or explain a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynotune import api
from dynotune.cli import answers, options, run_options
from dynotune.cli.option_values import num_bytes
from dynotune.cli.options import Json, check_json, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.errors import UsageError, from_elsewhere
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.schema.setting import Setting

OF_A_FILE = ("file", "max_size", "json")


@runs_a_command("settings", "warmup_steps")
def memory(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", readable=False, help="A snapshot of torch.")
    ] = None,
    values: Annotated[str | None, option("memory_values")] = None,
    gpu: Annotated[str | None, option("memory_gpu")] = None,
    predict: Annotated[str | None, option("memory_predict")] = None,
    max_size: Annotated[str | None, option("memory_max_size")] = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    check_json(json)
    limit_bytes = num_bytes(max_size, "--max-size") or api.MAX_SNAPSHOT_BYTES
    from dynotune.report import Progress, console, on_terminal

    if file is not None:
        if context.find_root().obj:
            raise UsageError(f"{file} and a command were both given.", hint="Give one of them.")
        if foreign := options.given(context, but=OF_A_FILE):
            raise UsageError(
                f"{foreign[0]} applies only to a command that is run, but a file was given.",
                hint="Leave it out.",
            )
        with from_elsewhere(file):
            answers.show(on_terminal, api.read_snapshot(file, max_bytes=limit_bytes), json)
        return
    batches = batch_settings(values)
    if predict is not None and not batches:
        raise UsageError(
            "--predict needs runs with two batch sizes to predict other batch sizes from.",
            hint="Add --values arg.batch=8,16.",
        )
    run_options.check_run(context, run, batches[:1])
    from dynotune.diagnose import live_memory

    with Progress(console(stderr=True)) as progress:
        asked = _numbers("--predict", predict or "")
        account, folder = live_memory(run, progress, batches=batches, card=gpu, asked=asked)
    answers.say(f"Recorded: {folder}")
    answers.show(on_terminal, account, json)


def batch_settings(text: str | None) -> list[Setting]:
    """Split `arg.batch=8,16` into one setting per value.

    Raises:
        UsageError: if there are fewer than two values, one is not a whole number, or NAME is no argument or
            variable.
    """
    if text is None:
        return []
    from dynotune import knobs

    knob, _, rest = text.partition("=")
    named = _numbers("--values", rest)
    if len(named) < 2 or not knob.strip().startswith(("arg.", "env.")):
        raise UsageError(
            f"--values {text} does not name two batch sizes.",
            hint="For example --values arg.batch=8,16 for {batch}.",
        )
    return [knobs.parse(f"{knob.strip()}={value}") for value in named]


def _numbers(option: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) < 10 and int(word) for word in words):
        raise UsageError(f"{option} {text} is no list of batches.", hint="Batches are whole numbers: 32,64.")
    return list(dict.fromkeys(map(int, words)))
