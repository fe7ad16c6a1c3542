"""Every reader of files that may come from elsewhere, with small valid files that it reads.

`read` does what the command line does with such a file: read it, think about it, show it. It may end with an
error that says what is wrong with the file (exit code 2 or 3), and in no other way.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from dynotune import api, memory
from dynotune.agent.core.writer import Writer
from dynotune.agent.tasks.queue import TaskQueue
from dynotune.cli import main
from dynotune.diagnose.attribute import attribute
from dynotune.diagnose.conclusions import conclude
from dynotune.launch.caches import pack as packing
from dynotune.launch.caches import unpack as unpacking
from dynotune.launch.caches.contents import Place
from dynotune.launch.records.batch_costs import with_loading
from dynotune.launch.records.process_state import failed_parts, state_of_process
from dynotune.launch.records.process_summary import read_back, summarise
from dynotune.launch.records.reader import Records
from dynotune.measure.checks import guard
from dynotune.measure.startup import phases
from dynotune.probe.sources.samples import Sample, SamplesFile, read_samples
from dynotune.recipes import checking
from dynotune.schema import document
from dynotune.schema import recipe as recipes
from dynotune.schema.cache_pack import Conditions
from dynotune.schema.diagnosis import Examination, Finding, MemoryAccount
from dynotune.schema.errors import from_elsewhere
from dynotune.schema.facts import Unknown
from dynotune.schema.recipe import Header, Proof, Recipe
from dynotune.schema.startup import PHASES, Ratio, Start, StartBlock, Startup
from dynotune.schema.task import SwitchArms, TaskFile, TimeWindow
from dynotune.trace import difference
from dynotune.trace import summarise as summarise_trace
from dynotune.trace.snapshot import load_snapshot

from ..diagnose.simulated import MS, SYNC, US, kernels, load, recorded, timed
from ..doctor.observations import observed
from ..fakes import of_run
from ..report import studies, summaries
from ..trace import chrome
from ..trace.nsys_made import DEVICE, HTOD, PINNED, NsysMade, global_id
from ..trace.snapshot_made import SnapshotMade, stack
from . import answer_documents, mutations, pack_mutations, pickle_mutations

Mutate = Callable[[Random, bytes, Path], bytes]


@dataclass(frozen=True, slots=True)
class Reader:
    """One kind of file.

    Args:
        seeds: writes valid files into a folder, named as such files are.
        read: as a user's command would; raises what that would.
        mutate: changes the content of one; may put files into the folder that it is given.
    """

    name: str
    seeds: Callable[[Path], None]
    read: Callable[[Path], None]
    mutate: Mutate


def plainly(change: mutations.Change) -> Mutate:
    return lambda random, content, folder: change(random, content)


def dynotune(*words: str | Path) -> str:
    """What `dynotune WORDS` prints; raises what would end it with another exit code than 0."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        try:
            main([*map(str, words), "--debug"])
        except SystemExit as ended:
            assert ended.code == 0, f"exit code {ended.code}"
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    assert (out + err).replace("\n", "").isprintable()
    return out


# Traces


def _traces(folder: Path) -> None:
    events = [
        chrome.named("process_name", "python rank 0", pid=1),
        chrome.named("thread_name", "main", pid=1, tid=1),
    ]
    for step in range(4):
        ts = 1000.0 * step
        events += [
            chrome.span("user_annotation", f"ProfilerStep#{step}", ts, 950.0),
            chrome.span(
                "cpu_op", "aten::mm", ts + 10, 40, **{"Input Dims": [[64, 64], [64, 64]], "External id": step}
            ),
            chrome.span("python_function", "train.py(12): step", ts + 5, 600),
            chrome.call(ts + 20, 10, 10 * step + 1),
            chrome.kernel(ts + 60, 200, 10 * step + 1, name="ampere_sgemm_128x64_tn"),
            chrome.call(ts + 70, 30, 10 * step + 2, name="cudaMemcpyAsync"),
            chrome.span(
                "gpu_memcpy",
                "Memcpy HtoD (Pageable -> Device)",
                ts + 300,
                50,
                pid=0,
                tid=7,
                device=0,
                stream=7,
                correlation=10 * step + 2,
                bytes=4096,
            ),
            chrome.call(ts + 400, 300, 10 * step + 3, name="cudaStreamSynchronize"),
            chrome.flow("s", ts + 20, 10 * step + 1),
            chrome.flow("f", ts + 60, 10 * step + 1, pid=0, tid=7),
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": ts + 30,
                "s": "t",
                "args": {"Total Allocated": 4096, "Total Reserved": 8192, "Device Type": 1, "Device Id": 0},
            },
        ]
    device = {
        "id": 0,
        "name": "NVIDIA H100",
        "totalGlobalMem": 80 << 30,
        "computeMajor": 9,
        "computeMinor": 0,
    }
    beside = {
        "deviceProperties": [device],
        "distributedInfo": {"rank": 0, "world_size": 2},
        "baseTimeNanoseconds": 1,
    }
    chrome.write(folder / "trace.json", events, **beside)
    chrome.write(
        folder / "bare.json", [event for event in events if event.get("cat") not in ("kernel", "ac2g")]
    )


def _zipped_traces(folder: Path) -> None:
    _traces(folder)
    for path in list(folder.iterdir()):
        mutations_of = path.read_bytes()
        path.unlink()
        chrome.write(folder / f"{path.name}.gz", json.loads(mutations_of)["traceEvents"])


def _nsys(folder: Path) -> None:
    made = NsysMade().gpu(0, "NVIDIA H100")
    made.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.28.1")
    made.row("ThreadNames", nameId=made.string("main"), priority=0, globalTid=global_id(10, 11))
    for step in range(3):
        at, number = 10_000 * step, 10 * step
        made.range("step", at, at + 9000)
        made.call("cudaLaunchKernel_v7000", at + 100, at + 200, correlation=number + 1)
        made.kernel("ampere_sgemm_128x64_tn", at + 400, at + 2400, correlation=number + 1, pid=10)
        made.call("cudaMemcpyAsync_v3020", at + 500, at + 600, correlation=number + 2)
        made.copy(HTOD, PINNED, DEVICE, at + 2500, at + 2700, correlation=number + 2, pid=10)
        made.call("cudaStreamSynchronize_v3020", at + 700, at + 3000, correlation=number + 3)
        made.sync(1, at + 700, at + 3000, correlation=number + 3, pid=10)
    made.write(folder / "report.sqlite")
    for pid in (10, 20):
        made.call("cudaGraphLaunch_v10000", 40_000, 40_100, correlation=90 + pid, pid=pid, tid=pid + 1)
        made.graph(1, 40_200, 44_000, correlation=90 + pid, pid=pid)
        made.set(44_100, 44_200, correlation=90 + pid, pid=pid)
        made.row("MPI_RANKS", pid, globalTid=global_id(pid, pid + 1), rank=pid // 10 - 1)
    made.write(folder / "ranks.sqlite")
    # As an export has it where only the device was traced.
    alone = NsysMade([row for row in made.rows if "RUNTIME" not in row[0]], made.strings)
    alone.write(folder / "device.sqlite")


def _read_trace(path: Path) -> None:
    dynotune("trace", path, "--json", path.with_name("told.json"))
    dynotune("report", path.with_name("told.json"))


# Snapshots


def _snapshots(folder: Path) -> None:
    made = SnapshotMade()
    held = [made.alloc(1 << 20, stack("model.py(3): forward", "train.py(9): step")) for _ in range(3)]
    made.free(held[1])
    made.alloc(21 << 20, stack("train.py(12): backward"), flushing=True)
    made.empty_cache(stack("torch/cuda/memory.py(200): empty_cache", "train.py(30): main"))
    made.write(folder / "snapshot.pickle")
    (folder / "segments.pkl").write_bytes(pickle.dumps(made.data()["segments"]))


def _read_snapshot(path: Path) -> None:
    try:
        dynotune("memory", path, "--json", path.with_name("told.json"))
        dynotune("report", path.with_name("told.json"))
    finally:
        assert not (path.parent / "ran").exists(), "an instruction of the pickle ran"
    with from_elsewhere(path):
        for lives in load_snapshot(path, limit_bytes=1 << 26).values():
            lives.room(lives.peak())


# Recipes and packs


def _recipes(folder: Path) -> None:
    settings = {"loader.num_workers": 4, "env.OMP_NUM_THREADS": "4", "compile.mode": "default"}
    proof = [Proof(knob, 1.2, (1.1, 1.3), 6, "exact", "ablation", value) for knob, value in settings.items()]
    command = ["python", "train.py", os.fsdecode(b"caf\xe9")]
    head = Header(recipes.SCHEMA, "2026-01-12T09:15:00Z", command, speedup=1.4, ci=(1.3, 1.5), num_pairs=8)
    facts = {"gpu": "NVIDIA H200", "gpu_count": 1, "shm_bytes": 1 << 30, "torch": "2.13.0"}
    recipes.write(folder / "recipe.toml", Recipe(head, settings, proof, facts))
    (folder / "by-hand.toml").write_text(
        f'[recipe]\nschema = "{recipes.SCHEMA}"\n[settings]\nloader.num_workers = 2\n'
    )


def _read_recipe(path: Path) -> None:
    dynotune("recipe", "show", path, "--json", path.with_name("told.json"))
    found = recipes.read(path)
    checking.unproved(found)
    checking.differences(found, {"gpu.count": 1}, ["python", "train.py"])
    for name in ("shell", "docker", "kubernetes"):
        dynotune("recipe", "export", path, "--format", name, "--output", path.with_name("out"))
    recipes.write(path.with_name("again.toml"), found)


def _packs(folder: Path) -> None:
    files = folder / "files"
    (files / "inductor" / "ab").mkdir(parents=True)
    (files / "inductor" / "ab" / "kernel.py").write_bytes(b"x = 1\n" * 20)
    (files / "inductor" / "fxgraph").write_bytes(bytes(100))
    known = Conditions(
        gpus=[],
        driver="1",
        cuda="13.0",
        torch="2.11.0",
        triton="3",
        python="3.12",
        platform="Linux x86_64",
        cpu="c",
        cpu_flags=["avx"],
        compiler="g++",
        torch_folder="/t",
        python_include="/i",
    )
    packing.pack(folder / "caches.pack", [Place("inductor", files / "inductor")], known, env={})
    for path in sorted(files.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    files.rmdir()


def _read_pack(path: Path) -> None:
    """Unpack it into a cache in which somebody has put a link, and see that nothing got out."""
    inside, elsewhere = path.parent / "unpacked", path.parent / "elsewhere"
    elsewhere.mkdir()
    for name in ("inductor", "triton"):
        (inside / name).mkdir(parents=True)
        (inside / name / "link").symlink_to(elsewhere)
    places = [Place(name, inside / name) for name in ("inductor", "triton")]
    try:
        with unpacking.opened(path) as stream:
            unpacking.read_manifest(stream, str(path))
            unpacking.unpack(stream, str(path), places, most_bytes=1 << 20)
    finally:
        nothing_got_out(path, inside, elsewhere)


def nothing_got_out(path: Path, inside: Path, elsewhere: Path) -> None:
    """Raise AssertionError: a pack has put something elsewhere, or what is no plain file."""
    assert {found.name for found in path.parent.iterdir()} == {path.name, inside.name, elsewhere.name}
    assert list(elsewhere.iterdir()) == [], "something was written through a link"
    for found in inside.rglob("*"):
        mode = found.lstat().st_mode
        assert stat.S_ISDIR(mode) or found.name == "link" or (stat.S_ISREG(mode) and not mode & 0o7111), found


# Documents


def _documents(folder: Path) -> None:
    acts = [load(20 * MS), *kernels(100, 20 * US, 100 * US), SYNC]
    plain, trace = timed(acts), summarise_trace([recorded(acts, slower=2)])
    seen = observed(
        attributed=attribute(plain, trace), trace=trace, timed=plain, facts={"gpu.name": Unknown("x")}
    )
    found = Finding(
        id="loader-workers", severity="high", claim="c", share=0.2, commands=["sudo x"], remedy="r"
    )
    made = SnapshotMade()
    made.alloc(1 << 20, stack("train.py(9): step"))
    devices = load_snapshot(made.write(folder / "s.pickle"), limit_bytes=1 << 20)
    starts = [
        Start(
            arm=arm, run=arm, value_s=2.0, phases=dict.fromkeys(PHASES, 0.1), added=[], held={"inductor": 5}
        )
        for arm in ("warm", "cold", "off")
    ]
    ratio = Ratio(
        arm="cold", verdict="faster", ratio=4.0, ci=(3.9, 4.1), num_blocks=4, median_s=20.0, saved_s=15.0
    )
    startup = of_run(
        Startup, id="s", command=["python"], step="x", blocks=[StartBlock(starts)], ratios=[ratio]
    )
    for name, content in {
        "study": studies.rich(),
        "unfinished-study": studies.unfinished(),
        "comparison": studies.rich().confirmed,
        "observation": seen,
        "diagnosis": conclude(seen),
        "trace": summaries.summary(),
        "ranks": summaries.of_ranks(2),
        "trace_difference": difference(summaries.summary(), summaries.summary()),
        "memory": MemoryAccount(file="s.pickle", ranks=[memory.of_snapshot(one) for one in devices.values()]),
        "examination": Examination(facts={}, findings=[found], unknown=[]),
        "startup": startup,
        "account": answer_documents.account(),
        "bisection": answer_documents.bisection(),
        "largest": answer_documents.largest(),
        "precision": answer_documents.precision(),
    }.items():
        document.write(folder / f"{name}.json", content)
    (folder / "s.pickle").unlink()


def _read_document(path: Path) -> None:
    if api.noun_of(path) == "observation":
        dynotune("diagnose", "--replay", path)
    dynotune("report", path, "--json", path.with_name("told.json"))


def _samples(folder: Path) -> None:
    file = SamplesFile(folder / "samples.jsonl")
    with closing(file):
        for number in range(3):
            unknown = {name: Unknown("x") for name in ("cores", "tree", "quota")}
            file.append(Sample(time_s=1.0 * number, own_cpu_s=0.1, **unknown))


# What the agent writes, and what it reads


def _records(folder: Path) -> None:
    writer = Writer(str(folder))
    for event in _EVENTS:
        writer.event(**event)
    for number in range(12):
        writer.step(11.0 + 0.1 * number, 0.01, 8, 4 * (number == 6))
    window = {
        "first_step": 2,
        "num_steps": 10,
        "begin_s": 11.1,
        "end_s": 12.1,
        "num_samples": 80,
        "wait_s": 0.1,
    }
    writer.event(event="window", task=1, done_s=12.2, world_size=1, **window)
    traced = {"file": "t.json", "first_step": 3, "num_steps": 2, "step_s": [0.1, 0.1], "kind": "trace"}
    writer.event(event="trace", task=2, done_s=12.3, begin_s=11.3, end_s=11.5, **traced)
    writer.event(event="exit", num_events=9)
    for path in folder.glob("*.rec"):
        # Of process 1, as its loader's events say.
        content = bytearray(path.read_bytes()[:8192])
        content[12:16] = (1).to_bytes(4, "little")
        path.unlink()
        (folder / "process-1-0.rec").write_bytes(content)


_LOADER = {"name": "L", "dataset": "d", "num_workers": 2, "collate": "c", "num_items": 10, "pin_memory": True}
_PARTS = {
    "live": {"a": 1},
    "loaders": [_LOADER],
    "models": [],
    "optimizers": [],
    "allocators": [],
    "peak_rss_bytes": 1 << 20,
}
_EVENTS: list[dict[str, Any]] = [
    {
        "event": "process",
        "argv": ["python", "a.py"],
        "executable": "/python",
        "python": "3.12.0",
        "rank": None,
    },
    {"event": "torch", "version": "2.13.0", "time_s": 2.0},
    {"event": "span", "phase": "torch_import", "begin_s": 1.0, "end_s": 2.0, "name": "torch"},
    {"event": "compiled", "num_graphs": 1, "counts": {"a": 1}},
    {
        "event": "cycle",
        "parts": [{"kind": "draw", "name": "Loader", "num": 2}],
        "num_parts": 1,
        "kinds": ["draw", "step"],
        "begin_s": 10.9,
        "num_steps": 3,
        "rank": 0,
        "world_size": 1,
    },
    {"event": "memory", "peak_rss_bytes": 1 << 20, "peak_device_bytes": None},
    {
        "event": "readback",
        "settings": [{"knob": "env.A", "asked": "1", "found": "1", "witness": "w", "ok": True}],
    },
    {
        "event": "environment",
        "name": "A",
        "value": "1",
        "file": "f",
        "line": 3,
        "function": "f",
        "kept": False,
    },
    {"event": "error", "where": "steps", "error": "ValueError: x"},
    {"event": "state", "failed": {"compilation": "x"}, **_PARTS},
    {
        "event": "fetching",
        "at_s": 11.5,
        "begin_s": 10.0,
        "drawn_by": 1,
        "worker": 0,
        "num_workers": 2,
        "num": 9,
        "fetch_s": 0.5,
        "collate_s": 0.1,
        "decode_s": 0.1,
        "cpu_s": 0.4,
        "longest_s": 0.1,
        "decoders": ["PIL"],
        "private_bytes": 1 << 20,
        "dataset": "d",
        "collate": "c",
        "num_items": 10,
        "items_at": "a.py(1): f",
        "collate_at": "a.py(2): g",
        "num_objects": 4,
    },
    {"event": "pinning", "at_s": 11.5, "num": 4, "pin_s": 0.01},
]


def _read_record(path: Path) -> None:
    records = Records(path.parent).update()
    processes = [summarise(record, 1.0) for record in records]
    read_back(processes)
    document.encode(processes)
    for record in records:
        failed_parts(record)
        phases.phases(record, 1.0, 13.0)
        phases.imports(record)
        phases.compiled(record)
        state = state_of_process(record, 1.0)
        loaders = [] if isinstance(state.loaders, Unknown) else state.loaders
        document.encode([state, with_loading(loaders, record.pid, records, 11.0, 13.0)])
    guard.readings(records)


def _tasks(folder: Path) -> None:
    document.write(folder / "task-001.json", TaskFile(task=TimeWindow(num_steps=10)))
    document.write(
        folder / "task-002.json", TaskFile(task=SwitchArms(arms=[[]], num_blocks=2, stretch_steps=5))
    )


def _read_task(path: Path) -> None:
    path = path.rename(path.with_name("task-001.json"))
    said: list[dict[str, Any]] = []
    program = SimpleNamespace(
        folder=str(path.parent), event=said.append, log=lambda where, error: None, steps=None
    )
    queue = TaskQueue(program, [], live=False)
    queue._made(queue._read(1))
    assert all(event["reason"] for event in said if event["event"] == "given_up")


READERS = (
    Reader("trace", _traces, _read_trace, plainly(mutations.of_json)),
    Reader("gzipped trace", _zipped_traces, _read_trace, plainly(mutations.of_gzip)),
    Reader("Nsight database", _nsys, _read_trace, mutations.of_sqlite),
    Reader("snapshot", _snapshots, _read_snapshot, plainly(mutations.of_pickle)),
    Reader("recipe", _recipes, _read_recipe, plainly(mutations.of_toml)),
    Reader("pack", _packs, _read_pack, plainly(mutations.raw)),
    Reader("document", _documents, _read_document, plainly(mutations.of_json)),
    Reader(
        "samples",
        _samples,
        lambda path: document.encode(read_samples(path)) and None,
        plainly(mutations.of_lines),
    ),
    Reader("record", _records, _read_record, plainly(mutations.of_record)),
    Reader("task", _tasks, _read_task, plainly(mutations.of_json)),
    Reader("hostile pack", _packs, _read_pack, pack_mutations.of_pack),
    Reader("hostile snapshot", _snapshots, _read_snapshot, pickle_mutations.of_hostile_pickle),
)
