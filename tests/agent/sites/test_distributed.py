"""`ddp.…`, in a process of its own and in ranks that exchange gradients."""

import os
import subprocess
import sys

import pytest

ALONE = """
import os, torch
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
net = torch.nn.Linear(4, 2)
"""
WRAPPED = """
wrapped = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
for _ in range(3):
    wrapped(torch.ones(3, 4)).sum().backward()
out["found"] = [wrapped.bucket_bytes_cap, wrapped.gradient_as_bucket_view, wrapped.static_graph,
                wrapped.find_unused_parameters]
"""
RANKS = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
wrapped = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    wrapped(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("VIEWS", wrapped.gradient_as_bucket_view, round(float(sum(p.sum() for p in net.parameters())), 5))
dist.destroy_process_group()
"""


def test_all_arguments_are_those_that_were_asked_for(child):
    settings = (
        "bucket_cap_mb=7",
        "gradient_as_bucket_view=true",
        "static_graph=true",
        "find_unused_parameters=false",
    )
    done = child(ALONE + WRAPPED, *(f"ddp.{setting}" for setting in settings))
    assert done.out == {"found": [7 * 1024 * 1024, True, True, False]}
    assert len(done.readback) == 4
    assert all(each["ok"] for each in done.readback.values())


def test_gradients_are_compressed_by_torchs_hook(child):
    done = child(ALONE + WRAPPED, "ddp.comm_hook=fp16")
    assert done.readback["ddp.comm_hook"]["ok"] is True
    assert done.readback["ddp.comm_hook"]["found"] == "fp16"


def test_a_hook_of_the_programs_own_stays(child):
    own = WRAPPED.replace(
        "for _ in",
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
        "wrapped.register_comm_hook(None, default_hooks.allreduce_hook)\nfor _ in",
    )
    done = child(ALONE + own, "ddp.comm_hook=fp16")
    assert done.readback["ddp.comm_hook"]["ok"] is False
    assert "of its own" in done.readback["ddp.comm_hook"]["detail"]


def test_a_program_that_wraps_nothing_is_told_so(child):
    done = child("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n", "ddp.static_graph=true")
    assert done.readback["ddp.static_graph"]["ok"] is False
    assert "built no DistributedDataParallel" in done.readback["ddp.static_graph"]["detail"]


@pytest.mark.long
def test_every_rank_has_it_and_learns_the_same(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ranks.py"]
    ours = [sys.executable, "-m", "dynotune", "run", "--set", "ddp.gradient_as_bucket_view=true", "--"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    said = []
    for words in (ranks, [*ours, *ranks]):
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        said.append(next(line for line in done.stdout.splitlines() if line.startswith("VIEWS")).split())
    assert [views for _, views, _ in said] == ["False", "True"]
    assert said[0][2] == said[1][2]
