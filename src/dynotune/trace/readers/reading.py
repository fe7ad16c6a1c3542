"""Open recorded traces of any recorder."""

import gzip
import re
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dynotune.schema import untrusted
from dynotune.schema.errors import UsageError
from dynotune.trace.readers import kineto, nsys_report
from dynotune.trace.readers.json_slices import GZIP, Progress
from dynotune.trace.timeline import Timeline

_SQLITE = b"SQLite format 3\0"
_HINT = (
    "give a trace of torch.profiler (.json or .json.gz), or of Nsight Systems (.nsys-rep, or .sqlite as "
    "`nsys export --type sqlite` writes it)"
)
# Kinds of files that users often have beside their traces, recognised by their first bytes.
_OTHERS = (
    (
        (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
        "a pickle of Python, such as a memory snapshot",
        _HINT,
    ),
    (b"PK\x03\x04", "a zip archive", "unpack it, and give the trace that is in it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with `zstd -d`"),
    (b"\xfd7zXZ\0", "compressed by xz", "unpack it with `xz -d`"),
    (b"BZh", "compressed by bzip2", "unpack it with `bzip2 -d`"),
    (b"\x7fELF", "a program", _HINT),
)


_MAKERS = (
    ("rocprof (AMD)", rb"rocprofiler|rocprof|HIP API|\"BeginNs\"|HSA API"),
    ("JAX or TensorFlow", rb"/device:(GPU|TPU):|/host:CPU.*TensorFlow|XLA Ops"),
    ("VizTracer", rb"viztracer"),
    ("py-spy or speedscope", rb"speedscope"),
    ("Chrome", rb"toplevel|\"CrBrowserMain\"|chrome_user_event"),
    ("Intel VTune or PTI (oneAPI)", rb"level_zero|zeCommandList|unitrace"),
)


def read_traces(
    paths: Iterable[Path], *, limit_bytes: int | None = None, progress: Progress | None = None
) -> list[Timeline]:
    """Return the timelines of all files, in the order of the files; one timeline per process in a file.

    Args:
        limit_bytes: limit for the unpacked text of one file; if None, 100 times its size but at least 1 GiB.
        progress: called with the bytes of the current file read so far and its size.

    Raises:
        UsageError: a file is damaged or not a trace; the message has the damaged position or the file's
            likely kind.
    """
    timelines: list[Timeline] = []
    for path in paths:
        begins = _begins(path)
        if path.suffix in nsys_report.SUFFIXES:
            timelines += _of_report(path, progress)
        elif begins.startswith(_SQLITE):
            from dynotune.trace.readers import nsys

            timelines += nsys.read(path, progress=progress)
        else:
            try:
                timelines += kineto.read(path, limit_bytes=limit_bytes, progress=progress)
            except UsageError as error:
                if maker := _maker(path):
                    told = f"{error.message}; it looks like a file of {maker}, which is not read here"
                    raise UsageError(told, hint=_HINT) from error
                raise
    return timelines


def _of_report(path: Path, progress: Progress | None) -> list[Timeline]:
    """Read a report of Nsight Systems through a database that is gone afterwards."""
    from dynotune.trace.readers import nsys

    with tempfile.TemporaryDirectory(prefix="dynotune-nsys-") as folder:
        timelines = nsys.read(nsys_report.exported(path, Path(folder)), progress=progress)
    return [replace(timeline, source=str(path)) for timeline in timelines]


def _maker(path: Path) -> str:
    """Return the name of a recorder that writes JSON like torch.profiler, by the file's content; "" if
    unrecognised."""
    try:
        with untrusted.opened(path) as file:
            text = gzip.GzipFile(fileobj=file) if _begins(path).startswith(GZIP) else file
            begins = text.read(65536)
    except (OSError, EOFError, zlib.error):
        return ""
    return next((maker for maker, words in _MAKERS if re.search(words, begins)), "")


def _begins(path: Path) -> bytes:
    """Return the first bytes of a file that may be a trace."""
    try:
        with untrusted.opened(path) as file:
            begins = file.read(4096)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if path.suffix == ".qdstrm":
        raise UsageError(
            f"{path} is a stream of Nsight Systems that was not finished",
            hint="import it with nsys-ui, and give the .nsys-rep file that it writes",
        )
    for magic, what, hint in _OTHERS:
        if begins.startswith(magic):
            raise UsageError(f"{path} is not a trace: it is {what}", hint=hint)
    if not begins.startswith((GZIP, _SQLITE)) and b"\0" in begins and path.suffix not in nsys_report.SUFFIXES:
        raise UsageError(f"{path} is not a trace: it is binary, of a kind not known here", hint=_HINT)
    return begins
