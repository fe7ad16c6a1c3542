"""The largest module is exported with what its own calls vary in, and computed in float64 on their
batches."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch import nn

from dynotune.agent.tasks.record_shapes import MOST_BATCHES, MOST_TEXT, OnnxExport, RecordShapes

from .fake_program import fake_program


class Net(nn.Module):
    def __init__(self, size=4) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(size, size), nn.Dropout()

    def forward(self, x, scale=1.0):
        return {"y": self.drop(self.layer(x)) * scale, "at": x.argmax(-1)}


class Decides(Net):
    def forward(self, x, scale=1.0):
        y = self.layer(x)
        if y.sum() > 0:
            y = y * 2
        return y


class Unsupported(Net):
    def forward(self, x, scale=1.0):
        return torch.linalg.svdvals(self.layer(x))


class Counted:
    def __init__(self, folder) -> None:
        self.program = fake_program(torch, folder=folder)
        self.task = RecordShapes(self.program, {"num_calls": 1000, "most_s": 1000.0, "onnx": True})
        self._around = self.task.around_calls(None)

    def call(self, module, *args, **kwargs):
        return self._around(type(module).__call__, module, args, kwargs)

    @property
    def export(self):
        self.task.at_exit()
        assert not self.program.errors
        (event,) = self.program.events
        return event["onnx"]


@pytest.mark.long
def test_a_module_is_exported_once_with_the_sizes_that_vary_and_with_dropout_off(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    counted, net = Counted(tmp_path), Net().train()
    for rows in (1, 5, 5, 3):
        counted.call(net, torch.ones(rows, 4), scale=2.0)
    counted.call(nn.Softmax(-1), torch.ones(9, 9))
    assert counted.export == {"num_batches": 3}
    assert net.training
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    (x,) = onnx.load(tmp_path / "model.onnx").graph.input
    assert [dim.HasField("dim_value") for dim in x.type.tensor_type.shape.dim] == [False, True]
    with np.load(tmp_path / "onnx-2.npz") as last:
        assert (last["input:x"].shape, last["own:0"].dtype, last["reference:0"].dtype) == (
            (5, 4),
            "float32",
            "float64",
        )
        assert np.allclose(last["own:0"], last["reference:0"], rtol=1e-5)
        assert last["own:1"].dtype == np.int64


@pytest.mark.parametrize(
    ("made", "words"),
    [(Decides, "data-dependent"), pytest.param(Unsupported, "aten._linalg_svd", marks=pytest.mark.long)],
)
def test_a_failure_names_the_operator_and_the_line(tmp_path, made, words):
    pytest.importorskip("onnxscript")
    counted, net = Counted(tmp_path), made()
    for rows in (2, 3):
        counted.call(net, torch.ones(rows, 4))
    error = counted.export["error"]
    assert words in error
    assert "test_onnx_export.py" in error
    assert "\n" not in error
    assert len(error) < MOST_TEXT + 200
    assert not list(tmp_path.iterdir())


def test_few_batches_are_kept_and_what_the_program_changes_later_is_not_in_them(tmp_path):
    counted, net = Counted(tmp_path), Net()
    x = torch.ones(2, 4)
    counted.call(net, x)
    x.zero_()
    for rows in range(3, 20):
        counted.call(net, torch.ones(rows, 4))
    kept = list(counted.task._export._batches.values())
    assert len(kept) == MOST_BATCHES
    assert kept[0].args[0].sum() == 8
    assert list(counted.task._export._varying["x"]) == [0]


def test_calls_with_other_inputs_than_the_first_are_not_exported(tmp_path):
    counted, net = Counted(tmp_path), Net()
    for args in (
        [torch.ones(2, 4)],
        [torch.ones(2, 4), torch.ones(1)],
        [torch.ones(2, 3, 4)],
        [torch.ones(3, 4)],
    ):
        counted.call(net, *args)
    assert list(counted.task._export._batches) == [(("x", (2, 4)),), (("x", (3, 4)),)]
    assert list(counted.task._export._varying) == ["x"]


def test_a_module_that_only_a_function_held_is_there_until_it_is_exported(tmp_path):
    pytest.importorskip("onnxscript")
    export = OnnxExport(torch, str(tmp_path))

    def main():
        net = Decides()
        export.keep(20, net, inspect.signature(net.forward).bind(torch.ones(2, 4)))

    main()
    assert "data-dependent" in export.made()["error"]


def test_without_the_order_nothing_is_kept():
    program = fake_program(torch)
    task = RecordShapes(program, {"num_calls": 9, "most_s": 9.0})
    task.around_calls(None)(Net.__call__, Net(), (torch.ones(1, 4),), {})
    task.at_exit()
    assert program.events[0]["onnx"] is None
