"""What is seen of a program from the outside of its modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynotune.agent.tasks.digests import precision_of


class OnDevice(nn.Module):
    """A module whose parameters say that they are on a GPU; there need not be one."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def parameters(self, recurse=True):
        return iter([ParameterOnDevice(one) for one in super().parameters(recurse)])


class ParameterOnDevice:
    device = torch.device("cuda")

    def __init__(self, parameter):
        self._parameter = parameter

    def __getattr__(self, name):
        return getattr(self._parameter, name)


@pytest.mark.parametrize(
    ("inside", "precision"),
    [
        (nn.Linear(2, 2), "float32"),
        (nn.TransformerEncoderLayer(4, 2), "float32"),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(2, 2)), "tf32"),
        (nn.LSTM(2, 2), "tf32"),
        (nn.Linear(2, 2).half(), "float16"),
    ],
)
def test_the_switch_of_cudnn_promises_nothing_of_a_module_without_work_for_it(inside, precision, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
    assert precision_of(torch, OnDevice(inside)) == precision
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert precision_of(torch, OnDevice(inside)) == ("tf32" if precision == "float32" else precision)
