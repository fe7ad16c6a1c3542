"""`dynotune watch`: a run as it is now, in the terminal, as a page, for Prometheus and OpenTelemetry."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dynotune.cli import run
from dynotune.cli.options import RunDir, Settings, StepFunction, runs_folder, seconds
from dynotune.schema.errors import CannotRunHere, UsageError

if TYPE_CHECKING:
    from dynotune.launch import Exit
    from dynotune.watch import Watcher

LOG = "watch.log"
HELP = """See a run while it runs: step times, what holds them up, ranks, GPUs, processes, and alerts.

With a command, it runs as under `dynotune run`; what is seen goes to a page, and as lines to watch.log in the run
folder. With the folder of a run, from another terminal, it goes to this terminal.

For example:

dynotune watch --serve 127.0.0.1:8000 -- python train.py

dynotune watch --tui ~/.local/state/dynotune/runs/20260101-120000-000-abcdef
"""
Serve = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve the page and /metrics; port 0 takes a free one.")
]
Token = Annotated[
    str | None,
    typer.Option(metavar="WORD", envvar="DYNOTUNE_TOKEN", help="What requests must bring; needed beyond loopback."),
]
OnAlert = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Run this for each new alert, with it as JSON on stdin."),
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(metavar="ALERT:TIME", help="Exit 1 if an alert lasts so long; ends the command. Repeat for more."),
]


class Outputs(NamedTuple):
    """What shows the view, as it was asked for."""

    serve: str | None
    token: str | None
    tui: bool
    otlp: str | None

    def open(self, watcher: Watcher, stack: contextlib.ExitStack, say: Callable[[str], None]) -> None:
        """Begin all; the stack ends them."""
        from dynotune.watch import Screen, Server, push

        if self.otlp is not None:
            stack.callback(push(watcher, self.otlp))
        if self.serve is not None:
            server = Server(self.serve, watcher, token=self.token)
            watcher.show.append(server)
            stack.callback(server.close)
            say(f"serving {server.url} and {server.url.partition('?')[0]}metrics")
        if self.tui:
            screen = Screen(_terminal())
            watcher.show.append(screen)
            stack.callback(lambda: screen.close(watcher.view))


def watch(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Argument(metavar="RUN_DIR", help="Join the run of this folder.")] = None,
    serve: Serve = None,
    token: Token = None,
    tui: Annotated[bool, typer.Option("--tui", help="Draw a screen in this terminal.")] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Play a finished run, ten times as fast.")
    ] = None,
    on_alert: OnAlert = None,
    fail_on: FailOn = None,
    otlp: Annotated[str | None, typer.Option(metavar="URL", help="Send metrics to an OpenTelemetry collector.")] = None,
    settings: Settings = None,
    recipe: run.RecipeFile = None,
    strict: run.Strict = False,
    step_function: StepFunction = None,
    run_dir: RunDir = None,
) -> None:
    alerts = {"on_alert": on_alert, "fail_on": dict(map(_limit, fail_on or []))}
    outputs, has_command = Outputs(serve, token, tui, otlp), context.find_root().obj is not None
    if (replay is not None) + (folder is not None) + has_command > 1:
        raise UsageError("A command, a run folder and --replay are three ways to watch.", hint="Give one of them.")
    joined = replay or folder
    if joined is not None and (settings or recipe):
        raise UsageError("Settings are of a command, and this run has begun.", hint="Leave --set and --recipe out.")
    if joined is not None:
        _join(joined, outputs, replay=replay is not None, **alerts)
    elif not has_command:
        raise UsageError(
            "There is nothing to watch.",
            hint="Give a command, dynotune watch -- python train.py, or the folder of a run: dynotune watch RUN_DIR",
        )
    elif tui and (sys.stdout.isatty() or sys.stderr.isatty()):
        raise UsageError(
            "The command prints to this terminal, and the screen would be mixed with it.",
            hint="Redirect its output (> log 2>&1), or draw it in another terminal: dynotune watch --tui RUN_DIR",
        )
    else:
        _run(run.prepared(context, settings, recipe, strict=strict), outputs, step_function, run_dir, alerts)


def _run(
    found: run.Prepared, outputs: Outputs, step_function: str | None, run_dir: Path | None, alerts: dict[str, Any]
) -> None:
    """Run the command, and watch it in a thread."""
    from dynotune.watch import Lines, Watcher

    with run.folder_for(runs_folder(run_dir), found.settings) as own, contextlib.ExitStack() as stack:
        if own is None:
            raise CannotRunHere("A run is watched through its folder, and there is none.", hint="Give --run-dir DIR.")
        log = stack.enter_context((own / LOG).open("a", encoding="utf-8", errors="backslashreplace"))
        watcher = Watcher(own, writes=True, log=log, **alerts)
        watcher.show.append(Lines(log))
        opened = stack.enter_context(contextlib.ExitStack())
        outputs.open(watcher, opened, run.say)
        run.say(f"watching: {own} (from another terminal: dynotune watch {own})")
        thread = threading.Thread(target=_watched, args=(watcher,), name="dynotune-watch", daemon=True)
        thread.start()

        def ended(exit_: Exit) -> bool:
            watcher.stop()
            thread.join()
            # What becomes of the watching does not change the command's end.
            with _said_if_it_fails():
                watcher.close(exit_.status)
                opened.close()
            return watcher.failed is not None

        run.transparently(found, own, step_function=step_function, ended=ended)


def _watched(watcher: Watcher) -> None:
    """Where an alert has lasted too long, the command is ended as by `kill`, and dynotune exits with 1."""
    with _said_if_it_fails():
        watcher.run()
        if watcher.failed is not None:
            run.say(f"ending the command: {watcher.failed.id}: {watcher.failed.text}")
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _said_if_it_fails() -> Any:
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            run.say(f"watching failed: {error!r}")


def _join(folder: Path, outputs: Outputs, *, replay: bool, **alerts: Any) -> None:
    """Watch a run that somebody else started, until it ends or Ctrl-C; a page stays until Ctrl-C."""
    from dynotune.watch import Lines, Watcher

    if outputs.tui and not sys.stdout.isatty():
        raise UsageError(
            "--tui draws a screen, and this is no terminal.", hint="Leave --tui out: a line comes every 5 s."
        )
    watcher = Watcher(folder.absolute(), replay=replay, **alerts)
    if not outputs.tui:
        watcher.show.append(Lines(sys.stdout))
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        stack.callback(watcher.follower.close)
        outputs.open(watcher, stack, run.say)
        watcher.run()
        if outputs.serve is not None and watcher.failed is None:
            run.say("The run has ended. The page stays until Ctrl-C.")
            signal.pause()
    if watcher.failed is not None:
        run.say(f"{watcher.failed.id}: {watcher.failed.text} (dynotune explain {watcher.failed.id})")
        raise typer.Exit(1)


def _terminal() -> Any:
    """The console of the controlling terminal. Raises UsageError: there is none."""
    from rich.console import Console

    try:
        console = Console(file=open("/dev/tty", "w", encoding="utf-8"), highlight=False, markup=False)  # noqa: PTH123, SIM115
    except OSError as error:
        raise UsageError("--tui draws a screen, and there is no terminal.", hint="Leave --tui out.") from error
    return console


def _limit(text: str) -> tuple[str, float]:
    from dynotune.doctor import all_rules

    alerts = [id_ for id_, rule in all_rules().items() if rule.scope == "watch"]
    name, _, time = text.partition(":")
    if name not in alerts or not time:
        raise UsageError(
            f"--fail-on {text} is not ALERT:TIME.", hint=f"Alerts are {', '.join(alerts)}; e.g. stalled:5m."
        )
    return name, seconds(time, f"--fail-on {name}:")
