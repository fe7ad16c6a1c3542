"""Shapes of calls are counted by the names that the module gives its inputs."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from dynotune.agent.tasks import record_shapes
from dynotune.agent.tasks.record_shapes import RecordShapes

from .fake_program import fake_program


class Counted:
    """The agent's part, on the torch of this process."""

    def __init__(self, num_calls=1000, most_s=1000.0) -> None:
        self.program = fake_program(torch)
        self.task = RecordShapes(self.program, {"num_calls": num_calls, "most_s": most_s})
        self._around = self.task.around_calls(None)

    def call(self, module, *args, **kwargs):
        return self._around(type(module).__call__, module, args, kwargs)

    @property
    def modules(self):
        if not self.task.done:
            self.task.at_exit()
        assert not self.program.errors
        (event,) = self.program.events
        return event["modules"]


class Net(nn.Module):
    def __init__(self, size=3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, ids, *others, mask=None, past=None, **more):
        return ids.float().sum() * self.weight.sum()


def test_calls_with_the_same_shapes_are_counted_together_by_name_and_type():
    counted = Counted()
    for length in (5, 7, 5):
        ids = torch.zeros(2, length, dtype=torch.long)
        assert counted.call(Net(), ids, mask=ids.bool()).item() == 0.0
    counted.call(Net(), ids=torch.zeros(1, 1, dtype=torch.long), mask=None)
    (found,) = counted.modules
    assert found["module"].endswith("test_record_shapes.Net")
    assert found["num_parameters"] == 3
    assert found["dtypes"] == {"ids": "int64", "mask": "bool"}
    assert found["calls"] == [
        {"num": 2, "shapes": {"ids": (2, 5), "mask": (2, 5)}},
        {"num": 1, "shapes": {"ids": (2, 7), "mask": (2, 7)}},
        {"num": 1, "shapes": {"ids": (1, 1)}},
    ]


def test_tensors_in_lists_dicts_and_further_arguments_have_names_of_their_own():
    counted = Counted()
    x = torch.zeros(2)
    counted.call(Net(), x, x, torch.zeros(3), past=[(x, torch.zeros(4))], extra={"a": torch.zeros(5)}, last=x)
    (found,) = counted.modules
    others = {"ids": (2,), "others.0": (2,), "others.1": (3,), "past.0": (2,), "past.1": (4,)}
    assert found["calls"][0]["shapes"] == {**others, "extra": (5,), "last": (2,)}


def test_modules_are_told_apart_by_class_and_size_and_are_not_kept_alive():
    counted = Counted()
    for size in (3, 3, 4):
        net = Net(size)
        counted.call(net, torch.zeros(1))
    met = weakref.ref(net)
    del net
    gc.collect()
    assert met() is None
    assert [(one["num_parameters"], one["calls"][0]["num"]) for one in counted.modules] == [(3, 2), (4, 1)]


def test_shapes_are_recorded_under_a_modules_own_name_when_torch_compile_wraps_it():
    counted = Counted()
    counted.call(torch.compile(Net(), backend="eager"), torch.zeros(6))
    (found,) = counted.modules
    assert found["module"].endswith(".Net")
    assert found["calls"] == [{"num": 1, "shapes": {"ids": (6,)}}]


@pytest.mark.parametrize("limits", [{"num_calls": 2}, {"most_s": -1.0}])
def test_record_shapes_ends_after_so_many_calls_or_so_long(limits):
    counted, net = Counted(**limits), Net()
    for _ in range(3):
        counted.call(net, torch.zeros(1))
    assert counted.task.done
    assert counted.modules[0]["calls"][0]["num"] == limits.get("num_calls", 1)


def test_record_shapes_ends_with_as_many_shapes_as_can_be_planned_for(monkeypatch):
    monkeypatch.setattr(record_shapes, "MOST_DIFFERENT", 3)
    counted, net = Counted(), Net()
    for size in range(1, 9):
        counted.call(net, torch.zeros(size))
    assert len(counted.modules[0]["calls"]) == 3


def test_a_call_that_the_module_itself_refuses_fails_as_without():
    counted = Counted()
    with pytest.raises(TypeError):
        counted.call(Net())
    assert counted.call(Net(), torch.ones(2)).item() == 6.0
    assert len(counted.program.errors) == 1


def test_inputs_of_a_module_without_a_signature_are_named_by_position_and_wrappers_are_looked_through():
    counted = Counted()
    counted.call(torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3)), torch.ones(4, 3))
    counted.call(nn.DataParallel(nn.Linear(3, 2)), torch.ones(5, 3))
    named = [item for found in counted.modules for call in found["calls"] for item in call["shapes"].items()]
    assert sorted(named) == [("input", (4, 3)), ("input", (5, 3))]
