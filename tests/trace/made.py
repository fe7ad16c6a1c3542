"""Timelines written by hand, in a few lines each, for which the answer is known."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dynotune.trace.timeline import (
    UNKNOWN,
    DeviceKind,
    DeviceProperties,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryMarks,
    Timeline,
    in_order,
    launches,
)


class Made:
    """Collects spans in any order; times in nanoseconds.

    >>> made = Made()
    >>> made.launch("cudaLaunchKernel", 0, 10, correlation=1)
    >>> made.kernel("gemm", 12, 50, correlation=1)
    >>> made.timeline()
    """

    def __init__(self, *, rank: int | None = None, source: str = "made") -> None:
        self.rank, self.source = rank, source
        self.host: list[tuple[int, int, int, str, str, int, int, bool]] = []
        self.device: list[tuple[int, int, int, str, int, int, int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []
        self.properties: dict[int, DeviceProperties] = {}

    def operator(
        self,
        name: str,
        start: int,
        end: int,
        *,
        sequence: int = UNKNOWN,
        is_backward: bool = False,
        thread: str = "main",
    ) -> Made:
        self.host.append((start, end, HostKind.OPERATOR, name, thread, UNKNOWN, sequence, is_backward))
        return self

    def annotation(self, name: str, start: int, end: int, *, thread: str = "main") -> Made:
        return self._host(HostKind.ANNOTATION, name, start, end, thread)

    def python(self, name: str, start: int, end: int, *, thread: str = "main") -> Made:
        return self._host(HostKind.PYTHON, name, start, end, thread)

    def call(
        self, name: str, start: int, end: int, *, correlation: int = UNKNOWN, thread: str = "main"
    ) -> Made:
        return self._host(HostKind.CALL, name, start, end, thread, correlation)

    launch = call

    def kernel(
        self, name: str, start: int, end: int, *, correlation: int = UNKNOWN, stream: int = 7, device: int = 0
    ) -> Made:
        self.device.append((start, end, DeviceKind.KERNEL, name, device, stream, correlation, UNKNOWN))
        return self

    def copy(
        self,
        name: str,
        start: int,
        end: int,
        *,
        correlation: int = UNKNOWN,
        num_bytes: int = UNKNOWN,
        stream: int = 7,
        device: int = 0,
    ) -> Made:
        self.device.append((start, end, DeviceKind.COPY, name, device, stream, correlation, num_bytes))
        return self

    def level(self, time: int, allocated: int, reserved: int, *, device: int = 0) -> Made:
        self.memory.append((time, allocated, reserved, device))
        return self

    def timeline(self) -> Timeline:
        names: dict[str, int] = {}
        threads: dict[str, int] = {}
        host = sorted(self.host, key=lambda row: (row[0], -row[1]))
        spans = HostSpans(
            start_ns=_ints(row[0] for row in host),
            end_ns=_ints(row[1] for row in host),
            kind=_ints(row[2] for row in host).astype(np.int8),
            name=_ints(names.setdefault(row[3], len(names)) for row in host).astype(np.int32),
            thread=_ints(threads.setdefault(row[4], len(threads)) for row in host).astype(np.int32),
            correlation=_ints(row[5] for row in host),
            sequence=_ints(row[6] for row in host),
            is_backward=_ints(row[7] for row in host).astype(bool),
        )
        rows = in_order(_ints(row[0] for row in self.device), _ints(row[1] for row in self.device))
        device = [self.device[row] for row in rows]
        memory = sorted(self.memory)
        return Timeline(
            source=self.source,
            recorder="torch.profiler",
            host=spans,
            device=DeviceSpans(
                start_ns=_ints(row[0] for row in device),
                end_ns=_ints(row[1] for row in device),
                kind=_ints(row[2] for row in device).astype(np.int8),
                name=_ints(names.setdefault(row[3], len(names)) for row in device).astype(np.int32),
                device=_ints(row[4] for row in device).astype(np.int32),
                stream=_ints(row[5] for row in device),
                launch=launches(_ints(row[6] for row in device), spans),
                num_bytes=_ints(row[7] for row in device),
            ),
            memory=MemoryMarks(
                time_ns=_ints(row[0] for row in memory),
                allocated_bytes=_ints(row[1] for row in memory),
                reserved_bytes=_ints(row[2] for row in memory),
                device=_ints(row[3] for row in memory).astype(np.int32),
            ),
            names=list(names),
            threads=list(threads),
            properties=self.properties,
            rank=self.rank,
        )

    def _host(
        self, kind: HostKind, name: str, start: int, end: int, thread: str, correlation: int = UNKNOWN
    ) -> Made:
        self.host.append((start, end, kind, name, thread, correlation, UNKNOWN, False))
        return self


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)
