"""Audio tagging with a deep spectrogram transformer, Lightning training script."""

import argparse
import logging
import time
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class MelClips(Dataset):
    def __init__(self, length, bins, frames, classes):
        g = torch.Generator().manual_seed(4)
        self.bank = torch.randn(256, bins, frames, generator=g).half()
        self.tags = (torch.rand(256, classes, generator=g) < 0.03).half()
        self.length = length

    def __len__(self):
        return self.length

    def __getitems__(self, idx):
        rows = torch.tensor(idx) % len(self.bank)
        return self.bank[rows], self.tags[rows]


def passthrough(batch):
    return batch


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, dim * 4), nn.Linear(dim * 4, dim)
        self.scale1 = nn.Parameter(torch.full((dim,), 0.1))
        self.scale2 = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = torch.addcmul(x, self.scale1, self.proj(a))
        return torch.addcmul(x, self.scale2, self.fc2(F.gelu(self.fc1(self.ln2(x)))))


class Tagger(L.LightningModule):
    def __init__(self, dim, depth, heads, bins, frames, classes, optim_kwargs):
        super().__init__()
        self.optim_kwargs = optim_kwargs
        self.patch = 16
        n = (bins // 16) * (frames // 16)
        self.embed = nn.Linear(256, dim)
        self.pos = nn.Parameter(torch.randn(1, n, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, mel):
        b, m, t = mel.shape
        x = mel.view(b, m // 16, 16, t // 16, 16).transpose(2, 3).reshape(b, -1, 256)
        x = self.blocks(self.embed(x) + self.pos)
        return self.head(self.norm(x).mean(1))

    def training_step(self, batch, batch_idx):
        mel, tags = batch
        return F.binary_cross_entropy_with_logits(self(mel).float(), tags.float())

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.ndim >= 2]
        rest = [p for p in self.parameters() if p.ndim < 2]
        groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=5e-4, **self.optim_kwargs)


class Stopwatch(L.Callback):
    def __init__(self, steps):
        self.steps, self.t0 = steps, 0.0

    @staticmethod
    def now():
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == self.steps // 3:
            self.t0 = self.now()

    def on_train_end(self, trainer, module):
        per = (self.now() - self.t0) / (self.steps - self.steps // 3)
        print(f"steps={self.steps} mean_step_ms={per * 1e3:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int)
    args = ap.parse_args()
    L.seed_everything(0, verbose=False)
    torch.set_float32_matmul_precision("high")
    cuda = torch.cuda.is_available()
    dim, depth, heads, frames, batch, workers = (32, 2, 2, 64, 4, 1) if args.tiny else (384, 24, 6, 512, 112, 6)
    steps = args.steps or (6 if args.tiny else 300)
    kwargs = {"foreach": False, "fused": False}
    if args.fixed:
        kwargs = {"fused": True} if cuda else {}
    data = MelClips(steps * batch, 128, frames, 50)
    loader = DataLoader(
        data,
        batch,
        num_workers=workers,
        pin_memory=cuda,
        collate_fn=passthrough,
        persistent_workers=True,
        prefetch_factor=4,
    )
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="gpu" if cuda else "cpu",
        devices=1,
        logger=False,
        precision="bf16-mixed",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Stopwatch(steps)],
    )
    trainer.fit(Tagger(dim, depth, heads, 128, frames, 50, kwargs), loader)
