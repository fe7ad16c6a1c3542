"""Which objects a program leaves behind is counted where its memory grows, in the live run of the
diagnosis."""

from __future__ import annotations

import sys

import pytest

from dynotune.diagnose import conclude
from dynotune.diagnose.live_diagnosis import gather
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import GrownObjects
from dynotune.schema.run import RunSpec
from lab.silent import Silent

PROGRAM = """
import torch
net, kept, total = torch.nn.Linear(8, 8), [], 0.0
optimizer = torch.optim.SGD(net.parameters(), 0.01)
while True:
    loss = net(torch.ones(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    KEEPS
"""


@pytest.fixture
def gathered(tmp_path):
    def gather_(keeps: str):
        (tmp_path / "program.py").write_text(PROGRAM.replace("KEEPS", keeps))
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        run = RunSpec(
            command=[sys.executable, "program.py"],
            cwd=tmp_path,
            env=env,
            base=tmp_path / "runs",
            sandbox=False,
            lock=False,
        )
        return gather(run, Silent())[0]

    return gather_


def test_objects_are_counted_and_named_when_a_program_keeps_its_graphs(gathered):
    observation = gathered("total = total + net(torch.ones(4, 8)).sum(); kept.append(total)")
    assert isinstance(observation.objects, GrownObjects)
    growth = {one.name: one.growth / observation.objects.num_steps for one in observation.objects.grown}
    assert growth["torch.Tensor"] >= 1
    (leak,) = [finding for finding in conclude(observation).findings if finding.id == "leak-graph-kept"]
    assert any("each step leaves behind" in text and "torch.Tensor" in text for text in leak.evidence)


@pytest.mark.long
def test_objects_are_not_counted_when_the_memory_of_a_program_does_not_grow(gathered):
    assert gathered("pass").objects == Unknown("the memory of the program does not grow")
