"""Comparisons within live runs of a real program."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from dynotune import knobs
from dynotune.measure.bench import in_process, protocol
from dynotune.measure.live import Live, switching
from dynotune.measure.live.request import CompareRequest
from dynotune.schema.events import Block, Stretch

from ...fakes import Watcher, spec

# A step takes far longer without autocast.
PROGRAM = """
import gc
gc.disable()
import os
import time
import torch
with open("starts", "a") as file:
    print(os.getpid(), file=file)
class Net(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.001 if torch.is_autocast_enabled("cpu") else 0.01)
        return super().forward(x)
net = Net(64, 64)
for step in range(NUM_STEPS):
    net(torch.randn(8, 64)).square().mean().backward()
    net.zero_grad()
"""
SAME, FASTER = "matmul.fp32_precision=high", "precision.autocast=bf16"


@pytest.fixture
def program(tmp_path: Path, monkeypatch):
    """Writes a program of so many steps, and returns how it is run."""
    monkeypatch.setattr(in_process, "STRETCH_S", 0.02)

    def write(num_steps):
        (tmp_path / "train.py").write_text(PROGRAM.replace("NUM_STEPS", str(num_steps)))
        return spec(
            command=[sys.executable, "train.py"], cwd=tmp_path, base=tmp_path / "runs", warmup_steps=4,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, lock=False, sandbox=False,
        )  # fmt: skip

    return write


def compared(run, setting, live=None, **more):
    request = CompareRequest(run=run, candidate=[knobs.parse(setting)], in_process="only", **more)
    return protocol.compare(request, Watcher(), live=live)


def starts(folder):
    return list(map(int, (folder / "starts").read_text().split()))


def test_several_comparisons_share_one_start_of_the_program(program, tmp_path):
    run = program(10**9)
    with Live(run, tmp_path, {}, Watcher(), limit_s=120.0) as live:
        faster, same = compared(run, FASTER, live), compared(run, SAME, live)
        assert live.goes_on
    assert (faster.within, same.within) == (True, True)
    # The verdict also asks whether the baseline is as in the plain window, which other programs here may
    # change.
    assert faster.ci is not None and faster.ci[0] > 1
    assert len(same.pairs) >= in_process.FEWEST_BLOCKS
    assert len(starts(tmp_path)) == 1


def test_a_shared_run_that_has_died_is_started_again(program, tmp_path):
    run = program(10**9)
    with Live(run, tmp_path, {}, Watcher(), limit_s=120.0) as live:
        compared(run, FASTER, live)
        os.kill(starts(tmp_path)[0], signal.SIGKILL)
        found = compared(run, FASTER, live)
        assert found.ci is not None and found.ci[0] > 1
        os.kill(starts(tmp_path)[1], signal.SIGKILL)
    assert len(starts(tmp_path)) == 2
    # Both live runs have a record, though neither was ended by dynotune.
    assert len(list(tmp_path.glob("*/run.json"))) == 2


def test_blocks_of_a_program_that_ends_too_soon_are_made_in_several_runs_of_it(program, tmp_path):
    found = compared(program(160), SAME, max_pairs=12, margin=0.0, precision=1e-6)
    assert found.num_pairs == len(found.pairs) == 12
    # A block has 16 steps at least.
    assert len(starts(tmp_path)) >= 2


def of_block(order, baseline_s):
    baseline, candidate = [[Stretch(each, 10, None)] * 2 for each in (baseline_s, 1.0)]
    return Block(
        arm=0, number=0, order=order, begin_s=0.0, end_s=1.0, baseline=baseline, candidate=candidate
    )  # fmt: skip


def said(found, monkeypatch):
    """Lets a live run say this of the arm's turns, without a run."""

    class Turns:
        def __iter__(self):
            return iter([])

        def found(self):
            return found

    monkeypatch.setattr(Live, "turns", lambda live, arms, left_s, plan: Turns())


def test_blocks_too_few_for_a_verdict_are_shown_with_the_reason_and_what_to_do(program, monkeypatch):
    made = [of_block("ABBA", 1.1)]
    found = switching.SwitchedArms(blocks={SAME: made}, reason="the 90 s given were over", stretch_steps=10)
    said(found, monkeypatch)
    comparison = compared(program(10), SAME)
    assert (comparison.verdict, comparison.num_pairs, comparison.stretch_steps) == ("undecided", 1, 10)
    assert comparison.speedup == pytest.approx(1.1)
    assert "only 1 block counts: the 90 s given were over. --in-process never" in comparison.reason


def test_blocks_that_do_not_count_give_no_figure(program, monkeypatch):
    found = switching.SwitchedArms(
        given_up={SAME: "once it is off again, a step takes longer"}, stretch_steps=10
    )
    said(found, monkeypatch)
    comparison = compared(program(10), SAME)
    assert (comparison.verdict, comparison.speedup, comparison.num_pairs) == ("undecided", None, 0)
    assert "a step takes longer. --in-process never" in comparison.reason
