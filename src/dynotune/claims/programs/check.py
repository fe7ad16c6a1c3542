"""Evaluate one claim's check in the user's interpreter: `python check.py EXPRESSION`, from claims/ledger.toml.

Prints JSON: `so`, whether the claim is so; `seen`, what was compared; `untestable`, why nothing can be said here. It
needs the standard library, numpy and torch, and each process evaluates one expression, so that none disturbs another.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
SEEN: list[str] = []
"""Put into words how helpers compared."""


class Untestable(Exception):
    """This interpreter or machine lacks what the claim is about."""


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Untestable(f"{error.name} is not installed") from None


def near(observed: float, claimed: float, within: float = 0.05) -> bool:
    """Whether a number is as claimed, within a share of it."""
    SEEN.append(f"{observed:.6g}, claimed {claimed:.6g}")
    return abs(observed - claimed) <= within * abs(claimed)


def same(observed: object, claimed: object) -> bool:
    SEEN.append(f"{observed}, claimed {claimed}")
    return observed == claimed


def noted(value: T, what: str) -> T:
    """Note a value that the expression goes on with."""
    SEEN.append(f"{what}: {value:.6g}" if isinstance(value, float) else f"{what}: {value}")
    return value


def has(path: str) -> bool:
    """Whether a dotted name exists in an installed package, whose version is noted."""
    package, *names = path.split(".")
    found = module(package)
    noted(getattr(found, "__version__", "unknown"), package)
    for name in names:
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


def source_of(name: str) -> str:
    return inspect.getsource(module(name))


def on_gpu() -> Any:
    """Return torch with a GPU in use. Raises Untestable."""
    torch = module("torch")
    if not torch.cuda.is_available():
        raise Untestable("there is no GPU that torch can use")
    torch.zeros(1, device="cuda").item()
    return torch


def no_gpu() -> bool:
    if module("torch").cuda.is_available():
        raise Untestable("there is a GPU")
    return True


def in_process(expression: str, **variables: str) -> tuple[int, str]:
    """Evaluate with other variables in a process of its own; return its exit code and what it printed last."""
    code = f"import runpy; names = runpy.run_path({__file__!r}); print(eval({expression!r}, names))"
    env = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"} | variables
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout.splitlines() or [""])[-1]


@functools.cache
def workspace_bytes(value: str, late: bool = False) -> float:
    """Return the bytes of cuBLAS's workspace for its variable: measured, or as documented without a GPU.

    `late`: the variable is set once there is a CUDA context, before the first product.
    """
    torch = module("torch")
    if not torch.cuda.is_available():
        size_kib, count = map(int, value.strip(":").split(":"))
        return noted(1024.0 * size_kib * count, "as documented")
    set_late = f"os.environ.update(CUBLAS_WORKSPACE_CONFIG={value!r}) or " if late else ""
    variables = {} if late else {"CUBLAS_WORKSPACE_CONFIG": value}
    code, said = in_process(f"on_gpu() and ({set_late}workspace_taken())", **variables)
    if code or float(said) <= 0:
        raise Untestable("this torch takes the workspace from elsewhere than its allocator")
    return noted(float(said), f"measured with {value}")


def workspace_taken() -> int:
    torch = on_gpu()
    a = torch.zeros(64, 64, device="cuda")
    out, before = torch.empty_like(a), torch.cuda.memory_allocated()
    torch.mm(a, a, out=out)
    return torch.cuda.memory_allocated() - before


def device_allocations(expression: str) -> int:
    """Count calls of cudaMalloc in a hundred evaluations after warm-up."""
    torch = on_gpu()
    names = {"torch": torch, "a": torch.zeros(256, 256, device="cuda")}
    counts = []
    for _ in range(2):
        for _ in range(100):
            eval(expression, names)
        counts.append(torch.cuda.memory_stats()["num_device_alloc"])
    return noted(counts[1] - counts[0], "cudaMalloc in 100 calls")


def bytes_freed(expression: str) -> int:
    """Return how many bytes of tensors are gone after the expression."""
    torch = on_gpu()
    _kept = [torch.zeros(1000, 1000, device="cuda") for _ in range(8)]
    del _kept[::2]
    before = torch.cuda.memory_allocated()
    eval(expression, {"torch": torch, "gc": gc})
    return noted(before - torch.cuda.memory_allocated(), "bytes of tensors freed")


def has_machine_code() -> bool:
    """Whether torch's build holds machine code that this GPU runs."""
    torch = on_gpu()
    major, minor = torch.cuda.get_device_capability()
    built = [re.fullmatch(r"sm_(\d+)(\d)[af]?", name) for name in noted(torch.cuda.get_arch_list(), "built for")]
    return any(one and int(one[1]) == major and int(one[2]) <= minor for one in built)


def runs_with(**variables: str) -> bool:
    on_gpu()
    code, _ = in_process("work_on_gpu()", **variables)
    return noted(code == 0, f"runs with {variables}")


def work_on_gpu() -> float:
    """Run what programs run: a product, a convolution, elementwise work."""
    torch = on_gpu()
    a = torch.randn(8, 3, 64, 64, device="cuda")
    convolved = torch.nn.functional.conv2d(a, torch.randn(64, 3, 3, 3, device="cuda")).relu()
    return float((convolved.flatten(1) @ torch.randn(convolved[0].numel(), 8, device="cuda")).softmax(1).sum())


def jit_cache_bytes() -> int:
    """Return what the driver kept of compiled PTX after a program."""
    on_gpu()
    with tempfile.TemporaryDirectory() as folder:
        in_process("work_on_gpu()", CUDA_CACHE_PATH=folder)
        # The index is there with nothing in it, too.
        kept = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != "index"]
        return noted(sum(path.stat().st_size for path in kept), "bytes in the JIT cache")


def overlap(*, pinned: bool, side: bool = True) -> float:
    """Return which share of a copy, on a stream of its own if `side`, is hidden behind products that run beside it."""
    torch = on_gpu()
    source = torch.zeros(64 * 2**20, dtype=torch.uint8, pin_memory=pinned)
    target, a = torch.empty_like(source, device="cuda"), torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()

    def copy() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    copy_s, product_s = median_s(copy), median_s(lambda: torch.mm(a, a))
    num_products = max(1, round(copy_s / product_s))

    def compute() -> None:
        for _ in range(num_products):
            torch.mm(a, a)

    def both() -> None:
        copy()  # first: a host that waits for it starts no product meanwhile
        compute()

    compute_s, both_s = median_s(compute), median_s(both)
    return noted((copy_s + compute_s - both_s) / min(copy_s, compute_s), "share hidden")


def worker_pids(num_workers: int, epochs: int = 1, **options: Any) -> list[set[int]]:
    """Return the processes that made the samples, of each epoch."""
    torch = module("torch")

    def pid_of(_index: list[int]) -> int:
        return os.getpid()

    loader = torch.utils.data.DataLoader(range(4 * num_workers), num_workers=num_workers, collate_fn=pid_of, **options)
    return noted([set(loader) for _ in range(epochs)], "processes")


def transposed() -> Any:
    numpy = module("numpy")
    return numpy.transpose(numpy.zeros((480, 640, 3), numpy.uint8), (2, 0, 1))


def found_in_pool(num_frames: int) -> int:
    """Return how often a pool gives a tensor again that looks up by shape and puts back by number of elements."""
    torch = module("torch")
    pool: dict[Any, list[Any]] = {}
    found = 0
    for _ in range(num_frames):
        free = pool.setdefault(((3, 8, 8), torch.float32), [])
        found += bool(free)
        tensor = free.pop() if free else torch.empty(3, 8, 8)
        pool.setdefault((tensor.numel(), tensor.dtype), []).append(tensor)
    return noted(found, f"of {num_frames} tensors from the pool")


def gradient(*, steps: int = 1, batches: int = 1, norm: bool = False) -> float:
    """Return the norm of a gradient: after steps without zero_grad, or of one batch in several micro-batches."""
    torch = module("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8) if norm else torch.nn.Tanh())
    model.append(torch.nn.Linear(8, 1))
    data = torch.randn(32, 8)
    for _ in range(steps):
        for part in data.chunk(batches):
            (model(part).square().mean() / batches).backward()
    return float(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm())


def traces_written(num_steps: int) -> int:
    """Count the traces of a schedule without `repeat`."""
    profiler = module("torch.profiler")
    written: list[Any] = []
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(wait=1, warmup=1, active=3),
        on_trace_ready=written.append,
    ) as profile:
        for _ in range(num_steps):
            profile.step()
    return len(written)


def evaluated(expression: str) -> Any:
    return eval(expression, globals() | ({"torch": module("torch")} if "torch" in expression else {}))


def warns(expression: str, of: str = "") -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluated(expression)
    return bool(noted([text[:100] for one in caught if of in (text := str(one.message))], "warnings"))


def fails(expression: str) -> bool:
    try:
        evaluated(expression)
    except (RuntimeError, SyntaxError) as error:
        return bool(noted(str(error).splitlines()[0], "error"))
    return False


def median_s(call: Callable[[], object]) -> float:
    """Return the median seconds of a call on the GPU, synchronised at both ends."""
    torch, values = on_gpu(), []
    for _ in range(23):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        call()
        torch.cuda.synchronize()
        values.append(time.perf_counter() - begin_s)
    return sorted(values[3:])[10]


def most_outputs_alive(num_layers: int) -> int:
    """Return how many layers' outputs live at once in inference."""
    torch = module("torch")
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(num_layers)))
    outputs: list[Any] = []
    alive: list[int] = []
    for layer in model:
        layer.register_forward_hook(lambda _module, _inputs, output: outputs.append(weakref.ref(output)))
        layer.register_forward_hook(lambda *_: alive.append(sum(one() is not None for one in outputs)))
    with torch.inference_mode():
        model(torch.zeros(1, 8))
    return max(alive)


def bytes_copied(samples: Any) -> int:
    """Return the private bytes that a forked process gets by reading all samples."""
    read_end, write_end = os.pipe()

    def private_bytes() -> int:
        return 1024 * int(re.findall(r"Private_Dirty:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())[0])

    if not (pid := os.fork()):
        before = private_bytes()
        deque(samples, maxlen=0)
        os.write(write_end, str(private_bytes() - before).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write_end)
    return noted(int(os.read(read_end, 32)), f"bytes copied for reading a {type(samples).__name__}")


def main(expression: str) -> None:
    try:
        so = bool(evaluated(expression))
        answer = {"so": so, "seen": "; ".join(dict.fromkeys(SEEN)) or f"{expression} is {so}"}
    except Untestable as reason:
        answer = {"untestable": str(reason)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
