"""Write the lines at which threads and loaders were seen as a profile for https://www.speedscope.app.

The sampler keeps a line of the user's code, what it calls, and the innermost function; not the calls
between these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec

from dynotune.report.places import source_line
from dynotune.schema.document import without_secrets
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, Thread
from dynotune.schema.loader import Loading, SamplePart
from dynotune.schema.observation import Observation, ProcessState
from dynotune.text import words

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
Stack = tuple[list[str], float]
"""Functions with file and line from the outermost to the innermost, and their seconds."""


def as_speedscope(observation: Observation) -> bytes:
    """Write one profile for each thread that was seen in the plain window, and one for each loader."""
    frames: dict[str, int] = {}
    observation = without_secrets(observation)
    processes = observation.processes
    profiles = [
        _profile(name, stacks, frames)
        for process in ([] if isinstance(processes, Unknown) else processes)
        for name, stacks in _profiles(process)
        if stacks
    ]
    found = {
        "$schema": SCHEMA,
        "exporter": "dynotune",
        "name": words.plain(" ".join(observation.command)),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(name) for name in frames]},
        "profiles": profiles,
    }
    return msgspec.json.encode(found) + b"\n"


def _profiles(process: ProcessState) -> Iterator[tuple[str, list[Stack]]]:
    of_rank = f"rank {process.rank}, " if process.rank is not None else ""
    window_s = None if isinstance(process.timing, Unknown) else process.timing.window_s
    for number, thread in enumerate(process.threads, 1):
        name = "the thread of the steps" if thread.of_steps else thread.name or f"thread {number}"
        yield f"{of_rank}{name}", _of_thread(thread, window_s)
    for number, loader in enumerate(process.loaders, 1):
        if isinstance(loader.loading, Loading):
            yield f"{of_rank}loader {number}", [_of_part(part) for part in loader.loading.parts]


def _of_thread(thread: Thread, window_s: float | None) -> list[Stack]:
    """Return the thread's lines; without a timed window, each sample counts as a second."""
    each_s = window_s / thread.num if window_s and thread.num else 1.0
    return [(_functions(line), line.num * each_s) for line in thread.lines]


def _functions(line: Line) -> list[str]:
    return list(dict.fromkeys(filter(None, [line.function, line.callee, line.leaf])))


def _of_part(part: SamplePart) -> Stack:
    kind = f"{part.part}: {part.what}" if part.what else part.part
    return [*filter(None, [part.function]), kind], part.wall_s


def _profile(name: str, stacks: Sequence[Stack], frames: dict[str, int]) -> dict[str, Any]:
    samples = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in stacks]
    weights = [seconds for _, seconds in stacks]
    return {
        "type": "sampled",
        "name": words.plain(name),
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _frame(name: str) -> dict[str, Any]:
    """Name a frame with its line: of a script's own code, each line is in `<module>`."""
    if (place := source_line(name)) is None:
        return {"name": words.plain(name)}
    path, line, function = place
    name = f"{function} ({PurePosixPath(path).name}:{line})"
    return {"name": words.plain(name), "file": words.plain(path), "line": line}
