"""Once a second: follow the run, analyse it, and pass its state to all displays. Start commands when alerts
begin."""

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from dynotune import probe
from dynotune.schema import document
from dynotune.schema.errors import CONTRADICTIONS, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import Alert, Mark, StepTimes, View
from dynotune.text import words
from dynotune.watch.analysis import (
    HEADLINES,
    MINUTE_S,
    WINDOW_S,
    Analysis,
    Change,
    Look,
    Moment,
    headline,
    sentence,
)
from dynotune.watch.follower import Follower, Rank
from dynotune.watch.recent import recent
from dynotune.watch.signals import kill, stacks

EVERY_S, UNSTEPPED_S, GRACE_S = 1.0, 60.0, 10.0
MOST_PROCESSES = 48

MOST_AT_ONCE, MOST_DETAILS = 4, 64


class RunWatcher:
    """Watches the run in `folder`, until the run is over or `stop` is called.

    A watcher that joined the run of another process only reads: it signals no process.

    Args:
        started: whether this process started the run.
        fail_on: from the id of an alert to the seconds that it may last.
        lives: as for `Follower`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        started: bool = False,
        fail_on: Mapping[str, float] | None = None,
        lives: Callable[[int], bool] | None = None,
    ) -> None:
        self.started = started
        self.follower, self.analysis = Follower(folder, lives), Analysis()
        self.show: list[Callable[[View], None]] = []
        self.view: View | None = None
        self.failed: Alert | None = None
        self.lock = threading.RLock()
        self._ended: list[str] = []
        self._fail_on = dict(fail_on or {})
        self._alerted: dict[tuple[str, str], tuple[float, Alert]] = {}
        self._stopping = threading.Event()
        self._num_cpus = len(probe.host.usable_cpus())

    def stop(self) -> None:
        self._stopping.set()

    def end_command(self) -> None:
        """End the command as by `kill`; after ten seconds, kill each of its remaining processes."""
        if not self.started:
            raise ValueError("this dynotune did not start the command, so it does not end it")
        os.kill(os.getpid(), signal.SIGTERM)
        if not self._stopping.wait(GRACE_S):
            kill(self.follower.pids(), self.follower.folder)

    def run(self) -> None:
        """Update the displays each second, until the run is over, an alert lasts too long, or `stop` is
        called."""
        while not self._stopping.is_set():
            self.look(time.perf_counter())
            if self.follower.is_over or self.failed is not None:
                break
            self._stopping.wait(EVERY_S)

    def close(self, exit_code: int) -> None:
        """Show the run's last state on all displays."""
        self.follower.exit_code, self.follower.is_over = exit_code, True
        self.look(time.perf_counter())

    def look(self, now: float) -> View:
        with self.lock:
            try:
                self.follower.update(now)
            except (DynotuneError, OSError, *CONTRADICTIONS) as error:
                self.follower.notes = [str(error)]
            self.view = view = self._view(now)
        for show in list(self.show):
            try:
                show(view)
            except Exception as error:  # the other displays go on: a full disk ends the log, not the page
                self.show.remove(show)
                self._ended.append(f"{type(show).__name__} has ended: {error}")
        return view

    def series(self, since_s: float = -math.inf) -> dict[str, dict[str, list[tuple[float, float, float]]]]:
        """Return all stored values from a time on: name, owner, and (time, mean, maximum) of each bin."""
        found: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
        with self.lock:
            for (name, whose), series in self.follower.store.series.items():
                bins = series.bins(since_s)
                found.setdefault(name, {})[whose] = [(each.begin_s, each.mean, each.most) for each in bins]
        return found

    def _view(self, now: float) -> View:
        follower, step = (
            self.follower,
            max((rank.num_steps for rank in self.follower.ranks.values()), default=0),
        )
        rows, room = follower.processes.rows, probe.host_memory.available_bytes()
        look = Look(
            now,
            follower.begun_s or now,
            follower.store,
            [] if isinstance(follower.gpus, Unknown) else follower.gpus,
            rows,
            room if isinstance(room, int) else None,
            self._num_cpus,
            step,
        )
        moment, alerts, change = self.analysis.judge(look)
        if follower.is_over:
            alerts, change = [], None
        if change is not None and not any(mark.at_s == change.first.at_s for mark in follower.marks):
            text = f"{HEADLINES[moment.cause]}; before: {HEADLINES[change.before.cause]}"
            follower.marks.append(
                Mark(at_s=change.first.at_s, step=change.step, kind="bottleneck", text=text)
            )
        ranks = sorted(follower.ranks.values(), key=lambda rank: (len(rank.name), rank.name))
        steps = [_steps(look, rank) for rank in ranks]
        rates = [each.samples_per_s for each in steps if each.samples_per_s is not None]
        alerts = self._told(alerts, look)
        return View(
            command=follower.command or [follower.folder.name],
            at_s=now,
            clock_s=time.time() - (time.perf_counter() - now),
            state="ended" if follower.is_over else "running" if steps else "starting",
            headline="" if follower.is_over else headline(look, moment),
            verdict=self._verdict(look, moment, alerts, change),
            begun_s=follower.begun_s,
            cause="" if follower.is_over else moment.cause,
            since_step=change and change.step,
            exit_code=follower.exit_code,
            num_steps=step,
            steps_per_s=_steps_per_s(look),
            epoch=first.epoch if (first := next(iter(follower.ranks.values()), None)) else None,
            steps_s=steps,
            samples_per_s=sum(rates) if rates else None,
            gpus=follower.gpus,
            processes=rows[:MOST_PROCESSES],
            num_processes=len(rows),
            cores=moment.cores,
            others=moment.others,
            num_cpus=self._num_cpus,
            memory_bytes=sum(row.rss_bytes for row in rows),
            memory_left_bytes=look.room_bytes,
            recent=recent(follower.store, now),
            marks=list(follower.marks),
            alerts=alerts,
            notes=[*follower.notes, *self._ended],
        )

    def _verdict(self, look: Look, moment: Moment, alerts: list[Alert], change: Change | None) -> str:
        follower = self.follower
        if follower.is_over:
            code = follower.exit_code
            how = "" if code is None else f" {words.ending(code)}"
            return f"The program has ended{how}, after {look.step:,} steps."
        if not look.step:
            hint = (
                " If the program has a loop of steps that was not found, name its function: "
                "--step-function MODULE:FUNCTION."
            )
            return "No step yet." + (hint if look.now - look.begun_s > UNSTEPPED_S else "")
        if moment.cause == "stalled":
            return alerts[0].text
        if moment.shares is None:
            return "No step in the last minute."
        text = sentence(look, moment)
        if change is not None and change.before.shares is not None:
            waited = words.share(change.before.shares.input)
            text += f". Since step {change.step:,}; before, steps waited {waited} for input"
            text += f" and took {words.duration(change.before.pace_s)}" if change.before.pace_s else ""
        return text + "."

    def _told(self, alerts: list[Alert], look: Look) -> list[Alert]:
        """Return the alerts with the details from their begin; an alert that lasts too long is a failure."""
        known, self._alerted = self._alerted, {}
        for alert in alerts:
            key = alert.id, alert.whose
            if key not in known:
                details = self._details() if alert.id == "stalled" else []
                known[key] = look.now, msgspec.structs.replace(alert, since_step=look.step, details=details)
            begun_s, first = known[key]
            now = msgspec.structs.replace(first, text=alert.text)
            self._alerted[key] = begun_s, now
            if look.now - begun_s >= self._fail_on.get(alert.id, math.inf):
                self.failed = now
        return [alert for _, alert in self._alerted.values()]

    def _details(self) -> list[str]:
        """Return what each thread is doing, if this process started the run, and the state of loader
        workers."""
        found = []
        for rank in self.follower.ranks.values():
            is_asked = self.started and isinstance(rank.stacks_by, int)
            threads = stacks(rank.pid, rank.stacks_by, self.follower.folder) if is_asked else []
            found += [
                f"rank {rank.name}, thread {number}: {places}" for number, places in enumerate(threads, 1)
            ]
        workers = [row for row in self.follower.processes.rows if row.is_worker]
        return [*found, *(f"{row.role} ({row.pid}): {row.state}" for row in workers)]


def _steps_per_s(look: Look) -> float | None:
    """Return the first rank's steps a second of the last ten seconds, without pauses between looks."""
    if not look.ranks:
        return None
    rank = look.ranks[0]
    step = look.lately("step", rank, max(WINDOW_S, look.window_s(rank)))
    return step.num / step.total if step.total else None


def _steps(look: Look, rank: Rank) -> StepTimes:
    step, wait, samples = (look.lately(name, rank.name, MINUTE_S) for name in ("step", "wait", "samples"))
    known = {} if not step.total else {
        "median_s": step.quantile(0.5), "p95_s": step.quantile(0.95), "p99_s": step.quantile(0.99),
        "longest_s": step.most, "input_share": wait.total / step.total,
        "samples_per_s": samples.total / step.total if samples.num else None,
    }  # fmt: skip
    return StepTimes(rank=rank.name, pid=rank.pid, num_steps=rank.num_steps, **known)


class Begun:
    """Filter for alerts that the previous state did not have."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def of(self, view: View) -> list[Alert]:
        known, self._known = self._known, {(alert.id, alert.whose) for alert in view.alerts}
        return [alert for alert in view.alerts if (alert.id, alert.whose) not in known]


class Commands:
    """Shell commands, started without waiting for each alert that begins.

    The command gets the alert as JSON (`schema.watch.Alert`) on its input: text that programs chose, such as
    names, is never part of the command itself. At most four commands run at once; meanwhile further alerts
    start no command. The commands' output goes to `output`.
    """

    def __init__(self, command: str, output: IO[str]) -> None:
        self._command, self._output = command, output
        self._begun = Begun()
        self._running: list[subprocess.Popen[bytes]] = []

    def __call__(self, view: View) -> None:
        self._running = [one for one in self._running if one.poll() is None]
        for alert in self._begun.of(view):
            if len(self._running) < MOST_AT_ONCE:
                self._start(alert)

    def _start(self, alert: Alert) -> None:
        started = subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            env={**os.environ, "DYNOTUNE_ALERT": alert.id},
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        self._running.append(started)
        assert started.stdin is not None
        try:
            # No more than a pipe can hold, so that a command that does not read blocks nobody.
            told = document.without_secrets(
                msgspec.structs.replace(alert, details=alert.details[:MOST_DETAILS])
            )
            started.stdin.write(msgspec.json.encode(told))
            started.stdin.close()
        except BrokenPipeError:
            pass
