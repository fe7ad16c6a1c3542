"""From blocks to estimates, and real runs in which arms are switched on and off."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import multiprocessing
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.agent.sites.delay import DelaySite
from dynotune.agent.sites.registry import SITES, site_of
from dynotune.launch.records.record import Record, Step
from dynotune.measure.checks import guard
from dynotune.measure.live import Live, TurnsPlan, switching, turns
from dynotune.measure.live.blocks import why_left_behind
from dynotune.measure.live.live_run import is_alive
from dynotune.measure.live.switching import SwitchedArms, estimate
from dynotune.schema.arm import arm, ids_of
from dynotune.schema.events import Block, Stretch, Window
from dynotune.schema.reasons import Reason

from ...fakes import Watcher, record, spec, take

# A live run whose plain window was timed.
TIMED = SimpleNamespace(records=lambda: [SimpleNamespace(last=lambda kind: kind is Window)])

# Without an optimizer where that is not the subject: torch imports its compiler for the first one.
TRAIN = """
import gc
gc.disable()
import torch
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x)

model = Model()
{prepare}
for step in range({num_steps}):
    model(torch.randn(256, 64)).square().mean().backward()
    model.zero_grad()
    {each}
"""


def arm_of(*texts):
    return arm(knobs.parse(text) for text in texts)


def block(baseline_s, candidate_s, num_samples=None):
    def stretches(seconds):
        return [Stretch(seconds / 2, 10, num_samples), Stretch(seconds / 2, 10, num_samples)]

    return Block(
        arm=0, number=0, order="ABBA", begin_s=0.0, end_s=1.0,
        baseline=stretches(baseline_s), candidate=stretches(candidate_s),
    )  # fmt: skip


def switched(live, arms, left_s, plan, enough=None):
    made = live.turns(arms, left_s, plan)
    for blocks in made:
        if enough is not None and enough(blocks):
            break
    return made.found()


@pytest.fixture
def switch(tmp_path, monkeypatch):
    """Switches arms of a program that is given as text, as briefly as can be."""
    monkeypatch.setattr(turns, "LEAST_S", 0.0)

    def run(text, *arms, left_s=120.0, num_blocks=3, num_results=0, enough=None):
        path = tmp_path / "program.py"
        path.write_text(text)
        request = spec(
            command=[sys.executable, str(path)], cwd=tmp_path, base=tmp_path / "runs",
            env={**os.environ, "OMP_NUM_THREADS": "1"}, warmup_steps=4, lock=False, sandbox=False,
        )  # fmt: skip
        plan = TurnsPlan(
            num_blocks=num_blocks, stretch_s=0.005, num_results=num_results, again=enough is not None
        )
        with Live(request, request.base, {}, Watcher(), cache_folder=tmp_path / "caches") as live:
            return switched(live, [arm_of(*texts) for texts in arms], left_s, plan, enough)

    return run


# Estimates


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=3, max_size=12))
def test_an_estimate_is_the_geometric_mean_of_the_blocks_and_lies_in_its_interval(times):
    found = estimate("a=1", [block(*pair) for pair in times])
    ratios = [before / after for before, after in times]
    assert found.speedup == pytest.approx(math.prod(ratio ** (1 / len(ratios)) for ratio in ratios))
    assert found.ci is not None
    assert found.ci[0] <= found.speedup * (1 + 1e-9)
    assert found.speedup <= found.ci[1] * (1 + 1e-9)
    assert min(ratios) <= found.speedup * (1 + 1e-9)
    assert found.num_blocks == len(times)


@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=12))
def test_the_other_way_round_is_the_inverse_and_the_p_value_the_rest(values):
    assume(max(values) - min(values) > 1e-6)
    one = estimate("a=1", [block(math.exp(value), 1.0) for value in values])
    other = estimate("a=1", [block(1.0, math.exp(value)) for value in values])
    assert one.speedup * other.speedup == pytest.approx(1.0)
    assert one.ci is not None
    assert other.ci is not None
    assert one.ci[0] * other.ci[1] == pytest.approx(1.0)
    assert one.p is not None
    assert other.p is not None
    assert one.p + other.p == pytest.approx(1.0)


def test_the_interval_is_student_s():
    # Mean 0.1, standard deviation 0.1 of 4 blocks; t(3) at 97.5% is 3.182.
    values = [
        0.1 - 0.15 / math.sqrt(3),
        0.1 - 0.15 / math.sqrt(27),
        0.1 + 0.15 / math.sqrt(27),
        0.1 + 0.15 / math.sqrt(3),
    ]
    spread = math.sqrt(sum((value - 0.1) ** 2 for value in values) / 3)
    found = estimate("a=1", [block(math.exp(value), 1.0) for value in values])
    assert found.ci is not None
    assert math.log(found.ci[1]) == pytest.approx(0.1 + 3.1824463 * spread / 2)


def test_samples_count_where_all_stretches_know_them():
    of_more_samples = block(1.0, 1.0, num_samples=10)
    more = [Stretch(stretch.seconds, 10, 20) for stretch in of_more_samples.candidate]
    twice = Block(
        arm=0,
        number=0,
        order="ABBA",
        begin_s=0.0,
        end_s=1.0,
        baseline=of_more_samples.baseline,
        candidate=more,
    )
    assert estimate("a=1", [twice] * 3).speedup == pytest.approx(2.0)
    unknown = [Stretch(stretch.seconds, 10, None) for stretch in twice.candidate]
    by_step = Block(
        arm=0, number=0, order="ABBA", begin_s=0.0, end_s=1.0, baseline=twice.baseline, candidate=unknown
    )
    assert estimate("a=1", [by_step] * 3).speedup == pytest.approx(1.0)


def of_stretches(order, *baseline):
    stretches = [Stretch(seconds, 10, None) for seconds in baseline]
    return Block(
        arm=0,
        number=0,
        order=order,
        begin_s=0.0,
        end_s=1.0,
        baseline=stretches,
        candidate=[Stretch(1.0, 10, None)] * 2,
    )


def test_a_baseline_that_is_not_what_it_was_once_the_arm_is_off_gives_the_arm_up():
    slower = [of_stretches("ABBA", 1.0 + 0.001 * number, 1.2) for number in range(5)]
    assert "once it is off again, a step takes 20% more time than before" in why_left_behind(slower)
    faster = [of_stretches("ABBA", 1.2, 1.02 + 0.001 * number) for number in range(5)]
    assert "once it is off again, a step takes 15% less time than before" in why_left_behind(faster)
    alike = [of_stretches("ABBA", 1.0 + 0.01 * number, 1.02 - 0.01 * number) for number in range(5)]
    assert why_left_behind(alike) == ""
    # In a block BAAB both stretches of the baseline come after the arm: they tell nothing of before.
    assert why_left_behind([of_stretches("BAAB", 1.0, 1.2 + 0.001 * number) for number in range(5)]) == ""


# What can be switched


@pytest.mark.parametrize(
    "text",
    [
        *(
            "matmul.fp32_precision=high",
            "precision.autocast=bf16",
            "precision.autocast=fp16",
            "compile.mode=default",
        ),
        *(
            "layout.channels_last=true",
            "optimizer.fused=true",
            "loader.num_workers=2",
            "loader.pin_memory=true",
        ),
        *(
            "loader.prefetch_factor=4",
            "decode.backend=opencv",
            "transfer.non_blocking=true",
            "host.num_threads=1",
        ),
    ],
)
def test_settings_are_switched_when_they_can_change_between_two_steps(text):
    assert knobs.why_not_switched(knobs.parse(text)) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cudnn.benchmark=true", "reuses it"),
        ("determinism.algorithms=true", "would end the program"),
        ("loader.persistent_workers=true", "when an epoch begins"),
        ("env.OMP_NUM_THREADS=1", "when the process starts"),
        ("host.interop_threads=1", "before CUDA is used"),
        ("alloc.expandable_segments=true", "when the process starts"),
    ],
)
def test_settings_say_why_when_they_cannot_be_switched(text, reason):
    assert reason in knobs.why_not_switched(knobs.parse(text))


def test_an_arm_with_one_setting_that_cannot_be_switched_is_left_out_and_nothing_runs(switch):
    found = switch("raise SystemExit('it ran')", ["host.num_threads=1", "env.A=2"], [])
    assert found.estimates == []
    assert "when the process starts" in found.given_up["env.A=2 host.num_threads=1"]
    assert found.given_up[""] == "it is the baseline"
    assert found.stretch_steps == 0


def record_of(step_s, epoch):
    """A hundred steps; one that begins an epoch has the flag for it."""
    flags = [4 if epoch and number % epoch == 0 else 0 for number in range(100)]
    steps = [Step(step_s * (number + 1), 0.0, 8, flag) for number, flag in enumerate(flags)]
    return take(Record(Path("x"), 1, 0.0, steps), {"event": "cycle", "begin_s": 0.0, "num_steps": 3})


@pytest.mark.parametrize(
    ("step_s", "epoch", "num_steps"),
    [(0.01, 0, 15), (2.0, 0, turns.FEWEST_STEPS), (0.01, 7, 21), (0.01, 90, 15)],
)
def test_stretches_are_long_enough_and_hold_whole_epochs_where_these_are_short(step_s, epoch, num_steps):
    assert turns.stretch_steps([record_of(step_s, epoch)], 0.15, step_s, []) == num_steps


def test_of_ranks_a_stretch_holds_a_batch_of_each_worker():
    arms = [arm_of("loader.num_workers=24", "loader.pin_memory=true"), arm_of("loader.num_workers=2")]
    assert turns.stretch_steps([record_of(2.0, 0)] * 2, 0.15, 2.0, arms) == 24


def test_a_block_that_an_earlier_task_ends_after_the_next_order_is_not_the_next_tasks():
    stretches = [{"seconds": 1.0, "num_steps": 4, "num_samples": None}] * 2
    at = {"arm": 0, "number": 0, "order": "ABBA", "end_s": 9.0, "baseline": stretches, "candidate": stretches}
    made = take(
        Record(Path("x"), 1, 0.0),
        *({"event": "arm_block", **at, "begin_s": begin_s} for begin_s in (4.0, 6.0)),
        {"event": "arm_results", "arm": 0, "begin_s": 4.0},
    )
    assert not made.dropped
    found = switching.said(made, ["fast"], {}, 5.0)
    assert [block.begin_s for block in found.blocks["fast"]] == [6.0]
    assert found.results == {}


# Real runs


def test_arms_are_switched_in_a_real_program_and_one_that_ends_it_costs_the_others_nothing(switch, tmp_path):
    prepare = f"""
seen = set()
def look(module, args, output):
    state = torch.backends.cudnn.deterministic, torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision()
    if state not in seen:
        seen.add(state)
        with open({str(tmp_path / "seen")!r}, "a") as file:
            print(*state, file=file)
model.register_forward_hook(look)
"""  # noqa: E501
    found = switch(
        TRAIN.format(prepare=prepare, num_steps=100_000, each="assert torch.get_num_threads() != 5"),
        ["cudnn.deterministic=true"],
        ["precision.autocast=bf16", "matmul.fp32_precision=high"],
        ["host.num_threads=5"],
    )
    known = {estimate.arm: estimate for estimate in found.estimates}
    assert set(known) == {"cudnn.deterministic=true", "matmul.fp32_precision=high precision.autocast=bf16"}
    assert all(estimate.num_blocks == 3 and estimate.ci for estimate in known.values())
    assert set(found.given_up) == {"host.num_threads=5"}
    assert found.given_up["host.num_threads=5"].startswith(
        "the program ended with an error while it was on: "
    )
    assert found.reason == ""
    seen = (tmp_path / "seen").read_text().splitlines()
    assert set(seen) == {"False False highest", "True False highest", "False True high"}


GAN = """
import torch
torch.manual_seed(0)
net, judge = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(), torch.nn.Sigmoid()), torch.nn.BCELoss()
class Picky(torch.nn.Module):
    def forward(self, x):
        if torch.is_autocast_enabled("cpu"):
            raise TypeError("not under autocast")
        return x
picky = Picky()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(100_000):
    x = picky(net(torch.randn(256, 64)))
    loss = judge(x, torch.ones_like(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""  # noqa: E501


@pytest.mark.long
def test_a_call_that_fails_with_a_setting_is_made_again_without_it_and_the_program_goes_on(switch):
    found = switch(
        GAN, ["precision.autocast=bf16", "matmul.fp32_precision=high"], ["cudnn.deterministic=true"]
    )
    (arm, reason), *others = found.given_up.items()
    assert others == [] and "precision.autocast=bf16" in arm
    assert reason == "a call failed with it: TypeError: not under autocast"
    assert found.blamed[arm] == ["precision.autocast"]
    assert list(found.blocks) == ["cudnn.deterministic=true"]


@pytest.mark.long
def test_updates_are_compared_with_the_programs_own_where_an_optimizer_is_switched(switch):
    found = switch(GAN.replace("if torch", "if 0 and torch"), ["optimizer.fused=true"], num_results=2)
    ((event,),) = found.results.values()
    assert (event.what, event.knobs) == ("updates", ["optimizer.fused"])
    judged = guard.within([knobs.parse("optimizer.fused=true")], event)
    assert (judged.ok, judged.reference) == (True, "float64")


@pytest.mark.long
def test_calls_that_train_are_compared_with_the_same_calls_without_the_arm(switch):
    found = switch(GAN.replace("if torch", "if 0 and torch"), ["precision.autocast=bf16"], num_results=2)
    ((event,),) = found.results.values()
    assert event.knobs == ["precision.autocast"]
    assert event.draws == ["cpu"] and len(event.redrawn) == len(event.candidate) == 2
    judged = guard.within([knobs.parse("precision.autocast=bf16")], event)
    assert judged.ok and 0 < judged.difference < judged.tolerance


@pytest.mark.long
def test_a_compiled_program_has_arms_given_up_that_compile_it_anew(switch):
    found = switch(
        TRAIN.format(prepare="model.compile(backend='eager')", num_steps=100_000, each="pass"),
        ["matmul.fp32_precision=high"],
        ["cudnn.deterministic=true"],
    )
    assert found.given_up == {
        "matmul.fp32_precision=high": "torch compiled the program again after the switch"
    }
    assert [estimate.arm for estimate in found.estimates] == ["cudnn.deterministic=true"]


@pytest.mark.long
def test_a_program_that_ends_too_soon_says_so(switch):
    found = switch(TRAIN.format(prepare="", num_steps=50, each="pass"), ["host.num_threads=7"])
    assert found.estimates == []
    assert found.reason == "the program ended after 50 steps" and found.ran_out


# Each kind of setting, in a real program that asserts what holds while it is on, and that it is gone
# afterwards


def held(found, *keys):
    """No arm was given up, the program ended by no error of its own, and each block read all its settings
    back."""
    assert found.given_up == {} and found.reason == ""
    assert set(found.blocks) == set(keys)
    for key, blocks in found.blocks.items():
        for block in blocks:
            assert {f"{one.knob}={one.found}": one.ok for one in block.readback} == dict.fromkeys(
                ids_of(key), True
            )
    return found


IMAGES = """
import json, os, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
optimizer = torch.optim.AdamW(model.parameters(), 0.001)
seen = []
def look(module, args, output):
    weight, group = model[0].weight, optimizer.param_groups[0]
    last = weight.is_contiguous(memory_format=torch.channels_last)
    assert args[0].is_contiguous(memory_format=torch.channels_last) or not last
    for state in optimizer.state.values():
        assert state["step"].device.type == "cpu"
    averages = optimizer.state.get(weight, {}).get("exp_avg")
    assert averages is None or averages.is_contiguous(memory_format=torch.channels_last) or not last
    state = [last, bool(group.get("fused"))]
    if state not in seen:
        seen.append(state)
        with open(FILE + ".new", "w") as file:
            json.dump(seen, file)
        os.replace(FILE + ".new", FILE)
model.register_forward_hook(look)
for step in range(100_000):
    loss = model(torch.randn(8, 3, 8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""  # noqa: E501


@pytest.mark.long
def test_layout_and_fused_optimizers_are_switched_with_what_belongs_to_them(switch, tmp_path):
    text = f"FILE = {str(tmp_path / 'seen')!r}\n{IMAGES}"
    both = "layout.channels_last=true optimizer.fused=true"
    held(switch(text, ["layout.channels_last=true"], ["optimizer.fused=true"], both.split()),
         "layout.channels_last=true", "optimizer.fused=true", both)  # fmt: skip
    seen = json.loads((tmp_path / "seen").read_text())
    assert sorted(seen) == [[False, False], [False, True], [True, False], [True, True]]


@pytest.mark.long
def test_arm_is_given_up_when_the_program_has_its_setting_already(switch, tmp_path):
    fused = IMAGES.replace("0.001)", "0.001, fused=True)")
    found = switch(f"FILE = {str(tmp_path / 'seen')!r}\n{fused}", ["optimizer.fused=true"])
    assert found.given_up == {"optimizer.fused=true": "the program has it already"}
    assert found.codes == {"optimizer.fused=true": Reason.HAS_ALREADY}


@pytest.mark.long
def test_a_module_is_compiled_once_and_runs_eagerly_in_between(switch, tmp_path):
    text = TRAIN.format(
        prepare=f"""
graphs = 0
def backend(graph, inputs):
    global graphs
    graphs += 1
    open({str(tmp_path / "graphs")!r}, "w").write(str(graphs))
    return graph.forward
plain = torch.compile
torch.compile = lambda function, **options: plain(function, backend=backend)
""",
        num_steps=100_000,
        each="pass",
    )
    held(switch(text, ["compile.mode=default"], num_blocks=4), "compile.mode=default")
    assert (tmp_path / "graphs").read_text() == "1"


LOADER = """
import collections, os, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 800
    def __getitem__(self, index):
        return torch.full((16,), float(index)), os.getpid()
torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
shared = 0
for epoch in range(100_000):
    indices, pids = collections.Counter(), set()
    for batch, made_by in DataLoader(Data(), batch_size=4, shuffle=True):
        indices.update(int(each) for each in batch[:, 0])
        pids.update(made_by.tolist())
        model(batch).square().mean().backward()
        model.zero_grad()
    assert sorted(indices.elements()) == list(range(800)), indices.most_common(3)
    shared += len(pids) > 1
    with open(FILE + ".new", "w") as file:
        file.write(str(shared))
    os.replace(FILE + ".new", FILE)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        ["loader.num_workers=2"],
        pytest.param(["loader.num_workers=1", "loader.prefetch_factor=3"], marks=pytest.mark.long),
    ],
)
def test_batches_of_other_workers_come_in_between_and_each_sample_once_an_epoch(switch, tmp_path, settings):
    key, seen = " ".join(sorted(settings)), tmp_path / "seen"

    def enough(blocks):
        """Whether an epoch has ended, all of its samples counted, that several processes had read."""
        return len(blocks[key]) >= 3 and seen.exists() and int(seen.read_text()) >= 1

    found = held(switch(f"FILE = {str(seen)!r}\n{LOADER}", settings, num_blocks=1000, enough=enough), key)
    # A loader that is made anew for each epoch has its samples counted all along, too.
    assert switching.counts_samples(found.blocks[key])
    assert found.reason == "" and int(seen.read_text()) >= 1


ALL_KINDS = """
import gc
gc.disable()
import torch
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
optimizer = torch.optim.AdamW(model.parameters(), 0.001)
plain = torch.compile
torch.compile = lambda function, **options: plain(function, backend="eager")
for images in DataLoader(torch.randn(3_000_000, 1).expand(-1, 3 * 64), batch_size=8):
    model(images.reshape(-1, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""  # noqa: E501
SERVES = """
import gc
gc.disable()
import sys, torch, types
def quantize_(model, config, filter_fn):
    for name, layer in model.named_modules():
        if filter_fn(layer, name):
            layer.weight = torch.nn.Parameter(layer.weight / 2)
sys.modules["torchao"] = sys.modules["torchao.quantization"] = torchao = types.ModuleType("torchao")
torchao.quantization, torchao.quantize_, torchao.Int8WeightOnlyConfig = torchao, quantize_, dict
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).eval()
while True:
    model(torch.randn(8, 16))
"""
READ_BACK = {
    "attr": (ALL_KINDS, "cudnn.deterministic=true"),
    "call": (ALL_KINDS, "host.num_threads=2"),
    "autocast": (ALL_KINDS, "precision.autocast=bf16"),
    "channels_last": (ALL_KINDS, "layout.channels_last=true"),
    "compile": (ALL_KINDS, "compile.mode=default"),
    "torch.optim.Adam": (ALL_KINDS, "optimizer.fused=true"),
    "torch.utils.data.DataLoader": (ALL_KINDS, "loader.num_workers=1"),
    "grad_mode": (SERVES, "grad.mode=no_grad"),
    "quantize": (SERVES, "precision.quantize=int8-weights"),
}
"""By the kind of site, a program and a setting; each is read back while it is on."""
NOT_ON_CPU = {
    "method": (ALL_KINDS, "transfer.non_blocking=true", "the program made no such copy"),
}
"""Settings that the read-back refuses without a GPU, with the reason."""


def test_every_kind_of_switch_is_read_back_in_a_real_program():
    switched = {kind for kind, site in SITES.items() if site.is_switched and not issubclass(site, DelaySite)}
    assert {*READ_BACK, *NOT_ON_CPU, "decode"} == switched  # decode: see below
    for kind, (_, text, *_) in (READ_BACK | NOT_ON_CPU).items():
        site = msgspec.to_builtins(knobs.get(text.partition("=")[0]).site)
        assert site_of(site) is SITES[kind]


@pytest.mark.parametrize("program", [ALL_KINDS, SERVES], ids=["trains", "serves"])
def test_settings_are_read_back_in_both_orders_when_a_block_ends(switch, program):
    texts = [text for made_for, text in READ_BACK.values() if made_for is program]
    refused = {text: reason for made_for, text, reason in NOT_ON_CPU.values() if made_for is program}
    found = switch(program, *([text] for text in [*texts, *refused]), num_blocks=4)
    assert found.given_up.keys() == refused.keys()
    assert all(reason in found.given_up[text] for text, reason in refused.items())
    for text in texts:
        assert {block.order for block in found.blocks[text]} == {"ABBA", "BAAB"}
        for block in found.blocks[text]:
            assert {f"{one.knob}={one.found}": one.ok for one in block.readback} == {text: True}


@pytest.mark.long
def test_loader_settings_are_read_from_the_iterator_that_makes_the_batches(switch):
    both = ["loader.num_workers=2", "loader.prefetch_factor=3"]
    pinned = ["loader.num_workers=1", "loader.pin_memory=true"]
    found = switch(ALL_KINDS, both, pinned)
    (blocks,) = found.blocks.values()
    for block in blocks:
        assert {one.knob: (one.found, one.ok) for one in block.readback} == {
            "loader.num_workers": ("2", True),
            "loader.prefetch_factor": ("3", True),
        }
    (reason,) = found.given_up.values()
    assert reason == "loader.pin_memory did not act: without a GPU nothing is pinned"


PICTURES = """
import io, torch
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset
class Pictures(Dataset):
    def __init__(self):
        file = io.BytesIO()
        rows, columns = np.mgrid[0:256, 0:256]
        Image.fromarray((rows * columns % 251).astype("uint8")).save(file, "JPEG")
        self.data = file.getvalue()
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        return torch.from_numpy(np.array(Image.open(io.BytesIO(self.data)))).float()
model = torch.nn.Linear(256, 1)
for batch in DataLoader(Pictures(), batch_size=4, num_workers=WORKERS):
    model(batch).square().mean().backward()
    model.zero_grad()
"""


@pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers are not forked")
def test_workers_with_another_decoder_take_turns_and_say_how_pixels_differ(switch):
    pytest.importorskip("cv2")
    found = held(switch(f"WORKERS = 1\n{PICTURES}", ["decode.backend=opencv"]), "decode.backend=opencv")
    answer = [one for block in found.blocks["decode.backend=opencv"] for one in block.readback][-1]
    assert answer.found == "opencv"
    assert "pixels differ by at most" in answer.detail


@pytest.mark.long
def test_a_loader_without_workers_keeps_its_decoder(switch):
    found = switch(f"WORKERS = 0\n{PICTURES}", ["decode.backend=opencv"])
    assert "needs loading processes" in found.given_up["decode.backend=opencv"]


@pytest.mark.long
def test_samples_of_an_iterable_dataset_are_not_drawn_twice(switch):
    found = switch(
        """
import torch
from torch.utils.data import DataLoader, IterableDataset
class Stream(IterableDataset):
    def __iter__(self):
        return (torch.randn(16) for _ in range(10_000))
model = torch.nn.Linear(16, 1)
while True:
    for batch in DataLoader(Stream(), batch_size=4):
        model(batch).square().mean().backward()
        model.zero_grad()
""",
        ["loader.num_workers=2"],
    )
    assert "each yield all of its samples" in found.given_up["loader.num_workers=2"]


@pytest.fixture
def in_rounds(tmp_path, monkeypatch):
    """Switches two arms; `rounds` are what the tasks of a live run say, and the runners used are returned.

    A runner that ended its program (`goes_on` false) is not used again.
    """
    used, fewest, planned = [], [], []

    class Round:
        def __init__(self, runner, keys, place, limit_s, is_late):
            used.append(runner)
            planned.append(place(runner, [record([0.001] * 200)]))

        def __iter__(self):
            return iter([])

        def result(self, fewest_blocks):
            fewest.append(fewest_blocks)
            answer = answers.pop(0)
            return answer(fewest_blocks) if callable(answer) else answer

    answers = []
    own = SimpleNamespace(
        goes_on=False, step_s=0.0, limit_s=0.0, start=lambda: None, end=lambda: None, live=TIMED
    )
    monkeypatch.setattr(turns, "_Round", Round)
    monkeypatch.setattr(turns, "TaskRunner", lambda *more, **named: contextlib.nullcontext(own))

    def run(
        runner, rounds, left_s=60.0, arms=("cudnn.deterministic=true", "matmul.fp32_precision=high"), **plan
    ):
        answers[:] = rounds
        watcher = Watcher()
        live = Live(spec(cwd=tmp_path, base=tmp_path), tmp_path, {}, watcher, runner=runner)
        found = switched(live, [arm_of(key) for key in arms], left_s, TurnsPlan(**plan))
        names = ["given" if one is runner else "own" for one in used]
        return SimpleNamespace(found=found, used=names, planned=planned, said=watcher.said)

    return run


def given(goes_on=True, **more):
    runner = SimpleNamespace(goes_on=goes_on, step_s=0.01, limit_s=0.0, live=TIMED, end=lambda: None)
    runner.__dict__.update(more)
    return runner


def test_stretches_are_as_long_as_the_baselines_steps_ask_though_a_faster_candidate_was_left_on(in_rounds):
    said = SwitchedArms(blocks={"cudnn.deterministic=true": [block(1.0, 0.5)]})
    made = in_rounds(given(), [said], arms=["cudnn.deterministic=true"], stretch_s=0.5)
    assert (made.planned[0].step_s, made.planned[0].stretch_steps) == (0.01, 50)


def test_blocks_of_an_earlier_run_count_though_the_next_run_has_no_time_for_one(in_rounds):
    """A run ends after three blocks; in the next the time is up."""
    key = "cudnn.deterministic=true"

    def in_turns(num, fewest_blocks, **more):
        made = [block(1.0, 0.5)] * num
        whole = len(made) >= fewest_blocks
        return SwitchedArms(
            blocks={key: made} if whole else {},
            given_up={} if whole else {key: "only 0 of its blocks count"},
            **more,
        )

    first = functools.partial(in_turns, 3, reason="the program ended after 50 steps", ran_out=True)
    then = functools.partial(in_turns, 0, reason="the 60 s given were over")
    found = in_rounds(given(goes_on=False), [first, then], arms=[key], fewest_blocks=1, again=True).found
    # The last block was without its counterpart in the other order.
    assert (len(found.blocks[key]), found.given_up) == (2, {})


def test_a_command_is_not_run_again_when_the_time_is_up_and_its_blocks_count(in_rounds, monkeypatch):
    key, now = "cudnn.deterministic=true", SimpleNamespace(s=0.0)

    def in_turns(fewest_blocks):
        now.s += 58.0
        return SwitchedArms(
            blocks={key: [block(1.0, 0.5)] * 3}, reason="the 60 s given were over", ran_out=True
        )

    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now.s))
    made = in_rounds(given(goes_on=False), [in_turns], arms=[key], fewest_blocks=1, again=True)
    assert (len(made.found.blocks[key]), made.said) == (3, [])


def test_after_an_arm_ended_the_run_the_others_get_a_run_of_their_own_and_not_the_callers_again(in_rounds):
    keys, runner = ["cudnn.deterministic=true", "matmul.fp32_precision=high"], given()

    def crashed(fewest_blocks):
        runner.goes_on = False
        return SwitchedArms(given_up={keys[0]: "it ended"})

    made = in_rounds(runner, [crashed, SwitchedArms(blocks={keys[1]: [block(1.0, 0.5)] * 3})])
    assert made.used == ["given", "own"]
    assert (list(made.found.blocks), list(made.found.given_up)) == ([keys[1]], [keys[0]])


@pytest.mark.parametrize(("goes_on", "used"), [(True, ["given"]), (False, [])])
def test_little_time_is_enough_for_a_run_that_goes_on_but_not_for_a_start(in_rounds, goes_on, used):
    both = SwitchedArms(
        blocks={key: [block(1.0, 0.5)] for key in ("cudnn.deterministic=true", "matmul.fp32_precision=high")}
    )
    assert in_rounds(given(goes_on=goes_on), [both], left_s=turns.LEAST_S - 1).used == used


@pytest.mark.long
def test_enough_blocks_end_it(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(TRAIN.format(prepare="", num_steps=100_000, each="pass"))
    request = spec(
        command=[sys.executable, str(path)], cwd=tmp_path, base=tmp_path / "runs",
        env={**os.environ, "OMP_NUM_THREADS": "1"}, warmup_steps=4, lock=False, sandbox=False,
    )  # fmt: skip
    arm = arm_of("cudnn.deterministic=true")
    with Live(request, request.base, {}, Watcher()) as live:
        plan = TurnsPlan(num_blocks=1000, stretch_s=0.005, again=True)
        found = switched(live, [arm], 120.0, plan, lambda blocks: len(blocks[arm.key]) >= 4)
    assert found.given_up == {}
    assert 4 <= len(found.blocks[arm.key]) < 1000 and found.reason == ""


@pytest.mark.parametrize(
    "damage", [{"arm": "first"}, {"begin_s": None}, {"candidate": [{"seconds": "long"}]}]
)
def test_block_is_left_out_and_counted_when_its_event_is_damaged(damage):
    whole = {"event": "arm_block", **msgspec.to_builtins(block(1.0, 0.5))}
    made = take(record([0.1] * 9), whole, whole | damage, whole)
    assert len(switching.said(made, ["a=1"], {}, 0.0).blocks["a=1"]) == 2
    assert made.dropped == {Block: 1}


@pytest.mark.parametrize("left_by", ["an exception", "Ctrl-C", "a closed generator", "the garbage collector"])
def test_live_run_leaves_nothing_when_it_is_abandoned_in_the_middle(tmp_path, left_by):
    path, pids = tmp_path / "program.py", tmp_path / "pids"
    prepare = (
        "import os, subprocess, sys\nchild = subprocess.Popen(['sleep', "
        f"'600'])\nopen({str(pids)!r}, 'w').write"
    )
    path.write_text(
        TRAIN.format(prepare=f"{prepare}(f'{{os.getpid()}} {{child.pid}}')", num_steps=10**9, each="pass")
    )
    request = spec(
        command=[sys.executable, str(path)], cwd=tmp_path, base=tmp_path / "runs",
        env={**os.environ, "OMP_NUM_THREADS": "1"}, warmup_steps=4, lock=False, sandbox=False,
    )  # fmt: skip
    one, plan = arm_of("cudnn.deterministic=true"), TurnsPlan(num_blocks=1000, stretch_s=0.005)
    error = KeyboardInterrupt if left_by == "Ctrl-C" else RuntimeError

    def blocks():
        with Live(request, request.base, {}, Watcher()) as live:
            yield from live.turns([one], 120.0, plan)

    made = blocks()
    assert next(made)[one.key]
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2 and all(map(is_alive, started))
    if left_by == "a closed generator":
        made.close()
    elif left_by == "the garbage collector":
        in_a_cycle = [made]
        in_a_cycle.append(in_a_cycle)
        del made, in_a_cycle
        gc.collect()
    else:
        with pytest.raises(error):
            made.throw(error())
    assert not any(map(is_alive, started))
