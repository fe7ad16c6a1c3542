"""Memory that grows from step to step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.schema.model import ModelCall
from dynotune.schema.observation import GrownObjects, GrownType

from .observations import timing
from .test_loader_rules import found, lacks
from .test_memory_rules import allocator, holds
from .test_transfer_rules import _model

GB = 10**9


@pytest.mark.parametrize(
    ("grown", "severity"), [(2 << 20, "low"), (50 * 1000**2, "medium"), (2 * GB, "high")]
)
def test_device_memory_that_grows_with_each_step(grown, severity):
    finding = found(holds(allocators=[allocator(allocated_growth_bytes=grown)]))["leak-graph-kept"]
    assert (finding.kind, finding.severity) == ("memory", severity)


def test_memory_that_grows_by_little_while_shapes_vary_is_of_low_severity():
    grows = allocator(allocated_growth_bytes=50 * 1000**2, allocated_bytes=5 * GB)
    for num_shapes, severity in ((40, "low"), (1, "medium")):
        call = ModelCall(grad_enabled=True, inference_mode=False, training=True, num_input_shapes=num_shapes)
        observation = holds(allocators=[grows], models=[msgspec.structs.replace(_model("cuda:0"), call=call)])
        assert found(observation)["leak-graph-kept"].severity == severity


def test_memory_that_varies_is_no_leak():
    levels = [5 * GB, 7 * GB, 5 * GB, 6 * GB, 5 * GB, 7 * GB]
    varies = allocator(allocated_growth_bytes=2 * GB, allocated_levels_bytes=levels)
    assert found(holds(allocators=[varies])) == {}
    rises = allocator(allocated_growth_bytes=5, allocated_levels_bytes=[1, 2, 3, 4, 5, 6])
    assert found(holds(allocators=[rises])) == {}


def test_the_process_itself_may_grow():
    grows: dict[str, Any] = {"rss_growth_bytes": 400 << 20, "allocators": []}
    facts = {"host.memory_available_bytes": 8 * GB}
    finding = found(holds(facts=facts, **grows))["leak-graph-kept"]
    assert finding.severity == "high"
    assert found(holds(**grows))["leak-graph-kept"].severity == "low"
    uneven = grows | {"rss_levels_bytes": [1, 500, 400, 400, 400, 400]}
    assert "leak-graph-kept" not in found(holds(facts=facts, **uneven))


@pytest.mark.parametrize(("grad_enabled", "severity"), [(True, "high"), (False, "low")])
def test_a_process_that_grows_without_gradients_may_keep_its_results(grad_enabled, severity):
    call = ModelCall(grad_enabled=grad_enabled, inference_mode=False, training=False)
    model = msgspec.structs.replace(_model("cuda:0"), call=call)
    grows: dict[str, Any] = {"rss_growth_bytes": 400 << 20, "models": [model]}
    finding = found(holds(facts={"host.memory_available_bytes": 8 * GB}, **grows))["leak-graph-kept"]
    assert finding.severity == severity


def test_a_graph_that_grows_is_found_before_memory_shows_it():
    per_step = timing().num_steps
    finding = found(holds(allocators=[], graph_nodes_growth=12 * per_step))["leak-graph-kept"]
    assert finding.severity == "medium" and "12 nodes" in finding.claim
    for grown in (None, -40, 0, per_step - 1):
        assert "leak-graph-kept" not in found(holds(allocators=[], graph_nodes_growth=grown))


def test_a_step_that_takes_other_branches_keeps_no_graph():
    grown = 8 * timing().num_steps
    assert "leak-graph-kept" not in found(
        holds(allocators=[], graph_nodes_growth=grown, graph_nodes=5 * grown)
    )
    assert "leak-graph-kept" in found(holds(allocators=[], graph_nodes_growth=grown, graph_nodes=2 * grown))


def test_a_graph_that_grows_with_its_inputs_is_not_kept():
    call = ModelCall(grad_enabled=True, inference_mode=False, training=True, num=30, num_grown=29, growth=29)
    grows = msgspec.structs.replace(_model("cuda:0"), call=call)
    told: dict[str, Any] = {"allocators": [], "graph_nodes_growth": 12 * timing().num_steps}
    assert "leak-graph-kept" not in found(holds(models=[grows], **told))


def test_a_graph_of_inputs_that_vary_is_no_graph_that_is_kept():
    def called(**fields: Any) -> Any:
        call = ModelCall(grad_enabled=True, inference_mode=False, training=True, **fields)
        return msgspec.structs.replace(_model("cuda:0"), call=call)

    longer = called(num_input_shapes=30, num=30, num_grown=29, growth=29)
    grown = 12 * timing().num_steps
    assert "leak-graph-kept" not in found(holds(allocators=[], graph_nodes_growth=grown, models=[longer]))
    assert "leak-graph-kept" in found(holds(allocators=[], graph_nodes_growth=grown, models=[called()]))
    # Longer inputs need more memory, on the device and beside it.
    device = [allocator(allocated_growth_bytes=2 * GB)]
    assert found(holds(allocators=device, models=[longer]))["leak-graph-kept"].severity == "low"
    process: dict[str, Any] = {"rss_growth_bytes": 400 << 20, "allocators": [], "models": [longer]}
    facts = {"host.memory_available_bytes": 8 * GB}
    assert found(holds(facts=facts, **process))["leak-graph-kept"].severity == "low"


def test_a_process_that_grows_without_its_graph_has_a_buffer_that_fills_up():
    grows: dict[str, Any] = {"rss_growth_bytes": 400 << 20, "allocators": []}
    facts = {"host.memory_available_bytes": 8 * GB}
    finding = found(holds(facts=facts, graph_nodes_growth=3, **grows))["leak-graph-kept"]
    assert finding.severity == "low" and "no part of autograd's graph is kept" in finding.evidence
    with_graph = found(holds(facts=facts, graph_nodes_growth=100_000, **grows))["leak-graph-kept"]
    assert with_graph.severity == "high" and "loss.detach()" in with_graph.remedy
    slow = grows | {"rss_growth_bytes": 33 << 20, "graph_nodes_growth": 100_000}
    assert (
        found(holds(facts={"host.memory_available_bytes": 10**6 * GB}, **slow))["leak-graph-kept"].severity
        == "medium"
    )


def test_less_growth_will_do_where_every_level_rises():
    grows: dict[str, Any] = {"rss_growth_bytes": 13 << 20, "allocators": []}
    assert "leak-graph-kept" in found(holds(rss_levels_bytes=list(range(8)), **grows))
    assert "leak-graph-kept" not in found(holds(rss_levels_bytes=[0, 1, 2, 2, 3, 4, 5, 6], **grows))
    assert "leak-graph-kept" not in found(holds(**grows))


def test_a_process_that_holds_now_more_now_less_does_not_leak():
    grows: dict[str, Any] = {"rss_growth_bytes": 36 << 20, "allocators": []}
    wanders = [366, 374, 346, 355, 368, 382, 394, 402, 402]
    assert "leak-graph-kept" not in found(holds(rss_levels_bytes=[mb << 20 for mb in wanders], **grows))
    rises = [366, 374, 370, 375, 380, 385, 392, 400, 402]
    assert "leak-graph-kept" in found(holds(rss_levels_bytes=[mb << 20 for mb in rises], **grows))


def test_leak_finding_is_silent_when_growth_ends():
    filling = [mb << 20 for mb in (494, 539, 570, 571, 596, 602, 622, 641, 635)]
    grows: dict[str, Any] = {"rss_growth_bytes": filling[-1] - filling[0], "allocators": []}
    assert "leak-graph-kept" not in found(holds(rss_levels_bytes=filling, **grows))
    lasting = [mb << 20 for mb in (494, 512, 530, 547, 565, 582, 600, 617, 635)]
    assert "leak-graph-kept" in found(holds(rss_levels_bytes=lasting, **grows))
    on_device = allocator(
        allocated_growth_bytes=2 * GB, allocated_levels_bytes=[gb * GB // 10 for gb in (10, 20, 26, 29, 30)]
    )
    assert "leak-graph-kept" not in found(holds(allocators=[on_device]))


def test_leak_finding_is_silent_when_a_profiler_keeps_the_memory():
    grows: dict[str, Any] = {"rss_growth_bytes": 400 << 20, "allocators": []}
    profiled = {"live.profiler_place": "train.py:3"}
    assert "leak-graph-kept" not in found(holds(live=profiled, **grows))


def test_growth_is_unknown_where_it_was_not_followed():
    assert lacks(holds(rss_growth_bytes=None), "leak-graph-kept") == ["growth of the process's memory"]


def test_leak_finding_names_objects_that_each_step_leaves_behind():
    per_step = timing().num_steps
    grown = [
        GrownType("torch.Tensor", 900, 40),
        GrownType("builtins.cell", 900, 20),
        GrownType("builtins.dict", 90, 2),
    ]
    observation = holds(allocators=[], graph_nodes_growth=12 * per_step)
    counted = msgspec.structs.replace(observation, objects=GrownObjects(num_steps=20, grown=grown))
    evidence = found(counted)["leak-graph-kept"].evidence
    assert "each step leaves behind 2.0 torch.Tensor, 1.0 builtins.cell" in evidence
    assert not any("leaves behind" in text for text in found(observation)["leak-graph-kept"].evidence)
