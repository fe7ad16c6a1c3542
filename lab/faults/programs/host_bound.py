"""Trains a network and tallies each batch's words in plain Python; the tally grows with the dose."""

import argparse
import time

import torch
from torch import nn

ROWS = {"cpu": 512, "cuda": 16384}
WIDTH = {"cpu": 512, "cuda": 4096}
LAYERS = {"cpu": 3, "cuda": 8}
# A training step in units of one layer's forward product: three products a layer, and the smaller operators.
PRODUCTS_A_STEP = {"cpu": 3.0 * 3, "cuda": 3.45 * 8}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(call, device, tries=5, calls=10):
    """Least mean of `calls` calls."""
    means = []
    for _ in range(tries):
        start = now(device)
        for _ in range(calls):
            call()
        means.append((now(device) - start) / calls)
    return min(means)


def tally(words, counts):
    for word in words:
        counts[word] = counts.get(word, 0) + 1


def num_words(dose, device, words):
    """How many words cost that share of a step."""
    if dose == 0:
        return 0
    x = torch.randn(
        ROWS[device], WIDTH[device], device=device, dtype=torch.bfloat16 if device == "cuda" else None
    )
    w = torch.randn(WIDTH[device], WIDTH[device], device=device, dtype=x.dtype)
    step_s = PRODUCTS_A_STEP[device] * seconds_of(lambda: x @ w, device)
    word_s = seconds_of(lambda: tally(words[:20_000], {}), "cpu") / 20_000
    tally_s = step_s * dose / (100 - dose)
    if device == "cuda":  # what the host does while the GPU is at work costs nothing
        tally_s += 0.9 * step_s
    return int(tally_s / word_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    words = [f"word{i * 7919 % 5000}" for i in range(2_000_000)]
    words = words[: num_words(args.dose, device, words)]
    width = WIDTH[device]
    layers = [layer for _ in range(LAYERS[device]) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS[device], width, device=device)
    y = torch.randn(ROWS[device], width, device=device)

    counts = {}
    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tally(words, counts)
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
