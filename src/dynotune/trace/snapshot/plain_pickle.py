"""Load pickles of plain data only: dicts, lists, strings, numbers, and tuples of integers.

A pickle is a program for a stack machine (https://docs.python.org/3/library/pickletools.html). The pickle's
bytes are checked before the first instruction runs, and only instructions that build plain data are accepted.
The check also bounds the cost of a hostile file: no length reaches beyond the file, no tuple nests (hashing a
deep one overflows the stack of C), and memory stays within some fifty times the file.
"""

import io
import pickle
import pickletools
import re
from typing import NoReturn

from dynotune.schema.errors import UsageError

_PROTOCOLS = range(2, 6)
_RUN = 4096
# Number of bytes of the length field in front of each kind of string.
_STRINGS = {ord("X"): 4, 0x8C: 1, 0x8D: 8}  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
# Number of argument bytes of the other accepted instructions; LONG1's argument is the number of further
# bytes.
_ARGUMENTS = {ord(code): width for code, width in zip("KMJGqhjr", (1, 2, 4, 8, 1, 1, 4, 4), strict=True)} | {
    0x95: 8
}
_LONG1 = 0x8A
_STOP = ord(".")
# A container takes some sixty bytes of memory and at least one byte of the file; torch writes more than
# thirty per container.
_BYTES_PER_CONTAINER = 8
_INTEGER = rb"(?:K.|M..|J.{4}|\x8a(?:%s))" % b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(10))


class _Unpickler(pickle.Unpickler):
    """Unpickler of plain data that refuses classes and ids; `_check` has already refused pickles that use
    either."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no plain data")

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise pickle.UnpicklingError("a persistent id is no plain data")


def load(raw: bytes, *, name: str) -> object:
    """Load the data of the pickle `raw`; errors mention `name`.

    Raises UsageError: `raw` is not a pickle, is damaged, or has more than plain data; then no instruction has
    run.
    """
    end = _check(raw, name)
    try:
        return _Unpickler(io.BytesIO(raw[:end])).load()
    except (
        *(pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, MemoryError, OverflowError),
        *(RecursionError, TypeError, ValueError),
    ) as error:
        raise UsageError(f"{name} is a damaged pickle: its instructions do not fit together.") from error


def _check(raw: bytes, name: str) -> int:
    """Return the number of bytes up to the end of the pickle, after checking that all instructions are
    harmless.

    Raises UsageError: an instruction of the pickle is not harmless.
    """
    if len(raw) < 2 or raw[0] != 0x80 or raw[1] not in _PROTOCOLS:
        raise UsageError(
            f"{name} does not begin as a pickle of protocol {_PROTOCOLS[0]} to {_PROTOCOLS[-1]}.",
            hint="Write it with torch.cuda.memory._dump_snapshot(path).",
        )
    if raw.count(b"}") + raw.count(b"]") > len(raw) // _BYTES_PER_CONTAINER + 64:
        raise UsageError(f"{name} has more containers than data of its size can fill; nothing was loaded.")
    harmless = _harmless(len(raw))
    at = 2
    while True:
        if run := harmless.match(raw, at):
            at = run.end()
            continue
        if at >= len(raw):
            raise UsageError(f"{name} is cut short: the pickle has no end after byte {at:,}.")
        if raw[at] == _STOP:
            return at + 1
        if (width := _STRINGS.get(raw[at])) is None:
            if at + 1 + _num_argument_bytes(raw, at) > len(raw):
                raise UsageError(
                    f"{name} is cut short: an instruction at byte {at:,} is longer than the file."
                )
            _refuse(raw, at, name)
        length = int.from_bytes(raw[at + 1 : at + 1 + width], "little")
        if at + 1 + width + length > len(raw):
            raise UsageError(f"{name} is cut short: a string at byte {at:,} is longer than the file.")
        at += 1 + width + length


def _num_argument_bytes(raw: bytes, at: int) -> int:
    if raw[at] == _LONG1:
        return 1 + sum(raw[at + 1 : at + 2])
    return _ARGUMENTS.get(raw[at], 0)


def _harmless(num_bytes: int) -> re.Pattern[bytes]:
    """Return a pattern for up to `_RUN` harmless instructions (strings excluded) in a pickle of `size`
    bytes."""
    # LONG_BINPUT reserves memory for as many objects as its argument, so the argument is limited to the
    # number of bytes.
    high = [num_bytes >> shift for shift in (8, 16, 24)]
    slots = b"".join(rb"[\x00-\x%02x]" % min(most, 0xFF) for most in high)
    instructions = (
        _INTEGER
        + rb"(?:\x85|%s(?:\x86|%s\x87))" % (_INTEGER, _INTEGER),  # TUPLE1, TUPLE2, TUPLE3 of integers
        _INTEGER,
        rb"[N\x88\x89]",  # NONE, NEWTRUE, NEWFALSE
        rb"G.{8}",  # BINFLOAT
        rb"[\x5d})(aesu]",  # EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE, MARK, APPEND, APPENDS, SETITEM, SETITEMS
        rb"[qh].|j.{4}|\x94",  # BINPUT, BINGET, LONG_BINGET, MEMOIZE
        rb"r." + slots,  # LONG_BINPUT
        rb"\x95.{8}",  # FRAME
    )
    return re.compile(rb"(?:%s){1,%d}" % (b"|".join(instructions), _RUN), re.DOTALL)


def _refuse(raw: bytes, at: int, name: str) -> NoReturn:
    name_of = {operation.code: operation.name for operation in pickletools.opcodes}
    if (instruction := name_of.get(chr(raw[at]))) is None:
        raise UsageError(f"{name} is a damaged pickle: byte {at:,} ({raw[at]:#04x}) is no instruction.")
    raise UsageError(
        f"{name} holds more than plain data: the instruction {instruction} at byte {at:,}. Nothing of it "
        "was run.",
        hint="Only open it with pickle if you trust whoever wrote it.",
    )
