"""The most operations and bytes a second that a device reaches, in a short probe by the command's own interpreter.

A large matrix product in each type, a large copy; the best of some sizes counts. The probe runs alone, when the command
has ended, and takes as many threads as the command did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dynotune.probe import run_python
from dynotune.schema.facts import Unknown

TIMEOUT_S = 120.0
"""Importing torch and beginning with a device are most of it; what is timed takes less than four seconds."""
TYPES = ("float32", "tf32", "float64", "float16", "bfloat16")
_MARK = "dynotune-peaks:"

# Runs on any Python since 3.8 and any torch since 2.4.
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
