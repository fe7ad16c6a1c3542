"""What a start on a GPU is made of, and what variables come to there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dynotune
from dynotune.launch.records.reader import Records
from dynotune.measure.startup import phases
from dynotune.schema.events import AgentError, SettingsReadBack
from dynotune.schema.facts import Unknown

pytestmark = pytest.mark.gpu

BOOTSTRAP = Path(dynotune.__file__).parent / "agent" / "bootstrap"
PROGRAM = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
    def forward(self, x):
        return self.body(x)
net = Net().cuda()
as_before = "agent" not in torch.cuda._lazy_init.__code__.co_filename
as_before = as_before and type(torch._C._cuda_getDeviceCount).__name__ == "builtin_function_or_method"
for _ in range(40):
    net(torch.ones(8, 2048, device="cuda"))
print("AS BEFORE", as_before)
"""


def started(tmp_path, *settings, **env):
    folder = tmp_path / "run"
    folder.mkdir()
    planned = [
        {"knob": f"env.{name}", "value": value, "site": {"type": "env", "name": name}, "keep": True}
        for name, value in settings
    ]
    plan = {"settings": planned, "startup": True, "sync_steps": True}
    (folder / "plan.json").write_text(json.dumps(plan))
    child_env = {
        **os.environ,
        "DYNOTUNE_RUN": str(folder),
        "PYTHONPATH": str(BOOTSTRAP),
        **dict(settings),
        **env,
    }
    launched_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=child_env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (record,) = [record for record in Records(folder).update() if record.steps]
    assert not record.all(AgentError), record.all(AgentError)
    return record, launched_s, done.stdout


def test_the_start_of_cuda_and_the_building_of_the_model_are_phases_and_all_sum_to_the_start(tmp_path):
    record, launched_s, printed = started(tmp_path)
    # Covers are gone once CUDA has started.
    assert "AS BEFORE True" in printed
    end_s = record.steps[0].end_s
    found = phases.phases(record, launched_s, end_s)
    known = [value for value in found.values() if not isinstance(value, Unknown)]
    assert sum(known) == pytest.approx(end_s - launched_s)
    assert found["cuda_start"] > 0.005
    assert found["to_device"] > 0
    if sys.version_info >= (3, 12):
        assert found["model_build"] > 0.005
    else:
        assert isinstance(found["model_build"], Unknown)


@pytest.mark.parametrize("mode", ["EAGER", "LAZY"])
def test_the_driver_tells_how_modules_are_loaded(tmp_path, mode):
    record, _, _ = started(tmp_path, ("CUDA_MODULE_LOADING", mode))
    (answer,) = record.last(SettingsReadBack).settings
    assert (answer.witness, answer.found, answer.ok) == ("cuModuleGetLoadingMode", mode, True)
