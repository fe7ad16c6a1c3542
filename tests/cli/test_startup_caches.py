"""`dynotune startup warm`, `pack` and `unpack`, as a user types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TINY = """
import torch
torch.set_num_threads(1)
compiled = torch.compile(lambda x: torch.relu(x) + 1)
print(compiled(torch.ones(8)).sum().item())
"""
COMPILER = """#!/bin/sh
for word in "$@"; do case "$word" in -shared|-c|*.cpp) echo "$word" >> "{log}"; break;; esac; done
exec {real} "$@"
"""
NO_TORCH = ("--python", sys.executable)


@pytest.fixture
def filled(user, tmp_path) -> Path:
    """A folder of caches, as `warm --caches` leaves it."""
    folder = tmp_path / "caches"
    (folder / "inductor/fxgraph").mkdir(parents=True)
    (folder / "inductor/fxgraph/graph").write_bytes(b"compiled")
    return folder


def packed(user, filled: Path) -> dict:
    answer = user.types("startup", "pack", "a.pack", "--caches", str(filled), *NO_TORCH, "--json", "-")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_program_is_warmed_packed_and_unpacked_by_somebody_else(user, tmp_path):
    program = f'f="$CUDA_CACHE_PATH/entry"; [ -e "$f" ] || echo code > "$f"; echo {sys.executable}'
    words = ("--run-dir", str(user.runs), "--no-lock", "--json", "warm.json", "--", "sh", "-c", program)
    answer = user.types("startup", "warm", "--caches", "../mine", *words)
    assert answer.returncode == 0, answer.stderr
    assert "Warm:" in answer.stdout and "export CUDA_CACHE_PATH=" in answer.stdout
    assert json.loads((user.cwd / "warm.json").read_text())["end"] == "warm"

    answer = user.types("startup", "pack", "a.pack", "--caches", "../mine", *NO_TORCH)
    assert answer.returncode == 0, answer.stderr
    digest = next(line.split()[-1] for line in answer.stdout.splitlines() if line.startswith("sha256 "))
    assert f"--sha256 {digest} --caches /opt/compile-caches" in answer.stdout
    assert "persistentVolumeClaim" in answer.stdout

    theirs = tmp_path / "theirs"
    answer = user.types("startup", "unpack", "a.pack", "--sha256", digest, "--caches", str(theirs), *NO_TORCH)
    assert answer.returncode == 0, answer.stderr
    assert (theirs / "cuda/entry").read_text() == "code\n"
    assert json.loads((theirs / "pack.json").read_text())["caches"] == ["cuda"]
    assert f'mountPath: "{theirs}"' in answer.stdout
    assert f'COPY ["{str(theirs)[1:]}/", "{theirs}/"]' in answer.stdout
    assert f"CUDA_CACHE_PATH={theirs}/cuda" in (theirs / "environment.sh").read_text()


def test_a_program_that_never_is_warm_ends_with_exit_code_1(user):
    program = 'echo 1 > "$CUDA_CACHE_PATH/$$"'
    words = ("--max-runs", "1", "--run-dir", str(user.runs), "--no-lock", "--", "sh", "-c", program)
    answer = user.types("startup", "warm", "--caches", "../mine", *words)
    assert answer.returncode == 1
    assert "Not warm:" in answer.stdout


@pytest.mark.long
def test_nothing_is_taken_on_nobodys_word(user, filled, tmp_path):
    packed(user, filled)
    answer = user.types("startup", "unpack", "a.pack", "--caches", str(tmp_path / "theirs"))
    assert answer.returncode == 2
    assert "Compile caches are code" in answer.stderr and "--sha256" in answer.stderr
    answer = user.types(
        "startup", "unpack", "a.pack", "--sha256", "0" * 64, "--caches", str(tmp_path / "theirs")
    )
    assert answer.returncode == 3 and "not the expected pack" in answer.stderr
    assert not (tmp_path / "theirs").exists()


@pytest.mark.long
def test_a_pack_of_another_python_is_refused_with_the_reason_and_taken_by_force(user, filled, tmp_path):
    other = tmp_path / "bin/python"
    other.parent.mkdir()
    fake = '{"facts": {"python.version": "3.99.0"}, "unknown": {}}'
    other.write_text(f"#!/bin/sh\nprintf '\\ndynotune-facts:%s\\n' '{fake}'\n")
    other.chmod(0o755)
    packed(user, filled)
    words = (
        "startup",
        "unpack",
        "a.pack",
        "--trust",
        "--caches",
        str(tmp_path / "theirs"),
        "--python",
        str(other),
    )
    answer = user.types(*words)
    assert answer.returncode == 3
    assert (
        "Python: packed with" in answer.stderr and "here 3.99" in answer.stderr and "--force" in answer.stderr
    )
    assert not (tmp_path / "theirs").exists()
    answer = user.types(*words, "--force")
    assert answer.returncode == 0, answer.stderr
    assert "useless: Python" in answer.stdout
    assert (tmp_path / "theirs/inductor/fxgraph/graph").read_bytes() == b"compiled"


def test_caches_that_are_not_there_cannot_be_packed(user):
    answer = user.types("startup", "pack", "a.pack", "--caches", "nowhere")
    assert answer.returncode == 2 and "startup warm --caches nowhere" in answer.stderr
    answer = user.types("startup", "pack", "a.pack", "--without", "cudnn")
    assert answer.returncode == 2 and "cuda, inductor" in answer.stderr


@pytest.mark.long
def test_inductors_kernels_are_found_where_they_were_unpacked_and_nothing_is_compiled(user, tmp_path):
    pytest.importorskip("torch")
    user.write("tiny.py", TINY)
    log = tmp_path / "compiled"
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin/g++"
    real = shutil.which("g++")
    if real is None:
        pytest.skip("there is no C++ compiler")
    compiler.write_text(COMPILER.format(log=log, real=real))
    compiler.chmod(0o755)
    user.env |= {
        "PATH": f"{compiler.parent}:{os.environ['PATH']}",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"

    def starts(caches: Path, name: str) -> str:
        """What a start prints, and how many compilers it took."""
        home = tmp_path / name
        home.mkdir()
        moved = {"HOME": str(home), "LOGNAME": name, "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
        env = {key: value for key, value in user.env.items() if key != "PYTHONPATH"} | moved
        log.write_text("")
        ended = subprocess.run(
            [sys.executable, "tiny.py"], cwd=user.cwd, env=env, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return f"{ended.stdout.strip()} after {len(log.read_text().splitlines())} compilations"

    first = starts(mine, "ann")
    assert first.startswith("16.0") and not first.endswith(" 0 compilations")
    answer = user.types("startup", "pack", "a.pack", "--caches", str(mine), "--", sys.executable, "tiny.py")
    assert answer.returncode == 0, answer.stderr
    mine.rename(tmp_path / "gone")
    words = ("--trust", "--caches", str(theirs), "--", sys.executable, "tiny.py")
    answer = user.types("startup", "unpack", "a.pack", *words)
    assert answer.returncode == 0, answer.stderr
    assert "TORCHINDUCTOR_VEC_ISA_OK=1" in answer.stdout
    assert starts(theirs, "bob") == "16.0 after 0 compilations"
