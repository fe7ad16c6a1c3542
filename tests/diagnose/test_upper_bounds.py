"""What loaders reach alone, and steps without them, of real commands."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import msgspec
import pytest

from dynotune.agent.tasks.isolate_loader import MOST_WINDOW_S
from dynotune.diagnose.upper_bounds import find_upper_bounds, rows
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.schema.events import BatchReplay, LoaderDrain, LoaderIsolated, PageCacheDrop
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from lab.silent import Silent

from ..doctor.observations import timing

PROGRAMS = Path(__file__).parents[1] / "agent" / "programs"
ITEM_S, STEP_S = 0.02, 0.01
LOADS = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Slow(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.02)
        return {"x": torch.full((8,), 255.0), "index": index}

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(20):
            yield Slow()[index]

def steps(batches):
    for batch in batches:
        x = batch.pop("x").unsqueeze_(0)
        assert list(x.shape) == [1, 2, 8] and len(batch) == 1
        if "in-place" in sys.argv:
            x.div_(255)
        time.sleep(0.01)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    dataset = Stream() if "stream" in sys.argv else Slow()
    loader = DataLoader(dataset, batch_size=2, **eval(sys.argv[1]))
    while True:
        steps(loader)
"""
# Each step asks the other thread for its batch, so batches and calls alternate on any machine.
IN_A_THREAD = """
import queue, threading, time, torch
from torch.utils.data import DataLoader
net = torch.nn.Linear(8, 8)
wanted, batches = queue.Queue(), queue.Queue()
def draw():
    while True:
        for batch in DataLoader(torch.ones(64, 8), batch_size=2):
            batches.put(batch)
            wanted.get()
threading.Thread(target=draw, daemon=True).start()
while True:
    net(batches.get()).sum().backward()
    time.sleep(0.002)
    wanted.put(None)
"""
WITHOUT = """
import torch
net = torch.nn.Linear(8, 8)
while True:
    net(torch.ones(4, 8)).sum().backward()
"""
LIGHTNING = """
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
lightning.Trainer(
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=100,
).fit(BoringModel())
"""  # noqa: E501
RANKS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.ones(256, 8)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
while True:
    for batch in loader:
        net(batch).sum().backward()
        optimizer.step()
"""
TIMED = timing(step_s=0.05)
LONG = functools.partial(pytest.param, marks=pytest.mark.long)


@pytest.fixture
def reached(tmp_path):
    """`reached(program, *words, **asked)` gives the ceilings by part, or why there are none."""
    project = tmp_path / "project"
    project.mkdir()

    def make(program, *words, python=(sys.executable,), **asked):
        (project / "program.py").write_text(program)
        (project / "data.bin").write_bytes(b"1" * 65536)
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        asked = {"warmup_steps": 10, "window_steps": 10, "timeout_s": 120.0, **asked}
        command = [*python, "program.py", *map(str, words)]
        run = RunSpec(command=command, cwd=project, env=env, base=tmp_path / "runs", lock=False, **asked)
        with TaskRunner(run, Silent(), facts={}, label="the run") as runner:
            found = find_upper_bounds(runner, run, Silent(), TIMED)
            runner.end()
        return found if isinstance(found, Unknown) else {row.part: row for row in found}

    return make


def assert_as_many(step, num):
    """That it is from `num` steps, or from what the machine made of them in the longest time that is
    waited."""
    assert step.num_steps >= num or step.num_steps * step.step_s >= 0.99 * MOST_WINDOW_S


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        LONG({}, "20 batches, without workers"),
        ({"num_workers": 2}, "16 batches, 2 workers"),
        LONG({"num_workers": 1, "persistent_workers": True}, "18 batches, 1 worker"),
    ],
)
def test_a_loader_alone_takes_what_its_items_take_and_a_step_without_it_does_not(arguments, told, reached):
    found = reached(LOADS, arguments)
    assert set(found) == {"loader", "step", "both"}
    loader, step = found["loader"], found["step"]
    # What sleeps takes as long at least; without workers nothing can be made beside anything else.
    least_s = 2 * ITEM_S / max(1, arguments.get("num_workers", 0))
    assert loader.step_s >= 0.9 * least_s
    assert STEP_S <= step.step_s < loader.step_s * max(1, arguments.get("num_workers", 0))
    assert step.samples_per_s == pytest.approx(2 / step.step_s)
    assert (loader.page_cache, loader.notes[0].split(",")[1:]) == ("warm", told.split(",")[1:])
    assert found["both"].step_s == 0.05


@pytest.mark.long
def test_an_iterable_data_set_is_drained_to_its_end_and_replayed_beyond(reached):
    found = reached(LOADS, {}, "stream")
    assert found["loader"].step_s >= 2 * ITEM_S
    assert found["step"].num_steps >= 10


@pytest.mark.long
def test_a_batch_that_is_changed_in_place_is_noted(reached):
    assert "in place" in reached(LOADS, {}, "in-place")["step"].notes[0]
    assert reached(LOADS, {})["step"].notes == []


@pytest.mark.long
def test_a_cold_page_cache_is_declared_or_it_is_said_why_not(reached):
    loader = reached(LOADS, {}, page_cache="cold")["loader"]
    assert len(loader.notes) > 1
    assert loader.page_cache == "cold" or "could not" in loader.notes[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "reason"),
    [(WITHOUT, "draw from no DataLoader"), LONG(IN_A_THREAD, "in another thread")],
)
def test_steps_without_a_loader_of_their_own_have_no_ceilings(program, reason, reached):
    found = reached(program)
    assert isinstance(found, Unknown)
    assert reason in found.reason


@pytest.mark.long
def test_a_command_that_fails_is_no_failure_of_the_diagnosis(reached):
    found = reached("import torch\nraise SystemExit('no data here')\n")
    assert isinstance(found, Unknown)
    assert "no data here" in found.reason


@pytest.mark.parametrize(
    "name", [*map(LONG, ["hf_trainer.py", "gan.py", "accumulation.py", "draws_ahead.py"])]
)
def test_programs_of_others_are_drained_and_replayed(name, reached):
    found = reached((PROGRAMS / name).read_text(), warmup_steps=8, window_steps=6)
    assert found["loader"].step_s > 0
    assert_as_many(found["step"], 6)


@pytest.mark.long
def test_lightning_is_drained_and_replayed(reached):
    found = reached(LIGHTNING)
    assert_as_many(found["step"], 10)
    assert found["loader"].samples_per_s > 0


@pytest.mark.long
def test_ranks_drain_and_replay_side_by_side(reached):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    found = reached(RANKS, python=launcher)
    assert_as_many(found["step"], 10)


# What is made of the agent's answer

DRAINED = LoaderDrain(
    num_batches=100,
    num_samples=400,
    seconds=2.0,
    num_skipped=0,
    num_workers=2,
    whole_epoch=False,
    num_replayed=40,
)
SAID = LoaderIsolated(
    loaders=[DRAINED], replayed=BatchReplay(num_steps=20, begin_s=1.0, end_s=2.0, num_samples=160)
)
GONE = PageCacheDrop(num_files=3, num_bytes=9, num_refused=0, probed_bytes=9, resident_bytes=0, complete=True)


def test_a_step_of_several_batches_takes_as_long_as_they_do():
    loader, step, _ = rows(SAID, timing(), "warm")
    assert loader.step_s == pytest.approx(2 * 0.02)
    assert (loader.samples_per_s, loader.num_steps) == (200, 50)
    assert (step.step_s, step.samples_per_s) == (0.05, 160)


def test_several_loaders_are_drawn_from_one_after_another():
    other = msgspec.structs.replace(DRAINED, num_batches=10, seconds=1.0, num_replayed=20)
    loader, *_ = rows(msgspec.structs.replace(SAID, loaders=[DRAINED, other]), timing(), "warm")
    assert loader.step_s == pytest.approx(0.04 + 0.1)
    assert loader.samples_per_s is None


@pytest.mark.parametrize(
    ("dropped", "cache", "told"),
    [
        (GONE, "cold", "3 files"),
        (None, "warm", "could not be emptied"),
        (msgspec.structs.replace(GONE, resident_bytes=8), "warm", "could not be emptied: 89%"),
        (msgspec.structs.replace(GONE, num_files=0), "warm", "no file"),
        (msgspec.structs.replace(GONE, complete=False), "cold", "too many files"),
        (msgspec.structs.replace(GONE, probed_bytes=0), "cold", "could not be seen"),
    ],
)
def test_the_page_cache_is_cold_only_where_it_was_seen_to_be(dropped, cache, told):
    loader, *_ = rows(msgspec.structs.replace(SAID, dropped=dropped), timing(), "cold")
    assert loader.page_cache == cache
    assert any(told in note for note in loader.notes)
