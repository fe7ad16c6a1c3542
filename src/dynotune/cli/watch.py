"""`dynotune watch`: show a run live in the terminal, on a page, or for Prometheus."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from dynotune.cli import answers, command_of, completion, options, run, serving, stopping
from dynotune.cli.option_values import number
from dynotune.cli.options import Serve, Token, option
from dynotune.cli.run_options import RunDir, Settings, StepFunction
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.text import time_spans

if TYPE_CHECKING:
    from dynotune.launch import Exit
    from dynotune.watch import RunWatcher, Sender

LOG = "watch.log"
EVERY_S = 1.0
OF_A_PAGE = ("folder", "pid", "serve", "token")
OF_A_RUN = ("fail_on", "on_alert", "log", "otlp")
"""Parameters that mean something for a document, too, and those that do for a run that has begun."""


def watch(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_DIR", help="A run to join.", autocompletion=completion.run_folders),
    ] = None,
    pid: Annotated[int | None, option("watch_pid", "--pid", **number(1, 2**31 - 1))] = None,
    serve: Serve = None,
    token: Token = None,
    fail_on: Annotated[list[str] | None, option("watch_fail_on")] = None,
    on_alert: Annotated[str | None, option("watch_on_alert")] = None,
    log: Annotated[list[str] | None, option("watch_log")] = None,
    otlp: Annotated[str | None, option("watch_otlp")] = None,
    settings: Settings = None,
    recipe: run.RecipeFile = None,
    exact: run.Exact = False,
    strict: run.Strict = False,
    step_function: StepFunction = None,
    run_dir: RunDir = None,
) -> None:
    limits = dict(map(_limit, fail_on or []))
    if [folder is None, context.find_root().obj is None, pid is None].count(False) != 1:
        raise UsageError(
            "A run is watched by its command, its folder or a process id: give one of them.",
            hint="dynotune watch -- python train.py; dynotune watch RUN_DIR or --pid PID if it has begun.",
        )

    def watcher(
        at: Path, stack: contextlib.ExitStack, lives: Callable[[int], bool] | None = None
    ) -> RunWatcher:
        """Make the watcher of a run folder and its outputs; the exit stack closes the outputs."""
        from dynotune.watch import Commands, RunSource, RunWatcher

        started = folder is None and pid is None
        made = RunWatcher(at, started=started, fail_on=limits, lives=lives)
        stack.callback(made.follower.close)
        if on_alert is not None:
            made.show.append(Commands(on_alert, sys.stderr))
        _send(made, stack, log or [], otlp)
        stack.enter_context(serving.served(serve, token, RunSource(made)))
        return made

    if folder is not None and serving.is_document(folder):
        if typed := options.given(context, but=OF_A_PAGE):
            raise UsageError(
                f"{folder} is a study or a comparison, which has no alerts and takes no settings: "
                f"{', '.join(typed)} would do nothing.",
                hint=f"dynotune watch [--serve HOST:PORT] {folder}",
            )
        _join_document(folder.absolute(), serve, token)
        return
    if folder is None and pid is None:
        begin = functools.partial(_begin, watcher)
        run.transparently(
            command_of(context), settings, recipe, strict, step_function, run_dir, exact=exact, watch=begin
        )
    if typed := options.given(context, but=(*OF_A_PAGE, *OF_A_RUN)):
        raise UsageError(
            f"{typed[0]} is of a command, and this run has begun.", hint=f"Leave {typed[0]} out."
        )
    if folder is not None:
        _join(folder, watcher, stays=serve is not None)
    elif pid is not None:
        _join_program(pid, watcher, stays=serve is not None)


def _send(made: RunWatcher, stack: contextlib.ExitStack, logs: list[str], endpoint: str | None) -> None:
    """Give the watcher's numbers to trackers and to a collector; the exit stack ends them."""
    from dynotune import watch as watching

    senders: list[watching.Sender] = []
    stack.callback(_end, senders)
    for text in logs:
        tracked = watching.log(text, made.follower.folder, run.say)
        senders.append(tracked)
        made.show.append(tracked)
        run.say(f"logging to {tracked.name}: {tracked.tracker.where}")
    if endpoint is not None:
        otlp = watching.Otlp(endpoint, made)
        senders.append(otlp)
        made.show.append(otlp)
        run.say(f"sending to {otlp.name}")


def _end(senders: list[Sender]) -> None:
    """End the senders. If one does not answer, dynotune ends without the functions that packages registered,
    which would wait for the same answer."""
    from dynotune import watch as watching

    if not watching.end(senders, run.say):
        stopping.stop.is_abrupt = True


def _begin(watcher: Callable[..., RunWatcher], own: Path | None) -> Callable[[Exit], bool]:
    """Start to watch the run in this folder in a thread, and return a function that stops watching."""
    from dynotune.watch import Lines

    if own is None:
        raise CannotRunHere(
            "A run is watched through its folder, and there is none.", hint="Give --run-dir DIR."
        )
    with contextlib.ExitStack() as begun:
        made = watcher(own, begun)
        log = begun.enter_context((own / LOG).open("a", encoding="utf-8", errors="backslashreplace"))
        made.show.append(Lines(log))
        stack = begun.pop_all()
    run.say(f"watching: {own} (from another terminal: dynotune watch {own})")
    thread = threading.Thread(target=_watched, args=(made,), name="dynotune-watch", daemon=True)
    thread.start()

    def ended(exit_: Exit) -> bool:
        made.stop()
        thread.join()
        # The command's end is its own, whatever becomes of the watching.
        with _said_if_it_fails(), stack:
            made.close(exit_.status)
        return made.failed is not None

    return ended


def _watched(watcher: RunWatcher) -> None:
    """Watch the run; if an alert lasts too long, end the command."""
    with _said_if_it_fails():
        watcher.run()
        if watcher.failed is not None:
            run.say(f"ending the command: {watcher.failed.id}: {watcher.failed.text}")
            watcher.end_command()


@contextlib.contextmanager
def _said_if_it_fails() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            run.say(f"watching failed: {error!r}")


def _join_program(pid: int, watcher: Callable[..., RunWatcher], *, stays: bool) -> None:
    """Load the agent into a program that runs, and watch until the program ends or Ctrl-C."""
    from dynotune.report import Progress, console
    from dynotune.running import watched_program

    with contextlib.ExitStack() as stack:
        with Progress(console(stderr=True)) as progress:
            joined = stack.enter_context(watched_program(pid, progress.running))
        _join(joined.folder, functools.partial(watcher, lives=joined.lives), stays=stays)


def _join(folder: Path, watcher: Callable[..., RunWatcher], *, stays: bool) -> None:
    """Watch a run that another process started, until the run ends or Ctrl-C; a page stays until Ctrl-C."""
    from dynotune.report import loudness
    from dynotune.watch import Lines, Screen

    if not (folder / "plan.json").exists():
        raise CannotRunHere(
            f"{folder} is not the folder of a run.",
            hint=(
                "`dynotune run` and `dynotune watch` make one in ~/.local/state/dynotune/runs, or in "
                "--run-dir."
            ),
        )
    with contextlib.ExitStack() as stack:
        made = watcher(folder.absolute(), stack)
        if sys.stdout is not None:  # the caller may have closed it
            is_screen = sys.stdout.isatty() and not loudness.is_plain()
            made.show.append(stack.enter_context(Screen()) if is_screen else Lines(sys.stdout))
        with contextlib.suppress(KeyboardInterrupt):
            made.run()
            if stays and made.failed is None:
                signal.pause()
    if made.failed is not None:
        run.say(f"{made.failed.id}: {made.failed.text}")
        raise typer.Exit(1)


def _join_document(folder: Path, serve: str | None, token: str | None) -> None:
    """Show a study or a comparison that another process measures, until its end or Ctrl-C."""
    from dynotune.report import live_document, loudness, on_terminal
    from dynotune.watch import DocumentSource, DocumentWatcher, Screen

    watcher = DocumentWatcher(folder)
    is_screen = sys.stdout is not None and sys.stdout.isatty() and not loudness.is_plain()
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        stack.enter_context(serving.served(serve, token, DocumentSource(lambda: watcher)))
        screen = stack.enter_context(Screen()) if is_screen else None
        line = ""
        while not watcher.is_over:
            report = live_document.layout(watcher.document(), watcher.doing())
            if screen is not None:
                screen.draw(report, last="")
            elif line != (line := str(report.answer.line)):
                print(line, flush=True)
            time.sleep(EVERY_S)
        if serve is not None:
            signal.pause()
    answers.show(on_terminal, watcher.document(), None)


def _limit(text: str) -> tuple[str, float]:
    from dynotune.schema.watch import AlertId

    name, _, time = text.partition(":")
    if name not in get_args(AlertId) or not time:
        alerts = ", ".join(get_args(AlertId))
        raise UsageError(
            f"--fail-on {text} is not ALERT:TIME.", hint=f"Alerts are {alerts}; e.g. stalled:5m."
        )
    return name, time_spans.seconds(time, f"--fail-on {name}:")
