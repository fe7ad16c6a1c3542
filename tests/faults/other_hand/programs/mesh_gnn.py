"""Learned mesh simulator: message passing on a fixed mesh with 16 neighbours per node."""

import argparse
import time

import torch
from torch import nn

cli = argparse.ArgumentParser(description=__doc__)
cli.add_argument("--fixed", action="store_true")
cli.add_argument("--tiny", action="store_true")
cli.add_argument("--steps", type=int, default=480)
cfg = cli.parse_args()


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_src = nn.Linear(dim, dim, bias=False)
        self.to_dst = nn.Linear(dim, dim)
        self.to_edge = nn.Linear(4, dim, bias=False)
        self.msg = nn.Linear(dim, dim)
        self.update = nn.Sequential(nn.Linear(2 * dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.norm = nn.LayerNorm(dim)
        self.act = nn.GELU()

    def forward(self, h, src, rel):
        nodes, k = h.shape[0], rel.shape[1]
        e = self.to_src(h).index_select(0, src).view(nodes, k, -1)
        e = self.act(e + self.to_dst(h)[:, None] + self.to_edge(rel))
        agg = self.act(self.msg(e)).mean(1)
        return h + self.norm(self.update(torch.cat([h.to(agg.dtype), agg], dim=-1)))


class Simulator(nn.Module):
    def __init__(self, feats, dim, layers):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(feats, dim), nn.GELU(), nn.Linear(dim, dim))
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(layers))
        self.dec = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 3))

    def forward(self, x, src, rel):
        h = self.enc(x)
        for layer in self.layers:
            h = layer(h, src, rel)
        return self.dec(h)


def make_mesh(nodes, k, device):
    offsets = torch.randint(-500, 500, (nodes, k), device=device)
    src = (torch.arange(nodes, device=device)[:, None] + offsets) % nodes
    rel = torch.randn(nodes, k, 4, device=device)
    return src.flatten(), rel


def train(cfg):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(11)
    torch.set_float32_matmul_precision("high")
    torch.autograd.set_detect_anomaly(not cfg.fixed)

    nodes, k, dim, layers, frames = (128, 4, 16, 2, 4) if cfg.tiny else (150_000, 16, 128, 4, 24)
    src, rel = make_mesh(nodes, k, device)
    states = torch.randn(frames, nodes, 16, device=device)
    accel = torch.randn(frames, nodes, 3, device=device)
    model = Simulator(16, dim, layers).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    total = torch.zeros((), device=device)
    warm = cfg.steps // 3
    for step in range(cfg.steps):
        if step == warm:
            sync()
            start = time.perf_counter()
        f = step % frames
        x = states[f] + 0.003 * torch.randn_like(states[f])
        with torch.autocast(device.type, dtype=torch.bfloat16):
            pred = model(x, src, rel)
        loss = (pred.float() - accel[f]).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        total += loss.detach()
    sync()
    end = time.perf_counter()
    print(f"mse {(total / cfg.steps).item():.4f}")
    print(f"steps={cfg.steps} mean_step_ms={(end - start) * 1e3 / (cfg.steps - warm):.3f}")


train(cfg)
