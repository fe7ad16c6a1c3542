"""What the agent says of a program at its window's end, in real programs; and that it changes none of
them."""

from __future__ import annotations

import re

import pytest

from dynotune.launch.records.process_state import failed_parts, state_of_process
from dynotune.launch.records.record import GARBAGE
from dynotune.schema.events import AgentError, StateRead
from dynotune.schema.facts import Unknown

from ..planned_tasks import window_task

TRAINS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Batch:
    def __init__(self, rows):
        self.pictures = torch.stack([row[0] for row in rows])
        self.labels = torch.tensor([row[1] for row in rows])

class Pictures(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.rand(3, 8, 8), index % 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), nn.Linear(144, 2))
    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, pictures):
        return self.layers(pictures)

net = Net().to(memory_format=torch.channels_last)
check = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for epoch in range(10):
    for batch in DataLoader(Pictures(), 16, shuffle=True, collate_fn=Batch, drop_last=True):
        optimizer.zero_grad(set_to_none=False)
        loss = check(net(batch.pictures), batch.labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
print("DONE")
"""

FAULTS = """
import gc, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
profiler.start()
kept = []
for number in range(40):
    with torch.autograd.set_detect_anomaly(True), torch.enable_grad():
        loss = net(torch.randn(4 + number % 3, 8)).sum()
        loss.backward()
    optimizer.step()
    kept.append(bytearray(1 << 20))
    torch.cuda.empty_cache()
    if number % 10 == 0:
        gc.collect()
profiler.stop()
"""

COMPILES = """
import torch
@torch.compile(backend="eager", dynamic=False)
def function(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y.sum()
net = torch.compile(torch.nn.Linear(8, 8), backend="eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(40):
    if number == 20 and hasattr(torch.compiler, "set_stance"):  # from torch 2.6 on
        torch.compiler.set_stance("fail_on_recompile")
    optimizer.zero_grad()
    (net(torch.randn(4, 8)).sum() + function(torch.randn(1 + min(number, 12)))).backward()
    optimizer.step()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""

ODD = """
import torch
class Shy(torch.nn.Linear):
    def parameters(self, recurse=True):
        raise RuntimeError("mine")
class Counting(torch.Tensor):
    asked = []
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.asked.append(getattr(function, "__name__", ""))
        return super().__torch_function__(function, types, args, kwargs or {})
net, plain = Shy(8, 8), torch.nn.Linear(8, 8)
weights = [net.weight, net.bias]
optimizer = torch.optim.SGD(weights, lr=0.1)
for number in range(30):
    plain(net(torch.randn(4, 8).as_subclass(Counting))).sum().backward()
    optimizer.step()
print(len(Counting.asked))
"""


@pytest.fixture
def observed(fork_under_agent, script):
    """`observed(program)`: what it printed, its record and its state."""

    def run(program, compiler=True):
        ran = fork_under_agent(
            [script(program)], compiler=compiler, observe=True, tasks=[window_task(15, 12)]
        )
        assert ran.returncode == 0, ran.stderr
        record = max(ran.records, key=lambda record: len(record.steps))
        return ran, record, state_of_process(record, ran.launched_s)

    return run


def test_loader_model_and_optimizer_are_described_as_they_are(observed):
    ran, record, found = observed(TRAINS)
    assert ran.stdout == "DONE\n"
    assert not record.all(AgentError)
    assert failed_parts(record) == []
    (loader,) = found.loaders
    assert (loader.dataset, loader.sampler) == ("__main__.Pictures", "torch.utils.data.sampler.RandomSampler")
    assert (loader.collate, loader.batch_size, loader.num_items, loader.num_batches) == (
        "__main__.Batch",
        16,
        64,
        4,
    )
    assert loader.drop_last
    assert loader.batch_is_pinnable is False
    assert [(tensor.shape, tensor.dtype) for tensor in loader.batch] == [
        ([16, 3, 8, 8], "float32"),
        ([16], "int64"),
    ]
    assert loader.place.function == "program.py(31): <module>"
    assert loader.num_begun >= 6
    (model,) = found.models
    assert model.name == "__main__.Net"
    assert model.num_modules == {"convolution": 1, "norm-batch": 1, "dropout": 1, "linear": 1}
    assert (model.training, model.num_training, model.channels_last_share) == (True, 2, 1.0)
    assert (model.dtypes, model.devices) == ({"float32": 410}, {"cpu": 410})
    assert (model.call.autocast, model.call.grad_enabled, model.call.num_input_shapes) == (
        "bfloat16",
        True,
        1,
    )
    assert (model.call.output_requires_grad, model.call.place.function) == (True, "program.py(33): <module>")
    (optimizer,) = found.optimizers
    assert (optimizer.name, optimizer.foreach, optimizer.scaled) == ("torch.optim.adamw.AdamW", False, True)
    assert found.live["live.grad_scaler"] is True
    assert found.live["live.zero_grad_sets_none"] is False
    assert found.live["live.zero_grad_place"] == "program.py:32"
    assert found.live["live.autocast_dtypes"] == ["bfloat16"]
    assert found.timing.wait_s > 0
    assert found.timing.num_epochs == 3


def test_debugging_left_on_collections_and_growth_are_seen(observed):
    _, record, found = observed(FAULTS)
    assert found.live["live.anomaly_mode"] is True
    assert found.live["live.profiler_place"].endswith("program.py:6")
    assert found.live["live.empty_cache_calls"] == 12
    assert found.live["live.empty_cache_place"] == "program.py:14"
    assert found.collections.num_oldest == 1
    assert found.collections.longest_s > 0
    assert found.collections.num_objects > 0
    assert record.steps[21].flags & GARBAGE
    assert found.rss_growth_bytes >= 10 << 20
    assert len(found.rss_levels_bytes) > 2
    assert found.rss_levels_bytes[-1] - found.rss_levels_bytes[0] == found.rss_growth_bytes
    assert found.models[0].call.num_input_shapes == 3


@pytest.mark.long
def test_compilations_are_counted_with_reasons_and_none_is_added(observed, fork_under_agent, script):
    ran, _, found = observed(COMPILES, compiler=False)
    assert ran.stdout == fork_under_agent([script(COMPILES)], compiler=False, env={"DYNOTUNE_RUN": ""}).stdout
    compiled = found.compilation
    assert compiled.num_graphs == int(ran.stdout)
    assert (compiled.num_graph_breaks, compiled.num_recompilations) == (8, 14)
    assert re.search(r"program\.py:6: .*\bgraph_break\b", compiled.breaks[0])
    assert "size mismatch" in compiled.recompilations[0]
    assert len(compiled.limit_reached) == 1
    assert "'function'" in compiled.limit_reached[0]
    assert compiled.modes == ["backend eager"]
    assert compiled.num_compilations_in_window == 0
    assert (compiled.skipped, compiled.num_cudagraphs_in_window) == ([], 0)
    assert found.models[0].compiled


def test_odd_objects_are_survived_and_asked_nothing_more(observed, fork_under_agent, script):
    ran, record, found = observed(ODD)
    # Finding the step asks for a few sizes, in any run; observing asks for none.
    assert ran.stdout == fork_under_agent([script(ODD)], note_events=True).stdout
    assert [model.name for model in found.models] == ["torch.nn.modules.linear.Linear"]
    # Told once, not at each call.
    assert [error.where for error in record.all(AgentError)] == ["call of __main__.Shy"]


TRIED_OUT = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(20))
        self(torch.zeros(1, 8)) if {whole} else self.forward(torch.zeros(1, 8))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
net = Net()
for layer in net.layers if {parts} else ():
    layer(torch.zeros(2, 8))
with torch.inference_mode():
    for number in range(400):
        net(torch.randn(4, 8))
"""


@pytest.mark.parametrize("whole, parts", [(True, False), (False, False), (False, True)])
def test_calls_before_the_first_step_are_left_out_of_the_models_calls(whole, parts, observed):
    _, _, found = observed(TRIED_OUT.format(whole=whole, parts=parts))
    (model,) = found.models
    assert model.name == "__main__.Net"
    assert (model.call.grad_enabled, model.call.inference_mode) == (False, True)


def test_nothing_is_covered_or_said_where_nobody_observes(fork_under_agent, script):
    text = TRAINS.replace(
        'print("DONE")', "print(torch.optim.AdamW.zero_grad.__module__, torch.cuda.empty_cache.__module__)"
    )
    ran = fork_under_agent([script(text)], note_events=True)
    assert all(record.last(StateRead) is None for record in ran.records)
    assert "_dynotune_agent" not in ran.stdout


CROWDED = """
import os, torch
cores = len(os.sched_getaffinity(0))
torch.set_num_threads(8 * cores)
net = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(40):
    net(torch.randn(2048, 512)).relu().sum().backward()
    optimizer.step()
"""


def test_threads_that_wait_for_a_core_are_told_as_the_kernel_counts_them(observed):
    waited = observed(CROWDED)[2].live["live.core_wait_s_per_s"]
    assert isinstance(waited, Unknown) or waited > 1.0
