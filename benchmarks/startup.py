"""Starts with caches cold, warm, too small, disabled; and with caches that were packed and unpacked
elsewhere.

    python benchmarks/startup.py --device cuda [--pairs 8] [--only ptx] [--work DIR]
    python benchmarks/startup.py --device cpu

`cuda`: 150 kernels built here with nvcc, as PTX for compute capability 7.5 alone and as machine code for this
GPU, each timed by `dynotune startup time` and explained by it and by `scan`; and two programs that
torch.compile compiles. `cpu`: a program of gcc, which has no caches, and the same two. What is finished is
kept: a second call goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynotune.launch.caches import contents
from lab import result_file
from lab.provenance import RESULTS, without_places

NETS = Path(__file__).parent / "programs" / "compiled_nets.py"
NUM_KERNELS = 150
READY = "kernels ran"
WITHIN = 0.10
"""Of a warm start: how much longer one with unpacked caches may take."""
IS_WITHIN = {"same": True, "faster": True, "slower": False}
"""By the verdict on unpacked against warm, with that margin; of any other verdict it is not known."""
KERNEL = """
__global__ void kernel_{n}(float* x, int size) {{
    __shared__ float tile[256];
    for (int i = threadIdx.x; i < size; i += blockDim.x) {{
        float a = x[i] + {n}.0f, b = a * 1.{n}f;
        #pragma unroll
        for (int j = 0; j < {unroll}; ++j) {{ a = fmaf(a, b, __sinf(b + j)); b = rsqrtf(fabsf(a) + j + 1.0f); }}
        tile[threadIdx.x] = a;
        __syncthreads();
        x[i] = tile[threadIdx.x ^ {lane}] + b;
    }}
}}
"""  # noqa: E501
MAIN = """
int main() {{
    float* x;
    if (cudaMalloc(&x, 4096 * sizeof(float)) != cudaSuccess) {{ fprintf(stderr, "no GPU\\n"); return 1; }}
{launches}
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) {{ fprintf(stderr, "%s\\n", cudaGetErrorString(error)); return 1; }}
    printf("{num} kernels ran\\n");
    fflush(stdout);
    sleep(1000);
    return 0;
}}
"""
ON_CPU = """
#include <stdio.h>
#include <unistd.h>
int main() {{
    volatile double sum = 0;
    for (long i = 1; i < 200000000; ++i) sum += 1.0 / i;
    printf("0 kernels ran\\n");
    fflush(stdout);
    sleep(1000);
    return 0;
}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--pairs", type=int, default=8, help="Most blocks, and pairs, of each case.")
    parser.add_argument("--only", action="append", help="This case; repeat for more.")
    parser.add_argument("--work", type=Path, help="Folder for programs, caches and runs.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    work = args.work or Path(tempfile.gettempdir()) / f"dynotune-startup-{args.device}"
    work.mkdir(parents=True, exist_ok=True)
    target = args.out / f"startup_{args.device}.json"
    for name, case in cases(args.device, work, args.pairs).items():
        if (args.only and name not in args.only) or name in result_file.read(target).get("cases", {}):
            continue
        print(f"== {name}", flush=True)
        found = case()
        with result_file.opened(target) as result:
            text = without_places(json.dumps(found)).replace(str(work), "WORK")
            result.setdefault("cases", {})[name] = json.loads(text)
    print(table(result_file.read(target).get("cases", {})))


def cases(device: str, work: Path, pairs: int) -> dict[str, Callable[[], dict[str, Any]]]:
    def program(*flags: str, **env: str) -> Callable[[], dict[str, Any]]:
        return lambda: of_program(build(work, device, *flags), work, pairs, env)

    found: dict[str, Callable[[], dict[str, Any]]] = {}
    if device == "cuda":
        ptx = ("-gencode", "arch=compute_75,code=compute_75")
        found["native"] = program("-arch=native")
        found["ptx"] = program(*ptx)
        found["ptx, cache of 1000 bytes"] = program(*ptx, CUDA_CACHE_MAXSIZE="1000")
        found["ptx, cache disabled"] = program(*ptx, CUDA_CACHE_DISABLE="1")
        found["ptx, eager loading"] = program(*ptx, CUDA_MODULE_LOADING="EAGER")
    else:
        found["gcc"] = program("-O1")
    for net in ("resnet", "transformer"):
        command = [sys.executable, str(NETS.resolve()), "--net", net, "--device", device]
        found[net] = lambda command=command: of_compiled(command, work, pairs)
        found[f"{net}, unpacked"] = lambda net=net, command=command: of_unpacked(net, command, work, pairs)
    return found


def build(work: Path, device: str, *flags: str) -> Path:
    """The program of 150 kernels, or on the CPU one without any."""
    binary = work / f"program-{zlib.crc32(' '.join(flags).encode()):x}"
    if binary.exists():
        return binary
    if device == "cpu":
        source, compiler = work / "program.c", "gcc"
        source.write_text(ON_CPU.format())
    else:
        source, compiler = work / "program.cu", "nvcc"
        kernels = [KERNEL.format(n=n, unroll=8 + n % 9, lane=1 << n % 7) for n in range(NUM_KERNELS)]
        launches = "\n".join(f"    kernel_{n}<<<1, 128>>>(x, 4096);" for n in range(NUM_KERNELS))
        head = "#include <stdio.h>\n#include <unistd.h>\n"
        source.write_text(head + "".join(kernels) + MAIN.format(launches=launches, num=NUM_KERNELS))
    subprocess.run([compiler, *flags, "-o", str(binary), str(source)], check=True)
    return binary


def dynotune(
    *words: str, env: dict[str, str] | None = None, fails: bool = False
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dynotune", *words]
    print("$", shlex.join(["dynotune", *words]), flush=True)
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode and not fails:
        raise SystemExit(
            f"{shlex.join(words)} exits with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done


def of_program(binary: Path, work: Path, pairs: int, env: dict[str, str]) -> dict[str, Any]:
    """Timed to its line, and explained."""
    scanned = json.loads(dynotune("startup", "scan", str(binary), "--json", "-").stdout)
    verdicts = [each["verdict"] for library in scanned["libraries"] for each in library["verdicts"]]
    found = timed(["--ready-pattern", READY], [str(binary)], work, pairs, env)
    return {
        **found,
        "environment": env,
        "scan": verdicts[0] if verdicts else "no GPU code",
        **explained(env, verdicts, found),
    }


def explained(env: dict[str, str], verdicts: list[str], found: dict[str, Any]) -> dict[str, Any]:
    """Whether `scan` and `time` say what is so, which is known here from how the program was built."""
    compiles, ids = "jit" in verdicts, set(found["findings"])
    wanted: set[str] = set()
    if compiles:
        wanted.add("ptx-jit-active")
        wanted |= {"jit-cache-too-small"} if "CUDA_CACHE_MAXSIZE" in env else set()
        wanted |= {"jit-cache-disabled"} if "CUDA_CACHE_DISABLE" in env else set()
        wanted |= {"module-loading-eager"} if "CUDA_MODULE_LOADING" in env else set()
    keeps = compiles and not {"CUDA_CACHE_MAXSIZE", "CUDA_CACHE_DISABLE"} & set(env)
    verdict = found["ratios"]["cold"]["verdict"]
    rightly = wanted <= ids and ("ptx-jit-active" in ids) == compiles
    # Where nothing is kept, or nothing compiled, a warm cache saves nothing.
    rightly = rightly and (verdict == "faster" if keeps else verdict in ("same", "undecided"))
    # Where every block was void there is no answer that could be right.
    return {"wanted_findings": sorted(wanted), "explained": rightly if found["num_blocks"] else None}


def of_compiled(command: list[str], work: Path, pairs: int) -> dict[str, Any]:
    return timed([], command, work, pairs, {})


def timed(
    options: list[str], command: list[str], work: Path, pairs: int, env: dict[str, str]
) -> dict[str, Any]:
    runs = work / "runs"
    options = [*options, "--blocks", str(pairs), "--run-dir", str(runs), "--json", "-"]
    done = dynotune("startup", "time", *options, "--", *command, env=env)
    startup = json.loads(done.stdout)
    # Of a machine with others on it every block may be void; the values are kept all the same, and said to be
    # so.
    blocks = startup["blocks"] or [voided["values"] for voided in startup["voided"]]
    starts: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ("cold", "warm", "off")}
    for block in blocks:
        for start in block["starts"]:
            starts[start["arm"]].append(start)
    return {
        "command": shlex.join(command),
        "median_s": {arm: median(start["value_s"] for start in each) for arm, each in starts.items()},
        "values_s": {arm: [start["value_s"] for start in each] for arm, each in starts.items()},
        "phases_s": {arm: phases(each) for arm, each in starts.items()},
        "held_bytes": {arm: each[-1]["held"] for arm, each in starts.items() if each},
        "ratios": {
            ratio["arm"]: {
                name: ratio[name] for name in ("verdict", "ratio", "ci", "num_blocks", "saved_s", "saved_ci")
            }
            for ratio in startup["ratios"]
        },
        "num_blocks": len(startup["blocks"]),
        "num_void": len(startup["voided"]),
        "findings": [finding["id"] for finding in startup["findings"]],
        "said": startup["said"],
        "to_set": startup["to_set"],
        "warnings": startup["warnings"],
    }


def phases(starts: list[dict[str, Any]]) -> dict[str, float]:
    names = starts[0]["phases"] if starts else {}
    values = {name: [start["phases"][name] for start in starts] for name in names}
    known = {
        name: each for name, each in values.items() if all(isinstance(value, int | float) for value in each)
    }
    return {name: statistics.median(each) for name, each in known.items() if any(each)}


def median(values: Any) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def of_unpacked(net: str, command: list[str], work: Path, pairs: int) -> dict[str, Any]:
    """Warm caches are packed, unpacked below a fresh home, and the starts with either compared."""
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        made, fresh, pack = (
            Path(scratch) / "made",
            Path(scratch) / "home" / "caches",
            Path(scratch) / f"{net}.pack",
        )
        fresh.parent.mkdir()
        runs = ("--run-dir", str(work / "runs"))
        warmed = json.loads(
            dynotune("startup", "warm", "--caches", str(made), *runs, "--json", "-", "--", *command).stdout
        )
        dynotune("startup", "pack", str(pack), "--caches", str(made), "--", *command)
        home = {"HOME": str(fresh.parent)}
        dynotune("startup", "unpack", str(pack), "--trust", "--caches", str(fresh), "--", *command, env=home)
        before = num_files(fresh)
        settings = [f"env.{name}={value}" for name, value in variables(fresh).items()] + [
            f"env.HOME={fresh.parent}"
        ]
        against = [f"env.{name}={value}" for name, value in variables(made).items()]
        compared = json.loads(
            dynotune(
                "compare", *settings, *(word for setting in against for word in ("--baseline", setting)),
                "--objective", "time-to-first-step", "--margin", str(WITHIN), "--pairs", str(pairs), *runs,
                "--json", "-", "--", *command,
            ).stdout
        )  # fmt: skip
        values = compared["pairs"] or [voided["values"] for voided in compared["voided"]]
        ratio = math.exp(statistics.fmean(math.log(v["candidate_s"] / v["baseline_s"]) for v in values))
        return {
            "command": shlex.join(command),
            "warm_runs": [run["time_to_first_step_s"] for run in warmed["runs"]],
            "warm_end": warmed["end"],
            "pack_bytes": pack.stat().st_size,
            "verdict": compared["verdict"],
            "warm_over_unpacked": compared["speedup"],
            "ci": compared["ci"],
            "unpacked_over_warm": ratio,
            "warm_s": median(value["baseline_s"] for value in values),
            "unpacked_s": median(value["candidate_s"] for value in values),
            "num_pairs": len(compared["pairs"]),
            "num_void": len(compared["voided"]),
            "num_files_added_by_starts": num_files(fresh) - before,
            "within": IS_WITHIN.get(compared["verdict"]),
        }


def variables(folder: Path) -> dict[str, str]:
    """Those that lead a command to these caches, as `warm` and `unpack` write them down."""
    words = shlex.split((folder / "environment.sh").read_text(), comments=True)
    return dict(word.split("=", 1) for word in words if "=" in word)


def num_files(folder: Path) -> int:
    """Of what counts: no locks, nothing temporary."""
    return sum(1 for _ in contents.entries(folder))


def table(found: dict[str, Any]) -> str:
    lines = [f"{'case':<26}{'cold':>9}{'warm':>9}{'off':>9}  cold/warm           explained by scan and time"]
    for name, case in found.items():
        if "unpacked_s" in case:
            files = case["num_files_added_by_starts"]
            lines.append(
                f"{name:<26}{'':>9}{seconds(case['warm_s'])}{'':>9}  unpacked {case['unpacked_s']:.3g} s: "
                f"{case['unpacked_over_warm']:.3f}× warm ({case['verdict']}, {case['num_pairs']} pairs, "
                f"{case['num_void']} void), {files} files added"
            )
            continue
        times = "".join(seconds(case["median_s"][arm]) for arm in ("cold", "warm", "off"))
        ratio = case["ratios"]["cold"]
        shown = f"{ratio['ratio']:.2f}× {ratio['verdict']}" if ratio["ratio"] else f"{ratio['verdict']}"
        words = {True: "rightly", False: "NOT", None: "not judged"}
        said = f"{case['scan']}; {words[case['explained']]}" if "scan" in case else ""
        findings = ", ".join(case["findings"]) or "no findings"
        lines.append(f"{name:<26}{times}  {shown:<18}  {said}  {findings}")
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    return f"{'unknown' if value is None else f'{value:.3g} s':>9}"


if __name__ == "__main__":
    main()
