"""Embed a corpus of passages with a BERT encoder for a retrieval index."""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel


class Passages(Dataset):
    def __init__(self, n, vocab, length):
        self.tokens = np.random.default_rng(10).integers(0, vocab, (20_000, length), dtype=np.int64)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.from_numpy(self.tokens[i % len(self.tokens)])


def build(tiny, vocab, length):
    config = BertConfig(
        vocab_size=vocab,
        max_position_embeddings=length,
        hidden_size=64 if tiny else 768,
        num_hidden_layers=2 if tiny else 12,
        num_attention_heads=4 if tiny else 12,
        intermediate_size=128 if tiny else 3072,
        attn_implementation="sdpa",
    )
    return BertModel(config, add_pooling_layer=False)


@torch.inference_mode()
def embed(model, loader, device, steps, batch):
    index = torch.empty(steps * batch, model.config.hidden_size, dtype=torch.bfloat16, device=device)
    skip = steps // 3
    for i, ids in enumerate(loader):
        if i == skip:
            if device.type == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        hidden = model(input_ids=ids.to(device, non_blocking=True)).last_hidden_state
        index[i * batch : (i + 1) * batch] = F.normalize(hidden.mean(dim=1), dim=-1)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return index, (time.perf_counter() - t0) * 1e3 / (steps - skip)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true", help="no effect")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=480)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    vocab, length, batch = (128, 16, 4) if args.tiny else (30_522, 256, 256)
    model = build(args.tiny, vocab, length).to(device, torch.bfloat16).eval()
    loader = DataLoader(
        Passages(args.steps * batch, vocab, length),
        batch_size=batch,
        pin_memory=True,
        num_workers=2 if args.tiny else 4,
        persistent_workers=True,
    )
    index, ms = embed(model, loader, device, args.steps, batch)
    print("index", tuple(index.shape), f"norm {index[0].float().norm().item():.3f}")
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")
