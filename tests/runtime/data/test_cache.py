"""A cache of samples: made once by whoever comes first, whole or not at all, and never another data set's."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dynotune.runtime import InputError
from dynotune.runtime.data import CachedDataset


class Squares(Dataset):
    """Notes in a file which samples were made."""

    def __init__(self, log, num=40, power=2):
        self.log, self.num, self.power = str(log), num, power

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        with Path(self.log).open("a") as file:
            file.write(f"{index}\n")
        return {"value": torch.tensor(index**self.power), "array": np.full(1000, index), "name": f"ä{index}"}


def values(loader):
    return [int(batch["value"][at]) for batch in loader for at in range(len(batch["value"]))]


def made(log):
    """Of the samples, how many were made that are not looked at to know the data set."""
    return len([line for line in Path(log).read_text().split() if int(line) not in (0, 20, 39)])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_and_later_epochs_make_each_sample_once(tmp_path, context):
    cached = CachedDataset(Squares(tmp_path / "log"), "squares", 10**7)
    loader = DataLoader(cached, 4, num_workers=2, multiprocessing_context=context)
    for _ in range(2):
        assert values(loader) == [index**2 for index in range(40)]
    assert made(tmp_path / "log") == 37
    assert cached[-1]["name"] == "ä39"
    with pytest.raises(IndexError):
        cached[40]


def test_another_job_takes_them_from_the_folder_and_the_transform_is_not_kept(tmp_path):
    first = CachedDataset(Squares(tmp_path / "log"), "squares", 10**7, tmp_path / "cache")
    list(values([first[index] | {"value": first[index]["value"][None]} for index in range(40)]))
    second = CachedDataset(
        Squares(tmp_path / "log"), "squares", 10**7, tmp_path / "cache", transform=lambda sample: sample["name"]
    )
    before = made(tmp_path / "log")
    assert [second[index] for index in range(40)] == [f"ä{index}" for index in range(40)]
    assert (second.num_hits, second.num_misses, made(tmp_path / "log")) == (40, 0, before)


def test_another_data_set_or_key_never_meets_these_samples(tmp_path):
    def drawn(data, key="squares"):
        cached = CachedDataset(data, key, 10**7, tmp_path / "cache")
        return [int(cached[index]["value"]) for index in range(len(cached))], cached.num_hits

    assert drawn(Squares(tmp_path / "log")) == ([index**2 for index in range(40)], 0)
    assert drawn(Squares(tmp_path / "log", power=3)) == ([index**3 for index in range(40)], 0)
    assert drawn(Squares(tmp_path / "log", num=20)) == ([index**2 for index in range(20)], 0)
    assert drawn(Squares(tmp_path / "log"), "other")[1] == 0
    assert drawn(Squares(tmp_path / "log"))[1] == 40


def fill(folder, log, barrier):
    cached = CachedDataset(Squares(log), "squares", 60 * 8600, folder)
    barrier.wait(60)
    assert [int(cached[index]["value"]) for index in range(40)] == [index**2 for index in range(40)]


def test_two_jobs_at_once_neither_harm_each_other_nor_pass_the_size(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    jobs = [context.Process(target=fill, args=(tmp_path / "cache", tmp_path / "log", barrier)) for _ in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(120)
    assert [job.exitcode for job in jobs] == [0, 0, 0]
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != "size"]
    assert len(files) == 40
    assert int((tmp_path / "cache" / "size").read_text()) == sum(path.stat().st_size for path in files)


def test_a_full_cache_and_a_full_disk_leave_the_rest_as_it_is(tmp_path, caplog, monkeypatch):
    cached = CachedDataset(Squares(tmp_path / "log"), "squares", 5 * 8600, tmp_path / "cache")
    for _ in range(2):
        assert [int(cached[index]["value"]) for index in range(40)] == [index**2 for index in range(40)]
    assert 0 < cached.num_hits < 20
    assert "are full" in caplog.text

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dynotune.runtime.data.cache.tempfile.NamedTemporaryFile", full)
    cached = CachedDataset(Squares(tmp_path / "log"), "squares", 10**7, tmp_path / "disk")
    assert [int(cached[index]["value"]) for index in (0, 1, 1)] == [0, 1, 1]
    assert "No space left" in caplog.text
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


def test_a_damaged_sample_is_made_again(tmp_path):
    cached = CachedDataset(Squares(tmp_path / "log"), "squares", 10**7, tmp_path / "cache")
    cached[7]
    (path,) = (path for path in (tmp_path / "cache").rglob("7"))
    for content in (b"", path.read_bytes()[:100], bytes(500)):
        path.write_bytes(content)
        assert cached[7]["name"] == "ä7"
    assert (cached.num_hits, cached.num_misses) == (0, 4)
    assert cached[7]["name"] == "ä7"
    assert cached.num_hits == 1


def test_a_cache_in_ram_goes_with_it_and_is_not_taken_away_by_a_worker(tmp_path, in_forked_child):
    held = [CachedDataset(Squares(tmp_path / "log"), "squares", 10**7)]
    folder = held[0]._folder
    held[0][3]

    def let_go():
        assert pickle.loads(pickle.dumps(held[0]))[3]["name"] == "ä3"
        held.clear()

    assert in_forked_child(let_go) == ""
    assert folder.is_dir()
    held.clear()
    assert not folder.exists()


def test_what_cannot_be_cached_is_refused(tmp_path):
    for data, size in ((iter(range(3)), 10), (range(3), -1)):
        with pytest.raises(InputError):
            CachedDataset(data, "numbers", size)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InputError, match="Others can write"):
        CachedDataset(range(3), "numbers", 10, tmp_path / "open")
