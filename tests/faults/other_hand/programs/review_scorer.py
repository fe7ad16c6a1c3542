"""Score product reviews in batch with a transformer encoder (offline inference)."""

import argparse
import contextlib
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, count, vocab, length):
        self.tokens = np.random.default_rng(8).integers(0, vocab, (4096, length), dtype=np.int32)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.from_numpy(self.tokens[i % len(self.tokens)])


class Scorer(nn.Module):
    def __init__(self, vocab, length, dim, depth, heads):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(length, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 5)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.head(self.encoder(x).mean(dim=1))


def score_batch(model, ids):
    return model(ids).float().softmax(-1).detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--fixed", action="store_true")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--steps", type=int, default=640)
    a = p.parse_args()
    dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    vocab, length, dim, depth, heads, batch = (100, 16, 32, 2, 4, 4) if a.tiny else (40_000, 256, 1024, 12, 16, 128)

    model = Scorer(vocab, length, dim, depth, heads).to(dev, torch.bfloat16).eval()
    loader = DataLoader(
        Reviews(a.steps * batch, vocab, length),
        batch_size=batch,
        num_workers=2 if a.tiny else 4,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
    scores = torch.empty(a.steps * batch, 5, device=dev)
    skip = a.steps // 3
    with torch.inference_mode() if a.fixed else contextlib.nullcontext():
        for i, ids in enumerate(loader):
            if i == skip:
                if dev.type == "cuda":
                    torch.cuda.synchronize()
                t0 = time.perf_counter()
            ids = ids.to(dev, non_blocking=True)
            scores[i * batch : (i + 1) * batch] = score_batch(model, ids)
    if dev.type == "cuda":
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1000 / (a.steps - skip)
    stars = scores.argmax(1).bincount(minlength=5).tolist()
    print("stars", stars)
    print(f"steps={a.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
