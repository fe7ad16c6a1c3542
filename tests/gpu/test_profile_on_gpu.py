"""Traces of programs on a GPU: which kernels are in them, and what they are tied to. Needs torch 2.11 or
newer."""

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from dynotune.launch.process import environment
from dynotune.launch.records.process_summary import summarise
from dynotune.launch.records.reader import Records

from ..agent.planned_tasks import trace_task

pytestmark = pytest.mark.gpu

TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 3)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(640, 3, 64, 64)), batch_size=16, pin_memory=True)
for (x,) in loader:
    net(x.cuda(non_blocking=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

REPLAY = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]).cuda()
x = torch.randn(64, 256, device="cuda")
fresh = torch.randn(64, 256, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            net(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(x)
    for _ in range(200):
        x.copy_(fresh)
        graph.replay()
torch.cuda.synchronize()
print("SAME", torch.allclose(y, net(fresh), atol=1e-3))
"""

COMPILED = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda().eval()
net = torch.compile(net, mode="reduce-overhead", fullgraph=True)
x = torch.randn(64, 256, device="cuda")
with torch.no_grad():
    for number in range(80):
        if number == 10:
            torch.compiler.set_stance("fail_on_recompile")
        torch.compiler.cudagraph_mark_step_begin()
        net(x)
"""

UNUSED = """
import torch
net = torch.nn.Linear(8, 8)
with torch.no_grad():
    for _ in range(60):
        net(torch.ones(1, 8))
print("CONTEXT", torch.cuda.is_initialized())
"""


@pytest.fixture
def trace(tmp_path):
    """`trace(program, **plan)`: what it printed, its trace's outcome and events."""

    def run(program, **plan):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps({"settings": [], **plan}))
        (tmp_path / "program.py").write_text(program)
        env = {**os.environ, "DYNOTUNE_RUN": str(folder), "PYTHONPATH": str(environment.AGENT / "bootstrap")}
        done = subprocess.run(
            [sys.executable, str(tmp_path / "program.py")],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        processes = [summarise(record, 0.0) for record in Records(folder).update()]
        (process,) = [process for process in processes if process.trace is not None]
        assert process.errors == []
        assert process.trace.file, process.trace.reason
        with gzip.open(folder / process.trace.file) as file:
            events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
        return SimpleNamespace(stdout=done.stdout, outcome=process.trace, events=events)

    return run


def of_kind(done, *kinds):
    return [event for event in done.events if event.get("cat") in kinds]


def steps(done):
    found = [e for e in of_kind(done, "user_annotation") if e["name"].startswith("ProfilerStep#")]
    return sorted(found, key=lambda event: event["ts"])


def calls(done):
    """Calls of the CUDA runtime and driver by their correlation."""
    return {event["args"]["correlation"]: event for event in of_kind(done, "cuda_runtime", "cuda_driver")}


def step_of(done, event):
    """The step in which a call was made; None outside all."""
    inside = [step["name"] for step in steps(done) if step["ts"] <= event["ts"] < step["ts"] + step["dur"]]
    return inside[0] if inside else None


def launched_by_step(done, *kinds):
    """How much device work each step queued; work without a launch under None."""
    by_correlation = calls(done)
    launches = [by_correlation.get(event["args"]["correlation"]) for event in of_kind(done, *kinds)]
    return Counter(launch and step_of(done, launch) for launch in launches)


def test_each_step_of_a_training_has_all_its_kernels_and_copies_to_the_last(trace):
    done = trace(TRAINING, tasks=[trace_task(20, 4)])
    names = [f"ProfilerStep#{number}" for number in (21, 22, 23, 24)]
    assert [step["name"] for step in steps(done)] == names
    kernels, copies = launched_by_step(done, "kernel"), launched_by_step(done, "gpu_memcpy")
    assert set(kernels) == set(names), "kernels from before the recording, or without a launch"
    assert len(set(kernels.values())) == 1, "a step has fewer kernels than the others: its work was cut off"
    # The convolution copies within the device as well.
    of_host = [event for event in of_kind(done, "gpu_memcpy") if "HtoD" in event["name"]]
    assert len(of_host) == 4 and set(copies) == set(names), (
        "a batch whose copy is missing, or without its launch"
    )


def test_no_step_waits_because_of_the_recording(trace):
    done = trace(TRAINING, tasks=[trace_task(20, 4)])
    waits = [event for event in of_kind(done, "cuda_runtime") if "Synchronize" in event["name"]]
    assert [event["name"] for event in waits if step_of(done, event)] == []


def test_stacks_and_shapes_are_recorded_beside_kernels(trace):
    done = trace(TRAINING, tasks=[trace_task(20, 2, stacks=True, shapes=True)])
    assert len(steps(done)) == 2
    assert of_kind(done, "kernel")
    assert of_kind(done, "python_function")
    assert any("Input Dims" in event["args"] for event in of_kind(done, "cpu_op"))


def test_kernels_of_a_graph_captured_before_are_tied_to_its_launch(trace):
    done = trace(REPLAY, tasks=[trace_task(60, 5)])
    assert done.stdout == "SAME True\n"
    assert len(steps(done)) == 5
    by_correlation = calls(done)
    launches = [by_correlation.get(event["args"]["correlation"]) for event in of_kind(done, "kernel")]
    of_graphs = [launch for launch in launches if launch is not None and launch["name"] == "cudaGraphLaunch"]
    per_step = Counter(step_of(done, launch) for launch in of_graphs)
    assert set(per_step) == {step["name"] for step in steps(done)}
    assert set(per_step.values()) == {per_step[steps(done)[0]["name"]]}
    assert min(per_step.values()) >= 6
    assert None not in launches


def test_graphs_of_compiled_code_are_recorded_and_not_compiled_again(trace):
    # The program fails where something is compiled again.
    done = trace(COMPILED, tasks=[trace_task(40, 4)])
    assert len(steps(done)) == 4
    names = Counter(event["name"] for event in calls(done).values() if step_of(done, event))
    assert names["cudaGraphLaunch"] >= 4
    assert launched_by_step(done, "kernel")[None] == 0


def test_a_program_that_does_not_use_the_gpu_gets_no_context_on_it(trace):
    done = trace(UNUSED, tasks=[trace_task(20, 3)])
    assert done.stdout == "CONTEXT False\n"
    assert len(steps(done)) == 3
    assert of_kind(done, "kernel") == []


PROFILES_ITSELF = (
    TRAINING
    + """
import os
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as own:
    net(torch.ones(2, 3, 64, 64, device="cuda"))
    torch.cuda.synchronize()
kernels = [e for e in own.profiler.kineto_results.events() if e.device_type() == torch.autograd.DeviceType.CUDA]
print("OWN", bool(kernels), "TEARDOWN_CUPTI" in os.environ)
"""  # noqa: E501
)


def test_recordings_are_whole_and_detach_cupti_when_several_follow_each_other(trace):
    done = trace(TRAINING, tasks=[trace_task(5, 3), trace_task(15, 3, stacks=True), trace_task(25, 3)])
    assert done.outcome.cupti_stays == ""
    assert done.outcome.num_device_tensors > 0
    kernels = launched_by_step(done, "kernel")
    assert len(kernels) == 3 and len(set(kernels.values())) == 1


def test_programs_own_session_is_whole_when_a_recording_came_before(trace):
    assert "OWN True False" in trace(PROFILES_ITSELF, tasks=[trace_task(10, 3)]).stdout
