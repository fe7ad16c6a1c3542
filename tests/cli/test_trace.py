"""`dynotune trace` as a user types it, on small traces written by hand."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune import cli

NUM_STEPS, STEP_US, KERNEL_US = 3, 1000, 600


def events(*, kernel_us: int = KERNEL_US, operator: str = "aten::mm") -> list[dict]:
    """Three steps of a millisecond, each with one operator that launches one kernel."""
    found = []
    for step in range(NUM_STEPS):
        start = 1_000_000 + step * STEP_US
        host = {"ph": "X", "pid": 1, "tid": 1}
        device = {"ph": "X", "pid": 0, "tid": 7}
        args = {"correlation": step + 1}
        found += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": start, "dur": STEP_US},
            {**host, "cat": "cpu_op", "name": operator, "ts": start + 100, "dur": 50},
            {
                **host,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": start + 110,
                "dur": 10,
                "args": args,
            },
            {
                **device,
                "cat": "kernel",
                "name": "ampere_sgemm_128x64_tn",
                "ts": start + 130,
                "dur": kernel_us,
                "args": {**args, "device": 0, "stream": 7},
            },
        ]
    return found


def write(path: Path, *, rank: int | None = None, world_size: int = 2, **more) -> Path:
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}],
        "traceEvents": events(**more),
    }
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.fixture
def trace(capsys, monkeypatch):
    """Types `dynotune trace` with these words; gives exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "100")

    def types(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["trace", *map(str, words)])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return types


def test_one_trace_is_explained_on_stdout_and_nothing_else_is_said(trace, tmp_path):
    code, out, err = trace(write(tmp_path / "a.json.gz"))
    assert (code, err) == (0, "")
    assert "verdict" in out
    assert "3 steps of 1 ms (marked by the profiler)" in out
    assert "NVIDIA H100 80GB HBM3" in out
    assert "matmul" in out


def test_json_on_stdout_is_all_that_stands_there(trace, tmp_path):
    code, out, _ = trace("--json", "-", write(tmp_path / "a.json"))
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "dynotune.trace/2"
    assert document["num_steps"] == NUM_STEPS
    assert document["devices"][0]["busy_s"] == pytest.approx(NUM_STEPS * KERNEL_US * 1e-6)


def test_json_in_a_file_comes_beside_the_report(trace, tmp_path):
    target = tmp_path / "out.json"
    code, out, _ = trace("--json", target, write(tmp_path / "a.json"))
    assert code == 0
    assert "verdict" in out
    assert json.loads(target.read_text())["num_steps"] == NUM_STEPS


def test_two_files_of_one_rank_are_compared_and_stderr_says_why(trace, tmp_path):
    before, after = write(tmp_path / "a.json", rank=0), write(tmp_path / "b.json", rank=0, kernel_us=300)
    code, out, err = trace(before, after)
    assert code == 0
    assert f"Compared, {before} before and {after} after: both are of rank 0." in err
    assert "`dynotune compare`" in " ".join(out.split())
    document = json.loads(trace(before, after, "--json", "-")[1])
    assert document["schema"] == "dynotune.trace_difference/2"
    assert [document[side]["files"] for side in ("before", "after")] == [[str(before)], [str(after)]]


def test_files_of_different_ranks_are_one_trace_unless_a_comparison_is_asked_for(trace, tmp_path):
    files = [write(tmp_path / f"{rank}.json", rank=rank) for rank in range(2)]
    _, out, err = trace(*files)
    assert "these are ranks 0, 1 of one job" in err
    assert "2 ranks" in out
    _, out, err = trace("--compare", *files)
    assert "before" in out
    assert err == ""


def test_files_without_ranks_are_numbered_where_it_is_asked_for(trace, tmp_path):
    files = [write(tmp_path / name) for name in ("a.json", "b.json")]
    _, out, err = trace("--ranks", "--json", "-", *files)
    assert "numbered from 0 in the order given" in err
    assert [device["rank"] for device in json.loads(out)["devices"]] == [0, 1]


def test_a_folder_stands_for_its_traces(trace, tmp_path):
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json.gz", rank=rank, world_size=3)
    (tmp_path / "run.json").write_text('{"schema": "dynotune.run/1"}')
    code, out, _ = trace("--json", "-", tmp_path)
    assert code == 0
    assert len(json.loads(out)["files"]) == 3


def test_names_in_a_trace_are_printed_as_they_are_and_steer_no_terminal(trace, tmp_path):
    _, out, _ = trace(write(tmp_path / "a.json", operator="[red]\x1b[31m\x07evil"))
    assert "[red]\\x1b[31m\\x07evil" in out
    assert not {c for c in out if not c.isprintable()} - {"\n"}


def test_a_file_whose_name_is_no_text_is_explained_too(trace, tmp_path):
    path = write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")))
    code, out, _ = trace(path)
    assert code == 0
    assert "\\xff.json" in out
    code, out, _ = trace("--json", "-", path)
    assert code == 0
    assert json.loads(out)["files"][0].endswith("\\xff.json")


def test_help_does_not_import_what_reading_needs():
    program = """
import sys
from dynotune.cli import main
try:
    main(["trace", "--help"])
except SystemExit:
    pass
heavy = {"torch", "numpy", "scipy", "pynvml", "dynotune.trace", "dynotune.measure", "dynotune.launch"}
sys.exit(" ".join(heavy & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("not.json", b"this is no JSON"),
        ("empty.json", b""),
        ("other.json", b'{"schema": "dynotune.run/1"}'),
        ("list.json", b"[1, 2, 3]"),
        ("nothing.json", b'{"schemaVersion": 1, "traceEvents": []}'),
        ("future.json", b'{"schemaVersion": 99, "traceEvents": []}'),
        ("damaged.json.gz", b"\x1f\x8b\x08\x00damaged"),
        ("photo.json", b"\x89PNG\r\n\x1a\n\x00\x00"),
        ("database.sqlite", b"SQLite format 3\0" + b"\0" * 100),
        ("snapshot.pickle", b"\x80\x04damaged"),
        ("model.pickle", pickle.dumps({"weights": [1.0]})),
    ],
)
def test_a_file_that_is_no_trace_is_a_usage_error_that_names_it(trace, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = trace(path)
    assert (code, out) == (2, "")
    assert str(path) in err
    assert "mistake" not in err


def test_a_compressed_file_beyond_the_limit_is_refused(trace, tmp_path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20)))
    code, _, err = trace("--max-size", "1M", path)
    assert code == 2
    assert str(path) in err
    assert "--max-size" in err


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_pickle_made_to_harm_executes_nothing(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(Evil()))
    assert trace(tmp_path / "evil.pickle")[0] == 2
    assert not (tmp_path / "executed").exists()


def test_a_memory_snapshot_is_sent_to_where_it_is_explained(trace, tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": []}))
    code, _, err = trace(path, write(tmp_path / "a.json"))
    assert code == 2
    assert "is a snapshot of memory, not a trace" in err
    assert "dynotune memory" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "There is no trace to read"),
        (("--",), "There is no command after --"),
        (("a.json", "--", "python"), "a.json and a command were both given"),
        (("--compare", "--ranks", "a.json"), "exclude each other"),
        (("--compare", "--", "python"), "need trace files"),
        (("--stacks", "a.json"), "--stacks needs a command to record"),
        (("--no-sandbox", "a.json"), "--sandbox needs a command to record"),
        (("--max-size", "much", "a.json"), "--max-size much is not a size"),
        (("--json", "/nowhere/at/all.json", "a.json"), "Cannot write /nowhere/at/all.json"),
        (("absent.json",), "There is no file absent.json"),
        (("--set", "nonsense=1", "--", "python"), "nonsense"),
    ],
)
def test_trace_refuses_options_that_do_not_go_together(trace, words, said):
    code, out, err = trace(*words)
    assert (code, out) == (2, "")
    assert said in err


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    """In place of the recorder: takes requests, and gives the traces of two ranks."""
    from dynotune.measure.live import recording
    from dynotune.schema.run import Run

    requests = []

    def record(request, watcher):
        requests.append(request)
        watcher.say("It will take a while.")
        run = Run(id="1", purpose="trace", command=request.run.command, cwd="", settings=[], started_s=0.0)
        traces = [write(tmp_path / f"rank{rank}.json", rank=rank) for rank in range(2)]
        return recording.Recording(
            folder=tmp_path, traces=traces, run=run, notes=["The steps were not steady."]
        )

    monkeypatch.setattr("dynotune.measure.live.record", record)
    return requests


def test_a_command_is_recorded_as_asked_and_explained_with_what_to_be_wary_of(trace, recorder, tmp_path):
    options = ("--steps", "5", "--stacks", "--set", "env.A=1", "--timeout", "90s", "--no-sandbox")
    options += ("--run-dir", str(tmp_path))
    code, out, err = trace(*options, "--", "python", "train.py", "--stacks")
    assert code == 0, err
    (request,) = recorder
    run = request.run
    assert run.command == ["python", "train.py", "--stacks"]
    assert (request.num_steps, request.stacks, request.shapes, run.timeout_s) == (5, True, False, 90)
    assert [str(setting) for setting in run.settings] == ["env.A=1"]
    assert not run.sandbox
    assert run.base == tmp_path
    assert "It will take a while." in err
    assert f"Recorded into {tmp_path}" in err
    assert "2 ranks" in out
    assert "note: The steps were not steady." in out


def test_a_command_that_trains_is_recorded_and_explained(user):
    user.write(
        "train.py",
        """
import torch
net = torch.nn.Linear(8, 8)
for _ in range(100_000):
    net(torch.randn(4, 8)).sum().backward()
    net.zero_grad()
""",
    )
    done = user.types(
        *("trace", "--json", "-", "--warmup", "5", "--steps", "3", "--no-lock", "--run-dir", str(user.runs)),
        *("--", sys.executable, "train.py"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["num_steps"] == 3
    assert document["shares"] is None
    assert any(operator["name"] == "aten::addmm" for operator in document["operators"])
