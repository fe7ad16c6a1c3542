"""Blocks of starts from beginning to end, with no process started."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynotune.measure.bench.protocol import Interrupted
from dynotune.measure.comparison.stats import judge
from dynotune.measure.live.request import StartRequest
from dynotune.measure.startup import conclusions, starting
from dynotune.report import as_text, on_terminal
from dynotune.schema import document
from dynotune.schema.caches import Cache, Growth
from dynotune.schema.errors import CannotRunHere, CommandFailed, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.startup import CACHE_STATES, PHASES, Start, StartBlock, Startup

from ... import fakes
from ...fakes import spec

FACTS = {"host.cpu": "one", "host.num_cores": 2, "gpu.name": None, "gpu.count": 0, "torch.version": "2.13.0"}
WHOLE = {"cold": 20.0, "warm": 5.0, "off": 24.0}


class Starts:
    """Stands for `run_start`: seconds of each arm, 1% apart from run to run, and what each leaves in the
    caches."""

    def __init__(self, seconds=None) -> None:
        self.seconds = dict(seconds or WHOLE)
        self.instead = {}
        self.names = []
        self.cleared = []
        self.cuda_bytes = 3 << 20
        self.blocks_on_disk = []
        self.fills = 1

    def __call__(self, request, arm, *, places, clear, folder, purpose, **_):
        self.names.append(folder.name)
        self.cleared.append((folder.name, places.caches.name, clear))
        file = folder.parent / "startup.json"
        self.blocks_on_disk.append(len(document.read(file, Startup).blocks))
        if folder.name in self.instead:
            self.instead[folder.name]()
        value_s = self.seconds[arm] * (1 + 0.01 * ((len(self.names) * 7) % 5 - 2))
        run = fakes.run(name=f"{folder.parent.name}/{folder.name}", purpose=purpose, ended_by="window")
        outcome = fakes_outcome(run, folder)
        added = (
            [Growth(name="cuda", num_files=2, size_bytes=self.cuda_bytes)]
            if self._adds(arm, folder.name)
            else []
        )
        held = {"cuda": 0 if arm == "off" else self.cuda_bytes}
        known = dict.fromkeys(PHASES, 0.0) | {"first_step": value_s}
        return outcome, Start(arm=arm, run=run.id, value_s=value_s, phases=known, added=added, held=held)

    def _adds(self, arm, name):
        return arm == "cold" or (name.startswith("pilot-warm-") and int(name[-1]) < self.fills)


def fakes_outcome(run, folder):
    from dynotune.measure.live.outcome import Outcome

    return Outcome(run=run, folder=folder, launched_s=0.0, records=[fakes.record([0.1] * 5)])


class Watcher(fakes.Watcher):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = []

    def started(self, block, *, number, max_blocks):
        self.blocks.append((number, max_blocks))

    def voided_block(self, voided):
        self.void.append(voided.block)


@pytest.fixture
def starts(monkeypatch):
    made = Starts()
    monkeypatch.setattr(starting, "run_start", made)
    monkeypatch.setattr(starting, "facts_of", lambda request: FACTS)
    monkeypatch.setattr(starting.conclusions, "code_facts", lambda run: {})
    return made


@pytest.fixture
def request_(tmp_path):
    run = spec(
        command=["serve"], cwd=tmp_path, base=tmp_path / "runs", objective="time-to-first-step", lock=False
    )
    return StartRequest(run=run)


@given(st.integers(1, 40), st.integers(0, 2**32))
def test_of_any_two_arms_each_is_first_equally_often_and_longer_plans_begin_with_shorter_ones(num, seed):
    order = starting.orders(num, seed)
    assert all(sorted(block) == sorted(CACHE_STATES) for block in order)
    assert starting.orders(num + 3, seed)[:num] == order
    for one, other in itertools.combinations(CACHE_STATES, 2):
        ahead = [
            sum(1 if b.index(one) < b.index(other) else -1 for b in order[:n]) for n in range(1, num + 1)
        ]
        assert all(abs(lead) <= n % 2 for n, lead in enumerate(ahead, 1))


def test_every_order_of_arms_comes_up():
    assert len({starting.orders(1, seed)[0] for seed in range(60)}) == 6


def test_cold_and_off_are_judged_against_warm_and_all_is_on_disk(starts, request_):
    watcher = Watcher()
    found = starting.time_starts(request_, watcher)
    assert found.finished
    cold, off = found.ratios
    assert (cold.arm, cold.verdict, off.arm, off.verdict) == ("cold", "faster", "off", "faster")
    assert cold.ratio == pytest.approx(4.0, rel=0.02)
    assert cold.ci[0] < 4.0 < cold.ci[1]
    assert cold.saved_ci[0] < cold.saved_s < cold.saved_ci[1]
    assert cold.saved_s == pytest.approx(15.0, rel=0.02)
    # Each block was on disk when the next one began.
    assert sorted(set(starts.blocks_on_disk)) == list(range(len(found.blocks)))
    assert document.read(next(request_.run.base.glob("*/startup.json")), Startup) == found
    assert watcher.blocks[-1] == (len(found.blocks), 12)


def test_the_warm_caches_are_filled_by_a_cold_start_and_kept_and_the_others_emptied_each_time(
    starts, request_
):
    starting.time_starts(request_, Watcher())
    assert starts.cleared[:3] == [
        ("pilot-cold", "warm", True), ("pilot-warm-1", "warm", False), ("pilot-off", "off", True)
    ]  # fmt: skip
    for name, place, clear in starts.cleared[3:]:
        arm = name.partition("-")[2]
        assert (place, clear) == (arm, arm != "warm")


def test_starts_go_on_until_one_adds_nothing_and_one_that_never_does_is_said(starts, request_):
    starts.fills = 3
    found = starting.time_starts(request_, Watcher())
    assert starts.names[:5] == ["pilot-cold", "pilot-warm-1", "pilot-warm-2", "pilot-warm-3", "pilot-off"]
    assert not any("entirely warm" in text for text in found.warnings)
    starts.fills, starts.names = 9, []
    found = starting.time_starts(request_, Watcher())
    assert starts.names[3:5] == ["pilot-warm-3", "pilot-off"]
    assert any("no start is entirely warm" in text for text in found.warnings)


def test_caches_that_change_nothing_are_called_the_same(starts, request_):
    starts.seconds = dict.fromkeys(CACHE_STATES, 5.0)
    starts.cuda_bytes = 0
    found = starting.time_starts(request_, Watcher())
    assert [ratio.verdict for ratio in found.ratios] == ["same", "same"]
    assert any("saves nothing" in text for text in found.said)


def test_a_block_disturbed_from_outside_is_kept_and_repeated_in_its_own_order(starts, request_, monkeypatch):
    original = starts.__call__

    def disturbed(request, arm, *, folder, **more):
        outcome, start = original(request, arm, folder=folder, **more)
        if folder.name == "002-warm":
            outcome = fakes.disturbed(outcome)
        return outcome, start

    monkeypatch.setattr(starting, "run_start", disturbed)
    watcher = Watcher()
    found = starting.time_starts(request_, watcher)
    assert watcher.void == [2]
    (voided,) = found.voided
    assert "another process computes on GPU 0" in voided.reason
    order = starting.orders(12, 0)
    assert [start.arm for start in voided.values.starts] == list(order[1])
    assert [[start.arm for start in block.starts] for block in found.blocks] == list(map(list, order))[
        : len(found.blocks)
    ]


def test_an_interrupted_one_goes_on_after_its_last_finished_block(starts, request_):
    starts.instead["003-off"] = stop
    with pytest.raises(Interrupted) as stopped:
        starting.time_starts(request_, Watcher())
    assert len(document.read(stopped.value.folder / starting.FILE, Startup).blocks) == 2
    starts.instead.clear()
    starts.names.clear()
    found = starting.resume(
        stopped.value.folder, replace(request_.run, command=[], ready_pattern="never"), Watcher()
    )
    assert (found.finished, found.run.command, found.run.ready_pattern) == (True, ["serve"], None)
    assert next(name for name in starts.names if not name.startswith("pilot")).startswith("003-")
    starts.names.clear()
    assert starting.resume(stopped.value.folder, request_.run, Watcher()) == found
    assert starts.names == []


def stop():
    raise KeyboardInterrupt


def test_startup_is_not_resumed_on_another_machine(starts, request_, monkeypatch):
    starts.instead["002-off"] = stop
    with pytest.raises(Interrupted) as stopped:
        starting.time_starts(request_, Watcher())
    monkeypatch.setattr(starting, "facts_of", lambda request: FACTS | {"host.cpu": "another"})
    with pytest.raises(CannotRunHere, match=r"begun elsewhere: host\.cpu differ"):
        starting.resume(stopped.value.folder, request_.run, Watcher())


def test_startup_starts_nothing_again_when_it_is_resumed_after_its_last_start(starts, request_, monkeypatch):
    with monkeypatch.context() as interrupted:
        interrupted.setattr(starting._StartBench, "_conclude", lambda bench: stop())
        with pytest.raises(Interrupted) as stopped:
            starting.time_starts(replace(request_, max_blocks=0), Watcher())
    measured = document.read(stopped.value.folder / starting.FILE, Startup).pilots
    num = len(starts.names)
    found = starting.resume(stopped.value.folder, request_.run, Watcher())
    assert (found.pilots, found.finished, len(starts.names)) == (measured, True, num)


def test_a_command_that_fails_later_leaves_what_was_measured(starts, request_):
    def fail():
        raise CommandFailed("The command failed.", hint="", command_exit_code=3)

    starts.instead["002-cold"] = fail
    with pytest.raises(CommandFailed) as error:
        starting.time_starts(request_, Watcher())
    assert "finished blocks are kept in" in error.value.hint
    assert len(document.read(next(request_.run.base.glob("*/startup.json")), Startup).blocks) == 1


def test_a_budget_that_affords_no_answer_is_refused_with_one_that_does(starts, request_):
    with pytest.raises(UsageError, match="needs 3 blocks") as error:
        starting.time_starts(replace(request_, budget_s=60.0), Watcher())
    assert "--budget" in error.value.hint
    watcher = Watcher()
    assert starting.time_starts(replace(request_, budget_s=500.0), watcher).max_blocks == 10
    assert any("enough for 10 of 12" in text for text in watcher.said)


def test_temporary_folders_go_and_the_warm_caches_stay(starts, request_, tmp_path):
    (tmp_path / "temporary").mkdir()
    request = replace(request_, run=replace(request_.run, env={"TMPDIR": str(tmp_path / "temporary")}))

    def write():
        for arm in ("cold", "warm", "off"):
            (Path(found_folder()) / "caches" / arm).mkdir(parents=True, exist_ok=True)

    def found_folder():
        return next(request.run.base.glob("*"))

    starts.instead["pilot-off"] = write
    found = starting.time_starts(request, Watcher())
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [path.name for path in (found_folder() / "caches").iterdir()] == ["warm"]
    assert found.warm_caches == str(found_folder() / "caches" / "warm")


# What follows from it


def block(cold, warm, off, added):
    def start(arm, value_s):
        known = dict.fromkeys(PHASES, 0.0) | {"first_step": value_s}
        return Start(arm=arm, run=arm, value_s=value_s, phases=known, **added.get(arm, {}))

    return StartBlock([start("cold", cold), start("warm", warm), start("off", off)])


CUDA = Cache(
    name="cuda", path="/root/.nv/ComputeCache", variable="CUDA_CACHE_PATH", limit_bytes=Unknown("not set")
)
ADDED = {"added": [Growth(name="cuda", num_files=2, size_bytes=3 << 20)], "held": {"cuda": 3 << 20}}
FACTS_OF_GPU = {
    "gpu.count": 1,
    "torch.runs_natively": True,
    "torch.cuda": "13.0",
    "gpu.compute_capability": "9.0",
}


def concluded(own=CUDA, env=None, facts=FACTS_OF_GPU, **added):
    added = added or {"cold": ADDED, "warm": {"held": {"cuda": 3 << 20}}}
    blocks = [block(2.1 + 0.01 * number, 0.35, 2.8, added) for number in range(4)]
    startup = Startup(id="s", run=spec(), blocks=blocks, own=[own], max_blocks=4)
    variables = {f"env.{name}": value for name, value in (env or {}).items()}
    startup = replace(
        startup,
        facts=facts | dict.fromkeys(("env.CUDA_CACHE_MAXSIZE", "env.CUDA_CACHE_DISABLE")) | variables,
        ratios=[
            starting.ratio(blocks, arm, judge(starting.pairs_of(fair(blocks), arm), margin=0.05, max_pairs=4))
            for arm in ("cold", "off")
        ],
    )
    return replace(startup, **conclusions.conclusions(startup))


def fair(blocks):
    return [StartBlock(b.starts if n % 2 else b.starts[::-1]) for n, b in enumerate(blocks)]


def test_starts_tell_a_drivers_compiling_by_difference_and_judge_its_cache():
    found = concluded()
    text = "\n".join(found.said)
    assert "A warm cache saves 1.7" in text
    assert "leaves 3 MiB in CUDA ComputeCache; a warm one adds nothing" in text
    assert "about 1.7" in text.partition("compiling and loading")[2]
    assert "Every driver's own limit keeps 3 MiB" in text
    assert "ptx-jit-active" in {finding.id for finding in found.findings}
    assert found.to_set == {}


def test_seconds_are_not_laid_to_the_driver_for_a_few_bytes():
    few = {"added": [replace(ADDED["added"][0], size_bytes=17_000)]}
    found = concluded(cold=few, warm={"held": {"cuda": 17_000}})
    text = "\n".join(found.said)
    assert "leaves 16.6 KiB in CUDA ComputeCache" in text
    assert "compiling and loading" not in text
    (jit,) = (finding for finding in found.findings if finding.id == "ptx-jit-active")
    assert jit.severity == "low"


def test_the_empty_kernel_of_cudnn_is_no_finding():
    few = {"added": [replace(ADDED["added"][0], size_bytes=3956)]}
    found = concluded(cold=few, warm={"held": {"cuda": 3956}})
    assert "leaves 3.86 KiB in CUDA ComputeCache" in "\n".join(found.said)
    assert "ptx-jit-active" not in {finding.id for finding in found.findings}


def test_a_cache_that_goes_with_the_container_is_to_be_put_elsewhere():
    found = concluded(replace(CUDA, lasts=False, storage="it lies in the container's own layer"))
    assert {finding.id for finding in found.findings} >= {"ptx-jit-active", "jit-cache-not-persistent"}
    (setting,) = found.to_set
    assert setting.startswith("CUDA_CACHE_PATH=/path/on/a/volume")


def test_of_a_cache_without_a_place_or_that_cannot_be_written_it_is_said_why_another_is_to_be_set():
    nowhere = replace(CUDA, path=Unknown("HOME is not set"), lasts=Unknown("HOME is not set"))
    (why,) = concluded(nowhere).to_set.values()
    assert why.endswith(": HOME is not set")
    (why,) = concluded(replace(CUDA, writable=False, lasts=True, storage="it lies on a disk")).to_set.values()
    assert why.endswith(": /root/.nv/ComputeCache cannot be written")


def test_headers_that_are_compiled_first_do_not_come_along_with_the_cache_of_inductor():
    inductor = replace(CUDA, name="inductor", path="/tmp/i", lasts=False, storage="it lies in /tmp")
    left = [Growth(name=name, num_files=2, size_bytes=9, num_removed=0) for name in ("inductor", "headers")]
    found = concluded(inductor, cold={"added": left}).to_set
    assert [name.partition("=")[0] for name in found] == [
        "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
    ]  # fmt: skip
    assert len(concluded(inductor, cold={"added": left[:1]}).to_set) == 1


def test_starts_say_so_when_none_left_anything_in_a_cache():
    said = "No start left anything in these caches: a cold one is like a warm one."
    assert said in concluded(cold={}).said
    assert said not in concluded().said


def test_a_limit_that_is_too_small_is_said_also_where_nothing_was_kept():
    small = replace(CUDA, limit_bytes=1000)
    carries = FACTS_OF_GPU | {
        "torch.runs_natively": Unknown("no torch"), "torch.cuda": Unknown("no torch"),
        "code.num_compiled": 1, "code.ptx_bytes": 1 << 20, "code.compiled": ["jit"],
    }  # fmt: skip
    found = concluded(small, {"CUDA_CACHE_MAXSIZE": "1000"}, carries, cold={"held": {"cuda": 0}})
    assert any("the driver kept nothing" in text for text in found.said)
    assert {finding.id for finding in found.findings} >= {"ptx-jit-active", "jit-cache-too-small"}
    assert "CUDA_CACHE_MAXSIZE=4294967296" in found.to_set
    nearly_full = concluded(replace(CUDA, limit_bytes=5 << 20))
    assert any("too small for 3 MiB" in text for text in nearly_full.said)
    assert any("large enough" in text for text in concluded(replace(CUDA, limit_bytes=1 << 30)).said)


def test_nothing_is_said_of_the_drivers_limit_where_there_is_no_gpu():
    found = concluded(
        replace(CUDA, limit_bytes=1000), {"CUDA_CACHE_MAXSIZE": "1000"}, {"gpu.count": 0}, cold={}
    )
    assert not any("driver" in text for text in found.said)
    assert found.to_set == {}


def test_a_warm_start_that_compiles_again_has_too_small_a_cache():
    found = concluded(cold=ADDED, warm=ADDED)
    assert any("a warm one adds 3 MiB again" in text for text in found.said)
    assert "jit-cache-too-small" in {finding.id for finding in found.findings}


# One start each


def test_starts_are_one_cold_and_one_warm_when_no_blocks_are_asked_for(starts, request_):
    watcher = Watcher()
    found = starting.time_starts(replace(request_, max_blocks=0), watcher)
    assert found.finished and [pilot.arm for pilot in found.pilots] == ["cold", "warm"]
    assert not found.blocks and not found.ratios
    assert (
        watcher.said[0].startswith("Two starts of the command") and "The cold start took" in watcher.said[1]
    )
    assert found.said[0].startswith("A cold start took") and "--blocks 4" in found.said[0]
    text = as_text(on_terminal(found))
    assert "caches cold" in text and "off" not in text.splitlines()[3]


def test_starts_are_judged_against_a_kept_record_when_one_is_given(starts, request_):
    before = starting.time_starts(request_, Watcher())
    found = starting.time_starts(replace(request_, against=before), Watcher())
    assert [change.arm for change in found.changes] == ["cold", "warm"]
    assert {change.verdict for change in found.changes} <= {"same", "undecided"}


def test_starts_are_judged_against_the_kept_record_when_they_were_resumed(starts, request_):
    before = starting.time_starts(request_, Watcher())

    def stop():
        raise KeyboardInterrupt

    starts.instead["001-cold"] = stop
    with pytest.raises(Interrupted) as stopped:
        starting.time_starts(replace(request_, against=before), Watcher())
    starts.instead.clear()
    found = starting.resume(stopped.value.folder, request_.run, Watcher())
    assert [change.arm for change in found.changes] == ["cold", "warm"]
    assert found.against.id == before.id


def test_starts_are_refused_before_any_when_the_kept_record_is_of_another_command(starts, request_):
    before = starting.time_starts(request_, Watcher())
    other = replace(before, run=replace(before.run, command=["another"]))
    num = len(starts.names)
    with pytest.raises(UsageError, match="another command: another"):
        starting.time_starts(replace(request_, against=other), Watcher())
    assert len(starts.names) == num


def test_starts_end_with_the_pilots_when_none_leaves_anything_in_a_cache(starts, request_):
    starts._adds = lambda arm, name: False
    startup = starting.time_starts(replace(request_, max_blocks=4), Watcher())
    assert starts.names == ["pilot-cold", "pilot-warm-1"]
    assert startup.finished and not startup.blocks and not startup.ratios
    assert "Caches do not matter here." in " ".join(as_text(on_terminal(startup)).split())


def test_starts_go_on_without_caches_when_they_are_judged_against_a_kept_record(starts, request_):
    starts._adds = lambda arm, name: False
    before = starting.time_starts(replace(request_, max_blocks=0), Watcher())
    starting.time_starts(replace(request_, max_blocks=4, against=before), Watcher())
    assert any(name.endswith("-off") for name in starts.names)
