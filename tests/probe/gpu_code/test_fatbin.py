from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.probe.gpu_code import fatbin

from ..fatbins import FAMILY, LTO, MACHINE, PTX, SPECIFIC, container, entry


def read(content: bytes, begin: int = 0) -> tuple[list[list[str]], list[str]]:
    """Names of the code in each container, and what was told."""
    told: list[str] = []
    found = fatbin.containers(lambda at, size: content[at : at + size], begin, len(content), told.append)
    return [[code.name for code in each] for each in found], told


def test_entries_of_every_form_and_suffix():
    content = container(
        entry(MACHINE, 80),
        entry(MACHINE, 90, flags=SPECIFIC),
        entry(MACHINE, 100, flags=FAMILY | 0x1000000, header_bytes=120),
        entry(PTX, 120, flags=FAMILY, header_bytes=80),
        entry(LTO, 80, header_bytes=120),
    )
    assert read(content) == ([["sm_80", "sm_90a", "sm_100f", "compute_120f", "lto_80"]], [])


def test_sizes_are_those_in_the_file_and_those_once_unpacked():
    content = container(
        entry(PTX, 75, payload=b"x" * 96, unpacked=94, ptx=(9, 5)), entry(MACHINE, 75, payload=b"x" * 500)
    )
    (found,) = fatbin.containers(lambda at, size: content[at : at + size], 0, len(content), pytest.fail)
    ptx, machine = found
    assert (ptx.stored_bytes, ptx.code_bytes, ptx.ptx_version) == (96, 94, (9, 5))
    assert (machine.stored_bytes, machine.code_bytes, machine.ptx_version) == (504, 504, None)


def test_a_header_as_nvcc_wrote_it():
    # `__global__ void k(){}` for compute_75 by nvcc 13.5: container, then the PTX's header; its code is cut
    # off.
    recorded = bytes.fromhex(
        "50ed55ba01001000b000000000000000"
        "01000101500000006000000000000000"
        "5f00000040000000050009004b000000"
        "00000000000000001180000000000000"
        "00000000000000005e00000000000000"
        "48000000000000000000000000000000"
    ) + bytes(96)
    (found,) = fatbin.containers(lambda at, size: recorded[at : at + size], 0, len(recorded), pytest.fail)
    (code,) = found
    assert (code.name, code.stored_bytes, code.code_bytes, code.ptx_version) == ("compute_75", 96, 94, (9, 5))


def test_containers_stand_one_after_another_with_zeros_between_and_empty_ones_are_left_out():
    content = bytes(24).join([container(entry(MACHINE, 80)), container(), container(entry(PTX, 90))]) + bytes(
        40
    )
    assert read(content) == ([["sm_80"], ["compute_90"]], [])


def test_alignment_is_within_the_section_wherever_that_begins():
    odd = container(entry(MACHINE, 80)) + container(entry(MACHINE, 90))
    assert read(b"abc" + odd, begin=3) == ([["sm_80"], ["sm_90"]], [])


def test_a_container_of_unknown_version_is_said_and_the_rest_is_read():
    content = container(entry(MACHINE, 80), version=7) + container(entry(MACHINE, 90))
    found, told = read(content)
    assert found == [["sm_90"]]
    assert told == ["the fat binary at byte 0 is of version 7, which is unknown, so it is left out"]


def test_an_entry_of_unknown_version_or_kind_is_kept_without_a_form():
    found, told = read(container(entry(MACHINE, 80, version=0x201), entry(16, 90), entry(MACHINE, 90)))
    assert found == [["kind0_80", "kind16_90", "sm_90"]]
    assert len(told) == 1 and "version 0x201" in told[0]


def test_fatbin_reader_says_what_is_no_fat_binary_and_finds_the_next_one():
    found, told = read(container(entry(MACHINE, 80)) + b"garbage!" * 9000 + container(entry(MACHINE, 90)))
    assert found == [["sm_80"], ["sm_90"]]
    assert told == ["at byte 240 there is no fat binary where one should be"]


def test_a_container_that_says_it_is_longer_than_its_section_still_gives_its_entries_and_the_next_container():
    content = container(entry(MACHINE, 80), body_bytes=1 << 40) + container(entry(MACHINE, 90))
    found, told = read(content)
    assert found == [["sm_80"], ["sm_90"]]
    assert told == ["the fat binary at byte 0 reaches beyond the section that contains it"]


def test_an_entry_that_is_longer_than_its_container_is_left_out():
    broken = bytearray(container(entry(MACHINE, 80), entry(MACHINE, 90)))
    struct.pack_into("<Q", broken, 16 + len(entry(MACHINE, 80)) + 8, 1 << 50)
    found, told = read(bytes(broken))
    assert found == [["sm_80"]]
    assert len(told) == 1 and "longer than its fat binary" in told[0]


def test_a_section_without_any_fat_binary_is_said():
    assert read(b"no fat binary here, though it has a name") == (
        [],
        ["at byte 0 there is no fat binary where one should be"],
    )


FIRST = container(entry(MACHINE, 80), entry(PTX, 80, unpacked=900))
WHOLE = FIRST + bytes(8) + container(entry(MACHINE, 90))


@settings(max_examples=150)
@given(st.integers(0, len(WHOLE)))
def test_a_file_cut_anywhere_gives_what_is_whole_in_it(length):
    whole, _ = read(WHOLE)
    found, told = read(WHOLE[:length])
    assert [name for names in found for name in names] == [name for names in whole for name in names][
        : sum(map(len, found))
    ]
    is_within = 0 < length < len(FIRST) or len(FIRST) + 8 < length < len(WHOLE)
    assert bool(told) is is_within or length == 0


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=8),
    st.binary(max_size=64),
)
def test_damage_anywhere_never_raises_and_always_ends(changes, behind):
    damaged = bytearray(WHOLE)
    for at, value in changes:
        damaged[at] = value
    read(bytes(damaged) + behind)


@settings(max_examples=100)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from((MACHINE, PTX)),
                st.integers(50, 130),
                st.sampled_from((0, SPECIFIC, FAMILY)),
                st.integers(1, 300),
                st.sampled_from((64, 80, 112)),
            ),
            min_size=1,
            max_size=4,
        ),
        max_size=5,
    ),
    st.integers(0, 5),
)
def test_fatbin_reader_reads_all_entries_back_in_order(shapes, padding):
    content = bytes(8 * padding).join(
        container(*(entry(k, sm, flags=f, payload=b"x" * n, header_bytes=h) for k, sm, f, n, h in shape))
        for shape in shapes
    )
    suffix = {0: "", SPECIFIC: "a", FAMILY: "f"}
    expected = [
        [f"{'sm' if k == MACHINE else 'compute'}_{sm}{suffix[f]}" for k, sm, f, _, _ in shape]
        for shape in shapes
    ]
    assert read(content) == (expected, [])
