"""The user's own programs on a GPU that is not there: what they would hold, and what is refused. Real
processes."""

import os
import sys

import pytest

from dynotune import knobs
from dynotune.diagnose import live_memory, memory_runs
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.memory import Capacity, Moment
from dynotune.schema.run import RunSpec
from lab.silent import Silent

MIB = 1 << 20

LOOP = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
batch = int(sys.argv[1])
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
assert device.type == "cuda" and sys.argv[2] in torch.cuda.get_device_name()
model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Dropout(0.1), nn.Linear(4096, 10))
optimizer = torch.optim.AdamW(model.parameters())
model.to(device)  # after the optimizer was made, which keeps its parameters
scaler = torch.amp.GradScaler("cuda")
data = TensorDataset(torch.randn(8 * batch, 256), torch.randint(0, 10, (8 * batch,)))
for x, y in DataLoader(data, batch, pin_memory=True):
    assert x.device.type == "cpu" and x.numpy().std() > 0.5  # what is read and made ready on the CPU is real
    x, y = x.to(device, non_blocking=True), y.to(device)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if not torch.isfinite(loss):
        raise SystemExit("not finite")
    print(f"{loss:.3f}", loss.item())
"""

BOXES = """
import torch
net = torch.nn.Conv2d(3, 8, 3).cuda()
for _ in range(9):
    scores = net(torch.randn(2, 3, 64, 64, device="cuda"))
    boxes = (scores > 0.5).nonzero()
"""

MASKS = """
import torch
embedding = torch.nn.Embedding(100, 32).cuda()
optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
for _ in range(9):
    tokens, lengths = torch.randint(0, 100, (4, 50)).cuda(), torch.tensor([50, 20, 10, 5]).cuda()
    kept = tokens[torch.arange(50, device="cuda")[None] < lengths[:, None]]
    assert kept.shape == (85,) and int(lengths.max()) == 50 and lengths.tolist()[1] == 20
    embedding(kept).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

ATTENTION = """
import torch
layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True, device="cuda").half().eval()
x = torch.randn(4, 2048, 256).cuda().half()
with torch.inference_mode():
    for _ in range(9):
        x = layer(x)
        print(x.mean().cpu().numpy())
"""

WITHOUT_GRADIENTS = """
import torch
net = torch.nn.Linear(64, 64).cuda()
with torch.inference_mode():
    for _ in range(9):
        kept = torch.tensor([], dtype=torch.float32, device=net.weight.device)
        kept = torch.cat([kept, net(torch.randn(32, 64).to(net.weight.device, torch.float32))])
        assert kept.shape == (32, 64) and kept.is_cuda and torch.einsum("ab,ab->a", kept, kept).shape == (32,)
"""

CHECKPOINTS = """
import sys, torch
from torch.utils.checkpoint import checkpoint
blocks = torch.nn.ModuleList(
    [torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 256)) for _ in range(6)]
).cuda()
optimizer = torch.optim.SGD(blocks.parameters(), 0.1)
for _ in range(9):
    x = torch.randn(1024, 256, device="cuda")
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False) if sys.argv[1:] else block(x)
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""  # noqa: E501

BIASES = """
import contextlib, torch
from torch.utils._python_dispatch import TorchDispatchMode
class Sums(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.sum.dim_IntList:
            assert args[0].shape == (8192, 1000) and args[0].stride() == (1000, 1), args[0].stride()
            assert args[0].dtype == torch.bfloat16 and list(args[1]) == [0], args
            sums.append(func)
        return func(*args, **kwargs or {})
net, sums = torch.nn.Linear(64, 1000).cuda(), []
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(9):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = net(torch.randn(8192, 64, device="cuda"))
    with Sums() if step == 0 else contextlib.nullcontext():
        out.backward(torch.ones_like(out))
    optimizer.step()
    optimizer.zero_grad()
assert len(sums) == 1
"""

ADVERSARIES = """
import torch
from torch import nn
maker = nn.Sequential(nn.ConvTranspose2d(64, 32, 4), nn.BatchNorm2d(32), nn.Tanh()).cuda()
judge = nn.Sequential(nn.Conv2d(32, 1, 4), nn.Flatten(), nn.Sigmoid()).cuda()
optimizers = [torch.optim.Adam(net.parameters(), fused=True) for net in (maker, judge)]
for _ in range(9):
    made = maker(torch.randn(8, 64, 4, 4, device="cuda"))
    for net, optimizer, source, label in zip((judge, maker), optimizers, (made.detach(), made), (0.0, 1.0)):
        out = judge(source)
        nn.functional.binary_cross_entropy(out, torch.full_like(out, label)).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        tokens = torch.randint(0, 1000, (128,))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones(128, dtype=torch.long)}
model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=1000))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, max_steps=20, report_to=[], bf16=True, logging_steps=1, save_strategy="no"
)
Trainer(model, arguments, train_dataset=Tokens()).train()
"""  # noqa: E501

LIGHTNING = """
import torch, lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(768, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        self.net = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(256, 3, 16, 16), torch.randint(0, 10, (256,)))
trainer = lightning.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, precision="16-mixed", enable_checkpointing=False, logger=False
)
trainer.fit(Net(), torch.utils.data.DataLoader(data, 16))
"""


AUTOCAST = """
import torch
import torch.nn.functional as F
x, weight = torch.randn(4, 8).cuda(), torch.randn(8, 8, device="cuda", requires_grad=True)
image = torch.randn(1, 3, 8, 8).cuda()
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = x @ weight
    for half in (y, torch.mm(x, weight), F.linear(x, weight), F.conv2d(image, image[:, :, :3, :3]), F.gelu(y), y + y):
        assert half.dtype == torch.bfloat16, half
    log = torch.ops.aten.log_softmax.int(y, -1, None)  # as some versions of torch call it themselves
    for single in (F.layer_norm(y, (8,)), torch.cat([x, y]), y.sum(), F.softmax(y, -1), y.exp(), y.norm(), log):
        assert single.dtype == torch.float32, single
y.sum().backward()
assert weight.grad.dtype == torch.float32 and weight.grad.is_cuda and weight.grad.device.index == 0
raise SystemExit("as on CUDA")
"""  # noqa: E501

MOVES = """
import torch
x = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
assert x.to("cuda") is x and x.cuda() is x and x.to(x) is x and x.is_leaf and x.is_cuda
assert torch.as_tensor([1, 2], device="cuda:0").device == torch.device("cuda", 0) == torch.zeros_like(x).device
assert x.detach().cpu().numpy().tolist() == [1.0, 2.0]
made = torch.nn.functional.one_hot(torch.tensor([0, 2]).cuda(), 5)  # by C++, beside a tensor of the device
assert made.device.type == "cuda" and made.sum().item() == 2
assert torch.empty(3, device="meta").device.type == "meta"
assert torch.cuda.is_current_stream_capturing() is False
with torch.device("cuda"):
    assert torch.nn.Linear(2, 2).weight.is_cuda and torch.tensor(1.0).is_cuda
raise SystemExit("as on CUDA")
"""  # noqa: E501


ODD_CALLS = """
import io, torch
device = torch.device("cuda")
for ask in ("memory_allocated", "max_memory_allocated", "mem_get_info", "memory_stats"):
    getattr(torch.cuda, ask)(device=device)
torch.cuda.set_per_process_memory_fraction(fraction=0.9)
assert torch.tensor(data=[1.0], device=device).is_cuda and torch.zeros(2).cuda(0, True).is_cuda
written = io.BytesIO()
torch.save(torch.ones(2), written)
written.seek(0)
torch.load(written, "cuda")
adjacency = torch.eye(8).to_sparse()
net = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(60):
    optimizer.zero_grad()
    net(torch.rand(32, 64, device=device)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run(program, *words, **asked)`: the answer for a pretended H100."""
    pytest.importorskip("torch")
    monkeypatch.setattr(memory_runs, "_num_gpus", lambda run: 0)

    def run(program, *words, **asked):
        (tmp_path / "program.py").write_text(program)
        spec = RunSpec(
            command=[sys.executable, "program.py", *words],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            base=tmp_path / "runs",
            sandbox=False,
            lock=False,
        )
        return live_memory(spec, Silent(), **{"card": "H100-80GB", **asked})[0]

    return run


def peak(account):
    (rank,) = account.ranks
    assert isinstance(rank.peak, Moment), rank.peak
    assert rank.peak.total_bytes == rank.peak.process_bytes
    return rank.peak


def test_a_plain_loop_has_its_terms_to_the_byte_and_two_batches_tell_what_fits(run):
    batches = [knobs.parse(f"arg.batch={batch}") for batch in (4096, 8192)]
    account = run(LOOP, "{batch}", "2GiB", batches=batches, card="2GiB", asked=[6000])
    weights = 4 * (256 * 4096 + 4096 + 4096 * 10 + 10)
    held, steady = peak(account), account.ranks[0].steady
    assert isinstance(steady, Moment), steady
    assert held.of("weights") == steady.of("gradients") == weights
    assert held.of("gradients") == 4 * (
        4096 * 10 + 10
    )  # the peak is where the bias of the first layer gets its own
    assert held.of("temporary") > 4 * 4096 * 128 * 64  # as 64 blocks sum rows of 128 elements
    assert held.of("optimizer") == pytest.approx(2 * weights, abs=64)
    assert held.of("unknown") < MIB
    (activations,) = [term for term in held.terms if term.name == "activations"]
    assert any(name.startswith("Sequential.") for name in activations.modules)
    assert any("program.py" in note for note in account.ranks[0].notes)
    found = account.capacity
    assert isinstance(found, Capacity), found
    assert list(found.measured) == [4096, 8192]
    assert isinstance(found.largest, int)
    assert found.largest > 8192
    small, large = (moment.of("activations") for moment in found.measured.values())
    # Of a sample at least: hidden values in half precision before and after the gate, and the mask of
    # dropout.
    assert 5 * 4096 <= (large - small) / 4096 <= 12 * 4096
    assert found.margin_bytes > 0.02 * found.limit_bytes


@pytest.mark.long
def test_calls_in_any_spelling_and_tensors_without_storage_are_as_on_a_gpu(run):
    assert peak(run(ODD_CALLS)).of("weights") == 4 * (64 * 64 + 64)


@pytest.mark.long
def test_a_shape_that_depends_on_values_is_refused_with_its_place(run):
    with pytest.raises(CannotRunHere, match=r"nonzero.*program.py\(6\)"):
        run(BOXES)


@pytest.mark.long
def test_values_that_the_program_brought_there_are_known(run):
    account = run(MASKS)
    assert peak(account).of("weights") == 100 * 32 * 4
    assert not any("constant" in note for note in account.ranks[0].notes)


@pytest.mark.long
def test_attention_is_the_kind_that_the_gpu_would_run(run):
    scores = 4 * 4 * 2048 * 2048 * 2
    assert peak(run(ATTENTION)).requested_bytes < scores


@pytest.mark.long
def test_operators_that_come_whole_in_inference_mode_are_followed(run):
    assert peak(run(WITHOUT_GRADIENTS)).of("weights") == 64 * 65 * 4


@pytest.mark.long
def test_checkpoints_take_away_what_lies_between_them(run):
    plain, fewer = (run(CHECKPOINTS, *words) for words in ((), ("on",)))
    assert peak(fewer).of("activations") < 0.5 * peak(plain).of("activations")


@pytest.mark.long
@pytest.mark.parametrize("program", [AUTOCAST, MOVES], ids=["autocast", "moves"])
def test_the_device_answers_as_cuda_does(run, program):
    with pytest.raises(CommandFailed) as failed:
        run(program)
    assert failed.value.last_lines[-1] == "as on CUDA", failed.value.last_lines


@pytest.mark.long
def test_an_error_of_the_program_is_the_commands_own(run):
    with pytest.raises(CommandFailed) as failed:
        run("import torch\ntorch.ones(3, device='cuda')\nraise SystemExit('no such model')")
    assert "no such model" in " ".join(failed.value.last_lines)


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torch.cuda.CUDAGraph()", "CUDA graphs"),
        ("torch.distributed.init_process_group('nccl')", "distributed"),
    ],
)
def test_memory_without_gpu_refuses_calls_that_are_not_modelled(run, line, reason):
    with pytest.raises(CannotRunHere, match=reason):
        run(f"import torch\ntorch.ones(9, device='cuda')\n{line}")


def test_the_peak_of_a_backward_pass_has_the_buffer_that_sums_the_gradient_of_a_bias(run):
    held = peak(run(BIASES))
    gradients, semaphores = 2 * 1000 * (64 + 1), 4 * 8  # in bfloat16, of weights and bias
    assert held.of("temporary") == 65_536_000 + semaphores + gradients


@pytest.mark.long
def test_two_networks_that_train_against_each_other_are_followed(run):
    assert peak(run(ADVERSARIES)).of("optimizer") > 0


@pytest.mark.long
@pytest.mark.parametrize(("package", "program"), [("transformers", TRAINER), ("lightning", LIGHTNING)])
def test_frameworks_find_the_gpu_and_train_on_it(run, package, program):
    pytest.importorskip(package)
    held = peak(run(program))
    assert held.of("weights") > 0
    assert held.of("gradients") + held.of("optimizer") > 0
