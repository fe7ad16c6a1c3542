"""Decide whether a run without a value is a failure of its arm or a failure of the machine."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynotune import probe
from dynotune.launch import error_line, last_lines
from dynotune.launch.process import has_room
from dynotune.measure.live import Outcome
from dynotune.probe.facts import num_oom_kills
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError, RecordError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import Run
from dynotune.schema.study import Ended
from dynotune.text import words

NUM_LINES = 200
"""Number of last output lines to search: torchrun and the interpreter print further lines after the
reason."""
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|(CUDA|HIP|CUDNN|NCCL)\b.{0,40}out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"  # noqa: E501
    r"|cudaErrorMemoryAllocation|can't allocate memory|Cannot allocate memory|^MemoryError\b|std::bad_alloc"
    r"|out of shared memory|insufficient shared memory",
    re.IGNORECASE,
)
_KILLED = re.compile(r"killed by signal: Killed|Signal 9 \(SIGKILL\)|exitcode\s*:\s*-9\b")
_GPU_LOST = re.compile(
    r"GPU is lost|device is lost|uncorrectable ECC|fallen off the bus|Unable to determine the device handle",
    re.IGNORECASE,
)
_KILL = 9


def answer(
    error: DynotuneError, folder: Path, kills_before: int | Unknown, facts: Facts, env: Mapping[str, str]
) -> tuple[Ended, str]:
    """Return why an arm gave no value, and the output line that shows the reason best.

    `kills_before`: number of the kernel's out-of-memory kills before the run; `facts`: facts about the
        machine then.

    Raises CannotRunHere: the machine failed, not the arm: the disk is full, or the GPU is gone.
    """
    if not has_room(folder):
        raise error
    lines = last_lines(folder, NUM_LINES)
    _refuse_lost_gpu(lines, facts.get("gpu.count"), env)
    if not isinstance(error, CommandFailed):
        with contextlib.suppress(RecordError):
            if document.read(folder / "run.json", Run).ended_by == "timeout":
                return "timeout", error.message
        return "failed", error.message
    said = next((line for line in reversed(lines) if _OUT_OF_MEMORY.search(line)), "")
    if said:
        return "out-of-memory", said.strip()
    killed = error.command_exit_code in (-_KILL, 128 + _KILL) or any(map(_KILLED.search, lines))
    kills = num_oom_kills()
    if (
        killed
        and not isinstance(kills, Unknown)
        and not isinstance(kills_before, Unknown)
        and kills > kills_before
    ):
        return "out-of-memory", "the kernel killed a process: the machine's memory ran out"
    return "failed", error_line(folder) or f"it ended {words.ending(error.command_exit_code)}"


def rejection(outcome: Outcome) -> str:
    """Return as text why the first setting that did not take effect was rejected."""
    first = outcome.rejected[0]
    if isinstance(first.found, Unknown):
        return first.found.reason
    text = f"{first.witness} says {first.found}"
    return f"{text}; {first.detail}" if first.detail and first.detail != first.found else text


def _refuse_lost_gpu(lines: Sequence[str], num_gpus: object, env: Mapping[str, str]) -> None:
    """Raise CannotRunHere if a GPU is gone, because then every arm fails through no fault of its settings."""
    if not num_gpus or isinstance(num_gpus, Unknown):
        return
    said = next((line for line in reversed(lines) if _GPU_LOST.search(line)), "")
    if said or probe.nvml.facts(env).get("gpu.count") != num_gpus:
        raise CannotRunHere(
            "A GPU was lost while the command ran: "
            f"{said.strip() or 'the driver does not list it any more'}.",
            hint="Look at dmesg and nvidia-smi; all measurements so far are kept.",
        )
