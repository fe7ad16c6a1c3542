"""Training with forward and backward as captured graphs, and an eager optimizer."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
graphed = torch.cuda.make_graphed_callables(net, (torch.randn(16, 64, device="cuda"),))
for _ in range(50):
    x, y = torch.randn(16, 64, device="cuda"), torch.randn(16, 8, device="cuda")
    nn.functional.mse_loss(graphed(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
print("TRUTH", 50, None)
