"""Log a watched run to the tracker that its user has: W&B, TensorBoard or MLflow, each by its own package.

A tracker gets numbers only where `--log` names it. The verdict, the only text beside them, holds no secrets.
"""

from __future__ import annotations

import netrc
import os
import queue
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from dynotune.schema import redaction
from dynotune.schema.errors import CannotRunHere, UsageError, may_fail
from dynotune.schema.watch import View
from dynotune.text import words
from dynotune.watch import gauges

EVERY_S = 5.0
MOST_FAILURES = 60
"""How many requests in a row may fail until a tracker gets no more of them."""
PROJECT = "dynotune"
BY_NAME = ("running", "bottleneck", "alert")
"""Gauges that are 1 for a name or a state: no curve for a tracker."""
MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # the terminal is the command's
}
WANDB_OF_THE_TRAINING = (
    *("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_FORK_FROM", "WANDB_RUN_GROUP"),
    *("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_LAUNCH", "WANDB_LAUNCH_CONFIG_PATH"),
)
"""Variables that name the program's own run or sweep, in which the numbers of `watch` have no place."""
WANDB_BEFORE = {"api.forge.coreweave.com": "api.wandb.ai"}
"""The earlier name of W&B's own server, under which its key is kept, too."""
LOGIN_S = 20
"""How long W&B may take to answer before the command starts."""


class Tracker(Protocol):
    """One run of a tracker. `where`: what to type or open to see its values."""

    where: str

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self, verdict: str) -> None:
        """End the run, with the last sentence on it."""


class Log:
    """A display that gives a tracker the numbers of a view, every five seconds and at the end.

    A thread of its own sends them, so that a tracker which does not answer delays no alert.

    Args:
        say: tells the user of the first failure.
    """

    def __init__(self, name: str, tracker: Tracker, say: Callable[[str], None]) -> None:
        self.name, self.tracker, self._say = name, tracker, say
        self._last_s, self._step, self._verdict = float("-inf"), -1, ""
        self._waiting: queue.SimpleQueue[tuple[dict[str, float], int] | None] = queue.SimpleQueue()
        self._num_failed = self._num_in_a_row = 0
        self._thread = threading.Thread(target=self._send, name=f"dynotune-{name}", daemon=True)
        self._thread.start()

    def __call__(self, view: View) -> None:
        if view.state == "running":
            self._verdict = words.plain(redaction.redacted(view.verdict))
        is_due = view.at_s - self._last_s >= EVERY_S or view.state == "ended"
        if is_due and view.num_steps > self._step and (found := values(view)):
            self._last_s, self._step = view.at_s, view.num_steps
            if self._thread.is_alive():
                self._waiting.put((found, view.num_steps))

    def close(self) -> str:
        """Send what waits, and end the tracker's run. Return how many requests failed; "" if none did."""
        self._waiting.put(None)
        self._thread.join()
        self.tracker.close(self._verdict)
        return f"{self._num_failed} requests failed, so values are missing" if self._num_failed else ""

    def _send(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            try:
                self.tracker.log(*waiting)
                self._num_in_a_row = 0
            except Exception as error:  # the package is not ours, and a server may come back
                self._num_failed += 1
                self._num_in_a_row += 1
                if self._num_failed == 1:
                    self._tell(f"{self.name} did not take values, and is asked again: {_brief(error)}")
                if self._num_in_a_row == MOST_FAILURES:
                    self._tell(f"{self.name} gets no more values: {MOST_FAILURES} requests in a row failed")
                    return

    def _tell(self, text: str) -> None:
        with suppress(OSError):
            self._say(text)


def values(view: View) -> dict[str, float]:
    """Return the numbers of a view by the names that trackers show: `dynotune/step_median_seconds`, and with
    several ranks, `dynotune/rank1/step_median_seconds`."""
    found = {"dynotune/alerts": float(len(view.alerts))}
    for gauge in [*gauges.of_steps(view), *gauges.of_run(view)]:
        if gauge.name in BY_NAME:
            continue
        for whose, value in gauge.values.items():
            is_only = not gauge.label or (gauge.label == "rank" and len(view.steps_s) == 1)
            found["/".join(["dynotune", *([] if is_only else [f"{gauge.label}{whose}"]), gauge.name])] = value
    return found


def log(text: str, folder: Path, say: Callable[[str], None]) -> Log:
    """Begin a run of the tracker that `--log` names: NAME or NAME=WHERE.

    Args:
        folder: the run's folder. A tracker that writes files writes them there, if nothing else is said.
        say: tells the user of failures while the run goes on.

    Raises:
        UsageError: no such tracker.
        CannotRunHere: its package is not installed, or its place cannot be written or reached.
    """
    name, _, where = text.partition("=")
    if name not in TRACKERS:
        raise UsageError(f"--log {name} is no tracker.", hint=f"Trackers are {', '.join(TRACKERS)}.")
    try:
        with may_fail(f"log to {name}", f"Name a place that can be written: --log {name}=WHERE."):
            return Log(name, TRACKERS[name](where, folder), say)
    except ImportError as error:
        raise CannotRunHere(
            f"--log {name} needs the package {error.name or name}.", hint=f"pip install 'dynotune[{name}]'"
        ) from error


class _TensorBoard:
    """Event files, by TensorBoard's own writer. `where`: a folder."""

    def __init__(self, where: str, folder: Path) -> None:
        from tensorboard.summary import Writer

        at = Path(where or folder / "tensorboard").absolute()
        at.mkdir(parents=True, exist_ok=True)
        (at / ".dynotune").touch()  # TensorBoard's writer fails in a thread of its own, where nobody sees it
        (at / ".dynotune").unlink()
        self._writer, self.where = Writer(str(at)), f"tensorboard --logdir {shlex.quote(str(at))}"

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, verdict: str) -> None:
        self._writer.close()


class _Wandb:
    """A run of W&B, kept offline where nobody is logged in. `where`: a project."""

    def __init__(self, where: str, folder: Path) -> None:
        with _without(WANDB_OF_THE_TRAINING):
            self._begin(where, folder)

    def _begin(self, where: str, folder: Path) -> None:
        import wandb

        known = wandb.setup(wandb.Settings(silent=True)).settings  # the terminal is the command's
        mode = "offline" if known.mode == "online" and not _logged_in(known) else known.mode
        at = os.environ.get("WANDB_DIR", str(folder))
        quiet = {f"x_disable_{what}": True for what in ("stats", "meta", "machine_info")}
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            x_save_requirements=False,
            init_timeout=LOGIN_S,
            **quiet,
        )
        try:
            self._run = wandb.init(
                project=where or known.project or PROJECT, id=secrets.token_hex(4), resume="never",
                name=folder.name, job_type="dynotune watch", dir=at, mode=mode, settings=settings,
            )  # fmt: skip
        except wandb.Error as error:
            raise CannotRunHere(
                f"W&B did not begin a run: {_brief(error)}",
                hint="WANDB_MODE=offline keeps it on this machine.",
            ) from error
        if mode == "disabled":
            self.where = "nothing, because W&B is disabled"
        elif mode == "offline":
            self.where = f"wandb sync {shlex.quote(str(Path(self._run.dir).parent))}"
        else:
            self.where = self._run.url or ""

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, verdict: str) -> None:
        if verdict:
            self._run.summary["dynotune/verdict"] = verdict
        self._run.finish()


class _MLflow:
    """A run of MLflow's experiment `dynotune`. `where`: the address of a server or of a database."""

    def __init__(self, where: str, folder: Path) -> None:
        # Its client can be told by variables alone. Without them it tries a server that is down for minutes.
        for name, value in MLFLOW.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        at = where or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        try:
            self._client = MlflowClient(tracking_uri=at)
            found = self._client.get_experiment_by_name(PROJECT)
            number = self._client.create_experiment(PROJECT) if found is None else found.experiment_id
            self._run = self._client.create_run(number, run_name=folder.name).info.run_id
        except MlflowException as error:
            raise CannotRunHere(
                f"MLflow did not begin a run at {redaction.redacted(at)}: {_brief(error)}",
                hint="Name a server or a database: --log mlflow=http://127.0.0.1:5000",
            ) from error
        is_server = urlsplit(at).scheme in ("http", "https")
        self.where = redaction.redacted(at)
        if not is_server:
            self.where = f"mlflow ui --backend-store-uri {shlex.quote(self.where)}"

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, verdict: str) -> None:
        try:
            if verdict:
                self._client.set_tag(self._run, "dynotune_verdict", verdict)
        finally:
            self._client.set_terminated(self._run)


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Take these variables out of this process's environment within the block."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _logged_in(known: Any) -> bool:
    """Return whether W&B has a key: in a variable or a setting, or where `wandb login` writes it.

    `wandb.login(prompt=False)` says so from 0.31 on, and changes W&B's settings. Without a key, W&B would ask
    on the terminal.
    """
    if known.api_key or os.environ.get("WANDB_API_KEY") or getattr(known, "identity_token_file", None):
        return True
    host = urlsplit(known.base_url).netloc
    files = [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]
    for file in files:
        with suppress(OSError, RuntimeError, UnicodeDecodeError, netrc.NetrcParseError):  # no file, no home
            kept = netrc.netrc(Path(file).expanduser())
            if any(map(kept.authenticators, (host, WANDB_BEFORE.get(host, host)))):
                return True
    return False


def _brief(error: Exception) -> str:
    """Return what a tracker says of its failure, without secrets, in a line or two."""
    return words.plain(redaction.redacted(str(error).partition("\n")[0]), longest=200)


TRACKERS: dict[str, Callable[[str, Path], Tracker]] = {
    "wandb": _Wandb,
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
}
