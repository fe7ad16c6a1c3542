"""Commands that start the program for somebody: what `docs/guides/launchers.md` says was tried is tried
here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from dynotune.schema.observation import Observation

from .conftest import SOURCE, TRAIN

ROOT = Path(__file__).parents[2]
RANKS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(100_000):
    optimizer.zero_grad()
    net(torch.rand(32, 64)).square().mean().backward()
    optimizer.step()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(64, 64)
data = torch.utils.data.DataLoader(torch.rand(1_000_000, 64), batch_size=8)
net, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), data)
for batch in data:
    optimizer.zero_grad()
    accelerator.backward(net(batch).square().mean())
    optimizer.step()
"""
LIGHTNING = """
import lightning, torch
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(64, 64)
    def training_step(self, batch, at):
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.rand(1_000_000, 64), batch_size=8)
quiet = dict(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
lightning.Trainer(max_epochs=1, **quiet).fit(Net(), data)
"""
RAY = """
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
@ray.remote(num_cpus=1)
def train():
    import train_alone
ray.get(train.remote())
"""


@pytest.fixture
def launched(user):
    """`launched(*command)`: the observation of a diagnosis of the command."""
    user.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{user.env['PATH']}"

    def launched(*command: str) -> Observation:
        told = user.types(
            "diagnose",
            "--run-dir",
            str(user.runs),
            "--warmup",
            "3",
            "--steps",
            "10",
            "--no-lock",
            "--",
            *command,
        )
        assert told.returncode == 0, told.stderr
        (file,) = user.runs.glob("*/observation.json")
        return json.loads(file.read_bytes())

    return launched


def steps(observation) -> list[int]:
    return [process["timing"]["num_steps"] for process in observation["processes"]]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["python", "-m", "train"], id="module"),
        pytest.param(["bash", "-c", "OMP_NUM_THREADS=1 python train.py"], id="shell", marks=pytest.mark.long),
        pytest.param(
            ["env", "A=1", "nice", "-n", "5", "python", "train.py"], id="wrappers", marks=pytest.mark.long
        ),
    ],
)
def test_a_module_a_shell_and_wrappers_are_looked_through(user, launched, command):
    user.write("train.py", TRAIN)
    assert steps(launched(*command)) == [10]


@pytest.mark.long
def test_ranks_of_torchrun_are_one_job(user, launched):
    user.write("train.py", RANKS)
    found = launched("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    assert steps(found) == [10, 10]
    assert sorted(process["rank"] for process in found["processes"]) == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "program", "command"),
    [
        ("accelerate", ACCELERATE, ["accelerate", "launch", "--cpu", "--num_processes", "1", "train.py"]),
        ("lightning", LIGHTNING, ["python", "train.py"]),
        ("ray", RAY, ["python", "train.py"]),
    ],
    ids=["accelerate", "lightning", "ray"],
)
def test_a_frameworks_own_launcher_is_looked_through(user, launched, package, program, command):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    user.write("train_alone.py", TRAIN)
    user.write("train.py", program)
    assert steps(launched(*command)) == [10]


@pytest.mark.long
def test_uv_run_is_looked_through(user, launched):
    if shutil.which("uv", path=user.env["PATH"]) is None:
        pytest.skip("uv is not installed")
    user.write("train.py", TRAIN)
    assert steps(
        launched("uv", "run", "--offline", "--no-project", "--python", sys.executable, "train.py")
    ) == [10]


@pytest.mark.long
def test_a_cell_of_a_notebook_shows_the_report(user, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    user.write("train.py", TRAIN)
    ask = "api.diagnose([PYTHON, 'train.py'], steps=10, warmup=3, lock=False, run_dir='../runs')"
    call = f"from dynotune import api\n{ask}"
    cell = nbformat.v4.new_code_cell(call.replace("PYTHON", repr(sys.executable)))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    monkeypatch.setenv("PYTHONPATH", SOURCE, prepend=os.pathsep)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(user.cwd)}}).execute()
    shown = [output.data["text/html"] for output in cell.outputs if output.output_type == "execute_result"]
    assert len(shown) == 1 and "bottleneck" in shown[0]
    assert {output.output_type for output in cell.outputs} <= {"execute_result", "stream"}


INSTRUCTIONS = {"FROM", "COPY", "RUN", "WORKDIR", "ENV", "ENTRYPOINT", "CMD"}


def test_the_image_of_the_example_is_made_of_what_the_repository_holds():
    text = (ROOT / "examples" / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    words = [line.split(maxsplit=1) for line in lines]
    assert {name for name, _ in words} <= INSTRUCTIONS and words[0][0] == "FROM"
    for name, rest in words:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
        if name in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest)
        if name == "ENV":
            assert re.fullmatch(r"\w+=\S*", rest)


def test_the_job_for_kubernetes_is_one_and_its_volumes_are_there():
    yaml = pytest.importorskip("yaml")
    page = (ROOT / "docs" / "guides" / "launchers.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert container["args"][0] == "diagnose" and "--" in container["args"]
