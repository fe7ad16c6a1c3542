"""Distance to the limit: the operations and bytes of a step, against the peaks that its device reaches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.diagnose.attributed import uses_device
from dynotune.diagnose.profiled import in_words
from dynotune.measure.live import Recorder, RecordRequest, TaskRunner, Watcher
from dynotune.probe import run_python
from dynotune.schema.diagnosis import Roofline
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import RunSpec
from dynotune.trace.facts import Work, flops

TIMEOUT_S = 120.0
"""Importing torch and beginning with a device are most of it; what is timed takes less than four seconds."""
TYPES = ("float32", "tf32", "float64", "float16", "bfloat16")
_MARK = "dynotune-peaks:"

# A large matrix product in each type, a large copy; the best of some sizes counts. It runs alone, when the command has
# ended, and takes as many threads as the command did. Runs on any Python since 3.8 and any torch since 2.4.
_PROBE = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json, time
import torch

asked = json.loads(sys.argv[1])
on_device = asked["device"] == "cuda"
if asked["num_threads"]:
    torch.set_num_threads(asked["num_threads"])
found = {"flops_per_s": {}, "unknown": {}}
each_s = 2.4 / (len(asked["types"]) + 1)

def synchronise():
    if on_device:
        torch.cuda.synchronize()

def rate(amount, run, budget_s):
    run()
    synchronise()
    begin = time.perf_counter()
    run()
    synchronise()
    once_s = max(time.perf_counter() - begin, 1e-9)
    num = max(1, min(1000, int(budget_s / 2 / once_s)))
    best = amount / once_s
    for _ in range(2 if once_s * num < budget_s else 1):
        begin = time.perf_counter()
        for _ in range(num):
            run()
        synchronise()
        best = max(best, amount * num / (time.perf_counter() - begin))
    return best, once_s

def tf32(on):
    if not on_device:
        return
    try:
        torch.backends.cuda.matmul.allow_tf32 = on
    except Exception:
        torch.backends.cuda.matmul.fp32_precision = "tf32" if on else "ieee"

def products(name):
    dtype = getattr(torch, "float32" if name == "tf32" else name)
    tf32(name == "tf32")
    best = 0.0
    sizes = (2048, 4096, 8192) if on_device else (256, 512, 1024, 2048)
    for size in sizes:
        first = torch.randn(size, size, device=asked["device"]).to(dtype)
        second = torch.randn(size, size, device=asked["device"]).to(dtype)
        out = torch.empty_like(first)
        reached, once_s = rate(2.0 * size**3, lambda: torch.mm(first, second, out=out), each_s / len(sizes))
        best = max(best, reached)
        if once_s * 8 > each_s:
            break
    return best

with torch.no_grad():
    for name in asked["types"]:
        try:
            found["flops_per_s"][name] = products(name)
        except Exception as error:
            found["unknown"][name] = "%s: %s" % (type(error).__name__, str(error).splitlines()[0])
    try:
        for num_bytes in (1 << 30, 1 << 28, 1 << 26) if on_device else (1 << 28, 1 << 26):
            try:
                source = torch.ones(num_bytes // 4, device=asked["device"])
                target = torch.empty_like(source)
                break
            except Exception:
                if num_bytes == 1 << 26:
                    raise
        found["bytes_per_s"] = rate(2.0 * num_bytes, lambda: target.copy_(source), each_s)[0]
    except Exception as error:
        found["unknown"]["copy"] = "%s: %s" % (type(error).__name__, str(error).splitlines()[0])
print("\\nMARK" + json.dumps(found))
""".replace("MARK", _MARK)


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """What was reached.

    Args:
        flops_per_s: by type, of `TYPES`.
        unknown: why of another there is none; `copy` for the bytes.
    """

    flops_per_s: dict[str, float]
    bytes_per_s: float | None = None
    unknown: dict[str, str] = {}


def peaks(
    python: str | Unknown,
    types: Sequence[str],
    *,
    uses_device: bool,
    num_threads: int | None,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float = TIMEOUT_S,
) -> Peaks | Unknown:
    """Probe the device that the command uses.

    Args:
        python: the command's interpreter; Unknown is passed on.
        types: of `TYPES`.
        num_threads: that the command's operators use; None leaves torch's own number.
    """
    asked = {"types": list(types), "device": "cuda" if uses_device else "cpu", "num_threads": num_threads}
    late = f"the probe of the device's peaks did not end within {timeout_s:g} s"
    ended = run_python(python, ["-c", _PROBE, json.dumps(asked)], cwd, env, timeout_s, late)
    return ended if isinstance(ended, Unknown) else _read(*ended)


def _read(exit_code: int, stdout: bytes, stderr: bytes) -> Peaks | Unknown:
    # A user's sitecustomize may print too.
    marked = [line for line in stdout.decode(errors="replace").splitlines() if line.startswith(_MARK)]
    if exit_code or not marked:
        last = (stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        return Unknown(f"the probe of the device's peaks ended with exit code {exit_code}: {last}")
    try:
        return msgspec.json.decode(marked[-1].removeprefix(_MARK), type=Peaks)
    except msgspec.MsgspecError as error:
        return Unknown(f"the probe of the device's peaks gave no sound answer: {error}")


NUM_STEPS = 3
TF32 = "tf32"


def find_roofline(
    runner: TaskRunner, run: RunSpec, watcher: Watcher, processes: Sequence[ProcessState]
) -> Roofline | Unknown:
    """Return how long a step of the first rank would take if only products, convolutions and attention took time.

    The shapes of its operations are recorded in the live run, which ends then; the device's peaks are probed.
    """
    if not processes:
        return Unknown("no process of the command made steps")
    timing, live = processes[0].timing, processes[0].live
    if isinstance(timing, Unknown):
        return timing
    watcher.running("the shapes of its operations")
    work = _work(runner, run)
    runner.end()
    if isinstance(work, Unknown):
        return work
    by_type = in_types(work, live)
    watcher.running("the peaks of the device")
    num_threads = live.get("live.num_threads")
    reached = peaks(
        probe.interpreter(run.command, run.env, run.cwd),
        list(by_type),
        uses_device=uses_device(processes),
        num_threads=num_threads if isinstance(num_threads, int) else None,
        cwd=run.cwd,
        env=run.env,
    )
    return reached if isinstance(reached, Unknown) else judged(work, by_type, reached, timing.step_s)


def _work(runner: TaskRunner, run: RunSpec) -> Work | Unknown:
    recorder = Recorder(runner)
    try:
        traces = recorder.record(RecordRequest(run=run, shapes=True, num_steps=NUM_STEPS))
        if traces is None:
            raise recorder.no_trace()
        return flops.work_of_step(traces[0])
    except DynotuneError as error:
        return Unknown(f"its operations were not recorded: {in_words(error)}")
    except MemoryError:
        return Unknown("the trace is too large for the memory of this machine")


def in_types(work: Work, live: Facts) -> dict[str, float]:
    """Operations by the type that they are made in: float32 may be tf32."""
    found: dict[str, float] = {}
    for (type_, is_convolution), num in work.flops.items():
        precision = live.get("live.conv_fp32_precision" if is_convolution else "live.matmul_fp32_precision")
        name = TF32 if type_ == "float32" and precision == TF32 else type_
        found[name] = found.get(name, 0.0) + num
    return found


def judged(work: Work, by_type: dict[str, float], reached: Peaks, step_s: float) -> Roofline | Unknown:
    """The least time of a step, and its share of `step_s`."""
    missing = [name for name in by_type if not reached.flops_per_s.get(name)]
    if missing:
        return Unknown(f"no peak was reached in {missing[0]}: {reached.unknown.get(missing[0], 'it was not probed')}")
    if not reached.bytes_per_s:
        return Unknown(f"no peak of memory was reached: {reached.unknown.get('copy', 'it was not probed')}")
    operations_s = sum(num / reached.flops_per_s[name] for name, num in by_type.items())
    bytes_s = work.num_bytes / reached.bytes_per_s
    notes = list(work.notes)
    if len(by_type) > 1:
        parts = ", ".join(f"{num / work.total:.0%} in {name}" for name, num in by_type.items())
        notes.append(f"operations {parts}")
    least_s = max(operations_s, bytes_s)
    if bytes_s > max(step_s, operations_s):
        notes.append("operands come from the processor's caches, faster than from memory: bytes set no limit here")
        least_s = operations_s
    if least_s > step_s:
        notes.append("a step takes less than the probe's peaks allow: the device was slower while it was probed")
    return Roofline(
        flops=work.total,
        num_bytes=work.num_bytes,
        dtype=" and ".join(by_type),
        peak_flops_per_s=work.total / operations_s,
        peak_bytes_per_s=reached.bytes_per_s,
        least_s=least_s,
        share=min(1.0, least_s / step_s),
        notes=notes,
    )
