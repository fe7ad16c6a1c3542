"""Ranks that torchrun did not start, and that no environment variable numbers."""

import pytest

from .planned_tasks import window_task

RANKS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

def train(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(80, 4)), batch_size=4):
        net(x).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    os._exit(0)  # torch 2.13 sometimes aborts here otherwise, with and without the agent, at the end of gloo's threads

if __name__ == "__main__":
    mp.start_processes(train, (sys.argv[2],), nprocs=2, start_method=sys.argv[1])
"""  # noqa: E501


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(method, marks=pytest.mark.long) for method in ("spawn", "forkserver"))]
)
def test_each_rank_says_which_it_is_and_times_its_window(
    method, script, tmp_path, run_under_agent, fork_under_agent
):
    # Ranks that are no forks are started as the program was.
    runs = fork_under_agent if method == "fork" else run_under_agent
    ran = runs([script(RANKS), method, tmp_path / "store"], tasks=[window_task(8, 10)])
    assert ran.returncode == 0, ran.stderr
    ranks = sorted(
        (process for process in ran.processes if process.num_steps), key=lambda process: process.rank
    )
    assert [(rank.rank, rank.world_size, rank.num_steps, rank.num_samples) for rank in ranks] == [
        (0, 2, 20, 80),
        (1, 2, 20, 80),
    ]
    assert [(rank.window.first_step, rank.window.num_steps, rank.window.num_samples) for rank in ranks] == [
        (8, 10, 40),
        (8, 10, 40),
    ]


def test_a_process_forked_by_one_at_work_has_no_window(script, fork_under_agent):
    program = """
import os, torch
net = torch.nn.Linear(4, 4)
for _ in range(20):
    net(torch.ones(1, 4))
if os.fork() == 0:
    for _ in range(60):
        net(torch.ones(1, 4))
    os._exit(0)
os.wait()
for _ in range(40):
    net(torch.ones(1, 4))
"""
    ran = fork_under_agent([script(program)], tasks=[window_task(40, 10)])
    assert [process.window is not None for process in ran.processes if process.num_steps] == [True, False]
