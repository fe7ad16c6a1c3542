"""The steps and samples that the agent counts in programs that count their own."""

from pathlib import Path

import pytest

from dynotune.launch.records.record import COMPILED
from dynotune.measure.live.window_plan import num_steps_to_find

from ..planned_tasks import window_task

PROGRAMS = sorted((Path(__file__).parents[1] / "programs").glob("*.py"))
# In `make test`.
FIRST = ("accumulation", "compiled", "gan", "hf_trainer", "plain")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in FIRST else pytest.mark.long)
        for path in PROGRAMS
    ],
)
def test_counts_the_steps_and_samples_that_the_program_made(program, fork_under_agent):
    ran = fork_under_agent([program], compiler="compiled" not in program.name)
    assert ran.returncode == 0, ran.stderr
    word, steps, samples = ran.stdout.split()[-3:]
    assert word == "TRUTH"
    assert (ran.stepping.num_steps, ran.stepping.num_samples) == (int(steps), int(samples)), ran.stepping.step
    assert [error for process in ran.processes for error in process.errors] == []


@pytest.mark.long
def test_programs_run_alike_without_the_agent(fork_under_agent):
    ran = fork_under_agent([PROGRAMS[0]], env={"DYNOTUNE_RUN": ""})
    assert ran.returncode == 0, ran.stderr
    assert ran.records == []


@pytest.mark.long
def test_times_the_window_that_was_asked_for(fork_under_agent):
    program = Path(__file__).parents[1] / "programs" / "plain.py"
    ran = fork_under_agent([program], tasks=[window_task(12, 13)], seed=3)
    window = ran.stepping.window
    assert (window.first_step, window.num_steps) == (12, 13)
    # Steps 12 to 24 of epochs of 13, whose last batch has 4 samples where the others have 8.
    assert window.num_samples == 12 * 8 + 4
    assert 0 < window.wait_s < window.end_s - window.begin_s
    assert ran.records[0].steps[11].end_s <= window.begin_s < window.end_s
    assert ran.records[0].steps[24].end_s <= window.end_s


def test_marks_the_steps_in_which_a_loader_begins_anew(fork_under_agent):
    program = Path(__file__).parents[1] / "programs" / "inference_with_loader.py"
    ran = fork_under_agent([program])
    assert [index for index, step in enumerate(ran.records[0].steps) if step.flags & 4] == [0]


COMPILES = """
import torch
net = torch.compile(torch.nn.Linear(8, 1), backend="eager", disable={disable})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("compiles", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_pilot_marks_what_was_compiled_by_the_first_step_that_it_is_asked_of(
    fork_under_agent, script, compiles
):
    ran = fork_under_agent([script(COMPILES.format(disable=not compiles))], note_events=True)
    (record,) = ran.records
    flagged = [index for index, step in enumerate(record.steps) if step.flags & COMPILED]
    assert flagged == ([num_steps_to_find(record)] if compiles else [])


COMPILES_BEFORE_A_CALL = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
@torch.compile(backend="eager")
def doubled(x):
    return 2 * x
x = doubled(torch.ones(4, 8))
with torch.no_grad():
    for _ in range(60):
        net(x)
"""


def test_a_program_that_compiles_something_before_its_first_call_has_steps(fork_under_agent, script):
    ran = fork_under_agent([script(COMPILES_BEFORE_A_CALL)])
    assert ran.stepping.step == "call Sequential"
    assert len(ran.records[0].steps) == 60


DRAWN_AHEAD = """
import queue, threading, torch
from torch.utils.data import DataLoader
net = torch.nn.Linear(8, 1)
wanted, drawn = queue.Queue(), queue.Queue()
def draw():
    while True:
        for batch in DataLoader(torch.ones(256, 8), batch_size=4):
            drawn.put(batch)
            wanted.get()
threading.Thread(target=draw, daemon=True).start()
ahead = []
for _ in range(8):
    ahead.append(drawn.get())
    wanted.put(None)
for _ in range(60):
    ahead.append(drawn.get())
    net(ahead.pop(0))
    wanted.put(None)
"""


def test_batches_that_a_thread_draws_before_the_first_call_are_not_the_steps(fork_under_agent, script):
    assert fork_under_agent([script(DRAWN_AHEAD)]).stepping.step == "draw DataLoader, call Linear"


def test_says_in_words_what_a_step_is(fork_under_agent):
    program = Path(__file__).parents[1] / "programs" / "pipeline.py"
    assert fork_under_agent([program]).stepping.step == "call Linear, 20 × call Sequential, call Linear"


STEPS_OF_ITS_OWN = """
import numpy, torch, dynotune
def train_step(x):
    return (x @ x).sum()
class Engine:
    def run(self, x):
        return train_step(x)
if __name__ == "__main__":
    engine = Engine()
    for _ in range(30):
        engine.run(torch.ones(4, 4))
        {mark}
"""


@pytest.mark.parametrize("step_on", ["__main__:train_step", "__main__:Engine.run"])
def test_steps_on_a_function_that_the_user_names(step_on, script, fork_under_agent):
    ran = fork_under_agent([script(STEPS_OF_ITS_OWN.format(mark=""))], step_function=step_on)
    assert ran.returncode == 0, ran.stderr
    assert ran.stepping.num_steps == 30
    assert ran.stepping.errors == []


def test_steps_on_a_function_of_an_imported_module(script, fork_under_agent):
    script(STEPS_OF_ITS_OWN.format(mark=""), "engine_room.py")
    program = script(
        "import engine_room, torch\nfor _ in range(9): engine_room.Engine().run(torch.ones(2, 2))\n"
    )
    assert fork_under_agent([program], step_function="engine_room:train_step").stepping.num_steps == 9


@pytest.mark.long
def test_steps_on_a_function_that_is_compiled_whole_or_inside_another(script, fork_under_agent):
    script("def train_step(x):\n    return (x @ x).sum()\n", "engine_room.py")
    program = script(
        """
import torch, engine_room
step = torch.compile(engine_room.train_step, fullgraph=True, backend="eager")
for _ in range(7):
    step(torch.ones(4, 4))
@torch.compile(fullgraph=True, backend="eager")
def two_steps(x):
    return engine_room.train_step(x) + engine_room.train_step(x)
print(two_steps(torch.ones(4, 4)).item())
"""
    )
    ran = fork_under_agent([program], compiler=False, step_function="engine_room:train_step")
    assert (ran.returncode, ran.stdout.strip()) == (0, "128.0"), ran.stderr
    assert ran.stepping.num_steps == 7


@pytest.mark.parametrize("mark", ["dynotune.step()", "with dynotune.one_step(): pass"])
def test_steps_where_the_program_says_so(mark, script, fork_under_agent):
    ran = fork_under_agent([script(STEPS_OF_ITS_OWN.format(mark=mark))])
    assert ran.stepping.num_steps == 30


def test_finds_no_step_where_nothing_repeats(script, fork_under_agent):
    ran = fork_under_agent([script(STEPS_OF_ITS_OWN.format(mark=""))])
    assert ran.stepping.num_steps == 0
    assert ran.stepping.step is None


def test_leaves_no_trace_in_models_and_hooks(script, fork_under_agent):
    program = script(
        """
import copy, io, pickle, torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
call = nn.Module.__call__
for _ in range(40):
    net(torch.ones(1, 4))
assert nn.Module.__call__ is not call, "the search is over, so the cover is gone"
for module in net.modules():
    assert not module._forward_hooks and not module._forward_pre_hooks
assert not nn.modules.module._global_forward_hooks
assert "__call__" not in nn.Linear.__dict__
state = pickle.dumps(net)
assert b"dynotune" not in state
copy.deepcopy(net)(torch.ones(1, 4))
torch.jit.script(net)
print("fine")
"""
    )
    ran = fork_under_agent([program])
    assert ran.stdout.strip() == "fine", ran.stderr
    assert ran.stepping.num_steps >= 40
