"""Read the files that the agent writes in each process; a truncated file is read up to the cut."""

import struct
import time
from pathlib import Path

from dynotune.launch.records.record import Record, Step
from dynotune.schema import untrusted
from dynotune.schema.errors import CannotRunHere, RecordError, may_fail

_MAGIC = b"DYNOREC\0"
_VERSION = 1
_STEP = 1
_EVENT = 2
# The writer fills preallocated zeros field by field. A size, a kind and the last byte of a time are never 0.
_NOT_YET = 0
_FILE_HEAD = struct.Struct("<8sHHIdQ")
_START_LAST_BYTE = struct.calcsize("<8sHHId") - 1
_HEAD = struct.Struct("<IHH")
_PIECE_BYTES = 1 << 20
_CLOCK_SLACK_S = 1.0
_STEP_PAYLOAD = struct.Struct("<dqQd")


class Reader:
    """Read one record while it grows."""

    def __init__(self, path: Path) -> None:
        self._position = 0
        self.record = Record(path=path, pid=0, start_s=0.0, steps=[], events={}, results={})

    def update(self) -> Record:
        """Read new data.

        Raises RecordError: the file is no record, or has a version unknown to this dynotune.
        """
        if self._position:
            # The program may have overwritten data that was read before.
            self._check_magic(self._piece(0, len(_MAGIC)))
        while self._read_some():
            pass
        return self.record

    def _read_some(self) -> bool:
        """Read a chunk; return whether more data may follow.

        Most of a record is preallocated and still empty.
        """
        raw = self._piece(self._position, _PIECE_BYTES)
        if len(raw) == _PIECE_BYTES and self._position:
            size = _HEAD.unpack_from(raw)[0]
            if size > _PIECE_BYTES - _HEAD.size:
                raw = self._piece(self._position, _HEAD.size + size)
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
        with may_fail(f"read {self.record.path}", "", RecordError):
            return untrusted.piece(self.record.path, position, num_bytes, link=False)

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
            self.record.take(payload)


class Records:
    """All records of a run folder.

    With another pattern, these are the later files of watched processes whose first records were full.

    Args:
        launched_s: time (s, CLOCK_MONOTONIC) after which all processes began that may be recorded, of a run
            that this boot of the machine has seen; None if times are not compared with those of this process.
    """

    def __init__(
        self, folder: Path, pattern: str = "process-*.rec", *, launched_s: float | None = None
    ) -> None:
        self._folder, self._pattern, self._launched_s = folder, pattern, launched_s
        self._readers: dict[Path, Reader] = {}

    def update(self) -> list[Record]:
        """Read new data of all processes, in the order of their starts.

        Raises RecordError: as for Reader. CannotRunHere: a process has another clock than this one.
        """
        # A pipe or a link there is nothing that the agent wrote.
        paths = sorted(filter(untrusted.is_ordinary, self._folder.glob(self._pattern)))
        self._readers = {path: self._readers.get(path) or Reader(path) for path in paths}
        records = [reader.update() for reader in self._readers.values()]
        records = sorted((record for record in records if record.pid), key=lambda record: record.start_s)
        if self._launched_s is not None:
            _refuse_other_clocks(records, self._launched_s)
        return records


def _refuse_other_clocks(records: list[Record], launched_s: float) -> None:
    """Refuse records from before the launch or from the future: their times cannot be compared with ours."""
    until_s = time.perf_counter() + _CLOCK_SLACK_S
    for record in records:
        if not launched_s - _CLOCK_SLACK_S <= record.start_s <= until_s:
            by_s = max(launched_s - record.start_s, record.start_s - until_s)
            raise CannotRunHere(
                f"The clock of process {record.pid} is not dynotune's: it differs by at least {by_s:,.0f} s. "
                "A time namespace or a preloaded library shifts CLOCK_MONOTONIC there.",
                hint="Start dynotune where that clock holds, as in: unshare --time … dynotune …",
            )
