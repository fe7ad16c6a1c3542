"""`dynotune watch` beside a program that fills a GPU."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from dynotune.agent.core.program import Program
from dynotune.agent.facts import sight as sights
from dynotune.agent.facts.sight import Sight
from dynotune.watch import Watcher

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


def test_a_full_gpu_is_said_so_by_its_multiprocessors_and_tensor_cores(user):
    control = user.write("control", "")
    user.write("train.py", PROGRAM)
    user.env.pop("OMP_NUM_THREADS")
    words = ["run", "--run-dir", str(user.runs), "--", sys.executable, "train.py", str(control)]
    with user.start(*words) as running:
        until(lambda: list(user.runs.glob("*/process-*.rec")), "the run's record")
        (folder,) = user.runs.iterdir()
        watcher = Watcher(folder)
        try:
            view = until(
                lambda: (seen := watcher.look(time.perf_counter())).cause == "device" and seen, "a busy device"
            )
            gpu = view.gpus[0]
            assert gpu.kernel_running_percent > 90
            assert view.verdict.startswith("Device-bound")
            if isinstance(gpu.sm_active_percent, float):  # Hopper on
                full = lambda: (seen := watcher.look(time.perf_counter()).gpus[0]).sm_active_percent > 80 and seen  # noqa: E731
                assert until(full, "full multiprocessors").tensor_active_percent > 30
            assert gpu.memory_bytes > gpu.memory_used_bytes > 0
            assert gpu.power_w > 100
        finally:
            watcher.follower.close()
            control.write_text("end")
        running.communicate(timeout=120)


def test_a_loss_on_the_gpu_is_copied_without_a_wait_and_memory_is_said(monkeypatch):
    torch = pytest.importorskip("torch")
    said = []
    program = Program("", said.append, lambda where, error: said.append(error))
    program.torch = torch
    original = torch.autograd.backward
    sight = Sight(program, lambda where, error: said.append(error))
    monkeypatch.setattr(sights, "EVERY_S", 0.0)
    weight = torch.full((1 << 20,), float("nan"), device="cuda", requires_grad=True)
    loss = (weight * 2).mean()
    try:
        sight.torch_is_here(torch)
        # The first copy makes its pinned memory.
        loss.backward(retain_graph=True)
        torch.cuda.set_sync_debug_mode("error")
        sight.reached(1)
        loss.backward()
        sight.reached(2)
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        sight.reached(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.autograd.backward = original
        signal.signal(sight.signal, signal.SIG_DFL)
    assert "nan" in {event.get("loss") for event in said}
    assert 1 << 22 <= said[-1]["allocated_bytes"] <= said[-1]["reserved_bytes"]
