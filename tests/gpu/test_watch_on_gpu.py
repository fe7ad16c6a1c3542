"""`dynotune watch` beside a program that fills a GPU."""

from __future__ import annotations

import sys
import time

import pytest

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
            assert gpu.utilisation_percent > 90
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
