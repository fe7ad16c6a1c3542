"""Terms of a history that is made by hand: who owns a block, and what the moment of its allocation says of
others."""

from dynotune import memory
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import DeviceOwners, Moment, Owners
from dynotune.schema.trace_summary import Place
from dynotune.trace.snapshot import Life, Lives
from dynotune.trace.snapshot.lives import Range

MIB = 1 << 20
LINE = Place(function="train.py(3): main")
BEFORE = 1000
"""Allocations and releases before the history."""


def accounted(
    lives, *, num_events, marks, owners=(), trains=True, process=None, reserved=40 * MIB, unknown="", **facts
):
    """The account of one device whose segments are as large as what is reserved."""
    device = DeviceOwners(
        device=0,
        marks=[(name, position + BEFORE) for name, position in marks],
        owners=[(term, address, position + BEFORE) for term, address, position in owners],
        num_events=num_events + BEFORE,
        reserved_bytes=reserved,
        free_bytes=0,
        total_bytes=1 << 30,
    )
    told = Owners(devices=[device], trains=trains, num_samples=4, step_s=[0.1], facts=facts, notes=[])
    history = Lives(0, lives, num_events, [Range(0, reserved, is_split=True)], unknown=unknown)
    own = Unknown("no NVML") if process is None else process
    return memory.account(device, told, history, process_bytes=own, others_bytes=0, pid=1)


STEP = [("begin", 0), ("forward", 1), ("forward_end", 4), ("update", 6), ("step", 8)]


def test_accounting_names_memory_without_an_owner_by_when_it_was_allocated():
    found = accounted(
        [
            Life(0 * MIB, MIB, -1, 8),  # older: nobody knows
            Life(1 * MIB, MIB, 0, 8, LINE),  # before the forward pass
            Life(2 * MIB, MIB, 1, 8, LINE, "Net.a"),  # kept beyond it
            Life(3 * MIB, MIB, 2, 3, LINE, "Net.a"),  # released in it
            Life(4 * MIB, MIB, 4, 8),  # backward
            Life(5 * MIB, MIB, 5, 8, LINE),  # the loss
            Life(6 * MIB, MIB, 6, 8, LINE),  # the update
        ],
        num_events=8,
        marks=STEP,
    )
    assert isinstance(found.steady, Moment)
    sizes = {name: found.steady.of(name) // MIB for name in ("unknown", "inputs", "activations", "temporary")}
    assert sizes == {"unknown": 1, "inputs": 1, "activations": 2, "temporary": 2}


def test_an_address_that_is_used_again_belongs_to_whoever_had_it_then():
    lives = [Life(0, MIB, -1, 2), Life(0, 3 * MIB, 4, 8)]
    owners = [("weights", 0, 1), ("gradients", 0, 7)]
    found = accounted(lives, num_events=8, marks=STEP, owners=owners)
    assert (found.steady.of("weights"), found.steady.of("gradients")) == (0, 3 * MIB)
    assert found.facts["old_gradient_bytes"] == 0


def test_a_weight_is_a_weight_whoever_else_has_its_block():
    owners = [("kept", 0, 8), ("gradients", 0, 8), ("weights", 0, 8)]
    assert (
        accounted([Life(0, MIB, -1, 8)], num_events=8, marks=STEP, owners=owners).steady.of("weights") == MIB
    )


def test_an_address_of_nothing_that_was_alive_is_left_alone():
    found = accounted(
        [Life(0, MIB, 5, 8)], num_events=8, marks=STEP, owners=[("weights", 0, 2), ("buffers", 99, 3)]
    )
    assert found.steady.of("weights") == found.steady.of("buffers") == 0


def test_inference_keeps_what_its_forward_pass_holds():
    lives = [Life(0, MIB, 1, 3, LINE, "Net.a"), Life(MIB, MIB, 2, 8, LINE, "Net.b")]
    found = accounted(lives, num_events=8, marks=STEP, trains=False)
    assert found.peak.of("activations") == 2 * MIB
    assert found.facts["graph_bytes"] == MIB


def test_a_forward_pass_that_is_computed_again_is_seen():
    lives = [Life(0, MIB, 1, 3, LINE, "Net.a"), Life(0, MIB, 4, 8, LINE, "Net.a")]
    assert accounted(lives, num_events=8, marks=STEP).facts["recomputes"] is True
    assert accounted(lives[:1], num_events=8, marks=STEP).facts["recomputes"] is False


def test_a_history_that_lost_its_beginning_is_accounted_with_a_note():
    found = accounted([Life(0, MIB, 5, 8, LINE)], num_events=8, marks=[("begin", -50), *STEP[1:]])
    assert any("history was full" in note for note in found.notes)
    assert isinstance(found.peak, Moment)


def test_a_history_that_does_not_tell_makes_no_terms():
    found = accounted([], num_events=8, marks=STEP, unknown="events were left out")
    assert found.peak == found.steady == Unknown("events were left out")


def test_a_count_of_the_driver_below_what_is_reserved_is_not_believed():
    found = accounted([Life(0, MIB, 5, 8, LINE)], num_events=8, marks=STEP, process=MIB)
    assert isinstance(found.peak.process_bytes, Unknown)
    assert found.peak.total_bytes == found.peak.reserved_bytes


def test_terms_always_add_up():
    lives = [Life(at * 3 * MIB, 2 * MIB + 100, at, at + 3, LINE) for at in range(5)]
    found = accounted(lives, num_events=8, marks=STEP, process=90 * MIB)
    for moment in (found.peak, found.steady):
        assert moment.total_bytes == moment.process_bytes == moment.reserved_bytes + 50 * MIB
        assert moment.of("unknown") == 0


def held(modules: list[str]) -> dict[str, int]:
    """The bytes of modules of lists, where each of the modules keeps 64 bytes."""
    lives = [Life(64 * index, 64, 1, 8, LINE, name) for index, name in enumerate(modules)]
    peak = accounted(lives, num_events=8, marks=STEP, trains=False).peak
    (activations,) = [term for term in peak.terms if term.name == "activations"]
    return activations.blocks


def test_each_module_of_a_list_holds_what_is_below_it_however_many_there_are():
    parts = [f"blocks.{block}.{part}" for block in range(32) for part in ("attn.qkv", "mlp.0", "mlp.2")]
    assert {held(parts)[f"blocks.{block}"] for block in range(32)} == {192}
    assert held(parts)["blocks.3.mlp.2"] == 64
    assert held(["conv.weight2"]) == {}
