"""What other batches hold, and what fits, from batches that were run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune import memory
from dynotune.memory.allocator import SMALL_SEGMENT_BYTES
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, Term

MIB, GIB = 1 << 20, 1 << 30


def measured(batch, **sizes):
    """A run with these terms; those not named are nothing."""
    terms = [Term(name=name.replace("_", "-"), num_bytes=size) for name, size in sizes.items()]
    total = sum(sizes.values())
    reserved = total - sizes.get("context", 0)
    moment = Moment(process_bytes=total, reserved_bytes=reserved, requested_bytes=reserved, terms=terms)
    return {batch: moment}


def predicted(found, batch):
    return next(fit.num_bytes for fit in found.fits if fit.batch == batch)


def trained(batch, sample=100 * MIB):
    return measured(batch, context=500 * MIB, weights=2 * GIB, activations=batch * sample)


@given(
    st.integers(1, 256),
    st.integers(1, 256),
    st.integers(1, 100_000),
    st.integers(MIB, 200 * MIB),
    st.integers(0, 8 * GIB),
)
def test_capacity_predicts_memory_that_grows_with_the_batch_to_a_segment(first, more, asked, sample, weights):
    runs = {}
    for batch in (first, first + more):
        runs |= measured(batch, context=500 * MIB, weights=weights, activations=batch * sample)
    found = memory.capacity(runs, card="GPU 0", limit_bytes=80 * GIB, asked=[asked])
    if isinstance(found, Unknown):
        assert more * sample < 0.002 * runs[first].total_bytes
        return
    exact = 500 * MIB + weights + asked * sample
    assert 0 <= predicted(found, asked) - exact + asked <= SMALL_SEGMENT_BYTES + asked * 2


def test_the_largest_batch_fits_with_the_margin_and_the_next_does_not():
    found = memory.capacity(trained(8) | trained(16), card="GPU 0", limit_bytes=24 * GIB)
    limit = found.limit_bytes - found.margin_bytes
    assert found.margin_bytes == int(0.02 * 24 * GIB)
    assert predicted(found, found.largest) <= limit < predicted(found, found.largest + 1)
    verdicts = {fit.batch: fit.verdict for fit in found.fits}
    assert verdicts[found.largest] == verdicts[8] == "fits"
    assert verdicts[found.largest + 1] == "too-close"


def test_more_than_the_card_has_does_not_fit():
    runs = trained(8) | trained(16)
    found = memory.capacity(runs, card="GPU 0", limit_bytes=24 * GIB, asked=[500])
    assert {fit.batch: fit.verdict for fit in found.fits}[500] == "does-not-fit"


def test_a_model_too_large_for_the_card_has_no_batch():
    found = memory.capacity(trained(8) | trained(16), card="2GiB", limit_bytes=2 * GIB)
    assert isinstance(found.largest, Unknown)


def test_an_argument_that_does_not_change_memory_is_told():
    same = measured(8, weights=2 * GIB) | measured(16, weights=2 * GIB)
    assert "takes no more memory" in memory.capacity(same, card="GPU 0", limit_bytes=80 * GIB).reason


def test_capacity_widens_its_margin_when_the_model_misses_a_run():
    bent = trained(8) | trained(16) | measured(24, context=500 * MIB, weights=2 * GIB, activations=6 * GIB)
    found = memory.capacity(bent, card="GPU 0", limit_bytes=80 * GIB)
    assert found.residual > 0.02
    assert found.margin_bytes == int(found.residual * 80 * GIB)


def test_workspaces_and_context_do_not_grow():
    sizes = {"weights": 2 * GIB, "workspaces": 32 * MIB}
    runs = trained(8) | measured(16, context=520 * MIB, activations=1600 * MIB, **sizes)
    found = memory.capacity(runs, card="GPU 0", limit_bytes=80 * GIB, asked=[32])
    assert predicted(found, 32) == 520 * MIB + 2 * GIB + 3200 * MIB + 32 * MIB


def test_of_one_batch_it_is_said_whether_it_fits_and_nothing_of_others():
    found = memory.capacity(trained(8), card="GPU 0", limit_bytes=80 * GIB, asked=[16])
    assert [(fit.batch, fit.verdict) for fit in found.fits] == [(8, "fits")]
    assert isinstance(found.largest, Unknown)


@pytest.mark.parametrize(
    ("batch", "verdict"), [(180, "fits"), (200, "too-close"), (240, "too-close"), (280, "does-not-fit")]
)
def test_capacity_calls_batches_too_close_when_uncertainty_reaches_over_the_limit(batch, verdict):
    runs = trained(8) | trained(16)
    found = memory.capacity(runs, card="GPU 0", limit_bytes=24 * GIB, spread_bytes=3 * GIB, asked=[batch])
    assert {fit.batch: fit.verdict for fit in found.fits}[batch] == verdict
    assert found.margin_bytes == 3 * GIB
