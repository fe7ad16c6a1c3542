from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dynotune.schema.errors import UsageError
from dynotune.trace.readers import reading

from ..chrome import kernel, write
from ..nsys_made import NsysMade


def test_files_are_read_in_their_order_whatever_they_are_called(tmp_path: Path) -> None:
    plain = write(tmp_path / "b", [kernel(1, 1, 1, name="plain")])
    packed = tmp_path / "a"
    packed.write_bytes(gzip.compress(write(tmp_path / "c", [kernel(1, 1, 1, name="packed")]).read_bytes()))
    found = reading.read_traces([plain, packed])
    assert [timeline.names for timeline in found] == [["plain"], ["packed"]]
    assert [timeline.source for timeline in found] == [str(plain), str(packed)]


def test_the_limit_reaches_the_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json.gz", [kernel(1, 1, 1)] * 100)
    with pytest.raises(UsageError, match="unpacks to more than 1,000 bytes"):
        reading.read_traces([path], limit_bytes=1000)


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("executed",))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        *(
            (pickle.dumps(Malicious(), protocol), "a pickle of Python, such as a memory")
            for protocol in range(2, 6)
        ),
        (b"\x28\xb5\x2f\xfd\x04\x00", "compressed by zstd"),
        (b"\x7fELF\x02\x01\x01\0", "it is a program"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "it is binary, of a kind not known here"),
        (b"step,loss\n1,2\n", "cannot be read beyond byte 0: it is not JSON"),
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"step,loss\n1,2\n", mtime=0), "cannot be read beyond byte 0: it is not JSON"),
    ],
)
def test_read_traces_names_a_file_for_what_it_looks_like_when_it_is_no_trace(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        reading.read_traces([path])
    assert str(path) in caught.value.message
    assert caught.value.hint


NSYS = """#!/bin/sh
[ "$1 $2 $3 $4" = "export --type sqlite --output" ] || exit 9
{how}
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a stand-in for nsys on the PATH, as the only program there."""

    def put(how: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "nsys").write_text(NSYS.format(how=how))
        (folder / "nsys").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return put


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "my report.nsys-rep"
    path.write_bytes(b"\0anything")
    return path


def test_report_of_nsight_systems_is_exported_when_nsys_is_on_the_path(
    tmp_path: Path, report: Path, nsys
) -> None:
    written = NsysMade().kernel("gemm", 0, 1000, correlation=1).write(tmp_path / "export.sqlite")
    nsys(f'/bin/cp {written} "$5"; echo "$5" > {tmp_path}/told')
    (timeline,) = reading.read_traces([report])
    assert (timeline.names, timeline.source) == (["gemm"], str(report))
    assert not Path((tmp_path / "told").read_text().strip()).exists()


@pytest.mark.parametrize(
    ("how", "says"),
    [("echo 'Report is truncated' >&2; exit 1", "Report is truncated"), ("exit 0", "nsys wrote no file")],
)
def test_report_of_nsight_systems_is_refused_when_nsys_fails(report: Path, nsys, how: str, says: str) -> None:
    nsys(how)
    with pytest.raises(UsageError, match=says) as raised:
        reading.read_traces([report])
    assert "nsys export --type sqlite" in (raised.value.hint or "")


def test_report_of_nsight_systems_is_refused_with_the_command_when_nsys_is_missing(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="its own format") as raised:
        reading.read_traces([report])
    assert raised.value.hint == f"where nsys is installed, run: nsys export --type sqlite {report}"


def test_stream_of_nsight_systems_is_to_be_imported(tmp_path: Path) -> None:
    (tmp_path / "a.qdstrm").write_bytes(b"\0")
    with pytest.raises(UsageError, match="not finished"):
        reading.read_traces([tmp_path / "a.qdstrm"])


def test_a_zip_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trace.json", "{}")
    with pytest.raises(UsageError, match="zip archive"):
        reading.read_traces([path])


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        reading.read_traces([tmp_path])
    with pytest.raises(UsageError, match="nowhere cannot be read: No such file"):
        reading.read_traces([tmp_path / "nowhere"])


def test_reading_imports_what_it_needs_and_not_the_reader_of_the_other_format(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", [kernel(1, 1, 1)])
    program = (
        "import sys; from pathlib import Path; from dynotune.trace.readers import reading;"
        f"reading.read_traces([Path({str(path)!r})]);"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'sqlite3', 'rich', 'typer')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        (
            (
                '{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 6, "args": {"name": "0 CPU HIP '
                'API"}}]}'
            ),
            "rocprof",
        ),
        ('{"rocprofiler-sdk-tool": [{"metadata": {}}]}', "rocprof"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "x", "name": "/device:GPU:0/stream", "ts": 1, "dur": 1}]}',
            "JAX",
        ),
        ('{"viztracer_metadata": {}, "traceEvents": []}', "VizTracer"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_another_tracer_is_named(tmp_path: Path, text: str, whose: str, packed: bool) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    with pytest.raises(UsageError, match=f"looks like a file of {whose}"):
        reading.read_traces([path])
