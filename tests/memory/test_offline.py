"""Predictions from the allocations on a pretended GPU, made by hand here."""

import json

import pytest

from dynotune import memory
from dynotune.memory import Allocations, AllocatorSettings
from dynotune.schema.errors import RecordError, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_prediction import MemoryPrediction

MIB = 1 << 20
WORDS = ["forward", "backward", "optimizer", "", "layer", "from host", "mm", "cublas workspace"]


def made(activation_mib, *, weight_mib=100, extra=(), **fields):
    """A weight, a cuBLAS workspace, an activation freed in backward, and a gradient."""
    events = [
        [0, weight_mib * MIB, 0, 3, 5],
        [1, 0, 0, 4, 7],
        [2, activation_mib * MIB, 0, 4, 6],
        [3, weight_mib * MIB, 1, 3, 6],
        [2, 1],
        *extra,
    ]
    return Allocations(torch="2.13.0", events=events, words=WORDS, roles={"0": "parameter", "3": "gradient"}, **fields)


def test_terms_add_up_to_the_peak_and_bounds_enclose_it():
    found = memory.predict(made(50), memory.gpu("H100-80GB"))
    assert isinstance(found, MemoryPrediction)
    sums = {term.name: term.num_bytes for term in found.terms}
    assert sum(sums.values()) == found.peak_bytes
    assert (sums["parameters"], sums["gradients"], sums["activations"]) == (100 * MIB, 100 * MIB, 50 * MIB)
    assert sums["workspaces of cuBLAS"] == 32 * MIB
    assert found.low_bytes <= found.peak_bytes <= found.high_bytes
    assert found.verdict == "fits"
    assert [(part.module, part.num_bytes) for part in found.modules] == [("layer", 50 * MIB)]


@pytest.mark.parametrize(("weight_mib", "verdict"), [(200, "fits"), (3600, "too close"), (6000, "does not fit")])
def test_the_verdict_is_of_the_interval(weight_mib, verdict):
    found = memory.predict(made(10, weight_mib=weight_mib), memory.gpu("8GiB"))
    assert isinstance(found, MemoryPrediction)
    assert found.verdict == verdict


def test_a_generation_that_is_unknown_widens_the_interval_and_is_said():
    known = memory.predict(made(10), memory.gpu("H100-80GB"))
    size = memory.predict(made(10), memory.gpu("80GiB"))
    (one,), (other,) = ([term for term in found.terms if "cuBLAS" in term.name] for found in (known, size))
    assert other.high_bytes - other.low_bytes > one.high_bytes - one.low_bytes
    assert "unknown" in other.why


def test_what_the_agent_refused_is_unknown_for_its_reason():
    found = memory.predict(made(10, reason="train.py(3): aten.nonzero"), memory.gpu("T4"))
    assert found == Unknown("train.py(3): aten.nonzero")


def test_another_backend_of_the_allocator_is_not_modelled():
    found = memory.predict(made(10), memory.gpu("T4"), AllocatorSettings.parse("backend:cudaMallocAsync"))
    assert isinstance(found, Unknown)


def test_a_command_that_uses_no_gpu_is_said_to():
    found = memory.predict(Allocations(torch="2.13.0", events=[], words=[]), memory.gpu("T4"))
    assert isinstance(found, Unknown)


def test_the_largest_batch_fits_and_the_next_does_not():
    runs = [(8, made(80)), (16, made(160))]
    gpu = memory.gpu("4GiB")
    found = memory.largest_batch(runs, gpu)
    assert isinstance(found.fits, int) and isinstance(found.may_fit, int)
    assert 16 < found.fits <= found.may_fit
    for batch, verdicts in ((found.fits, {"fits"}), (found.fits + 1, {"too close", "does not fit"})):
        result = memory.predict(made(10 * batch), gpu)
        assert isinstance(result, MemoryPrediction)
        assert result.verdict in verdicts


def test_the_largest_batch_is_found_on_a_line_where_the_two_runs_differ():
    more = made(160, extra=([4, MIB, 0, 4, 6],))
    found = memory.largest_batch([(8, made(80)), (16, more)], memory.gpu("4GiB"))
    assert isinstance(found.fits, int) and found.fits > 16


def test_a_batch_argument_that_changes_nothing_has_no_largest_batch():
    found = memory.largest_batch([(8, made(80)), (16, made(80))], memory.gpu("4GiB"))
    assert isinstance(found.fits, Unknown)


@pytest.mark.parametrize("text", ["", "H99", "0GiB", "24 apples", "-3GB"])
def test_a_gpu_that_nobody_knows_is_refused(text):
    with pytest.raises(UsageError):
        memory.gpu(text)


@pytest.mark.parametrize("text", ["h100-80gb", "NVIDIA H100 80GB", "RTX 4090", "24GiB", "24 GB"])
def test_names_of_gpus_are_read_as_people_write_them(text):
    assert memory.gpu(text).total_bytes > 20 << 30


@pytest.mark.parametrize(
    "events",
    [[[0, -1, 0, 0, 0]], [[0, 5, 0, 0, 99]], [[7, 0]], [[0, 1, 0, 0, 0], [0, 1, 0, 0, 0]], [[0, 1, 2]], "no"],
)
def test_a_damaged_file_is_refused(tmp_path, events):
    path = tmp_path / "allocations-1.json"
    path.write_text(json.dumps({"torch": "2.13.0", "events": events, "words": WORDS}))
    with pytest.raises(RecordError):
        memory.read(path)
