"""torch.compile(fullgraph=True); once warm, a recompilation would be an error."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x)


loader = DataLoader(TensorDataset(torch.randn(240, 8), torch.randint(0, 2, (240,))), batch_size=8)
net = torch.compile(nn.Sequential(Block(), Block(), nn.Linear(8, 2)), fullgraph=True, backend="aot_eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
num_steps = num_samples = 0
for x, y in loader:
    if num_steps == 2:
        torch._dynamo.config.error_on_recompile = True
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    num_steps += 1
    num_samples += len(x)
print("TRUTH", num_steps, num_samples)
