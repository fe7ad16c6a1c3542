"""Exports of Nsight Systems. No exporter is at hand: every file here is synthetic, see nsys_made.py."""

import dataclasses
import random
import sqlite3
from contextlib import closing
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynotune.schema.errors import UsageError
from dynotune.trace.readers import nsys
from dynotune.trace.timeline import UNKNOWN, DeviceKind, DeviceProperties, HostKind

from ..nsys_made import (
    CALLS,
    COLUMNS,
    COPIES,
    DEVICE,
    DTOD,
    DTOH,
    HTOD,
    KERNELS,
    PAGEABLE,
    PINNED,
    RANGES,
    NsysMade,
    global_id,
)


@pytest.fixture
def export(tmp_path):
    """Writes an export and reads it."""
    numbers = count()

    def write_and_read(made, **how):
        return nsys.read(made.write(tmp_path / f"report-{next(numbers)}.sqlite", **how))

    return write_and_read


def host_of(timeline):
    """(name, kind, start, end, thread) of each span of the host."""
    host = timeline.host
    return [
        (timeline.names[name], HostKind(kind), start, end, timeline.threads[thread])
        for name, kind, start, end, thread in zip(
            host.name, host.kind, host.start_ns, host.end_ns, host.thread, strict=True
        )
    ]


def device_of(timeline):
    """(name, kind, start, end, name of the call that queued it) of each span of the devices."""
    device, host = timeline.device, timeline.host
    queued_by = [None if row == UNKNOWN else timeline.names[host.name[row]] for row in device.launch]
    return [
        (timeline.names[name], DeviceKind(kind), start, end, call)
        for name, kind, start, end, call in zip(
            device.name, device.kind, device.start_ns, device.end_ns, queued_by, strict=True
        )
    ]


def one_step():
    return (
        NsysMade()
        .range("step", 0, 100)
        .call("cudaMemcpyAsync_v3020", 5, 9, correlation=1)
        .copy(HTOD, PINNED, DEVICE, 10, 20, num_bytes=4096, correlation=1)
        .call("cudaLaunchKernel_v7000", 12, 15, correlation=2)
        .kernel("void gemm<float>(float *)", 21, 60, short="gemm", correlation=2)
        .call("cudaMemsetAsync_v3020", 16, 17, correlation=3)
        .set(61, 62, num_bytes=8, correlation=3)
        .call("cudaDeviceSynchronize_v3020", 20, 70, correlation=4)
        .sync(4, 21, 69, correlation=4)
    )


def test_a_step_is_read_with_its_calls_its_device_work_and_its_range(export):
    (timeline,) = export(one_step())
    assert host_of(timeline) == [
        ("step", HostKind.ANNOTATION, 0, 100, "11"),
        ("cudaMemcpyAsync", HostKind.CALL, 5, 9, "11"),
        ("cudaLaunchKernel", HostKind.CALL, 12, 15, "11"),
        ("cudaMemsetAsync", HostKind.CALL, 16, 17, "11"),
        ("cudaDeviceSynchronize", HostKind.CALL, 20, 70, "11"),
    ]
    assert device_of(timeline) == [
        ("Memcpy HtoD (Pinned -> Device)", DeviceKind.COPY, 10, 20, "cudaMemcpyAsync"),
        ("void gemm<float>(float *)", DeviceKind.KERNEL, 21, 60, "cudaLaunchKernel"),
        ("Memset (Device)", DeviceKind.SET, 61, 62, "cudaMemsetAsync"),
    ]
    assert timeline.device.num_bytes.tolist() == [4096, UNKNOWN, 8]
    assert timeline.device.stream.tolist() == [7, 7, 7]
    assert timeline.devices == [0]
    assert timeline.recorder == "nsys"
    assert timeline.rank is timeline.world_size is timeline.clock_base_ns is None
    assert timeline.notes == ()


def test_columns_have_the_types_that_the_timeline_promises(export):
    (timeline,) = export(one_step())
    host, device = timeline.host, timeline.device
    assert [host.kind.dtype, host.name.dtype, host.thread.dtype] == [np.int8, np.int32, np.int32]
    assert [device.kind.dtype, device.name.dtype, device.device.dtype] == [np.int8, np.int32, np.int32]
    for column in (
        host.start_ns,
        host.end_ns,
        host.correlation,
        device.start_ns,
        device.launch,
        device.num_bytes,
    ):
        assert column.dtype == np.int64


@pytest.mark.parametrize(
    ("kind", "source", "target", "name"),
    [
        (HTOD, PAGEABLE, DEVICE, "Memcpy HtoD (Pageable -> Device)"),
        (DTOH, DEVICE, PINNED, "Memcpy DtoH (Device -> Pinned)"),
        (DTOD, DEVICE, DEVICE, "Memcpy DtoD (Device -> Device)"),
        (9, PAGEABLE, PINNED, "Memcpy HtoH (Pageable -> Pinned)"),
        (10, DEVICE, DEVICE, "Memcpy PtoP (Device -> Device)"),
        (11, 4, 4, "Memcpy HtoD (Managed -> Managed)"),
        (HTOD, 7, 5, "Memcpy HtoD (Unknown -> Device Static)"),
        (0, 99, None, "Memcpy unknown (Unknown -> Unknown)"),
    ],
)
@pytest.mark.parametrize("omit", [(), ("ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND")])
def test_copies_are_named_as_the_profiler_of_torch_names_them(export, kind, source, target, name, omit):
    (timeline,) = export(NsysMade().copy(kind, source, target, 0, 1), omit=omit)
    assert device_of(timeline)[0][0] == name


def test_the_files_own_numbers_of_kinds_count_before_the_documented_ones(export):
    made = NsysMade().copy(21, PINNED, DEVICE, 0, 1)
    made.row("ENUM_CUDA_MEMCPY_OPER", id=21, name="CUDA_MEMCPY_KIND_DTOH")
    (timeline,) = export(made)
    assert device_of(timeline)[0][0] == "Memcpy DtoH (Pinned -> Device)"


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernelExC_v11060", "cudaLaunchKernelExC"),
        ("cudaStreamSynchronize_ptsz_v7000", "cudaStreamSynchronize"),
        ("cudaMemcpy_ptds_v7000", "cudaMemcpy"),
        ("cuMemcpyHtoD_v2", "cuMemcpyHtoD"),
        ("cuLaunchKernel", "cuLaunchKernel"),
        ("my_version_v", "my_version_v"),
    ],
)
def test_a_calls_name_loses_its_version(export, recorded, name):
    (timeline,) = export(NsysMade().call(recorded, 0, 1))
    assert host_of(timeline)[0][0] == name


def test_a_kernels_name_is_the_demangled_one_else_the_short_one(export):
    made = one_step().kernel("", 70, 71, short="relu")
    made.row(KERNELS, 10, start=72, end=73, deviceId=0, streamId=7, globalPid=global_id(10), shortName=9999)
    (timeline,) = export(made)
    assert [name for name, kind, *_ in device_of(timeline) if kind == DeviceKind.KERNEL] == [
        "void gemm<float>(float *)",
        "relu",
        "unknown",
    ]
    (timeline,) = export(made, without={KERNELS: ["demangledName"]})
    assert device_of(timeline)[1][0] == "gemm"


def test_a_correlation_ties_only_within_its_process(export):
    made = NsysMade().call("cudaLaunchKernel_v7000", 0, 1, correlation=5, pid=10)
    made.call("cudaGraphLaunch_v10000", 2, 3, correlation=5, pid=20, tid=21)
    made.kernel("a", 10, 11, correlation=5, pid=10).kernel("b", 10, 11, correlation=5, pid=20)
    made.kernel("c", 12, 13, correlation=6, pid=20)
    first, second = export(made)
    assert device_of(first) == [("a", DeviceKind.KERNEL, 10, 11, "cudaLaunchKernel")]
    assert [row[-1] for row in device_of(second)] == ["cudaGraphLaunch", None]
    assert first.names == ["a", "cudaLaunchKernel"]


def test_a_correlation_of_zero_ties_nothing(export):
    made = NsysMade().call("cudaGetDevice_v3020", 0, 1, correlation=0).kernel("a", 2, 3, correlation=0)
    (timeline,) = export(made)
    assert timeline.host.correlation.tolist() == [UNKNOWN]
    assert timeline.device.launch.tolist() == [UNKNOWN]


def test_kernels_of_a_graph_share_the_call_that_launched_it(export):
    made = NsysMade().call("cudaGraphLaunch_v10000", 0, 4, correlation=9)
    for node in range(3):
        made.kernel(f"node{node}", 10 + node, 11 + node, correlation=9)
    (timeline,) = export(made)
    assert timeline.device.launch.tolist() == [0, 0, 0]
    assert "kernels_in_graphs" not in timeline.missing


def test_a_graph_recorded_whole_is_one_kernel_and_says_so(export):
    made = NsysMade().call("cudaGraphLaunch_v10000", 0, 4, correlation=9).graph(3, 5, 90, correlation=9)
    (timeline,) = export(made)
    assert device_of(timeline) == [("CUDA graph 3", DeviceKind.KERNEL, 5, 90, "cudaGraphLaunch")]
    assert "--cuda-graph-trace=node" in timeline.missing["kernels_in_graphs"]
    assert len(timeline.notes) == 1


def test_pushed_ranges_are_annotations_and_marks_and_free_ranges_are_not(export):
    made = one_step().range(None, 1, 2, registered="registered").range("mark", 3, None, kind=34)
    made.range("free", 3, 300, kind=60).range(None, 6, 7)
    (timeline,) = export(made)
    ranges = [row[0] for row in host_of(timeline) if row[1] == HostKind.ANNOTATION]
    assert ranges == ["step", "registered", "unknown"]
    assert timeline.notes == ("1 NVTX start/end ranges are left out: they need not nest",)


def test_a_range_still_open_ends_with_the_last_row_of_its_process(export):
    made = one_step().range("epoch", 50, None).kernel("other", 0, 5000, pid=20)
    timeline = export(made)[0]
    assert ("epoch", HostKind.ANNOTATION, 50, 100, "11") in host_of(timeline)
    assert timeline.notes == ("1 NVTX ranges had not ended when the recording did, and end with it here",)


def test_a_range_stands_before_the_call_that_it_just_covers(export):
    made = NsysMade().call("cudaMalloc_v3020", 0, 9).range("allocate", 0, 9)
    (timeline,) = export(made)
    assert [row[0] for row in host_of(timeline)] == ["allocate", "cudaMalloc"]


def test_threads_bear_the_names_that_were_recorded(export):
    made = NsysMade().call("cudaMalloc_v3020", 0, 1, tid=12).call("cudaFree_v3020", 2, 3, tid=11)
    made.row("ThreadNames", nameId=made.string("pt_autograd_0"), globalTid=global_id(10, 12))
    (timeline,) = export(made)
    assert [row[-1] for row in host_of(timeline)] == ["12 pt_autograd_0", "11"]


def test_devices_are_described_through_the_numbers_of_their_process(export):
    made = NsysMade().gpu(0, "NVIDIA A100").gpu(7, "NVIDIA H100").kernel("a", 0, 1).kernel("b", 0, 1, pid=20)
    made.row("TARGET_INFO_CUDA_DEVICE", gpuId=7, cudaId=0, pid=10).row(
        "TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=20
    )
    first, second = export(made)
    assert first.properties == {0: DeviceProperties("NVIDIA H100", (9, 0))}
    assert second.properties[0].name == "NVIDIA A100"
    # Without the map only what all GPUs have in common is known.
    first, _ = export(made, omit=["TARGET_INFO_CUDA_DEVICE"])
    assert first.properties == {}
    assert "device_properties" in first.missing
    made = NsysMade().gpu(0, "NVIDIA H100").gpu(1, "NVIDIA H100").kernel("a", 0, 1, device=1)
    (timeline,) = export(made, omit=["TARGET_INFO_CUDA_DEVICE"])
    assert timeline.properties[1].name == "NVIDIA H100"


def test_nsys_properties_are_none_when_a_gpu_does_not_tell(export):
    (timeline,) = export(NsysMade().row("TARGET_INFO_GPU", id=0, name=None).kernel("a", 0, 1))
    assert timeline.properties[0] == DeviceProperties()


def test_the_rank_is_the_one_of_mpi(export):
    made = NsysMade().kernel("a", 0, 1).kernel("b", 0, 1, pid=20)
    made.row("MPI_RANKS", globalTid=global_id(10, 12), rank=3)
    assert [timeline.rank for timeline in export(made)] == [3, None]


def test_the_sessions_start_is_the_clocks_base(export):
    start = 1_700_000_000_000_000_000
    made = one_step().row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=start)
    assert export(made)[0].clock_base_ns == start
    normalized = (
        NsysMade().kernel("a", start + 5, start + 6).row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=start)
    )
    assert export(normalized)[0].clock_base_ns == 0


def test_only_processes_with_device_work_are_given_unless_none_has_any(export):
    made = one_step().range("loading", 0, 5, pid=20, tid=20)
    assert len(export(made)) == 1
    loading, calling = export(
        NsysMade().call("cudaMalloc_v3020", 0, 1, pid=30, tid=30).range("loading", 0, 5, pid=20, tid=20)
    )
    assert host_of(loading) == [("loading", HostKind.ANNOTATION, 0, 5, "20")]
    assert host_of(calling)[0][0] == "cudaMalloc"
    assert loading.devices == []


def test_a_wait_without_a_recorded_call_is_a_call_and_says_so(export):
    made = (
        one_step()
        .sync(3, 71, 90, correlation=77)
        .sync(1, 72, 80, correlation=78)
        .sync(3, 95, 99, correlation=79)
    )
    made.sync(4, 5, 6)
    (timeline,) = export(made)
    assert host_of(timeline)[-3:] == [
        ("cudaStreamSynchronize", HostKind.CALL, 71, 90, "waits without a call 0"),
        ("cudaEventSynchronize", HostKind.CALL, 72, 80, "waits without a call 1"),
        ("cudaStreamSynchronize", HostKind.CALL, 95, 99, "waits without a call 1"),
    ]
    assert timeline.notes == (
        "3 waits have no recorded call, and are named as the call that makes such a wait",
    )


def test_rows_without_times_are_left_out_and_counted(export):
    made = one_step().kernel("never", 0, 0).kernel("backwards", 80, 70).kernel("far", 1, 1 << 62)
    (timeline,) = export(made)
    assert len(timeline.device) == 3
    assert timeline.notes == ("3 rows are left out: they have no times, or end before they start",)


def test_rows_that_name_no_process_belong_to_the_only_one(export):
    made = one_step().kernel("anonymous", 200, 201, correlation=2, pid=None)
    (timeline,) = export(made)
    assert device_of(timeline)[-1] == ("anonymous", DeviceKind.KERNEL, 200, 201, "cudaLaunchKernel")
    unknown, *named = export(made.kernel("b", 0, 1, pid=20))
    assert [row[0] for row in device_of(unknown)] == ["anonymous"]
    assert "which process" in unknown.notes[0]
    assert len(named) == 2


@pytest.mark.parametrize(
    ("table", "fact"),
    [
        (KERNELS, "kernels"),
        (COPIES, "copies"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "memsets"),
        (CALLS, "launches"),
        (RANGES, "annotations"),
        ("TARGET_INFO_GPU", "device_properties"),
    ],
)
def test_a_missing_table_is_a_missing_fact(export, table, fact):
    made = one_step().gpu(0, "NVIDIA H100")
    (whole,) = export(made)
    assert fact not in whole.missing
    (timeline,) = export(made, omit=[table])
    assert fact in timeline.missing
    # The rest is as it was: a missing table costs its own rows and no others.
    lost = {KERNELS: 1, COPIES: 1, "CUPTI_ACTIVITY_KIND_MEMSET": 1}
    assert len(timeline.device) == 3 - lost.get(table, 0)
    if table == CALLS:
        assert timeline.device.launch.tolist() == [UNKNOWN] * 3
        assert [row[0] for row in host_of(timeline)] == ["step", "cudaDeviceSynchronize"]


def test_nsys_timeline_always_lacks_what_nsight_never_records(export):
    (timeline,) = export(one_step())
    assert {"operators", "stacks", "memory"} <= timeline.missing.keys()


@pytest.mark.parametrize(
    "table", [name for name in COLUMNS if name.startswith(("CUPTI", "NVTX", "TARGET", "ENUM"))]
)
def test_no_column_but_the_times_is_needed(export, table):
    made = one_step().gpu(0, "NVIDIA H100").graph(1, 80, 90)
    for column in COLUMNS[table].split():
        if column in ("start", "end") and table.startswith(("CUPTI", "NVTX")):
            with pytest.raises(UsageError, match=f"table {table} has no column {column}"):
                export(made, without={table: [column]})
        else:
            (timeline,) = export(made, without={table: [column]})
            assert len(timeline.device) == 4, column


def test_sizes_that_are_not_recorded_are_unknown_and_not_zero(export):
    (timeline,) = export(one_step(), without={COPIES: ["bytes", "srcKind"]})
    assert timeline.device.num_bytes.tolist() == [UNKNOWN, UNKNOWN, 8]
    assert {"copied_bytes", "pinned"} <= timeline.missing.keys()


def canonical(timelines):
    """All that timelines say but the file's name, as plain values that can be compared."""

    def plain(value):
        return value.tolist() if isinstance(value, np.ndarray) else value

    found = []
    for timeline in timelines:
        fields = {field.name: getattr(timeline, field.name) for field in dataclasses.fields(timeline)}
        del fields["source"]
        for table in ("host", "device", "memory"):
            columns = fields[table]
            fields[table] = {name: plain(getattr(columns, name)) for name in columns.__slots__}
        found.append(fields)
    return found


times = st.tuples(st.integers(1, 40), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
correlations = st.integers(1, 4) | st.none()
rows = st.one_of(
    st.tuples(
        st.just("call"), st.sampled_from(["cudaLaunchKernel_v7000", "cudaMemcpy_v3020"]), times, correlations
    ),
    st.tuples(
        st.just("kernel"), st.sampled_from(["gemm", "relu", "'; DROP TABLE x --"]), times, correlations
    ),
    st.tuples(st.just("copy"), st.integers(0, 13), times, correlations),
    st.tuples(st.just("graph"), st.integers(0, 2), times, correlations),
    st.tuples(st.just("sync"), st.integers(0, 5), times, correlations),
    st.tuples(st.just("range"), st.sampled_from(["step", "forward"]), times, st.none()),
    st.tuples(st.sampled_from(["open", "free"]), st.just("step"), times, st.none()),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(st.tuples(st.sampled_from([10, 20]), rows), max_size=25), seed=st.integers(0, 3))
def test_two_processes_in_one_file_or_two_and_in_any_order_are_the_same(tmp_path_factory, some, seed):
    folder = tmp_path_factory.mktemp("exports")
    made = NsysMade().gpu(0, "NVIDIA H100")
    made.kernel("always", 1, 2, pid=10).kernel("always", 1, 2, pid=20)
    for pid, (what, which, (start, end), correlation) in some:
        if what == "call":
            made.call(which, start, end, correlation=correlation, pid=pid, tid=pid + 1)
        elif what in ("range", "open", "free"):
            kind = 60 if what == "free" else 59
            made.range(which, start, None if what == "open" else end, pid=pid, tid=pid + 1, kind=kind)
        elif what == "copy":
            made.copy(which, PINNED, DEVICE, start, end, pid=pid, correlation=correlation)
        else:
            getattr(made, what)(which, start, end, pid=pid, correlation=correlation)
    together = canonical(nsys.read(made.write(folder / "both.sqlite")))
    apart = [nsys.read(made.only(pid).write(folder / f"{pid}.sqlite")) for pid in (10, 20)]
    shuffled = nsys.read(made.write(folder / "shuffled.sqlite", order=random.Random(seed)))
    assert together == canonical(timeline for timelines in apart for timeline in timelines)
    assert together == canonical(shuffled)
    for timeline in shuffled:
        for spans in (timeline.host, timeline.device):
            order = list(zip(spans.start_ns, -spans.end_ns, strict=True))
            assert order == sorted(order)


def test_strings_of_strangers_are_data(export):
    made = NsysMade().kernel("x'); DROP TABLE StringIds; --", 0, 1).range('a"b\x1b[2J\0c', 0, 1)
    (timeline,) = export(made)
    assert timeline.names == ['a"b\x1b[2J\0c', "x'); DROP TABLE StringIds; --"]


def test_text_that_is_not_utf8_is_read_with_marks_in_its_place(tmp_path):
    path = NsysMade().kernel("a", 0, 1).write(tmp_path / "report.sqlite")
    change(path, "UPDATE StringIds SET value = CAST(x'67ff67' AS TEXT)")
    assert nsys.read(path)[0].names == ["g\ufffdg"]


def change(path, statement):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


def test_reading_leaves_the_folder_and_the_file_as_they_were(tmp_path):
    path = one_step().write(tmp_path / "a report?mode=rw#100%.sqlite")
    change(path, "PRAGMA journal_mode = WAL")
    before = path.read_bytes()
    seen = []
    nsys.read(path, progress=lambda done, total: seen.extend(tmp_path.iterdir()))
    assert path.read_bytes() == before
    assert {*seen, *tmp_path.iterdir()} == {path}


def test_a_journal_beside_the_file_is_noted(tmp_path):
    path = one_step().write(tmp_path / "report.sqlite")
    path.with_name("report.sqlite-wal").write_bytes(b"rest")
    assert "report.sqlite-wal lies beside it" in nsys.read(path)[0].notes[0]


def test_progress_is_told_in_bytes_and_ends_with_the_whole_file(tmp_path):
    told = []
    path = one_step().write(tmp_path / "report.sqlite")
    nsys.read(path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert 0 < told[0][0] < path.stat().st_size
    assert told == sorted(told)


# Bad input: every case is a UsageError that names the file.


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.sqlite", b"", "is empty"),
        ("text.sqlite", b"not a database, but long enough to be one" * 10, "not a SQLite database"),
        ("short.sqlite", b"SQLite format 3\0", "cut short"),
        ("zeros.sqlite", bytes(5000), "not a SQLite database"),
    ],
)
def test_nsys_reader_refuses_a_file_that_is_not_sqlite(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as raised:
        nsys.read(path)
    assert str(path) in raised.value.message


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.sqlite", tmp_path):
        with pytest.raises(UsageError, match="Cannot read"):
            nsys.read(path)


def test_a_database_of_another_program_is_refused_with_its_tables(tmp_path):
    path = tmp_path / "cookies.sqlite"
    change(path, "CREATE TABLE moz_cookies (id INTEGER, name TEXT)")
    with pytest.raises(UsageError, match="no export of Nsight Systems; its tables: moz_cookies"):
        nsys.read(path)


def test_an_export_without_events_says_how_to_record_some(tmp_path):
    path = NsysMade().write(tmp_path / "report.sqlite")
    with pytest.raises(UsageError, match="no CUDA and no NVTX events") as raised:
        nsys.read(path)
    assert "--trace=cuda,nvtx" in raised.value.hint


@pytest.mark.parametrize("version", ["4.0.0", "4", "99999999999999999999.1"])
def test_a_newer_schema_is_refused(export, version):
    with pytest.raises(UsageError, match="this dynotune reads 3"):
        export(one_step(), version=version)


@pytest.mark.parametrize("version", ["3.99.0", "2.4", "", "unknown"])
def test_an_older_schema_or_one_without_a_version_is_read(export, version):
    assert len(export(one_step(), version=version)) == 1


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (f"UPDATE {KERNELS} SET start = 'soon'", f"row 1 of table {KERNELS} holds text in column start"),
        (f"UPDATE {KERNELS} SET end = 1.5", f"row 1 of table {KERNELS} holds real in column end"),
        (f"UPDATE {CALLS} SET correlationId = x'00' WHERE rowid = 2", f"row 2 of table {CALLS} holds blob"),
        (f"UPDATE {COPIES} SET bytes = 9223372036854775808", "holds real in column bytes"),
    ],
)
def test_a_value_of_another_type_is_refused_by_row(tmp_path, statement, says):
    path = one_step().write(tmp_path / "report.sqlite")
    change(path, statement)
    with pytest.raises(UsageError, match=says):
        nsys.read(path)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = one_step().write(tmp_path / "report.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    for length in (16, 99, 100, 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="cut short"):
            nsys.read(path)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "report.sqlite"
    return one_step().gpu(0, "NVIDIA H100").write(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=20))
def test_a_damaged_file_is_refused_or_read_and_never_breaks_the_reader(tmp_path, intact, changes):
    damaged = bytearray(intact.read_bytes())
    for at, value in changes:
        damaged[at % len(damaged)] = value
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(damaged)
    try:
        nsys.read(path)
    except UsageError as error:
        assert str(path) in error.message


def test_a_view_in_a_tables_place_is_not_run(tmp_path):
    path = one_step().write(tmp_path / "report.sqlite", omit=[KERNELS])
    change(
        path,
        f"CREATE VIEW {KERNELS} AS WITH RECURSIVE forever(start) AS (SELECT 1 UNION ALL SELECT start FROM "
        "forever) "
        "SELECT start, start AS end FROM forever",
    )
    assert "kernels" in nsys.read(path)[0].missing


def test_tables_with_hostile_names_are_passed_over(tmp_path):
    path = one_step().write(tmp_path / "report.sqlite")
    change(path, """CREATE TABLE "x"" ; DROP TABLE StringIds; --" (a INTEGER)""")
    change(path, f"""ALTER TABLE {KERNELS} ADD COLUMN "start"" , ""x" INTEGER""")
    assert len(nsys.read(path)[0].device) == 3
