from types import SimpleNamespace

from dynotune.agent.facts.compile import _recompilations


def function():
    pass


def recompilations(*reasons):
    return list(_recompilations(SimpleNamespace(guard_failures={function.__code__: list(reasons)})).values())


def test_a_reason_counts_once_for_each_graph_that_did_not_fit():
    assert recompilations("0/0: size 1  # x.py", "0/1: size 2", "0/0: size 1", "0/2: type A") == [2, 1]


def test_reasons_without_the_names_of_graphs_count_once_for_each_recompilation():
    """torch 2.4 tells the reasons of all graphs so far, the latest first."""
    assert recompilations("size 1", "size 2", "size 1", "type A", "size 2", "size 1") == [2, 1]
    assert recompilations() == []
