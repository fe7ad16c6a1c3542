import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from dynotune.agent.facts.compile import Compilations


def function():
    pass


@pytest.fixture
def recompilations(monkeypatch):
    """Gives how often each reason made torch compile the function again, commonest first, by the failures it
    notes."""

    def told(*reasons):
        utils = SimpleNamespace(counters=Counter(), guard_failures={function.__code__: list(reasons)})
        monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
        compilations = Compilations()
        compilations.compilation_begins()
        return [int(line.partition("x ")[0]) for line in compilations.facts()["recompilations"]]

    return told


def test_a_reason_counts_once_for_each_graph_that_did_not_fit(recompilations):
    assert recompilations("0/0: size 1  # x.py", "0/1: size 2", "0/0: size 1", "0/2: type A") == [2, 1]


def test_reasons_without_the_names_of_graphs_count_once_for_each_recompilation(recompilations):
    """torch 2.4 tells the reasons of all graphs so far, the latest first."""
    assert recompilations("size 1", "size 2", "size 1", "type A", "size 2", "size 1") == [2, 1]
    assert recompilations() == []
