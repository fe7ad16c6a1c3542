"""Numbers of a run in W&B, TensorBoard, MLflow and an OpenTelemetry collector: the real packages, offline.

A package that is not installed is skipped: `pip install wandb tensorboard mlflow opentelemetry-sdk
opentelemetry-exporter-otlp-proto-http`.
"""

from __future__ import annotations

import gzip
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynotune import watch
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.watch import Alert, StepTimes, View
from dynotune.watch import RunWatcher, trackers
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
    tracked = watch.log(name, folder)
    tracked(view)
    tracked(later(view, 1.0, 110))
    tracked(msgspec.structs.replace(later(view, 2.0, 120), state="ended"))
    tracked.close()


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
        watch.log("wandbx", tmp_path)


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_log_says_what_to_install_when_the_package_is_missing(name, tmp_path, monkeypatch):
    for module in ("wandb", "tensorboard.summary", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CannotRunHere) as raised:
        watch.log(name, tmp_path)
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
        watch.log(f"tensorboard={tmp_path / 'file' / 'below'}", tmp_path)


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
        watch.log("mlflow=sqlite:////proc/nowhere/x.db", tmp_path)


def test_mlflow_is_refused_soon_when_no_server_answers(tmp_path):
    pytest.importorskip("mlflow")
    with pytest.raises(CannotRunHere, match="MLflow did not begin a run") as raised:
        watch.log("mlflow=http://127.0.0.1:9", tmp_path)
    assert len(raised.value.message) < 300


ALONE = """
import sys
from pathlib import Path
import msgspec
from dynotune.schema.watch import View
from tests.watch.test_trackers import logged
logged(sys.argv[1], Path(sys.argv[2]), msgspec.json.decode(sys.stdin.buffer.read(), type=View))
"""


def logged_alone(name: str, folder: Path, view: View) -> None:
    """Log in a process of its own, which prints nothing: the terminal is the command's."""
    root = Path(__file__).parents[2]
    env = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": f"{root / 'src'}:{root}"}
    words = [sys.executable, "-c", ALONE, name, str(folder)]
    done = subprocess.run(words, input=msgspec.json.encode(view), env=env, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_wandb_keeps_the_run_offline_and_prints_nothing_when_nobody_is_logged_in(tmp_path, view):
    """W&B starts a server beside its process, and reads once who is logged in."""
    pytest.importorskip("wandb")
    logged_alone("wandb", tmp_path, view)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    text = file.read_bytes()
    assert MEDIAN.encode() in text and b"Steps wait" in text and SECRET.encode() not in text


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
    assert sent.close().startswith("Failed to export")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "collector", "ftp://x", "http://"])
def test_otlp_is_refused_when_the_endpoint_is_no_address(endpoint, watcher):
    with pytest.raises(UsageError, match="is no address"):
        watch.Otlp(endpoint, watcher)
