"""What the sampler costs the parent: CPU time a sample, and the share of one core at its interval.

Run by hand: `python benchmarks/sampler_cost.py [--processes 20] [--threads 8] [--gpus]`. The tree it watches
sleeps, so that the cost does not depend on how loaded it is. `--seconds` lets it run by itself as well, with
the thread that asks for PCIe throughput and reading less often where it costs too much, and tells the share
of one core of all its threads. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from dynotune.probe import Sampler, descendants, host, nvml
from dynotune.probe.sampling.sampler import INTERVAL_S
from dynotune.schema.facts import Unknown

SLEEPERS = """
import os, sys, threading
processes, threads = int(sys.argv[1]), int(sys.argv[2])
forever = threading.Event()
for _ in range(processes - 1):
    if os.fork() == 0:
        break
for _ in range(threads - 1):
    threading.Thread(target=forever.wait, daemon=True).start()
print("ready", flush=True)
forever.wait()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--gpus", action="store_true", help="also ask NVML about every visible GPU")
    arguments = parser.parse_args()
    gpus = nvml.visible_gpus(os.environ) if arguments.gpus else []
    if isinstance(gpus, Unknown):
        raise SystemExit(gpus.reason)
    command = [sys.executable, "-c", SLEEPERS, str(arguments.processes), str(arguments.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as tree:
        assert tree.stdout is not None
        for _ in range(arguments.processes):
            tree.stdout.readline()
        sampler = Sampler(host.usable_cpus(), gpus, lambda: descendants(tree.pid))
        sampler.sample()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(arguments.samples):
            found = sampler.sample()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        running = share_running(gpus, tree.pid, arguments.seconds) if arguments.seconds else None
        os.killpg(tree.pid, 9)
    print(
        json.dumps(
            {
                "processes": getattr(found.tree, "num_processes", None),
                "threads_each": arguments.threads,
                "gpus": len(gpus),
                "cpu_ms_a_sample": round(1e3 * cpu_s / arguments.samples, 3),
                "wall_ms_a_sample": round(1e3 * wall_s / arguments.samples, 3),
                "share_of_a_core_unlimited": round(cpu_s / arguments.samples / INTERVAL_S, 5),
                "share_of_a_core_running": running,
            }
        )
    )


def share_running(gpus: list[int], pid: int, seconds: float) -> float:
    """CPU time of all threads over the time that passed."""
    with Sampler(host.usable_cpus(), gpus, lambda: descendants(pid)):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return round(cpu_s / wall_s, 5)


if __name__ == "__main__":
    main()
