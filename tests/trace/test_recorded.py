"""The recorded traces, against what the standard library reads of the same files."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from dynotune.trace.facts import intervals
from dynotune.trace.readers import kineto
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind

from .readers.test_kineto import assert_same, device, host
from .recorded import NAMES, path_of, raw
from .recorded import timeline_of as timeline

ON_DEVICE = {"kernel": DeviceKind.KERNEL, "gpu_memcpy": DeviceKind.COPY, "gpu_memset": DeviceKind.SET}
ON_HOST = {
    "cpu_op": HostKind.OPERATOR,
    "user_annotation": HostKind.ANNOTATION,
    "python_function": HostKind.PYTHON,
    "cuda_runtime": HostKind.CALL,
    "cuda_driver": HostKind.CALL,
}
every_recorded = pytest.mark.parametrize("name", NAMES)


def nanoseconds(microseconds: Decimal | int) -> int:
    exact = Decimal(microseconds) * 1000
    assert exact == int(exact)
    return int(exact)


def covered(spans: list[tuple[int, int]]) -> int:
    total, reach = 0, -(2**70)
    for start, end in sorted(spans):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


@every_recorded
def test_busy_time_of_each_device_is_exact_to_the_nanosecond(name: str) -> None:
    spans = defaultdict(list)
    for event in raw(name):
        if event["cat"] in ON_DEVICE:
            start = nanoseconds(event["ts"])
            spans[event["args"]["device"]].append((start, start + nanoseconds(event["dur"])))
    of = timeline(name).device
    assert timeline(name).devices == sorted(spans)
    for index, expected in spans.items():
        rows = of.device == index
        assert intervals.length(intervals.union(of.start_ns[rows], of.end_ns[rows])) == covered(expected)


@every_recorded
def test_every_span_is_there_with_its_name_times_and_numbers(name: str) -> None:
    on_host: Counter[object] = Counter()
    on_device: Counter[object] = Counter()
    calls = {
        event["args"]["correlation"]: nanoseconds(event["ts"])
        for event in raw(name)
        if event["cat"] in ("cuda_runtime", "cuda_driver")
    }
    functions = [event for event in raw(name) if event["cat"] == "python_function"]
    begins = {event["tid"]: math.inf for event in functions}
    for event in functions:
        begins[event["tid"]] = min(begins[event["tid"]], nanoseconds(event["ts"]))
    for told in raw(name):
        event, start = told, nanoseconds(told["ts"])
        if (
            told["cat"] == "python_function" and start == begins[told["tid"]]
        ):  # it ran already: the line is none of its own
            event = told | {"name": re.sub(r"\.py\(\d+\): ", ".py: ", told["name"], count=1)}
        when, args = (start, start + nanoseconds(event["dur"])), event["args"]
        if kind := ON_HOST.get(event["cat"]):
            on_host[event["name"], kind.name, *when, args.get("correlation", UNKNOWN)] += 1
        elif event["cat"] == "cpu_op":
            on_host[event["name"], "OPERATOR", *when, UNKNOWN] += 1
        elif event["cat"] in ON_DEVICE:
            num_bytes = args.get("bytes", UNKNOWN)
            queued = calls.get(args["correlation"])
            row = (
                event["name"],
                ON_DEVICE[event["cat"]].name,
                *when,
                args["device"],
                args["stream"],
                num_bytes,
                queued,
            )
            on_device[row] += 1
    assert on_device == Counter(device(timeline(name)))
    assert on_host == Counter((*row[:4], row[5]) for row in host(timeline(name)))


@every_recorded
def test_rows_are_in_order(name: str) -> None:
    for of in (timeline(name).host, timeline(name).device):
        steps, lengths = np.diff(of.start_ns), np.diff(of.end_ns)
        assert (steps >= 0).all()
        assert (lengths[steps == 0] <= 0).all()


@pytest.mark.parametrize("name", ["h100-qwen1.5-0.5b", "hta-alexnet"])
@pytest.mark.parametrize("slice_bytes", [1000, 70_001, 1 << 30])
def test_slices_of_another_size_give_the_same_timeline(name: str, slice_bytes: int) -> None:
    (found,) = kineto.read(path_of(name), slice_bytes=slice_bytes)
    assert_same(found, timeline(name))


def test_two_ranks_merged_into_one_file_are_the_two_again(tmp_path: Path) -> None:
    ranks = ["hta-sampled-rank-1", "hta-sampled-rank-0"]
    events = [
        event
        for name in ranks
        for event in json.loads(gzip.decompress(path_of(name).read_bytes()))["traceEvents"]
    ]
    merged = tmp_path / "merged.json.gz"
    merged.write_bytes(gzip.compress(json.dumps(events).encode(), 1))
    found = {one.devices[0]: one for one in kineto.read(merged)}
    assert len(found) == 2
    for name in ranks:
        alone = timeline(name)
        one = found[alone.devices[0]]
        assert one.notes == ()
        assert Counter(host(one)) == Counter(host(alone))
        assert Counter(device(one)) == Counter(device(alone))
