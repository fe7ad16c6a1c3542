"""What the agent notes of how a loader's batches are made: in the process itself, and in its workers."""

from __future__ import annotations

import pytest

from dynotune.launch.records.batch_costs import with_loading
from dynotune.schema.events import AgentError, BatchesFetched
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader

from ..planned_tasks import window_task

PROGRAM = """
import functools, io, sys, time

import torch
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self):
        self.rows = [[str(number), None] for number in range(50_000)]

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randint(0, 256, (3, 8, 8)).float() / 255


def stack(samples, pause_s):
    time.sleep(pause_s)
    return torch.stack(samples)


if __name__ == "__main__":
    num_workers, num_batches, context = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    collate = functools.partial(stack, pause_s=0.01)
    loader = DataLoader(
        Data(), 4, collate_fn=collate, num_workers=num_workers, multiprocessing_context=context if num_workers else None
    )
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch, _ in zip(loader, range(num_batches)):
        model(batch).sum().backward()
        optimizer.step()
    print("done")
"""  # noqa: E501


def told(ran, num_workers):
    """What making batches took, over the whole run."""
    main = max(ran.records, key=lambda record: len(record.steps))
    loader = Loader(name="DataLoader", dataset="__main__.Data", num_workers=num_workers)
    (filled,) = with_loading([loader], main.pid, ran.records, 0.0, float("inf"))
    assert not [event for record in ran.records for event in record.all(AgentError)]
    return filled.loading


@pytest.mark.parametrize(
    ("num_workers", "context"),
    [
        (0, ""),
        (2, "fork"),
        pytest.param(2, "spawn", marks=pytest.mark.long),
        pytest.param(2, "forkserver", marks=pytest.mark.long),
    ],
)
def test_the_time_that_batches_take_is_known_wherever_they_are_made(
    script, run_under_agent, fork_under_agent, num_workers, context
):
    # Workers that are no forks are started as the program was.
    runs = run_under_agent if context in ("spawn", "forkserver") else fork_under_agent
    ran = runs([script(PROGRAM), str(num_workers), "120", context], observe=True)
    assert ran.stdout == "done\n", ran.stderr
    loading = told(ran, num_workers)
    # Four items that sleep 2 ms each, and 10 ms of collating; what the machine adds is no matter here.
    assert loading.fetch_s >= 0.018 and loading.collate_s >= 0.01
    assert loading.fetch_s - loading.collate_s >= 0.008
    assert loading.longest_s >= loading.fetch_s
    assert loading.cpu_s < loading.fetch_s
    assert (loading.busy_share is None) == (num_workers == 0)
    assert loading.items.function == "program.py(15): __getitem__"
    assert loading.collate.function == "program.py(20): stack"
    assert {event.dataset for record in ran.records for event in record.all(BatchesFetched)} == {
        "__main__.Data"
    }
    assert 40 <= loading.num_distinct <= 64
    assert loading.num_objects == 50_000 * 3
    assert loading.num_batches >= 20


def test_nothing_is_noted_where_the_program_is_not_observed(script, fork_under_agent):
    ran = fork_under_agent([script(PROGRAM), "2", "60", "fork"])
    assert len(ran.records) == 1
    assert isinstance(told(ran, 2), Unknown)


DECODING = """
import io, time

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

file = io.BytesIO()
Image.effect_noise((256, 256), 50).save(file, "PNG")
raw = file.getvalue()


class Data(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return torch.tensor(Image.open(io.BytesIO(raw)).convert("L").resize((8, 8)).getpixel((0, 0)))


until = time.perf_counter() + 1.5
model = torch.nn.Linear(1, 1)
for batch in DataLoader(Data(), 8):
    model(batch.float()[:, None])
    if time.perf_counter() > until:
        break
print(Image.open(io.BytesIO(raw)).convert("L").size)
"""


def test_decoders_and_what_resizes_are_timed_inside_a_batch_alone(script, fork_under_agent):
    pytest.importorskip("PIL")
    ran = fork_under_agent([script(DECODING)], observe=True)
    assert ran.stdout == "(256, 256)\n", ran.stderr
    loading = told(ran, 0)
    # Converting loads the file: the outermost call counts.
    assert loading.decoders == ["PIL.Image.Image.convert", "PIL.Image.Image.resize"]
    assert 0 < loading.decode_s < loading.fetch_s


FAILING = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Data(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise KeyError("mine")


class Few(IterableDataset):
    def __iter__(self):
        return iter(range(5))


for workers in (0, 1):
    try:
        next(iter(DataLoader(Data(), 2, num_workers=workers)))
    except KeyError as error:
        print("mine" in str(error))
    print([batch.tolist() for batch in DataLoader(Few(), 2, num_workers=workers)])
"""


def test_a_data_set_that_raises_or_ends_does_so_as_ever(script, fork_under_agent):
    ran = fork_under_agent([script(FAILING)], observe=True)
    assert ran.stdout == "True\n[[0, 1], [2, 3], [4]]\n" * 2, ran.stderr
    assert not [event for record in ran.records for event in record.all(AgentError)]


DIES = """
import weakref, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(3), index
last = []
for epoch in range(3):
    numbers = Numbers()
    last.append(weakref.ref(numbers))
    for batch in DataLoader(numbers, 4):
        pass
    del numbers
print([reference() is None for reference in last])
"""


def test_a_data_set_dies_with_its_epoch_as_it_does_without_us(script, fork_under_agent):
    ran = fork_under_agent([script(DIES)], observe=True, tasks=[window_task(3, 2)])
    assert ran.stdout == "[True, True, True]\n", ran.stderr
