"""A study on several hosts: what goes to another one, and that no block straddles two. The runs are
simulated."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter

import pytest
from msgspec.structs import replace

from dynotune.measure import live
from dynotune.measure.bench import Journal
from dynotune.measure.comparison import orders
from dynotune.measure.live import lane_order, lanes
from dynotune.schema import document
from dynotune.schema.arm import BASELINE, arm
from dynotune.schema.comparison import Voided
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError
from dynotune.schema.setting import Setting
from dynotune.schema.study import BlockResult, HostBlock
from dynotune.search import confirmation, sharing, tune
from dynotune.search.running import LOST, OutOfTime, Search
from lab.search.simulated_bench import SimulatedBench, searched
from lab.search.studies import candidate, study_of
from lab.search.tables import TAILS_AND_DRIFT, Table
from lab.silent import Silent

from ..fakes import changed, spec

A, B = candidate("env.A=1"), candidate("env.B=1")
HERE, THERE = lanes.Lane(1), lanes.Lane(2, host="there")
TABLE = Table({"env.A=1": 0.5})


class Shared(SimulatedBench):
    """Blocks of the second lane run at another host, by a bench of its own, as a worker runs them.

    `lost`: blocks, from 1, in which the host is lost, for good.
    """

    def __init__(self, table, *, lost=0, **more):
        super().__init__(table, **more)
        self.there, self.asked, self._lost = SimulatedBench(table, **more), [], lost

    def all_lanes(self):
        return [HERE, THERE]

    def plan(self):
        pass

    def made(self, arm, phase, block, lane=lanes.WHOLE):
        with self.journal.lock:
            return super().made(arm, phase, block, lane)

    def elsewhere(self, block, lane):
        assert lane.host == "there"
        self.asked.append(block)
        if self._lost and len(self.asked) >= self._lost:
            return None
        self.there.journal = Journal(self.journal.document)
        work = Search(self.there, Silent())
        work.in_turn([arm(one) for one in block.arms], block.phase, block.number, lanes.WHOLE, block.repeats)
        new = work.study.trials[len(self.journal.document.trials) :]
        return BlockResult(trials=[replace(one, run=f"there:/{one.run}") for one in new])


def hosts_of(study):
    """By phase and block, the hosts of the runs that count."""
    found = {}
    for trial in study.trials:
        if trial.block and not trial.void:
            found.setdefault((trial.phase, trial.block), set()).add(
                trial.run.partition(":")[0] if trial.was_elsewhere else ""
            )
    return found


@pytest.fixture(autouse=True)
def as_it_is(monkeypatch):
    """Lanes that are made up have no cores."""
    monkeypatch.setattr(lane_order.os, "sched_setaffinity", lambda pid, cpus: None)


@pytest.mark.parametrize("lost", [0, 1, 2, 6])
def test_a_study_on_two_hosts_finds_the_same_and_no_block_straddles_them(lost):
    study = searched(study_of([A, B]), Shared(TABLE, lost=lost, noise=TAILS_AND_DRIFT))
    assert study.recipe == [A.setting]
    found = hosts_of(study)
    assert all(len(hosts) == 1 for hosts in found.values())
    assert ({"there"} in found.values()) == (lost != 1)
    counted = Counter((one.arm, one.phase, one.block) for one in study.trials if one.block and not one.void)
    assert set(counted.values()) == {1}
    assert study.confirmed.verdict == "faster"


def test_a_pair_goes_whole_in_the_order_that_was_drawn_for_it():
    bench = Shared(TABLE)
    study = searched(study_of([A, B]), bench)
    pairs = [block for block in bench.asked if block.phase == "confirm"]
    assert pairs and {len(block.arms) for block in pairs} == {2} and {block.repeats for block in pairs} == {0}
    # The first block of two pairs is run here, the second one there.
    drawn = orders(study.confirmed.max_pairs, study.run.seed or 0)
    assert ["candidate" if block.arms[0] else "baseline" for block in pairs[:1]] == [drawn[2]]
    for block in pairs:
        ran = [one for one in study.trials if (one.phase, one.block) == ("confirm", block.number)]
        assert [arm(one).key for one in block.arms] == [one.arm for one in ran]


def begun(*trials, bench=None):
    study = replace(study_of([A, B]), trials=list(trials))
    bench = bench or Shared(TABLE)
    bench.journal = Journal(study)
    return Search(bench, Silent())


def made(one, block, **more):
    trial = SimulatedBench(TABLE).made(arm(one), "prune", block)
    return replace(trial, **more)


def test_blocks_that_another_host_left_unfinished_count_for_nothing():
    whole = [made([], 1, run="gone:/1"), made([A.setting], 1, run="gone:/2")]
    work = begun(*whole, made([], 2, run="gone:/3"))
    work._run_block([BASELINE, arm([A.setting])], "prune", 1, HERE)
    assert work.study.trials[:2] == whole and len(work.study.trials) == 3
    work._run_block([BASELINE, arm([A.setting])], "prune", 2, HERE)
    assert [(one.run[:4], one.void) for one in work.study.trials if one.block == 2] == [
        ("gone", LOST), ("0001", ""), ("0002", ""),
    ]  # fmt: skip


def test_blocks_that_were_begun_here_end_here():
    bench = Shared(TABLE)
    work = begun(made([], 1), bench=bench)
    work._run_block([BASELINE, arm([A.setting])], "prune", 1, THERE)
    assert bench.asked == []
    assert [one.was_elsewhere for one in work.study.trials] == [False, False]


def test_a_block_that_is_asked_for_again_differs_from_what_was_asked_before():
    """Its result may still be in the database."""
    bench = Shared(TABLE)
    work = begun(made([], 2, run="gone:/3"), bench=bench)
    work._run_block([BASELINE, arm([A.setting])], "prune", 2, THERE)
    work._run_block([BASELINE, arm([A.setting])], "prune", 1, THERE)
    assert [block.attempt for block in bench.asked] == [1, 0]
    assert {one.lane for one in work.study.trials if not one.void} == {2}


def test_a_host_that_has_no_time_left_ends_the_search_with_what_it_measured():
    class Short(Shared):
        def elsewhere(self, block, lane):
            return BlockResult(trials=[made([], block.number, run="there:/1")], out_of_time=True)

    work = begun(bench=Short(TABLE))
    with pytest.raises(OutOfTime):
        work._run_block([BASELINE, arm([A.setting])], "prune", 1, THERE)
    assert [one.run for one in work.study.trials] == ["there:/1"]


def test_a_pair_of_which_a_run_is_disturbed_ends_there_too():
    work, candidate = begun(bench=SimulatedBench(TABLE, void_runs=[1])), arm([A.setting])
    work.update(confirmed=work.comparison(candidate))
    assert isinstance(confirmation._Pairs(work, candidate).turn("candidate", HERE), Voided)
    assert [one.arm for one in work.study.trials] == [candidate.key]


def test_a_study_has_a_name_of_its_command_that_is_the_same_on_every_host():
    def asked(**fields):
        return sharing.asked_of(changed(study_of([]), **fields))

    usual = asked(command=["python", "train.py"])
    same = [
        {"cwd": "/elsewhere"},
        {"base": "/elsewhere"},
        {"lock": False},
        {"env": {"A": "1"}},
        {"warmup_steps": 7},
    ]
    assert {asked(command=["python", "train.py"], **fields) for fields in same} == {usual}
    other = [
        {"seed": 3},
        {"objective": "memory"},
        {"extra": ["env.A=1"]},
        {"margin": 0.2},
        {"command": ["x.py"]},
    ]
    assert usual not in {asked(**({"command": ["python", "train.py"]} | fields)) for fields in other}


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Runs what is simulated, in a folder that is marked as begun here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = spec(cwd=tmp_path, base=tmp_path)
    sharing.origin.mark(tmp_path, changed(study_of([A, B]), cwd=tmp_path))
    monkeypatch.setattr(sharing, "RealBench", Here)
    return sharing.Worker(run, [], tmp_path, Silent())


class Here(SimulatedBench):
    """Stands for the bench of this host."""

    def __init__(self, run, folder, journal, watcher, **more):
        super().__init__(TABLE)
        self.journal = journal

    def cautions(self):
        return ["careful"]


def test_a_worker_warms_what_needs_it_once_and_says_where_it_ran(worker):
    study = changed(
        study_of([replace(A, needs_warm_cache=True), replace(B, needs_warm_cache=False)]), cwd="/elsewhere"
    )
    asked = HostBlock(phase="prune", number=3, arms=[[A.setting], [], [B.setting]], repeats=2)
    first = worker.do(study, asked)
    second = worker.do(replace(study, trials=first.trials), replace(asked, number=4))
    ran = [(one.arm, one.phase, one.block) for one in first.trials]
    assert ran[:2] == [("", "pilot", 0), ("env.A=1", "pilot", 0)]
    assert ran[2:] == [("env.A=1", "prune", 3), ("", "prune", 3), ("env.B=1", "prune", 3)]
    assert [one.phase for one in second.trials] == ["prune"] * 3
    assert all(one.was_elsewhere and str(worker.folder) in one.run for one in first.trials)
    assert first.warnings[0].endswith(": careful") and not first.out_of_time


def test_a_worker_sets_only_what_its_user_typed_or_what_is_known_to_be_harmless(worker):
    evil = Setting("env.LD_PRELOAD", "/tmp/evil.so")
    block = HostBlock(phase="prune", number=1, arms=[[evil]], repeats=0)
    with pytest.raises(RecordError, match="settings that are not those of the study"):
        worker.do(study_of([A]), block)
    study = changed(study_of([replace(A, setting=evil)]), cwd="/elsewhere")
    with pytest.raises(UsageError, match="could run foreign code"):
        worker.do(study, block)
    # How the command is run is as it was typed here, whatever the database says.
    hostile = {
        "command": ["rm", "-r", "/"],
        "sandbox": False,
        "step_function": "evil:step",
        "ready_pattern": "(a*)*b",
    }
    found = worker.as_here(
        changed(study_of([A]), **hostile, settings=[evil], warmup_steps=3, window_steps=9)
    ).run
    assert found == replace(worker.run, warmup_steps=3, window_steps=9)


@pytest.mark.parametrize(
    "trials",
    [
        [made([], 2, run="there:/1")],  # of another block
        [replace(made([], 1, run="there:/1"), phase="confirm")],
        [made([B.setting], 1, run="there:/1")],
        [made([], 1, run="../../1")],
        [made([], 1, run="there:/1"), made([], 1, run="")],
        [replace(made([], 0, run="there:/1"), phase="pilot")],  # none of the block's
        [],
    ],
)
def test_a_result_that_is_not_of_the_block_is_no_result(trials):
    class Hostile(Shared):
        def elsewhere(self, block, lane):
            return BlockResult(trials=trials)

    work = begun(bench=Hostile(TABLE))
    with pytest.raises(RecordError, match="round 1: the result is not the one that was asked for"):
        work._run_block([BASELINE, arm([A.setting])], "prune", 1, THERE)
    assert work.study.trials == []


def test_an_arm_that_is_warm_on_another_host_alone_is_warmed_here():
    work = begun(made([A.setting], 1, run="gone:/1"), made([B.setting], 1))
    assert work.pilot(arm([A.setting])) is None and work.pilot(arm([B.setting])) is None
    assert [(one.arm, one.phase) for one in work.study.trials[2:]] == [("env.A=1", "pilot")]


def test_whoever_leads_on_has_what_its_leader_wrote_last(worker):
    study = replace(changed(study_of([A]), cwd=worker.run.cwd), name="s", run_s=1.0)

    class Left(Memory):
        def lead(self):
            self.known = [replace(study, trials=[made([], 1, run="gone:/1")])]
            return True

    worker.run, led = replace(worker.run, lock=False), []
    sharing.take_part(Left(study), study, worker, lambda found: led.append(found) or found)
    assert [one.run for one in led[0].trials] == ["gone:/1"]


def test_a_shared_study_goes_on_in_its_folder_unless_the_code_is_another(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text("step()")
    run = spec(cwd=tmp_path, base=tmp_path / "runs", command=[sys.executable, "train.py"])
    study = replace(study_of([]), run=run, facts=live.shared_facts(run))
    sharing.origin.mark(tmp_path, study)
    document.write(tmp_path / tune.FILE, study)
    monkeypatch.setattr(tune, "_sit", lambda run, folder, study, watcher: study)
    assert tune.resume(tmp_path, run, 1.0, Silent()).facts == study.facts
    (tmp_path / "train.py").write_text("other()")
    with pytest.raises(CannotRunHere, match=r"code\.sha256 differ"):
        tune.resume(tmp_path, run, 1.0, Silent())


def test_code_is_what_is_below_the_folder_and_in_the_command(tmp_path):
    folder, script = tmp_path / "project", tmp_path / "train.py"
    folder.mkdir()
    script.write_text("a")
    os.mkfifo(folder / "pipe.py")
    (folder / "gone.py").symlink_to("nowhere.py")

    def code():
        return live.shared_facts(spec(cwd=folder, command=["true", str(script)]))["code.sha256"]

    before = code()
    assert code() == before
    script.write_text("b")
    assert (changed_script := code()) != before
    (folder / "model.py").write_text("c")
    assert code() not in (before, changed_script)


class Memory:
    """A database that is a list of what is asked of it."""

    behind = False

    def __init__(self, *known, leads=(True,), blocks=()):
        self.known, self.leads, self.blocks, self.given = list(known), list(leads), list(blocks), []
        self.entered = self.saved = None

    def enter(self, study, asked, folder):
        self.entered = study

    def patiently(self, job):
        return job()

    def study(self, name):
        return replace(self.known.pop(0) if len(self.known) > 1 else self.known[0], facts=self.entered.facts)

    def lead(self):
        return self.leads.pop(0)

    def take(self):
        return ("id", self.blocks.pop(0)) if self.blocks else None

    def give(self, id_, result):
        self.given.append(result)
        return True

    def save(self, study, *, patiently):
        self.saved = study

    def wait(self):
        pass


def test_a_worker_runs_blocks_and_leads_on_when_the_leader_is_lost(worker):
    study = replace(changed(study_of([A]), cwd=worker.run.cwd, command=["train"]), name="s")
    trial = made([], 1, run="gone:/1")
    known = replace(study, run_s=1.0, trials=[trial])
    block = HostBlock(phase="prune", number=2, arms=[[A.setting], []], repeats=2)
    worker.run = replace(worker.run, lock=False)
    store = Memory(known, leads=[False, False, True], blocks=[block])
    led = []

    def lead(study):
        led.append(study)
        return replace(study, finished=True)

    found = sharing.take_part(store, study, worker, lead)
    assert [one.block for one in store.given[0].trials] == [0, 0, 2, 2]
    assert led[0].trials == [trial]
    assert found.finished and store.saved == found
    # Without a window yet, its pilots are where they ran.
    store = Memory(replace(study, trials=[trial]))
    sharing.take_part(store, study, worker, lead)
    assert led[1].trials == []


def test_a_study_that_is_finished_is_only_read(worker):
    study = changed(study_of([A]), cwd=worker.run.cwd)
    store = Memory(replace(study, finished=True), leads=[False])
    worker.run = replace(worker.run, lock=False)
    assert sharing.take_part(store, study, worker, pytest.fail).finished
    assert store.entered.name.startswith("train-")


def test_hosts_that_are_alone_have_the_whole_machine_and_threads_end(tmp_path):
    before = threading.active_count()
    searched(study_of([A, B]), Shared(TABLE))
    assert threading.active_count() == before
