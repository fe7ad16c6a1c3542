"""What the detector's time is made of: parts left out, a trace, and an earlier state of its code beside it.

    python benchmarks/detector_parts.py --device cuda [--earlier FOLDER/src] [--only rates parts ...]

`--earlier` is the `src` of another checkout: both states of the code are built in one process and take turns.
Several may be given.
Needs ultralytics (from the registry; AGPL-3.0, which is why only benchmarks name it). Sections that stand in
the result are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from detector import beside, forward_alone, num_matched, uploaded_bytes_per_s
from detector_bench import Bench, groups, per_second
from detector_streams import soak

from lab import result_file
from lab.provenance import RESULTS

SIZES = {
    "cuda": {
        "imgsz": 640, "frame": (1080, 1920), "num_frames": 192, "batches": (1, 16), "rounds": 3, "passes": 4,
        "latency": 2000, "block": 500, "agreement": 200, "traced": 40, "soak": 20000,
    },
    "cpu": {
        "imgsz": 96, "frame": (120, 160), "num_frames": 8, "batches": (1, 2), "rounds": 1, "passes": 1,
        "latency": 20, "block": 10, "agreement": 2, "traced": 2, "soak": 100,
    },
}  # fmt: skip
NEIGHBOUR = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
a = torch.rand(1024, 1024)
print("begun", flush=True)
while True:
    a = (a @ a).clamp_(0, 1)
"""


Section = dict[str, Any]
"""What a section found; filled as it goes, so that a run that is stopped keeps it."""


class Code:
    """One state of the runtime's code, with the detectors that were built of it. `name`: its package."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.name = bench, name
        self._detectors: dict[Any, Any] = {}

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self.name}.runtime.vision.{name}")

    def choose_convolutions_untimed(self, stack: ExitStack) -> None:
        """Let cuDNN choose by its heuristic, as at each build, as long as the stack is open."""
        for name in ("bucket_builder", "engine"):
            module = importlib.import_module(f"{self.name}.runtime.engine.{name}")
            for timed in ("tuned_convolutions", "_tuned_convolutions"):
                if hasattr(module, timed):
                    stack.enter_context(mock.patch.object(module, timed, lambda wanted: nullcontext()))

    def detector(self, batch: int, **options: Any) -> Any:
        key = (batch, *sorted(options.items()))
        if key not in self._detectors:
            self._detectors[key] = self.built(batch, **options)
        return self._detectors[key]

    def built(self, batch: int, **options: Any) -> Any:
        started_s, cuda = time.perf_counter(), self.bench.cuda
        options = {"dtype": torch.float16 if cuda else torch.float32, "channels_last": cuda, **options}
        options = {"tolerance": 0.1, "max_frame": self.bench.sizes["frame"], **options}
        detector = self.module("detector").Detector(
            options.pop("model", self.bench.model), self.bench.sizes["imgsz"], batch=batch, **options
        )
        detector.prepare(self.bench.sizes["frame"])
        say(f"built {self.name} for {batch} in {time.perf_counter() - started_s:.1f} s")
        return detector


def say(text: str) -> None:
    print(f"  {time.monotonic() - BEGUN_S:5.0f} s  {text}", flush=True)


BEGUN_S = time.monotonic()


def earlier_code(src: Path, name: str, folder: Path) -> str:
    """Make the runtime of another checkout importable as `name`, and return that name."""
    shutil.copytree(src / "dynotune" / "runtime", folder / name / "runtime")
    (folder / name / "__init__.py").write_text("")
    for file in (folder / name).rglob("*.py"):
        file.write_text(file.read_text().replace("dynotune.runtime", f"{name}.runtime"))
    return name


def streamed(bench: Bench, detector: Any, depth: int = 3, frames: list[Any] | None = None) -> int:
    """Take the results of all frames through `stream`, several times over; return their number."""
    frames = (bench.frames if frames is None else frames) * bench.sizes["passes"]
    return sum(len(found) >= 0 for found in detector.stream(frames, depth=depth))


def rate(bench: Bench, work: Callable[[], int], seconds: float = 0.4) -> float:
    """Return the middle of at least three passes, in images a second, after one that does not count."""
    work()
    rates, begun_s = [], time.perf_counter()
    while len(rates) < 3 or time.perf_counter() - begun_s < seconds:
        rates.append(per_second(work))
    return statistics.median(rates)


def in_turns(arms: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Return each arm's rates, in turns of random order, after one pass each that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values():
        arm()
    for turn in range(rounds):
        names = list(arms)
        random.Random(turn).shuffle(names)
        for name in names:
            gc.collect()
            rates[name].append(per_second(arms[name]))
    return rates


def rates_beside(bench: Bench, codes: list[Code], found: Section) -> None:
    """Images a second of each state of the code and of Ultralytics, in turns, with the limits."""
    link = uploaded_bytes_per_s() if bench.cuda else None
    for batch in bench.sizes["batches"]:
        arms: dict[str, Callable[[], int]] = {}
        for code in codes:
            detector = code.detector(batch)
            arms[f"{code.name} stream"] = lambda detector=detector: streamed(bench, detector)
            arms[f"{code.name} stream, depth 6"] = lambda detector=detector: streamed(bench, detector, 6)
            arms[f"{code.name} predict"] = lambda detector=detector, batch=batch: sum(
                len(detector.predict(part)) for part in groups(bench.frames, batch)
            )
        for half in (False, True) if bench.cuda else (False,):
            predict = bench.ultralytics(batch, half)
            few = bench.frames[: max(batch * 4, 64)]
            arms[f"ultralytics {'half' if half else 'float32'}"] = (
                lambda predict=predict, few=few, batch=batch: sum(
                    len(predict(part)) for part in groups(few, batch)
                )
            )
        rates = in_turns(arms, bench.sizes["rounds"])
        middle = {name: statistics.median(those) for name, those in rates.items()}
        frame_bytes = bench.frames[0].nbytes
        found[f"batch {batch}"] = {
            "images_per_s": middle,
            "rounds": rates,
            "forward_alone_per_s": (forward := forward_alone(bench, batch)),
            "link_whole_frames_per_s": link / frame_bytes if link else None,
            "stream_over_limit": {
                code.name: middle[f"{code.name} stream"]
                / min(forward, link / frame_bytes if link else forward)
                for code in codes
            },
            "stream_over_forward": {code.name: middle[f"{code.name} stream"] / forward for code in codes},
        }
        say(str({name: round(value) for name, value in middle.items()} | {"forward": round(forward)}))


def equality(bench: Bench, codes: list[Code], found: Section) -> None:
    """In how many frames each way finds the boxes of its own state's `predict`, bit by bit; and how many of
    the boxes in float32.

    cuDNN times its algorithms anew for each detector, and they round in their own ways. Without that, and
    without compiling, states of the code are held against each other, too.
    """
    for batch in bench.sizes["batches"]:
        frames = bench.frames[: 3 * batch + 1]
        # First: what cuDNN has timed in a thread, it keeps for that thread.
        with ExitStack() as stack:
            for code in codes:
                code.choose_convolutions_untimed(stack)
            plain = [[one.rows for one in code.built(batch, compile=False).predict(frames)] for code in codes]
        same = [sum(map(torch.equal, rows, plain[0])) for rows in plain]
        found[f"equal to the first, batch {batch}"] = {"num_frames": len(frames), "num_equal": same}
        say(f"equal to the first, untimed: {same} of {len(frames)}")
        exact = [
            one.rows for one in codes[-1].built(batch, dtype=torch.float32, compile=False).predict(frames)
        ]
        for code in codes:
            found[f"{code.name}, batch {batch}"] = {"float32": sum(map(len, exact))} | of_ways(
                code.detector(batch), frames, exact
            )
            say(f"{code.name}, batch {batch}: {found[f'{code.name}, batch {batch}']}")


def of_ways(detector: Any, frames: list[Any], exact: list[torch.Tensor]) -> Section:
    """What each way of one detector finds, held against its `predict` and against float32."""
    ways = {"predict": [one.rows for one in detector.predict(frames)]}
    for depth in (3, 6):
        # Twice, so that each lane has its turn.
        both = [one.rows for one in detector.stream(frames * 2, depth=depth)]
        ways[f"stream, depth {depth}"] = both[: len(frames)]
        ways[f"stream, depth {depth}, again"] = both[len(frames) :]
    return {
        "num_frames": len(frames),
        "num_boxes": sum(map(len, ways["predict"])),
        "num_equal": {name: sum(map(torch.equal, rows, ways["predict"])) for name, rows in ways.items()},
        "num_matched": {name: sum(map(num_matched, exact, rows)) for name, rows in ways.items()},
    }


def agreement(bench: Bench, codes: list[Code], found: Section) -> None:
    """Boxes of Ultralytics and of the newest code in float32, without TF32: how many have a counterpart."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    frames = (bench.frames * 2)[: bench.sizes["agreement"]]
    rng = np.random.default_rng(1)
    # Further pictures of the frames that there are: shifted by some lines and columns.
    frames = [np.ascontiguousarray(np.roll(frame, rng.integers(0, 99, 2), (0, 1))) for frame in frames]
    try:
        predict = bench.ultralytics(1, False)
        theirs = [predict([frame])[0].boxes.data.cpu() for frame in frames]
        with codes[-1].built(1, dtype=torch.float32, channels_last=False, compile=False) as detector:
            ours = [one.rows for one in detector.stream(frames)]
    finally:
        torch.backends.cudnn.allow_tf32 = before
    found |= {
        "num_pictures": len(frames),
        "num_ultralytics": sum(map(len, theirs)),
        "num_ours": sum(map(len, ours)),
        "num_matched": sum(num_matched(a, b) for a, b in zip(theirs, ours, strict=True)),
    }


def latencies(bench: Bench, codes: list[Code], found: Section) -> None:
    """One frame in, boxes out, beside the bare forward, in alternating blocks; also with a neighbour."""
    forward, num, length = bench.forward(1), bench.sizes["latency"], bench.sizes["block"]

    def bare() -> None:
        forward()
        if bench.cuda:
            torch.cuda.current_stream().synchronize()

    def timed(work: Callable[[], Any]) -> float:
        started_s = time.perf_counter()
        work()
        return time.perf_counter() - started_s

    def measured() -> dict[str, Any]:
        times: dict[str, list[float]] = {"bare": []} | {code.name: [] for code in codes}
        for at in range(0, num, length):
            block = [bench.frames[(at + number) % len(bench.frames)] for number in range(length)]
            for code in codes:
                predict = code.detector(1).predict
                times[code.name] += [timed(lambda frame=frame, p=predict: p(frame)) for frame in block]
            times["bare"] += [timed(bare) for _ in block]
        return {code.name: beside(times[code.name], times["bare"], length) for code in codes}

    for code in codes:
        code.detector(1)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    found |= {"num_frames": num, "neighbour_threads": threads, "quiet": measured()}
    with neighbour(threads):
        found["busy"] = measured()
    for name in ("quiet", "busy"):
        those = found[name]
        for code in codes:
            one = those[code.name]
            say(
                f"{name} {code.name}: p50 {one['predict']['p50_s'] * 1e3:.3f} ms, "
                f"p99/p50 {one['p99_over_p50_against_bare']:.3f} of bare"
            )


@contextmanager
def neighbour(num_threads: int) -> Iterator[None]:
    """A process that multiplies matrices with so many threads."""
    process = subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(num_threads)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


def first_and_last(codes: list[Code]) -> list[Code]:
    return codes[:1] + codes[1:][-1:]


def parts(bench: Bench, codes: list[Code], found: Section) -> None:
    """Images a second with one part left out at a time."""
    for batch in bench.sizes["batches"]:
        for code in first_and_last(codes):
            detector, rates = code.detector(batch), {}
            rates["whole"] = rate(bench, lambda detector=detector: streamed(bench, detector))
            for name, leaving_out in LEFT_OUT.items():
                with ExitStack() as stack, reported(rates, name):
                    for patch in leaving_out(code):
                        stack.enter_context(patch)
                    rates[name] = rate(bench, lambda detector=detector: streamed(bench, detector))
            if bench.cuda:
                there = [torch.from_numpy(frame).cuda() for frame in bench.frames[:64]]
                torch.cuda.synchronize()
                rates["frames on the device"] = rate(
                    bench, lambda detector=detector, there=there: streamed(bench, detector, frames=there)
                )
                del there
            for name, model in (("no forward", Constant(bench)), ("no suppression", None)):
                options = {} if model is None else {"model": model, "compile": False}
                with ExitStack() as stack:
                    if model is None:
                        stack.enter_context(without_suppression(code))
                    with reported(rates, name), code.built(batch, **options) as other:
                        rates[name] = rate(bench, lambda other=other: streamed(bench, other))
            rates["forward alone"] = forward_alone(bench, batch)
            found.setdefault(f"batch {batch}", {})[code.name] = {
                name: {"images_per_s": value, "ms_per_batch": 1000 * batch / value}
                if isinstance(value, float)
                else value
                for name, value in rates.items()
            }
            say(f"batch {batch} {code.name}: " + str({n: v and round(v) for n, v in rates.items()
                                                      if isinstance(v, float)}))  # fmt: skip


@contextmanager
def reported(rates: dict[str, Any], name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        rates[name] = f"{type(error).__name__}: {error}"[:300]
        say(f"{name} failed: {rates[name]}")


def _copying(code: Code) -> ModuleType:
    """Return the module that copies frames into pinned memory; it had another name once."""
    try:
        return code.module("frame_copies")
    except ModuleNotFoundError:
        return code.module("frame_ring")


def _no_copy(code: Code) -> list[Any]:
    copying = _copying(code)
    plain = copying.host_array

    def hollow(*arguments: Any, **options: Any) -> Any:
        array = plain(*arguments, **options)
        nothing = [replace(part, write=lambda into: None) for part in array.parts]
        return replace(array, write=lambda into: None, parts=tuple(nothing))

    patches = [mock.patch.object(copying, "host_array", hollow)]
    if hasattr(copying, "_numpys_write"):
        patches.append(mock.patch.object(copying, "_numpys_write", lambda *_: lambda number: None))
    return patches


def _no_upload(code: Code) -> list[Any]:
    """Neither upload nor letterbox: the images stay as they are."""
    ring = code.module("frame_ring").FrameRing

    def send(self: Any, copied: Any, letterbox: Any, region: Any, *, stream: Any) -> None:
        self._free.put(copied.take())

    return [mock.patch.object(ring, "send", send)]


def _no_results(code: Code) -> list[Any]:
    """The host waits for the batch, and makes no results of it."""
    stages = code.module("stages")

    def collect(self: Any, batch: Any) -> list[Any]:
        batch.done.synchronize()
        with self._state:
            batch.network.give_lane(batch.lane)
        return [None] * batch.num_frames

    return [mock.patch.object(stages.Lanes, "collect", collect)]


LEFT_OUT: dict[str, Callable[[Code], list[Any]]] = {
    "no copy": _no_copy,
    "no upload": _no_upload,
    "no copy and upload": lambda code: [*_no_copy(code), *_no_upload(code)],
    "no results": _no_results,
    "no copy, upload and results": lambda code: [
        *_no_copy(code),
        *_no_upload(code),
        *_no_results(code),
    ],
}


def without_suppression(code: Code) -> Any:
    post = code.module("nms").PostProcess

    def forward(self: Any, raw: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        packed = raw.new_zeros(raw.shape[0], self.max_det + 1, 6)
        packed[:, self.max_det, 2:4] = 1  # settled, finite
        packed[:, 0, 0] = raw[:, 0, 0]
        return packed, packed[:, : self.max_det]

    return mock.patch.object(post, "forward", forward)


class Constant(torch.nn.Module):  # type: ignore[misc]
    """The model's output for one picture, whatever it is given."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1, device=bench.device), requires_grad=False)
        from dynotune.runtime.vision.letterbox import Letterbox, place

        at = place(bench.frames[0].shape[:2], (bench.sizes["imgsz"],) * 2)
        images = torch.empty(1, 3, at.height, at.width, device=bench.device)
        Letterbox(at, torch.device(bench.device), swap_channels=True)(
            torch.from_numpy(bench.frames[0])[None].to(bench.device), images
        )
        with torch.no_grad():
            self.register_buffer("raw", bench.model(images)[0].clone())
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (self.raw * self.scale).expand(len(images), -1, -1) + 0 * images[:, :1, 0, :1]


def stage_times(bench: Bench, codes: list[Code], found: Section) -> None:
    """Of each stage of a batch, the wall time and the time its thread was on a core."""
    for batch in bench.sizes["batches"]:
        for code in first_and_last(codes):
            detector, times = code.detector(batch), defaultdict(list)
            copying, lanes = _copying(code), code.module("stages").Lanes
            watched = [
                (lanes, "stage"), (lanes, "launch"), (lanes, "collect"),
                (copying.Copied, "wait"), (code.module("network").Network, "enqueue"),
                *((getattr(copying, name, None), "copy") for name in ("FrameRing", "FrameCopier")),
                (getattr(copying, "FrameRing", None), "send"),
            ]  # fmt: skip
            watched = [(owner, name) for owner, name in watched if hasattr(owner, name)]
            with ExitStack() as stack:
                for owner, name in watched:
                    stack.enter_context(timed_calls(owner, name, times))
                streamed(bench, detector)
                times.clear()
                num = streamed(bench, detector)
            found.setdefault(f"batch {batch}", {})[code.name] = {
                name: {
                    "calls_per_batch": len(those) * batch / num,
                    "wall_ms": 1000 * statistics.mean(wall for wall, _ in those),
                    "on_a_core_ms": 1000 * statistics.mean(core for _, core in those),
                    "p99_wall_ms": 1000 * sorted(wall for wall, _ in those)[int(0.99 * len(those))],
                }
                for name, those in times.items()
            }
            lines = found[f"batch {batch}"][code.name].items()
            say(f"batch {batch} {code.name}, ms of wall time and on a core:")
            say(str({name: (round(v["wall_ms"], 3), round(v["on_a_core_ms"], 3)) for name, v in lines}))


@contextmanager
def timed_calls(owner: Any, name: str, times: dict[str, list[tuple[float, float]]]) -> Iterator[None]:
    plain = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        wall_s, core_s = time.perf_counter(), time.thread_time()
        try:
            return plain(*arguments, **options)
        finally:
            times[f"{owner.__name__}.{name}"].append(
                (time.perf_counter() - wall_s, time.thread_time() - core_s)
            )

    with mock.patch.object(owner, name, timed):
        yield


def traced(bench: Bench, codes: list[Code], found: Section) -> None:
    """The device's time by kernel, how much of the time it was busy, and the host's calls of CUDA."""
    for batch in bench.sizes["batches"]:
        for code in first_and_last(codes):
            detector, frames = code.detector(batch), bench.frames * bench.sizes["passes"]
            frames = frames[: bench.sizes["traced"] * batch]
            deque(detector.stream(frames), maxlen=0)
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities[: 1 + bench.cuda]) as profile:
                num = sum(1 for _ in detector.stream(frames))
            found.setdefault(f"batch {batch}", {})[code.name] = summary(profile.events(), num / batch)


def summary(events: Any, num_batches: float) -> dict[str, Any]:
    kernels, calls, spans = defaultdict(float), defaultdict(lambda: [0, 0.0]), []
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name[:80]] += event.time_range.elapsed_us()
            spans.append((event.time_range.start, event.time_range.end))
        elif event.name.startswith("cuda"):
            calls[event.name][0] += 1
            calls[event.name][1] += event.time_range.elapsed_us()
    busy_us, end_us = 0.0, float("-inf")
    for start, end in sorted(spans):
        busy_us += max(0.0, end - max(start, end_us))
        end_us = max(end_us, end)
    wall_us = end_us - min(start for start, _ in spans) if spans else 0.0
    top = sorted(kernels.items(), key=lambda pair: -pair[1])[:40]
    return {
        "device_busy_share": busy_us / wall_us if wall_us else None,
        "device_ms_per_batch": sum(kernels.values()) / 1000 / num_batches,
        "wall_ms_per_batch": wall_us / 1000 / num_batches,
        "kernels_us_per_batch": {name: value / num_batches for name, value in top},
        "calls_per_batch": {name: num / num_batches for name, (num, _) in calls.items()},
        "calls_us_per_batch": {name: us / num_batches for name, (_, us) in calls.items()},
    }


def settings(bench: Bench, codes: list[Code], found: Section) -> None:
    """Images a second of the newest code with other numbers of tracks and of batches under way."""
    code = codes[-1]
    for batch in bench.sizes["batches"]:
        rates = found.setdefault(f"batch {batch}", {})
        detector = code.detector(batch)

        def streams(detector: Any, depth: int) -> float:
            return rate(bench, lambda: streamed(bench, detector, depth))

        for depth in (2, 3, 4, 6):
            with reported(rates, f"depth {depth}"):
                rates[f"depth {depth}"] = streams(detector, depth)
        for options in ({"tracks": 1}, {"tracks": 3, "depth": 7}):
            name = ", ".join(f"{key} {value}" for key, value in options.items())
            with reported(rates, name), code.built(batch, **options) as other:
                for depth in (3, 6):
                    rates[f"{name}, {depth} batches"] = streams(other, depth)
        say(
            f"batch {batch}: "
            + str({name: v if isinstance(v, str) else round(v) for name, v in rates.items()})
        )


def copying(bench: Bench, codes: list[Code], found: Section) -> None:
    """Frames a second of which rows are copied: by all of torch's threads, or by a thread for a frame."""
    from dynotune.runtime.vision.letterbox import place, rows_read

    frames = [torch.from_numpy(frame) for frame in bench.frames[:64]]
    height, width = frames[0].shape[:2]
    rows = rows_read(place((height, width), (bench.sizes["imgsz"],) * 2))
    rows = torch.arange(height) if rows is None else rows
    there = torch.empty(len(frames), len(rows), width, 3, dtype=torch.uint8, pin_memory=bench.cuda)
    found |= {"rows": len(rows), "row_bytes": 3 * width}
    one_call = torch.get_num_threads()

    def each() -> int:
        for frame, place_ in zip(frames, there, strict=True):
            torch.index_select(frame, 0, rows, out=place_)
        return len(frames)

    for num in (1, 4, 10, 16):
        torch.set_num_threads(num)
        found[f"one call a frame, {num} threads"] = rate(bench, each, 0.2)
    torch.set_num_threads(1)
    for num in (2, 4, 8, 10, 14):

        def shared(num: int = num) -> int:
            def work(start: int) -> None:
                for at in range(start, len(frames), num):
                    torch.index_select(frames[at], 0, rows, out=there[at])

            threads = [threading.Thread(target=work, args=(start,)) for start in range(num)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return len(frames)

        found[f"{num} threads of Python"] = rate(bench, shared, 0.2)
    torch.set_num_threads(one_call)
    say(str({name: round(value) for name, value in found.items()}))


SECTIONS: dict[str, Callable[[Bench, list[Code], Section], None]] = {
    "rates": rates_beside,
    "equality": equality,
    "latency": latencies,
    "stage times": stage_times,
    "trace": traced,
    "settings": settings,
    "parts": parts,
    "copying": copying,
    "agreement": agreement,
    "soak": lambda bench, codes, found: found.update(soak(bench)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--earlier", type=Path, nargs="+", default=[], help="The `src` of other checkouts.")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--until-s", type=float, default=float("inf"), help="Begin no section after this.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    out = args.out or RESULTS / f"detector_parts_{args.device}.json"
    bench = Bench(args.device, dict(SIZES[args.device]))
    say("frames and model are made")
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        names = [
            earlier_code(src, f"earlier_{number}", Path(folder)) for number, src in enumerate(args.earlier, 1)
        ]
        codes = [Code(bench, name) for name in (*names, "dynotune")]
        for name in args.only:
            if name in result_file.read(out).get("sections", {}):
                continue
            if time.monotonic() - BEGUN_S > args.until_s:
                say(f"no time for {name}")
                continue
            say(f"{name} …")
            section: Section = {}
            try:
                SECTIONS[name](bench, codes, section)
            except Exception as error:
                traceback.print_exc()
                section["failed"] = f"{type(error).__name__}: {error}"[:300]
            finally:
                with result_file.opened(out) as result:
                    result["sizes"] = bench.sizes
                    result.setdefault("sections", {})[name] = section
    with contextlib.suppress(Exception):
        bench.forget()
    say("end")


if __name__ == "__main__":
    main()
