"""Names of classes and functions, whatever they are written in."""

from __future__ import annotations

import functools

import pytest
import torch

from dynotune.agent.core import tensors


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
        (functools.partial(functools.partial(functools.reduce)), "_functools.reduce"),
        (str.join, "builtins.str.join"),
        ([].append, "builtins.list.append"),
        (torch.Tensor.contiguous, None),
        ("".__len__, None),
    ],
)
def test_every_function_and_class_has_a_name(thing, name):
    found = tensors.name_of(thing)
    assert found and "None" not in found
    assert name in (None, found)
