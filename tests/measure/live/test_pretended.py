"""The user's own programs on a GPU that is not there: what they allocate, and what is refused. Real processes."""

import os
import sys

import pytest

from dynotune import memory
from dynotune.measure.live import pretended
from dynotune.measure.live.machine import facts_of
from dynotune.schema.errors import CommandFailed
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_prediction import MemoryPrediction
from dynotune.schema.run import RunSpec

MIB = 1 << 20

LOOP = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
batch = int(sys.argv[1])
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
assert device.type == "cuda" and "H100" in torch.cuda.get_device_name()
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
"""

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


@pytest.fixture
def run(tmp_path, target_python):
    """Runs a program on a pretended H100. Gives the allocations, and the prediction."""

    def run(program, *words):
        pytest.importorskip("torch")
        if target_python != sys.executable:
            pytest.skip("other versions of torch are not tested here")
        (tmp_path / "program.py").write_text(program)
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir(mode=0o700)
        spec = RunSpec(
            command=[target_python, "program.py", *words], cwd=tmp_path, env=dict(os.environ), base=tmp_path,
            sandbox=False, lock=False,
        )  # fmt: skip
        gpu = memory.gpu("H100-80GB")
        found, settings = pretended.allocations(spec, [], gpu, folder=folder, facts=facts_of(spec), limit_s=240)
        return found, memory.predict(found, gpu, settings)

    return run


def terms(prediction):
    assert isinstance(prediction, MemoryPrediction), prediction
    return {term.name: term.num_bytes for term in prediction.terms}


def test_a_plain_loop_has_its_terms_to_the_byte_and_batches_share_their_allocations(run):
    runs = []
    for batch in (4096, 8192):
        found, prediction = run(LOOP, str(batch))
        runs.append((batch, found))
        weights = 4 * (256 * 4096 + 4096 + 4096 * 10 + 10)
        held = terms(prediction)
        assert held["parameters"] == held["gradients"] == weights
        assert held["optimizer states"] == 2 * weights
        assert sum(held.values()) == prediction.peak_bytes
        assert any("program.py" in place for place in found.reads)
    largest = memory.largest_batch(runs, memory.gpu("2GiB"))
    assert isinstance(largest.fits, int) and largest.fits > 8192
    # Of a sample at least: hidden values in half precision before and after, with the mask of dropout.
    assert largest.bytes_per_sample > 3 * 2 * 4096


def test_a_shape_that_depends_on_values_is_refused_with_its_place(run):
    _found, prediction = run(BOXES)
    assert isinstance(prediction, Unknown)
    assert "program.py(6)" in prediction.reason and "nonzero" in prediction.reason


def test_values_that_the_program_brought_there_are_known(run):
    found, prediction = run(MASKS)
    assert isinstance(prediction, MemoryPrediction)
    assert not found.reads


def test_attention_is_the_kind_that_the_gpu_would_run(run):
    found, _prediction = run(ATTENTION)
    operators = {found.words[event[4]] for event in found.events if len(event) == 5}
    assert "_scaled_dot_product_flash_attention" in operators
    assert max(event[1] for event in found.events if len(event) == 5) < 2 * 4 * 4 * 2048 * 2048


def test_checkpoints_take_away_what_lies_between_them(run):
    plain, fewer = (terms(run(CHECKPOINTS, *words)[1])["activations"] for words in ((), ("on",)))
    assert fewer < 0.4 * plain


def test_an_error_of_the_program_is_the_commands_own(run):
    with pytest.raises(CommandFailed) as failed:
        run("import torch\ntorch.ones(3, device='cuda')\nraise SystemExit('no such model')")
    assert "no such model" in " ".join(failed.value.last_lines)


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "reason"),
    [("torch.cuda.CUDAGraph()", "CUDA graphs"), ("torch.distributed.init_process_group('nccl')", "distributed")],
)
def test_what_is_not_modelled_is_refused(run, line, reason):
    _found, prediction = run(f"import torch\ntorch.ones(9, device='cuda')\n{line}")
    assert isinstance(prediction, Unknown) and reason in prediction.reason


@pytest.mark.long
def test_two_networks_that_train_against_each_other_are_followed(run):
    assert terms(run(ADVERSARIES)[1])["optimizer states"] > 0


@pytest.mark.long
@pytest.mark.parametrize(("package", "program"), [("transformers", TRAINER), ("lightning", LIGHTNING)])
def test_frameworks_find_the_gpu_and_train_on_it(run, package, program):
    pytest.importorskip(package)
    held = terms(run(program)[1])
    assert held["parameters"] > 0 and held["optimizer states"] > 0
