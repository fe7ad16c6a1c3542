"""The bench of real runs: their windows, and what is made of runs that fail. The runs are made up."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest

from dynotune.measure.bench import Journal, windows
from dynotune.measure.live import lane_speed, lanes
from dynotune.measure.live.switching import SwitchedArms
from dynotune.measure.live.window_plan import WindowPlan as Window
from dynotune.schema import document
from dynotune.schema.arm import BASELINE, arm
from dynotune.schema.comparison import MAX_PAIRS, Comparison
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.events import Block, Stretch
from dynotune.schema.facts import Unknown
from dynotune.schema.recipe import Header, Recipe
from dynotune.schema.run import Readback
from dynotune.schema.setting import Setting
from dynotune.schema.study import BaseRecipe, Candidate, Guarded, Study
from dynotune.search import failures, guards, real_bench, within_run
from dynotune.search.real_bench import RealBench

from ..fakes import Clock, Runs, Watcher, disturbed, of_run, raises, spec

FACTS = {"host.num_cores": 2, "gpu.count": 0, "torch.version": "2.13.0", "torch.cuda": None}
FAST = arm([Setting("env.A", "fast")])
SLOW = arm([Setting("env.A", "slow")])
EXACT = arm([Setting("env.B", "1")])


class Made(Runs):
    """Runs by their arm's key; of each, what it was launched with."""

    def __init__(self, clock, **fields):
        super().__init__(clock, **fields)
        self.step_s = {"": 0.02, FAST.key: 0.01, SLOW.key: 0.08, EXACT.key: 0.02}
        self.launched = []
        self.printed = {}

    def arm_of(self, run_of, settings):
        return arm(settings).key

    def __call__(self, request, settings, *, label, cache_folder, folder, **more):
        key = arm(settings).key
        self.launched.append((key, more["warmup_steps"], more["window_steps"], cache_folder, more["limit_s"]))
        if folder.name in self.printed:
            (folder / "stderr").write_text(self.printed[folder.name])
        return super().__call__(request, settings, label=key, folder=folder, **more)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(real_bench, "time", clock)
    return clock


@pytest.fixture
def runs(monkeypatch, clock):
    runs = Made(clock)
    monkeypatch.setattr(real_bench, "run_settings", runs)
    return runs


@pytest.fixture
def bench(runs, tmp_path):
    return bench_in(tmp_path)


def study_in(tmp_path, **fields):
    candidates = [Candidate(setting=setting, effect="exact") for setting in (*FAST.settings, *SLOW.settings)]
    usual = {"id": "s", "cwd": tmp_path, "budget_s": 3600.0, "facts": FACTS}
    return of_run(Study, **(usual | {"candidates": candidates} | fields))


def bench_in(tmp_path, request=None, elapsed_s=0.0, **fields):
    folder = tmp_path / "study"
    folder.mkdir(exist_ok=True)
    request = request or spec(cwd=tmp_path, base=tmp_path)
    return RealBench(request, folder, Journal(study_in(tmp_path, **fields)), Watcher(), elapsed_s=elapsed_s)


def pilots(bench, *arms):
    return [bench.run(one, "pilot", 0) for one in (BASELINE, *arms)]


def fails(exit_code=1):
    return raises(CommandFailed("failed", command_exit_code=exit_code))


# Windows and order


def test_all_measured_runs_time_the_same_steps_whichever_arm_was_slow_to_warm_up(bench, runs):
    runs.step_s[SLOW.key] = lambda name: 0.08
    pilots(bench, FAST, SLOW)
    trials = [bench.run(one, "prune", block) for block in (1, 2) for one in (SLOW, BASELINE, FAST)]
    assert {(warmup, steps) for _, warmup, steps, _, _ in runs.launched[:3]} == {(None, None)}
    windows = {(warmup, steps) for _, warmup, steps, _, _ in runs.launched[3:]}
    assert len(windows) == 1 and None not in next(iter(windows))
    assert [trial.run for trial in trials] == [f"{number:04d}-prune" for number in range(4, 10)]
    study = bench.journal.document
    assert windows == {(study.run.warmup_steps, study.run.window_steps)}
    assert study.unit == "s/sample" and study.run_s is not None and study.step


def test_a_later_arm_does_not_move_the_window(bench, runs):
    pilots(bench, FAST)
    bench.run(BASELINE, "prune", 1)
    bench.run(SLOW, "pilot", 0)
    bench.run(SLOW, "prune", 1)
    assert runs.launched[-1][1:3] == runs.launched[2][1:3]


def test_runs_that_end_with_their_first_step_are_planned_once(runs, tmp_path):
    request = spec(cwd=tmp_path, base=tmp_path, objective="time-to-first-step")
    bench = bench_in(tmp_path, request, objective="time-to-first-step")
    pilots(bench, FAST)
    trials = [bench.run(one, "confirm", block) for block in (1, 2) for one in (BASELINE, FAST)]
    assert [trial.ended for trial in trials] == ["measured"] * 4
    again = bench_in(tmp_path, request, objective="time-to-first-step", run_s=2.0, trials=trials)
    assert again.run(BASELINE, "confirm", 3).ended == "measured"


def test_arms_share_what_was_compiled(bench, runs):
    pilots(bench, FAST, SLOW)
    bench.run(FAST, "prune", 1)
    assert len({folder for _, _, _, folder, _ in runs.launched}) == 1


def test_bench_says_why_nothing_could_be_compared_within_one_process(bench, monkeypatch):
    key = FAST.key

    class Nothing:
        def __iter__(self):
            return iter([])

        def found(self):
            return found

    found = SwitchedArms(given_up={key: "the 20 s given were over"}, reason="the 20 s given were over")
    monkeypatch.setattr(within_run.Live, "turns", lambda *given: Nothing())
    assert bench.switch([FAST], 20.0) == []
    assert [text for text in bench._watcher.said if "the 20 s given were over." in text]


def test_arms_have_caches_of_their_own_when_the_start_is_measured(runs, tmp_path):
    request = spec(cwd=tmp_path, base=tmp_path, objective="time-to-first-step")
    pilots(bench_in(tmp_path, request, objective="time-to-first-step"), FAST, SLOW)
    assert len({folder for _, _, _, folder, _ in runs.launched}) == 3


def test_a_trial_tells_its_value_by_the_sample_and_when_it_ran(bench):
    before = pilots(bench, FAST)
    trial = bench.run(FAST, "prune", 1)
    assert [pilot.value for pilot in before] == [None, None]
    assert trial.value == pytest.approx(0.01 / 32)
    assert trial.ended == "measured" and not trial.void
    assert trial.began_s == pytest.approx(sum(pilot.wall_s for pilot in before))
    assert trial.wall_s > 0


def test_a_run_that_others_disturbed_is_void_whichever_arm(bench, runs):
    pilots(bench)
    runs.instead["0002-prune"] = disturbed
    trial = bench.run(BASELINE, "prune", 1)
    assert trial.void == "another process computes on GPU 0" and trial.ended == "measured"


def test_a_disturbance_voids_no_run_whose_memory_is_asked_for(runs, tmp_path):
    bench = bench_in(tmp_path, spec(cwd=tmp_path, base=tmp_path, objective="memory"), objective="memory")
    pilots(bench)

    def known(outcome):
        run = msgspec.structs.replace(outcome.run, peak_tree_bytes=1 << 30)
        return msgspec.structs.replace(outcome, run=run)

    runs.instead["0002-prune"] = lambda outcome: disturbed(known(outcome))
    assert bench.run(BASELINE, "prune", 1).void == ""


def test_a_resumed_bench_goes_on_with_the_window_the_numbers_and_the_time(bench, runs, tmp_path):
    pilots(bench, FAST)
    bench.run(FAST, "prune", 1)
    left_s = bench.left_s()
    kept = bench.journal.document
    fields = {name: getattr(kept, name) for name in FIXED}
    again = bench_in(tmp_path, elapsed_s=3600.0 - left_s, **fields)
    assert again.left_s() == pytest.approx(left_s)
    assert again.run_s(FAST) == pytest.approx(bench.run_s(FAST))
    trial = again.run(FAST, "prune", 2)
    assert trial.run == "0004-prune"
    assert runs.launched[-1][:3] == runs.launched[-2][:3]


def test_run_length_is_taken_from_own_runs_then_from_pilots_then_from_the_baseline(bench, runs):
    assert bench.run_s(BASELINE) == 60.0
    pilots(bench, FAST, SLOW)
    assert 0 < bench.run_s(BASELINE) < 60.0
    bench.run(BASELINE, "prune", 1)
    assert bench.run_s(BASELINE) == pytest.approx(2.0 + 0.02 * runs.launched[-1][2])
    assert bench.run_s(SLOW) > bench.run_s(FAST) > 2.0
    assert bench.run_s(arm([*FAST.settings, *EXACT.settings])) == bench.run_s(BASELINE)


def late(runs):
    """A first run that takes a minute longer than later ones, until it makes its steps."""

    def make(outcome):
        runs.clock.now_s += 60.0
        return msgspec.structs.replace(outcome, launched_s=-60.0)

    return make


@pytest.mark.parametrize(
    ("caches", "warms", "later_s"), [("warm", True, 30.0), ("warm", False, 60.0), ("cold", True, 60.0)]
)
def test_run_length_counts_half_of_a_first_runs_compiling_for_its_arm_and_none_for_others(
    runs, tmp_path, caches, warms, later_s
):
    request = spec(cwd=tmp_path, base=tmp_path, caches=caches)
    offered = [
        Candidate(setting=setting, effect="exact", needs_warm_cache=warms) for setting in EXACT.settings
    ]
    bench = bench_in(tmp_path, request, candidates=offered)
    bench.run(BASELINE, "pilot", 0)
    alone_s = bench.run_s(BASELINE)
    runs.instead["0002-pilot"] = late(runs)
    bench.run(EXACT, "pilot", 0)
    assert bench.run_s(BASELINE) == pytest.approx(alone_s)
    assert bench.run_s(EXACT) == pytest.approx(alone_s + later_s)
    bench.run(BASELINE, "prune", 1)  # from here on the window is fixed
    assert bench.run_s(EXACT) == pytest.approx(alone_s + later_s)


def test_run_time_of_an_arm_keeps_its_late_start_when_only_a_value_reads_like_a_compiling_setting(
    runs, tmp_path
):
    odd, compiling = Setting("env.ODD", "1 env.SLOW=2 "), Setting("env.SLOW", "2")
    offered = [
        Candidate(setting=odd, effect="exact", needs_warm_cache=False),
        Candidate(setting=compiling, effect="exact", needs_warm_cache=True),
    ]
    bench = bench_in(tmp_path, spec(cwd=tmp_path, base=tmp_path), candidates=offered)
    runs.step_s[arm([odd]).key] = 0.02
    bench.run(BASELINE, "pilot", 0)
    alone_s = bench.run_s(BASELINE)
    runs.instead["0002-pilot"] = late(runs)
    bench.run(arm([odd]), "pilot", 0)
    assert bench.run_s(arm([odd])) == pytest.approx(alone_s + 60.0)


def test_a_resumed_bench_knows_how_long_an_arm_took_to_start(bench, runs, tmp_path):
    runs.instead["0002-pilot"] = late(runs)
    pilots(bench, FAST)
    bench.run(BASELINE, "prune", 1)
    kept = bench.journal.document
    fields = {name: getattr(kept, name) for name in FIXED}
    again = bench_in(tmp_path, **fields)
    assert again.run_s(BASELINE) + 25.0 < again.run_s(FAST) < again.run_s(BASELINE) + 60.0


def test_a_small_budget_shortens_the_window_but_not_below_what_tells_something(runs, tmp_path):
    long = bench_in(tmp_path)
    runs.step_s[""] = 0.2
    pilots(long)
    long.run(BASELINE, "prune", 1)
    short = bench_in(tmp_path, budget_s=120.0)
    pilots(short)
    short.run(BASELINE, "prune", 1)
    steps = [window for _, _, window, _, _ in runs.launched if window]
    assert steps[1] <= steps[0]
    assert steps[1] * 0.2 >= 1.0


def test_a_window_is_not_cut_to_a_sliver_of_what_it_takes_to_get_there(monkeypatch, tmp_path):
    def plan(request, pilots, *, budget_s=None, **_):
        long = Window(warmup_steps=5, num_steps=1000, start_s=30.0, step_s=0.02)
        return long if budget_s is None else msgspec.structs.replace(long, num_steps=10)

    monkeypatch.setattr(windows, "plan_window", plan)
    request = spec(cwd=tmp_path, base=tmp_path)
    baseline = SimpleNamespace(records=[])
    assert windows.for_search(request, baseline, [], 300.0, num_runs=20).window_s == pytest.approx(0.2 * 30.0)
    assert windows.for_search(request, baseline, [], 3600.0).window_s == pytest.approx(20.0)


def test_window_is_half_of_the_time_before_it_when_there_is_time(runs, tmp_path):
    runs.instead["0001-pilot"] = late(runs)
    windows = []
    for budget_s, num_others in ((36_000.0, 0), (1_450.0, 0), (1_450.0, 8)):
        others = [Candidate(setting=Setting("env.X", str(at)), effect="exact") for at in range(num_others)]
        bench = bench_in(tmp_path, budget_s=budget_s, candidates=[*study_in(tmp_path).candidates, *others])
        bench.run(BASELINE, "pilot", 0)
        bench.run(BASELINE, "prune", 1)
        windows.append(runs.launched[-1][2] * 0.02)
    assert windows[0] == pytest.approx(30.0, rel=0.05)
    assert 12.0 <= windows[2] < windows[1] < 0.8 * windows[0]


def test_a_plan_is_made_of_runs_as_short_as_the_time_left_asks_for(runs, tmp_path, monkeypatch):
    bench = bench_in(tmp_path, budget_s=120.0)
    bench.run(BASELINE, "pilot", 0)
    long_s = bench.run_s(BASELINE)
    planned = windows.for_search

    def short(request, baseline, others, left_s, **asked):
        assert left_s <= 120.0 and others == []
        return msgspec.structs.replace(planned(request, baseline, others, left_s, **asked), num_steps=10)

    monkeypatch.setattr(windows, "for_search", short)
    assert bench.run_s(BASELINE) < long_s - 0.5


def test_the_window_begins_when_the_batches_that_lay_ready_are_used_up(runs, tmp_path):
    offered = [
        Candidate(setting=Setting(f"loader.{name}", 8), effect="exact")
        for name in ("num_workers", "prefetch_factor")
    ]
    bench = bench_in(tmp_path, candidates=offered)
    pilots(bench)
    bench.run(BASELINE, "prune", 1)
    assert runs.launched[-1][1] >= 64
    given = spec(cwd=tmp_path, base=tmp_path, warmup_steps=5)
    bench = bench_in(tmp_path, given, candidates=offered)
    pilots(bench)
    bench.run(BASELINE, "prune", 1)
    assert runs.launched[-1][1] == 5


# Arms that are far faster


STARVED = {"": 0.1, FAST.key: 0.005}
FIXED = ("trials", "run", "run_s", "unit")


def test_the_window_is_long_enough_for_an_arm_that_is_far_faster(runs, tmp_path):
    runs.step_s |= STARVED
    windows = []
    for others in ([], [FAST]):
        bench = bench_in(tmp_path)
        pilots(bench, *others)
        bench.run(BASELINE, "prune", 1)
        windows.append(runs.launched[-1][2])
    assert windows[1] * STARVED[FAST.key] >= min(1.0, 30.0 * STARVED[FAST.key] / STARVED[""])
    assert windows[1] > windows[0]


# Failures


CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nerror: rank 0 failed\n"
CPU_OOM = "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"
SHM_OOM = "RuntimeError: DataLoader worker is killed by signal: Bus error. Workers are out of shared memory."


@pytest.mark.parametrize(
    ("printed", "exit_code", "ended"),
    [
        ("Traceback\nValueError: no", 1, "failed"),
        (CUDA_OOM, 1, "out-of-memory"),
        (CPU_OOM, 1, "out-of-memory"),
        (SHM_OOM, 1, "out-of-memory"),
        ("Killed", -9, "failed"),
        ("", 3, "failed"),
    ],
)
def test_trial_ends_as_the_arm_ended_the_program(bench, runs, printed, exit_code, ended):
    pilots(bench, FAST)
    runs.printed["0003-prune"] = printed
    runs.instead["0003-prune"] = _then(fails(exit_code), exit_code)
    trial = bench.run(FAST, "prune", 1)
    assert (trial.ended, trial.value) == (ended, None)
    assert trial.detail


def _then(fail, exit_code):
    """A run that is on disk, and then fails."""
    from msgspec.structs import replace

    def fake(outcome):
        document.write(
            outcome.folder / "run.json", replace(outcome.run, exit_code=exit_code, ended_by="command")
        )
        return fail(outcome)

    return fake


@pytest.mark.parametrize(("kills", "ended"), [([3, 4], "out-of-memory"), ([3, 3], "failed")])
def test_a_process_that_the_kernel_killed_ran_out_of_memory(bench, runs, monkeypatch, kills, ended):
    pilots(bench, FAST)
    counted = iter(kills)
    for module in (real_bench, failures):
        monkeypatch.setattr(module, "num_oom_kills", lambda: next(counted))
    runs.instead["0003-prune"] = _then(fails(-9), -9)
    assert bench.run(FAST, "prune", 1).ended == ended


def test_a_setting_that_did_not_take_effect_is_rejected_with_what_was_found(bench, runs):
    pilots(bench)
    runs.readback = [Readback("env.A", "fast", "slow", "os.environ", False, "the program sets it itself")]
    trial = bench.run(FAST, "pilot", 0)
    assert trial.ended == "rejected"
    assert "os.environ says slow; the program sets it itself" in trial.detail


def test_a_setting_that_nothing_witnesses_as_wrong_is_rejected_in_words(bench, runs):
    pilots(bench)
    runs.readback = [Readback("env.A", "fast", Unknown("no loader was drawn from"), "the loaders", False, "")]
    assert bench.run(FAST, "pilot", 0).detail == "no loader was drawn from"


def test_settings_that_cannot_go_together_are_rejected_before_anything_runs(bench, runs):
    pilots(bench)
    both = arm(
        [Setting("env.PYTORCH_ALLOC_CONF", "backend:native"), Setting("alloc.expandable_segments", True)]
    )
    trial = bench.run(both, "pilot", 0)
    assert trial.ended == "rejected" and "both set" in trial.detail
    assert len(runs.launched) == 1


def test_a_run_that_takes_too_long_is_a_timeout_of_its_arm(bench, runs):
    pilots(bench, SLOW)
    runs.instead["0003-prune"] = _timeout
    assert bench.run(SLOW, "prune", 1).ended == "timeout"


def _timeout(outcome):
    from msgspec.structs import replace

    document.write(outcome.folder / "run.json", replace(outcome.run, ended_by="timeout"))
    raise CannotRunHere("took longer")


def test_a_run_that_the_deadline_cuts_short_says_nothing_of_its_arm(runs, tmp_path):
    bench = bench_in(tmp_path, budget_s=20.0)
    pilots(bench)
    bench.run(BASELINE, "prune", 1)
    runs.instead["0003-prune"] = _timeout
    trial = bench.run(FAST, "prune", 1)
    assert trial.void and trial.ended == "timeout"
    assert runs.launched[-1][4] < 60


def test_the_baselines_failure_is_the_commands(bench, runs):
    runs.instead["0001-pilot"] = _then(fails(3), 3)
    with pytest.raises(CommandFailed):
        bench.run(BASELINE, "pilot", 0)


def test_a_full_disk_is_the_machines_fault_and_no_arms_answer(bench, runs, monkeypatch):
    pilots(bench, FAST)
    runs.instead["0003-prune"] = _then(raises(CannotRunHere("There is no room left")), 1)
    monkeypatch.setattr(failures, "has_room", lambda folder: False)
    with pytest.raises(CannotRunHere, match="no room"):
        bench.run(FAST, "prune", 1)


def test_a_gpu_that_is_gone_is_the_machines_fault(runs, tmp_path, monkeypatch):
    bench = bench_in(tmp_path, facts=FACTS | {"gpu.count": 2})
    pilots(bench, FAST)
    runs.instead["0003-prune"] = _then(fails(), 1)
    monkeypatch.setattr(failures.probe.nvml, "facts", lambda env: {"gpu.count": 1})
    with pytest.raises(CannotRunHere, match="GPU was lost"):
        bench.run(FAST, "prune", 1)


def test_an_interruption_is_nobodys_answer(bench, runs):
    pilots(bench, FAST)
    runs.instead["0003-prune"] = raises(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bench.run(FAST, "prune", 1)


# What all runs have


def test_arms_come_on_top_of_what_all_runs_have(runs, tmp_path):
    base = [*EXACT.settings, *SLOW.settings]
    bench = bench_in(
        tmp_path, base_recipe=BaseRecipe("recipe.toml", Recipe(Header(schema=""))), settings=base
    )
    runs.step_s |= {arm([*EXACT.settings, *one.settings]).key: 0.02 for one in (SLOW, FAST)}
    trials = pilots(bench, FAST)
    assert [trial.arm for trial in trials] == ["", FAST.key]
    assert [key for key, *_ in runs.launched] == [
        arm([*EXACT.settings, *one.settings]).key for one in (SLOW, FAST)
    ]


# The guard


AUTOCAST = arm([Setting("precision.autocast", "bf16")])
CHANNELS = arm([Setting("layout.channels_last", True)])


@pytest.fixture
def guard(monkeypatch, runs):
    runs.step_s |= dict.fromkeys(
        [AUTOCAST.key, CHANNELS.key, (arm([*AUTOCAST.settings, *EXACT.settings])).key], 0.02
    )
    fake = SimpleNamespace(asked=[], answers={}, num_baselines=0)

    def baseline(_):
        fake.num_baselines += 1
        return guards.guard.Own(first=[])

    def compare(_, settings, own, name):
        fake.asked.append(arm(settings).key)
        answer = fake.answers.get(arm(settings).key, Unknown("no losses were seen"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(guards.guard.Guard, "baseline", baseline)
    monkeypatch.setattr(guards.guard.Guard, "compare", compare)
    return fake


def guarded(one, ok):
    return Guarded(
        arm=one.key,
        what="losses",
        difference=0.5,
        own=0.01,
        tolerance=0.1,
        num_values=20,
        ok=ok,
        reason="They differ.",
    )


def test_losses_are_compared_once_of_what_changes_rounding_and_not_of_the_rest(bench, guard, tmp_path):
    guard.answers[AUTOCAST.key] = guarded(AUTOCAST, ok=True)
    assert [bench.check(one) for one in (AUTOCAST, EXACT, arm([*AUTOCAST.settings, *EXACT.settings]))] == [
        None,
        None,
        None,
    ]
    assert guard.asked == [AUTOCAST.key]
    assert bench.journal.document.guarded == [guarded(AUTOCAST, ok=True)]


def test_losses_that_differ_are_wrong_results_and_unknown_ones_are_unchecked(bench, guard):
    guard.answers[AUTOCAST.key] = guarded(AUTOCAST, ok=False)
    wrong, unknown = bench.check(AUTOCAST), bench.check(CHANNELS)
    assert (wrong.arm, wrong.ended, wrong.detail) == (AUTOCAST.key, "wrong-results", "They differ.")
    assert (unknown.arm, unknown.ended) == (CHANNELS.key, "unchecked")
    assert "no losses were seen" in unknown.detail
    assert guard.num_baselines == 1


def test_no_run_is_held_up_by_a_look_at_losses(bench, guard):
    guard.answers[AUTOCAST.key] = guarded(AUTOCAST, ok=False)
    pilots(bench, AUTOCAST)
    assert {bench.run(AUTOCAST, phase, 1).ended for phase in ("prune", "prune", "prune", "confirm")} == {
        "measured"
    }
    assert guard.asked == []


def test_runs_after_a_check_that_failed_have_folders_of_their_own(bench, guard):
    guard.answers[AUTOCAST.key] = guarded(AUTOCAST, ok=False)
    names = [bench.run(BASELINE, "pilot", 0).run]
    bench.check(AUTOCAST)
    names.append(bench.run(BASELINE, "prune", 1).run)
    assert [name.partition("-")[0] for name in names] == ["0001", "0003"]


def test_a_guarded_run_that_fails_leaves_it_unknown_and_is_not_repeated(bench, guard):
    guard.answers[AUTOCAST.key] = CannotRunHere("it made no step")
    assert [bench.check(AUTOCAST).ended, bench.check(AUTOCAST).ended] == ["unchecked", "unchecked"]
    assert guard.asked == [AUTOCAST.key]


def test_results_of_an_earlier_sitting_are_not_compared_again(runs, guard, tmp_path):
    bench = bench_in(tmp_path, guarded=[guarded(AUTOCAST, ok=False)])
    assert bench.check(AUTOCAST).ended == "wrong-results"
    assert guard.asked == []


# Lanes


@pytest.fixture
def in_lanes(runs, tmp_path, monkeypatch):
    """A bench in two lanes, and the GPU that each run was given, by its folder's name."""
    gpus, cpus = {}, frozenset(os.sched_getaffinity(0))

    def noted(request, settings, *, folder, **more):
        gpus[folder.name] = request.env.get("CUDA_VISIBLE_DEVICES")
        return runs(request, settings, folder=folder, **more)

    monkeypatch.setattr(real_bench, "run_settings", noted)
    made = [lanes.Lane(number, f"GPU-{number}", cpus) for number in (1, 2)]
    monkeypatch.setattr(lane_speed, "divide", lambda among, cores: [*among])
    bench = bench_in(tmp_path)
    bench._wanted = made
    # What a run that is made up left on disk.
    monkeypatch.setattr(real_bench, "pilots_on_disk", lambda folder, trials: dict(bench._pilots))
    return bench, made, gpus


def test_the_lanes_of_a_study_are_found_once_by_a_run_of_the_command_in_each(in_lanes):
    bench, made, gpus = in_lanes
    pilots(bench)
    assert bench.all_lanes() == bench.all_lanes() == made
    assert gpus == {"0001-pilot": None, "lane-1": "GPU-1", "lane-2": "GPU-2"}
    trial = bench.run(FAST, "prune", 1, made[1])
    assert (trial.lane, gpus[trial.run]) == (2, "GPU-2")


def test_lanes_do_not_lengthen_the_window(in_lanes):
    bench, _, _ = in_lanes
    pilots(bench)
    bench._budget_s = bench.elapsed_s() + 12 * bench.run_s(BASELINE)
    alone = bench._window()
    bench.all_lanes()
    assert bench._window().num_steps <= alone.num_steps


def test_a_study_that_ends_before_its_fresh_runs_says_that_no_lane_was_used(in_lanes):
    bench, _, _ = in_lanes
    bench.close()
    assert bench.journal.document.lane_notes == [
        "No runs went side by side: the search ended before any run that could."
    ]


def test_a_study_without_time_for_lanes_goes_on_without(in_lanes):
    bench, _, gpus = in_lanes
    pilots(bench)
    bench._budget_s = bench.elapsed_s() + 2 * bench.run_s(BASELINE)
    assert bench.all_lanes() == [lanes.WHOLE]
    assert list(gpus) == ["0001-pilot"]
    said = bench.journal.document.lane_notes
    assert [text.startswith("Runs go one after another: ") for text in said] == [True]


# Blocks within one process


class Blocks:
    """Turns whose blocks take 10 s each, the first a minute, in which something compiled, until the time is
    up."""

    def __init__(self, clock, ratios, limit_s):
        self.clock, self.ratios, self.until_s, self.made = clock, ratios, clock.now_s + limit_s, []

    def __iter__(self):
        for number, ratio in enumerate(self.ratios):
            took_s = 10.0 if number else 60.0
            if self.clock.now_s + took_s > self.until_s:
                return
            begin_s, self.clock.now_s = self.clock.now_s, self.clock.now_s + took_s
            base, other = ([Stretch(seconds, 10, None)] * 2 for seconds in (ratio, 1.0))
            order, end_s = ("ABBA", "BAAB")[number % 2], self.clock.now_s
            self.made.append(
                Block(
                    arm=0,
                    number=number,
                    order=order,
                    begin_s=begin_s,
                    end_s=end_s,
                    baseline=base,
                    candidate=other,
                )
            )
            yield {FAST.key: self.made}

    def found(self):
        return SwitchedArms(blocks={FAST.key: self.made})


@pytest.mark.parametrize(("limit_s", "num_blocks"), [(101.0, 5), (95.0, 4), (600.0, 6)])
def test_blocks_are_judged_by_the_looks_that_the_time_affords_when_a_verdict_would_need_more(
    bench, clock, monkeypatch, limit_s, num_blocks
):
    """Of a minGPT on a busy host: of twelve planned blocks six have to be made, of four all; of five planned
    ones four decide, and the fifth narrows their interval."""
    made = Blocks(clock, [2.07, 2.49, 2.85, 2.68, 2.6, 2.5, 2.7], limit_s)
    monkeypatch.setattr(within_run, "time", clock)
    monkeypatch.setattr(within_run.Live, "turns", lambda *given: made)
    plan = Comparison(
        id="s",
        run=bench.journal.document.run,
        candidate_settings=list(FAST.settings),
        max_pairs=MAX_PAIRS,
        within=True,
    )
    tested = bench.test(FAST, plan, 0.05 / 3, limit_s)
    assert tested.comparison is not None
    assert (tested.comparison.verdict, tested.comparison.num_pairs) == ("faster", num_blocks)


def test_an_arm_is_dropped_when_its_first_block_leaves_no_gain(bench, clock, monkeypatch):
    made = Blocks(clock, [0.6, 0.61, 0.6, 0.61], 600.0)
    monkeypatch.setattr(within_run, "time", clock)
    monkeypatch.setattr(within_run.Live, "turns", lambda *given: made)
    run, settings = bench.journal.document.run, list(FAST.settings)
    plan = Comparison(id="s", run=run, candidate_settings=settings, max_pairs=MAX_PAIRS, within=True)
    tested = bench.test(FAST, plan, 0.05 / 3, 600.0)
    assert tested.comparison is not None
    assert (tested.comparison.verdict, tested.comparison.num_pairs) == ("undecided", 1)
    assert tested.comparison.ci is not None and tested.comparison.ci[1] < 1


def test_a_run_may_take_half_of_a_first_launch_when_no_other_is_known(bench):
    guessed_s = bench.run_s(BASELINE)
    assert bench.least_run_s() == guessed_s / 4
    pilots(bench)
    assert bench.least_run_s() == bench.run_s(BASELINE)
