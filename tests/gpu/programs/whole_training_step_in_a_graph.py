"""Training whose whole step is one captured graph, after eleven eager updates and the one that is
captured."""

import torch
from torch import nn

net = nn.Linear(64, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x, y = torch.randn(16, 64, device="cuda"), torch.randn(16, 8, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(11):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(400):
    x.copy_(torch.randn(16, 64))
    graph.replay()
print("TRUTH", 11 + 1 + 400, None)
