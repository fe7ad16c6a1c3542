"""How long `dynotune startup scan` takes, what it says of whole installations, and whether cuobjdump says the
same.

    python benchmarks/scan.py FOLDER… [--compute-capability 9.0] [--rounds 5] [--cuobjdump] [--out FILE]

Folders as wheels unpack into. A round is a process of its own, once with the files' pages in memory and once
after they were dropped. `--cuobjdump` compares every entry of every library with what cuobjdump lists (it has
to be on PATH), by the check of the tests; that takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab.cuobjdump import assert_agrees
from lab.provenance import RESULTS, describe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--compute-capability", default="9.0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cuobjdump", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "scan.json")
    args = parser.parse_args()
    times: dict[str, list[float]] = {"pages in memory": [], "pages dropped": []}
    files = sorted(
        {path.resolve() for folder in args.folders for path in folder.rglob("*") if path.is_file()}
    )
    for _ in range(args.rounds):
        drop_pages(files)
        times["pages dropped"].append(scanned(args.folders, args.compute_capability)[0])
        times["pages in memory"].append(scanned(args.folders, args.compute_capability)[0])
    found = scanned(args.folders, args.compute_capability)[1]
    result: dict[str, Any] = {
        **describe(),
        # Their places say nothing; what they are is in the libraries' names.
        "command": f"python benchmarks/scan.py FOLDERS --compute-capability {args.compute_capability}"
        + " --cuobjdump" * args.cuobjdump,
        "num_files": len(files),
        "size_bytes": sum(path.stat().st_size for path in files),
        "seconds": times,
        "libraries": [row(library, args.folders) for library in found["libraries"]],
        "problems": len(found["problems"]),
    }
    if args.cuobjdump:
        # cuobjdump reads no PTX that is a text file of its own.
        paths = [Path(library["path"]) for library in found["libraries"]]
        result["cuobjdump"] = agreement([path for path in paths if path.suffix != ".ptx"])
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


def drop_pages(files: list[Path]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not on disk yet stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def scanned(folders: list[Path], capability: str) -> tuple[float, dict[str, Any]]:
    """Seconds from the start of the process to its end, and what it said."""
    words = ["startup", "scan", *map(str, folders), "--compute-capability", capability, "--json", "-"]
    begin_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "dynotune", *words], capture_output=True, check=True)
    return time.perf_counter() - begin_s, json.loads(done.stdout)


def row(library: dict[str, Any], folders: list[Path]) -> dict[str, Any]:
    path = Path(library["path"])
    base = next((folder for folder in map(Path.resolve, folders) if path.is_relative_to(folder)), path.parent)
    return {
        "path": str(path.relative_to(base)),
        "num_containers": library["num_containers"],
        **library["verdicts"][0],
    }


def agreement(libraries: list[Path]) -> dict[str, Any]:
    counts = {"num_libraries": len(libraries), "num_agree": 0, "num_entries": 0}
    cut, differ = [], []
    for path in libraries:
        try:
            num_entries, whole = assert_agrees(path)
        except AssertionError as error:
            differ.append(f"{path.name}: {str(error).splitlines()[0]}")
            continue
        if whole:
            counts["num_agree"] += 1
            counts["num_entries"] += num_entries
        else:
            cut.append(path.name)
    return {**counts, "cuobjdump_stops": cut, "differ": differ}


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['num_files']:,} files, {result['size_bytes'] / 1e9:.1f} GB, {len(result['libraries'])} "
        "libraries"
    )
    for name, seconds in result["seconds"].items():
        print(f"{name:16} {statistics.median(seconds):.2f} s")
    for library in sorted(result["libraries"], key=lambda one: -one["num_containers"])[:5]:
        print(
            f"{library['path']:60} {library['verdict']:8} {library['num_cannot']} of "
            f"{library['num_containers']} cannot"
        )
    if "cuobjdump" in result:
        print(result["cuobjdump"])


if __name__ == "__main__":
    main()
