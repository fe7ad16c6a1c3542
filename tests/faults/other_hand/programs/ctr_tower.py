"""Click-through model on tabular logs that live on the GPU as one big table."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser("ctr")
    p.add_argument("--fixed", action="store_true")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--steps", type=int, default=None)
    p.add_argument("--lr", type=float, default=1e-3)
    return p.parse_args()


class LogTable:
    """Dense and categorical columns of the click log with labels, sampled uniformly."""

    def __init__(self, rows, n_dense, cardinalities, device):
        self.rows, self.device = rows, device
        self.dense = torch.randn(rows, n_dense, device=device)
        cols, offset = [], 0
        for card in cardinalities:
            cols.append((torch.rand(rows, device=device).pow_(3) * card).long() + offset)
            offset += card
        self.cats = torch.stack(cols, 1)
        self.total_ids = offset
        signal = self.dense[:, 0] + 0.5 * self.dense[:, 1] * self.dense[:, 2]
        self.clicks = (signal + torch.randn(rows, device=device) > 1.0).float()

    def sample(self, n):
        pick = torch.randint(0, self.rows, (n,), device=self.device)
        return self.dense[pick], self.cats[pick], self.clicks[pick]


class ResidualMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, x):
        return x + self.fc2(F.silu(self.fc1(self.norm(x))))


class CrossLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = nn.Linear(width, width)

    def forward(self, x0, x):
        return torch.addcmul(x, x0, self.lin(x))


class CTRTower(nn.Module):
    def __init__(self, n_ids, emb, n_cats, n_dense, width, depth):
        super().__init__()
        self.emb = nn.Embedding(n_ids, emb)
        nn.init.normal_(self.emb.weight, std=0.01)
        self.inp = nn.Linear(n_cats * emb + n_dense, width)
        self.cross = nn.ModuleList(CrossLayer(width) for _ in range(2))
        self.deep = nn.ModuleList(ResidualMLP(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)

    def forward(self, dense, cats):
        x0 = self.inp(torch.cat([self.emb(cats).flatten(1), dense], dim=1))
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        for layer in self.deep:
            x = layer(x)
        return self.out(self.norm(x)).squeeze(1)


def main():
    args = parse()
    torch.manual_seed(2024)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda:0" if on_gpu else "cpu")
    if args.fixed:
        torch.set_float32_matmul_precision("high")
    if args.tiny:
        rows, batch, width, depth, emb, cards = 500, 32, 16, 2, 4, [20, 30, 10]
    else:
        rows, batch, width, depth, emb = 2_000_000, 65536, 384, 6, 16
        cards = [100_000] * 4 + [20_000] * 8 + [1_000] * 12
    steps = args.steps or (6 if args.tiny else 600)

    table = LogTable(rows, 13, cards, device)
    model = CTRTower(table.total_ids, emb, len(cards), 13, width, depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-5, fused=on_gpu)
    ema_loss = torch.zeros((), device=device)
    hits = torch.zeros((), device=device)

    clock = None
    for it in range(steps):
        if it == steps // 3:
            if on_gpu:
                torch.cuda.synchronize()
            clock = time.perf_counter()
        dense, cats, clicks = table.sample(batch)
        logits = model(dense, cats)
        loss = F.binary_cross_entropy_with_logits(logits, clicks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        ema_loss.lerp_(loss.detach(), 0.02)
        hits += ((logits.detach() > 0) == (clicks > 0.5)).float().mean()
    if on_gpu:
        torch.cuda.synchronize()
    wall = time.perf_counter() - clock
    print(f"logloss {ema_loss.item():.4f}  accuracy {hits.item() / steps:.4f}")
    print(f"steps={steps} mean_step_ms={wall / (steps - steps // 3) * 1e3:.3f}")


if __name__ == "__main__":
    main()
