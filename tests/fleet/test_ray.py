"""Hosts of a Ray cluster: two real nodes on this machine, one of which may be killed in the middle."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

import dynotune
from dynotune.fleet import RayHosts
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.study import Study

from ..fakes import of_run, spec

PYTHON, DEADLINE_S = sys.executable, 240
SOURCE = str(Path(dynotune.__file__).parent.parent)
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray"
)
PROGRAM = """
import os, time, dynotune
def step():
    time.sleep(0.005 if os.environ.get("A") else 0.01)
    dynotune.step()
for _ in range(100_000):
    step()
"""
# On the other node, whose runs are not below the study's folder, the second block never ends.
HANGS = """
import os, pathlib, time
run = pathlib.Path(os.environ["DYNOTUNE_RUN"])
if not (run.parent / "study.json").exists() and run.name.endswith("-prune") and len([*run.parent.glob("*-prune")]) > 5:
    (run / "hangs").touch()
    time.sleep(1000)
"""  # noqa: E501
CLUSTER = """
import os, signal, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
other = cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(other, allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
"""
OPTIONS = (
    "--no-lock", "--budget", "10m", "--step-function", "dynotune.step", "--warmup", "3", "--steps", "20",
    "--margin", "0.1", "--try", "env.A=1", "--try", "env.B=1",
)  # fmt: skip


class Cluster:
    """Two nodes; `address` is the first one's, `kill` ends the second at once."""

    def __init__(self, env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [PYTHON, "-c", CLUSTER], env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.address = self.process.stdout.readline().strip()
        assert self.address, "no cluster was started"

    def kill(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "killed\n"

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(DEADLINE_S)
        self.process.stdout.close()


@pytest.fixture
def env(tmp_path):
    found = {name: os.environ[name] for name in ("PATH",)}
    return found | {"HOME": str(tmp_path), "PYTHONPATH": SOURCE, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def cluster(env):
    cluster = Cluster(env)
    yield cluster
    cluster.close()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    return folder


def tunes(cluster, folder, env, tmp_path, before=()):
    words = ["tune", "--ray", cluster.address, *OPTIONS, "--run-dir", str(tmp_path / "runs")]
    command = [*before, PYTHON, "-m", "dynotune", *words, "--", PYTHON, "train.py"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, env=env, stdin=null, stdout=null, stderr=pipe, text=True)


def studies(tmp_path):
    return [document.read(file, Study) for file in (tmp_path / "runs").glob("*/study.json")]


def of_another_node(tmp_path, phase):
    return [
        one for study in studies(tmp_path) for one in study.trials if one.was_elsewhere and one.phase == phase
    ]


def until(ask, process):
    deadline_s = time.monotonic() + DEADLINE_S
    while not ask():
        assert time.monotonic() < deadline_s and process.poll() is None, process.communicate()
        time.sleep(0.05)


@needs_ray
@pytest.mark.long
def test_a_node_that_is_killed_in_the_middle_takes_nothing_with_it_but_its_block(
    cluster, folder, env, tmp_path
):
    (folder / "train.py").write_text(HANGS + PROGRAM)
    process = tunes(cluster, folder, env, tmp_path)
    until(lambda: [*(tmp_path / "runs").glob("*/*-prune/hangs")], process)
    before = of_another_node(tmp_path, "prune")
    assert before
    cluster.kill()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    (study,) = studies(tmp_path)
    assert [str(one) for one in study.recipe] == ["env.A=1"] and study.confirmed.verdict == "faster"
    assert {one.run for one in before} <= {one.run for one in study.trials if not one.void}
    counted = Counter((one.phase, one.block, one.arm) for one in study.trials if one.block and not one.void)
    assert set(counted.values()) == {1}
    places = {}
    for one in study.trials:
        if one.block and not one.void:
            places.setdefault((one.phase, one.block), set()).add(one.was_elsewhere)
    assert all(len(where) == 1 for where in places.values())
    assert "is left out: " in err
    until_none(env)


@needs_ray
@pytest.mark.long
def test_a_folder_that_the_nodes_do_not_share_travels_to_them(cluster, folder, env, tmp_path):
    """The driver has a file system of its own in that place: the nodes see another program there."""
    (folder / "train.py").write_text("raise SystemExit(3)\n")
    other = tmp_path / "train.py"
    other.write_text(PROGRAM)
    script = (
        f"mount -t tmpfs none {shlex.quote(str(folder))} && cp {shlex.quote(str(other))} "
        f"{shlex.quote(str(folder))} "
    )
    before = ["unshare", "-m", "sh", "-c", f'{script} && cd {shlex.quote(str(folder))} && exec "$@"', "sh"]
    if subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("no file system of its own can be mounted here")
    process = tunes(cluster, folder, env, tmp_path, before)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert of_another_node(tmp_path, "prune")
    (study,) = studies(tmp_path)
    assert {one.ended for one in study.trials} == {"measured"}


@needs_ray
@pytest.mark.long
def test_a_node_with_another_machine_or_torch_is_left_out_and_runs_go_here(cluster, folder, env, tmp_path):
    script = (
        "import sys\nfrom dynotune.measure.live import machine\nfrom dynotune.probe.facts import host\n"
        "real = machine.shared_facts\n"
        "from dynotune.search import tune\n"
        "tune.shared_facts = lambda run: {**real(run), 'torch.version': '0.0'}\n"
        "from dynotune.cli import main\nmain(sys.argv[1:])\n"
    )
    words = ["tune", "--ray", cluster.address, *OPTIONS, "--run-dir", str(tmp_path / "runs")]
    command = [PYTHON, "-c", script, *words, "--", PYTHON, "train.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert "is left out: This study was begun elsewhere: torch.version differ" in done.stderr
    assert "Blocks and pairs go to 0 more nodes" in done.stderr
    assert of_another_node(tmp_path, "prune") == []


@needs_ray
@pytest.mark.long
def test_an_interrupted_study_ends_what_the_nodes_run(cluster, folder, env, tmp_path):
    process = tunes(cluster, folder, env, tmp_path)
    until(lambda: of_another_node(tmp_path, "prune"), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert "Stopped. What was measured is kept" in err
    until_none(env)


def until_none(env):
    """No program of the test is left."""
    deadline_s = time.monotonic() + DEADLINE_S
    while any("train.py" in line for line in _commands(env["HOME"])):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def _commands(home):
    """The commands of processes that belong to this test, by their HOME."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={home}\0".encode() in (process / "environ").read_bytes():
                yield (process / "cmdline").read_text()
        except OSError:
            continue


def hosts(address, run):
    return RayHosts(address, object, run, [], of_run(Study, id="s", budget_s=1.0), pytest.fail)


@needs_ray
def test_a_cluster_that_is_not_there_is_said_before_anything_runs(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(
        CannotRunHere, match=r"Ray cannot work with the cluster .*Connection refused"
    ) as refused:
        hosts(nobody, spec(cwd=tmp_path))
    assert "--ray auto" in refused.value.hint
    for address in ("no address", f"ray://{nobody}"):
        with pytest.raises(UsageError, match="is no address of a Ray cluster"):
            hosts(address, spec(cwd=tmp_path))


@needs_ray
def test_another_version_of_ray_is_said_before_anything_runs(tmp_path, monkeypatch):
    import ray

    def init(*args, **more):
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.1"
        )

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(CannotRunHere, match="Version mismatch"):
        hosts("auto", spec(cwd=tmp_path))


def test_ray_that_is_not_installed_is_said_with_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="Ray, which is not installed") as refused:
        hosts("auto", spec(cwd=tmp_path))
    assert refused.value.hint == "pip install 'dynotune[ray]'"


class Nodes:
    """Ray as far as it is asked here: this node and another one, which runs what it is told to at once."""

    class exceptions:
        RayError = RuntimeError

    def __init__(self):
        self.init = self.shutdown = lambda *words, **more: None

    def remote(self, worker):
        self.worker = worker
        return SimpleNamespace(options=lambda **more: SimpleNamespace(remote=self.begin))

    def begin(self, *words):
        made = self.worker(*words)
        return SimpleNamespace(refuse=SimpleNamespace(remote=made.refuse), do=SimpleNamespace(remote=made.do))

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "here")

    def nodes(self):
        return [{"Alive": True, "NodeID": name, "Resources": {}} for name in ("here", "there")]

    def get(self, found, timeout=None):
        return found

    def wait(self, found, timeout):
        return found, []


def test_a_node_is_told_what_the_study_knows_by_now(tmp_path, monkeypatch):
    """Its time left is counted from the attempts in it."""
    monkeypatch.setitem(sys.modules, "ray", Nodes())
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *words, **more: None)
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace(scheduling_strategies=strategies))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)

    class Told:
        def __init__(self, run, typed, study):
            pass

        def refuse(self, study):
            pass

        def do(self, study, block):
            return study, block

    said = []
    study = of_run(Study, id="s", budget_s=1.0)
    nodes = RayHosts("auto", Told, spec(cwd=tmp_path), [], study, said.append)
    assert nodes.names() == ["there"] and "1 more nodes" in said[0]
    later = replace(study, verdict="later")
    nodes.save(later)
    assert nodes.run("there", "block", lambda: None) == (later, "block")
