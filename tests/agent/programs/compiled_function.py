"""A compiled function that calls the model, and models compiled in place; recompilations are errors."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(x)


loader = DataLoader(TensorDataset(torch.randn(240, 8), torch.randint(0, 2, (240,))), batch_size=8)
body = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)))
head = Head()
head.compile(backend="aot_eager", fullgraph=True)


@torch.compile(backend="aot_eager", fullgraph=True)
def features(x):
    return body(x).relu()


optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
num_steps = num_samples = 0
for x, y in loader:
    if num_steps == 2:
        torch._dynamo.config.error_on_recompile = True
    nn.functional.cross_entropy(head(features(x)), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    num_steps += 1
    num_samples += len(x)
print("TRUTH", num_steps, num_samples)
