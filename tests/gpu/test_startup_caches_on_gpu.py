"""Caches of the GPU's compilers, packed and unpacked elsewhere: nothing is compiled again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.launch.caches import conditions, contents, pack, unpack

pytestmark = pytest.mark.gpu

GRAPH = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
compiled = torch.compile(net)
compiled(torch.ones(8, 64, device="cuda")).sum().backward()
torch.cuda.synchronize()
"""
KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

x = torch.zeros(1000, device="cuda")
add_one[(1,)](x, 1000, BLOCK=1024)
assert x.sum().item() == 1000
"""
PTX_ONLY = """
#include <cstdio>
__global__ void add_one(float* x) { x[threadIdx.x] += 1; }
int main() {
    float* x;
    cudaMalloc(&x, 1024);
    add_one<<<1, 32>>>(x);
    return cudaDeviceSynchronize() != cudaSuccess;
}
"""


def environment(folder: Path, home: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DYNOTUNE_RUN")}
    return {**kept, "HOME": str(home), "LOGNAME": home.name, **contents.own_environment(folder, {})}


def runs(command: list[str], env: dict[str, str]) -> None:
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def files(env: dict[str, str], *names: str) -> dict[str, int]:
    """Every file of these caches, and which one it is: one that is compiled again is another file."""
    return {
        f"{place.name}/{path}": status.st_ino
        for place in contents.places(env, Path.cwd())
        if place.name in names and isinstance(place.path, Path)
        for path, status in contents.entries(place.path)
        if path != "index"
    }


def moved(tmp_path: Path, command: list[str], *names: str) -> None:
    """Run it cold, pack, take the caches away, unpack elsewhere, run it again: nothing new, nothing
    replaced."""
    mine, theirs = (
        environment(tmp_path / "mine", tmp_path / "ann"),
        environment(tmp_path / "theirs", tmp_path / "bob"),
    )
    runs(command, mine)
    assert files(mine, *names), f"nothing was cached in {names}"
    now = conditions.here(mine, sys.executable, Path.cwd())
    assert now.gpus and now.driver
    without = ["headers"]
    pack.pack(tmp_path / "p", contents.places(mine, Path.cwd()), now, env=mine, without=without)
    (tmp_path / "mine").rename(tmp_path / "gone")
    with unpack.opened(tmp_path / "p") as file:
        assert conditions.differences(unpack.read_manifest(file, "p").origin, now) == []
        unpack.unpack(file, "p", contents.places(theirs, Path.cwd()))
    before = files(theirs, *names)
    assert before
    runs(command, theirs)
    assert files(theirs, *names) == before


def test_graphs_of_inductor_are_found_where_they_were_unpacked(tmp_path):
    (tmp_path / "graph.py").write_text(GRAPH)
    moved(tmp_path, [sys.executable, str(tmp_path / "graph.py")], "inductor", "triton")


def test_a_kernel_of_triton_is_found_where_it_was_unpacked(tmp_path):
    """Triton lists a kernel's files by absolute paths: unpacking has to put them right."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    moved(tmp_path, [sys.executable, str(tmp_path / "kernel.py")], "triton")


def test_machine_code_of_the_driver_is_found_where_it_was_unpacked(tmp_path):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("there is no nvcc")
    (tmp_path / "add.cu").write_text(PTX_ONLY)
    target = ["-gencode", "arch=compute_75,code=compute_75", "-o", str(tmp_path / "add")]
    subprocess.run([nvcc, *target, str(tmp_path / "add.cu")], check=True)
    moved(tmp_path, [str(tmp_path / "add")], "cuda")
