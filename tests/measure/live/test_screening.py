"""From blocks to estimates, and real runs in which arms are switched on and off."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.launch.records.record import Record, Step
from dynotune.measure.live import screening
from dynotune.measure.live.screening import Block, Stretch, estimate, screened, why_not_in_process
from dynotune.schema.setting import Setting
from dynotune.search.bench import arm

from ...fakes import spec

TRAIN = """
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
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range({num_steps}):
    loss = model(torch.randn(256, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
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


@pytest.fixture
def screen(tmp_path, monkeypatch):
    """Screens arms of a program that is given as text, as briefly as can be."""
    monkeypatch.setattr(screening, "STRETCH_S", 0.005)
    monkeypatch.setattr(screening, "LEAST_S", 0.0)
    # Whoever else uses these cores now has nothing to do with what is tested.
    monkeypatch.setattr(screening.probe, "judge", lambda *args: screening.probe.Interference())

    def run(text, *arms, left_s=60.0):
        path = tmp_path / "program.py"
        path.write_text(text)
        request = spec(
            command=[sys.executable, str(path)], cwd=tmp_path, base=tmp_path / "runs",
            env={**os.environ, "OMP_NUM_THREADS": "1"}, warmup_steps=4, lock=False, sandbox=False,
        )  # fmt: skip
        return screened(request, [arm_of(*texts) for texts in arms], left_s, facts={}, num_blocks=3)

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
        arm=0, number=0, order="ABBA", begin_s=0.0, end_s=1.0, baseline=of_more_samples.baseline, candidate=more
    )
    assert estimate("a=1", [twice] * 3).speedup == pytest.approx(2.0)
    unknown = [Stretch(stretch.seconds, 10, None) for stretch in twice.candidate]
    by_step = Block(arm=0, number=0, order="ABBA", begin_s=0.0, end_s=1.0, baseline=twice.baseline, candidate=unknown)
    assert estimate("a=1", [by_step] * 3).speedup == pytest.approx(1.0)


# What can be screened


def test_a_knob_that_acts_when_something_begins_is_not_screened():
    for knob in knobs.all_knobs():
        if knob.when != "any":
            assert why_not_in_process(Setting(knob.id.replace("NAME", "X"), 1))


@pytest.mark.parametrize(
    "text", ["matmul.fp32_precision=high", "precision.autocast=bf16", "determinism.algorithms=false"]
)
def test_what_torch_reads_at_each_operation_is_screened(text):
    assert why_not_in_process(knobs.parse(text)) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cudnn.benchmark=true", "looks there first"),
        ("cudnn.benchmark=false", "looks there first"),
        ("determinism.algorithms=true", "would end the program"),
        ("precision.autocast=fp16", "loss scale"),
    ],
)
def test_what_lasts_beyond_a_switch_is_not_screened(text, reason):
    assert reason in why_not_in_process(knobs.parse(text))


def test_every_knob_that_can_change_at_any_step_was_thought_about():
    any_step = {knob.id for knob in knobs.all_knobs() if knob.when == "any"}
    considered = {name.partition("=")[0] for name in screening.LASTS}
    assert any_step - considered == {"matmul.fp32_precision", "cudnn.deterministic", "host.num_threads"}
    assert considered <= any_step


def test_an_arm_with_one_setting_that_cannot_be_switched_is_left_out_and_nothing_runs(screen):
    found = screen("raise SystemExit('it ran')", ["host.num_threads=1", "loader.num_workers=2"], [])
    assert found.estimates == []
    assert "acts when something begins" in found.given_up["host.num_threads=1 loader.num_workers=2"]
    assert found.given_up[""] == "it is the baseline"
    assert found.stretch_steps == 0


def record_of(step_s, epoch):
    """A hundred steps; one that begins an epoch has the flag for it."""
    flags = [4 if epoch and number % epoch == 0 else 0 for number in range(100)]
    steps = [Step(step_s * (number + 1), 0.0, 8, flag) for number, flag in enumerate(flags)]
    return Record(Path("x"), 1, 0.0, steps, {"cycle": [{"event": "cycle", "begin_s": 0.0, "num_steps": 3}]})


@pytest.mark.parametrize(
    ("step_s", "epoch", "num_steps"),
    [(0.01, 0, 15), (2.0, 0, screening.FEWEST_STEPS), (0.01, 7, 21), (0.01, 90, 15)],
)
def test_stretches_are_long_enough_and_hold_whole_epochs_where_these_are_short(step_s, epoch, num_steps):
    assert screening._stretch_steps([record_of(step_s, epoch)]) == num_steps


# Real runs


def test_arms_are_switched_in_a_real_program_and_one_that_ends_it_costs_the_others_nothing(screen, tmp_path):
    prepare = f"""
seen = set()
def look(module, args, output):
    state = torch.backends.cudnn.deterministic, torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision()
    if state not in seen:
        seen.add(state)
        with open({str(tmp_path / "seen")!r}, "a") as file:
            print(*state, file=file)
model.register_forward_hook(look)
"""
    found = screen(
        TRAIN.format(prepare=prepare, num_steps=100_000, each="assert torch.get_num_threads() != 5"),
        ["cudnn.deterministic=true"],
        ["precision.autocast=bf16", "matmul.fp32_precision=high"],
        ["host.num_threads=5"],
    )
    known = {estimate.arm: estimate for estimate in found.estimates}
    assert set(known) == {"cudnn.deterministic=true", "matmul.fp32_precision=high precision.autocast=bf16"}
    assert all(estimate.num_blocks == 3 and estimate.ci for estimate in known.values())
    assert found.given_up == {"host.num_threads=5": "the program ended with an error while it was on"}
    assert found.reason == ""
    seen = (tmp_path / "seen").read_text().splitlines()
    assert set(seen) == {"False False highest", "True False highest", "False True high"}


def test_a_compiled_program_has_arms_given_up_that_compile_it_anew(screen):
    found = screen(
        TRAIN.format(prepare="model.compile(backend='eager')", num_steps=100_000, each="pass"),
        ["matmul.fp32_precision=high"],
        ["cudnn.deterministic=true"],
    )
    assert found.given_up == {"matmul.fp32_precision=high": "torch compiled the program anew after the switch"}
    assert [estimate.arm for estimate in found.estimates] == ["cudnn.deterministic=true"]


def test_a_program_that_ends_too_soon_says_so(screen):
    found = screen(TRAIN.format(prepare="", num_steps=50, each="pass"), ["host.num_threads=7"])
    assert found.estimates == []
    assert found.reason == "the program ended after 50 steps"
