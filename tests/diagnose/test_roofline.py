"""How far a step is from what its device can do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.diagnose.roofline import Peaks, find_roofline, in_types, judged, peaks
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.schema.diagnosis import Roofline
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import RunSpec
from dynotune.trace.facts.flops import Work

from ..doctor.observations import timing
from ..search.simulated import Silent

TRAINS = """
import time, torch
net = torch.nn.Linear(64, 32, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while True:
    net(torch.ones(16, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
"""
PER_S = st.floats(1e6, 1e15)
REACHED = Peaks(flops_per_s={"float32": 1e9, "bfloat16": 4e9}, bytes_per_s=1e8)


def asked(tmp_path, command):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return RunSpec(
        command=command, cwd=tmp_path, env=env, base=tmp_path / "runs", lock=False, warmup_steps=10, timeout_s=120.0
    )


def seen(step_s=0.05, **live):
    return [ProcessState(pid=1, timing=timing(step_s=step_s), live=live)]


def limit_of(run, processes):
    with TaskRunner(run, Silent(), facts={}, label="the run") as runner:
        return find_roofline(runner, run, Silent(), processes)


@pytest.mark.long
def test_a_real_steps_operations_are_set_against_peaks_that_were_reached(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    request = asked(tmp_path, [sys.executable, "train.py"])
    found = limit_of(request, seen(**{"live.num_threads": 1}))
    assert isinstance(found, Roofline)
    # Forward, and the gradient of the weights; none is asked of the input.
    assert found.flops == 2 * 2 * 16 * 64 * 32
    assert found.num_bytes == 2 * 4 * (16 * 64 + 64 * 32 + 16 * 32)
    assert found.dtype == "float32"
    assert found.peak_flops_per_s > 1e8
    assert 0 < found.share < 1
    assert any("left out" in note for note in found.notes)


def test_a_command_that_fails_has_no_limit_and_says_why(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('no data here')")
    found = limit_of(asked(tmp_path, [sys.executable, "train.py"]), seen())
    assert isinstance(found, Unknown)
    assert "no data here" in found.reason


def test_without_a_timed_step_nothing_is_run(tmp_path):
    nothing = Unknown("the test says nothing")
    request = asked(tmp_path, ["not-there"])
    assert limit_of(request, []).reason == "no process of the command made steps"
    assert limit_of(request, [ProcessState(pid=1, timing=nothing)]) == nothing


# The probe


def probed(types, **changed):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    usual = {"uses_device": False, "num_threads": 1, "cwd": Path("/"), "env": env}
    return peaks(changed.pop("python", sys.executable), types, **(usual | changed))


def test_the_probe_tells_a_peak_for_each_type_and_why_there_is_none():
    found = probed(["float32", "no_such_type"])
    assert found.flops_per_s["float32"] > 1e8
    assert found.bytes_per_s > 1e7
    assert "no_such_type" in found.unknown["no_such_type"]


@pytest.mark.long
def test_a_device_that_is_not_there_is_said_for_each_type():
    found = probed(["float32"], uses_device=True)
    assert found.flops_per_s == {}
    assert set(found.unknown) == {"float32", "copy"}


def test_a_probe_that_hangs_or_fails_is_unknown(tmp_path):
    fails = tmp_path / "python"
    fails.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    fails.chmod(0o755)
    assert probed([], python=str(fails)).reason.endswith("exit code 3: broken")
    fails.write_text("#!/bin/sh\nsleep 600\n")
    assert "did not end within 0.2 s" in probed([], python=str(fails), timeout_s=0.2).reason
    assert "cannot be started" in probed([], python=str(tmp_path / "none")).reason
    assert probed([], python=Unknown("no interpreter")) == Unknown("no interpreter")


# The judgement


def work(flops, num_bytes=0.0):
    return Work(flops=flops, num_bytes=num_bytes, num=1)


def test_float32_counts_as_tf32_where_the_process_says_so():
    both = work({("float32", False): 1.0, ("float32", True): 2.0, ("bfloat16", True): 4.0})
    assert in_types(both, {}) == {"float32": 3.0, "bfloat16": 4.0}
    tf32 = {"live.matmul_fp32_precision": "ieee", "live.conv_fp32_precision": "tf32"}
    assert in_types(both, tf32) == {"float32": 1.0, "tf32": 2.0, "bfloat16": 4.0}


def test_the_longer_of_operations_and_bytes_is_the_limit():
    by_type = {"float32": 1e6, "bfloat16": 4e6}
    made = work({("float32", False): 1e6, ("bfloat16", False): 4e6}, num_bytes=1e5)
    found = judged(made, by_type, REACHED, 0.01)
    assert (found.least_s, found.share) == (pytest.approx(2e-3), pytest.approx(0.2))
    assert found.peak_flops_per_s == pytest.approx(2.5e9)
    assert (found.dtype, found.notes[-1]) == ("float32 and bfloat16", "operations 20% in float32, 80% in bfloat16")
    more = judged(work({("float32", False): 1e6}, num_bytes=5e5), {"float32": 1e6}, REACHED, 0.01)
    assert more.least_s == pytest.approx(5e-3)


def test_bytes_that_come_from_caches_set_no_limit():
    found = judged(work({("float32", False): 1e6}, num_bytes=5e6), {"float32": 1e6}, REACHED, 0.01)
    assert found.least_s == pytest.approx(1e-3)
    assert any("caches" in note for note in found.notes)


def test_a_type_without_a_peak_makes_it_unknown():
    found = judged(work({("float64", False): 1.0}), {"float64": 1.0}, REACHED, 0.01)
    assert "float64" in found.reason
    without = Peaks(flops_per_s={"float32": 1.0}, unknown={"copy": "out of memory"})
    assert "out of memory" in judged(work({("float32", False): 1.0}), {"float32": 1.0}, without, 0.01).reason


@given(st.floats(1, 1e15), st.floats(0, 1e12), PER_S, PER_S, st.floats(1e-6, 100))
def test_the_share_is_of_a_step_and_never_more(num, num_bytes, flops_per_s, bytes_per_s, step_s):
    reached = Peaks(flops_per_s={"float32": flops_per_s}, bytes_per_s=bytes_per_s)
    found = judged(work({("float32", False): num}, num_bytes), {"float32": num}, reached, step_s)
    assert 0 <= found.share <= 1
    assert found.least_s >= num / flops_per_s * (1 - 1e-9)
    assert found.share == pytest.approx(min(1, found.least_s / step_s))
