"""`dynotune diagnose`: find out why a command is slow."""

from pathlib import Path
from typing import Annotated

import typer

from dynotune import api
from dynotune.cli import answers, options, run_options
from dynotune.cli.option_values import number
from dynotune.cli.options import FailOnSeverity, Json, option
from dynotune.cli.run_options import runs_a_command
from dynotune.schema.errors import UsageError, from_elsewhere
from dynotune.schema.run import RunSpec


@runs_a_command("settings", "warmup_steps", "window_steps", "seed", "page_cache", "run_to_end")
def diagnose(
    context: typer.Context,
    isolate_loader: Annotated[bool, option("diagnose_isolate_loader", "--isolate-loader")] = False,
    delays: Annotated[bool, option("diagnose_delays", "--delays/--no-delays")] = True,
    fail_on: FailOnSeverity = None,
    replay: Annotated[Path | None, option("diagnose_replay")] = None,
    pid: Annotated[int | None, option("diagnose_pid", "--pid", **number(1, 2**31 - 1))] = None,
    record: Annotated[bool, option("diagnose_record", "--record")] = False,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    if run.page_cache == "cold" and not isolate_loader and replay is None:
        raise UsageError("--page-cache is about the loader alone.", hint="Add --isolate-loader.")
    options.check_json(json)
    if pid is not None:
        _refuse_running_options(context, replay)
        # By default a job that runs is not slowed by delays, unlike a command that is started for this.
        asked = delays and "--delays" in options.given(context)
        _diagnose_running(pid, json, fail_on, record=record, delays=asked)
        return
    if record:
        raise UsageError(
            "--record needs --pid: it records steps of a program that already runs.",
            hint="Name it: --pid PID",
        )
    if replay is not None:
        _refuse_watching(context)
        with from_elsewhere(replay):
            diagnosis = api.replay(replay)
            answers.show(api.report_of, diagnosis, json)
    else:
        run_options.check_run(context, run, looks_for_script=True)
        from dynotune.report import Progress, console

        with Progress(console(stderr=True)) as watcher:
            diagnosis, path = api.diagnosed(run, watcher, isolate_loader=isolate_loader, delays=delays)
        answers.say(f"Observed: {path}")
        answers.show(api.report_of, diagnosis, json)
    answers.exit_if_severe(diagnosis.findings, fail_on)


def _diagnose_running(pid: int, json: str | None, fail_on: str | None, *, record: bool, delays: bool) -> None:
    """Diagnose a program that runs already, and print what was seen of it."""
    from dynotune.report import Progress, console, on_terminal
    from dynotune.running import diagnose_running

    with Progress(console(stderr=True)) as watcher:
        diagnosis = diagnose_running(pid, record=record, delays=delays, running=watcher.running)
    answers.show(on_terminal, diagnosis, json)
    answers.exit_if_severe(diagnosis.findings, fail_on)


def _refuse_running_options(context: typer.Context, replay: Path | None) -> None:
    """Refuse what is about running a command, or about an earlier observation, beside --pid."""
    if context.find_root().obj:
        raise UsageError(
            "--pid looks at a program that already runs, but a command was given.", hint="Give one of them."
        )
    if replay is not None:
        raise UsageError("--pid and --replay exclude each other.", hint="Give one of them.")
    if foreign := options.given(context, but=("pid", "record", "delays", "json", "fail_on")):
        raise UsageError(
            f"{foreign[0]} applies only to a command that is run, and --pid runs none.", hint="Leave it out."
        )


def _refuse_watching(context: typer.Context) -> None:
    """Refuse options for running a command if no command is run."""
    if context.find_root().obj:
        raise UsageError(
            "--replay explains an earlier observation, and a command was given.", hint="Give one of them."
        )
    if foreign := options.given(context, but=("replay", "json", "fail_on")):
        raise UsageError(
            f"{foreign[0]} applies only to a command that is run, and --replay runs none.",
            hint="Leave it out.",
        )
