"""Modes of torch.compile that the program asks for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dynotune.agent.facts.compile import Compilations


@pytest.mark.parametrize(
    ("asked", "mode"),
    [
        ({}, "default"),
        ({"mode": "max-autotune"}, "max-autotune"),
        ({"options": {"triton.cudagraphs": True}}, "reduce-overhead"),
        ({"options": {"max_autotune": True}}, "default"),
        ({"backend": "eager", "options": {"triton.cudagraphs": True}}, "backend eager"),
    ],
)
def test_mode_names_graphs_when_they_are_asked_for_as_options(asked, mode):
    pytest.importorskip("torch._dynamo.utils")
    torch, seen = SimpleNamespace(compile=lambda *args, **kwargs: None), Compilations()
    seen.torch_is_here(torch)
    try:
        torch.compile(print, **asked)
    finally:
        seen.look_no_more()
    facts = seen.facts()
    assert facts is not None and facts["modes"] == [mode]
