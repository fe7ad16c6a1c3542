"""Cards by name or size, and what a process has besides torch's allocator."""

import pytest

from dynotune import memory
from dynotune.schema.errors import UsageError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24G", 24 * GIB),
        ("24 GB", 24 * 10**9),
        ("H100-80GB", int(79.10 * GIB)),
        ("NVIDIA H100 80GB", int(79.10 * GIB)),
        ("h100", int(79.10 * GIB)),
        ("t4", int(14.56 * GIB)),
        ("GeForce RTX 4090", int(23.52 * GIB)),
    ],
)
def test_a_card_is_named_as_people_write_it_or_told_by_its_size(text, size):
    assert memory.gpu(text).total_bytes == size


@pytest.mark.parametrize("text", ["", "Voodoo2", "A100", "0GiB", "24 apples", "-3GB"])
def test_a_card_that_is_unknown_or_could_be_two_is_refused_with_those_that_are_known(text):
    with pytest.raises(UsageError) as caught:
        memory.gpu(text)
    assert "H100-80GB" in caught.value.hint


def test_context_has_a_wider_interval_and_says_so_when_it_was_measured_on_another_card():
    known, spread, _ = memory.outside(memory.gpu("H100-80GB"), "2.11.0+cu130", convolves=True)
    other, wider, notes = memory.outside(memory.gpu("A100-80GB"), "2.11.0+cu130", convolves=True)
    # A typical context is less than that which was measured.
    assert other < known < other + wider
    assert 0 < spread < wider
    assert "not measured for compute capability 8.0" in notes[1]


def test_without_convolutions_cudnn_is_not_counted():
    card = memory.gpu("24GiB")
    plain, more = (memory.outside(card, "2.13.0", convolves=convolves) for convolves in (False, True))
    assert plain[0] < more[0]
    assert (len(plain[2]), len(more[2])) == (1, 2)
