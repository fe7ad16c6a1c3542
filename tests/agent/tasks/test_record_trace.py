"""Traces of real programs: which steps are in them, and what becomes of the program."""

import functools
import gzip
import itertools
import json
import stat
from pathlib import Path

import pytest

from dynotune.launch.records.process_summary import NUM_STEPS_BEFORE
from dynotune.schema.events import TraceRecorded

from ..planned_tasks import trace_task, window_task

PROGRAMS = Path(__file__).parents[1] / "programs"

TRAINING = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset

def main(num_workers=0, optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = optimizer(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(480, 8), torch.randint(0, 2, (480,)))
    # Python 3.14 starts workers in another way, which runs this program once more in each.
    how = {"num_workers": num_workers, "multiprocessing_context": "fork"} if num_workers else {}
    loader = DataLoader(data, 8, **how)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("LOSS", float(loss))
"""
# For tests whose subject is not the optimizer: torch imports its compiler for the first of its own.
BY_HAND = (
    TRAINING
    + """
class Descent:
    def __init__(self, weights, lr):
        self.weights, self.lr = list(weights), lr
    def step(self):
        with torch.no_grad():
            for weight in self.weights:
                weight -= self.lr * weight.grad
    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
main(optimizer=Descent)
"""
)
PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile, schedule
net = torch.nn.Linear(8, 8)

def steps(num, profiler=None):
    for _ in range(num):
        with torch.no_grad():
            net(torch.ones(1, 8))
        if profiler is not None:
            profiler.step()
"""


def trace_of(ran):
    """The one trace of a run: its outcome as recorded, and its events."""
    (outcome,) = [process.trace for process in ran.processes if process.trace is not None]
    assert outcome.file, outcome.reason
    return outcome, events_in(ran, outcome.file)


def events_in(ran, name):
    path = ran.records[0].path.parent / name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]


def named(events, start):
    """Spans whose name starts so, as (name, begin, end), in order."""
    spans = [
        e
        for e in events
        if e["ph"] == "X" and e["name"].startswith(start) and e["cat"] != "gpu_user_annotation"
    ]
    return sorted(((e["name"], e["ts"], e["ts"] + e["dur"]) for e in spans), key=lambda span: span[1])


def left_behind(ran):
    names = {path.name for path in ran.records[0].path.parent.iterdir()}
    return {name for name in names if not name.startswith("process-")} - {
        "plan.json",
        "tasks.page",
        "task-001.json",
    }


LONG = functools.partial(pytest.param, marks=pytest.mark.long)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_records_as_many_steps_as_asked_each_with_its_batch_and_its_update(
    num_workers, script, fork_under_agent
):
    program = script(TRAINING + f"main({num_workers})\n")
    ran = fork_under_agent([program], tasks=[trace_task(20, 4)])
    outcome, events = trace_of(ran)
    steps = named(events, "ProfilerStep")
    assert [name for name, _, _ in steps] == [f"ProfilerStep#{number}" for number in (21, 22, 23, 24)]
    assert all(before[2] <= after[1] for before, after in itertools.pairwise(steps))
    for inside in ("enumerate(DataLoader)", "Optimizer.step", "Optimizer.zero_grad", "aten::addmm"):
        for _, begin, end in steps:
            held = [span for span in named(events, inside) if begin <= span[1] and span[2] <= end]
            assert len(held) == (2 if inside == "aten::addmm" else 1), inside
    assert (outcome.first_step, outcome.num_steps, outcome.stopped_by) == (21, 4, "steps")
    assert outcome.begin_s < outcome.end_s
    assert left_behind(ran) == {outcome.file}
    assert ran.stdout == fork_under_agent([program]).stdout


def test_the_steps_before_the_recording_are_what_recorded_steps_are_compared_with(script, fork_under_agent):
    ran = fork_under_agent([script(BY_HAND)], tasks=[trace_task(40, 5)])
    outcome, _ = trace_of(ran)
    (record,) = [record for record in ran.records if record.steps]
    before = sorted(record.step_s[40 - NUM_STEPS_BEFORE : 40])
    assert outcome.median_before_s == pytest.approx((before[14] + before[15]) / 2)
    recorded = record.last(TraceRecorded).step_s
    assert outcome.median_step_s == sorted(recorded)[2]
    assert len(recorded) == 5


def test_record_trace_records_once_and_leaves_torch_as_it_was(script, fork_under_agent):
    program = script(
        TRAINING
        + """
from torch.autograd.profiler import record_function
before = record_function.__exit__
for _ in range(3):
    main()
print(before is record_function.__exit__, torch.autograd._profiler_enabled())
"""
    )
    ran = fork_under_agent([program], tasks=[trace_task(20, 3)])
    outcome, _ = trace_of(ran)
    assert ran.stdout.endswith("True False\n")
    assert ran.stepping.num_steps == 180
    assert left_behind(ran) == {outcome.file}


def test_recording_leaves_no_trace_in_the_process_when_it_has_ended(script, fork_under_agent):
    program = script(
        "import gc, json, os, sys, threading\n"
        + BY_HAND
        + """
def state():
    tools = [sys.monitoring.get_tool(number) for number in range(6)] if hasattr(sys, "monitoring") else []
    return [
        sys.getprofile(), sys.gettrace(), tools, gc.isenabled(), gc.get_threshold(),
        len(gc.callbacks), sorted(map(str, threading.enumerate())), dict(os.environ), sys.getswitchinterval(),
        sys.getrecursionlimit(), torch.autograd._profiler_enabled(), torch.is_grad_enabled(), torch.get_num_threads(),
    ]

before = state()
for _ in range(3):
    main(optimizer=Descent)
print([names for names in zip(before, state()) if names[0] != names[1]] or "as before")
"""  # noqa: E501
    )
    ran = fork_under_agent([program], tasks=[trace_task(80, 3, stacks=True, shapes=True)])
    outcome, _ = trace_of(ran)
    assert outcome.first_step == 81
    assert ran.stdout.endswith("as before\n")


def test_recording_is_refused_and_the_window_counts_when_another_profiler_is_there(script, fork_under_agent):
    env = {"CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"}
    ran = fork_under_agent([script(BY_HAND)], env=env, tasks=[window_task(10, 10), trace_task(30, 3)])
    assert [window.num_steps for window in ran.stepping.windows] == [10]
    (outcome,) = ran.stepping.traces
    assert (outcome.file, outcome.reason) == (
        None,
        "another profiler watches the program (libToolsInjection64.so)",
    )


def test_inference_without_a_loader_is_recorded(fork_under_agent):
    ran = fork_under_agent([PROGRAMS / "inference_without_loader.py"], tasks=[trace_task(10, 3)])
    _, events = trace_of(ran)
    assert len(named(events, "ProfilerStep")) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    "program", ["compiled.py", pytest.param("compiled_inference.py", marks=pytest.mark.long)]
)
def test_compiled_code_is_neither_broken_nor_compiled_again(program, fork_under_agent):
    # These programs fail where something is compiled again.
    asked = {"num_steps": 3, "most_s": 60.0, "stacks": True}
    ran = fork_under_agent([PROGRAMS / program], tasks=[trace_task(15, **asked)])
    assert ran.returncode == 0, ran.stderr
    _, events = trace_of(ran)
    assert len(named(events, "ProfilerStep")) == 3


def test_steps_that_the_program_marks_are_the_steps_recorded(script, fork_under_agent):
    program = script(
        "import torch, dynotune\nfor _ in range(40):\n    torch.ones(3).exp()\n    dynotune.step()\n"
    )
    ran = fork_under_agent([program], step_function="dynotune.step", tasks=[trace_task(20, 3)])
    _, events = trace_of(ran)
    steps = named(events, "ProfilerStep")
    assert len(steps) == 3
    for _, begin, end in steps:
        assert len([s for s in named(events, "aten::exp") if begin <= s[1] and s[2] <= end]) == 1


@pytest.mark.parametrize("asked", [{}, {"stacks": True, "shapes": True, "memory": True}])
def test_stacks_shapes_and_memory_are_there_on_request_alone(asked, script, fork_under_agent):
    ran = fork_under_agent([script(BY_HAND)], tasks=[trace_task(20, 2, **asked)])
    outcome, events = trace_of(ran)
    kinds = {event.get("cat") for event in events}
    shapes = any("Input Dims" in event.get("args", {}) for event in events)
    assert ("python_function" in kinds, "cpu_instant_event" in kinds, shapes) == (bool(asked),) * 3
    assert (outcome.stacks, outcome.shapes, outcome.memory) == (bool(asked),) * 3


def test_stacks_give_way_to_a_profile_function_of_the_programs_own(script, fork_under_agent):
    program = script(
        TRAINING
        + """
def seen(frame, event, arg):
    seen.num += 1
seen.num = 0
sys.setprofile(seen)
main()
print(sys.getprofile() is seen, seen.num > 1000)
"""
    )
    ran = fork_under_agent([program], tasks=[trace_task(20, 2, stacks=True)])
    outcome, events = trace_of(ran)
    assert ran.stdout.endswith("True True\n")
    assert not outcome.stacks
    assert "profile function" in outcome.notes[0]
    assert "python_function" not in {event.get("cat") for event in events}


ORDERED = """
import json, os, struct, torch
net = torch.nn.Linear(8, 8)
folder = os.environ["DYNOTUNE_RUN"]
with torch.no_grad():
    for number in range(20000):
        net(torch.ones(1, 8))
        if number == 20:
            task = {"type": "record-trace", "num_steps": 3, "most_s": 60.0, "at_step": AT}
            with open(os.path.join(folder, "task-001.json"), "w") as file:
                json.dump({"schema": "dynotune.task/1", "task": task}, file)
            with open(os.path.join(folder, "tasks.page"), "r+b") as file:
                file.seek(12)
                file.write(struct.pack("<I", 1))
"""


@pytest.mark.parametrize(("at_step", "first"), [LONG(15000, 15001), (3, None), LONG(None, None)])
def test_a_trace_is_ordered_while_the_program_runs(at_step, first, script, fork_under_agent):
    ran = fork_under_agent([script(ORDERED.replace("AT", str(at_step)))], note_events=True, live=True)
    outcome, events = trace_of(ran)
    assert len(named(events, "ProfilerStep")) == 3
    # A step that is past is made up for soon.
    assert outcome.first_step == first or (first is None and outcome.first_step < 1000)


TWO = """
import torch
net = torch.nn.Linear(8, 8)
with torch.no_grad():
    for number in range(300):
        net(torch.ones(1, 8))
"""


def test_one_run_records_several_traces_and_times_a_window_between_them(script, fork_under_agent):
    tasks = [trace_task(20, 3, stacks=True), window_task(40, 10), trace_task(60, 2)]
    ran = fork_under_agent([script(TWO)], tasks=tasks)
    assert [trace.num_steps for trace in ran.stepping.traces] == [3, 2]
    assert len({trace.file for trace in ran.stepping.traces}) == 2
    assert (ran.stepping.window.first_step, ran.stepping.window.num_steps) == (40, 10)
    for trace, num_steps in zip(ran.stepping.traces, (3, 2), strict=True):
        assert len(named(events_in(ran, trace.file), "ProfilerStep")) == num_steps


OWN = {
    "all the time": "with profile(activities=[ProfilerActivity.CPU]) as own:\n    steps(60)\n",
    "again and again": "with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, "
    "warmup=1, active=3),"
    " on_trace_ready=lambda own: print(len(own.events()))) as own:\n    steps(60, own)\n",
    "meanwhile": "steps(22)\nwith profile(activities=[ProfilerActivity.CPU]) as own:\n    steps(20)\n",
    (
        "while it gets ready"
    ): "steps(21)\nwith profile(activities=[ProfilerActivity.CPU]) as own:\n    steps(20)\n",
    "in old words": "steps(22)\nwith torch.autograd.profiler.profile() as own:\n    steps(20)\n",
}


@pytest.mark.parametrize(
    "when", ["while it gets ready", *map(LONG, sorted({*OWN} - {"while it gets ready"}))]
)
def test_a_profiler_of_the_programs_own_goes_first(when, script, fork_under_agent):
    program = script(PROFILED + OWN[when] + "print([(e.key, e.count) for e in own.key_averages()])\n")
    ran = fork_under_agent([program], tasks=[trace_task(20, 5)])
    assert (ran.returncode, ran.stdout) == (0, fork_under_agent([program]).stdout), ran.stderr
    outcome = ran.stepping.trace
    assert outcome.file is None
    assert outcome.reason.startswith("the program uses torch's profiler itself")
    assert f"{program}:" in outcome.reason
    assert left_behind(ran) == set()


def test_a_profiler_of_the_programs_own_that_is_done_is_not_in_the_way(script, fork_under_agent):
    program = script(
        PROFILED + "with profile(activities=[ProfilerActivity.CPU]) as own:\n    steps(10)\nsteps(50)\n"
    )
    ran = fork_under_agent([program], tasks=[trace_task(20, 5)])
    assert len(named(trace_of(ran)[1], "ProfilerStep")) == 5


@pytest.mark.parametrize(
    ("warmup_steps", "said"),
    [
        (100, "the program ended before the recording began"),
        (50, "the program ended before more than 9 of 20 steps were recorded"),
    ],
)
def test_a_program_that_ends_too_early_has_no_trace_and_says_why(
    warmup_steps, said, script, fork_under_agent
):
    program = script(BY_HAND)
    ran = fork_under_agent([program], tasks=[trace_task(warmup_steps, 20)])
    assert (ran.returncode, ran.stdout) == (0, fork_under_agent([program]).stdout)
    assert (ran.stepping.trace.file, ran.stepping.trace.reason) == (None, said)
    assert left_behind(ran) == set()


def test_a_trace_for_which_there_is_no_room_is_not_there_at_all(script, fork_under_agent):
    program = script(
        "import resource, torch\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n" + BY_HAND
    )
    ran = fork_under_agent([program], tasks=[trace_task(20, 5)])
    assert ran.stdout.startswith("LOSS")
    assert "could not be written" in ran.stepping.trace.reason
    assert left_behind(ran) == set()


def test_a_forked_child_leaves_the_recording_to_its_parent(script, fork_under_agent):
    program = script(
        """
import os, torch
net = torch.nn.Linear(4, 4)
with torch.no_grad():
    for number in range(40):
        net(torch.ones(1, 4))
        if number == 21 and os.fork() == 0:
            for _ in range(40):
                net(torch.ones(1, 4))
            os._exit(0)
os.wait()
"""
    )
    ran = fork_under_agent([program], tasks=[trace_task(20, 5)])
    outcome, events = trace_of(ran)
    assert len(named(events, "ProfilerStep")) == 5
    assert left_behind(ran) == {outcome.file}


RANKS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(40):
        net(torch.randn(4, 4)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    os._exit(0)  # torch 2.13 sometimes aborts here otherwise, at the end of gloo's threads

if __name__ == "__main__":
    mp.start_processes(train, (sys.argv[1],), nprocs=2, start_method="spawn")
"""


@pytest.mark.long
def test_each_rank_records_the_same_steps_into_a_file_of_its_own(script, tmp_path, run_under_agent):
    ran = run_under_agent([script(RANKS), tmp_path / "store"], tasks=[trace_task(15, 3)])
    assert ran.returncode == 0, ran.stderr
    files = {process.rank: process.trace.file for process in ran.processes if process.num_steps}
    assert files == {0: "trace-rank0.json.gz", 1: "trace-rank1.json.gz"}
    steps = [[name for name, _, _ in named(events_in(ran, files[rank]), "ProfilerStep")] for rank in (0, 1)]
    assert steps[0] == steps[1] == ["ProfilerStep#16", "ProfilerStep#17", "ProfilerStep#18"]


@pytest.mark.long
def test_without_a_trace_to_record_nothing_of_the_profiler_is_touched(script, fork_under_agent):
    program = script(
        TRAINING
        + """
main()
print("_dynotune_agent" in sys.modules, "_dynotune_agent.tasks.profile" in sys.modules, "gzip" in sys.modules)
print([type(getattr(torch.autograd.profiler, name)).__name__ for name in ("_prepare_profiler", "_disable_profiler")])
"""  # noqa: E501
    )
    ran = fork_under_agent([program], tasks=[window_task(20, 10)])
    without = fork_under_agent([program], env={"DYNOTUNE_RUN": ""})
    assert ran.stdout.split("\n")[1].startswith("True False ")
    assert ran.stdout.split("\n")[2] == without.stdout.split("\n")[2]


@pytest.mark.long
def test_a_mistake_of_ours_is_a_reason_and_not_an_error_of_the_programs(script, fork_under_agent):
    program = script(
        "import torch\ntorch.profiler._KinetoProfile.start_trace = lambda self: 1 / 0\n" + BY_HAND
    )
    ran = fork_under_agent([program], tasks=[trace_task(20, 5)])
    assert (ran.returncode, ran.stdout[:4]) == (0, "LOSS")
    assert ran.stepping.trace.reason == "it failed: ZeroDivisionError: division by zero"
