"""torch's message of an allocation that failed, taken apart; the messages are of torch 2.0 to 2.9."""

import pytest

from dynotune.launch.records import why_memory_ran_out

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.10 GiB "
    "of which 1.06 GiB is free. Process 4321 has 4.00 GiB memory in use. Including non-PyTorch memory, "
    "this process "
    "has 74.00 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, with 120.00 "
    "MiB allocated "
    "in private pools (e.g., CUDA Graphs), and 3.50 GiB is reserved by PyTorch but unallocated. If "
    "reserved but "
    "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 21.00 "
    "GiB already "
    "allocated; 12.00 MiB free; 21.50 GiB reserved in total by PyTorch)"
)


def test_oom_sentences_say_what_was_asked_held_and_free_in_pieces():
    said = why_memory_ran_out(["Traceback", FULL, ""])
    for part in (
        "2.00 GiB more was asked for, and of 79.10 GiB only 1.06 GiB was free",
        "70.00 GiB in live tensors",
        "120 MiB of these in CUDA graphs' pools",
        "3.50 GiB reserved but free only in pieces",
        "512 MiB by the CUDA context",
        "4.00 GiB by other processes",
        "alloc.expandable_segments=true may be enough",
    ):
        assert part in said


def test_a_message_that_tells_less_gives_what_it_has():
    assert why_memory_ran_out([OLD]) == "The device's memory is full: 20 MiB more was asked for."


def test_a_limit_of_the_programs_own_is_named():
    line = FULL.replace("is free.", "is free. 20.00 GiB allowed;", 1)
    assert "The program allows itself 20.00 GiB" in why_memory_ran_out([line])


@pytest.mark.parametrize("lines", [[], ["Killed"], ["CUDA out of memory"], ["cuda runtime error (2)"]])
def test_other_output_is_no_failure_of_memory(lines):
    assert why_memory_ran_out(lines) == ""


def test_the_batch_that_fits_is_bounded_by_what_was_needed_at_least():
    line = FULL.replace("3.50 GiB is reserved", "0.50 GiB is reserved").replace(
        "2.00 GiB. GPU", "12.00 GiB. GPU"
    )
    # 3.5 GiB are the context's, 70 and 12 the batch's and the model's; 75.1 may be used.
    most = int(64 * (75.1 - 3.5) / (85.5 - 3.5))
    assert f"has at most {most} samples" in why_memory_ran_out([line], batch=64)


def test_no_batch_is_named_where_pieces_are_why():
    assert "at most" not in why_memory_ran_out([FULL], batch=64)


def test_live_tensors_are_told_by_use_where_that_is_known():
    held = {"weights": 10 << 30, "gradients": 10 << 30, "optimizer states": 0}
    said = why_memory_ran_out([FULL], held=held)
    assert "Live tensors: 10.00 GiB weights, 10.00 GiB gradients, 50.00 GiB activations and all else" in said
