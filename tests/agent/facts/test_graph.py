"""How much of autograd's graph a program holds on to, in this process."""

import pytest

torch = pytest.importorskip("torch")

from dynotune.agent.facts import graph  # noqa: E402
from dynotune.agent.facts.graph import graphs, num_nodes  # noqa: E402


class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        raise RuntimeError("it is not to be asked")


def train(keep):
    """The growth over ten steps after two; `keep(losses, loss)` is what the program does with its losses."""
    net, kept = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    odd = torch.zeros(2).as_subclass(Odd)
    for number in range(12):
        if number == 2:
            before = num_nodes(torch)
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep(kept, loss)
    assert type(odd) is Odd
    return graphs(torch, before)["graph_nodes_growth"]


def sums_up(kept, loss):
    kept[:] = [kept[0] + loss if kept else loss]


@pytest.mark.parametrize(
    ("keep", "least", "most"),
    [
        (lambda kept, loss: None, -2, 2),
        (lambda kept, loss: kept.append(loss.item()), -2, 2),
        (lambda kept, loss: kept.append(loss.detach()), -2, 2),
        (lambda kept, loss: kept.append(loss), 40, 200),
        (sums_up, 40, 200),
    ],
)
def test_only_what_keeps_its_graph_grows(keep, least, most):
    assert least <= train(keep) <= most


def test_graph_nodes_are_unknown_when_there_are_too_many_to_count(monkeypatch):
    monkeypatch.setattr(graph, "MOST_NODES", 5)
    held = torch.ones(1, requires_grad=True)
    for _ in range(9):
        held = held * 2
    assert num_nodes(torch) == 5
    assert graphs(torch, before=5) == {"graph_nodes_growth": None, "graph_nodes": None}
    monkeypatch.setattr(graph, "MOST_OBJECTS", 5)
    assert num_nodes(torch) is None
