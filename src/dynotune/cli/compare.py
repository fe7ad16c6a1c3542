"""`dynotune compare`: compare two arms of one command in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
import typer

from dynotune import api
from dynotune.cli import answers, completion, options, resumption, run_options, serving
from dynotune.cli.option_values import one_of
from dynotune.cli.options import (
    Budget,
    InProcess,
    Json,
    Margin,
    Pairs,
    Precision,
    Resume,
    Serve,
    Token,
    option,
)
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import UNSET, Setting

if TYPE_CHECKING:
    from dynotune.measure.live import CompareRequest
    from dynotune.schema.comparison import Comparison
    from dynotune.schema.comparison import InProcess as How


@runs_a_command("objective", "warmup_steps", "window_steps", "seed", "caches", "run_to_end", "lanes", seed=0)
def compare(
    context: typer.Context,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING", help="Settings of the candidate.", autocompletion=completion.settings
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None, option("compare_baseline", autocompletion=completion.settings)
    ] = None,
    pairs: Pairs = 12,
    margin: Margin = 0.01,
    budget: Budget = None,
    precision: Precision = None,
    in_process: InProcess = "auto",
    fail_on: Annotated[str | None, option("compare_fail_on", callback=one_of("slower", "not-faster"))] = None,
    resume: Resume = None,
    serve: Serve = None,
    token: Token = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.measure.bench import protocol
    from dynotune.measure.live import CompareRequest

    options.check_json(json)
    folder = None
    if resume is not None:
        folder = resumption.resumed_folder(
            context, resume, run.base, protocol.FILE, but=("budget", "fail_on", "serve", "token")
        )
    candidate, against = run_options.typed_settings(settings), run_options.typed_settings(baseline)
    if resume is None:
        if not candidate and not against:
            raise UsageError(
                "There is no setting to compare.",
                hint="For example: dynotune compare loader.num_workers=4 -- python train.py. "
                "Any environment variable is a knob too: env.NAME=value.",
            )
        run_options.check_run(context, run, [*candidate, *against], looks_for_script=True)
        for line in not_set_here(candidate, against, run):
            answers.say(line)
    request = CompareRequest(
        run=msgspec.structs.replace(run, settings=against),
        candidate=candidate,
        max_pairs=pairs,
        margin=margin,
        budget_s=budget,
        precision=precision,
        in_process=cast("How", in_process),
    )
    comparison = measure(request, resume=folder, serve=serve, token=token)
    show(comparison, json)
    failing = {"slower": comparison.verdict == "slower", "not-faster": comparison.verdict != "faster"}
    if fail_on is not None and failing[fail_on]:
        raise typer.Exit(1)


def not_set_here(candidate: Sequence[Setting], against: Sequence[Setting], run: RunSpec) -> list[str]:
    """Say of each variable that the candidate removes that nothing sets it, as far as is known before a
    run."""
    from dynotune.claims import all_claims

    given = {setting.knob for setting in against}
    names = [
        setting.knob.removeprefix("env.")
        for setting in candidate
        if setting.knob.startswith("env.") and setting.value == UNSET and setting.knob not in given
    ]
    compared = [word for claim in all_claims() if claim.compare for word in claim.compare.settings]
    lines = []
    for name in names:
        if name in run.env:
            continue
        value = next((word for word in compared if word.startswith(f"env.{name}=")), f"env.{name}=VALUE")
        lines.append(
            f"{name} is not set here: unless the program sets it, both arms are the same. "
            f"To see what it costs: dynotune compare {value} -- …"
        )
    return lines


def measure(
    request: CompareRequest, *, resume: Path | None = None, serve: str | None = None, token: str | None = None
) -> Comparison:
    """Run the comparison, or continue the comparison in the folder `resume`, with progress on stderr.

    Args:
        serve, token: address and token of a live page, if one is wanted.

    Raises DynotuneError: as `measure.bench.protocol.compare`; Interrupted after printing how to continue.
    """
    from dynotune.measure.bench import protocol
    from dynotune.report import Progress, console
    from dynotune.text import words

    screen = console(stderr=True)
    with Progress(screen) as watcher, serving.measured(serve, token, watcher):
        try:
            if resume is None:
                return protocol.compare(request, watcher)
            typed = msgspec.structs.replace(request.run, settings=[*request.candidate, *request.run.settings])
            return protocol.resume(resume, typed, watcher, budget_s=request.budget_s)
        except protocol.Interrupted as stopped:
            which = resumption.resume_with(stopped.folder)
            found = protocol.so_far(stopped.folder)
            if known := words.so_far(found.speedup, found.ci):
                s = "" if found.num_pairs == 1 else "s"
                turns = f"{found.num_pairs} pair{s} or block{s}"
                screen.print(f"Not settled: {known} ({turns}).", soft_wrap=True)
            screen.print(f"Stopped. To go on: dynotune compare --resume {which}", soft_wrap=True)
            raise


def show(comparison: Comparison, json: str | None) -> None:
    """Print the comparison, and write it as JSON if asked.

    Raises CommandFailed if the command failed in one of the arms, so that there is no comparison.
    """
    from dynotune.report import on_terminal

    answers.show(on_terminal, comparison, json)
    api.raise_if_failed(comparison, with_output=json == "-")
