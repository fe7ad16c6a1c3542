"""A command's memory from launch to answer, on a device that is made up within the command."""

import sys
from pathlib import Path

import pytest

from dynotune import knobs, probe
from dynotune.diagnose import live_memory
from dynotune.schema import document
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, Moment
from dynotune.schema.run import RunSpec
from lab.silent import Silent

ROOT = Path(__file__).parents[2]
CONTEXT = 300 << 20
WIDTH = 256
TRAINS = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
import _dynotune_agent.tasks.record_memory as agent
import pytest, torch
from torch.utils.data import DataLoader, TensorDataset
from tests.agent.tasks.fake_cuda import FakeCuda
# BEFORE
cuda = FakeCuda(torch, pytest.MonkeyPatch(), agent=agent)
net = torch.nn.Sequential(*[torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range(3)])
for weight in net.parameters():
    cuda.meet(weight)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = TensorDataset(torch.randn(100_000, {WIDTH}))
with cuda.mode():
    for (batch,) in DataLoader(data, int(sys.argv[1])):
        time.sleep(0.005)
        batch = batch.clone()
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """`answer(*words, **asked)`: of the training with these arguments."""
    monkeypatch.setattr(probe, "own_bytes", lambda now, before, pid, reserved: (reserved + CONTEXT, ""))

    def run(*words, before="", script="train.py", **asked):
        (tmp_path / "train.py").write_text(TRAINS.replace("# BEFORE", before))
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        how = RunSpec(
            command=[sys.executable, script, *words],
            cwd=tmp_path,
            env=env,
            base=tmp_path / "runs",
            lock=False,
            warmup_steps=8,
        )
        return live_memory(how, Silent(), **asked)

    return run


def test_a_command_is_accounted_for_and_the_answer_kept(answer):
    account, folder = answer("64")
    (rank,) = account.ranks
    assert isinstance(rank.peak, Moment)
    assert rank.peak.of("weights") == 3 * (WIDTH + 1) * WIDTH * 4
    assert rank.peak.of("context") == CONTEXT
    assert rank.peak.total_bytes == rank.peak.process_bytes
    assert rank.num_samples == 64
    assert rank.before_s > 0
    assert isinstance(account.capacity, Unknown)
    assert document.read(folder / "memory.json", MemoryAccount).ranks == account.ranks


@pytest.mark.long
def test_batches_of_an_argument_are_run_one_after_another(answer):
    batches = [knobs.parse(f"arg.batch={batch}") for batch in (512, 1024)]
    account, _ = answer("{batch}", batches=batches, card="24GiB")
    found = account.capacity
    assert isinstance(found, Capacity), found
    assert list(found.measured) == [512, 1024]
    assert found.card == "24GiB"
    assert found.limit_bytes == 24 << 30
    assert found.largest > 1024


@pytest.mark.long
def test_each_rank_has_an_account_of_its_own(answer):
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", "64"]
    account, _ = answer(*ranks, before="torch.distributed.init_process_group('gloo')", script="-u")
    assert [rank.rank for rank in account.ranks] == [0, 1]
    for rank in account.ranks:
        assert rank.peak.of("weights") == 3 * (WIDTH + 1) * WIDTH * 4
        assert rank.peak.total_bytes == rank.peak.process_bytes
