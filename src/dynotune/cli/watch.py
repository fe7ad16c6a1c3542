"""`dynotune watch`: a run as it is now, in the terminal, as a page, for Prometheus and OpenTelemetry."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynotune.cli import command_of
from dynotune.cli.options import RunDir, StepFunction, environment, runs_folder, seconds
from dynotune.schema import redaction
from dynotune.schema.errors import CannotRunHere, UsageError

if TYPE_CHECKING:
    from dynotune.launch import Exit
    from dynotune.schema.watch import Alert
    from dynotune.watch import Watcher

LOG = "watch.log"
NARROWEST = 40
HELP = """See a run while it runs: step times, what holds them up, ranks, GPUs, processes, and alerts.

With a command, it runs as under `dynotune run`; what is seen goes to a page, and as lines to watch.log in the run
folder. With the folder of a run, from another terminal, it goes to this terminal.

For example:

dynotune watch --serve 127.0.0.1:8000 -- python train.py

dynotune watch --tui ~/.local/state/dynotune/runs/20260101-120000-000-abcdef
"""


def watch(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Argument(metavar="RUN_DIR", help="Join the run of this folder.")] = None,
    serve: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the page and /metrics; port 0 takes a free one.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="WORD", envvar="DYNOTUNE_TOKEN", help="What requests must bring; needed beyond loopback."),
    ] = None,
    tui: Annotated[bool, typer.Option("--tui", help="Draw a screen in this terminal.")] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Play a finished run, ten times as fast.")
    ] = None,
    on_alert: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Run this for each new alert, with the alert as JSON on its stdin."),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="ALERT:TIME", help="Exit 1 if an alert lasts so long; ends the command. Repeat for more."),
    ] = None,
    otlp: Annotated[str | None, typer.Option(metavar="URL", help="Send metrics to an OpenTelemetry collector.")] = None,
    step_function: StepFunction = None,
    run_dir: RunDir = None,
) -> None:
    joined = replay or folder
    limits = dict(_limit(text) for text in fail_on or [])
    if (replay is not None) + (folder is not None) + (context.find_root().obj is not None) > 1:
        raise UsageError("A command, a run folder and --replay are three ways to watch.", hint="Give one of them.")
    if joined is not None:
        _join(joined, replay is not None, serve, token, tui, otlp, {"on_alert": on_alert, "fail_on": limits})
        return
    if context.find_root().obj is None:
        raise UsageError(
            "There is nothing to watch.",
            hint="Give a command, dynotune watch -- python train.py, or the folder of a run: dynotune watch RUN_DIR",
        )
    command, env = command_of(context), environment()
    redaction.learn(env, command)
    if tui and (sys.stdout.isatty() or sys.stderr.isatty()):
        raise UsageError(
            "The command prints to this terminal, and the screen would be mixed with it.",
            hint="Redirect its output (> log 2>&1), or draw it in another terminal: dynotune watch --tui RUN_DIR",
        )
    from dynotune.cli import run
    from dynotune.watch import Lines, Watcher

    with run.folder_for(runs_folder(run_dir), []) as own, contextlib.ExitStack() as stack:
        if own is None:
            raise CannotRunHere("A run is watched through its folder, and there is none.", hint="Give --run-dir DIR.")
        log = stack.enter_context((own / LOG).open("a", encoding="utf-8", errors="backslashreplace"))
        watcher = Watcher(own, writes=True, log=log, on_alert=on_alert, fail_on=limits)
        watcher.show.append(Lines(log))
        closing = stack.enter_context(_outputs(watcher, serve, token, otlp, tui=tui, say=run.say))
        run.say(f"watching: {own} (from another terminal: dynotune watch {own})")
        thread = threading.Thread(target=_watched, args=(watcher,), name="dynotune-watch", daemon=True)
        thread.start()

        def ended(exit_: Exit) -> bool:
            watcher.stop()
            try:
                thread.join()
                watcher.close(exit_.status)
                closing()
            except Exception as error:
                # What becomes of the watching does not change the command's end.
                with contextlib.suppress(OSError):
                    run.say(f"watching failed: {error!r}")
            return watcher.failed is not None

        run.transparently(command, [], own, env=env, facts={}, step_function=step_function, ended=ended)


def _watched(watcher: Watcher) -> None:
    """Of the command: where an alert has lasted too long, it is ended as by `kill`, and dynotune exits with 1."""
    try:
        watcher.run()
    except Exception as error:
        watcher.follower.notes.append(f"watching failed: {error!r}")
    if watcher.failed is not None:
        with contextlib.suppress(OSError):
            print(f"dynotune: ending the command: {_failed(watcher.failed)}", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)


def _join(
    folder: Path, replay: bool, serve: str | None, token: str | None, tui: bool, otlp: str | None, more: dict[str, Any]
) -> None:
    """Watch a run that somebody else started, until it ends or Ctrl-C; a page stays until Ctrl-C."""
    from dynotune.watch import Lines, Watcher

    if tui and not sys.stdout.isatty():
        raise UsageError(
            "--tui draws a screen, and this is no terminal.", hint="Leave --tui out: a line comes every 5 s."
        )
    watcher = Watcher(folder.absolute(), replay=replay, **more)
    if not tui:
        watcher.show.append(Lines(sys.stdout))
    with _outputs(watcher, serve, token, otlp, tui=tui, say=lambda text: print(text, file=sys.stderr)) as closing:
        try:
            watcher.run()
            if serve is not None and watcher.failed is None:
                watcher.follower.close()
                print("The run has ended. The page stays until Ctrl-C.", file=sys.stderr)
                signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            watcher.follower.close()
            closing()
    if watcher.failed is not None:
        print(f"dynotune: {_failed(watcher.failed)}", file=sys.stderr)
        raise typer.Exit(1)


@contextlib.contextmanager
def _outputs(
    watcher: Watcher, serve: str | None, token: str | None, otlp: str | None, *, tui: bool, say: Any
) -> Iterator[Any]:
    """What shows the view; gives what ends them all."""
    from dynotune.watch import Screen, Server, push

    with contextlib.ExitStack() as stack:
        if otlp is not None:
            stack.callback(push(watcher, otlp))
        if serve is not None:
            server = Server(serve, watcher, token=token)
            watcher.show.append(server)
            stack.callback(server.close)
            say(f"serving {server.url} and {server.url.partition('?')[0]}metrics")
        if tui:
            screen = Screen(_terminal())
            watcher.show.append(screen)
            stack.callback(lambda: screen.close(watcher.view))
        yield stack.close


def _terminal() -> Any:
    """The console of the controlling terminal.

    Raises:
        UsageError: there is none, or it is too narrow for any of it.
    """
    from rich.console import Console

    try:
        console = Console(file=open("/dev/tty", "w", encoding="utf-8"), highlight=False, markup=False)  # noqa: PTH123, SIM115
    except OSError as error:
        raise UsageError("--tui draws a screen, and there is no terminal.", hint="Leave --tui out.") from error
    if console.width < NARROWEST:
        raise UsageError(
            f"The terminal has {console.width} columns; the screen needs {NARROWEST}.", hint="Leave --tui out."
        )
    return console


def _limit(text: str) -> tuple[str, float]:
    from dynotune.doctor import ALERTS

    name, _, time = text.partition(":")
    if name not in ALERTS or not time:
        raise UsageError(
            f"--fail-on {text} is not ALERT:TIME.", hint=f"Alerts are {', '.join(ALERTS)}; e.g. stalled:5m."
        )
    return name, seconds(time, f"--fail-on {name}:")


def _failed(alert: Alert) -> str:
    return f"{alert.id}: {alert.text} (dynotune explain {alert.id})"
