"""What a watched program says of itself while it runs."""

import os
import signal

import pytest

torch = pytest.importorskip("torch")

from dynotune.agent.core.errors import ErrorLog  # noqa: E402
from dynotune.agent.core.program import Program  # noqa: E402
from dynotune.agent.facts import sight as module  # noqa: E402
from dynotune.agent.facts.sight import Sight  # noqa: E402

# Trains until it has been looked at so often; `{loss}` makes the loss of what the net gives.
PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
data = TensorDataset(torch.ones(64, 4))
for epoch in range(6):
    for x, in DataLoader(data, batch_size=2, num_workers=2):
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for x, in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4):
            net(x)
"""


@pytest.fixture
def looked_at(fork_under_agent, script):
    """Events of a program that is looked at in each step, by their name."""

    def run(loss: str, **plan):
        path = script("import _dynotune_agent.facts.sight as sight\nsight.EVERY_S = 0.0\n" + PROGRAM.format(loss=loss))
        ran = fork_under_agent([path], **{"watched": True, **plan})
        assert ran.returncode == 0, ran.stderr
        assert not ran.stepping.errors
        (record,) = [record for record in ran.records if record.steps]
        return record.events

    return run


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("net(x).mean() * 0 + 2", "2.0"),
        ("net(x).mean() * float('nan')", "nan"),
        ("net(x).mean() * 0 + float('inf')", "inf"),
    ],
)
def test_a_loss_on_the_cpu_is_said_as_it_is(looked_at, loss, said):
    losses = {event["loss"] for event in looked_at(loss)["sight"]}
    assert losses - {""} == {said}


def test_time_in_backward_and_batches_that_are_ready_are_said(looked_at):
    seen = looked_at("net(x).mean()")["sight"]
    assert all(event["backward_s"] >= 0 for event in seen)
    assert max(event["backward_s"] for event in seen) > 0
    assert all(0 <= event["num_ready"] <= event["num_asked"] for event in seen if "num_asked" in event)
    assert max(event.get("num_asked", 0) for event in seen) > 0


def test_a_loader_that_is_not_the_steps_is_said_and_theirs_is_not(looked_at):
    assert 5 <= len(looked_at("net(x).mean()")["beside"]) <= 6


def test_a_run_that_nobody_watches_says_none_of_it(looked_at):
    events = looked_at("net(x).mean()", watched=False)
    assert not {"sight", "beside"} & events.keys()
    assert events["cycle"][-1]["stacks_by"] is None


@pytest.fixture
def sight():
    said = []
    made = Sight(
        Program("", said.append, lambda where, error: said.append(error)), lambda where, error: said.append(error)
    )
    made.said = said
    original = torch.autograd.backward
    yield made
    torch.autograd.backward = original
    signal.signal(made.signal, signal.SIG_DFL)


def test_a_signal_is_answered_by_the_line_of_each_thread(sight):
    os.kill(os.getpid(), sight.signal)
    (event,) = sight.said
    assert any("test_sight.py(" in place for place in event["threads"]["MainThread"])


def test_a_mistake_while_stacks_are_said_is_written_down_and_none_of_the_programs(sight, monkeypatch):
    monkeypatch.setattr(sight, "_log", ErrorLog(sight.said.append))
    monkeypatch.setattr(module, "_places", lambda frame: 1 / 0)
    os.kill(os.getpid(), sight.signal)
    (event,) = sight.said
    assert (event["event"], event["where"]) == ("error", "stacks")


def test_a_signal_that_the_program_uses_is_left_to_it(sight):
    other = Sight(sight._program, sight._log)
    try:
        assert other.signal not in (None, sight.signal)
    finally:
        signal.signal(other.signal, signal.SIG_DFL)


class Odd(torch.Tensor):
    """Reading it may be a collective."""

    def __float__(self):
        raise AssertionError("it was read")


@pytest.mark.parametrize("tensors", [torch.ones(2), torch.ones(()).as_subclass(Odd), None, [], "nonsense"])
def test_what_is_no_plain_single_value_is_not_read(sight, tensors):
    sight._take_loss(torch, tensors)
    assert sight._loss == ""
    assert not [each for each in sight.said if isinstance(each, AssertionError)]


class Scalar:
    """As much of a loss on a GPU as is asked for; whoever waits for the device fails."""

    def __init__(self, value: float) -> None:
        self.value, self.is_cpu, self.is_cuda, self.device, self.shape = value, False, True, "cuda:0", ()

    def numel(self) -> int:
        return 1

    def detach(self):
        return self

    float = reshape = lambda self, *args: self


class Host:
    """Pinned memory that a copy arrives in only when the event has passed."""

    shape = ()

    def copy_(self, source, *, non_blocking):
        assert non_blocking
        self.value = source.value

    def __float__(self):
        return float(self.value)


class Event:
    has_passed = False

    def record(self, stream):
        assert stream == "stream of cuda:0"

    def query(self):
        return Event.has_passed


class Fake:
    """torch with a device whose copies take their time."""

    Tensor = Scalar
    empty = staticmethod(lambda shape, pin_memory: Host())

    class cuda:
        Event = Event
        current_stream = staticmethod(lambda device: f"stream of {device}")
        is_initialized = staticmethod(lambda: True)
        is_current_stream_capturing = staticmethod(lambda: False)
        device_count = staticmethod(lambda: 2)
        memory_allocated = staticmethod(lambda index: [700, 0][index])
        memory_reserved = staticmethod(lambda index: [1000, 0][index])


def test_a_loss_on_a_gpu_is_said_once_its_copy_has_arrived_and_nothing_waits_for_it(sight, monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr(Event, "has_passed", False)
    sight._program.torch = Fake
    sight._take_loss(Fake, [Scalar(float("nan"))])
    sight.reached(10)
    assert "loss" not in sight.said[-1]
    Event.has_passed = True
    sight.reached(20)
    assert sight.said[-1]["loss"] == "nan"
    assert (sight.said[-1]["allocated_bytes"], sight.said[-1]["reserved_bytes"]) == (700, 1000)
