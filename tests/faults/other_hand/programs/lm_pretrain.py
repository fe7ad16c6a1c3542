"""Pre-train a BERT-style masked language model on a synthetic token stream."""

import argparse
import contextlib
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM


class TokenWindows(Dataset):
    """Fixed-length windows cut from one long token stream."""

    def __init__(self, stream, length, n_windows):
        self.stream, self.length, self.n = stream, length, n_windows

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        start = (i * 7919) % (len(self.stream) - self.length)
        return torch.from_numpy(self.stream[start : start + self.length].astype(np.int64))


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--fixed", action="store_true")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--steps", type=int, default=280)
    return p.parse_args()


def main():
    args = parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1234)
    torch.set_float32_matmul_precision("high")

    vocab, seq, batch = (512, 32, 2) if args.tiny else (32000, 1024, 8)
    config = BertConfig(
        vocab_size=vocab,
        max_position_embeddings=seq,
        hidden_size=64 if args.tiny else 1024,
        num_hidden_layers=2 if args.tiny else 12,
        num_attention_heads=4 if args.tiny else 16,
        intermediate_size=256 if args.tiny else 4096,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    model = BertForMaskedLM(config).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, betas=(0.9, 0.98), fused=True)
    warmup = 50
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warmup))

    stream = np.random.default_rng(0).integers(0, vocab, 4_000_000, dtype=np.int32)
    loader = DataLoader(
        TokenWindows(stream, seq, args.steps * batch),
        batch_size=batch,
        shuffle=True,
        num_workers=2 if args.tiny else 4,
        pin_memory=True,
        persistent_workers=True,
        drop_last=True,
    )

    def precision():
        if args.fixed:
            return torch.autocast(device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    mask_token = vocab - 1
    running = torch.zeros((), device=device)
    first = args.steps // 3
    for step, ids in enumerate(loader):
        if step == first:
            sync()
            t0 = time.perf_counter()
        ids = ids.to(device, non_blocking=True)
        masked = torch.rand(ids.shape, device=device) < 0.15
        labels = torch.where(masked, ids, -100)
        inputs = torch.where(masked, mask_token, ids)
        with precision():
            loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()
    sync()
    ms = (time.perf_counter() - t0) * 1e3 / (args.steps - first)
    print(f"mean loss {running.item() / args.steps:.3f}")
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
