"""Where the time of a sample goes, in real loaders: one part takes all but a little of it."""

from __future__ import annotations

import pytest

from dynotune.launch.records.batch_costs import with_loading
from dynotune.launch.records.process_state import state_of_process
from dynotune.schema.events import AgentError, StateRead
from dynotune.schema.loader import Loader

from ..planned_tasks import window_task

START = """
import csv, io, json, os, pickle, sqlite3, sys, tarfile, threading, time, zipfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Items(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.load(index)


"""
END = """

if __name__ == "__main__":
    num_workers, dataset = int(sys.argv[1]), Data()
    model = torch.nn.Linear(1, 1)
    until, num = time.perf_counter() + 2.0, 0
    for batch in DataLoader(dataset, 4, num_workers=num_workers, **OPTIONS):
        model(torch.ones(1, 1))
        num += 1
        if num > 140 and time.perf_counter() > until:
            break
    print("done")
"""
# What the program loads, and the part that is nearly all of it: part, what, in the line.
JSON = """
class Data(Items):
    text = json.dumps(list(range(30_000)))

    def load(self, index):
        return torch.tensor(json.loads(self.text)[index % 9])
"""
ZIP = """
with zipfile.ZipFile("all.zip", "w") as archive:
    for number in range(1500):
        archive.writestr(f"{number}.bin", bytes(16))


class Data(Items):
    def load(self, index):
        with zipfile.ZipFile("all.zip") as archive:
            return len(archive.read(f"{index % 1500}.bin"))
"""
TAR = """
with tarfile.open("all.tar", "w") as archive:
    for number in range(1500):
        archive.addfile(tarfile.TarInfo(f"{number}.bin"), io.BytesIO())


class Data(IterableDataset):
    def __iter__(self):
        while True:
            with tarfile.open("all.tar") as archive:
                yield len(archive.getnames())
"""
ARRAY = """
np.save("all.npy", np.zeros(4_000_000))


class Data(Items):
    def load(self, index):
        return float(np.load("all.npy")[index % 9])
"""
CLASS = """
class Shift:
    def __call__(self, values):
        for _ in range(60):
            values = np.sin(values)
        return values


class Data(Items):
    values, shift = np.ones(20_000), Shift()

    def load(self, index):
        return float(self.shift(self.values)[0])
"""
OWN = """
class Data(Items):
    def load(self, index):
        return sum(number * number for number in range(60_000)) % 7
"""
COLLATE = """
class Data(Items):
    def load(self, index):
        return torch.ones(3)


def pads(samples):
    for _ in range(200):
        batch = np.sin(np.ones(8000))
    return torch.from_numpy(batch)


OPTIONS = {"collate_fn": pads}
"""
DATABASE = """
table = sqlite3.connect("all.db")
table.execute("create table if not exists items (name, value)")
table.executemany("insert into items values (?, ?)", [(str(number), number) for number in range(60_000)])
table.commit()


class Data(Items):
    def load(self, index):
        self.table = getattr(self, "table", None) or sqlite3.connect("all.db")
        return self.table.execute("select value from items where name = ?", (str(index % 60_000),)).fetchone()[0]
"""  # noqa: E501
LOCK = """
lock = threading.Lock()


def holds():
    while True:
        with lock:
            time.sleep(0.02)


class Data(Items):
    def load(self, index):
        if not hasattr(self, "holder"):
            self.holder = threading.Thread(target=holds, daemon=True)
            self.holder.start()
        with lock:
            return index
"""
PICTURES = """
from PIL import Image

noise = np.random.default_rng(0).integers(0, 255, (700, 700, 3), dtype=np.uint8)
Image.fromarray(noise).save("one.jpg")


class Data(Items):
    def load(self, index):
        return np.asarray(Image.open("one.jpg"))[0, 0, 0]
"""
RESIZED = """
from PIL import Image

picture = Image.fromarray(np.zeros((600, 600, 3), dtype=np.uint8))


class Smaller:
    def __call__(self, image):
        return image.resize((400, 400), Image.Resampling.LANCZOS)


class Data(Items):
    smaller = Smaller()

    def load(self, index):
        return self.smaller(picture).getpixel((0, 0))
"""
MOVED = """
class Data(Items):
    def load(self, index):
        return index


ROWS = [[str(number)] for number in range(60_000)]


def rows(samples):
    return ROWS


OPTIONS = {"collate_fn": rows}
"""
PROGRAMS = {
    "json": (JSON, ("decode", "text"), "json.loads(self.text)"),
    "zip": (ZIP, ("read", "zip"), "zipfile.ZipFile"),
    "tar": (TAR, ("read", "tar"), "tarfile.open|archive.getnames"),
    "array": (ARRAY, ("read", "numpy file"), "np.load("),
    "class": (CLASS, ("transform", "Shift"), "np.sin"),
    "own": (OWN, ("own", ""), "sum("),
    "collate": (COLLATE, ("collate", "pads"), "np.sin"),
    "database": (DATABASE, ("read", "database"), "execute("),
    "lock": (LOCK, ("wait", "lock"), "with lock"),
    "pictures": (PICTURES, ("decode", "PIL"), "Image.open"),
    "resized": (RESIZED, ("transform", "Smaller (resize)"), "image.resize"),
    "moved": (MOVED, ("move", "queue, pickling"), ""),
}


def share(parts, kind):
    return sum(one.wall_s for one in parts if one.part == kind) / sum(one.wall_s for one in parts)


def parts_of(ran, num_workers):
    main = max(ran.records, key=lambda record: len(record.steps))
    loader = Loader(name="DataLoader", dataset="__main__.Data", num_workers=num_workers, batch_size=4)
    (filled,) = with_loading([loader], main.pid, ran.records, 0.0, float("inf"))
    assert not [event for record in ran.records for event in record.all(AgentError)]
    return filled.loading


# A few are enough for every run of the tests.
USUAL = {("json", 0), ("zip", 1), ("collate", 1)}


@pytest.mark.parametrize(
    ("name", "num_workers"),
    [
        pytest.param(name, num_workers, marks=[] if (name, num_workers) in USUAL else pytest.mark.long)
        for name in PROGRAMS
        for num_workers in (0, 1)
        if (name, num_workers) != ("moved", 0)  # nothing is
    ],
)
def test_the_part_that_takes_the_time_is_the_largest_with_its_line(
    name, num_workers, script, fork_under_agent
):
    program, (part, what), text = PROGRAMS[name]
    options = "" if "OPTIONS" in program else "\nOPTIONS = {}\n"
    tasks = [window_task(20, 100)] if not num_workers else []
    ran = fork_under_agent(
        [script(START + program + options + END), str(num_workers)], compiler=False, observe=True, tasks=tasks
    )
    assert ran.stdout == "done\n", ran.stderr
    loading = parts_of(ran, num_workers)
    largest = loading.parts[0]
    assert (largest.part, largest.what) == (part, what)
    assert any(each in largest.text for each in text.split("|"))
    assert share(loading.parts, part) > 0.6


IN_A_THREAD = """
import json, queue, sys, threading
import torch

# A call that is shorter than this interval hands the lock over after it, on the line that made it.
sys.setswitchinterval(2e-4)
# One value of much text: nothing is left to be freed, which would be time of the line itself.
ready, text = queue.Queue(2), json.dumps("a line\\n" * 300_000)


def makes():
    while True:
        ready.put(torch.tensor([float(len(json.loads(text)) > 0)]))


threading.Thread(target=makes, daemon=True, name="maker").start()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(450):
    model(ready.get()).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_a_thread_of_the_programs_own_that_makes_samples_is_told_apart(script, fork_under_agent):
    # Long enough that one look, which came late because the machine was busy, stands for little of it.
    ran = fork_under_agent([script(IN_A_THREAD)], observe=True, tasks=[window_task(20, 400)])
    state = state_of_process(max(ran.records, key=lambda record: len(record.steps)), ran.launched_s)
    (maker,) = [one for one in state.threads if one.name == "maker"]
    largest = maker.parts[0]
    assert (largest.part, largest.what) == ("decode", "text")
    # It waits where the steps are the slower ones: on a busy machine.
    works = [one for one in maker.parts if one.part != "wait"]
    assert "json.loads(text)" in largest.text and share(works, "decode") > 0.6


IN_THE_LOOP = """
import json
import torch
from torch.utils.data import DataLoader

text = json.dumps(list(range(60_000)))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(range(100)):
    row = torch.tensor(json.loads(text)[:1]).float()
    model(row).sum().backward()
    optimizer.step()
"""


def test_sample_parts_leave_out_text_that_the_loop_reads_itself(script, fork_under_agent):
    ran = fork_under_agent([script(IN_THE_LOOP)], observe=True, tasks=[window_task(10, 60)])
    state = state_of_process(max(ran.records, key=lambda record: len(record.steps)), ran.launched_s)
    assert not [part for part in state.threads[0].parts if part.what == "text"]


PADDED = """
import torch
from torch.utils.data import DataLoader, IterableDataset

lengths = [3, 9, 4, 8] * 200


class Rows(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(1, length + 1) for length in lengths)


def pads(rows):
    return {"input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


model = torch.nn.Embedding(10, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Rows(), 4, collate_fn=pads, num_workers=2):
    model(batch["input_ids"]).sum().backward()
    optimizer.step()
"""


def test_padding_and_a_data_set_that_each_worker_yields_whole_are_facts_of_the_loader(
    script, fork_under_agent
):
    ran = fork_under_agent([script(PADDED)], observe=True, tasks=[window_task(40, 20)])
    (told,) = max(ran.records, key=lambda record: len(record.steps)).last(StateRead).loaders
    assert told.padding.by == "a constant tail"
    assert told.padding.share == pytest.approx(1 - 24 / 36)
    assert told.splits_by_worker is False
