"""Binding-affinity regression on protein pockets with a small message-passing network."""

import argparse
import random
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Pocket(NamedTuple):
    atoms: Tensor
    bonds: Tensor
    dists: Tensor
    charge: Tensor
    affinity: Tensor


class Batch(NamedTuple):
    atoms: Tensor
    src: Tensor
    dst: Tensor
    dists: Tensor
    charge: Tensor
    graph_of: Tensor
    affinity: Tensor


def make_library(n, atoms_mean, degree, feat):
    g = random.Random(8)
    library = []
    for _ in range(n):
        na = int(atoms_mean * g.uniform(0.7, 1.3))
        library.append(
            Pocket(
                torch.randn(na, feat),
                torch.randint(0, na, (2, na * degree), dtype=torch.int32),
                torch.rand(na * degree),
                torch.randn(na),
                torch.randn(1),
            )
        )
    return library


class Mover:
    def __init__(self, device, packed):
        self.device, self.packed = device, packed
        self.pin = device.type == "cuda"

    def _field(self, parts, dim=0):
        if not self.packed:
            return torch.cat([p.to(self.device) for p in parts], dim)
        shape = list(parts[0].shape)
        shape[dim] = sum(p.shape[dim] for p in parts)
        flat = torch.empty(shape, dtype=parts[0].dtype, pin_memory=self.pin)
        torch.cat(parts, dim, out=flat)
        return flat.to(self.device, non_blocking=True)

    def _ints(self, values):
        t = torch.tensor(values)
        return (t.pin_memory() if self.pin else t).to(self.device, non_blocking=True)

    def __call__(self, pockets):
        na = [p.atoms.shape[0] for p in pockets]
        ne = [p.bonds.shape[1] for p in pockets]
        starts = [0]
        for n in na[:-1]:
            starts.append(starts[-1] + n)
        atoms, bonds, dists, charge, affinity = (
            self._field(list(col), 1 if col[0].dim() == 2 and col[0].dtype == torch.int32 else 0)
            for col in zip(*pockets)
        )
        shift = torch.repeat_interleave(self._ints(starts), self._ints(ne), output_size=sum(ne))
        graph_of = torch.repeat_interleave(
            torch.arange(len(pockets), device=self.device), self._ints(na), output_size=sum(na)
        )
        src, dst = bonds.long() + shift
        return Batch(atoms, src, dst, dists, charge, graph_of, affinity)


class Interaction(nn.Module):
    def __init__(self, dim, rbf):
        super().__init__()
        self.filt = nn.Linear(rbf, dim)
        self.pre = nn.Linear(dim, dim)
        self.post = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, h, b, basis):
        msg = self.pre(h).index_select(0, b.src) * F.silu(self.filt(basis))
        agg = torch.zeros_like(h).index_add_(0, b.dst, msg)
        return h + self.post(agg)


class PocketNet(nn.Module):
    def __init__(self, feat, dim, depth, rbf=32):
        super().__init__()
        self.embed = nn.Linear(feat + 1, dim)
        self.register_buffer("centers", torch.linspace(0, 1, rbf))
        self.blocks = nn.ModuleList(Interaction(dim, rbf) for _ in range(depth))
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, b):
        h = self.embed(torch.cat([b.atoms, b.charge[:, None]], 1))
        basis = torch.exp(-40.0 * (b.dists[:, None] - self.centers) ** 2)
        for blk in self.blocks:
            h = blk(h, b, basis)
        per_atom = self.readout(h).squeeze(1)
        return torch.zeros_like(b.affinity).index_add_(0, b.graph_of, per_atom)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--tiny", action="store_true")
    cli.add_argument("--steps", type=int)
    a = cli.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    n_lib, mean_atoms, per_batch, dim, depth = (16, 10, 4, 16, 2) if a.tiny else (512, 800, 112, 256, 4)
    steps = a.steps or (6 if a.tiny else 600)

    library = make_library(n_lib, mean_atoms, 5, 16)
    mover = Mover(device, a.fixed)
    net = PocketNet(16, dim, depth).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4, fused=device.type == "cuda")
    pick = random.Random(1)
    losses = torch.zeros(steps, device=device)
    for it in range(steps):
        if it == steps // 3:
            sync()
            t0 = time.perf_counter()
        batch = mover(pick.sample(library, per_batch))
        loss = F.smooth_l1_loss(net(batch) / mean_atoms, batch.affinity)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        losses[it] = loss.detach()
    sync()
    t = time.perf_counter() - t0
    print("loss first/last", losses[0].item(), losses[-1].item())
    print(f"steps={steps} mean_step_ms={t / (steps - steps // 3) * 1e3:.3f}")
