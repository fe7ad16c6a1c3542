"""Comparisons within live runs of a real program."""

from __future__ import annotations

import os
import sys

from dynotune import knobs
from dynotune.measure.comparison import in_process, protocol
from dynotune.measure.live import switching
from dynotune.measure.live.request import CompareRequest

from ...fakes import Watcher, spec

PROGRAM = """
import os
import torch
with open("starts", "a") as file:
    print(os.getpid(), file=file)
net = torch.nn.Linear(64, 64)
while True:
    net(torch.randn(256, 64)).square().mean().backward()
    net.zero_grad()
"""


def test_several_comparisons_share_one_start_of_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(in_process, "STRETCH_S", 0.005)
    (tmp_path / "train.py").write_text(PROGRAM)
    run = spec(
        command=[sys.executable, "train.py"], cwd=tmp_path, base=tmp_path / "runs",
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, lock=False, sandbox=False,
    )  # fmt: skip
    settings = [[knobs.parse(text)] for text in ("matmul.fp32_precision=high", "precision.autocast=bf16")]
    with switching.runner_of(run, tmp_path, Watcher(), {}, 120.0) as runner:
        found = [
            protocol.compare(CompareRequest(run=run, candidate=each, in_process="only"), Watcher(), runner=runner)
            for each in settings
        ]
        assert runner.goes_on
        runner.end()
    assert [len(one.pairs) >= in_process.FEWEST_BLOCKS for one in found] == [True, True]
    assert all(one.within for one in found)
    assert len((tmp_path / "starts").read_text().splitlines()) == 1
