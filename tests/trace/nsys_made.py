"""Synthetic exports of Nsight Systems: databases made by NVIDIA's documented schema, not by nsys.

Columns as in the "SQLite Schema Reference" of release 2026.4 (schema 3.28.1), the ones that are read and a
few beside them; https://docs.nvidia.com/nsight-systems/AnalysisGuide.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

MACHINE = 1 << 48
PAGEABLE, PINNED, DEVICE = 0, 1, 2
HTOD, DTOH, DTOD = 1, 2, 8

_ACTIVITY = "start end deviceId contextId greenContextId streamId correlationId globalPid"
COLUMNS = {
    "StringIds": "id value",
    "ThreadNames": "nameId priority globalTid",
    "META_DATA_EXPORT": "name value",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "TARGET_INFO_GPU": "vmId id name totalMemory smCount computeMajor computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
    "MPI_RANKS": "globalTid rank",
    "ENUM_CUDA_MEMCPY_OPER": "id name label",
    "ENUM_CUDA_MEM_KIND": "id name label",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY} demangledName shortName mangledName gridId graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_ACTIVITY} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ACTIVITY} syncType eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start end eventClass globalTid correlationId nameId returnValue callchainId"
    ),
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId",
}
_TEXT = {"value", "name", "label", "text", "uuid", "utcTime", "localTime"}
KERNELS, COPIES, SETS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
CALLS, GRAPHS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
SYNCS, RANGES = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "NVTX_EVENTS"


def global_id(pid: int, tid: int = 0) -> int:
    return MACHINE | pid << 24 | tid


@dataclass
class NsysMade:
    """Collects rows in any order; times in nanoseconds. `pid` None leaves the process out.

    >>> made = NsysMade()
    >>> made.call("cudaLaunchKernel_v7000", 0, 10, correlation=1).kernel("gemm", 12, 50, correlation=1)
    >>> made.write(path)
    """

    rows: list[tuple[str, int | None, dict[str, object]]] = field(default_factory=list)
    strings: dict[str, int] = field(default_factory=dict)

    def row(self, table: str, process: int | None = None, /, **values: object) -> NsysMade:
        """Any row; it goes with `process`, with all where that is None."""
        self.rows.append((table, process, values))
        return self

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, 100 + len(self.strings))

    def call(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        correlation: int | None = None,
        pid: int = 10,
        tid: int = 11,
    ) -> NsysMade:
        ids = {"globalTid": global_id(pid, tid), "correlationId": correlation, "nameId": self.string(name)}
        return self.row(CALLS, pid, start=start, end=end, eventClass=0, returnValue=0, **ids)

    def kernel(
        self, name: str, start: int, end: int | None, *, short: str | None = None, **where: int | None
    ) -> NsysMade:
        names = {"demangledName": self.string(name), "shortName": self.string(short or name)}
        return self._activity(KERNELS, start, end, where, gridId=1, **names)

    def copy(
        self,
        kind: int,
        source: int,
        target: int,
        start: int,
        end: int,
        *,
        num_bytes: int = 64,
        **where: int | None,
    ) -> NsysMade:
        return self._activity(
            COPIES, start, end, where, bytes=num_bytes, copyKind=kind, srcKind=source, dstKind=target
        )

    def set(self, start: int, end: int, *, num_bytes: int = 64, **where: int | None) -> NsysMade:
        return self._activity(SETS, start, end, where, bytes=num_bytes, value=0, memKind=DEVICE)

    def graph(self, number: int, start: int, end: int, **where: int | None) -> NsysMade:
        return self._activity(GRAPHS, start, end, where, graphId=number, graphExecId=number)

    def sync(self, kind: int, start: int, end: int, **where: int | None) -> NsysMade:
        return self._activity(SYNCS, start, end, where, syncType=kind, eventId=0)

    def range(
        self,
        text: str | None,
        start: int,
        end: int | None,
        *,
        registered: str | None = None,
        kind: int = 59,
        pid: int = 10,
        tid: int = 11,
    ) -> NsysMade:
        text_id = None if registered is None else self.string(registered)
        ids = {"globalTid": global_id(pid, tid), "textId": text_id, "domainId": 0}
        return self.row(RANGES, pid, start=start, end=end, eventType=kind, text=text, **ids)

    def gpu(self, number: int, name: str, *, num_multiprocessors: int = 132) -> NsysMade:
        values = {
            "totalMemory": 80 << 30,
            "smCount": num_multiprocessors,
            "computeMajor": 9,
            "computeMinor": 0,
        }
        return self.row("TARGET_INFO_GPU", vmId=0, id=number, name=name, **values)

    def only(self, pid: int) -> NsysMade:
        """The rows of one process and those of all."""
        return NsysMade([row for row in self.rows if row[1] in (None, pid)], self.strings)

    def write(
        self,
        path: Path,
        *,
        omit: Collection[str] = (),
        without: Mapping[str, Collection[str]] | None = None,
        order: random.Random | None = None,
        version: str = "3.28.1",
    ) -> Path:
        """The database at `path`: all tables but `omit`, with all columns but `without`, rows as `order` has
        it."""
        rows = [*self.rows, ("META_DATA_EXPORT", None, {"name": "EXPORT_SCHEMA_VERSION", "value": version})]
        rows += [("StringIds", None, {"id": number, "value": text}) for text, number in self.strings.items()]
        rows += [
            ("ENUM_CUDA_MEMCPY_OPER", None, row) for row in _enumeration("CUDA_MEMCPY_KIND", _COPY_KINDS)
        ]
        rows += [
            ("ENUM_CUDA_MEM_KIND", None, row)
            for row in _enumeration("CUDA_MEMOPR_MEMORY_KIND", _MEMORY_KINDS)
        ]
        if order:
            order.shuffle(rows)
        with closing(sqlite3.connect(path)) as database, database:
            for table, columns in COLUMNS.items():
                kept = [name for name in columns.split() if name not in (without or {}).get(table, ())]
                if table in omit:
                    continue
                types = ", ".join(f'"{name}" {"TEXT" if name in _TEXT else "INTEGER"}' for name in kept)
                database.execute(f'CREATE TABLE "{table}" ({types})')
                values = [tuple(row.get(name) for name in kept) for of, _, row in rows if of == table]
                database.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(kept))})', values)
        return path

    def _activity(
        self, table: str, start: int, end: int | None, where: Mapping[str, int | None], **values: object
    ) -> NsysMade:
        place = {"pid": 10, "device": 0, "stream": 7, "correlation": None} | dict(where)
        pid = place["pid"]
        ids = {
            "deviceId": place["device"],
            "contextId": 1,
            "streamId": place["stream"],
            "correlationId": place["correlation"],
            "globalPid": None if pid is None else global_id(pid),
        }
        return self.row(table, pid, start=start, end=end, **ids, **values)


_COPY_KINDS = "UNKNOWN HTOD DTOH HTOA ATOH ATOA ATOD DTOA DTOD HTOH PTOP UVM_HTOD UVM_DTOH UVM_DTOD"
_MEMORY_KINDS = "PAGEABLE PINNED DEVICE ARRAY MANAGED DEVICE_STATIC MANAGED_STATIC UNKNOWN"


def _enumeration(prefix: str, names: str) -> list[dict[str, object]]:
    return [{"id": id_, "name": f"{prefix}_{name}", "label": name} for id_, name in enumerate(names.split())]
