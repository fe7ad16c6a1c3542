"""The terms of real programs on a GPU, against torch's statistics and what NVML counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune import knobs
from dynotune.diagnose import live_memory
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, Moment
from dynotune.schema.run import RunSpec
from lab.silent import Silent

pytestmark = pytest.mark.gpu

# Narrow, so that a large batch sets the peak and not the temporaries of the optimizer.
WIDTH = 512
TRAINS = f"""
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
data = TensorDataset(torch.randn(32768, {WIDTH}))
def record():
    BEFORE
record()
while True:
    for (batch,) in DataLoader(data, int(sys.argv[1])):
        optimizer.zero_grad()
        net(batch.cuda()).square().mean().backward()
        optimizer.step()
"""


MIXED = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
net = nn.Sequential(nn.Linear(64, 512), layer, nn.LayerNorm(512), nn.Linear(512, 1000)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
data = TensorDataset(torch.randn(4096, 128, 64), torch.randint(0, 1000, (4096, 128)))
while True:
    for x, y in DataLoader(data, int(sys.argv[1])):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x.cuda()).flatten(0, 1), y.cuda().flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def answer(tmp_path):
    """`answer(*words, before="", env={}, **asked)`: of the training with these arguments."""

    def run(*words, before="pass", env=None, program=TRAINS, **asked):
        (tmp_path / "train.py").write_text(program.replace("BEFORE", before))
        spec = RunSpec(
            command=[sys.executable, "train.py", *words],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            base=tmp_path / "runs",
            lock=False,
        )
        return live_memory(spec, Silent(), **asked)

    return run


def test_the_terms_of_a_training_add_up_and_are_those_of_its_tensors(answer):
    account, folder = answer("8192")
    (rank,) = account.ranks
    peak, steady = rank.peak, rank.steady
    assert isinstance(peak, Moment), peak
    assert isinstance(steady, Moment), steady
    weights = 8 * (WIDTH + 1) * WIDTH * 4
    assert peak.of("weights") == steady.of("weights") == weights
    assert steady.of("gradients") == weights
    assert steady.of("optimizer") == pytest.approx(2 * weights, rel=0.001)
    assert peak.of("inputs") >= 8192 * WIDTH * 4
    assert peak.of("workspaces") > 0
    assert peak.of("unknown") <= 0.05 * peak.total_bytes
    assert not isinstance(peak.process_bytes, Unknown), rank.notes
    assert peak.total_bytes == peak.process_bytes
    assert 100 << 20 < peak.of("context") < 2 << 30
    named = {name for term in peak.terms if term.name == "activations" for name in term.modules}
    assert any(name.startswith("Sequential.") for name in named)
    assert Path(folder / "memory.json").is_file()


def test_batches_of_an_argument_predict_one_that_is_then_run(answer):
    batches = [knobs.parse(f"arg.batch={batch}") for batch in (4096, 8192)]
    account, _ = answer("{batch}", batches=batches, asked=[16384])
    found = account.capacity
    assert isinstance(found, Capacity), found
    assert found.residual < 0.001
    assert found.largest > 8192
    larger, _ = answer("16384")
    (rank,) = larger.ranks
    predicted = next(fit.num_bytes for fit in found.fits if fit.batch == 16384)
    assert predicted == pytest.approx(rank.peak.total_bytes, rel=0.04)


def test_memory_that_runs_out_is_explained(answer):
    with pytest.raises(CommandFailed) as caught:
        answer(
            "256",
            before="torch.cuda.set_per_process_memory_fraction(0.01); torch.empty(1 << 40, device='cuda')",
        )
    assert "more was asked for" in caught.value.message


@pytest.mark.parametrize(
    ("before", "env", "reason"),
    [
        ("torch.cuda.memory._record_memory_history()", {}, "records the allocator's history itself"),
        ("pass", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "cudaMallocAsync"),
    ],
)
def test_a_program_that_cannot_be_recorded_is_left_alone(answer, before, env, reason):
    with pytest.raises(CannotRunHere) as caught:
        answer("256", before=before, env=env)
    assert reason in caught.value.message


@pytest.mark.parametrize("program", [TRAINS, MIXED], ids=["float32", "autocast"])
def test_memory_predicted_without_the_gpu_equals_memory_held_on_it(answer, program):
    live, _ = answer("64", program=program)
    pretended, _ = answer("64", program=program, card="H100-80GB", env={"CUDA_VISIBLE_DEVICES": ""})
    held, predicted = (account.ranks[0].peak for account in (live, pretended))
    for term in ("weights", "gradients", "optimizer", "inputs"):
        assert predicted.of(term) == pytest.approx(held.of(term), rel=0.001, abs=1 << 20), term
    assert predicted.of("activations") == pytest.approx(held.of("activations"), rel=0.03, abs=1 << 20)
    assert predicted.requested_bytes == pytest.approx(held.requested_bytes, rel=0.04)
    assert predicted.reserved_bytes == pytest.approx(held.reserved_bytes, rel=0.04, abs=40 << 20)


def test_a_program_that_limits_itself_has_no_more_than_that(answer):
    limited = "torch.cuda.set_per_process_memory_fraction(0.25)"
    batches = [knobs.parse(f"arg.batch={batch}") for batch in (4096, 8192)]
    account, _ = answer("{batch}", before=limited, batches=batches)
    total = account.ranks[0].total_bytes
    assert account.capacity.limit_bytes <= 0.25 * total


def test_a_run_that_is_not_watched_says_why_its_memory_ran_out(tmp_path):
    lines = [
        "import torch",
        "net = torch.nn.Linear(4096, 4096).cuda()",
        "optimizer = torch.optim.Adam(net.parameters())",
        "torch.empty(1 << 42, device='cuda')",
    ]
    (tmp_path / "fails.py").write_text("\n".join(lines))
    words = [
        sys.executable,
        "-m",
        "dynotune",
        "run",
        "--run-dir",
        str(tmp_path),
        "--",
        sys.executable,
        "fails.py",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "dynotune: The device's memory is full: 16384.00 GiB more was asked for" in done.stderr
    assert "MiB weights" in done.stderr
