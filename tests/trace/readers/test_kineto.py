from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dynotune.schema.errors import UsageError
from dynotune.trace.facts import intervals
from dynotune.trace.readers import kineto
from dynotune.trace.timeline import UNKNOWN, DeviceProperties, Timeline

from ..chrome import Event, call, flow, kernel, named, span, write
from .rows import device, host, only

REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def test_each_category_becomes_its_kind_and_the_rest_is_left(tmp_path: Path) -> None:
    copy = {"device": 0, "stream": 9, "correlation": 4, "bytes": 4096}
    path = write(
        tmp_path / "trace.json",
        [
            span("user_annotation", "ProfilerStep#3", 100, 50),
            span("python_function", "train.py(3): step", 100, 50),
            span("cpu_op", "train::whole", 100, 50),
            span("cpu_op", "aten::mm", 102, 8),
            call(103, 5, 3),
            span("cuda_driver", "cuMemcpyAsync", 120, 2, correlation=4),
            kernel(110.5, 9.25, 3, device=1),
            span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 121, 4, pid=0, tid=9, **copy),
            span("gpu_memset", "Memset (Device)", 126, 1, pid=0, tid=9, device=0, stream=9, bytes=8),
            span("cuda_sync", "Stream Sync", 130, 9, pid=0, tid=9, stream=9, correlation=5),
            span("gpu_user_annotation", "ProfilerStep#3", 110, 40, pid=0, tid=9),
            span("Trace", "PyTorch Profiler (0)", 0, 500, pid="Spans", tid="PyTorch Profiler"),
            {"ph": "i", "name": "Iteration Start", "pid": "Traces", "tid": "x", "ts": 0},
            flow("s", 103, 3),
            flow("f", 110.5, 3, pid=1, tid=7),
        ],
    )
    timeline = only(path)
    assert host(timeline) == [
        ("ProfilerStep#3", "ANNOTATION", 100_000, 150_000, "thread 1", UNKNOWN),
        (
            "train.py: step",
            "PYTHON",
            100_000,
            150_000,
            "thread 1",
            UNKNOWN,
        ),  # it ran when the recording began
        ("train::whole", "OPERATOR", 100_000, 150_000, "thread 1", UNKNOWN),
        ("aten::mm", "OPERATOR", 102_000, 110_000, "thread 1", UNKNOWN),
        ("cudaLaunchKernel", "CALL", 103_000, 108_000, "thread 1", 3),
        ("cuMemcpyAsync", "CALL", 120_000, 122_000, "thread 1", 4),
    ]
    assert device(timeline) == [
        ("gemm", "KERNEL", 110_500, 119_750, 1, 7, UNKNOWN, 103_000),
        ("Memcpy HtoD (Pinned -> Device)", "COPY", 121_000, 125_000, 0, 9, 4096, 120_000),
        ("Memset (Device)", "SET", 126_000, 127_000, 0, 9, 8, None),
    ]
    assert timeline.recorder == "torch.profiler"
    assert timeline.source == str(path)
    assert timeline.notes == ()
    assert set(timeline.missing) == {"memory"}


def test_categories_of_other_versions_and_of_rocm_are_known_in_any_case(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.json",
        [
            span("Operator", "aten::mm", 0, 9),
            span("operator", "ProfilerStep#1", 0, 90),
            span("Runtime", "cudaLaunchKernel", 1, 2, correlation=1),
            span("hip_runtime", "hipLaunchKernel", 4, 1, correlation=2),
            span("Kernel", "gemm", 5, 3, pid=0, tid=7, device=0, stream=7, correlation=1),
            span(
                "Memcpy",
                "Memcpy DtoD (Device -> Device)",
                9,
                3,
                pid=0,
                tid=7,
                device=0,
                stream=7,
                correlation=2,
            ),
            span("Memset", "Memset (Device)", 20, 3, pid=2, tid=8),
        ],
    )
    timeline = only(path)
    assert [row[:2] for row in host(timeline)] == [
        ("ProfilerStep#1", "ANNOTATION"),
        ("aten::mm", "OPERATOR"),
        ("cudaLaunchKernel", "CALL"),
        ("hipLaunchKernel", "CALL"),
    ]
    assert [row[1:] for row in device(timeline)] == [
        ("KERNEL", 5_000, 8_000, 0, 7, UNKNOWN, 1_000),
        ("COPY", 9_000, 12_000, 0, 7, UNKNOWN, 4_000),
        ("SET", 20_000, 23_000, 2, 8, UNKNOWN, None),
    ]


def test_kernels_of_a_graph_share_the_call_that_launched_it(tmp_path: Path) -> None:
    launch = call(0, 5, 8, name="cudaGraphLaunch")
    timeline = only(
        write(tmp_path / "trace.json", [launch, kernel(6, 1, 8), kernel(8, 1, 8), kernel(3, 1, 9)])
    )
    assert [row[-1] for row in device(timeline)] == [None, 0, 0]


def test_operators_have_the_number_of_their_node_and_whether_they_are_of_its_backward_pass(
    tmp_path: Path,
) -> None:
    forward, backward = ({"Sequence number": 5, "Fwd thread id": of} for of in (0, 1))
    operators = [
        span("cpu_op", "aten::mm", 1, 2, **forward),
        span("cpu_op", "MmBackward0", 4, 2, **backward),
        span("cpu_op", "aten::zeros", 7, 1),
        span("cpu_op", "aten::odd", 9, 1, **{"Sequence number": [5], "Fwd thread id": -3}),
    ]
    timeline = only(write(tmp_path / "trace.json", operators))
    assert timeline.host.sequence.tolist() == [5, 5, UNKNOWN, UNKNOWN]
    assert timeline.host.is_backward.tolist() == [False, True, False, False]


def test_the_correlation_0_ties_nothing(tmp_path: Path) -> None:
    timeline = only(write(tmp_path / "trace.json", [call(0, 5, 0, name="cudaEventQuery"), kernel(6, 1, 0)]))
    assert timeline.host.correlation.tolist() == [UNKNOWN]
    assert timeline.device.launch.tolist() == [UNKNOWN]
    assert "launches" in timeline.missing


def test_arrows_tie_what_bears_no_correlation(tmp_path: Path) -> None:
    bare = [
        span("cuda_runtime", "cudaLaunchKernel", 1.5, 2, tid=3),
        span("cuda_runtime", "cudaLaunchKernel", 11, 2, tid=3, correlation=6),
        span("kernel", "a", 5, 3, pid=0, tid=7, stream=7),
        span("kernel", "b", 15, 3, pid=0, tid=7, stream=7),
        span("kernel", "c", 25, 3, pid=0, tid=7, stream=7),
    ]
    for cat in ("ac2g", "async_cpu_to_gpu"):
        arrows = [
            flow("s", 1.5, 77, tid=3, cat=cat),
            flow("f", 5, 77, pid=0, tid=7, cat=cat),
            flow("s", 11, 6, tid=3, cat=cat),
            flow("f", 15, 6, pid=0, tid=7, cat=cat),
            flow("f", 25, 8, pid=0, tid=7, cat="fwdbwd"),
        ]
        timeline = only(write(tmp_path / "trace.json", bare + arrows))
        assert [(row[0], row[-1]) for row in device(timeline)] == [("a", 1_500), ("b", 11_000), ("c", None)]


def test_spans_that_are_none_are_left_out_and_counted(tmp_path: Path) -> None:
    untimed = span("kernel", "untimed", 0, 3)
    del untimed["ts"]
    path = write(
        tmp_path / "trace.json",
        [
            span("cpu_op", "backwards", 9, -2),
            kernel(9, -0.001, 1, name="backwards"),
            kernel(9, 0, 1, name="instant"),
            {"ph": "B", "cat": "cpu_op", "name": "begins", "pid": 1, "tid": 1, "ts": 3},
            untimed,
            {"ph": "?", "cat": "what?", "dur": -3},
        ],
    )
    timeline = only(path)
    assert timeline.notes == (
        "2 spans that end before they start were left out",
        "2 spans without a start or a duration were left out",
    )
    assert not len(timeline.host)
    assert [row[:4] for row in device(timeline)] == [("instant", "KERNEL", 9_000, 9_000)]


def test_marks_of_the_allocator_are_levels_and_host_memory_has_no_device(tmp_path: Path) -> None:
    def mark(ts: float, **args: object) -> Event:
        return {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "args": args,
        }

    on_gpu = {"Total Allocated": 100, "Total Reserved": 200, "Device Id": 1, "Device Type": 1, "Bytes": -20}
    on_host = {"Total Allocated": 7, "Total Reserved": 0, "Device Id": 0, "Device Type": 0, "Bytes": 7}
    marks = [mark(8.125, **on_host), mark(3, **on_gpu), mark(9, Bytes=4)]
    timeline = only(write(tmp_path / "trace.json", [*marks, span("cpu_op", "a", 0, 1)]))
    memory = timeline.memory
    assert timeline.names == ["a"]
    assert memory.time_ns.tolist() == [3_000, 8_125, 9_000]
    assert memory.allocated_bytes.tolist() == [100, 7, UNKNOWN]
    assert memory.reserved_bytes.tolist() == [200, 0, UNKNOWN]
    assert memory.device.tolist() == [1, UNKNOWN, UNKNOWN]


def test_arguments_of_the_users_own_may_be_of_any_type(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.json",
        [
            span("cpu_op", "triton", 0, 9, stream="7", device="cuda:0", correlation=[1], bytes={"a": 1}),
            span("kernel", "odd", 1, 2, pid="GPU", tid=None, stream="x", device=1 << 40, correlation=1 << 80),
            {"ph": "X", "cat": "kernel", "name": "bare", "pid": 0, "tid": 7, "ts": 5, "dur": 1, "args": None},
        ],
    )
    assert [row[4:] for row in device(only(path))] == [
        (UNKNOWN, UNKNOWN, UNKNOWN, None),
        (0, 7, UNKNOWN, None),
    ]


def test_threads_bear_the_names_of_the_file_and_no_two_the_same(tmp_path: Path) -> None:
    events = [span("cpu_op", "a", tid, 1, tid=tid) for tid in (1, 2, 3)]
    labels = [named("thread_name", "thread 1 (python)", tid=1), named("thread_name", "pt_autograd", tid=2)]
    assert only(write(tmp_path / "trace.json", events + labels)).threads == [
        "thread 1 (python)",
        "pt_autograd",
        "thread 3",
    ]
    same = [named("thread_name", "worker", tid=tid) for tid in (1, 2, 3)]
    assert only(write(tmp_path / "trace.json", events + same)).threads == [
        "worker [1]",
        "worker [2]",
        "worker [3]",
    ]
    odd = [*events, span("python_function", "b", 7, 1, pid=0, tid=0)]
    assert only(write(tmp_path / "trace.json", odd)).threads[:2] == [
        "thread 0 of process 0",
        "thread 1 of process 1",
    ]


def test_job_and_devices_are_as_the_file_describes_them(tmp_path: Path) -> None:
    gpu = {"id": 1, "name": "H100", "totalGlobalMem": 85, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    timeline = only(
        write(
            tmp_path / "trace.json",
            [kernel(5, 1, 1)],
            deviceProperties=[gpu, {"id": 0}],
            distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
        )
    )
    assert (timeline.rank, timeline.world_size) == (3, 8)
    assert timeline.properties == {
        0: DeviceProperties(),
        1: DeviceProperties(name="H100", compute_capability=(9, 0)),
    }


def test_the_clock_is_known_where_the_file_gives_its_base_or_counts_from_1970(tmp_path: Path) -> None:
    def base_ns(ts: float, **document: object) -> int | None:
        return only(write(tmp_path / "trace.json", [kernel(ts, 1, 1)], **document)).clock_base_ns

    assert base_ns(1428625731896.179, baseTimeNanoseconds=1751410836000000000) == 1751410836000000000
    assert base_ns(1661203462598738) == 0
    assert base_ns(1661203462598738, baseTimeNanoseconds=0) == 0
    assert base_ns(5000) is None
    assert base_ns(1661203462598738, baseTimeNanoseconds=1751410836000000000) is None


@REUSED
@given(
    stamps=st.lists(
        st.tuples(
            st.integers(0, 2**43 * 1000) | st.integers(1_600_000_000 * 10**9, 1_900_000_000 * 10**9),
            st.integers(0, 10**12),
        ),
        min_size=1,
        max_size=20,
    ),
    slice_bytes=st.sampled_from([1, 200, 1 << 20]),
)
@example(stamps=[(4481573168295063, 1)], slice_bytes=1 << 20)  # its product with 1000 rounds the wrong way
def test_times_are_exact_to_the_nanosecond_whatever_their_size(
    tmp_path: Path, stamps: list[tuple[int, int]], slice_bytes: int
) -> None:
    def microseconds(ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03}" if ns % 1000 else str(ns // 1000)

    events = [
        f'{{"cat": "kernel", "ts": {microseconds(start)}, "dur": {microseconds(length)}, "pid": 0, "tid": 7}}'
        for start, length in stamps
    ]
    path = tmp_path / "trace.json"
    path.write_text(f"[{', '.join(events)}]")
    of = only(path, slice_bytes=slice_bytes).device
    assert sorted(zip(of.start_ns.tolist(), of.end_ns.tolist(), strict=True)) == sorted(
        (start, start + length) for start, length in stamps
    )


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (
            {"ts": "123", "dur": 1},
            r"`traceEvents\[2\]\.ts` is not what a trace holds: Expected `int \| float`, got `str`",
        ),
        ({"ts": 1, "dur": "1"}, r"`traceEvents\[2\]\.dur` is not"),
        ({"ts": None, "dur": 1}, r"`traceEvents\[2\]\.ts` is not"),
        ({"ts": 1, "dur": 1, "args": [1]}, r"`traceEvents\[2\]\.args` is not"),
        ({"ts": 1, "dur": 1, "pid": [1]}, r"`traceEvents\[2\]\.pid` is not"),
        ({"ts": 1661203462598738000, "dur": 1}, r"`traceEvents\[2\]` has a time beyond"),
        ({"ts": 1, "dur": 10**30}, r"`traceEvents\[2\]` has a time beyond"),
    ],
)
def test_a_wrong_field_is_refused_with_file_and_event(tmp_path: Path, event: Event, says: str) -> None:
    events = [named("process_name", "python"), kernel(1, 1, 1), {"cat": "kernel", **event}, kernel(3, 1, 1)]
    path = write(tmp_path / "trace.json", events)
    for slice_bytes in (1, 1 << 20):
        with pytest.raises(UsageError, match=says) as caught:
            kineto.read(path, slice_bytes=slice_bytes)
        assert str(path) in caught.value.message
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("events", "document", "says"),
    [
        ([], {}, "is a trace without events"),
        (
            [{"ph": "X", "cat": "toplevel", "name": "RunTask", "ts": 1, "dur": 1}],
            {},
            "none of its 1 events is",
        ),
        ([kernel(1, 1, 1)], {"schemaVersion": 2}, "has schemaVersion 2; this dynotune reads version 1"),
        ([kernel(1, 1, 1)], {"schemaVersion": "1.5"}, "has schemaVersion 1.5"),
    ],
)
def test_a_trace_that_says_nothing_or_in_a_later_version_is_refused(
    tmp_path: Path, events: list[Event], document: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        kineto.read(write(tmp_path / "trace.json", events, **document))
    assert caught.value.hint


def test_a_version_behind_the_events_counts_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [kernel(1, 1, 1)], "schemaVersion": 2}))
    with pytest.raises(UsageError, match="schemaVersion 2"):
        kineto.read(path)


def test_a_trace_of_the_cores_alone_is_whole_and_says_what_is_missing(tmp_path: Path) -> None:
    timeline = only(write(tmp_path / "trace.json", [span("cpu_op", "aten::mm", 1, 2)]))
    assert timeline.devices == []
    assert set(timeline.missing) == {"device", "stacks", "memory"}


def test_a_file_cut_short_says_how_far_it_was_read(tmp_path: Path) -> None:
    whole = write(
        tmp_path / "trace.json", [call(number, 1, 1 + number) for number in range(100)]
    ).read_bytes()
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(whole[:5000]))
    timeline = only(path)
    assert len(timeline.host) == whole[:5000].count(b'"correlation"')
    assert timeline.notes == (
        f"the file is cut short: it was read up to event {len(timeline.host)}, byte 5,000",
    )
    path.write_bytes(gzip.compress(whole[:60]))
    with pytest.raises(UsageError, match="is cut short at byte 60, before its first activity"):
        kineto.read(path)


def test_a_name_that_is_no_text_does_not_lose_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(
        b'[{"cat": "cpu_op", "name": "caf\xe9", "ts": 1, "dur": 1}, {"cat": "kernel", "ts": 1, "dur": 1}]'
    )
    timeline = only(path)
    assert host(timeline)[0][0] == "caf\ufffd"
    assert len(timeline.device) == 1


CATEGORIES = [
    "cpu_op",
    "python_function",
    "user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "memcpy",
    "?",
]
SPANS = st.lists(
    st.builds(
        span,
        st.sampled_from(CATEGORIES),
        st.sampled_from(["a", "b", '"},{"', "}]"]),
        st.integers(0, 40),
        st.integers(-1, 20),
        pid=st.just(1),
        tid=st.integers(1, 3),
        correlation=st.integers(0, 5),
        device=st.integers(0, 1),
        note=st.just([{"ph": 1}, {"ph": 2}]),
    ),
    min_size=1,
)  # fmt: skip


@REUSED
@given(events=SPANS, seed=st.integers(0, 99), slice_bytes=st.integers(1, 2000))
def test_neither_the_order_of_events_nor_the_size_of_slices_matters(
    tmp_path: Path, events: list[Event], seed: int, slice_bytes: int
) -> None:
    events = [*events, span("cpu_op", "always", 5, 5)]
    shuffled = list(events)
    random.Random(seed).shuffle(shuffled)
    one, other = write(tmp_path / "one.json", events), write(tmp_path / "other.json.gz", shuffled)
    expected = only(one)
    assert_same(only(one, slice_bytes=slice_bytes), expected)

    found = only(other, slice_bytes=slice_bytes)
    assert found.notes == expected.notes
    assert found.names == expected.names
    assert found.threads == expected.threads
    assert Counter(host(found)) == Counter(host(expected))
    # Calls that share a correlation and a start may stand in for one another.
    assert Counter(device(found)) == Counter(device(expected))
    assert found.host.start_ns.tolist() == expected.host.start_ns.tolist()
    assert found.host.end_ns.tolist() == expected.host.end_ns.tolist()
    assert found.host.kind.tolist() == expected.host.kind.tolist()


def assert_same(found: Timeline, expected: Timeline) -> None:
    for table in ("host", "device", "memory"):
        for column in fields(getattr(expected, table)):
            pair = [getattr(getattr(one, table), column.name) for one in (found, expected)]
            assert pair[0].dtype == pair[1].dtype, (table, column.name)
            assert np.array_equal(*pair), (table, column.name)
    scalars = [field.name for field in fields(expected) if field.name not in ("host", "device", "memory")]
    for name in scalars:
        assert getattr(found, name) == getattr(expected, name), name


def test_the_union_of_what_ran_is_what_the_spans_cover(tmp_path: Path) -> None:
    timeline = only(
        write(tmp_path / "trace.json", [kernel(1, 4, 1), kernel(3, 4, 2, stream=8), kernel(9.5, 0.25, 3)])
    )
    assert intervals.length(intervals.union(timeline.device.start_ns, timeline.device.end_ns)) == 6_250


def test_work_of_another_accelerator_is_counted_and_said(tmp_path: Path) -> None:
    foreign = [{"ph": "X", "cat": "hpu_op", "name": "matmul", "ts": at, "dur": 1} for at in range(1313)]
    span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 0, "dur": 2000}
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    (timeline,) = kineto.read(write(tmp_path / "trace.json", [operator, span, *foreign]))
    assert timeline.notes == ("spans of kinds that are not known here were left out: hpu_op (1,313)",)
    assert "other kinds" in timeline.missing["device"]
