"""Numbers of a run in W&B, TensorBoard, MLflow and an OpenTelemetry collector: the real packages, offline.

A package that is not installed is skipped: `pip install wandb tensorboard mlflow opentelemetry-sdk
opentelemetry-exporter-otlp-proto-http`.
"""

from __future__ import annotations

import gzip
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Container, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dynotune import watch
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.watch import Alert, StepTimes, View
from dynotune.watch import RunWatcher, otlp, sending, trackers
from dynotune.watch.follower import Rank

BEGUN_S = 1000.0
MEDIAN, INPUT = "dynotune/step_median_seconds", "dynotune/step_input_ratio"
SECRET = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture
def watcher(tmp_path: Path) -> RunWatcher:
    """A watcher of a run that is fed by hand: a second of steps of 10 ms."""
    folder = tmp_path / "run"
    folder.mkdir()
    made = RunWatcher(folder)
    made.follower.close()
    made.follower.ranks[0] = Rank("0", 0)
    made.follower.ranks[0].num_steps = 100
    for at in range(100):
        for name, value in (("step", 0.01), ("wait", 0.004), ("samples", 32)):
            made.follower.store.add(name, "0", BEGUN_S + at / 100, value, at)
    return made


@pytest.fixture
def view(watcher: RunWatcher) -> View:
    return msgspec.structs.replace(watcher.look(BEGUN_S + 1), verdict=f"Steps wait, with HF_TOKEN={SECRET}.")


def logged(name: str, folder: Path, view: View) -> None:
    """Log three views of five seconds each: the first, one that comes too early, and the last."""
    tracked = watch.log(name, folder, print)
    tracked(view)
    tracked(later(view, 1.0, 110))
    tracked(msgspec.structs.replace(later(view, 2.0, 120), state="ended"))
    assert tracked.close() == ""


def later(view: View, more_s: float, num_steps: int) -> View:
    return msgspec.structs.replace(view, at_s=view.at_s + more_s, num_steps=num_steps)


def test_values_are_named_alone_for_one_rank_and_by_rank_for_several(view):
    found = trackers.values(view)
    assert found[MEDIAN] == pytest.approx(0.01, rel=0.03) and found[INPUT] == pytest.approx(0.4)
    two = msgspec.structs.replace(
        view, steps_s=[*view.steps_s, StepTimes(rank="1", pid=1, num_steps=9, median_s=2)]
    )
    assert trackers.values(two)["dynotune/rank1/step_median_seconds"] == 2
    alerted = msgspec.structs.replace(view, alerts=[Alert(id="stalled", text="")])
    assert trackers.values(alerted)["dynotune/alerts"] == 1
    assert all(isinstance(value, int | float) for value in found.values())


def test_log_is_refused_when_no_tracker_has_that_name(tmp_path):
    with pytest.raises(UsageError, match="wandbx is no tracker"):
        watch.log("wandbx", tmp_path, print)


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_log_says_what_to_install_when_the_package_is_missing(name, tmp_path, monkeypatch):
    for module in ("wandb", "tensorboard.summary", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CannotRunHere) as raised:
        watch.log(name, tmp_path, print)
    assert raised.value.hint == f"pip install 'dynotune[{name}]'"


def test_tensorboard_reads_the_curves_when_a_run_was_logged(tmp_path, view):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    logged("tensorboard", tmp_path, view)
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    points = read.Tensors(MEDIAN)
    assert [point.step for point in points] == [100, 120]
    assert make_ndarray(points[0].tensor_proto) == pytest.approx(0.01, rel=0.03)


def test_tensorboard_is_refused_before_the_command_when_its_folder_cannot_be_made(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(CannotRunHere, match="Cannot log to tensorboard"):
        watch.log(f"tensorboard={tmp_path / 'file' / 'below'}", tmp_path, print)


def test_mlflow_reads_the_curves_and_the_verdict_when_a_run_was_logged(tmp_path, view):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    logged_alone("mlflow", tmp_path, view)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("dynotune").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == tmp_path.name
    assert [point.step for point in client.get_metric_history(run.info.run_id, MEDIAN)] == [100, 120]
    assert run.data.tags["dynotune_verdict"].startswith("Steps wait") and SECRET not in str(run.data.tags)


def test_mlflow_is_refused_before_the_command_when_its_place_cannot_be_written(tmp_path):
    pytest.importorskip("mlflow")
    with pytest.raises(CannotRunHere, match="Cannot log to mlflow"):
        watch.log("mlflow=sqlite:////proc/nowhere/x.db", tmp_path, print)


def test_mlflow_is_refused_soon_when_no_server_answers(tmp_path):
    pytest.importorskip("mlflow")
    with pytest.raises(CannotRunHere, match="MLflow did not begin a run") as raised:
        watch.log("mlflow=http://127.0.0.1:9", tmp_path, print)
    assert len(raised.value.message) < 300


ALONE = """
import sys
from pathlib import Path
import msgspec
from dynotune.schema.watch import View
from tests.watch.test_trackers import logged
logged(sys.argv[1], Path(sys.argv[2]), msgspec.json.decode(sys.stdin.buffer.read(), type=View))
"""


def logged_alone(name: str, folder: Path, view: View, **more: str) -> None:
    """Log in a process of its own, which prints nothing: the terminal is the command's."""
    root = Path(__file__).parents[2]
    env = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": f"{root / 'src'}:{root}", **more}
    words = [sys.executable, "-c", ALONE, name, str(folder)]
    done = subprocess.run(words, input=msgspec.json.encode(view), env=env, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_wandb_keeps_the_run_offline_and_prints_nothing_when_nobody_is_logged_in(tmp_path, view):
    """W&B starts a server beside its process, and reads once who is logged in."""
    pytest.importorskip("wandb")
    logged_alone("wandb", tmp_path, view, **dict.fromkeys(trackers.WANDB_OF_THE_TRAINING, "theirs"))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    text = file.read_bytes()
    assert "theirs" not in str(file) and b"theirs" not in text
    assert MEDIAN.encode() in text and b"Steps wait" in text and SECRET.encode() not in text


@pytest.fixture
def wandb_environment(tmp_path, monkeypatch):
    """An environment without a login, in which W&B would write into the training's own run."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in trackers.WANDB_OF_THE_TRAINING:
        monkeypatch.setenv(name, "theirs")
    settings = SimpleNamespace(api_key=None, mode="online", base_url="https://api.wandb.ai", project=None)
    begun: dict[str, Any] = {}

    def init(**options: Any) -> SimpleNamespace:
        begun.update(options, theirs=[name for name in trackers.WANDB_OF_THE_TRAINING if name in os.environ])
        return SimpleNamespace(url="https://wandb.ai/x", dir=str(tmp_path / "wandb" / "files"))

    module = SimpleNamespace(
        setup=lambda _: SimpleNamespace(settings=settings), Settings=dict, init=init, Error=OSError
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    return SimpleNamespace(settings=settings, begun=begun)


@pytest.mark.parametrize("server", ["https://api.wandb.ai", "https://api.forge.coreweave.com"])
def test_wandb_is_online_when_the_login_is_in_a_netrc(tmp_path, wandb_environment, server):
    wandb_environment.settings.base_url = server
    assert "wandb sync" in watch.log("wandb", tmp_path, print).tracker.where
    assert wandb_environment.begun["mode"] == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert watch.log("wandb", tmp_path, print).tracker.where == "https://wandb.ai/x"
    assert wandb_environment.begun["mode"] == "online"


def test_wandb_begins_a_run_of_its_own_when_the_training_names_one(tmp_path, wandb_environment):
    watch.log("wandb", tmp_path, print)
    assert wandb_environment.begun["theirs"] == [] and wandb_environment.begun["resume"] == "never"
    assert wandb_environment.begun["id"] != "theirs" and os.environ["WANDB_RUN_ID"] == "theirs"


def test_wandb_names_no_sync_when_it_is_disabled(tmp_path, wandb_environment):
    wandb_environment.settings.mode = "disabled"
    assert "sync" not in watch.log("wandb", tmp_path, print).tracker.where


class Flaky:
    """A tracker that fails on the steps of `fails`, and may wait for `answers` at its end."""

    where = ""

    def __init__(self, fails: Container[int] = (), answers: threading.Event | None = None) -> None:
        self.fails, self.answers, self.steps = fails, answers, []

    def log(self, values: Any, step: int) -> None:
        if step in self.fails:
            raise OSError(f"no answer, with HF_TOKEN={SECRET}")
        self.steps.append(step)

    def close(self, verdict: str) -> None:
        if self.answers is not None:
            self.answers.wait()


def test_log_goes_on_and_says_so_once_when_a_request_fails(view):
    said: list[str] = []
    tracked = trackers.Log("mlflow", tracker := Flaky({100, 120}), said.append)
    for at in range(4):
        tracked(later(view, at * 5.0, 100 + at * 10))
    assert tracked.close() == "2 requests failed, so values are missing"
    assert tracker.steps == [110, 130] and len(said) == 1 and SECRET not in said[0]


def test_log_ends_and_says_so_when_many_requests_in_a_row_fail(view, monkeypatch):
    monkeypatch.setattr(trackers, "MOST_FAILURES", 3)
    said: list[str] = []
    tracked = trackers.Log("mlflow", Flaky(range(1000)), said.append)
    for at in range(9):
        tracked(later(view, at * 5.0, 100 + at * 10))
    assert tracked.close() == "3 requests failed, so values are missing"
    assert "gets no more values" in said[-1]


def test_end_abandons_a_tracker_when_it_does_not_answer(view):
    said: list[str] = []
    hangs = trackers.Log("wandb", Flaky(answers=threading.Event()), said.append)
    ends = trackers.Log("mlflow", Flaky(), said.append)
    assert not sending.end([hangs, ends], said.append, within_s=0.05)
    assert len(said) == 1 and said[0].startswith("wandb: no answer within")
    assert sending.end([trackers.Log("mlflow", Flaky(), said.append)], said.append) and len(said) == 1


def test_end_abandons_trackers_when_ctrl_c_is_pressed():
    said: list[str] = []

    class Interrupts(Flaky):
        def close(self, verdict: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()

    def ignore(number: int, frame: Any) -> None:
        """Leave Ctrl-C to the command."""

    before = signal.signal(signal.SIGINT, ignore)
    try:
        assert not sending.end([trackers.Log("wandb", Interrupts(), said.append)], said.append)
        assert signal.getsignal(signal.SIGINT) is ignore
    finally:
        signal.signal(signal.SIGINT, before)
    assert said == ["wandb: Ctrl-C ended the wait for an answer, so the last values may be missing"]


class Collector(http.server.ThreadingHTTPServer):
    """What an OpenTelemetry collector receives, decoded by OpenTelemetry's own protocol."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Export)
        self.found: dict[str, dict[tuple[str, ...], float]] = {}
        self.paths: set[str] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Export(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = metrics_service_pb2.ExportMetricsServiceRequest()
        request.ParseFromString(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
        self.server.paths.add(self.path)
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            points = getattr(metric, metric.WhichOneof("data")).data_points
            self.server.found[metric.name] = {
                tuple(of.value.string_value for of in point.attributes): point.as_double or point.as_int
                for point in points
            }
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.sdk")
    made = Collector()
    yield made
    made.shutdown()
    made.server_close()


def test_otlp_sends_counters_and_gauges_to_the_metrics_path_when_a_run_ends(collector, watcher, view):
    sent = watch.Otlp(f"http://127.0.0.1:{collector.server_port}", watcher)
    sent(view)
    assert sent.close() == ""
    assert collector.paths == {"/v1/metrics"}
    assert collector.found["dynotune_steps"] == {("0",): 100}
    assert collector.found["dynotune_step_time"][("0",)] == pytest.approx(1.0)
    assert collector.found["dynotune_input_wait"][("0",)] == pytest.approx(0.4)
    assert collector.found["dynotune_step_input_ratio"][("0",)] == pytest.approx(0.4)
    assert collector.found["dynotune_running"] == {(): 1}


def test_otlp_says_why_when_the_collector_does_not_answer(watcher, view, capfd):
    pytest.importorskip("opentelemetry.sdk")
    sent = watch.Otlp("http://127.0.0.1:1", watcher)
    sent(view)
    assert "did not arrive: Failed to export" in sent.close()
    assert capfd.readouterr() == ("", "")


def test_otlp_says_so_when_the_collector_takes_the_request_and_never_answers(watcher, view, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sent = watch.Otlp(f"http://127.0.0.1:{server.getsockname()[1]}", watcher)
        sent(view)
        assert "did not arrive" in sent.close()


def test_otlp_adds_its_path_before_the_query(watcher):
    pytest.importorskip("opentelemetry.sdk")
    sent = watch.Otlp("http://127.0.0.1:4318?tenant=a", watcher)
    assert sent.name == "http://127.0.0.1:4318/v1/metrics?tenant=a"


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4318", "collector", "ftp://x", "http://", "http://[", "http://h:x"]
)
def test_otlp_is_refused_when_the_endpoint_is_no_address(endpoint, watcher):
    with pytest.raises(UsageError, match="is no address"):
        watch.Otlp(endpoint, watcher)
