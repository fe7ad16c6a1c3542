"""`dynotune watch` beside a program that fills a GPU."""

from __future__ import annotations

import contextlib
import sys
import time

import pytest

from dynotune.schema.facts import Unknown
from dynotune.watch import RunWatcher

from ..cli.conftest import until, user

__all__ = ["user"]
pytestmark = pytest.mark.gpu

# Large products of half precision: the tensor cores are busy nearly all the time.
PROGRAM = """
import sys, torch
net = torch.nn.Linear(8192, 8192, bias=False, device="cuda", dtype=torch.float16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
x = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
while "end" not in open(sys.argv[1]).read():
    net(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
"""
PATIENCE_S = 60


def test_a_full_gpu_is_said_so_by_its_multiprocessors_and_tensor_cores(user):
    control = user.write("control", "")
    user.write("train.py", PROGRAM)
    user.env.pop("OMP_NUM_THREADS")
    words = ["run", "--run-dir", str(user.runs), "--", sys.executable, "train.py", str(control)]
    with user.start(*words) as running, contextlib.ExitStack() as stack:
        # Whatever fails, the program does not go on for ever, and nobody waits for it.
        stack.callback(running.terminate)
        stack.callback(control.write_text, "end")
        until(
            lambda: running.poll() is not None or list(user.runs.glob("*/process-*.rec")), "the run's record"
        )
        (folder,) = user.runs.iterdir()
        watcher = RunWatcher(folder)
        stack.callback(watcher.follower.close)
        view = looked(watcher, running, lambda view: view.cause == "device")
        assert view.verdict.startswith("Device-bound")
        assert view.gpus[0].kernel_running_percent > 90
        assert view.gpus[0].memory_bytes > view.gpus[0].memory_used_bytes > 0
        assert view.gpus[0].power_w > 100
        view = looked(watcher, running, lambda view: is_full(view.gpus[0]))
        if not isinstance(view.gpus[0].sm_active_percent, Unknown):  # Hopper on
            assert view.gpus[0].tensor_active_percent > 30
        control.write_text("end")
        running.communicate(timeout=120)


def looked(watcher, running, right):
    """The first view that is right. Work of others on the GPU may keep it from ever being so: say what was
    seen."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not right(view := watcher.look(time.perf_counter())):
        assert running.poll() is None, f"the program has ended: {running.stderr.read()}"
        assert time.monotonic() < deadline_s, (
            f"not within {PATIENCE_S} s; last seen: {view.verdict} {view.gpus}"
        )
        time.sleep(0.5)
    return view


def is_full(gpu):
    """Whether its multiprocessors are busy; a GPU that has no such counter is not asked for more."""
    unknown = isinstance(gpu.sm_active_percent, Unknown)
    return "Hopper" in gpu.sm_active_percent.reason if unknown else gpu.sm_active_percent > 80
