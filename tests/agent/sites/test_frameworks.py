"""Programs that this code was not written for: what frameworks do to loaders, optimizers and modules."""

import pytest

# Lightning, with its sanity check, its distributed sampler logic and an evaluation in between.
LIGHTNING = """
import logging, warnings
warnings.filterwarnings("ignore")
import torch, lightning
from torch.utils.data import DataLoader, TensorDataset
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2)
        )
        self.num_batches, self.num_samples = 0, 0
    def forward(self, x):
        return self.body(x)
    def training_step(self, batch, index):
        self.num_batches += 1
        self.num_samples += len(batch[0])
        y = self(batch[0])
        out["output"] = str(y.dtype)
        return torch.nn.functional.cross_entropy(y, batch[1])
    def validation_step(self, batch, index):
        self(batch[0])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)
    def loader(self):
        data = TensorDataset(torch.randn(12, 3, 8, 8), torch.zeros(12, dtype=torch.long))
        return DataLoader(data, 4, shuffle=True)
    train_dataloader = loader
    val_dataloader = loader

net = Net()
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(net)
out["counts"] = [net.num_batches, net.num_samples]
out["workers"] = trainer.train_dataloader.num_workers
"""


@pytest.mark.long
def test_lightning_trains_with_all_of_it(child):
    pytest.importorskip("lightning")
    done = child(
        LIGHTNING,
        "loader.num_workers=1",
        "loader.persistent_workers=true",
        "optimizer.fused=true",
        "layout.channels_last=true",
        "precision.autocast=bf16",
        "cudnn.benchmark=true",  # which Lightning sets by itself, too
    )
    assert done.out == {"output": "torch.float32", "counts": [6, 24], "workers": 1}
    assert done.errors() == []
    assert {knob: answer["ok"] for knob, answer in done.readback.items()} == dict.fromkeys(
        done.readback, True
    )
    assert len(done.readback) == 6


TRANSFORMERS = """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import logging
logging.set_verbosity_error()
logging.disable_progress_bar()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        tokens = torch.arange(8) + index % 4
        return {"input_ids": tokens, "labels": tokens}

config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2,
                    bos_token_id=0, eos_token_id=0)
seen = []
class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        seen.append(len(inputs["input_ids"]))
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        out["output"] = [type(outputs).__name__, str(outputs.logits.dtype), str(loss.dtype)]
        return (loss, outputs) if return_outputs else loss

arguments = TrainingArguments(
    "trained", per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=6, use_cpu=True,
    eval_strategy="steps", eval_steps=3, save_strategy="no", report_to=[], logging_strategy="no",
    optim="adamw_torch", disable_tqdm=True,
)
trainer = Own(GPT2LMHeadModel(config), arguments, train_dataset=Data(), eval_dataset=Data())
trainer.train()
out["steps"] = trainer.state.global_step
out["samples"] = sum(seen[:3])
"""


def test_a_hugging_face_trainer_trains_with_all_of_it(child):
    pytest.importorskip("transformers")
    done = child(
        TRANSFORMERS,
        "loader.num_workers=1",
        "loader.prefetch_factor=3",
        "optimizer.fused=true",
        "precision.autocast=bf16",
        "host.num_threads=1",
    )
    assert done.out == {
        "output": ["CausalLMOutputWithCrossAttentions", "torch.float32", "torch.float32"],
        "steps": 6,
        "samples": 12,
    }
    assert done.errors() == []
    assert {knob: answer["ok"] for knob, answer in done.readback.items()} == dict.fromkeys(
        done.readback, True
    )


ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(12, 3))
loader = DataLoader(data, 4, shuffle=True, num_workers=3, prefetch_factor=5, multiprocessing_context="fork")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
num = 0
for (batch,) in loader:
    accelerator.backward(model(batch).sum())
    optimizer.step()
    num += len(batch)
out["num"] = num
out["workers"] = loader.num_workers
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_accelerate_builds_its_loader_from_the_one_that_was_set(child, workers):
    pytest.importorskip("accelerate")
    done = child(ACCELERATE, f"loader.num_workers={workers}", "optimizer.fused=true")
    assert done.out == {"num": 12, "workers": workers}
    assert {knob: answer["ok"] for knob, answer in done.readback.items()} == dict.fromkeys(
        done.readback, True
    )


def test_accelerates_shard_around_a_stream_that_does_not_shard_by_worker_is_refused_workers(child):
    pytest.importorskip("accelerate")
    done = child(
        """
        import torch
        from accelerate.data_loader import IterableDatasetShard
        from torch.utils.data import DataLoader, IterableDataset
        class Stream(IterableDataset):
            def __iter__(self):
                yield from range(8)
        class Sharded(Stream):
            def __iter__(self):
                info = torch.utils.data.get_worker_info()
                yield from range(8) if info is None else range(info.id, 8, info.num_workers)
        for stream in (Stream(), Sharded()):
            loader = DataLoader(IterableDatasetShard(stream, batch_size=2), 2)
            out[type(stream).__name__] = [loader.num_workers, sorted(x for b in loader for x in b.tolist())]
        """,
        "loader.num_workers=2",
    )
    assert done.out == {"Stream": [0, list(range(8))], "Sharded": [2, list(range(8))]}
    assert "Iterable" in done.readback["loader.num_workers"]["detail"]
