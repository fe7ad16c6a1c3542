"""What it costs to read a recorded trace: dynotune, HolisticTraceAnalysis, and the decoding alone, side by
side.

    python benchmarks/trace_reading.py [FOLDER] [--hta VENV] [--large-bytes 400e6] [--repeats 5] [--out FILE]

On each trace in FOLDER and on a large one that is made of the longest of them, its steps repeated with fresh
ids. Each measurement is a process of its own; the arms of one file take turns, in random order:

- `dynotune`: all timelines and all facts;
- `hta`: HolisticTraceAnalysis 0.5.0, construction and the breakdowns of time, idle time and kernels;
- `json`: gzip and json of the standard library alone;
- `msgspec`: gzip and msgspec alone, into the types that dynotune decodes into, in one piece, collector off;
- `interpreter`: nothing; its memory is in that of the others, and is not subtracted.

`work_s` leaves out the imports, `wall_s` is the life of the process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from lab.provenance import RESULTS, describe, without_places

HTA = "HolisticTraceAnalysis==0.5.0"
DEADLINE_S = 1800
_IDS = ("correlation", "External id", "Ev Idx", "Profiler Event Index", "Python id", "Python parent id")

_AROUND = """
import json, resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
{imports}
started_s = time.perf_counter()
{work}
work_s = time.perf_counter() - started_s
# A process's own ru_maxrss begins with that of the process which started it.
own_kib = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
peak_kib = max(own_kib, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print("TOLD", json.dumps({{"work_s": work_s, "peak_bytes": 1024 * peak_kib}}))
"""
_IMPORTS_AND_WORK = {
    "interpreter": ("", ""),
    "dynotune": (
        """
from dynotune.trace.readers.reading import read_traces
from dynotune.trace.summary import summarise
""",
        "summarise(read_traces([path]))",
    ),
    "msgspec": (
        """
import gc, gzip, msgspec
from dynotune.trace.readers.chrome_events import Event
decoder = msgspec.json.Decoder(msgspec.defstruct("Document", [("traceEvents", list[Event])]))
gc.disable()
""",
        """
with gzip.open(path) as file:
    document = decoder.decode(file.read())
""",
    ),
    "json": (
        "import gzip, json",
        """
with gzip.open(path) as file:
    document = json.load(file)
""",
    ),
    "hta": (
        (
            "import logging; logging.disable(); from hta.trace_analysis import TraceAnalysis; rank = "
            "int(sys.argv[2])"
        ),
        """
analysis = TraceAnalysis(trace_files={rank: str(path)})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
""",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    traces = Path(__file__).resolve().parents[1].parent / "shared" / "traces"
    parser.add_argument("folder", type=Path, nargs="?", default=traces, help="of .json.gz files")
    parser.add_argument("--hta", type=Path, metavar="VENV", help=f"with {HTA} in it; made if it is not given")
    parser.add_argument(
        "--large-bytes", type=float, default=400e6, help="of the large trace, unpacked; 0 for none"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--large-repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "trace_reading.json")
    args = parser.parse_args()
    paths = sorted(args.folder.resolve().glob("*.json.gz"))
    if not paths:
        parser.error(f"no .json.gz in {args.folder}")
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        hta = args.hta or make_hta(Path(temporary) / "hta")
        rows = []
        for path in paths:
            rows.append(measure(path, hta, args.repeats, chance))
            print_row(rows[-1])
        if args.large_bytes:
            longest = max(paths, key=unpacked_bytes)
            large = Path(temporary) / f"large-{longest.name}"
            repeat_steps(longest, large, int(args.large_bytes))
            rows.append({**measure(large, hta, args.large_repeats, chance), "made_of": longest.name})
            print_row(rows[-1])
    result = {**describe(), "hta": HTA, "rows": rows}
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(without_places(json.dumps(result, indent=1)) + "\n")


def make_hta(folder: Path) -> Path:
    """A virtual environment with HolisticTraceAnalysis, from the registry."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", HTA], check=True)
    return folder


def measure(path: Path, hta: Path, repeats: int, chance: random.Random) -> dict[str, Any]:
    """Medians of each arm on one file, every value kept."""
    rank = str((events_of(path)[0].get("distributedInfo") or {}).get("rank", 0))
    arms: dict[str, dict[str, Any]] = {name: {} for name in _IMPORTS_AND_WORK}
    for _ in range(repeats):
        for name in chance.sample(sorted(arms), len(arms)):
            if "failed" in arms[name]:
                continue
            python = str(hta / "bin" / "python") if name == "hta" else sys.executable
            found = run(python, name, path, rank)
            if "failed" in found:
                arms[name] = found
                continue
            for key, value in found.items():
                arms[name].setdefault(f"all_{key}", []).append(value)
    for arm in arms.values():
        for key in [key for key in arm if key.startswith("all_")]:
            arm[key.removeprefix("all_")] = median(arm[key])
    unpacked = unpacked_bytes(path)
    return {
        "file": path.name,
        "num_bytes": path.stat().st_size,
        "unpacked_bytes": unpacked,
        "arms": arms,
    } | ratios(arms, unpacked)


def run(python: str, name: str, path: Path, rank: str) -> dict[str, Any]:
    """One measurement: seconds and bytes, or why there is none."""
    imports, work = _IMPORTS_AND_WORK[name]
    command = [python, "-c", _AROUND.format(imports=imports, work=work), str(path), rank]
    started_s = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    wall_s = time.perf_counter() - started_s
    told = [line.removeprefix("TOLD ") for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    if done.returncode or not told:
        return {"failed": (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    return {"wall_s": wall_s, **json.loads(told[-1])}


def ratios(arms: dict[str, dict[str, Any]], unpacked: int) -> dict[str, float | None]:
    """What is claimed: how much faster than HTA, how much dearer than decoding, and memory by the text's
    size."""

    def over(one: str, other: str, key: str = "work_s") -> float | None:
        return arms[one][key] / arms[other][key] if key in arms[one] and key in arms[other] else None

    ours = arms["dynotune"]
    return {
        "hta_over_dynotune": over("hta", "dynotune"),
        "hta_over_dynotune_with_imports": over("hta", "dynotune", "wall_s"),
        "dynotune_over_msgspec": over("dynotune", "msgspec"),
        "peak_over_unpacked": ours["peak_bytes"] / unpacked if "peak_bytes" in ours else None,
    }


def print_row(row: dict[str, Any]) -> None:
    print(f"{row['file']}: {row['unpacked_bytes'] / 1e6:.1f} MB unpacked")
    for name, arm in row["arms"].items():
        if "failed" in arm:
            print(f"  {name:12} failed: {arm['failed'][:90]}")
        else:
            print(
                f"  {name:12} {arm['work_s']:9.4f} s {arm['wall_s']:9.4f} s wall "
                f"{arm['peak_bytes'] / 2**20:8.1f} MiB"
            )
    for name in (
        "hta_over_dynotune",
        "hta_over_dynotune_with_imports",
        "dynotune_over_msgspec",
        "peak_over_unpacked",
    ):
        print(f"  {name:31} {'-' if row[name] is None else format(row[name], '.2f')}", flush=True)


# The large trace


def events_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document without its events, and these."""
    with gzip.open(path) as file:
        document = json.load(file)
    return document, document.pop("traceEvents")


def unpacked_bytes(path: Path) -> int:
    with gzip.open(path) as file:
        return sum(len(chunk) for chunk in iter(lambda: file.read(1 << 20), b""))


def repeat_steps(source: Path, target: Path, num_bytes: int) -> None:
    """A trace of at least `num_bytes`: that of `source` again and again, later each time, with fresh ids and
    steps."""
    document, events = events_of(source)
    head = json.dumps(document, indent=2).removesuffix("\n}")
    with target.open("wb") as packed, gzip.open(packed, "wb", compresslevel=6) as file:
        size = file.write(f'{head},\n  "traceEvents": [\n'.encode())
        separator = b""
        for text in repeated(events):
            if size >= num_bytes:
                break
            size += file.write(separator + text)
            separator = b",\n"
        file.write(b"\n  ]\n}\n")


def repeated(events: list[dict[str, Any]]) -> Iterator[bytes]:
    """The text of all events of one repetition after the other, without end."""
    timed = [event for event in events if event["ph"] in "Xisft" and isinstance(event["pid"], int)]
    start = min(event["ts"] for event in timed)
    period = max(event["ts"] + event.get("dur", 0) for event in timed) - start + 100
    largest_id = max(event.get("args", {}).get(key) or 0 for event in timed for key in _IDS)
    num_steps = sum(event["name"].startswith("ProfilerStep#") for event in timed)
    yield ",\n".join(json.dumps(event) for event in events if event["ph"] == "M").encode()
    for number in count():
        yield ",\n".join(
            json.dumps(later(event, number, period, largest_id, num_steps)) for event in timed
        ).encode()


def later(
    event: dict[str, Any], number: int, period: float, largest_id: int, num_steps: int
) -> dict[str, Any]:
    """The event, `number` periods later."""
    event = {**event, "ts": round(event["ts"] + number * period, 3)}
    if event["name"].startswith("ProfilerStep#"):
        event["name"] = (
            f"ProfilerStep#{int(event['name'].removeprefix('ProfilerStep#')) + number * num_steps}"
        )
    if isinstance(event.get("id"), int):
        event["id"] += number * largest_id
    if args := event.get("args"):
        fresh = {key: args[key] + number * largest_id for key in _IDS if isinstance(args.get(key), int)}
        event["args"] = args | fresh
    return event


if __name__ == "__main__":
    main()
