"""A GradScaler that meets infinities and skips the optimizer's step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(240, 8), torch.randint(0, 2, (240,))), batch_size=8)
net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
num_steps = num_samples = num_applied = 0
optimizer.register_step_post_hook(lambda *_: globals().__setitem__("num_applied", num_applied + 1))
for index, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x), y)
    if index % 5 == 1:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    num_steps += 1
    num_samples += len(x)
assert num_applied < num_steps, "no step was skipped"
print("TRUTH", num_steps, num_samples)
