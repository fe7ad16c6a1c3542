"""The order of things in a comparison, with runs that are made up."""

from __future__ import annotations

import collections
import contextlib
import errno
import itertools
import os
import re
import threading
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from dynotune import probe
from dynotune.launch.process import sandbox
from dynotune.measure.bench import bench, protocol, settle
from dynotune.measure.comparison import schedule
from dynotune.measure.live import lane_speed, lanes
from dynotune.measure.live.request import CompareRequest
from dynotune.schema import atomic, document
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CannotRunHere, CommandFailed, RecordError, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Readback
from dynotune.schema.setting import Setting

from ...fakes import Clock, Runs, Watcher, disturbed, of_run, raises, record

FACTS = {
    "host.cpu": "a processor",
    "host.num_cores": 2,
    "gpu.name": Unknown("no driver"),
    "torch.version": "2.13.0",
}


@pytest.fixture
def runs(monkeypatch):
    clock = Clock()
    runs = Runs(clock)
    monkeypatch.setattr(bench, "run_settings", runs)
    monkeypatch.setattr(bench, "time", clock)
    monkeypatch.setattr(protocol, "facts_of", lambda run, candidate=(): dict(FACTS))
    return runs


@pytest.fixture
def watcher():
    return Watcher()


@pytest.fixture
def compare(runs, watcher, tmp_path):
    def compare(**changes):
        return protocol.compare(request_in(tmp_path, **changes), watcher)

    return compare


@pytest.fixture
def resume(runs, watcher, tmp_path):
    def resume(**changes):
        now = request_in(tmp_path, command=[], settings=[]).run
        return protocol.resume(folder_in(tmp_path), now, watcher, **changes)

    return resume


def request_in(tmp_path, **changes):
    fields = {"candidate": [Setting("env.A", "1")], "lock": False, "max_pairs": 4, "seed": 0}
    return of_run(CompareRequest, cwd=tmp_path, base=tmp_path / "runs", **(fields | changes))


def folder_in(tmp_path):
    (found,) = (tmp_path / "runs").iterdir()
    return found


def on_disk(tmp_path):
    return document.read(folder_in(tmp_path) / protocol.FILE, Comparison)


def noisy(middle_s, spread=0.3):
    """Step times that differ so much from run to run that nothing comes of them."""
    times = itertools.cycle([middle_s * (1 - spread), middle_s * (1 + spread), middle_s])
    return lambda name: next(times)


def slightly_noisy(middle_s):
    times = itertools.cycle([middle_s * 0.999, middle_s * 1.001, middle_s])
    return lambda name: next(times)


def measured(runs):
    return [name for name in runs.names if not name.startswith("pilot")]


def test_a_pilot_of_each_arm_comes_first_and_then_pairs_in_the_order_of_the_schedule(compare, runs):
    comparison = compare(seed=5)
    assert runs.names[:2] == ["pilot-baseline", "pilot-candidate"]
    order = [name.partition("-")[2] for name in measured(runs)[::2]]
    assert order == schedule.orders(4, 5)[:3]
    assert [pair.first for pair in comparison.pairs] == order
    assert [name[:3] for name in measured(runs)] == ["001", "001", "002", "002", "003", "003"]


def test_each_pair_is_on_disk_when_the_next_one_begins(compare, runs):
    compare()
    assert runs.seen[2:] == [0, 0, 1, 1, 2, 2]


def test_the_values_are_seconds_a_sample_and_the_answer_is_their_ratio(compare, tmp_path):
    comparison = compare()
    assert comparison.verdict == "faster"
    assert comparison.speedup == pytest.approx(2)
    assert comparison.unit == "sample"
    assert comparison.pairs[0].baseline_s == pytest.approx(0.02 / 32)
    assert comparison.baseline.samples_per_s == pytest.approx(1600)
    assert on_disk(tmp_path) == comparison


def test_the_unit_is_a_step_where_a_pilot_could_not_count_samples(compare, runs):
    runs.samples = None
    comparison = compare()
    assert comparison.unit == "step"
    assert comparison.pairs[0].candidate_s == pytest.approx(0.01)
    assert comparison.baseline.samples_per_s is None


def test_compare_ends_at_the_first_look_that_settles_it(compare, runs):
    runs.step_s = {"baseline": slightly_noisy(0.02), "candidate": slightly_noisy(0.01)}
    comparison = compare(max_pairs=12)
    assert comparison.verdict == "faster"
    assert comparison.num_pairs == 3


def test_a_void_pair_is_repeated_in_its_own_order_and_kept_aside(compare, runs, watcher):
    runs.instead["002-baseline"] = disturbed
    comparison = compare(max_pairs=8, seed=1)
    order = schedule.orders(8, 1)
    assert [voided.pair for voided in comparison.voided] == [2]
    assert comparison.voided[0].reason == "another process computes on GPU 0"
    assert comparison.voided[0].values is not None
    assert comparison.voided[0].values.first == order[1]
    assert [pair.first for pair in comparison.pairs] == order[: len(comparison.pairs)]
    assert watcher.void == [2]


@pytest.mark.parametrize("arms", [["candidate"], ["baseline", "candidate"]])
def test_more_than_a_fifth_void_is_undecided(compare, runs, arms):
    for number in range(1, 13):
        runs.instead[f"{number:03d}-{arms[number % len(arms)]}"] = disturbed
    comparison = compare(max_pairs=12)
    assert comparison.verdict == "undecided"
    assert comparison.pairs == []
    assert (
        f"{len(comparison.voided)} of {len(comparison.voided)} pairs were void, more than 20%"
        in comparison.reason
    )
    assert "Measure again" in comparison.reason


def test_busy_cores_make_no_pair_void(compare, runs):
    def busy(outcome):
        return replace(outcome, outside=probe.Interference(foreign=["another process took 80% of the cores"]))

    for number in range(1, 5):
        runs.instead |= {f"{number:03d}-baseline": busy, f"{number:03d}-candidate": busy}
    comparison = compare()
    assert (comparison.verdict, comparison.voided) == ("faster", [])
    assert any("80% of the cores" in warning for warning in comparison.warnings)


def test_a_budget_that_one_run_used_up_starts_no_fresh_processes(compare, runs, monkeypatch):
    def uses_up(request, journal, live, watcher):
        runs.clock.now_s += 60.0
        return journal.document, "the 60 s given were over"

    monkeypatch.setattr(settle.in_process, "compare_within", uses_up)
    comparison = compare(candidate=[Setting("host.num_threads", 1)], in_process="auto", budget_s=60.0)
    assert (comparison.verdict, runs.names) == ("undecided", [])
    assert "the 60 s given were over" in comparison.reason


def gives_up(request, journal, live, watcher):
    return journal.document, "it changed the setting"


def test_a_live_run_that_comparisons_share_has_ended_before_a_fresh_process_starts(
    runs, watcher, tmp_path, monkeypatch
):
    class Shared:
        is_live, names = True, None

        def end(self):
            self.is_live, self.names = False, [*runs.names]

    shared = Shared()
    monkeypatch.setattr(settle.in_process, "compare_within", gives_up)
    asked = request_in(tmp_path, candidate=[Setting("host.num_threads", 1)], in_process="auto")
    assert protocol.compare(asked, watcher, live=shared).verdict is not None
    assert (shared.is_live, shared.names) == (False, [])
    assert runs.names


def test_compare_runs_fresh_processes_when_arms_cannot_be_compared_within_one_run(compare, runs, monkeypatch):
    monkeypatch.setattr(settle.in_process, "compare_within", gives_up)
    runs.step_s = {"baseline": 0.02, "candidate": 0.01}
    comparison = compare(candidate=[Setting("host.num_threads", 1)], in_process="auto")
    assert (comparison.verdict, comparison.within) == ("faster", False)


@pytest.mark.parametrize("how", ["auto", "only"])
def test_resuming_makes_fresh_pairs_after_blocks_when_they_were_not_ruled_out(
    compare, resume, monkeypatch, how
):
    def stops(request, journal, live, watcher):
        raise KeyboardInterrupt

    monkeypatch.setattr(settle.in_process, "compare_within", stops)
    with pytest.raises(protocol.Interrupted):
        compare(candidate=[Setting("host.num_threads", 1)], in_process=how)
    monkeypatch.setattr(settle.in_process, "compare_within", gives_up)
    assert resume().within is (how == "only")


FAILURE = CommandFailed("failed", command_exit_code=3, last_lines=("Traceback", "Boom"))


@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_an_arm_whose_pilot_fails_is_the_answer(compare, runs, arm, tmp_path):
    runs.instead[f"pilot-{arm}"] = raises(FAILURE)
    comparison = compare()
    assert comparison.verdict is None
    assert (comparison.failed.arm, comparison.failed.exit_code) == (arm, 3)
    assert comparison.failed.last_lines == ["Traceback", "Boom"]
    assert comparison.failed.run.endswith(f"pilot-{arm}")
    assert on_disk(tmp_path) == comparison


def test_compare_says_that_runs_work_in_the_folder_itself_before_a_pilot_can_fail(
    compare, runs, watcher, monkeypatch
):
    monkeypatch.setattr(sandbox, "available", lambda cwd, run_dir: "it was tried: no")
    runs.instead["pilot-baseline"] = raises(FAILURE)
    compare()
    (said,) = watcher.warned
    assert said == "Runs work in your folder itself. There is no copy-on-write view of it: it was tried: no."


def test_an_arm_that_fails_in_the_middle_keeps_the_finished_pairs(compare, runs, tmp_path):
    runs.instead["003-candidate"] = raises(FAILURE)
    comparison = compare()
    assert comparison.failed.arm == "candidate"
    assert len(comparison.pairs) == comparison.num_pairs == 2
    assert comparison.baseline.samples_per_s == pytest.approx(1600)
    assert on_disk(tmp_path) == comparison


def test_a_setting_that_did_not_take_effect_is_refused(compare, runs):
    runs.readback = [Readback("env.A", "1", "2", "getenv", False)]
    with pytest.raises(CannotRunHere, match=r"env\.A=1 did not take effect in the baseline: getenv says 2"):
        compare()
    assert runs.names == ["pilot-baseline"]


def test_comparison_tells_the_candidates_readback_when_both_arms_set_a_knob(compare, runs):
    def says(value):
        found = [Readback("env.A", value, value, "getenv", True)]
        return lambda outcome: change(outcome, found)

    def change(outcome, readback):
        return replace(outcome, run=replace(outcome.run, readback=readback))

    for number in ("pilot", "001", "002", "003", "004"):
        runs.instead |= {f"{number}-baseline": says("0"), f"{number}-candidate": says("1")}
    comparison = compare(settings=[Setting("env.A", "0")])
    assert comparison.readback["env.A"].asked == "1"


def test_readback_stays_unverified_when_one_run_could_not_verify_it(compare, runs):
    unverified = Readback("env.A", "1", Unknown("nothing reads it"), "", None)
    runs.readback = [Readback("env.A", "1", "1", "getenv", True)]

    def change(outcome):
        return replace(outcome, run=replace(outcome.run, readback=[unverified]))

    runs.instead["001-candidate"] = change
    assert compare().readback["env.A"] == unverified


@pytest.mark.parametrize("max_pairs", [1, 49])
def test_a_number_of_pairs_that_no_schedule_has_is_refused_before_anything_runs(compare, runs, max_pairs):
    with pytest.raises(UsageError, match="pairs"):
        compare(max_pairs=max_pairs)
    assert runs.names == []


def test_a_margin_that_is_no_share_is_refused_before_anything_runs(compare, runs):
    with pytest.raises(UsageError, match="margin"):
        compare(margin=1.5)
    assert runs.names == []


def test_settings_that_contradict_each_other_are_refused_before_anything_runs(compare, runs, tmp_path):
    with pytest.raises(UsageError, match="both set"):
        compare(settings=[Setting("env.A", "1"), Setting("env.A", "2")])
    assert runs.names == []
    assert not (tmp_path / "runs").exists()


def test_a_run_that_goes_to_its_own_end_has_no_limit_taken_from_the_window(compare, runs):
    compare(run_to_end=True)
    assert runs.asked[-1].limit_s == float("inf")


def test_the_users_time_limit_holds_for_pilots_and_pairs(compare, runs):
    compare(timeout_s=33.0)
    assert {asked.limit_s for asked in runs.asked} == {33.0}


def test_a_window_that_began_late_is_told(compare, runs):
    def late(outcome):
        (process,) = outcome.run.processes
        moved = replace(process, windows=[replace(process.window, first_step=99)])
        return replace(outcome, run=replace(outcome.run, processes=[moved]))

    runs.instead["002-candidate"] = late
    assert any("In 1 runs the step was found late" in warning for warning in compare().warnings)


# Budget


def test_without_a_budget_nothing_is_said_of_one(compare, watcher):
    compare()
    assert not any("budget" in text for text in watcher.said)


def test_a_budget_reduces_the_pairs_to_an_even_number_and_says_so(compare, runs, watcher):
    runs.step_s = {"baseline": noisy(0.02), "candidate": noisy(0.02)}
    comparison = compare(max_pairs=12, budget_s=60.0)
    assert comparison.max_pairs < 12
    assert comparison.max_pairs % 2 == 0
    assert f"The budget is enough for {comparison.max_pairs} of 12 pairs." in watcher.said


def test_a_budget_that_affords_no_comparison_is_refused_with_what_it_takes(compare, runs):
    with pytest.raises(UsageError, match="needs 3 pairs") as refused:
        compare(max_pairs=12, budget_s=20.0)
    assert "--budget" in refused.value.hint


def compiling(clock, seconds, *, before_the_first_step=False):
    """A pilot that compiles for so long, in its first step or before it, and which is as usual after that."""

    def compile_first(outcome):
        clock.now_s += seconds
        made = replace(outcome.run, wall_s=seconds + 4.0)
        first_s, begin_s = (0.01, 2.0 + seconds) if before_the_first_step else (seconds, 2.0)
        steps = record([first_s, *[0.01] * 200], compiled=[0], begin_s=begin_s)
        return replace(outcome, run=made, records=[steps])

    return compile_first


@pytest.mark.parametrize("before_the_first_step", [False, True])
def test_compare_repeats_the_pilot_of_a_compiling_arm_when_it_decides_whether_the_budget_will_do(
    compare, runs, before_the_first_step
):
    slow = compiling(runs.clock, 100.0, before_the_first_step=before_the_first_step)
    runs.instead["pilot-candidate"] = slow
    comparison = compare(budget_s=180.0)
    assert runs.names[:4] == ["pilot-baseline", "pilot-candidate", "pilot-candidate-warm", runs.names[3]]
    assert comparison.verdict == "faster"
    assert comparison.run_s < 10


def test_nothing_runs_once_more_where_the_budget_will_do_as_it_is_or_could_not_anyway(compare, runs):
    runs.instead["pilot-candidate"] = compiling(runs.clock, 100.0)
    compare(budget_s=1000.0)
    assert "pilot-candidate-warm" not in runs.names
    runs.names.clear()
    with pytest.raises(UsageError, match="needs 3 pairs") as refused:
        compare(budget_s=120.0)
    assert runs.names == ["pilot-baseline", "pilot-candidate"]
    # As much as is known: half of what the first run compiled counts for later ones.
    assert re.search(r"--budget 4\d\ds", refused.value.hint)


def from_a_cold_disk(outcome):
    return replace(outcome, launched_s=-60.0)


def test_a_first_run_that_began_late_runs_once_more_where_it_decides_whether_the_budget_will_do(
    compare, runs
):
    runs.instead["pilot-baseline"] = from_a_cold_disk
    assert compare(budget_s=80.0).run_s < 10
    assert runs.names[:3] == ["pilot-baseline", "pilot-candidate", "pilot-baseline-warm"]
    runs.names.clear()
    runs.instead = {"pilot-candidate": from_a_cold_disk}
    with pytest.raises(UsageError, match="needs 3 pairs"):
        compare(budget_s=80.0)
    assert runs.names == ["pilot-baseline", "pilot-candidate"]


def test_a_baseline_that_begins_later_has_the_time_for_it_in_every_run(compare, runs):
    runs.instead = {f"{name}-baseline": from_a_cold_disk for name in ("pilot", "001", "002", "003", "004")}
    compare(budget_s=1000.0)
    assert "pilot-baseline-warm" not in runs.names
    assert min(asked.limit_s for asked in runs.asked[2:]) > 4 * 60.0


def test_with_cold_caches_nothing_runs_once_more(compare, runs):
    runs.instead["pilot-candidate"] = compiling(runs.clock, 100.0)
    with pytest.raises(UsageError, match="needs 3 pairs"):
        compare(budget_s=180.0, caches="cold")
    assert runs.names == ["pilot-baseline", "pilot-candidate"]


def test_a_budget_that_is_used_up_leaves_it_undecided(compare, runs):
    def stalls(outcome):
        runs.clock.now_s += 10_000
        return outcome

    runs.instead["002-candidate"] = stalls
    comparison = compare(budget_s=300.0, max_pairs=8)
    assert comparison.verdict == "undecided"
    assert comparison.reason == "The budget is used up."
    assert comparison.num_pairs == 2


# Going on


@pytest.fixture
def interrupted(compare, runs):
    """A comparison of which two pairs are finished, and the third was begun."""
    runs.step_s = {"baseline": slightly_noisy(0.02), "candidate": slightly_noisy(0.01)}
    runs.instead["003-candidate"] = raises(KeyboardInterrupt())
    with pytest.raises(protocol.Interrupted) as stopped:
        compare(max_pairs=8, seed=3, warmup_steps=7, window_steps=60)
    runs.instead.clear()
    runs.names.clear()
    runs.asked.clear()
    return stopped.value.folder


def test_an_interrupt_says_where_what_is_finished_lies(interrupted, tmp_path):
    assert interrupted == folder_in(tmp_path)
    assert len(on_disk(tmp_path).pairs) == 2


def test_resuming_goes_on_with_the_same_window_order_and_number_of_pairs(interrupted, resume, runs):
    comparison = resume()
    assert comparison.verdict == "faster"
    assert measured(runs)[0][:3] == "003"
    assert [pair.first for pair in comparison.pairs] == schedule.orders(8, 3)[: len(comparison.pairs)]
    assert {(a.warmup_steps, a.window_steps) for a in runs.asked[2:]} == {(7, 60)}
    assert comparison.max_pairs == 8
    assert comparison.num_pairs in schedule.looks(8)


@pytest.fixture
def full_disk(monkeypatch):
    """Lets the disk be full once a comparison has this many pairs, while the context lasts."""

    @contextlib.contextmanager
    def full(num_pairs):
        write = atomic.write

        def write_or_fail(path, content, **more):
            if path.name == protocol.FILE and len(document.parse(content)["pairs"]) >= num_pairs:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(path, content, **more)

        with monkeypatch.context() as patch:
            patch.setattr(atomic, "write", write_or_fail)
            yield

    return full


def test_comparison_keeps_its_pairs_and_goes_on_later_when_the_disk_is_full(
    compare, resume, runs, full_disk, tmp_path
):
    with full_disk(3), pytest.raises(CannotRunHere, match="No space left") as raised:
        compare(max_pairs=8, seed=3)
    assert f"dynotune compare --resume {folder_in(tmp_path)}" in raised.value.hint
    before = on_disk(tmp_path).pairs
    assert len(before) == 2
    comparison = resume()
    assert comparison.verdict == "faster" and comparison.pairs[:2] == before


def test_resuming_with_a_budget_adds_and_takes_no_look(interrupted, resume):
    assert resume(budget_s=50.0).max_pairs == 8


def test_resumed_compare_removes_what_an_interrupted_run_left(interrupted, resume, tmp_path):
    left = interrupted / "003-candidate" / "process-1-0.rec"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"an old record")
    resume()
    assert left.parent.is_dir()
    assert not left.exists()


def test_a_comparison_interrupted_in_its_pilots_keeps_what_was_asked(compare, resume, runs):
    runs.instead["pilot-candidate"] = raises(KeyboardInterrupt())
    with pytest.raises(protocol.Interrupted):
        compare(warmup_steps=7, window_steps=60)
    runs.instead.clear()
    comparison = resume()
    assert (comparison.run.warmup_steps, comparison.run.window_steps) == (7, 60)
    assert comparison.verdict == "faster"


def test_resuming_on_another_machine_is_refused(interrupted, resume, runs, monkeypatch):
    monkeypatch.setattr(protocol, "facts_of", lambda request: {**FACTS, "host.cpu": "another processor"})
    with pytest.raises(CannotRunHere, match=r"begun elsewhere: host\.cpu"):
        resume()
    assert runs.names == []


def test_resuming_with_fewer_cores_is_refused(interrupted, resume, monkeypatch):
    monkeypatch.setattr(protocol, "facts_of", lambda request: {**FACTS, "host.num_cores": 1})
    with pytest.raises(CannotRunHere, match=r"host\.num_cores"):
        resume()


def test_a_finished_comparison_gives_its_answer_again_without_running(compare, resume, runs):
    answer = compare()
    runs.names.clear()
    assert resume() == answer
    assert runs.names == []


def test_a_failed_comparison_gives_its_answer_again_without_running(compare, resume, runs):
    runs.instead["001-baseline"] = raises(FAILURE)
    answer = compare()
    runs.names.clear()
    assert resume() == answer
    assert runs.names == []


def test_an_error_after_finished_pairs_says_how_to_go_on(compare, runs):
    runs.instead["003-candidate"] = raises(CannotRunHere("It hangs.", hint="Give more with --timeout."))
    with pytest.raises(CannotRunHere) as hung:
        compare()
    assert "--resume" in hung.value.hint


def test_a_truncated_comparison_is_refused(interrupted, resume):
    file = interrupted / protocol.FILE
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(RecordError, match="not a complete JSON document"):
        resume()


def test_a_run_that_cannot_be_read_any_more_costs_no_verdict(interrupted, resume):
    (interrupted / "001-baseline" / "run.json").write_text("{")
    comparison = resume()
    assert comparison.verdict == "faster"
    assert any("left out" in warning for warning in comparison.warnings)


def test_another_objective_is_compared_by_its_own_values_and_kept_when_resumed(
    compare, runs, resume, tmp_path
):
    def interrupt(outcome):
        raise KeyboardInterrupt

    runs.instead["003-candidate"] = interrupt
    with pytest.raises(protocol.Interrupted):
        compare(objective="time-to-first-step", seed=3)
    assert on_disk(tmp_path).run.objective == "time-to-first-step"
    del runs.instead["003-candidate"]
    comparison = resume()
    assert comparison.run.objective == "time-to-first-step"
    # From the launch at 0 to the end of the first step.
    assert comparison.pairs[0].baseline_s == pytest.approx(2.02)
    assert comparison.candidate.value == pytest.approx(2.01)
    assert (comparison.run.window_steps, comparison.run.warmup_steps) == (None, None)
    assert {asked.window_steps for asked in runs.asked} == {None}
    assert comparison.verdict == "same"


def test_of_memory_less_is_faster_and_equal_bytes_are_the_same(compare, runs):
    def holds(num_bytes):
        return lambda outcome: msgspec.structs.replace(
            outcome,
            run=msgspec.structs.replace(
                outcome.run,
                processes=[
                    msgspec.structs.replace(p, peak_device_bytes=num_bytes) for p in outcome.run.processes
                ],
            ),
        )

    for number in range(1, 5):
        runs.instead[f"{number:03d}-baseline"] = holds(3000 + number)
        runs.instead[f"{number:03d}-candidate"] = holds(2000 + number)
    comparison = compare(objective="memory")
    assert (comparison.verdict, comparison.candidate.value) == ("faster", 2002.0)
    for number in range(1, 5):
        runs.instead[f"{number:03d}-candidate"] = runs.instead[f"{number:03d}-baseline"]
    assert compare(objective="memory").verdict == "same"


# Lanes


@pytest.fixture
def two_lanes(monkeypatch):
    """Two lanes without a GPU, on the cores that there are."""
    made = [lanes.Lane(number, f"GPU-{number}", frozenset(os.sched_getaffinity(0))) for number in (1, 2)]
    monkeypatch.setattr(lanes, "refuse_impossible", lambda run, settings: None)
    monkeypatch.setattr(lanes, "wanted", lambda run, watcher: made if run.lanes == 2 else [])
    monkeypatch.setattr(lane_speed, "divide", lambda among, cores: [*among])
    return made


def noisy_but_in_pilots(middle_s):
    """Lanes whose pilots are alike, and nothing comes of their pairs, whichever lane is ahead."""
    draws: dict[int, Callable[[str], float]] = collections.defaultdict(lambda: noisy(middle_s))
    return lambda name: middle_s if name.startswith("pilot") else draws[threading.get_ident()](name)


@pytest.fixture
def gpus(runs, monkeypatch):
    """The GPU that each run was given, by its folder's name."""
    found = {}

    def noted(run, settings, *, folder, **more):
        found[folder.name] = run.env.get("CUDA_VISIBLE_DEVICES")
        return runs(run, settings, folder=folder, **more)

    monkeypatch.setattr(bench, "run_settings", noted)
    return found


def test_both_runs_of_a_pair_and_both_pairs_of_a_block_are_in_one_lane(compare, two_lanes, gpus, runs):
    runs.step_s = dict.fromkeys(("baseline", "candidate"), noisy_but_in_pilots(0.02))
    comparison = compare(lanes=2, max_pairs=8)
    assert [pair.lane for pair in comparison.pairs] == [1, 1, 2, 2, 1, 1, 2, 2]
    for pair in comparison.pairs:
        ran_on = {gpus[name.rpartition("/")[2]] for name in (pair.baseline_run, pair.candidate_run)}
        assert ran_on == {two_lanes[pair.lane - 1].gpu}
    assert [pair.first for pair in comparison.pairs] == schedule.orders(8, 0)
    # The pilots had the whole machine, but for those that say whether lanes are alike.
    pilots = {name: gpu for name, gpu in gpus.items() if name.startswith("pilot")}
    assert pilots == {
        "pilot-baseline": None, "pilot-candidate": None, "pilot-lane-1": "GPU-1", "pilot-lane-2": "GPU-2",
    }  # fmt: skip


@pytest.mark.parametrize("slow", ["GPU-1", "GPU-2"])
def test_lanes_results_do_not_depend_on_which_lane_ends_first(compare, two_lanes, runs, monkeypatch, slow):
    """A lane is held up until the other has done all that it was given."""
    values, held = {}, threading.Event()

    def run(spec, settings, *, folder, label, **more):
        gpu = spec.env.get("CUDA_VISIBLE_DEVICES")
        if gpu == slow and not folder.name.startswith("pilot"):
            held.wait(timeout=60)
        outcome = runs(spec, settings, folder=folder, label=label, **more)
        if gpu not in (None, slow) and not folder.name.startswith("pilot"):
            values.setdefault(gpu, []).append(folder.name)
            if len(values[gpu]) == 2:
                held.set()
        return outcome

    monkeypatch.setattr(bench, "run_settings", run)
    comparison = compare(lanes=2)
    assert [pair.lane for pair in comparison.pairs] == [1, 1, 2]
    assert comparison.verdict == "faster"
    assert [pair.first for pair in comparison.pairs] == schedule.orders(4, 0)[:3]


def test_a_void_pair_is_repeated_in_its_own_lane_and_order(compare, two_lanes, gpus, runs):
    runs.step_s = dict.fromkeys(("baseline", "candidate"), noisy_but_in_pilots(0.02))
    runs.instead["001-baseline"] = disturbed
    comparison = compare(lanes=2, max_pairs=8)
    assert [pair.lane for pair in comparison.pairs] == [1, 1, 2, 2, 1, 1, 2, 2]
    assert [pair.first for pair in comparison.pairs] == schedule.orders(8, 0)
    assert [voided.values.lane for voided in comparison.voided] == [1]
    assert len({pair.baseline_run for pair in comparison.pairs}) == 8


def test_an_arm_that_fails_in_a_lane_is_the_answer_and_nothing_is_left_running(compare, two_lanes, runs):
    before = threading.active_count()
    runs.instead["001-candidate"] = raises(CommandFailed("failed", command_exit_code=7))
    comparison = compare(lanes=2)
    assert comparison.failed is not None and (comparison.failed.arm, comparison.failed.exit_code) == (
        "candidate",
        7,
    )
    assert threading.active_count() == before


@pytest.mark.parametrize(("sizes", "unit"), [((8, 32), "sample"), ((8, 8), "step"), ((8, None), "step")])
def test_the_unit_is_a_sample_when_the_arms_steps_without_a_loader_hold_unequally_many(
    compare, runs, sizes, unit
):
    runs.samples = None

    def holds(size):
        def counted(outcome):
            processes = [replace(one, call_samples=size, num_steps=200) for one in outcome.run.processes]
            return replace(outcome, run=replace(outcome.run, processes=processes))

        return counted

    arms = dict(zip(("baseline", "candidate"), sizes, strict=True))
    names = ["pilot-{}", *(f"{number:03d}-{{}}" for number in range(1, 5))]
    runs.instead = {name.format(arm): holds(size) for arm, size in arms.items() for name in names}
    comparison = compare()
    assert comparison.unit == unit
    if unit == "sample":
        assert comparison.baseline.s_per_sample == pytest.approx(0.02 / 8)
        assert comparison.verdict == "faster"


def test_compare_ends_after_the_first_run_when_it_has_the_candidate_already(compare, runs):
    def has_it(outcome):
        return replace(
            outcome,
            run=replace(outcome.run, processes=[replace(outcome.run.processes[0], already=["env.A"])]),
        )

    runs.instead["pilot-baseline"] = has_it
    comparison = compare()
    assert runs.names == ["pilot-baseline"]
    assert (comparison.verdict, comparison.pairs) == ("same", [])
    assert comparison.reason == "The program has env.A=1 already, so baseline and candidate are the same."
