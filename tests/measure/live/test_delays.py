"""From blocks with delays to slopes and slack, and a real run whose parts are delayed."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynotune.measure.live import delays as tested
from dynotune.measure.live.delays import Delay, delay_tests
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.schema.delays import DelayTest
from dynotune.schema.events import AgentError, Block, Stretch
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Readback

from ...fakes import Watcher, spec

STEP_S, NUM_STEPS = 0.01, 10
NOISE = st.lists(st.floats(-1e-4, 1e-4), min_size=2, max_size=6)


def block(arm, longer_s, delay_s):
    def stretch(step_s):
        return Stretch(step_s * NUM_STEPS, NUM_STEPS, None)

    read = Readback(knob="delay.host", asked=str(delay_s), found=str(delay_s), witness="steps", ok=True)
    return Block(
        arm=arm, number=0, order="ABBA", begin_s=0.0, end_s=1.0,
        baseline=[stretch(STEP_S)] * 2, candidate=[stretch(STEP_S + longer_s)] * 2, readback=[read],
    )  # fmt: skip


def answered(responses, noise):
    """The test of one part, which answers `delays[i]` by `responses[i]`, in blocks with the noise."""
    delay = Delay(part="host")
    delays = [0.25 * STEP_S, 0.5 * STEP_S]
    asked = [tested.DelayArm(delay, each) for each in delays]
    blocks = {
        at: [block(at, longer_s + each, delays[at]) for each in noise]
        for at, longer_s in enumerate(responses)
    }
    return tested._test(delay, tested._answers([0, 1], blocks, asked))


@given(NOISE, st.floats(0, 1))
def test_slope_is_the_mean_answer_over_the_smallest_delay(noise, slope):
    found = answered([slope * 0.25 * STEP_S, slope * 0.5 * STEP_S], noise)
    assert found.slope == pytest.approx(slope + statistics.fmean(noise) / (0.25 * STEP_S), abs=1e-6)
    assert found.ci[0] <= found.slope <= found.ci[1]


@given(st.floats(0, 0.5 * STEP_S))
def test_slack_is_what_the_other_parts_hide_when_the_step_answers(slack_s):
    exact = [1e-9, -1e-9]
    delays = [0.25 * STEP_S, 0.5 * STEP_S]
    found = answered([max(0.0, delay_s - slack_s) for delay_s in delays], exact)
    if found.slack_s is None:
        assert slack_s == pytest.approx(delays[1], abs=1e-7)
    else:
        assert found.slack_s == pytest.approx(slack_s, abs=1e-7)


@given(st.floats(1e-6, 10.0))
def test_delays_are_fewer_when_steps_are_slower(step_s):
    parts = [Delay(part="host"), Delay(part="loader")]
    now, slower = (tested.affordable(parts, each, tested.BUDGET_S) for each in (step_s, 2 * step_s))
    num_now, num_slower = (len({(arm.delay.part, arm.delay_s) for arm in arms}) for arms in (now, slower))
    assert 1 <= num_slower <= num_now <= len(tested.SHARES) * len(parts)
    assert all(arm.delay_s >= tested.LEAST_DELAY_S for arm in now)
    assert tested.affordable([Delay(part="loader")], step_s, tested.BUDGET_S)


def test_fewer_delays_are_made_when_stretches_hold_a_batch_of_each_of_many_workers():
    parts = [Delay(part=part) for part in ("host", "device", "loader")]
    num_steps = tested.stretch_steps(0.1, 16)
    assert num_steps == 16 and tested.stretch_steps(0.1, 1) == tested.FEWEST_STEPS
    few, many = (
        tested.affordable(parts, 0.1, tested.BUDGET_S, num) for num in (num_steps, tested.FEWEST_STEPS)
    )
    assert 1 <= len(few) < len(many)


def test_each_delay_gets_one_block_when_steps_are_slow():
    parts = [Delay(part="host"), Delay(part="loader"), *(Delay(part="function", place=name) for name in "ab")]
    found = tested.affordable(parts, 0.1, tested.BUDGET_S)
    assert [(arm.delay.part, arm.fewest) for arm in found][:2] == [("host", 1), ("loader", 1)]
    slow = tested.affordable([parts[0], *parts[2:]], 0.3, tested.BUDGET_S)
    assert [(arm.delay.part, arm.fewest) for arm in slow] == [("host", 1), ("function", 1)]


@given(st.floats(1e-4, 0.1), st.integers(0, 2), st.booleans(), st.booleans())
def test_delays_fit_their_time_when_steps_take_a_tenth_of_a_second_or_less(
    step_s, num_functions, draws, on_device
):
    parts = [Delay(part="host")]
    parts += [Delay(part="device")] * on_device + [Delay(part="loader")] * draws
    parts += [Delay(part="function", place=str(at)) for at in range(num_functions)]
    arms = tested.affordable(parts, step_s, tested.BUDGET_S)
    block = tested.STRETCHES * (tested.FEWEST_STEPS + 1)
    steps = [
        arm.fewest * (block + tested.STEPS_OF_THE_LOADERS * (arm.delay.part == "loader")) for arm in arms
    ]
    assert (
        sum(num * (step_s + arm.delay_s / 2) for num, arm in zip(steps, arms, strict=True))
        <= tested.LONGEST_S + 1
    )


@pytest.mark.parametrize(
    ("slope", "ci", "is_critical"),
    [(1.0, (0.8, 1.2), True), (0.1, (-0.1, 0.3), False), (0.6, (0.3, 0.9), None), (0.2, (-1.0, 1.4), None)],
)
def test_part_is_critical_only_when_the_interval_decides(slope, ci, is_critical):
    assert DelayTest(part="host", slope=slope, ci=ci, slack_s=None, answers=[]).is_critical is is_critical


@given(st.lists(NOISE, min_size=1, max_size=4))
def test_noise_is_pooled_over_the_arms_when_stretches_do_not_differ(arms):
    blocks = {at: [block(at, 0.001 * at + each, 0.0025) for each in noise] for at, noise in enumerate(arms)}
    found = tested._noise(blocks)
    df = sum(len(noise) - 1 for noise in arms)
    squares = sum((len(noise) - 1) * statistics.variance(noise) for noise in arms)
    # Stretches that are alike explain no difference of blocks, so that blocks alone count.
    assert found.df in ((df, df + 2 * sum(map(len, arms))) if squares < 1e-20 else (df,))
    assert math.sqrt(found.variance) == pytest.approx(math.sqrt(squares / df), abs=1e-8)


@given(st.floats(1e-4, 1e-2))
def test_noise_is_known_from_the_stretches_when_there_is_one_block(difference_s):
    one = block(0, 0.001, 0.0025)
    apart_s = difference_s * one.baseline[0].num_steps
    first, second = one.baseline
    longer = replace(second, seconds=first.seconds + apart_s)
    found = tested._noise({0: [replace(one, baseline=[first, longer])], 1: []})
    assert found.df == 2
    assert math.sqrt(found.variance) == pytest.approx(difference_s / 2, rel=1e-6)


def test_noise_is_unknown_when_no_block_was_made():
    assert tested._noise({0: [], 1: []}).df == 0


PROGRAM = """
import json, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((16,), float(index % 7))

def prepared(batch):
    return batch * 2

if __name__ == "__main__":
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    losses = []
    for batch in torch.utils.data.DataLoader(Data(), 4, num_workers=1, multiprocessing_context="fork"):
        loss = model(prepared(batch)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) == 64:
            print(json.dumps(losses), flush=True)
"""


def test_parts_are_delayed_and_results_the_same_when_a_program_runs(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    line = str(PROGRAM[: PROGRAM.index("def prepared")].count("\n") + 1)
    run = spec(
        command=[sys.executable, str(path)], cwd=tmp_path, base=tmp_path / "runs",
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        warmup_steps=4, lock=False, sandbox=False,
    )  # fmt: skip
    delays = [
        Delay(part="host"),
        Delay(part="loader"),
        Delay(part="function", place="program.py prepared", site={"file": str(path), "line": line}),
        Delay(part="device"),
    ]
    with TaskRunner(run, Watcher(), facts={}, label="the run", observe=True) as runner:
        found = delay_tests(runner, delays, budget_s=0.1, limit_s=120.0)
        records = runner.outcome().records
        runner.end()
    assert not isinstance(found, Unknown), found
    assert {test.part for test in found.tests} == {"host", "loader", "function"}
    assert found.untested == {"device": "the program does not use CUDA"}
    for test in found.tests:
        assert all(answer.delay_s >= 0.75 * tested.LEAST_DELAY_S for answer in test.answers)
        assert all(answer.num_blocks >= 1 for answer in test.answers)
    assert not [event for record in records for event in record.all(AgentError)]
    outputs = [file.read_text() for file in (tmp_path / "runs").glob("*/stdout")]
    plain = _plain_losses()
    assert [json.loads(text.splitlines()[0]) for text in outputs] == [plain]


def _plain_losses():
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("print(", "raise SystemExit(").replace(", flush=True", "")],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    return json.loads(done.stderr.strip().splitlines()[-1])
