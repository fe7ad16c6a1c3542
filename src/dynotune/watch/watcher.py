"""Once a second: follow, judge, and hand the view to whoever shows it."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from dynotune import probe
from dynotune.schema import document
from dynotune.schema.errors import CONTRADICTIONS, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import Alert, Mark, StepTimes, View
from dynotune.text import words
from dynotune.watch.analysis import MINUTE_S, Analysis, Change, Look, Moment, sentence
from dynotune.watch.follower import Follower, Rank

EVERY_S, REPLAY_SPEED = 1.0, 10.0
UNSTEPPED_S = 60.0
MOST_PROCESSES = 48
CALL_S, CLOSE_S, ANSWER_S = 60.0, 5.0, 0.2
PLOTTED = ("step", "wait", "rss", "cores", "gpu.kernel_running_percent", "gpu.sm_active_percent",
           "gpu.tensor_active_percent", "gpu.memory_used_bytes", "gpu.power_w")  # fmt: skip


class Watcher:
    """Watches the run in `folder`, until it is over or `stop` is called.

    Args:
        writes: this dynotune started the run, and keeps its samples in the folder.
        replay: play a finished run, ten times as fast.
        on_alert: a command that each new alert is given to, as JSON on standard input; its output goes to `log`.
        fail_on: id of an alert to the seconds that it may last.
    """

    def __init__(
        self, folder: Path, *, writes: bool = False, replay: bool = False, on_alert: str | None = None,
        fail_on: Mapping[str, float] | None = None, log: IO[Any] | int = subprocess.DEVNULL,
    ) -> None:  # fmt: skip
        self.follower, self.analysis = Follower(folder, writes=writes, replay=replay), Analysis()
        self.show: list[Callable[[View], None]] = []
        self.view: View | None = None
        self.failed: Alert | None = None
        self.exit_code: int | None = None
        self.lock = threading.RLock()
        self._replay, self._log, self._on_alert, self._fail_on = replay, log, on_alert, dict(fail_on or {})
        self._alerted: dict[tuple[str, str], tuple[float, int]] = {}
        self._calls: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._num_cpus = len(probe.host.usable_cpus())

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Look each second, until the run is over, an alert has lasted too long, or `stop`."""
        now, wait_s = time.perf_counter(), EVERY_S
        if self._replay:
            self.follower.update(-1.0)
            now, wait_s = self.follower.begun_s or now, EVERY_S / REPLAY_SPEED
        while not self._stopping.is_set():
            self.look(now)
            if self.follower.is_over or self.failed is not None:
                break
            self._stopping.wait(wait_s)
            now = now + EVERY_S if self._replay else time.perf_counter()

    def close(self, exit_code: int | None = None) -> None:
        """Show the end, and give all back."""
        self.exit_code, self.follower.is_over = exit_code, True
        self.look(time.perf_counter())
        self.follower.close()
        for call in self._calls:
            call.join(CLOSE_S)

    def look(self, now: float) -> View:
        with self.lock:
            try:
                self.follower.update(now)
            except (DynotuneError, OSError, *CONTRADICTIONS) as error:
                self.follower.notes = [str(error)]
            self.view = view = self._view(now)
        for show in self.show:
            show(view)
        return view

    def series(self, since_s: float = -math.inf) -> dict[str, dict[str, list[list[float]]]]:
        """What is plotted, from then on: name, whose, and `[time, mean, most, first step]` of each bin."""
        store, found = self.follower.store, dict[str, dict[str, list[list[float]]]]()
        with self.lock:
            for name, whose in store.series:
                if name in PLOTTED:
                    bins = store.of(name, whose).all_bins(since_s)
                    found.setdefault(name, {})[whose] = [
                        [each.begin_s, each.mean, each.most, each.first] for each in bins
                    ]
        return found

    def _view(self, now: float) -> View:
        follower, step = self.follower, max((rank.num_steps for rank in self.follower.ranks.values()), default=0)
        rows, room = follower.processes.rows, probe.host_memory.facts().get("host.memory_available_bytes")
        look = Look(
            now, follower.begun_s or now, follower.store, [] if isinstance(follower.gpus, Unknown) else follower.gpus,
            rows, follower.processes.lost(), follower.losses, room if isinstance(room, int) else None,
            self._num_cpus, step,
        )  # fmt: skip
        moment, alerts, change = self.analysis.judge(look)
        if follower.is_over:
            alerts, change = [], None
        if change is not None and not any(mark.at_s == change.first.at_s for mark in follower.marks):
            text = f"from {change.before.cause}-bound to {moment.cause}-bound"
            follower.marks.append(Mark(at_s=change.first.at_s, step=change.step, kind="bottleneck", text=text))
        behind = {alert.whose for alert in alerts if alert.id == "rank-lag"}
        steps = [self._steps(look, rank, rank.name in behind) for rank in sorted(follower.ranks.values(), key=_place)]
        rates = [each.samples_per_s for each in steps if each.samples_per_s is not None]
        alerts = self._told(alerts, look)
        return View(
            run=follower.folder.name,
            command=follower.command,
            at_s=now,
            clock_s=time.time() - (time.perf_counter() - now),
            state="ended" if follower.is_over else "running" if steps else "starting",
            verdict=self._verdict(look, moment, alerts, change),
            cause="" if follower.is_over else moment.cause,
            since_step=change and change.step,
            exit_code=self.exit_code if follower.end is None else follower.end.exit_code,
            num_steps=step,
            steps_s=steps,
            samples_per_s=sum(rates) if rates else None,
            shares=moment.shares,
            gpus=follower.gpus,
            processes=rows[:MOST_PROCESSES],
            num_processes=len(rows),
            cores=moment.cores,
            num_cpus=self._num_cpus,
            others_cores=moment.others,
            memory_bytes=sum(row.rss_bytes for row in rows),
            marks=list(follower.marks),
            alerts=alerts,
            notes=follower.notes,
        )

    def _verdict(self, look: Look, moment: Moment, alerts: list[Alert], change: Change | None) -> str:
        follower = self.follower
        if follower.is_over:
            code = self.exit_code if follower.end is None else follower.end.exit_code
            how = (
                "" if code is None else f" with exit code {code}" if code >= 0 else f" by {signal.Signals(-code).name}"
            )
            return f"The program has ended{how}, after {look.step:,} steps."
        if not look.step:
            waited = f" for {words.duration(look.now - look.begun_s)}" if follower.begun_s is not None else ""
            hint = " If it has a loop that is not found, name its function: --step-function MODULE:FUNCTION."
            return f"No step yet{waited}." + (hint if look.now - look.begun_s > UNSTEPPED_S else "")
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

    def _steps(self, look: Look, rank: Rank, lags: bool) -> StepTimes:
        step, wait, samples = (look.lately(name, rank.name, MINUTE_S) for name in ("step", "wait", "samples"))
        newest = {
            name: found.mean if (found := look.lately(name, rank.name)).num else None
            for name in ("num_ready", "num_asked", "allocated_bytes", "reserved_bytes")
        }
        known = {} if not step.total else {
            "median_s": step.quantile(0.5), "p95_s": step.quantile(0.95), "p99_s": step.quantile(0.99),
            "longest_s": step.most, "input_share": wait.total / step.total,
            "samples_per_s": samples.total / step.total if samples.num else None,
        }  # fmt: skip
        return StepTimes(
            rank=rank.name, pid=rank.pid, num_steps=rank.num_steps, lags="yes" if lags else "", **known, **newest
        )

    def _told(self, alerts: list[Alert], look: Look) -> list[Alert]:
        """The alerts with what they began with; a new one is handed on, one that lasts too long is a failure."""
        known, self._alerted, found = self._alerted, {}, []
        for alert in alerts:
            key = alert.id, alert.whose
            begun_s, step = self._alerted[key] = known.get(key, (look.now, look.step))
            details = self._details(is_new=key not in known) if alert.id == "stalled" else []
            found.append(msgspec.structs.replace(alert, since_step=step, details=details))
            if key not in known and self._on_alert is not None:
                self._calls.append(threading.Thread(target=self._call, args=(self._on_alert, found[-1]), daemon=True))
                self._calls[-1].start()
            if look.now - begun_s >= self._fail_on.get(alert.id, math.inf):
                self.failed = found[-1]
        return found

    def _details(self, *, is_new: bool) -> list[str]:
        """What each thread is at, as the program answers when it is asked, and the state of loader workers."""
        found, ranks = [], list(self.follower.ranks.values())
        if is_new and not self._replay and sum(map(_ask, ranks)):
            self._stopping.wait(ANSWER_S)
            self.follower.update(time.perf_counter())
        for rank in ranks:
            of = f"rank {rank.name}, " if len(ranks) > 1 else ""
            found += [f"{of}{thread}: {' in '.join(places)}" for thread, places in rank.stacks.items()]
        return [*found, *(f"{row.role} ({row.pid}): {row.state}" for row in self.follower.processes.workers())]

    def _call(self, command: str, alert: Alert) -> None:
        try:
            subprocess.run(
                shlex.split(command), input=document.encode(alert, indent=0) + b"\n", stdout=self._log,
                stderr=self._log, env={**os.environ, "DYNOTUNE_ALERT": alert.id}, timeout=CALL_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            self.follower.notes.append(f"--on-alert failed: {error}")


def _ask(rank: Rank) -> bool:
    """Ask for the stacks by the signal that the process said it answers, if it still catches that."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        status = Path(f"/proc/{rank.pid}/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
        if rank.stacks_by and caught >> (rank.stacks_by - 1) & 1:
            rank.stacks = {}
            os.kill(rank.pid, rank.stacks_by)
            return True
    return False


def _place(rank: Rank) -> tuple[int, str]:
    return len(rank.name), rank.name
