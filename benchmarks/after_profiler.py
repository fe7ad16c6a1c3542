"""What a session of torch's profiler leaves behind: seconds of a step before it and after it, on an NVIDIA
GPU.

    python benchmarks/after_profiler.py [--repeats 5] [--out FILE]

Each repeat starts two fresh processes, in changing order: one with TEARDOWN_CUPTI=1, one without the
variable. Each process times steps of a small GPT before a session of the profiler, after it, and after a
second session; eagerly, and as one CUDA graph. With the variable, CUPTI is attached anew for the second
session, which `session_ms` shows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab.provenance import describe

STEPS, STRETCHES, SETTLE, NUM_PROFILED = 100, 4, 10, 3
CASES = {"left attached": None, "TEARDOWN_CUPTI=1": "1"}


def step_s(step: Callable[[], object]) -> float:
    """Return seconds of a step: the least mean of some stretches, the device synchronised at both ends."""
    import torch

    means = []
    for _ in range(STRETCHES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        means.append((time.perf_counter() - begin) / STEPS)
    return min(means)


def session(step: Callable[[], object]) -> dict[str, float]:
    """Profile three steps; return the milliseconds that beginning and ending the session took, and its
    launches."""
    import torch

    profile = torch.profiler.profile()
    begin = time.perf_counter()
    profile.start()
    begun = time.perf_counter()
    for _ in range(NUM_PROFILED):
        step()
    torch.cuda.synchronize()
    ends = time.perf_counter()
    profile.stop()
    took_s = begun - begin + time.perf_counter() - ends
    for _ in range(SETTLE):  # CUPTI is taken down at one of the next calls of CUDA's runtime
        step()
    torch.cuda.synchronize()
    num = sum(row.count for row in profile.key_averages() if "LaunchKernel" in row.key)
    return {"session_ms": 1e3 * took_s, "launches": num / NUM_PROFILED}


def steps() -> dict[str, Callable[[], object]]:
    """Return a training step of a GPT by name: run eagerly, and replayed as one CUDA graph."""
    import torch
    from programs.train_gpt import GPT, VOCABULARY, adamw

    torch.manual_seed(0)
    net = GPT(num_layers=6, num_heads=6, width=384, tokens=256).cuda()
    optimizer = adamw(net, "cuda")
    for group in optimizer.param_groups:
        group["capturable"] = True
    x, y = torch.randint(VOCABULARY, (2, 64, 256), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            _, loss = net(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(SETTLE):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return {"eager": step, "one CUDA graph": graph.replay}


def measured() -> dict[str, dict[str, float]]:
    """Return, for each way to run a step, its milliseconds before any session and after each of two
    sessions."""
    ways = steps()
    rows = {name: {"fresh_ms": 1e3 * step_s(step)} for name, step in ways.items()}
    for number in ("first", "second"):
        rows[f"{number} session"] = session(ways["eager"])
        for name, step in ways.items():
            rows[name][f"after_{number}_ms"] = 1e3 * step_s(step)
    return rows


def child(teardown: str | None) -> dict[str, dict[str, float]]:
    """Measure in a fresh process with this value of TEARDOWN_CUPTI; None for none."""
    env = {name: value for name, value in os.environ.items() if name != "TEARDOWN_CUPTI"}
    env |= {"TEARDOWN_CUPTI": teardown} if teardown is not None else {}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    rows: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", action="store_true", help="measure in this process, and print JSON")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measured()))
        return
    runs: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in CASES}
    for repeat in range(args.repeats):
        for name in list(CASES)[:: -1 if repeat % 2 else 1]:
            runs[name].append(child(CASES[name]))
            print(name, runs[name][-1], file=sys.stderr, flush=True)
    medians = {
        name: {
            way: {row: round(statistics.median(run[way][row] for run in done), 3) for row in done[0][way]}
            for way in done[0]
        }
        for name, done in runs.items()
    }
    text = json.dumps({**describe(), "medians": medians, "runs": runs}, indent=1) + "\n"
    print(text) if args.out is None else args.out.write_text(text)


if __name__ == "__main__":
    main()
