"""Programs in which torch looks at frames: what they see is what they see without the agent."""

import pytest

# Torch's profiler keeps pointers to the names of code that it saw, not the names: what torch imports in a
# first step is gone by the time they are read, and with it they may be anything. So a step comes before the
# profiler.
OWN_PROFILER = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def steps(count):
    for _ in range(count):
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
steps(1)
with torch.profiler.profile(with_stack=True, record_shapes=True, profile_memory=True) as profile:
    steps(40)
print("SEEN", "aten::linear" in {event.name for event in profile.events()})
"""

COMPILED_IN_PLACE = """
import torch
from torch import nn
graphs = []
def backend(graph, inputs):
    graphs.append(sum(node.op not in ("placeholder", "output") for node in graph.graph.nodes))
    return graph.forward
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        return self.b(self.a(x).relu())
net = NET
if LATE:
    for _ in range(10):
        net(torch.ones(4, 8))
net.compile(backend=backend)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(40):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
from torch._dynamo.utils import counters
print("GRAPHS", graphs, dict(counters["graph_break"]), dict(counters["frames"]))
"""


@pytest.mark.long
def test_a_profiler_of_the_programs_own_asks_for_modules_with_stacks(script, fork_under_agent):
    # It takes the module from the frame of `Module.__call__`, by the name `self`.
    ran = fork_under_agent([script(OWN_PROFILER)])
    assert "SEEN True" in ran.stdout, ran.stderr


@pytest.mark.parametrize(
    ("net", "late"),
    [
        ("Net()", True),
        pytest.param("nn.Sequential(Net(), nn.ReLU(), Net())", True, marks=pytest.mark.long),
        pytest.param("Net()", False, marks=pytest.mark.long),
        pytest.param("nn.Sequential(Net(), nn.ReLU(), Net())", False, marks=pytest.mark.long),
    ],
)
def test_a_module_compiled_in_place_has_the_same_graphs(net, late, script, fork_under_agent):
    # Of a Sequential torch compiles nothing, and goes on to the modules inside it.
    path = script(COMPILED_IN_PLACE.replace("NET", net).replace("LATE", str(late)))
    ran = fork_under_agent([path], compiler=False)
    assert ran.stdout == fork_under_agent([path], env={"DYNOTUNE_RUN": ""}).stdout, ran.stderr
    assert "GRAPHS [" in ran.stdout
    assert ran.stepping.num_steps > 30
