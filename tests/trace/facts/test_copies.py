"""Copies by kind, their bandwidth, and what of them nothing else hid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.trace.facts import copies
from dynotune.trace.timeline import DeviceKind

from ..made import Made

PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
BACK, ACROSS = "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (PAGEABLE, ("HtoD", False)),
        (PINNED, ("HtoD", True)),
        (BACK, ("DtoH", False)),
        ("Memcpy DtoH (Device -> Pinned)", ("DtoH", True)),
        (ACROSS, ("DtoD", None)),
        ("Memcpy PtoP (Device -> Device)", ("PtoP", None)),
        ("Memcpy HtoH (Pinned -> Pageable)", ("HtoH", False)),
        ("Memcpy HtoH (Pinned -> Pinned)", ("HtoH", True)),
        ("Memcpy HtoD (Unknown -> Device)", ("HtoD", None)),
        ("Memcpy HtoD (Managed -> Device)", ("HtoD", None)),
        ("Memcpy HtoA (Pinned -> Array)", ("HtoD", True)),
        ("Memcpy HtoD", ("HtoD", None)),
        ("[CUDA memcpy DtoH]", ("DtoH", None)),
        ("CopyHostToDevice", ("HtoD", None)),
        ("CopyDeviceToDevice", ("DtoD", None)),
        ("hipMemcpyDeviceToHost", ("DtoH", None)),
        ("Memcpy Unknown (Unknown -> Unknown)", ("unknown", None)),
        ("", ("unknown", None)),
    ],
)
def test_the_name_of_a_copy_tells_its_kind(name: str, kind: tuple[str, bool | None]) -> None:
    assert copies.kind_of(name) == kind


def test_copies_are_gathered_by_kind_largest_first() -> None:
    made = Made(rank=1).copy(PAGEABLE, 0, 10, num_bytes=100).copy(PAGEABLE, 20, 40, num_bytes=500)
    made.copy(PINNED, 50, 55, num_bytes=100).copy(BACK, 60, 61)
    rows = copies.facts(made.timeline(), (0, 100))
    assert [(row.rank, row.kind, row.pinned, row.num) for row in rows] == [
        (1, "HtoD", False, 2),
        (1, "HtoD", True, 1),
        (1, "DtoH", False, 1),
    ]
    assert (rows[0].num_bytes, rows[0].median_bytes, rows[0].total_s, rows[0].bytes_per_s) == (
        600,
        300,
        30e-9,
        2e10,
    )
    assert (rows[2].num_bytes, rows[2].median_bytes, rows[2].bytes_per_s) == (None, None, None)


def test_the_bandwidth_is_of_the_copies_whose_size_is_known() -> None:
    made = Made().copy(PINNED, 0, 10, num_bytes=100).copy(PINNED, 20, 99)
    (row,) = copies.facts(made.timeline(), (0, 100))
    assert (row.num, row.num_bytes, row.bytes_per_s) == (2, 100, 1e10)


def test_a_copy_cut_by_the_window_keeps_its_bandwidth() -> None:
    (row,) = copies.facts(Made().copy(PINNED, 0, 100, num_bytes=100).timeline(), (50, 200))
    assert (row.total_s, row.bytes_per_s) == (50e-9, 1e9)


def test_a_copy_without_length_has_no_bandwidth() -> None:
    (row,) = copies.facts(Made().copy(PINNED, 5, 5, num_bytes=100).timeline(), (0, 10))
    assert (row.num, row.total_s, row.bytes_per_s) == (1, 0.0, None)


def test_a_copy_is_exposed_where_nothing_else_runs_on_its_device() -> None:
    made = Made().copy(PINNED, 0, 100, stream=8)
    made.kernel("gemm", 10, 30).kernel("gemm", 20, 40, stream=9).kernel("gemm", 60, 70, device=1)
    made.copy(BACK, 80, 90, stream=10)
    made.device.append((45, 50, DeviceKind.SET, "Memset (Device)", 0, 7, -1, 64))
    rows = {row.kind: row.exposed_s for row in copies.facts(made.timeline(), (0, 100))}
    assert rows == {"HtoD": pytest.approx(55e-9), "DtoH": 0.0}


def test_copies_of_one_kind_at_once_expose_their_union() -> None:
    made = Made().copy(PINNED, 0, 20, stream=8).copy(PINNED, 10, 30, stream=9)
    (row,) = copies.facts(made.timeline(), (5, 100))
    assert (row.total_s, row.exposed_s) == (35e-9, 25e-9)


def test_no_copy_is_no_row() -> None:
    made = Made().kernel("gemm", 0, 10).copy(PINNED, 20, 30)
    assert copies.facts(made.timeline(), (0, 20)) == []


work = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(0, 20),
        st.sampled_from([PAGEABLE, PINNED, BACK, ACROSS, "gemm"]),
        st.integers(0, 1),
    ),
    max_size=12,
)


@given(
    rows=work,
    window=st.tuples(st.integers(0, 40), st.integers(1, 60)),
    order=st.randoms(use_true_random=False),
)
def test_times_equal_a_count_nanosecond_by_nanosecond_in_any_order(
    rows: list[tuple[int, int, str, int]], window: tuple[int, int], order
) -> None:
    made, start, end = Made(), window[0], window[0] + window[1]
    running: dict[tuple[str, int], np.ndarray] = {}
    for stream, (at, takes, name, device) in enumerate(rows):
        add = made.kernel if name == "gemm" else made.copy
        add(name, at, at + takes, stream=stream, device=device)
        running.setdefault((name, device), np.zeros(200, dtype=int))[at : at + takes] += 1
    found = copies.facts(made.timeline(), (start, end))
    for row in found:
        name = next(
            name
            for name in (PAGEABLE, PINNED, BACK, ACROSS)
            if copies.kind_of(name) == (row.kind, row.pinned)
        )
        total = exposed = 0
        for device in (0, 1):
            own = running.get((name, device), np.zeros(200, dtype=int))
            others = sum(
                (busy for key, busy in running.items() if key != (name, device) and key[1] == device), 0 * own
            )
            total += own[start:end].sum()
            exposed += ((own > 0) & (others == 0))[start:end].sum()
        assert (round(row.total_s * 1e9), round(row.exposed_s * 1e9)) == (total, exposed)
    order.shuffle(made.device)
    assert copies.facts(made.timeline(), (start, end)) == found
