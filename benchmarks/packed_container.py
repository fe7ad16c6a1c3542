"""Seconds to the first step of a compiled program in a fresh root: with a pack of caches, and without.

    python benchmarks/packed_container.py --device cpu [--net transformer] [--image DIR] [--turns 6]
    python benchmarks/packed_container.py --device cuda [--arms without pack] [--until-s 500]

Caches are filled and packed here. Each start then has a fresh root folder (`lab/fresh_root.py`), in which
only the system, Python and its packages are seen: another HOME, another folder of the program and of the
caches, and empty folders for temporary files. `--image` names a root folder of another system, such as one
that debootstrap made, with g++ and the libraries of this Python.

Where no root can be made (a container without the right to mount), a start has a fresh HOME, TMPDIR and
program folder instead; the result says so.

A turn is one start of each arm, in random order:

- `without`: nothing was packed.
- `pack`: `dynotune startup unpack` in that root before, as when an image is built, which is timed apart.
- `mega-cache`: the program loads what `torch.compiler.save_cache_artifacts` made here.
- `precompiled`: a pack of starts with TORCH_CACHING_PRECOMPILE=1, which also has what Dynamo found.

No arm makes inductor's precompiled headers, for which torch needs the program openssl. After the turns one
start each tells what loses the hit (`lost`), and what `unpack` says of it. A finished start is kept; a second
call goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.stats

from lab import fresh_root, result_file
from lab.fresh_root import FreshRoot
from lab.provenance import RESULTS, without_places

PROGRAMS = Path(__file__).resolve().parent / "programs"
SOURCE = Path(__file__).resolve().parents[1] / "src"
NETS = ("mlp", "resnet", "transformer")
ARMS = ("without", "pack", "mega-cache", "precompiled")
HOME, PROGRAM, CACHES = "/home/app", "/srv/app", "/opt/compile-caches"
PRECOMPILE = "TORCH_CACHING_PRECOMPILE"
WITHOUT_HEADERS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
KEPT = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CXX")
"""Variables that an image would set as well: where a driver lies, which GPU is lent, and the compiler's name,
which is in inductor's keys."""
OTHER_BATCH = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--net", choices=NETS, default="transformer")
    parser.add_argument("--image", type=Path, default=Path("/"))
    parser.add_argument("--arms", choices=ARMS, nargs="+", default=ARMS)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--until-s", type=float, default=float("inf"), help="begin no start after this time")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    work = args.work or Path(tempfile.gettempdir()) / f"dynotune-packed-{args.device}-{args.net}"
    out = args.out / f"packed_container_{args.device}.json"
    end_s = time.monotonic() + args.until_s
    bench = Bench(args.device, args.net, args.image.resolve(), args.arms, work, end_s, out)
    bench.measure(args.turns)
    print(table(result_file.read(out)))


class Bench:
    def __init__(
        self,
        device: str,
        net: str,
        image: Path,
        arms: Sequence[str],
        work: Path,
        end_s: float,
        out: Path,
    ) -> None:
        self._net, self._device, self._arms = net, device, arms
        self._image, self._work, self._end_s, self._out = image, work, end_s, out
        work.mkdir(parents=True, exist_ok=True)
        self._enters = fresh_root.can_enter() and self._has_device()

    def _has_device(self) -> bool:
        """Tell whether a program in a fresh root reaches the device: files of its driver may be missing."""
        if self._device == "cpu":
            return True
        with tempfile.TemporaryDirectory(dir=self._work) as scratch:
            place = InRoot(Path(scratch), self._image, self._work, None, ())
            program = f"import torch; torch.zeros(1, device={self._device!r}).item()"
            done = place.run([place.python, "-c", program], {})
        if done.returncode:
            print("No device in a fresh root:", done.stderr[-1000:], flush=True)
        return not done.returncode

    def measure(self, num_turns: int) -> None:
        self._make()
        with self._result() as result:
            result["root"] = (
                f"a root folder, system of {'this machine' if self._image == Path('/') else 'an image'}"
                if self._enters
                else "no root could be made: fresh HOME, TMPDIR and program folder"
            )
        for turn in range(num_turns):
            order = random.Random(turn).sample(self._arms, len(self._arms))
            for arm in order:
                self._once(f"turn {turn} {arm}", lambda arm=arm: {"arm": arm, **self._start(arm)})
        for name, more in self._losses().items():
            if more["arm"] not in self._arms:
                continue
            self._once(f"lost: {name}", lambda more=more: {"arm": "lost", **self._start(**more)})

    def _losses(self) -> dict[str, dict[str, Any]]:
        """Return, by name, arguments of `_start` for starts that do not find what they could find."""
        away = Path("/opt/venv") if self._enters else None
        found: dict[str, dict[str, Any]] = {
            "precompiled, another batch size": {"arm": "precompiled", "batch_size": OTHER_BATCH},
            "another batch size": {"arm": "pack", "batch_size": OTHER_BATCH},
            "another setting": {"arm": "pack", "env": {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}},
        }
        if away is not None:
            found["packages in another folder"] = {"arm": "pack", "away": away}
            found["no compiler"] = {"arm": "pack", "hidden": ("usr/bin/g++",)}
        return found

    def _once(self, key: str, start: Any) -> None:
        key = f"{self._net} {key}"
        if key in result_file.read(self._out).get("starts", {}) or time.monotonic() > self._end_s:
            return
        found = json.loads(without_places(json.dumps(start())).replace(str(self._work), "WORK"))
        with self._result() as result:
            result.setdefault("starts", {})[key] = found
        print(key, json.dumps(found)[:300], flush=True)

    @contextlib.contextmanager
    def _result(self) -> Iterator[dict[str, Any]]:
        with result_file.opened(self._out) as result:
            yield result

    # What is packed, made on this machine

    def _make(self) -> None:
        """Fill and pack the caches, with and without what Dynamo keeps, and save torch's own artifacts."""
        made, precompiled = self._work / "made", self._work / "precompiled"
        artifacts = self._work / "artifacts"
        if not made.exists():
            command = [sys.executable, str(PROGRAMS / "first_step.py"), *self._options()]
            options = ["--caches", str(made), "--run-dir", str(self._work / "runs"), "--no-lock"]
            dynotune("startup", "warm", *options, "--", *command)
        if "mega-cache" in self._arms and not artifacts.exists():
            self._program(made, {}, "--save", str(artifacts))
        for arm, caches in (("pack", made), ("precompiled", precompiled)):
            if arm not in self._arms:
                continue
            if arm == "precompiled" and not caches.exists():
                # torch keeps what Dynamo found when the program asks for its artifacts.
                self._program(caches, {PRECOMPILE: "1"}, "--save", str(self._work / "unused"))
            if not self._pack(arm).exists():
                options = ["--caches", str(caches), "--python", sys.executable]
                dynotune("startup", "pack", str(self._pack(arm)), *options)

    def _pack(self, arm: str) -> Path:
        return self._work / f"{arm}.pack"

    def _options(self) -> list[str]:
        return ["--net", self._net, "--device", self._device]

    def _program(self, caches: Path, env: Mapping[str, str], *options: str) -> None:
        caches.mkdir(exist_ok=True)
        variables = {
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "CUDA_CACHE_PATH": str(caches / "cuda"),
            **WITHOUT_HEADERS,
        }
        words = [sys.executable, str(PROGRAMS / "first_step.py"), *self._options(), *options]
        run(words, {**variables, **env})

    # Starts

    def _start(
        self,
        arm: str,
        *,
        env: Mapping[str, str] | None = None,
        batch_size: int | None = None,
        away: Path | None = None,
        hidden: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Start the program once in a fresh root.

        Args:
            away: folder inside at which the interpreter's environment is seen, in place of its own.
            hidden: files of the system that are covered by an empty one.
        """
        with tempfile.TemporaryDirectory(dir=self._work) as scratch:
            place = self._place(Path(scratch), away, hidden)
            found: dict[str, Any] = {}
            variables: dict[str, str] = {}
            if arm in ("pack", "precompiled"):
                began_s = time.monotonic()
                words = [
                    "startup",
                    "unpack",
                    place.given(self._pack(arm)),
                    "--trust",
                    "--force",
                    "--json",
                    "-",
                ]
                words += ["--caches", place.inside(CACHES), "--python", place.python]
                packages = os.pathsep.join(filter(None, [place.source, os.environ.get("PYTHONPATH")]))
                unpacked = place.run(
                    [place.python, "-m", "dynotune", *words], {"PYTHONPATH": packages, **(env or {})}
                )
                found["unpack_s"] = time.monotonic() - began_s
                if unpacked.returncode:
                    return {**found, "unpack_failed": unpacked.stderr[-1000:]}
                answer = json.loads(unpacked.stdout)
                variables = answer["variables"]
                found["differences"] = [[each["severity"], each["what"]] for each in answer["differences"]]
                found["notes"] = answer["notes"]
            if arm == "precompiled":
                variables = {**variables, PRECOMPILE: "1"}
            options = [*self._options(), *(["--batch-size", str(batch_size)] if batch_size else [])]
            if arm == "mega-cache":
                options += ["--load", place.given(self._work / "artifacts")]
            command = [place.python, place.inside(f"{PROGRAM}/first_step.py"), *options]
            cpu_s, began_s = children_cpu_s(), time.monotonic()
            done = place.run(command, {**WITHOUT_HEADERS, **variables, **(env or {})})
            if done.returncode:
                return {**found, "failed": done.stderr.strip().splitlines()[-8:]}
            told = json.loads(done.stdout.splitlines()[-1])
            return {
                **found,
                "first_step_s": told["stepped_s"] - began_s,
                "cpu_s": children_cpu_s() - cpu_s,
                "compile_and_step_s": told["stepped_s"] - told["imported_s"],
                "num_found": told["num_found"],
                "num_missed": told["num_missed"],
                "counters": told["counters"],
            }

    def _place(self, scratch: Path, away: Path | None, hidden: tuple[str, ...]) -> Place:
        if not self._enters:
            return HomeOnly(scratch)
        return InRoot(scratch, self._image, self._work, away, hidden)


class Place:
    """Where a start happens. `python`, `source`: the interpreter, and dynotune's sources, as seen there."""

    python: str
    source: str

    def inside(self, path: str) -> str:
        """Return the path by which a process there names a folder of the fresh root."""
        raise NotImplementedError

    def given(self, path: Path) -> str:
        """Return the path by which a process there names a file of the work folder."""
        raise NotImplementedError

    def run(self, command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        raise NotImplementedError


class InRoot(Place):
    def __init__(
        self, scratch: Path, image: Path, work: Path, away: Path | None, hidden: tuple[str, ...]
    ) -> None:
        shown = {**fresh_root.of_interpreter(), Path("/opt/dynotune"): SOURCE, Path("/mnt"): work}
        self.python, self.source = sys.executable, "/opt/dynotune"
        if away is not None:
            prefix = Path(sys.prefix)
            shown = {away if at == prefix.resolve() else at: folder for at, folder in shown.items()}
            self.python = str(away / Path(sys.executable).relative_to(prefix))
        self._work = work
        self._root = FreshRoot(scratch, image, shown, hidden)
        for folder in (HOME, PROGRAM):
            self._root.path(folder).mkdir(parents=True)
        copy_program(self._root.path(PROGRAM))

    def inside(self, path: str) -> str:
        return path

    def given(self, path: Path) -> str:
        return str(Path("/mnt") / path.relative_to(self._work))

    def run(self, command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        variables = {name: os.environ[name] for name in KEPT if name in os.environ}
        return self._root.run(command, {"HOME": HOME, "USER": "app", **variables, **env}, cwd=PROGRAM)


class HomeOnly(Place):
    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.python, self.source = sys.executable, str(SOURCE)
        for folder in (HOME, PROGRAM, "/tmp"):
            Path(self.inside(folder)).mkdir(parents=True)
        copy_program(Path(self.inside(PROGRAM)))

    def inside(self, path: str) -> str:
        return str(self._scratch) + path

    def given(self, path: Path) -> str:
        return str(path)

    def run(self, command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        homes = {"HOME": self.inside(HOME), "TMPDIR": self.inside("/tmp"), "USER": "app"}
        variables = {name: value for name, value in os.environ.items() if not is_of_caches(name)}
        return subprocess.run(
            command,
            env={**variables, **homes, **env},
            cwd=self.inside(PROGRAM),
            capture_output=True,
            text=True,
        )


def children_cpu_s() -> float:
    """Return the processor time (s) of all processes that this one waited for, which a busy machine lengthens
    less than their wall time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_of_caches(name: str) -> bool:
    return name.startswith(("TORCHINDUCTOR_", "TRITON_", "CUDA_CACHE_", "PYTORCH_KERNEL_", "XDG_"))


def copy_program(folder: Path) -> None:
    for name in ("first_step.py", "compiled_nets.py"):
        shutil.copy(PROGRAMS / name, folder)


def dynotune(*words: str) -> None:
    print("$", shlex.join(["dynotune", *words]), flush=True)
    run([sys.executable, "-m", "dynotune", *words], {})


def run(words: list[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)} exits with {done.returncode}:\n{done.stderr[-3000:]}")


def table(result: dict[str, Any]) -> str:
    lines = [f"Starts in {result.get('root')}"]
    starts = result.get("starts", {})
    for net in sorted({key.split()[0] for key in starts}):
        for arm in ARMS:
            own = [
                start
                for key, start in starts.items()
                if key.startswith(f"{net} turn ") and start["arm"] == arm
            ]
            times = [start["first_step_s"] for start in own if "first_step_s" in start]
            if times:
                shown = " ".join(f"{time_s:.1f}" for time_s in times)
                cpu_s = statistics.median(start["cpu_s"] for start in own if "cpu_s" in start)
                median_s = statistics.median(times)
                lines.append(f"{net:<12}{arm:<14}{median_s:8.2f} s, {cpu_s:6.2f} s of CPU  ({shown})")
        lines += ratios(net, starts)
        for key, start in starts.items():
            if key.startswith(f"{net} lost: "):
                ended = start.get("failed") or start.get("unpack_failed") or f"{start['first_step_s']:.2f} s"
                found, missed = start.get("num_found", 0), start.get("num_missed", 0)
                told = [*start.get("differences", []), *start.get("notes", [])]
                lines.append(f"{key}: {ended}, {missed} of {found + missed} graphs compiled; {told}")
    return "\n".join(lines)


def ratios(net: str, starts: Mapping[str, Any]) -> Iterator[str]:
    """Yield, per arm, how many times as long as its start the start without it took, by the turns with both:
    the mean of the logarithms, with 95% by Student's t."""
    for what in ("first_step_s", "compile_and_step_s", "cpu_s"):
        for arm in ARMS[1:]:
            logs = []
            for key, start in starts.items():
                turn = key.removeprefix(f"{net} turn ").split()[0]
                with_it = starts.get(f"{net} turn {turn} {arm}", {})
                if key == f"{net} turn {turn} without" and what in start and what in with_it:
                    logs.append(math.log(start[what] / with_it[what]))
            if len(logs) < 2:
                continue
            mean = statistics.mean(logs)
            half = scipy.stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
            times = "{:.2f} ({:.2f} to {:.2f})".format(*map(math.exp, (mean, mean - half, mean + half)))
            yield f"{net:<12}without / {arm}: {what} {times}, {len(logs)} turns"


if __name__ == "__main__":
    main()
