"""LBFGS calls its closure as often as it likes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(160, 8), torch.randn(160, 1)), batch_size=8)
net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")
num_steps = num_samples = 0
for x, y in loader:

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    num_steps += 1
    num_samples += len(x)
print("TRUTH", num_steps, num_samples)
