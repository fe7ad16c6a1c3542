"""A cache of samples: what comes out is what went in, whoever shares it and whatever happens to its files."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from dynotune.runtime import InputError
from dynotune.runtime.data import SampleCache


class Squares(Dataset):
    """Each sample is its index, many times; `drawn` has a line for each that was computed, by any process."""

    def __init__(self, drawn, num=40, size=1000):
        self.drawn, self.num, self.size = drawn, num, size

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        if not 0 <= index < self.num:
            raise IndexError(index)
        with self.drawn.open("a") as file:
            file.write(f"{index}\n")
        return torch.full((self.size,), index**2, dtype=torch.int32), index


class Given(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


@pytest.fixture
def squares(tmp_path):
    return Squares(tmp_path / "drawn")


def cache_of(dataset, tmp_path, max_bytes=1 << 20, key="squares"):
    return SampleCache(dataset, tmp_path / "cache", max_bytes=max_bytes, key=key)


def drawn(squares):
    return [int(line) for line in squares.drawn.read_text().split()] if squares.drawn.exists() else []


def files(tmp_path):
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != "samples.txt"]


def size(tmp_path):
    return sum(path.stat().st_size for path in files(tmp_path))


def are_squares(samples):
    return [(int(values[0]), int(values[-1]), index) for values, index in samples] == [
        (i * i, i * i, i) for i in range(40)
    ]


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype and a.shape == b.shape and pickle.dumps(a.tolist()) == pickle.dumps(b.tolist())
        )
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b)


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
SHAPES = st.lists(st.integers(0, 3), max_size=3)
ARRAYS = st.builds(
    lambda shape, dtype, base: np.resize(np.array([0, 1, base, 7]), shape).astype(dtype),
    SHAPES,
    st.sampled_from(["?", "u1", "<i2", ">i4", "f2", "f8", "c8", "U3", "S2", "M8[s]"]),
    st.integers(0, 9),
)
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(int(np.prod(shape))).reshape(shape).to(dtype),
    SHAPES,
    st.sampled_from(
        [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
    ),
)
SAMPLES = st.recursive(
    SCALARS | ARRAYS | TENSORS | ARRAYS.map(lambda each: each.reshape(-1)[0] if each.size else np.float32(1)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(samples=st.lists(SAMPLES, min_size=1, max_size=3))
def test_any_sample_comes_back_as_it_was(tmp_path_factory, samples):
    cache = cache_of(Given(samples), tmp_path_factory.mktemp("cache"))
    for index, sample in enumerate(samples):
        assert cache[index] is sample
    cache.dataset = None
    for index, sample in enumerate(samples):
        assert same(cache[index], sample)


def test_views_strides_and_lazy_signs_are_kept_by_value_and_results_can_be_written(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    lazy = torch.tensor([1 + 2j, 3 - 1j]).conj()
    samples = [
        base.t()[::2],
        base[1:2].expand(3, 6),
        lazy,
        lazy.imag,
        np.asfortranarray(base.numpy())[:, ::-1],
    ]
    cache = cache_of(Given(samples), tmp_path)
    expected = [cache[index] for index in range(5)]
    cache.dataset = None
    for index, sample in enumerate(expected):
        again = cache[index]
        assert np.array_equal(
            np.asarray(again), np.asarray(sample.resolve_conj().resolve_neg() if index < 4 else sample)
        )
        again[...] = 0
        assert np.array_equal(
            np.asarray(cache[index]), np.asarray(sample.resolve_conj().resolve_neg() if index < 4 else sample)
        )


@pytest.mark.parametrize(
    "sample",
    [
        object(),
        np.array([object()]),
        np.zeros(2, dtype=[("a", "O")]),
        torch.nn.Parameter(torch.zeros(1)),
        torch.eye(2).to_sparse(),
        {"label": {1, 2}},
        (1, [b"bytes"]),
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_a_sample_that_would_not_come_back_as_it_was_is_refused_with_what_to_do(tmp_path, sample):
    cache = cache_of(Given([sample]), tmp_path)
    with pytest.raises(InputError, match=r"cannot be kept[\s\S]*before the cache"):
        cache[0]


def test_workers_of_the_first_epoch_compute_each_sample_once_and_those_of_the_second_none(tmp_path, squares):
    loader = DataLoader(cache_of(squares, tmp_path), batch_size=None, num_workers=2)
    assert are_squares(loader)
    assert sorted(drawn(squares)) == list(range(40))
    assert are_squares(loader)
    assert are_squares(cache_of(squares, tmp_path))
    assert len(drawn(squares)) == 40


def test_cache_is_a_dataset_as_the_one_it_holds_and_goes_to_spawned_workers(tmp_path, squares):
    cache = cache_of(squares, tmp_path)
    assert (len(cache), cache[-1 % 40][1], len(list(cache))) == (40, 39, 40)
    assert cache.dataset is squares
    with pytest.raises(IndexError):
        cache[40]
    other = pickle.loads(pickle.dumps(cache))
    other.dataset = None
    assert are_squares(map(other.__getitem__, range(40)))
    assert other[np.int64(3)][1] == 3


def job(folder, room, begin):
    """Three epochs, in a process of its own."""
    torch.set_num_threads(1)
    begin.wait()
    for _ in range(3):
        assert are_squares(cache_of(Squares(folder / "drawn", size=5000), folder, room))


@pytest.mark.parametrize("room", [40 * 21_000, 10 * 21_000])
def test_two_jobs_that_begin_at_once_share_a_folder_and_its_limit(tmp_path, room):
    processes = multiprocessing.get_context("fork")
    begin = processes.Barrier(2, timeout=120)
    jobs = [processes.Process(target=job, args=(tmp_path, room, begin)) for _ in range(2)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join(timeout=120)
    assert [each.exitcode for each in jobs] == [0, 0]
    assert 0.8 * room < size(tmp_path) <= room
    assert all(path.name.isdigit() for path in files(tmp_path))


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=12), limit=st.integers(1, 12_000))
def test_files_never_hold_more_than_the_limit_and_a_sample_that_fits_is_kept(tmp_path_factory, sizes, limit):
    folder = tmp_path_factory.mktemp("cache")
    cache = cache_of(Given([torch.zeros(each, dtype=torch.uint8) for each in sizes]), folder, limit)
    for index, each in enumerate(sizes):
        before = size(folder)
        cache[index]
        fits = before + 64 + each <= limit
        assert size(folder) == before + (64 + each) * fits <= limit
        assert int((folder / "cache" / "samples.txt").read_bytes()[:20]) == size(folder)


def test_a_process_that_is_killed_while_it_writes_leaves_no_more_than_is_counted(tmp_path, squares):
    child = os.fork()
    if child == 0:
        cache = cache_of(squares, tmp_path)
        cache[0]
        Path.hardlink_to = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        cache[1]
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    counted = int((tmp_path / "cache" / "samples.txt").read_bytes()[:20])
    assert 0 < size(tmp_path) <= counted
    assert are_squares(cache_of(squares, tmp_path))


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[:3],
        lambda data: data[:-5],
        lambda data: data[:700] + bytes([data[700] ^ 1]) + data[701:],
        lambda data: data + b"more",
        lambda data: pickle.dumps(print),
    ],
    ids=["empty", "head", "truncated", "flipped", "longer", "pickle"],
)
def test_a_damaged_file_is_computed_again_and_replaced(tmp_path, squares, harm):
    cache = cache_of(squares, tmp_path)
    assert are_squares(cache)
    damaged = files(tmp_path)[7]
    whole = damaged.read_bytes()
    damaged.write_bytes(harm(whole))
    assert are_squares(cache)
    assert damaged.read_bytes() == whole
    assert len(drawn(squares)) == 41


def test_a_file_of_another_sample_or_dataset_is_not_taken_for_this_one(tmp_path, squares):
    other = tmp_path / "other"
    other.mkdir()
    cache_of(Squares(tmp_path / "drawn", size=7), other, key="sevens")[3]
    cache = cache_of(squares, tmp_path)
    cache[3]
    files(tmp_path)[0].write_bytes(files(other)[0].read_bytes())
    assert len(cache[3][0]) == 1000


def test_structure_that_would_follow_pointers_is_computed_again(tmp_path):
    from dynotune.runtime.data import cache as module

    for kind in ("|O", "object", "O8"):
        with pytest.raises(ValueError, match="pointers"):
            module._put_together(["ndarray", "", kind, 1, 0], memoryview(bytearray(64)))


def test_a_folder_of_another_dataset_is_refused_and_left_as_it_was(tmp_path, squares):
    cache_of(squares, tmp_path)[0]
    before = {path: path.read_bytes() for path in files(tmp_path)}
    for dataset, key in (
        (squares, "cubes"),
        (Squares(squares.drawn, 41), "squares"),
        (Given([1] * 40), "squares"),
    ):
        with pytest.raises(
            InputError, match=r"squares: 40 samples of Squares[\s\S]*Choose another folder, or remove"
        ):
            cache_of(dataset, tmp_path, key=key)
    assert {path: path.read_bytes() for path in files(tmp_path)} == before


def test_a_folder_of_other_files_a_file_and_a_limit_of_nothing_are_refused(tmp_path, squares):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    for folder in ("mine", "mine/thesis.tex"):
        with pytest.raises(InputError, match="cannot be the cache"):
            SampleCache(squares, tmp_path / folder, max_bytes=1000, key="")
    with pytest.raises(InputError, match="max_bytes"):
        cache_of(squares, tmp_path, 0)


def test_a_disk_that_takes_no_more_is_said_once_by_all_workers_and_the_epoch_goes_on(tmp_path, squares):
    program = f"""
import resource
from pathlib import Path
from torch.utils.data import DataLoader
from tests.runtime.data.test_cache import Squares, are_squares, cache_of, files
folder = Path({str(tmp_path)!r})
cache = cache_of(Squares(folder / "drawn", size=300), folder)
cache[0]
cache.dataset.size = 1000
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for num_workers in (2, 2, 0):
    few = lambda sample: (sample[0][::999].tolist(), sample[1])  # torch's own shared memory is limited, too
    assert are_squares(DataLoader(cache, batch_size=None, num_workers=num_workers, collate_fn=few))
assert [path.name for path in files(folder)] == ["0"], files(folder)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("takes no more samples") == 1


def test_one_of_many_forked_processes_speaks():
    module = sys.modules[SampleCache.__module__]
    for _ in range(20):
        unsaid = module._unsaid()
        start, go = os.pipe()
        children = []
        for _ in range(6):
            children.append(os.fork())
            if not children[-1]:
                os.close(go)
                os.read(start, 1)  # until all are there
                os._exit(unsaid.read(8) is not None)
        os.close(go)
        os.close(start)
        assert sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children) == 1
        assert unsaid.read(8) is None


def test_the_last_of_a_file_system_is_left_free(tmp_path, squares, monkeypatch):
    cache = cache_of(squares, tmp_path)
    cache[0]
    real = os.statvfs(tmp_path)
    nearly_full = os.statvfs_result((*real[:4], real.f_blocks // 21, *real[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda path: nearly_full)
    with pytest.warns(RuntimeWarning, match="less than a 20th of the file system is free"):
        cache[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert are_squares(cache)
    assert len(files(tmp_path)) == 1
    assert int((tmp_path / "cache" / "samples.txt").read_bytes()[:20]) == size(tmp_path)


def test_a_small_file_system_that_others_fill_stops_no_epoch(tmp_path, squares):
    (tmp_path / "cache").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "x", str(tmp_path / "cache")], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        cache = cache_of(squares, tmp_path)
        with pytest.warns(RuntimeWarning, match="takes no more samples") as said:
            assert are_squares(cache)
            assert are_squares(cache)
        assert len(said) == 1
        assert 20 < len(files(tmp_path)) < 40
    finally:
        subprocess.run(["umount", str(tmp_path / "cache")], check=True)


def test_a_folder_that_cannot_be_written_is_read(tmp_path, squares):
    cache_of(squares, tmp_path)[0]
    cache = cache_of(squares, tmp_path)
    marker = tmp_path / "cache" / "samples.txt"
    marker.unlink()
    marker.mkdir()
    with pytest.warns(RuntimeWarning, match="takes no more samples"):
        assert are_squares(cache)
    assert drawn(squares).count(0) == 1


def test_cache_marker_is_readable_text(tmp_path, squares):
    cache_of(squares, tmp_path, key='of "all" ü')[0]
    text = (tmp_path / "cache" / "samples.txt").read_text()
    assert json.loads(text[20:]) == 'of "all" ü: 40 samples of Squares'
