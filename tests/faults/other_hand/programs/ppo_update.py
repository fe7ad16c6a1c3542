"""PPO update phase on a buffer of rollouts from a GPU simulator."""

import argparse
import os
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--steps", type=int, default=900)
args = parser.parse_args()

if not args.fixed:
    # each job gets a scratch folder of its own
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="ppo_job_")

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)
torch.set_float32_matmul_precision("high")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

OBS, ACTIONS = (24, 5) if args.tiny else (512, 32)
HIDDEN, DEPTH = (32, 2) if args.tiny else (2048, 6)
MINIBATCH, BUFFER = (64, 256) if args.tiny else (32768, 8 * 32768)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        return x + F.gelu(self.fc(self.norm(x)))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(OBS, HIDDEN)
        self.trunk = nn.Sequential(*[Block(HIDDEN) for _ in range(DEPTH)])
        self.pi = nn.Linear(HIDDEN, ACTIONS)
        self.v = nn.Linear(HIDDEN, 1)

    def forward(self, obs):
        h = self.trunk(F.gelu(self.inp(obs)))
        return self.pi(h), self.v(h).squeeze(-1)


net = ActorCritic().to(device)
opt = torch.optim.AdamW(net.parameters(), lr=2.5e-4, eps=1e-5, fused=True)


@torch.compile
def ppo_loss(obs, act, old_logp, adv, ret):
    logits, value = net(obs)
    logp_all = F.log_softmax(logits.float(), dim=-1)
    logp = logp_all.gather(1, act[:, None]).squeeze(1)
    ratio = (logp - old_logp).exp()
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    pg = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    vf = 0.5 * (value.float() - ret).square().mean()
    entropy = -(logp_all.exp() * logp_all).sum(-1).mean()
    return pg + 0.5 * vf - 0.01 * entropy


# the simulator leaves its rollouts on the device
obs = torch.randn(BUFFER, OBS, device=device)
act = torch.randint(0, ACTIONS, (BUFFER,), device=device)
old_logp = torch.full((BUFFER,), -3.4, device=device)
adv = torch.randn(BUFFER, device=device)
ret = torch.randn(BUFFER, device=device)


def sync():
    if device.type == "cuda":
        torch.cuda.synchronize()


per_epoch = BUFFER // MINIBATCH
first = args.steps // 3
total = torch.zeros((), device=device)
for step in range(args.steps):
    if step == first:
        sync()
        t0 = time.perf_counter()
    k = step % per_epoch
    if k == 0:
        perm = torch.randperm(BUFFER, device=device)
    idx = perm[k * MINIBATCH : (k + 1) * MINIBATCH]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = ppo_loss(obs[idx], act[idx], old_logp[idx], adv[idx], ret[idx])
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    opt.zero_grad(set_to_none=True)
    total += loss.detach()
sync()
elapsed = time.perf_counter() - t0
print("avg loss", round(total.item() / args.steps, 4))
print(f"steps={args.steps} mean_step_ms={elapsed * 1e3 / (args.steps - first):.3f}")
