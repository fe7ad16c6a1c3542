"""Embed a corpus of passages with a bf16 encoder and write the vectors to a numpy array."""

import argparse
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.o(y.transpose(1, 2).reshape(n, t, d))
        return x + self.f2(F.gelu(self.f1(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, vocab, d, depth, heads, length):
        super().__init__()
        self.words = nn.Embedding(vocab, d)
        self.places = nn.Parameter(torch.randn(length, d) * 0.02)
        self.blocks = nn.Sequential(*[EncoderBlock(d, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        x = self.blocks(self.words(ids) + self.places)
        return F.normalize(self.norm(x).mean(1).float(), dim=-1).half()


class VectorSink:
    """Collects vectors through a few pinned buffers; a buffer is read once its copy has finished."""

    def __init__(self, total, batch, dim, device, depth=3):
        self.cuda = device.type == "cuda"
        self.array = np.zeros((total, dim), dtype=np.float16)
        self.free = deque(torch.empty(batch, dim, dtype=torch.float16, pin_memory=self.cuda) for _ in range(depth))
        self.busy = deque()

    def add(self, row, vectors):
        if not self.free:
            self.drain_one()
        buf = self.free.popleft()
        buf.copy_(vectors, non_blocking=True)
        event = None
        if self.cuda:
            event = torch.cuda.Event()
            event.record()
        self.busy.append((row, buf, event))

    def drain_one(self):
        row, buf, event = self.busy.popleft()
        if event is not None:
            event.synchronize()
        self.array[row : row + len(buf)] = buf.numpy()
        self.free.append(buf)

    def close(self):
        while self.busy:
            self.drain_one()
        return self.array


def token_batches(n, batch, length, vocab, pinned):
    g = torch.Generator().manual_seed(31)
    pool = torch.randint(0, vocab, (batch * 4, length), generator=g)
    if pinned:
        pool = pool.pin_memory()
    for i in range(n):
        k = (i % 4) * batch
        yield pool[k : k + batch]


def main(argv=None):
    cli = argparse.ArgumentParser()
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--tiny", action="store_true")
    cli.add_argument("--steps", type=int)
    args = cli.parse_args(argv)
    torch.manual_seed(17)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vocab, d, depth, heads, length, batch = (100, 32, 2, 2, 8, 4) if args.tiny else (30522, 768, 12, 12, 128, 512)
    steps = args.steps or (6 if args.tiny else 420)

    with torch.device(device):
        encoder = Encoder(vocab, d, depth, heads, length).to(torch.bfloat16).eval()
    sink = VectorSink(steps * batch, batch, d, device)
    t0 = 0.0
    with torch.inference_mode():
        for i, ids in enumerate(token_batches(steps, batch, length, vocab, device.type == "cuda")):
            if i == steps // 3:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                t0 = time.perf_counter()
            ids = ids.to(device, non_blocking=True)
            sink.add(i * batch, encoder(ids))
        vectors = sink.close()
    elapsed = time.perf_counter() - t0
    norms = np.linalg.norm(vectors[:: max(1, len(vectors) // 64)].astype(np.float32), axis=1)
    print(f"{len(vectors)} vectors, norm {norms.mean():.3f}")
    print(f"steps={steps} mean_step_ms={elapsed / (steps - steps // 3) * 1e3:.3f}")


if __name__ == "__main__":
    main()
