"""A whole tune on a GPU, of the objective that no other machine can measure: joules a sample, by NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

PROGRAM = """
import torch
from torch import nn

net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
batch = torch.randn(4096, 4096, device="cuda")
print("products are", torch.get_float32_matmul_precision(), flush=True)
for step in range(int(__import__("sys").argv[1])):
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()
"""
TF32 = "matmul.fp32_precision"


@pytest.fixture
def dynotune(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)

    def call(*words, num_steps=1_000_000):
        ours = [sys.executable, "-m", "dynotune", *words, "--", sys.executable, "train.py", str(num_steps)]
        env = {
            **os.environ,
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        return subprocess.run(ours, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)

    return call


def test_a_tune_for_energy_proves_what_takes_fewer_joules_and_the_recipe_applies_it(dynotune, tmp_path):
    said = dynotune(
        "tune",
        "--objective",
        "energy",
        "--budget",
        "400s",
        "--try",
        f"{TF32}=high",
        "--exclude",
        f"{TF32}=medium",
        "--exclude",
        "precision.autocast",
        "--json",
        "study.json",
    )
    assert said.returncode == 0, said.stderr
    study = json.loads((tmp_path / "study.json").read_text())
    assert study["recipe"], f"{study['verdict']}\n{study['trials']}"
    recipe = tomllib.loads((tmp_path / "recipe.toml").read_text())
    assert study["confirmed"]["verdict"] == "faster", study["verdict"]
    assert study["unit"] == "J/step" and study["confirmed"]["unit"] == "step"
    assert recipe["settings"][TF32] == "high"
    applied = dynotune("run", "--recipe", "recipe.toml", num_steps=2)
    assert applied.returncode == 0, applied.stderr
    assert "products are high" in applied.stdout
