"""Once a second: follow, look, and hand the view to whoever shows it."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dynotune import probe
from dynotune.schema import document
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import Alert, Cause, GpuView, Mark, StepTimes, View
from dynotune.text import words
from dynotune.watch import analysis
from dynotune.watch.analysis import Look, Moment
from dynotune.watch.follower import Follower, Rank
from dynotune.watch.process_table import waits
from dynotune.watch.store import LEVELS

EVERY_S = 1.0
REPLAY_SPEED = 10.0
UNSTEPPED_S = 60.0
PLOTTED = ("step", "wait", "samples", "rss", "cores", "gpu.utilisation_percent", "gpu.sm_active_percent",
           "gpu.tensor_active_percent", "gpu.memory_used_bytes", "gpu.power_w")  # fmt: skip

Show = Callable[[View], None]


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
        self.follower = Follower(folder, writes=writes, replay=replay)
        self.show: list[Show] = []
        self.view: View | None = None
        self.failed: Alert | None = None
        self.exit_code: int | None = None
        self._folder, self._replay, self._log = folder, replay, log
        self._on_alert, self._fail_on = on_alert, dict(fail_on or {})
        self._past: deque[Moment] = deque(maxlen=LEVELS[0][1])
        self._alerted: dict[tuple[str, str], tuple[float, Alert]] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopping = threading.Event()
        self.lock = threading.RLock()
        self._cpus = len(probe.host.usable_cpus())

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
        self.exit_code = exit_code
        self.follower.is_over = True
        if not self._replay:
            self.look(time.perf_counter())
        self.follower.close()
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5.0)

    def look(self, now: float) -> View:
        follower = self.follower
        with self.lock:
            try:
                follower.update(now)
            except (DynotuneError, OSError) as error:
                follower.notes = [str(error)]
            self.view = view = self._view(now)
        self._tell(view.alerts, now)
        for show in self.show:
            show(view)
        return view

    def series(self, since_s: float = -math.inf) -> dict[str, dict[str, list[list[float]]]]:
        """What is plotted, from then on: name, whose, and `[time, mean, most, num, first step]` of each bin."""
        store = self.follower.store
        with self.lock:
            return {
                name: {
                    whose: [
                        [each.begin_s, each.mean, each.most, each.num, each.first]
                        for each in store.of(name, whose).bins(since_s)
                    ]
                    for whose in store.whose(name)
                }
                for name in PLOTTED
            }

    def _view(self, now: float) -> View:
        follower = self.follower
        store, sample = follower.store, follower.sample
        gpus = _gpus(sample)
        table = follower.table
        look = Look(
            now, follower.begun_s or now, store, [] if isinstance(gpus, Unknown) else gpus, table.rows, table.history,
            table.lost(), follower.room_bytes, self._cpus,
        )  # fmt: skip
        seen = analysis.shares(look)
        found = [] if follower.is_over else analysis.alerts(look, self._past, follower.typical_s)
        found = [self._since(alert, look) for alert in found]
        cause: Cause = "stalled" if any(alert.id == "stalled" for alert in found) else ""
        lead = look.ranks[0] if look.ranks else ""
        step = max((rank.num_steps for rank in follower.ranks.values()), default=0)
        if seen is not None and not cause and not follower.is_over:
            cause = analysis.cause_of(look, seen)
        pace = analysis.pace_s(look, lead) if lead and not follower.is_over else None
        usual = not analysis.is_slow(pace, analysis.usual_pace_s(look, self._past))
        first, before = analysis.changed(self._past, cause)
        self._past.append(Moment(now, step, cause, pace, seen, usual))
        since = None
        if first is not None and before is not None:
            since = analysis.refined(store, lead, first, before)
            self._mark(first, before, since)
        steps = [
            self._steps(look, rank.name, rank.pid, rank.num_steps)
            for rank in sorted(follower.ranks.values(), key=_place)
        ]
        rates = [each.samples_per_s for each in steps if each.samples_per_s is not None]
        return View(
            run=self._folder.name,
            command=follower.command,
            at_s=now,
            clock_s=time.time() - (time.perf_counter() - now),
            state="ended" if follower.is_over else "running" if steps else "starting",
            verdict=self._verdict(look, cause, since, before, found, step),
            cause=cause,
            since_step=since,
            exit_code=self.exit_code if follower.end is None else follower.end.exit_code,
            num_steps=step,
            steps_s=steps,
            samples_per_s=sum(rates) if rates else None,
            shares=seen,
            gpus=gpus,
            processes=table.shown(),
            num_processes=len(table.rows),
            cores=look.mean("cores"),
            num_cpus=self._cpus,
            others_cores=look.mean("others"),
            memory_bytes=sum(row.rss_bytes for row in table.rows) or None,
            memory_limit_bytes=_known(probe.host.memory_bytes()),
            marks=list(follower.marks),
            alerts=found,
            notes=follower.notes,
        )

    def _verdict(
        self, look: Look, cause: Cause, since: int | None, before: Moment | None, found: Sequence[Alert], step: int
    ) -> str:
        follower = self.follower
        if follower.is_over:
            code = self.exit_code if follower.end is None else follower.end.exit_code
            how = (
                "" if code is None else f" with exit code {code}" if code >= 0 else f" by {signal.Signals(-code).name}"
            )
            return f"The program has ended{how}, after {step:,} steps."
        if not step:
            waited = f" for {words.duration(look.now - look.begun_s)}" if follower.begun_s is not None else ""
            hint = " If it has a loop that is not found, name its function: --step-function MODULE:FUNCTION."
            return f"No step yet{waited}." + (hint if look.now - look.begun_s > UNSTEPPED_S else "")
        stall = next((alert for alert in found if alert.id == "stalled"), None)
        if stall is not None:
            return stall.text
        seen = analysis.shares(look)
        if seen is None or not cause:
            return "No step in the last minute."
        text = analysis.sentence(look, seen, cause)
        if since is not None and before is not None and before.shares is not None:
            text += f". Since step {since:,}; before, steps waited {words.share(before.shares.input)} for input"
            text += f" and took {words.duration(before.pace_s)}" if before.pace_s else ""
        return text + "."

    def _steps(self, look: Look, rank: str, pid: int, num_steps: int) -> StepTimes:
        store = look.store
        step, wait, samples = (store.of(name, rank).over(look.now - 60.0) for name in ("step", "wait", "samples"))
        known = step.num > 0 and step.total > 0
        return StepTimes(
            rank=rank,
            pid=pid,
            num_steps=num_steps,
            median_s=step.quantile(0.5) if known else None,
            p95_s=step.quantile(0.95) if known else None,
            p99_s=step.quantile(0.99) if known else None,
            longest_s=step.most if known else None,
            samples_per_s=samples.total / step.total if known and samples.num else None,
            input_share=wait.total / step.total if known else None,
            lag=analysis.lags(look).get(rank, ""),
        )

    def _mark(self, first: Moment, before: Moment, step: int) -> None:
        marks = self.follower.marks
        if not any(mark.kind == "bottleneck" and mark.at_s == first.at_s for mark in marks):
            text = f"from {before.cause}-bound to {first.cause}-bound"
            marks.append(Mark(at_s=first.at_s, step=step, kind="bottleneck", text=text))

    def _since(self, alert: Alert, look: Look) -> Alert:
        """The alert with what it began with; of a stall, what each thread waits for, asked when it began."""
        key = alert.id, alert.whose
        known = self._alerted.get(key)
        if known is not None:
            since, details = known[1].since_step, known[1].details
        else:
            follower = self.follower
            since = max((rank.num_steps for rank in follower.ranks.values()), default=None)
            details = [] if alert.id != "stalled" else [
                f"rank {rank.name}, {line}" for rank in follower.ranks.values() for line in waits(rank.pid)
            ]  # fmt: skip
            details += [f"{row.role} ({row.pid}): {row.state}" for row in follower.table.workers() if details]
            if details:
                details.append(f"For the lines of Python: py-spy dump --pid {next(iter(follower.ranks.values())).pid}")
        return Alert(id=alert.id, text=alert.text, whose=alert.whose, since_step=since, details=details)

    def _tell(self, found: Sequence[Alert], now: float) -> None:
        keys = {(alert.id, alert.whose): alert for alert in found}
        for key in set(self._alerted) - set(keys):
            del self._alerted[key]
        for key, alert in keys.items():
            begun_s, _ = self._alerted.setdefault(key, (now, alert))
            if begun_s == now and self._on_alert is not None:
                self._call(alert)
            if now - begun_s >= self._fail_on.get(alert.id, float("inf")):
                self.failed = alert

    def _call(self, alert: Alert) -> None:
        self._children = [child for child in self._children if child.poll() is None]
        env = {**os.environ, "DYNOTUNE_ALERT": alert.id}
        try:
            child = subprocess.Popen(
                shlex.split(self._on_alert or ""), stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, env=env
            )
        except OSError as error:
            self.follower.notes.append(f"--on-alert cannot be started: {error}")
            return
        self._children.append(child)
        with contextlib.suppress(OSError):
            assert child.stdin is not None
            child.stdin.write(document.encode(alert, indent=0) + b"\n")
            child.stdin.close()


def _gpus(sample: probe.Sample | None) -> list[GpuView] | Unknown:
    if sample is None or isinstance(sample.gpus, Unknown):
        return Unknown("not sampled yet") if sample is None else sample.gpus  # type: ignore[return-value]
    names = [name for name in GpuView.__struct_fields__ if name not in ("clock_limits", "others")]
    return [
        GpuView(
            **{name: getattr(gpu, name) for name in names},
            clock_limits=[] if isinstance(gpu.clock_reasons, Unknown) else probe.clock_reasons.names(gpu.clock_reasons),
            others=[
                f"{process.name or 'another container'} ({process.pid}), {process.sm_percent}% of the time"
                for process in ([] if isinstance(gpu.processes, Unknown) else gpu.processes)
                if sample.pids_comparable
                and not process.ours
                and isinstance(process.sm_percent, int)
                and process.sm_percent
            ],
        )
        for gpu in sample.gpus
    ]


def _place(rank: Rank) -> tuple[int, str]:
    return len(rank.name), rank.name


def _known(value: int | Unknown) -> int | None:
    return value if isinstance(value, int) else None
