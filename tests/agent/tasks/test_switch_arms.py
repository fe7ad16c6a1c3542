"""Switching arms, in a program that only a clock and a few switches make: what is timed, what is not, what
ends it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dynotune.agent.core import stopwatch
from dynotune.agent.tasks import switch_arms
from dynotune.agent.tasks.switch_arms import SwitchArms
from dynotune.agent.tasks.task import NEVER

from .fake_program import fake_program

FAST = {"knob": "fast", "site": {"type": "attr", "path": "torch.fast"}, "value": True}
SLOW = {"knob": "slow", "site": {"type": "attr", "path": "torch.slow"}, "value": True}
WORKERS = {
    "knob": "loader.num_workers",
    "site": {"type": "constructor", "targets": ["torch.utils.data.DataLoader"], "argument": "num_workers"},
    "value": 2,
}
FIRST_STEP, STRETCH_STEPS = 10, 6


class Cuda:
    initialized, capturing = False, False
    num_synchronised = num_allocations = 0

    def is_initialized(self):
        return self.initialized

    def is_current_stream_capturing(self):
        return self.capturing

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def max_memory_reserved(self, index):
        return 0

    def memory_stats(self, index):
        return {"num_device_alloc": self.num_allocations}

    def synchronize(self, index=None):
        assert not self.capturing, "it would end the program's capture"
        self.num_synchronised += 1
        self.program.now_s = max(self.program.now_s, self.program.done_s)

    def device(self, index):
        return nullcontext()

    def Event(self, enable_timing):
        return Event(self.program)


class Event:
    """An event in the only stream of the device, which reaches it once it has done what came before."""

    def __init__(self, program):
        self.program = program

    def record(self):
        self.at_s = max(self.program.now_s, self.program.done_s)

    def synchronize(self):
        self.program.now_s = max(self.program.now_s, self.at_s)

    def elapsed_time(self, end):
        return 1e3 * (end.at_s - self.at_s)


class Program:
    """Its steps take 10 ms, twice that while it is slow and half of it while it is fast.

    Args:
        cost_s: told itself and the number of a step; what that takes besides.
        device_s: that the device takes for a step, which the host does not wait for.
        before: told the same, before the step.
    """

    def __init__(
        self,
        *arms,
        num_blocks=2,
        stretch_steps=STRETCH_STEPS,
        cost_s=lambda ran, number: 0.0,
        before=lambda ran, number: None,
        world_size=1,
        step_s=0.0,
        waits=0.0,
        device_s=0.0,
    ):
        self.torch = SimpleNamespace(fast=False, slow=False, cuda=Cuda())
        self.torch.cuda.program = self
        self.device_s, self.done_s = device_s, 0.0
        self.cost_s, self.before = cost_s, before
        self.now_s = 0.0
        self.values, self.epoch_began_at = [], None
        self.program = fake_program(
            self.torch, world_size=world_size, num_steps=0, num_epochs=0, epoch_steps=None
        )
        self.task = SwitchArms(
            self.program,
            {
                "arms": [list(arm) for arm in arms],
                "num_blocks": num_blocks,
                "seed": 3,
                "at_step": FIRST_STEP,
                "step_s": step_s,
                "waits": waits,
                "stretch_steps": stretch_steps,
            },
        )

    @property
    def result(self):
        """The task's only result."""
        (result,) = [event for event in self.program.events if event["event"] in ("switched", "given_up")]
        return result

    def begin_epoch(self):
        steps = self.program.steps
        if self.epoch_began_at is not None:
            steps.epoch_steps = steps.num_steps - self.epoch_began_at
        steps.num_epochs += 1
        self.epoch_began_at = steps.num_steps

    def run(self, num_steps=2000):
        stop = 0
        for number in range(1, num_steps + 1):
            self.before(self, number)
            self.values.append((self.torch.fast, self.torch.slow))
            self.now_s += 0.01 * (2 if self.torch.slow else 1) / (2 if self.torch.fast else 1) + self.cost_s(
                self, number
            )
            self.done_s = max(self.done_s, self.now_s) + self.device_s
            self.program.steps.num_samples += 8
            self.program.steps.num_steps += 1
            if self.program.steps.num_steps >= stop:
                stop = self.task.reached(self.program.steps.num_steps)
                if stop == NEVER:
                    break
        return self

    def named(self, name):
        return [event for event in self.program.events if event["event"] == name]

    def ratios(self, arm):
        """Of each block: a step's time without the arm over that with it."""

        def step_s(stretches):
            return sum(stretch["seconds"] for stretch in stretches) / sum(s["num_steps"] for s in stretches)

        return [
            step_s(block["baseline"]) / step_s(block["candidate"])
            for block in self.named("arm_block")
            if block["arm"] == arm
        ]


@pytest.fixture
def program(monkeypatch):
    def make(*arms, **options):
        made = Program(*arms, **options)
        for module in (switch_arms, stopwatch):
            monkeypatch.setattr(module, "perf_counter", lambda: made.now_s)
        return made

    return make


def test_every_arm_has_its_blocks_and_what_they_say_is_so(program):
    ran = program([FAST], [SLOW], [FAST, SLOW], num_blocks=4).run()
    assert (ran.result["event"], ran.result["task"]) == ("switched", 0)
    for arm, ratio in enumerate((2.0, 0.5, 1.0)):
        assert ran.ratios(arm) == pytest.approx([ratio] * 4)
    for block in ran.named("arm_block"):
        for stretch in [*block["baseline"], *block["candidate"]]:
            assert (stretch["num_steps"], stretch["num_samples"]) == (STRETCH_STEPS, 8 * STRETCH_STEPS)
    assert ran.program.errors == []


@pytest.mark.parametrize("times", [12, 22, 80])
def test_an_arm_that_is_many_times_slower_takes_little_longer_than_the_baseline(program, times):
    slow_s, length = 0.01 * times, 24
    added_s = slow_s - 0.02
    ran = program(
        [SLOW], num_blocks=4, stretch_steps=length, cost_s=lambda ran, _: added_s * ran.torch.slow
    ).run()
    assert ran.ratios(0) == pytest.approx([1 / times] * 4)
    baseline_s = length * 0.01
    for block in ran.named("arm_block"):
        assert all(stretch["num_steps"] == length for stretch in block["baseline"])
        assert all(stretch["seconds"] <= 3 * baseline_s + slow_s + 1e-9 for stretch in block["candidate"])
    # Slow is what it is: only the first stretch is timed again, to rule out that the program did something
    # else.
    slow_steps = [slow for _, slow in ran.values].count(True)
    timed = sum(stretch["num_steps"] for block in ran.named("arm_block") for stretch in block["candidate"])
    switches = sum(event["arm"] == 0 for event in ran.named("arm_switched"))
    assert slow_steps <= timed + 6 * switches + length


def test_arms_take_turns_and_both_orders_come(program):
    ran = program([FAST], [SLOW], num_blocks=8).run()
    blocks = ran.named("arm_block")
    turns = [[block["arm"] for block in blocks[at : at + 2]] for at in range(0, 16, 2)]
    assert all(sorted(turn) == [0, 1] for turn in turns)
    assert len({tuple(turn) for turn in turns}) == 2
    assert {block["order"] for block in blocks} == {"ABBA", "BAAB"}


def test_switch_arms_begins_after_its_step_and_leaves_all_as_it_was(program):
    ran = program([FAST], num_blocks=3).run()
    assert ran.values[:FIRST_STEP] == [(False, False)] * FIRST_STEP
    assert any(fast for fast, _ in ran.values)
    assert (ran.torch.fast, ran.torch.slow) == (False, False)


def test_switch_arms_leaves_the_cost_of_a_switch_untimed(program):
    def cost_s(ran, number):
        switched = len(ran.values) > 1 and ran.values[-1] != ran.values[-2]
        return 5.0 if switched else 0.0

    ran = program([FAST], num_blocks=4, cost_s=cost_s)
    ran.run()
    assert ran.ratios(0) == pytest.approx([2.0] * 4)


def test_after_a_switch_as_many_batches_as_were_made_before_it_are_used_up(program):
    since = 0

    def cost_s(ran, number):
        nonlocal since
        since = 0 if len(ran.values) > 1 and ran.values[-1] != ran.values[-2] else since + 1
        # The queue that was filled before: these steps do not wait for their batches.
        return 0.0 if since < 12 else 0.03

    ran = program([FAST], num_blocks=2, cost_s=cost_s)
    ran.program.loader_begun("loader", SimpleNamespace(num_workers=4, prefetch_factor=3))
    ran.run()
    assert ran.ratios(0) == pytest.approx([0.04 / 0.035] * 2)


def test_stretches_of_a_program_that_waits_hold_equally_many_batches_of_each_worker(program):
    """Batches of four workers come at once, one of each: a step waits for them, and the next three do not."""

    def cost_s(ran, number):
        return 0.4 * (number % 4 == 0)

    ran = program([FAST], num_blocks=6, cost_s=cost_s, waits=0.8)
    ran.program.loader_begun("loader", SimpleNamespace(num_workers=4, prefetch_factor=1))
    ran.program.loader_begun("for validation", SimpleNamespace(num_workers=5, prefetch_factor=1))
    ran.run()
    assert {stretch["num_steps"] for block in ran.named("arm_block") for stretch in block["baseline"]} == {8}
    assert ran.ratios(0) == pytest.approx([(0.1 + 0.01) / (0.1 + 0.005)] * 6)


def test_an_arm_with_which_the_program_waits_has_whole_bursts_though_the_baseline_waits_for_none(program):
    def cost_s(ran, number):
        waits_s = 0.02 * ran.torch.fast * (number % 4 == 0)
        ran.program.steps.wait_s += waits_s
        return waits_s

    ran = program([FAST], num_blocks=6, cost_s=cost_s)
    ran.program.loader_begun("loader", SimpleNamespace(num_workers=4, prefetch_factor=1))
    ran.run()
    later = ran.named("arm_block")[1:]
    assert {stretch["num_steps"] for block in later for stretch in block["candidate"]} == {8}
    assert {stretch["num_steps"] for block in later for stretch in block["baseline"]} == {STRETCH_STEPS}


def test_of_several_loaders_each_has_whole_bursts(program):
    ran = program([FAST], num_blocks=2, stretch_steps=1, waits=0.8)
    ran.program.steps.counts = lambda key: key != "for validation"
    for name, num in (("pictures", 4), ("texts", 6), ("for validation", 5), ("labels", 0)):
        ran.program.loader_begun(name, SimpleNamespace(num_workers=num, prefetch_factor=1))
    ran.run()
    assert {stretch["num_steps"] for block in ran.named("arm_block") for stretch in block["baseline"]} == {12}


def test_a_stretch_is_not_lengthened_to_an_epoch(program):
    """Whole bursts of 24 batches would hold the begin of each epoch in every stretch of one arm alone."""

    def before(ran, number):
        if number % 20 == 0:
            ran.begin_epoch()

    ran = program([FAST], num_blocks=2, before=before, stretch_steps=4, waits=0.8)
    ran.program.steps.epoch_steps = 20
    ran.program.loader_begun("loader", SimpleNamespace(num_workers=24, prefetch_factor=1))
    ran.run()
    assert {stretch["num_steps"] for block in ran.named("arm_block") for stretch in block["baseline"]} == {4}


def test_workers_that_are_not_drawn_from_end_their_work_before_anything_is_timed(program):
    """For 9 steps they take the cores; then 6 batches are drawn that lay ready, and these steps wait for
    none."""
    since = 0

    def cost_s(ran, number):
        nonlocal since
        since = 0 if len(ran.values) > 1 and ran.values[-1] != ran.values[-2] else since + 1
        return 0.5 if since < 9 else 0.0 if since < 15 else 0.03

    ran = program([FAST], num_blocks=3, cost_s=cost_s)
    ran.program.loader_router = SeesAll(waiting=lambda: (since >= 9, True, 6))
    ran.program.loader_begun("loader", SimpleNamespace(num_workers=2, prefetch_factor=2))
    ran.run()
    assert ran.ratios(0) == pytest.approx([0.04 / 0.035] * 3)


class SeesAll(SimpleNamespace):
    """A router that knows the steps' loaders, and nothing of their workers."""

    num_drained, sees_loaders = 0, True

    def busy_share(self):
        return None


class Workers:
    """Workers on some cores and their queue of ready batches, each of which takes `batch_s` of a core to
    make."""

    sees_loaders, num_drained = True, 0

    def __init__(self, ran, num_workers: int, prefetch_factor: int, batch_s: float, num_cores: int) -> None:
        self.ran, self.batch_s, self.num_queued = ran, batch_s, num_workers * prefetch_factor
        self.num_workers, self.free_at = num_workers, [0.0] * min(num_workers, num_cores)
        self.made_at, self.num_drawn = [0.0] * self.num_queued, 0

    def wait_s(self) -> float:
        """Return the wait for a batch, which is drawn when a step begins; another is asked for."""
        now_s = self.ran.now_s
        waits_s = max(0.0, self.made_at[self.num_drawn] - now_s)
        self.num_drawn += 1
        core = min(range(len(self.free_at)), key=self.free_at.__getitem__)
        self.free_at[core] = max(now_s + waits_s, self.free_at[core]) + self.batch_s
        self.made_at.append(self.free_at[core])
        return waits_s

    @property
    def num_pending(self) -> int:
        return sum(at > self.ran.now_s for at in self.made_at[self.num_drawn :])

    def busy_share(self) -> float:
        return (self.num_pending + 1) / len(self.free_at)

    def num_ready(self) -> int:
        return self.num_queued - self.num_pending

    def waiting(self):
        return True, self.num_pending <= self.num_workers or not self.num_ready(), self.num_ready()


@pytest.mark.parametrize(
    ("num_workers", "prefetch_factor", "num_cores", "batches_per_s"),
    [
        (16, 2, 16, 1600),
        (16, 2, 16, 530),
        (16, 2, 16, 133),
        (16, 2, 4, 133),
        (16, 2, 2, 111),
        (4, 4, 4, 150),
        (2, 8, 2, 140),
    ],
)
def test_blocks_wait_for_the_queue_to_settle_when_workers_might_not_keep_up_with_the_candidate(
    program, num_workers: int, prefetch_factor: int, num_cores: int, batches_per_s: int
) -> None:
    """A step draws 100 batches a second, 200 with the candidate: its gain is at most that of the workers."""
    workers = None

    def cost_s(ran, number):
        wait_s = workers.wait_s()
        ran.program.steps.wait_s += wait_s
        return wait_s

    ran = program([FAST], num_blocks=4, stretch_steps=50, cost_s=cost_s)
    batch_s = min(num_workers, num_cores) / batches_per_s
    workers = Workers(ran, num_workers, prefetch_factor, batch_s, num_cores)
    ran.program.loader_router = workers
    ran.program.loader_begun(
        "loader", SimpleNamespace(num_workers=num_workers, prefetch_factor=prefetch_factor)
    )
    ran.run(20_000)
    truth = min(200, batches_per_s) / 100
    assert math.prod(ran.ratios(0)) ** (1 / 4) == pytest.approx(truth, rel=0.04)
    if batches_per_s == 1600:
        assert len(ran.values) < 1000, "a queue of 32 batches would be used up five times a block"


@pytest.mark.parametrize(("num_loaders", "most_steps"), [(1, 130), (2, math.inf)])
def test_blocks_wait_an_epoch_at_most_for_the_queue_when_epochs_are_shorter_than_it(
    program, num_loaders: int, most_steps: float
) -> None:
    """Each epoch begins with new workers, which takes 0.1 s, and no batch is ready then."""

    def before(ran, number):
        if number % 4 == 0:
            ran.begin_epoch()

    ran = program(
        [FAST], num_blocks=2, stretch_steps=8, before=before, cost_s=lambda ran, n: 0.1 * (n % 4 == 0)
    )
    ran.program.steps.num_loaders = num_loaders
    ran.program.loader_router = SimpleNamespace(
        waiting=lambda: (True, True, 0), num_drained=0, sees_loaders=False, busy_share=lambda: None
    )
    ran.program.loader_begun("loader", SimpleNamespace(num_workers=32, prefetch_factor=2))
    ran.run()
    assert ran.ratios(0) == pytest.approx([0.14 / 0.12] * 2)
    assert len(ran.values) < most_steps
    if num_loaders > 1:
        assert len(ran.values) > 400, "of several loaders the last epoch bounds nothing"


def test_the_queue_is_used_up_when_batches_are_drawn_where_the_router_does_not_see_them(program) -> None:
    """As by a thread of the program's own, which draws ahead."""
    since = 0

    def cost_s(ran, number):
        nonlocal since
        since = 0 if len(ran.values) > 1 and ran.values[-1] != ran.values[-2] else since + 1
        return 0.0 if since < 12 else 0.03

    ran = program([FAST], num_blocks=2, cost_s=cost_s)
    ran.program.loader_router = SimpleNamespace(
        waiting=lambda: (True, True, 0), num_drained=0, sees_loaders=False, busy_share=lambda: None
    )
    ran.program.loader_begun("loader", SimpleNamespace(num_workers=4, prefetch_factor=3))
    ran.run()
    assert ran.ratios(0) == pytest.approx([0.04 / 0.035] * 2)


def test_a_step_that_allocates_is_waited_out(program):
    def before(ran, number):
        if len(ran.values) > 4 and any(ran.values[-at] != ran.values[-at - 1] for at in (1, 2, 3, 4)):
            ran.torch.cuda.num_allocations += 1

    def cost_s(ran, number):
        return 1.0 if ran.torch.cuda.num_allocations != known.setdefault(number - 1, 0) else 0.0

    known: dict = {}

    def both(ran, number):
        known[number - 1] = ran.torch.cuda.num_allocations
        before(ran, number)

    ran = program([FAST], num_blocks=2, before=both, cost_s=cost_s)
    ran.torch.cuda.initialized = True
    ran.run()
    assert ran.torch.cuda.num_allocations > 0
    assert ran.ratios(0) == pytest.approx([2.0] * 2)


def test_the_device_is_synchronised_at_both_ends_of_a_stretch_and_nowhere_else(program):
    ran = program([FAST], num_blocks=2)
    ran.torch.cuda.initialized = True
    ran.run()
    assert ran.torch.cuda.num_synchronised == 2 * 4 * 2


@pytest.mark.parametrize(("device_s", "ratio"), [(0.004, 2.0), (0.008, 1.25), (0.03, 1.0)])
def test_a_short_stretch_shows_what_a_steady_step_gains_when_the_device_hides_the_host(
    program, device_s, ratio
):
    """A step of the host takes 10 ms, with the candidate 5; the longer of host and device counts."""
    ran = program([FAST], num_blocks=2, stretch_steps=2, device_s=device_s)
    ran.torch.cuda.initialized = True
    ran.run()
    assert ran.ratios(0) == pytest.approx([ratio] * 2)


def test_nothing_is_switched_or_synchronised_while_a_graph_is_captured(program):
    def before(ran, number):
        ran.torch.cuda.capturing = number % 7 == 0

    ran = program([FAST], num_blocks=2, before=before)
    ran.torch.cuda.initialized = True
    ran.run()
    assert len(ran.named("arm_block")) == 2
    assert ran.ratios(0) == pytest.approx([2.0] * 2)


def test_a_stretch_with_the_begin_of_a_long_epoch_in_it_is_timed_again(program):
    def before(ran, number):
        if number % 50 == 0:
            ran.begin_epoch()

    ran = program([FAST], num_blocks=4, before=before, cost_s=lambda ran, number: 3.0 * (number % 50 == 0))
    ran.run()
    assert ran.ratios(0) == pytest.approx([2.0] * 4)


def test_a_stretch_that_drew_batches_left_at_the_end_of_an_epoch_is_timed_again(program):
    """The last four batches of an epoch were ready before, from workers of the other arm: their steps are
    short."""

    def before(ran, number):
        ran.program.loader_router.num_drained += number % 50 > 45

    ran = program([FAST], num_blocks=6, before=before, cost_s=lambda ran, number: -0.004 * (number % 50 > 45))
    ran.program.loader_router = SeesAll(waiting=lambda: (True, True, 0))
    assert ran.run().ratios(0) == pytest.approx([2.0] * 6)


def test_a_stretch_in_which_the_program_did_something_else_is_timed_again(program):
    """It validates after each hundred steps, for as long as a hundred steps take."""
    ran = program([FAST], num_blocks=6, cost_s=lambda ran, number: 1.0 * (number % 100 == 0)).run()
    assert ran.ratios(0) == pytest.approx([2.0] * 6)


def test_steps_that_take_longer_than_they_were_said_to_are_timed_again_once_and_not_in_each_stretch(program):
    long, short = (program([FAST], num_blocks=6, step_s=step_s).run() for step_s in (0.001, 0.01))
    assert long.ratios(0) == pytest.approx([2.0] * 6) == short.ratios(0)
    assert len(long.values) - len(short.values) <= 3 * STRETCH_STEPS


def test_an_arm_that_is_slow_in_every_stretch_is_counted_as_it_is(program):
    ran = program([SLOW], num_blocks=3, cost_s=lambda ran, number: 0.5 * ran.torch.slow).run()
    assert ran.ratios(0) == pytest.approx([0.01 / 0.52] * 3)


def test_an_arm_given_up_as_slow_is_told_as_what_one_stretch_took(program):
    ran = program([SLOW], num_blocks=3, cost_s=lambda ran, number: 0.5 * ran.torch.slow)
    ran.task.order.update(step_s=0.01, give_up_slow=True)
    ran.task = SwitchArms(ran.program, ran.task.order)
    (given_up,) = ran.run().named("arm_given_up")
    assert given_up["reason"] == "its steps took 52.0 times as long as usual, so it was given up"


def test_switch_arms_ends_and_leaves_all_as_it_was_when_another_task_is_ordered(program):
    ran = program([FAST], num_blocks=50)
    ran.program.more_ordered = lambda: len(ran.values) > 60
    ran.run()
    assert ran.result["reason"] == "another task was ordered" and ran.torch.fast is False
    assert len(ran.values) < 100


def test_begins_of_epochs_that_a_stretch_holds_whole_are_part_of_it(program):
    def before(ran, number):
        if number % 3 == 0:
            ran.begin_epoch()

    ran = program([FAST], num_blocks=2, before=before, cost_s=lambda ran, number: 0.03 * (number % 3 == 0))
    ran.run()
    assert ran.ratios(0) == pytest.approx([(0.03 + 0.03) / (0.015 + 0.03)] * 2)


def test_a_loader_is_not_switched_where_a_stretch_holds_the_begin_of_an_epoch(program):
    """Its own workers and those of the second loader would both be started in each."""

    def before(ran, number):
        if number % 3 == 0:
            ran.begin_epoch()

    ran = program([FAST], [FAST, WORKERS], num_blocks=2, before=before)
    ran.program.loaders = SimpleNamespace(draw_through=lambda around: None)
    (given_up,) = ran.run().named("arm_given_up")
    assert (given_up["arm"], given_up["unsuited"], given_up["blamed"]) == (1, ["loader.num_workers"], [])
    assert "epochs are too short" in given_up["reason"]
    assert len(ran.ratios(0)) == 2


def test_the_begins_of_short_epochs_are_no_reason_to_find_an_arm_hopeless(program):
    """A step takes 10 ms mostly, and 0.3 s where an epoch begins: half a stretch of whole epochs."""

    def before(ran, number):
        if number % 3 == 0:
            ran.begin_epoch()

    ran = program([FAST], num_blocks=4, before=before, cost_s=lambda ran, number: 0.3 * (number % 3 == 0))
    ran.task.order.update(step_s=0.01, give_up_slow=True)
    ran.task = SwitchArms(ran.program, ran.task.order)
    assert ran.run().named("arm_given_up") == [] and len(ran.ratios(0)) == 4


def test_an_arm_whose_setting_the_program_changes_is_given_up_and_the_others_go_on(program):
    def before(ran, number):
        if number == 60:
            ran.torch.fast = "mine"

    ran = program([FAST], [SLOW], num_blocks=5, before=before).run()
    (given_up,) = ran.named("arm_given_up")
    assert (given_up["arm"], given_up["reason"]) == (0, "the program sets fast itself while it runs, to mine")
    assert ran.torch.fast == "mine"
    assert len(ran.ratios(1)) == 5
    assert (ran.result["event"], ran.result["task"]) == ("switched", 0)


def test_an_arm_that_makes_torch_compile_anew_is_given_up_and_with_the_second_one_all(program):
    compiled: set = set()

    def before(ran, number):
        state = (ran.torch.fast, ran.torch.slow)
        ran.program.num_compilations += state not in compiled
        compiled.add(state)

    ran = program([FAST], [SLOW], [FAST, SLOW], num_blocks=3, before=before).run()
    reasons = [event["reason"] for event in ran.named("arm_given_up")]
    assert reasons[:2] == ["torch compiled the program again after the switch"] * 2
    assert len(reasons) == 3
    assert "few variants" in reasons[2]
    assert len(compiled) == 3
    assert ran.values[-1] == (False, False)


def test_a_block_in_which_the_program_compiles_something_of_its_own_is_begun_anew(program):
    def before(ran, number):
        ran.program.num_compilations += number == FIRST_STEP + 6

    ran = program(
        [FAST], num_blocks=3, before=before, cost_s=lambda ran, number: 9.0 * (number == FIRST_STEP + 6)
    ).run()
    assert ran.ratios(0) == pytest.approx([2.0] * 3)
    assert ran.named("arm_given_up") == []


def test_a_program_that_never_stops_compiling_has_no_arm_compared(program):
    def before(ran, number):
        ran.program.num_compilations += not ran.torch.fast

    ran = program([FAST], num_blocks=3, before=before).run()
    assert [event["reason"] for event in ran.named("arm_given_up")] == [
        "the program compiles something again and again"
    ]


def test_a_program_that_allocates_in_every_step_is_compared_all_the_same(program):
    def before(ran, number):
        ran.torch.cuda.num_allocations += 1

    ran = program([FAST], num_blocks=8, before=before)
    ran.torch.cuda.initialized = True
    assert ran.run().ratios(0) == pytest.approx([2.0] * 8)
    # That it is never quiet shows once: later switches do not wait for it.
    assert len(ran.values) < 8 * 4 * (STRETCH_STEPS + 11) + 40


def test_ranks_switch_at_the_same_steps_whatever_their_steps_hold(program):
    def allocates(ran, number):
        ran.torch.cuda.initialized = True
        ran.torch.cuda.num_allocations += number % 3 == 0

    quiet = program([FAST], [SLOW], world_size=2).run()
    other = program([FAST], [SLOW], world_size=2, before=allocates).run()
    assert quiet.values == other.values
    assert quiet.result["event"] == other.result["event"] == "switched"
    assert quiet.ratios(0) == pytest.approx([2.0, 2.0]) and quiet.ratios(1) == pytest.approx([0.5, 0.5])


def test_ranks_do_not_compile_apart_from_each_other(program):
    compiled = {"knob": "compile.mode", "site": {"type": "module", "action": "compile"}, "value": "default"}
    ran = program([FAST], [compiled], world_size=2).run()
    (given_up,) = ran.named("arm_given_up")
    assert given_up["arm"] == 1 and "ranks" in given_up["reason"]


def test_a_program_that_replays_captured_graphs_is_left_alone(program):
    ran = program([FAST])
    ran.program.replays_graphs = True
    ran.run()
    assert "replays captured CUDA graphs" in ran.result["reason"]
    assert ran.program.events == [ran.result]


def test_at_the_programs_own_end_what_it_had_holds_and_it_is_said(program):
    ran = program([FAST], num_blocks=50)
    ran.run(num_steps=FIRST_STEP + 25)
    while not ran.torch.fast:
        ran.before = lambda ran, number: None
        ran.run(num_steps=1)
    ran.task.at_exit()
    assert ran.torch.fast is False
    assert ran.result["at_exit"]
    assert ran.named("arm_switched")[-1]["arm"] == 0
    assert ran.task.reached(10_000) == NEVER


def test_a_mistake_of_its_own_ends_it_and_is_written_down(program):
    def before(ran, number):
        if number == 40:
            ran.torch.cuda.is_current_stream_capturing = None

    ran = program([FAST], num_blocks=9, before=before)
    ran.torch.cuda.initialized = True
    ran.run()
    assert ran.result["reason"].startswith("it failed: TypeError")
    assert len(ran.program.errors) == 1
    assert ran.torch.fast is False
