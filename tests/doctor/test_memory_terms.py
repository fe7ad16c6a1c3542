"""What would save memory: each rule fires on its evidence, with its bytes, and is silent without."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.doctor import ObservationView, examine
from dynotune.schema.allocator import Allocator
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, RankMemory, Term
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.setting import Setting

GIB = 1 << 30
PLACE = "/home/me/train.py(31): main"
USUAL = {"weights": 2, "gradients": 2, "optimizer": 4, "activations": 8, "temporary": 1, "context": 1}


def rank(
    sizes: dict[str, float] | None = None, blocks: dict[str, float] | None = None, **fields: Any
) -> RankMemory:
    """A training that lacks nothing; sizes in GiB."""
    told = {name: int(size * GIB) for name, size in (blocks or {}).items()}
    terms = [
        Term(
            name=name,  # type: ignore[arg-type]
            num_bytes=int(size * GIB),
            blocks=told if name == "activations" else {},
            lines={PLACE: int(size * GIB)},
        )
        for name, size in (USUAL | (sizes or {})).items()
    ]
    total = sum(term.num_bytes for term in terms)
    peak = Moment(process_bytes=total, reserved_bytes=total - GIB, requested_bytes=total - GIB, terms=terms)
    usual: dict[str, Any] = {
        "pid": 1,
        "device": 0,
        "total_bytes": 80 * GIB,
        "others_bytes": 0,
        "peak": peak,
        "steady": peak,
        "trains": True,
        "step_s": 0.1,
        "facts": {"autocast": True, "dtype": "float32", "grad_enabled": True, "fused": True, "foreach": None},
    }
    facts = usual["facts"] | fields.pop("facts", {})
    return RankMemory(**(usual | fields | {"facts": facts}))


def found(*ranks: RankMemory) -> dict[str, Any]:
    view = ObservationView(Observation(command=["train"], memory=list(ranks)))
    return {one.id: one for one in examine(view, "program")[0] if one.id.startswith("memory-")}


def test_a_training_that_lacks_nothing_has_no_finding() -> None:
    assert found(rank()) == {}


@pytest.mark.parametrize(
    ("id", "changes", "saved_gib"),
    [
        ("memory-autocast", {"facts": {"autocast": False}}, 3),
        ("memory-optimizer-copies", {"facts": {"fused": None, "peak_in_update": True}}, 1),
        ("memory-checkpointing", {"blocks": {"Net.layers.0": 3, "Net.layers.1": 3}}, 3),
        ("memory-old-gradients", {"facts": {"old_gradient_bytes": 2 * GIB}}, 2),
        ("memory-graph-unused", {"trains": False, "facts": {"graph_bytes": 5 * GIB}}, 5),
        ("memory-segments", {"sizes": {"fragmentation": 2}}, 2),
    ],
)
def test_each_saving_is_predicted_in_bytes(id: str, changes: dict[str, Any], saved_gib: int) -> None:
    findings = found(rank(**changes))
    assert list(findings) == [id]
    assert f"predicted: {saved_gib * 1024:,} MiB less at the peak" in findings[id].evidence[0]
    assert findings[id].kind == "memory"
    assert findings[id].remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": {"autocast": False, "dtype": "bfloat16"}},
        {"facts": {"fused": None, "peak_in_update": False}},
        {"blocks": {"Net.layers.0": 3, "Net.layers.1": 3}, "facts": {"recomputes": True}},
        {"blocks": {"Net.layers.0": 3}},
        {"trains": False, "facts": {"grad_enabled": False, "graph_bytes": 5 * GIB}},
    ],
)
def test_without_its_evidence_a_rule_is_silent(changes: dict[str, Any]) -> None:
    assert found(rank(**changes)) == {}


def test_settings_and_the_place_are_named() -> None:
    finding = found(rank(facts={"autocast": False}))["memory-autocast"]
    assert finding.candidates == [Setting("precision.autocast", "bf16")]
    assert finding.where.function == PLACE


def test_the_rank_that_holds_most_is_the_one_that_counts() -> None:
    small = rank(facts={"autocast": False}, sizes={"activations": 4})
    assert found(small, rank()) == {}
    assert "memory-autocast" in found(
        rank(), msgspec.structs.replace(small, peak=rank(sizes={"activations": 20}).peak)
    )


def test_memory_that_was_not_recorded_gives_nothing() -> None:
    findings, _ = examine(ObservationView(Observation(command=["train"])), "program")
    assert not any(one.id.startswith("memory-") for one in findings)
    assert found(rank(peak=Unknown("no history"))) == {}


def diagnosed(*ranks: RankMemory, **allocator: Any) -> str:
    """Return the severity of a saving of 40% of a process whose steps were watched, in 8 of 80 GiB unless
    told."""
    usual: dict[str, Any] = dict.fromkeys(Allocator.__struct_fields__, 0) | {"total_bytes": 80 * GIB}
    counters = Allocator(**(usual | {"allocated_levels_bytes": []} | allocator))
    process = ProcessState(pid=1, allocators=[counters])
    view = ObservationView(Observation(command=["train"], processes=[process], memory=list(ranks)))
    (severity,) = [one.severity for one in examine(view, "program")[0] if one.id == "memory-autocast"]
    return severity


MUCH_TO_SAVE: dict[str, Any] = {"facts": {"autocast": False}, "sizes": {"activations": 14}}


def test_saving_of_memory_is_loud_when_memory_is_all_that_was_asked_about() -> None:
    assert found(rank(**MUCH_TO_SAVE))["memory-autocast"].severity == "medium"
    assert found(rank(facts={"autocast": False}))["memory-autocast"].severity == "low"


def test_saving_of_memory_is_low_when_a_diagnosed_program_has_memory_to_spare() -> None:
    assert diagnosed(rank(**MUCH_TO_SAVE)) == "low"


@pytest.mark.parametrize(
    "short",
    [
        {"total_bytes": 32 * GIB},
        {"others_bytes": 48 * GIB},
        {"facts": {"autocast": False, "memory_fraction": 0.4}},
    ],
    ids=["small card", "memory of others", "own limit"],
)
def test_saving_of_memory_is_loud_when_the_device_is_nearly_full(short: dict[str, Any]) -> None:
    assert diagnosed(rank(**MUCH_TO_SAVE | short)) == "medium"


@pytest.mark.parametrize(
    "counter",
    [{"num_ooms": 1}, {"num_alloc_retries": 1}, {"peak_reserved_bytes": 60 * GIB}],
    ids=lambda one: next(iter(one)),
)
def test_saving_of_memory_is_loud_when_the_allocator_ran_short(counter: dict[str, int]) -> None:
    assert diagnosed(rank(**MUCH_TO_SAVE), **counter) == "medium"
