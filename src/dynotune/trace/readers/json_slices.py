"""Read a chrome trace, plain or gzipped, and decode its events one slice at a time, so that memory does not
grow.

A slice ends at a comma between two events. The characters around a comma do not show whether the comma is
between two events or inside a string or a nested object. So a cut is proposed and then proved: the slice,
closed with a bracket, decodes as a list only if the cut lies between elements of the outermost list.
"""

import gc
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from dynotune.schema import untrusted
from dynotune.schema.errors import UsageError

SLICE_BYTES = 2 << 20
"""Bytes of text in a slice, whose decoded events fit the caches: larger slices are slower, smaller ones no
faster."""
_LARGEST_EVENT_BYTES = 16 << 20
_RECORD = "give a file that torch.profiler's `export_chrome_trace` or `tensorboard_trace_handler` wrote"

Event = TypeVar("Event")
Progress = Callable[[int, int | None], None]
"""Function to report progress: called with the bytes read so far and the file's size (None if not known)."""

_COMMA, _OPEN, _CLOSE = b",[]"
_BLANK = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_LIST = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
# The end of one event and the begin of the next event. The first pattern has the keys with which events
# begin, so that lists after the events (of devices, of process groups) do not match.
_BOUNDARIES = (
    re.compile(rb'\}\s*+(?=,\s*+\{\s*+"(?:ph|cat|name|pid|tid|ts|dur|args|bp)"\s*+:)'),
    re.compile(rb'\}\s*+(?=,\s*+\{\s*+"[^"\\]*+"\s*+:)'),
)
_BOUNDARY_BYTES = 1024
# Recorders print the bandwidth of a copy without duration as C prints infinity. JSON has no such value.
_NOT_FINITE = re.compile(rb'((?<!\\)":\s*+)(-?(?:inf|nan)(?:inity)?)(?=\s*+[,}])', re.IGNORECASE)
_ANY = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[,\s]*")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_AT_EVENT = re.compile(r"(.*) - at `\$\[(\d+)\](.*)`")

GZIP = b"\x1f\x8b"
_LARGEST_RATIO = 100
_ALWAYS_BYTES = 1 << 30
_PACKED_BYTES = 1 << 16

Chunk = tuple[int, bytes]
"""Position in the file in bytes as stored, and text; the text is empty at the end."""


@dataclass(frozen=True, slots=True)
class Slice(Generic[Event]):
    """Consecutive events, and the JSON list from which they were decoded; `text` is valid until the next
    slice."""

    events: list[Event]
    text: memoryview


class Slices(Generic[Event]):
    """The slices of one file; the object can be iterated once.

    Args:
        decode: function that decodes a JSON list to a list of events; raises msgspec's errors.
        slice_bytes: length of a slice's text in bytes; a longer event makes a longer slice.
        limit_bytes: limit for the text of a gzipped file.
        progress: function that is called repeatedly while the file is read.

    Attributes:
        document: the file's values other than `traceEvents`, as JSON; complete after the last slice.
        num_events, num_bytes: number of events and of bytes before the current slice; of the whole text after
            the last.
        is_cut: whether the file ends too early; all whole events before the cut are returned.

    Iterating raises UsageError: the file is not JSON, not a trace, or has a field of the wrong type; the
    message names the file and the byte or event.
    """

    def __init__(
        self,
        path: Path,
        decode: Callable[[memoryview], list[Event]],
        *,
        slice_bytes: int = SLICE_BYTES,
        limit_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self.document: dict[str, msgspec.Raw] = {}
        self.num_events = 0
        self.num_bytes = 0
        self.is_cut = False
        self._num_read = 0
        self._decode = decode
        self._patience_bytes = 4 * slice_bytes
        self._chunks = chunks(path, slice_bytes, limit_bytes)
        self._progress = progress
        # Text that is not yet decoded. The first byte is an opening bracket: that of the list, or one in
        # place of the comma after the last slice. A closing bracket replaces a slice's last byte. So a slice
        # becomes a list without a copy.
        self._text = bytearray()
        self._is_bare = False
        self._has_ended = False
        self._is_patched = False

    def __iter__(self) -> Iterator[Slice[Event]]:
        self._find_list()
        found = self._longest_slice()
        while found is not None or self._read():
            if found is not None:
                yield found
                self._drop(found)
            found = None if self._has_ended else self._longest_slice()
        if not self._has_ended and (found := self._last_slice()) is not None:
            yield found
            self._drop(found)
        self._finish()

    def _read(self) -> bool:
        """Append the next chunk of the file to the text; return False at the end of the file."""
        position, chunk = next(self._chunks, (0, b""))
        if len(self._text) > _LARGEST_EVENT_BYTES:
            raise self._error(0, f"{_LARGEST_EVENT_BYTES >> 20} MiB follow in which no event ends")
        self._text += chunk
        self._num_read += len(chunk)
        if self._is_patched:
            self._patch()
        if chunk and self._progress is not None:
            self._progress(position, self.path.stat().st_size)
        return bool(chunk)

    # The list

    def _longest_slice(self) -> Slice[Event] | None:
        """Return all events in the text except the last event, which may continue in the next chunk; else
        None."""
        for comma in self._boundaries():
            self._text[comma] = _CLOSE
            found = self._prove(comma + 1)
            if isinstance(found, Slice):
                return found
            self._text[comma] = _COMMA
            if found < comma:
                if last := self._up_to_end(found):
                    return last
                self._mend(found)
                return self._longest_slice()
        return None

    def _last_slice(self) -> Slice[Event] | None:
        """Return the last slice of the file: up to the end of the list of events or, in a truncated file, up
        to the last whole event."""
        found = self._prove(len(self._text))
        if isinstance(found, Slice):
            self._has_ended = True
            return found
        if last := self._up_to_end(found):
            return last
        if found < len(self._text) - 1:
            self._mend(found)
            return self._last_slice()
        self._text[self._end_of_whole_events() :] = b"]"
        found = self._prove(len(self._text))
        return found if isinstance(found, Slice) else None

    def _end_of_whole_events(self) -> int:
        text, ends = self._text.decode(errors="surrogateescape"), 1
        with suppress(ValueError, RecursionError):
            while between := _BETWEEN.match(text, ends):
                _, ends = _ANY.raw_decode(text, between.end())
        return len(text[:ends].encode(errors="surrogateescape"))

    def _boundaries(self) -> Iterator[int]:
        """Yield commas at which the text may be cut: the last comma, then earlier ones outside of nested
        values.

        If none of these commas was a cut and the text is long, the first comma after the last whole event is
        tried.
        """
        size = len(self._text)
        for pattern in _BOUNDARIES:
            before, window = size, 64
            while before > 0:
                start = max(size - window, 0)
                near = pattern.finditer(self._text, start, min(before + _BOUNDARY_BYTES, size))
                commas = [found.end() for found in near if found.start() < before]
                if commas:
                    yield commas[-1]
                before, window = start, 2 * window
        if size > self._patience_bytes:
            comma = self._text.find(b",", self._end_of_whole_events())
            if comma > 0:
                yield comma

    def _prove(self, end: int) -> Slice[Event] | int:
        """Return the events of a list that ends before `end`, else where the JSON breaks (`end` if the text
        is cut)."""
        whole = memoryview(self._text)
        text = whole[:end]
        whole.release()
        try:
            with _without_collector():
                return Slice(self._decode(text), text)
        except msgspec.ValidationError as error:
            text.release()
            raise self._wrong_field(error) from None
        except msgspec.DecodeError as error:
            text.release()
            return _broken_at(error, end)
        except RecursionError:
            text.release()
            raise self._error(0, "values nest deeper than any recorder writes after it") from None

    def _up_to_end(self, at: int) -> Slice[Event] | None:
        """Return the last slice if the list of events ends at the byte where decoding broke."""
        bracket = self._text.rfind(b"]", 0, at)
        found = self._prove(bracket + 1) if bracket > 0 else bracket
        if isinstance(found, Slice):
            self._has_ended = True
            return found
        return None

    def _mend(self, at: int) -> None:
        if not self._patch():
            raise self._error(at, "it is not JSON")

    def _patch(self) -> bool:
        text = bytes(self._text)
        self._text[:] = _with_lists_for_not_finite(text)
        is_patched = self._text != text
        self._is_patched |= is_patched
        return is_patched

    def _drop(self, done: Slice[Event]) -> None:
        size = len(done.text) if self._has_ended else len(done.text) - 1
        self.num_events += len(done.events)
        done.text.release()
        self._forget(size)
        if not self._has_ended:
            self._text[0] = _OPEN

    def _forget(self, num_bytes: int) -> None:
        del self._text[:num_bytes]
        self.num_bytes += num_bytes

    # Text around the list

    def _find_list(self) -> None:
        while self._read():
            start = self._start()
            if self._text[start : start + 1] == b"[":
                self._is_bare = True
                return self._forget(start)
            at = 0
            while key := _LIST.search(self._text, at):
                at = key.end()
                found = _object(bytes(self._text[start:at]) + b"[]}")
                if isinstance(found, dict) and "traceEvents" in found:
                    self.document = found
                    return self._forget(at)
        raise self._without_list()

    def _start(self) -> int:
        blank = _BLANK.match(self._text)
        return blank.end() if blank else 0

    def _without_list(self) -> UsageError:
        start = self._start()
        text = bytes(self._text[start:])
        if not text:
            return UsageError(f"{self.path} is empty", hint=_RECORD)
        found = _object(text)
        if isinstance(found, dict):
            held = ", ".join(f"`{key}`" for key in list(found)[:5]) or "nothing"
            lacks = (
                "`traceEvents` is no list"
                if "traceEvents" in found
                else f"it holds {held} and no `traceEvents`"
            )
            return UsageError(f"{self.path} is JSON, but no trace: {lacks}", hint=_RECORD)
        if found >= len(text):
            return UsageError(
                f"{self.path} is cut short before its first event", hint="copy it again, or record it again"
            )
        return self._error(start + found, "it is not JSON")

    def _finish(self) -> None:
        """Read the text after the list of events; a file that is cut there loses no event."""
        while self._read():
            pass
        rest = bytes(self._text)
        if not self._has_ended:
            self.is_cut = True
        elif self._is_bare:
            if rest.strip():
                raise self._error(0, "something follows the list of events")
        else:
            self._close(rest)
        self.num_bytes = self._num_read

    def _close(self, rest: bytes) -> None:
        opening = b'{"traceEvents":[]'
        found = _object(opening + rest)
        if isinstance(found, int) and found < len(opening + rest):
            raise self._error(max(found - len(opening), 0), "it is not JSON")
        end = len(rest)
        while isinstance(found, int):
            self.is_cut = True
            end = max(rest.rfind(b",", 0, end), 0)
            found = _object(opening + rest[:end] + b"}")
        self.document |= found

    # Errors

    def _error(self, at: int, what: str) -> UsageError:
        return UsageError(
            f"{self.path} cannot be read beyond byte {self.num_bytes + at:,}: {what}", hint=_RECORD
        )

    def _wrong_field(self, error: msgspec.ValidationError) -> UsageError:
        found = _AT_EVENT.match(str(error))
        what, index, field = found.groups() if found else (str(error), "0", "")
        number = self.num_events + int(index)
        return UsageError(
            f"{self.path}: `traceEvents[{number}]{field}` is not what a trace holds: {what}", hint=_RECORD
        )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Turn off the garbage collector, which would take most of the time: decoding makes many objects but no
    cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _broken_at(error: msgspec.DecodeError, end: int) -> int:
    found = _AT_BYTE.search(str(error))
    return int(found[1]) if found else end


def _object(text: bytes) -> dict[str, msgspec.Raw] | int:
    """Return the values of a JSON object by their keys; or, if `text` is not a JSON object, where the JSON
    breaks."""
    with_questions = text.decode(errors="surrogateescape").encode(errors="replace")  # ? for wrong bytes
    for mended in (with_questions, _with_lists_for_not_finite(with_questions)):
        try:
            return msgspec.json.decode(mended, type=dict[str, msgspec.Raw])
        except (msgspec.ValidationError, RecursionError):
            broken_at = 0
        except msgspec.DecodeError as error:
            broken_at = _broken_at(error, len(text))
    return broken_at


def _with_lists_for_not_finite(text: bytes) -> bytes:
    """Return text of the same length, with an empty list (not a number) in place of each non-finite value."""
    return _NOT_FINITE.sub(lambda found: found[1] + b"[]".ljust(len(found[2])), text)


def default_limit(size_bytes: int) -> int:
    """Return the limit in bytes for the unpacked text of a gzipped file of this size, unless the user gives
    another.

    gzip shrinks recorded traces to between a tenth and a thirtieth, and hostile data to a thousandth: a limit
    of 100 times the file's size allows any trace but no bomb. Up to 1 GiB of text is always allowed, as it
    takes only seconds.
    """
    return max(_LARGEST_RATIO * size_bytes, _ALWAYS_BYTES)


def chunks(path: Path, chunk_bytes: int, limit_bytes: int | None = None) -> Iterator[Chunk]:
    """Yield text of at most `chunk_bytes` at a time; a gzipped file that is cut short just ends.

    Args:
        limit_bytes: limit for the text of a gzipped file; `default_limit` if None.

    Raises:
        UsageError: the file cannot be read, its compression is damaged, or it unpacks to more than the limit.
    """
    try:
        with untrusted.opened(path) as file:
            gzipped = file.read(len(GZIP)) == GZIP
        return _unpacked(path, chunk_bytes, limit_bytes) if gzipped else _plain(path, chunk_bytes)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _plain(path: Path, chunk_bytes: int) -> Iterator[Chunk]:
    with untrusted.opened(path) as file:
        while text := file.read(chunk_bytes):
            yield file.tell(), text


def _unpacked(path: Path, chunk_bytes: int, limit_bytes: int | None) -> Iterator[Chunk]:
    size_bytes = path.stat().st_size
    limit_bytes = default_limit(size_bytes) if limit_bytes is None else limit_bytes
    num_bytes = 0
    for position, text in _members(path, chunk_bytes):
        num_bytes += len(text)
        if num_bytes > limit_bytes:
            raise UsageError(
                f"{path} unpacks to more than {limit_bytes:,} bytes from {size_bytes:,}",
                hint="if it is a recorded trace nevertheless, raise the limit with --max-size",
            )
        yield position, text


def _members(path: Path, chunk_bytes: int) -> Iterator[Chunk]:
    with untrusted.opened(path) as file:
        member = zlib.decompressobj(31)
        packed = b""
        while packed or (packed := file.read(_PACKED_BYTES)):
            if member.eof:
                # Gzip files may be joined end to end; zeros may pad the last; any other bytes after the last
                # are not text.
                packed = packed.lstrip(b"\0")
                if not packed.startswith(GZIP[:1]):
                    return
                member = zlib.decompressobj(31)
            try:
                text = member.decompress(packed, chunk_bytes)
            except zlib.error as error:
                raise UsageError(
                    f"{path} is damaged: it cannot be unpacked beyond byte {file.tell() - len(packed):,} "
                    f"({error})",
                    hint="copy it again, or record it again",
                ) from error
            packed = member.unused_data if member.eof else member.unconsumed_tail
            if text:
                yield file.tell() - len(packed), text
        if not member.eof and (text := member.flush()):
            yield file.tell(), text
