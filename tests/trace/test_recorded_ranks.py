"""Ranks that really exchange gradients, recorded by torch's profiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dynotune.trace import summarise
from dynotune.trace.readers import read_traces

# In its backward pass the second rank waits until the first has its last gradient, and works on after that:
# however fast the machine is, it is the last.
RANKS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.profiler import profile

def train(rank, folder, ends):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    much = torch.ones(512, 512)

    def work(gradient):
        if rank == 0:
            ends[0].send_bytes(b"ready")
        else:
            ends[1].recv_bytes()
            for _ in range(6):
                much @ much

    net[0].weight.register_hook(work)

    def step():
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(with_stack=True) as recorded:
        for number in range(9):
            with torch.profiler.record_function("ProfilerStep#%d" % number):
                step()
    recorded.export_chrome_trace(folder + "/rank%d.json" % rank)
    dist.barrier()
    os._exit(0)

if __name__ == "__main__":
    ends = mp.get_context("fork").Pipe()
    mp.start_processes(train, (sys.argv[1], ends), nprocs=2, start_method="fork")
"""


@pytest.mark.long
def test_the_rank_whose_gradients_are_ready_last_is_named_with_its_phase_and_place(
    tmp_path: Path, target_python: str
):
    program = tmp_path / "train.py"
    program.write_text(RANKS)
    ran = subprocess.run(
        [target_python, program, tmp_path],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=180,
    )
    assert ran.returncode == 0, ran.stderr
    found = summarise(read_traces([tmp_path / "rank0.json", tmp_path / "rank1.json"]))
    assert found.ranks is not None
    assert [(one.rank, one.phases) for one in found.ranks.stragglers] == [(1, ["backward"])]
    cause = next(cause for cause in found.causes if cause.id == "rank-imbalance")
    assert cause.claim.startswith("Rank 1 is ")
    assert cause.claim.endswith(" late in backward each step: the others wait.")
    assert cause.where.function.endswith(": work")
