from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.launch.caches import contents
from dynotune.launch.caches.contents import cuda_limit_bytes, places
from dynotune.schema.facts import Unknown

USER = pwd.getpwuid(os.getuid()).pw_name
CWD = Path("/somewhere")


def paths(env: dict[str, str], cwd: Path = CWD) -> dict[str, str]:
    return {place.name: str(place.path) for place in places(env, cwd)}


def test_without_variables_each_cache_is_where_its_library_puts_it():
    found = paths({"HOME": "/home/me"})
    assert found == {
        "cuda": "/home/me/.nv/ComputeCache",
        "inductor": f"/tmp/torchinductor_{USER}",
        "headers": f"/tmp/torchinductor_{USER}/precompiled_headers",
        "triton": "/home/me/.triton/cache",
        "jiterator": "/home/me/.cache/torch/kernels",
    }


def test_variables_move_the_caches_and_relative_ones_mean_the_commands_folder(tmp_path):
    (tmp_path / "tmp").mkdir()
    found = paths(
        {
            "HOME": "/home/me",
            "LOGNAME": "a/b",
            "TMPDIR": str(tmp_path / "tmp"),
            "XDG_CACHE_HOME": "/xdg",
            "TRITON_HOME": "/t",
            "CUDA_CACHE_PATH": "nv",
        },
        tmp_path,
    )
    assert found == {
        "cuda": str(tmp_path / "nv"),
        "inductor": str(tmp_path / "tmp/torchinductor_a_b"),
        "headers": str(tmp_path / "tmp/torchinductor_a_b/precompiled_headers"),
        "triton": "/t/.triton/cache",
        "jiterator": "/xdg/torch/kernels",
    }


def test_inductors_headers_stay_in_the_folder_for_temporary_files():
    found = paths(
        {
            "HOME": "/home/me",
            "USER": "me",
            "TORCHINDUCTOR_CACHE_DIR": "/data/i",
            "TRITON_CACHE_DIR": "/data/t",
        }
    )
    assert (found["inductor"], found["triton"]) == ("/data/i", "/data/t")
    assert found["headers"] == "/tmp/torchinductor_me/precompiled_headers"


def test_without_a_home_the_driver_keeps_nothing():
    (cuda,) = (place for place in places({}, CWD) if place.name == "cuda")
    assert isinstance(cuda.path, Unknown) and cuda.off


@pytest.mark.parametrize(
    ("variable", "value", "cache"),
    [
        ("CUDA_CACHE_DISABLE", "1", "cuda"),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1", "inductor"),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0", "inductor"),
        ("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0", "headers"),
        ("TRITON_ALWAYS_COMPILE", "1", "triton"),
        ("USE_PYTORCH_KERNEL_CACHE", "0", "jiterator"),
    ],
)
def test_a_cache_that_is_switched_off_says_so_and_the_others_do_not(variable, value, cache):
    found = places({"HOME": "/home/me", variable: value}, CWD)
    assert [place.name for place in found if place.off] == [cache]


def test_the_jiterator_keeps_nothing_in_a_given_folder_that_is_not_there(tmp_path):
    for folder, is_there in ((tmp_path, True), (tmp_path / "no", False)):
        (place,) = (
            p for p in places({"PYTORCH_KERNEL_CACHE_PATH": str(folder)}, CWD) if p.name == "jiterator"
        )
        assert bool(place.off) is not is_there


def test_the_drivers_limit_is_capped_and_unknown_where_it_is_not_set():
    assert cuda_limit_bytes({"CUDA_CACHE_MAXSIZE": "1000"}) == 1000
    assert cuda_limit_bytes({"CUDA_CACHE_MAXSIZE": str(1 << 40)}) == 4 << 30
    assert isinstance(cuda_limit_bytes({}), Unknown)
    assert isinstance(cuda_limit_bytes({"CUDA_CACHE_MAXSIZE": "4G"}), Unknown)


def test_sizes_leave_out_locks_temporary_files_links_and_other_caches_inside(tmp_path):
    inductor = tmp_path / "inductor"
    for name in (
        "ab/kernel.so",
        "fxgraph/x/y",
        "locks/a.lock",
        "ab/.12.34.tmp",
        "tmp.pid_1_x/k",
        "triton/0/K/k.cubin",
    ):
        (inductor / name).parent.mkdir(parents=True, exist_ok=True)
        (inductor / name).write_bytes(b"12345")
    (inductor / "link").symlink_to("/etc/passwd")
    os.mkfifo(inductor / "pipe")
    env = {
        "HOME": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "TRITON_CACHE_DIR": str(inductor / "triton"),
    }
    found = {cache.name: cache for cache in contents.sizes(env, tmp_path)}
    assert (found["inductor"].num_files, found["inductor"].size_bytes) == (2, 10)
    assert (found["triton"].num_files, found["triton"].size_bytes) == (1, 5)
    assert (found["cuda"].num_files, found["cuda"].size_bytes, found["cuda"].writable) == (0, 0, True)


def test_the_index_of_the_drivers_cache_is_no_kernel(tmp_path):
    """It is written also where the limit lets nothing be kept."""
    env = {"HOME": "/nowhere", "CUDA_CACHE_PATH": str(tmp_path)}
    (tmp_path / "index").write_bytes(b"16 bytes of index")
    found = places(env, tmp_path)
    assert next(cache for cache in contents.sizes(env, tmp_path) if cache.name == "cuda").num_files == 0
    empty = contents.snapshot(found)
    (tmp_path / "index").write_bytes(b"17 bytes of index and more")
    assert contents.growth(empty, contents.snapshot(found)) == []
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index").write_bytes(b"code")
    assert [growth.size_bytes for growth in contents.growth(empty, contents.snapshot(found))] == [4]


def test_a_file_that_is_gone_when_it_is_looked_at_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"22")
    scan = os.scandir

    def scan_and_lose(path):
        (tmp_path / "c").write_bytes(b"333")
        scanned = list(scan(path))
        (tmp_path / "c").unlink()

        class Listing:
            def __init__(self, found):
                self._found = iter(found)

            def __iter__(self):
                return self

            def __next__(self):
                return next(self._found)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

        return Listing(scanned)

    monkeypatch.setattr(os, "scandir", scan_and_lose)
    assert [name for name, _ in contents.entries(tmp_path)] == ["a", "b"]


FILES = st.dictionaries(
    st.sampled_from(["fxgraph/a", "fxgraph/b", "aotautograd/c", "ab/d", "e"]), st.integers(0, 9)
)


@given(before=FILES, after=FILES)
def test_growth_is_what_is_new_and_what_files_grew_by(before, after):
    found = contents.growth({"inductor": before}, {"inductor": after})
    new = [path for path in after if path not in before or after[path] > before[path]]
    gone = set(before) - set(after)
    if not new and not gone:
        assert found == []
        return
    (growth,) = found
    assert growth.num_files == len(new)
    assert growth.size_bytes == sum(after[path] - before.get(path, 0) for path in new)
    assert growth.num_removed == len(gone)
    assert set(growth.kinds) == {path.split("/")[0] for path in new} & {"fxgraph", "aotautograd"}


def test_the_variables_of_a_folder_are_found_again_and_no_others(tmp_path):
    chosen = contents.own_environment(tmp_path, {})
    assert chosen["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0"
    evil = {
        "LD_PRELOAD": "/evil.so",
        "TRITON_CACHE_MANAGER": "evil:Manager",
        "TORCHINDUCTOR_FREEZING": "a b'c",
    }
    contents.write_variables(tmp_path, {**chosen, **evil, "TORCHINDUCTOR_CPP_WRAPPER": "1"})
    found = contents.read_variables(tmp_path)
    assert found == {**chosen, "TORCHINDUCTOR_CPP_WRAPPER": "1"}
    assert contents.own_environment(tmp_path, {}) == found


def test_a_folder_that_was_filled_otherwise_keeps_its_headers(tmp_path):
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor" / "x.so").touch()
    assert "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS" not in contents.own_environment(tmp_path, {})
