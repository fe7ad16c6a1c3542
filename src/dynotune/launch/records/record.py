"""Read the records that the agent writes in each process; a truncated record is read up to the cut."""

import statistics
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dynotune import knobs
from dynotune.launch.records.oom import why_memory_ran_out
from dynotune.schema import document
from dynotune.schema.errors import CONTRADICTIONS, RecordError, may_fail
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange, Process, Readback, RecordedTrace, TimedWindow
from dynotune.schema.setting import Setting

_MAGIC = b"DYNOREC\0"
_VERSION = 1
_STEP, _EVENT = 1, 2
# The writer fills preallocated zeros field by field. A size, a kind and the last byte of a time are never 0.
_NOT_YET = 0
_FILE_HEAD = struct.Struct("<8sHHIdQ")
_START_LAST_BYTE = struct.calcsize("<8sHHId") - 1
_HEAD = struct.Struct("<IHH")
_PIECE_BYTES = 1 << 20
_STEP_PAYLOAD = struct.Struct("<dqQd")
NUM_STEPS_BEFORE = 30
"""Number of steps before a recording with which the recorded steps are compared."""

COMPILED, ALLOCATED, EPOCH, GARBAGE = 1, 2, 4, 8
"""Bits of a step's flags: something was compiled; device memory was allocated; a loader was started; Python collected
the oldest generation of garbage, or collected for longer than a millisecond."""


class Step(msgspec.Struct, frozen=True):
    """One step of one process.

    Args:
        end_s: end of the step (s, CLOCK_MONOTONIC).
        num_samples: number of samples; None if unknown.
        flags: EPOCH always; COMPILED and ALLOCATED if a task asked for them; GARBAGE in an observed run.
    """

    end_s: float
    wait_s: float
    num_samples: int | None
    flags: int


_Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class _Setting(msgspec.Struct):
    """An entry of the event `readback`."""

    knob: str
    asked: Any
    witness: str = ""
    ok: bool | None = None
    detail: str = ""


# Fields that are read one by one, with the type that each has in every event; None stands for unknown.
_FIELDS: tuple[tuple[Any, str], ...] = (
    (_Int, "task rank world_size first_step num_steps num_events arm"),
    (Annotated[int, msgspec.Meta(ge=0, le=1 << 62)], "num_superseded"),
    (bool, "at_exit"),
    (str, "kind reason executable python version step where error phase name"),
    (float, "begin_s end_s at_s time_s done_s started_s"),
    (list[float], "step_s"),
    (list[str], "argv"),
    (list[_Setting], "settings"),
    (dict[str, str], "unknown failed"),
)
_Event = msgspec.defstruct(
    "_Event", [("event", str), *((name, type_ | None, None) for type_, names in _FIELDS for name in names.split())]
)


class Record(msgspec.Struct):
    """Record of one process, as far as the record is written.

    Args:
        events: events by name, in order.
        results: results of tasks by task number.
        is_damaged: whether an event was dropped because one of its fields has the wrong type.
    """

    path: Path
    pid: int
    start_s: float
    steps: list[Step] = []
    events: dict[str, list[dict[str, Any]]] = {}
    results: dict[int, dict[str, Any]] = {}
    is_damaged: bool = False

    def last(self, event: str) -> dict[str, Any] | None:
        found = self.events.get(event)
        return found[-1] if found else None

    def among_ranks(self, field: str) -> int | None:
        """Return `rank` or `world_size`: the process group's value when the step was found, else the environment's."""
        for event in ("cycle", "process"):
            value = (self.last(event) or {}).get(field)
            if isinstance(value, int):
                return value
        return None

    @property
    def begin_s(self) -> float | None:
        """Return the time (s, CLOCK_MONOTONIC) at which the first step began."""
        return (self.last("cycle") or {}).get("begin_s")

    @property
    def step_s(self) -> list[float]:
        begin = self.begin_s
        ends = [step.end_s for step in self.steps]
        if begin is None:
            return []
        return [end - start for start, end in zip([begin, *ends], ends, strict=False)]


class Reader:
    """Read one record while it grows."""

    def __init__(self, path: Path) -> None:
        self._position = 0
        self.record = Record(path=path, pid=0, start_s=0.0, steps=[], events={}, results={})

    def update(self) -> Record:
        """Read new data. Raises RecordError: the file is no record, or has a version unknown to this dynotune."""
        if self._position:
            # The program may have overwritten data that was read before.
            self._check_magic(self._piece(0, len(_MAGIC)))
        while self._read_some():
            pass
        return self.record

    def _read_some(self) -> bool:
        """Read a chunk; return whether more data may follow. Most of a record is preallocated and still empty."""
        raw = self._piece(self._position, _PIECE_BYTES)
        if len(raw) == _PIECE_BYTES and self._position and _HEAD.unpack_from(raw)[0] > _PIECE_BYTES - _HEAD.size:
            raw = self._piece(self._position, _HEAD.size + _HEAD.unpack_from(raw)[0])
        offset = 0
        if self._position == 0:
            offset = self._read_head(raw)
            if offset == 0:
                return False
        while offset + _HEAD.size <= len(raw):
            size, kind, _ = _HEAD.unpack_from(raw, offset)
            payload = raw[offset + _HEAD.size : offset + _HEAD.size + size]
            if _NOT_YET in (size, kind) or len(payload) < size or (kind == _STEP and payload[-1] == _NOT_YET):
                break
            self._take(kind, payload)
            offset += (_HEAD.size + size + 7) & ~7
        self._position += offset
        return offset > 0

    def _piece(self, position: int, num_bytes: int) -> bytes:
        with may_fail(f"read {self.record.path}", "", RecordError), self.record.path.open("rb") as file:
            file.seek(position)
            return file.read(num_bytes)

    def _read_head(self, raw: bytes) -> int:
        if len(raw) < _FILE_HEAD.size or raw[:8] == bytes(8):
            return 0  # the record is only just being created
        magic, version, size, pid, start_s, _ = _FILE_HEAD.unpack_from(raw)
        self._check_magic(magic)
        if version == _NOT_YET or raw[_START_LAST_BYTE] == _NOT_YET:
            return 0
        if version != _VERSION:
            raise RecordError(
                f"{self.record.path} is a record of version {version}; this dynotune reads {_VERSION}.",
                hint="Read it with the version of dynotune that wrote it.",
            )
        self.record.pid, self.record.start_s = pid, start_s
        return int(size)

    def _check_magic(self, magic: bytes) -> None:
        if magic != _MAGIC:
            raise RecordError(f"{self.record.path} is not a record of dynotune's.")

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == _STEP and len(payload) == _STEP_PAYLOAD.size:
            wait_s, num_samples, flags, end_s = _STEP_PAYLOAD.unpack(payload)
            self.record.steps.append(Step(end_s, wait_s, num_samples if num_samples >= 0 else None, flags))
        elif kind == _EVENT:
            try:
                event = document.parse(payload)
                if not isinstance(event, dict) or "event" not in event:
                    return
                if not _is_sound(event):
                    self.record.is_damaged = True
                    return
                if (number := event.get("task")) is not None:
                    if number in self.record.results:
                        return  # dynotune requested this result again
                    self.record.results[number] = event
                self.record.events.setdefault(event["event"], []).append(event)
                # The program turns out to train: the cycles that it repeated before training were not steps.
                del self.record.steps[: event.get("num_superseded") or 0]
            except ValueError:
                pass  # Drop a damaged event; the events around it stay valid.


def _is_sound(event: dict[str, Any]) -> bool:
    try:
        document.convert(event, _Event)
    except ValueError:
        return False
    return True


class Records:
    """All records of a run folder, or the later files that watched processes wrote after their records were full."""

    def __init__(self, folder: Path, pattern: str = "process-*.rec") -> None:
        self._folder, self._pattern = folder, pattern
        self._readers: dict[Path, Reader] = {}

    def update(self) -> list[Record]:
        """Read new data of all processes, in the order of their starts. Raises RecordError: as for Reader."""
        paths = sorted(self._folder.glob(self._pattern))
        self._readers = {path: self._readers.get(path) or Reader(path) for path in paths}
        records = [reader.update() for reader in self._readers.values()]
        return sorted((record for record in records if record.pid), key=lambda record: record.start_s)


def summarise(record: Record, launched_s: float) -> Process:
    """Summarise a process for `run.json`; `launched_s` is the time of launch on CLOCK_MONOTONIC.

    Raises RecordError: an event is incomplete.
    """
    damaged = RecordError(f"{record.path} is damaged: an event is not as dynotune's agent writes events.")
    if record.is_damaged:
        raise damaged
    try:
        return _summary(record, launched_s)
    except CONTRADICTIONS as error:
        raise damaged from error


def _summary(record: Record, launched_s: float) -> Process:
    process = record.last("process") or {}
    torch = record.last("torch")
    peaks = record.last("memory") or {}
    failed = record.last("out_of_memory") or {}
    window = record.last("window")
    changes = record.events.get("environment", [])
    samples = [step.num_samples for step in record.steps]
    counted = [num for num in samples if num is not None]
    return Process(
        pid=record.pid,
        argv=process.get("argv", []),
        executable=process.get("executable", ""),
        python=process.get("python", ""),
        torch=torch["version"] if torch else None,
        rank=record.among_ranks("rank"),
        world_size=window.get("world_size", 1) if window else record.among_ranks("world_size") or 1,
        step=(record.last("cycle") or {}).get("step"),
        num_steps=len(record.steps),
        num_samples=sum(counted) if counted and len(counted) == len(samples) else None,
        time_to_first_step_s=record.steps[0].end_s - launched_s if record.steps else None,
        median_step_s=statistics.median(record.step_s) if record.step_s else None,
        windows=[document.convert(event, TimedWindow) for event in record.events.get("window", [])],
        # A trace, or the reason why there is none.
        traces=[
            _trace(event, record.step_s)
            for event in record.results.values()
            if "trace" in (event["event"], event.get("kind"))
        ],
        peak_rss_bytes=peaks.get("peak_rss_bytes"),
        peak_device_bytes=peaks.get("peak_device_bytes"),
        num_devices=peaks.get("num_devices"),
        readback=[_readback(entry) for entry in (record.last("readback") or {}).get("settings", [])],
        environment_changes=[document.convert(event, EnvironmentChange) for event in changes],
        out_of_memory=why_memory_ran_out(
            [failed["message"]], batch=samples[-1] if samples else None, held=failed["held"]
        )
        if failed
        else "",
        errors=[f"{event['where']}: {event['error']}" for event in record.events.get("error", [])],
    )


def read_back(processes: Sequence[Process], settings: Sequence[Setting] = ()) -> list[Readback]:
    """Return for each setting whether the processes that ran steps applied it; one "no" outweighs any "yes".

    `settings`: settings of the run. Settings of the launch count as applied if the run was started with these settings.
    """
    telling = [process for process in processes if process.num_steps] or [p for p in processes if p.torch]
    found: dict[str, Readback] = {}
    order = {False: 0, True: 1, None: 2}
    for process in telling:
        for readback in process.readback:
            before = found.get(readback.knob)
            if before is None or order[readback.ok] < order[before.ok]:
                found[readback.knob] = readback
    launched = [Readback(s.knob, str(s.value), str(s.value), "the launch", True) for s in knobs.of_launch(settings)]
    return [*found.values(), *launched]


def _trace(event: dict[str, Any], step_s: Sequence[float]) -> RecordedTrace:
    fields: dict[str, Any] = {"file": None, **event}
    if event.get("step_s"):
        # In the step before the first recorded one the profiler gets ready.
        unready = event["first_step"] - 1
        before = step_s[max(0, unready - NUM_STEPS_BEFORE) : unready]
        fields["median_step_s"] = statistics.median(event["step_s"])
        fields["median_before_s"] = statistics.median(before) if before else None
    return document.convert(fields, RecordedTrace)


def _readback(entry: dict[str, Any]) -> Readback:
    found = entry.get("found")
    if isinstance(found, dict):  # the agent writes this for an unknown value
        found = None
    return Readback(
        knob=entry["knob"],
        asked=str(entry["asked"]),
        found=Unknown(entry.get("detail") or "nothing can witness it") if found is None else str(found),
        witness=entry.get("witness", ""),
        ok=entry.get("ok"),
        detail=entry.get("detail", ""),
    )
