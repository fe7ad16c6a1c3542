"""Measure on a GPU what no allocation shows: the context with its modules, and what cuDNN and cuBLAS take.

    python benchmarks/memory_constants.py [--out FILE]

Prints rows for `src/dynotune/memory/constants.toml`. Takes less than a minute. Nothing else may use the GPU:
what the device has in use is read from the driver, before and after each part, in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PARTS = ("context", "modules", "matmul", "cudnn")

PART = """
import json, sys
import torch
part = sys.argv[1]
torch.zeros(1, device="cuda")
if part != "context":
    # The kernels of a usual step: what they need of modules is loaded when each is launched for the first time.
    x = torch.randn(64, 1024, device="cuda", requires_grad=True)
    for dtype in (torch.float32, torch.bfloat16):
        y = x.to(dtype)
        y = torch.nn.functional.layer_norm(torch.nn.functional.dropout(torch.nn.functional.gelu(y), 0.1), (1024,))
        torch.nn.functional.cross_entropy(y.float(), torch.zeros(64, dtype=torch.long, device="cuda")).backward()
    optimizer = torch.optim.AdamW([x])
    optimizer.step()
if part in ("matmul", "cudnn"):
    layer = torch.nn.Linear(1024, 1024, device="cuda")
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            layer(x).sum().backward()
if part == "cudnn":
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7, 2), torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 64, 3)).cuda()
    for enabled in (False, True):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
            net(torch.randn(16, 3, 224, 224, device="cuda")).sum().backward()
torch.cuda.synchronize()
import pynvml
pynvml.nvmlInit()
memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
ask = getattr(torch.backends.cuda, "cublas_workspace_size", None)
cublas = ask() if ask is not None and part == "matmul" else None
print(json.dumps({
    "used_bytes": memory.used, "reserved_bytes": torch.cuda.memory_reserved(),
    "most_reserved_bytes": torch.cuda.max_memory_reserved(), "total_bytes": memory.total, "cublas_bytes": cublas,
    "capability": "%d.%d" % torch.cuda.get_device_capability(), "torch": torch.__version__,
    "gpu": torch.cuda.get_device_name(), "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
}))
"""  # noqa: E501


def used_bytes() -> int:
    """What the device has in use, as the driver says, with no process of ours on it."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        pynvml.nvmlShutdown()


def measured(part: str) -> dict[str, object]:
    """The part in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PART, part], capture_output=True, text=True, timeout=120, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(kind: str, result: dict[str, object], num_bytes: int, source: str) -> str:
    """A row as the table has it. The figure lies between what fewer and what more kernels need."""
    version = ".".join(str(result["torch"]).split(".")[:2])
    return "\n".join(
        [
            f"[[{kind}]]",
            f'capability = "{result["capability"]}"',
            f'torch = "{version}"',
            f"num_bytes = {num_bytes:_}",
            f"high_bytes = {num_bytes + num_bytes // 10:_}",
            f'source = "{source}"',
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="keep what was measured, as JSON")
    out = parser.parse_args().out
    idle = used_bytes()
    results = {part: measured(part) for part in PARTS}
    outside = {
        part: int(str(result["used_bytes"])) - idle - int(str(result["reserved_bytes"]))
        for part, result in results.items()
    }
    first = results["context"]
    source = f"{first['gpu']}, torch {first['torch']}, benchmarks/memory_constants.py"
    print(f"# {first['gpu']}: {first['total_bytes']} bytes, of which {idle} are in use while nothing runs;")
    print(
        f"# {first['multiprocessors']} multiprocessors; cuBLAS workspace "
        f"{results['matmul']['cublas_bytes']} bytes"
    )
    print(row("context", first, outside["matmul"], source))
    print(row("cudnn", first, max(0, outside["cudnn"] - outside["matmul"]), source))
    if out is not None:
        out.write_text(
            json.dumps({"idle_bytes": idle, "parts": results, "outside_bytes": outside}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
