"""One optimizer a parameter, stepped while gradients arrive."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(240, 8), torch.randint(0, 2, (240,))), batch_size=8)
net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)], nn.Linear(8, 2))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in net.parameters()}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(step)
num_steps = num_samples = 0
for x, y in loader:
    nn.functional.cross_entropy(net(x), y).backward()
    num_steps += 1
    num_samples += len(x)
print("TRUTH", num_steps, num_samples)
