"""Which runs a guard makes, and what it says of them. Runs are made up, but for the last one."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import dynotune.measure.checks.guard as guarding
from dynotune import knobs
from dynotune.measure.checks.guard import NUM_VALUES, Guard, Own, Reading, compared, readings
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.errors import CannotRunHere, CommandFailed, RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Readback

from ...fakes import process, record, run, spec, take

FALLING = [2.3 * 0.97**at for at in range(NUM_VALUES)]
BF16 = [knobs.parse("precision.autocast=bf16")]


def losses(values, **more) -> list[Reading]:
    return [Reading(what="losses", losses=list(values), **more)]


def own(values=FALLING, again=None, **more) -> Own:
    return Own(first=losses(values), again=losses(again or values), **more)


class Runs:
    """Stands for `run_settings`: each run says the losses that its folder's name is given.

    Of a program that computes in float64 if `exact` is given, its losses then; else of one that fails in it.
    """

    def __init__(self) -> None:
        self.losses: dict[str, list[float | None]] = {}
        self.draws: list[str] = []
        self.names: list[str] = []
        self.asked = []
        self.readback: list[Readback] = []
        self.exact: list[float | None] = []
        self.memory: dict[str, int] = {}
        self.meet = lambda name: None

    def __call__(self, run_of, settings, *, label, folder, purpose, results, enough, **more) -> Outcome:
        assert purpose == "results"
        if results.reference and not self.exact:
            raise CommandFailed("expected Float but found Double", command_exit_code=1)
        self.names.append(folder.name)
        self.meet(folder.name)
        arm = "baseline" if settings == run_of.settings else "candidate"
        self.asked.append((arm, list(map(str, settings)), results))
        one = record([0.1] * 30)
        assert not enough([one])
        values = self.exact if results.reference else self.losses.get(folder.name, FALLING)
        take(one, {"event": "results", "what": "losses", "values": values, "draws": self.draws})
        assert enough([one])
        made = run(process(**self.memory), readback=self.readback, purpose="results")
        return Outcome(run=made, folder=folder, launched_s=0.0, records=[one])


@pytest.fixture
def runs(monkeypatch):
    runs = Runs()
    monkeypatch.setattr(guarding, "run_settings", runs)
    return runs


@pytest.fixture
def ask(runs, tmp_path):
    runs_of = Guard(spec(cwd=tmp_path, base=tmp_path), tmp_path, {})

    def ask(*settings, own=None, **more):
        ask.known = own or runs_of.baseline()
        return runs_of.compare([knobs.parse(text) for text in settings], ask.known, **more)

    return ask


# Which runs


def test_an_arm_that_rounding_explains_takes_one_run_of_the_baseline_and_its_own(ask, runs):
    runs.draws = ["cuda"]
    found = ask("precision.autocast=bf16")
    assert runs.names == ["guard-baseline", "guard"]
    assert [arm for arm, _, _ in runs.asked] == ["baseline", "candidate"]
    assert found.ok
    assert (found.what, found.difference, found.num_values) == ("losses", 0.0, NUM_VALUES)
    assert found.own is None


def test_an_arm_that_lies_further_off_is_held_against_a_second_run_of_the_baseline(ask, runs):
    runs.losses["guard"] = [value * (0.94 if at % 2 else 1.06) for at, value in enumerate(FALLING)]
    runs.losses["guard-baseline-again"] = [
        value * (1.08 if at % 2 else 0.92) for at, value in enumerate(FALLING)
    ]
    found = ask("precision.autocast=bf16")
    assert runs.names == ["guard-baseline", "guard", "guard-baseline-again"]
    assert found.ok
    assert found.own == pytest.approx(0.08, rel=0.02)


def test_guard_reuses_the_nudged_baseline_when_later_arms_need_it(runs, ask, tmp_path):
    known = Guard(spec(cwd=tmp_path, base=tmp_path), tmp_path, {}).baseline()
    runs.losses["guard"] = [value * 1.5 for value in FALLING]
    assert not ask("precision.autocast=bf16", own=known).ok
    runs.names.clear()
    assert not ask("precision.autocast=bf16", own=known).ok
    assert runs.names == ["guard", "guard-nudged"]


def test_a_program_whose_modules_draw_runs_once_more_with_other_random_numbers(ask, runs):
    runs.draws = ["cuda"]
    runs.losses["guard-baseline-redrawn"] = [
        value * (1.08 if at % 2 else 0.92) for at, value in enumerate(FALLING)
    ]
    runs.losses["guard"] = [value * (0.94 if at % 2 else 1.06) for at, value in enumerate(FALLING)]
    found = ask("precision.autocast=bf16")
    assert runs.names[3] == "guard-baseline-redrawn"
    assert runs.asked[3][2].other_draws == ["cuda"]
    assert found.ok
    # A setting that draws as before may not hide behind that.
    runs.losses["guard-nudged"] = FALLING
    assert not ask("matmul.fp32_precision=high").ok


def test_settings_that_change_the_meaning_stay_out_of_guarded_runs(ask, runs):
    found = ask("precision.autocast=bf16", "loader.num_workers=2", "env.A=1")
    assert runs.asked[-1][1] == ["precision.autocast=bf16"]
    assert found.arm == "env.A=1 loader.num_workers=2 precision.autocast=bf16"
    runs.names.clear()
    assert isinstance(ask("loader.num_workers=2", own=own()), Unknown)
    assert runs.names == []


def test_guard_reuses_the_baseline_when_later_arms_are_checked(runs, ask, tmp_path):
    known = Guard(spec(cwd=tmp_path, base=tmp_path), tmp_path, {}).baseline()
    runs.names.clear()
    assert ask("layout.channels_last=true", own=known, name="guard-1").ok
    assert runs.names == ["guard-1"]


def test_guard_gives_the_arm_the_baselines_settings_too(runs, tmp_path):
    against = [knobs.parse(text) for text in ("optimizer.fused=true", "loader.num_workers=2")]
    request = spec(settings=against, cwd=tmp_path, base=tmp_path)
    arm_of = [knobs.parse("precision.autocast=bf16"), knobs.parse("optimizer.fused=false")]
    runs_of = Guard(request, tmp_path, {})
    assert runs_of.compare(arm_of, runs_of.baseline()).ok
    (first, base, _), (second, both, _) = runs.asked[:2]
    assert (first, base) == ("baseline", ["optimizer.fused=true", "loader.num_workers=2"])
    assert (second, both) == (
        "candidate", ["optimizer.fused=false", "loader.num_workers=2", "precision.autocast=bf16"],
    )  # fmt: skip


def test_an_arm_that_drifts_is_held_against_the_baseline_with_nudged_weights(ask, runs):
    runs.losses["guard"] = [value * (1.0 if at < 6 else 1.3) for at, value in enumerate(FALLING)]
    assert not ask("precision.autocast=bf16").ok
    assert runs.names[-1] == "guard-nudged"
    assert runs.asked[-1][0] == "baseline"
    assert runs.asked[-1][2].nudge == pytest.approx(2**-9)
    runs.losses["guard-nudged"] = [value * (1.0 if at < 6 else 0.9) for at, value in enumerate(FALLING)]
    found = ask("precision.autocast=bf16")
    assert found.ok
    assert "rounding errors in its weights alone" in found.reason


def test_a_setting_that_did_not_take_effect_is_not_guarded(ask, runs):
    runs.readback = [Readback("precision.autocast", "bf16", "off", "autocast", False)]
    with pytest.raises(CannotRunHere, match="did not take effect"):
        ask("precision.autocast=bf16", own=own())


# Side by side


@pytest.fixture
def on_a_gpu(runs, monkeypatch):
    """A program that uses one GPU of 80 GiB, on a machine of 16 cores."""
    facts = {"gpu.count": 1, "gpu.memory_bytes": 80 << 30, "gpu.memory_used_bytes": 0}
    monkeypatch.setattr(guarding.lanes.probe.gpu, "facts", lambda env: facts)
    monkeypatch.setattr(
        guarding.lanes.probe.host, "usable_cpus", lambda: sorted(os.sched_getaffinity(0)) * 16
    )
    monkeypatch.setattr(guarding.lanes.probe.host_memory, "available_bytes", lambda: 128 << 30)
    runs.exact = FALLING
    runs.memory = {"peak_device_bytes": 1 << 30, "peak_rss_bytes": 3 << 30}
    return facts


def test_guard_runs_arm_and_references_at_once_after_the_baseline_when_there_is_room(ask, runs, on_a_gpu):
    together = threading.Barrier(3)
    runs.meet = lambda name: name == "guard-baseline" or together.wait(60)
    assert ask("precision.autocast=bf16").reference == "float64"
    assert runs.names[0] == "guard-baseline"
    assert sorted(runs.names[1:]) == ["guard", "guard-float64", "guard-rounded-2e-03"]
    # Of another arm that rounds alike all but its own run is there.
    assert ask.known.reference
    runs.names.clear()
    runs.meet = lambda name: None
    assert ask("precision.autocast=bf16", own=ask.known).ok
    assert runs.names == ["guard"]


@pytest.mark.parametrize(
    "change",
    [{"gpu.memory_used_bytes": 75 << 30}, {"gpu.memory_used_bytes": Unknown("refused")}],
)
def test_guard_runs_one_after_another_when_there_is_no_room_or_none_is_known(ask, runs, on_a_gpu, change):
    on_a_gpu.update(change)
    ask("precision.autocast=bf16")
    assert runs.names == ["guard-baseline", "guard", "guard-float64", "guard-rounded-2e-03"]


def test_a_run_that_fails_beside_others_is_made_again_alone(ask, runs, on_a_gpu):
    def fail_once(name):
        if name == "guard-float64" and runs.names.count(name) == 1:
            raise CommandFailed("out of memory", command_exit_code=1)

    runs.meet = fail_once
    assert ask("precision.autocast=bf16").reference == "float64"
    assert runs.names[-1] == "guard-float64"
    assert sorted(runs.names).count("guard-float64") == 2


def test_a_program_that_writes_files_for_real_or_has_several_gpus_never_runs_beside_itself(on_a_gpu):
    def room(num_devices=1, peak=1 << 30, **fields):
        one = process(num_devices=num_devices, peak_device_bytes=peak, peak_rss_bytes=3 << 30)
        outcome = Outcome(
            run=run(one, **fields), folder=Path("/runs/a"), launched_s=0.0, records=[record([0.1])]
        )
        return guarding.lanes.room(spec(), outcome)

    assert room() == room(changed_files=["a.pt"], sandbox="overlay") == 6
    assert room(changed_files=["a.pt"]) == room(num_devices=2) == room(peak=None) == 1
    assert room(peak=20 << 30) == 1


# What it says


def test_losses_that_stop_being_numbers_are_wrong_whatever_the_program_does_to_itself():
    wild = [value * (1 + 0.5 * (-1) ** at) for at, value in enumerate(FALLING)]
    found = compared(BF16, own(again=wild), losses([*FALLING[:20], None, None, None, None]))
    assert not found.ok
    assert found.num_not_finite == 4 and found.where == "value 21"
    assert "become NaN or infinite at call 21 of backward (step 21" in found.reason


def test_losses_that_are_no_numbers_in_the_baseline_either_say_nothing():
    nothing = [None] * NUM_VALUES
    assert isinstance(compared(BF16, own(nothing), losses(nothing)), Unknown)


def test_a_program_that_is_far_from_itself_is_told_apart_from_a_wrong_result():
    again = [value * (1 + 0.3 * (-1) ** (at // 3)) for at, value in enumerate(FALLING)]
    arm = [value * (1 - 0.2 * (-1) ** (at // 3)) for at, value in enumerate(FALLING)]
    assert "runs of the program itself" in compared(BF16, own(again=again), losses(arm)).reason
    assert not compared(BF16, own(), losses(arm)).ok


@pytest.mark.parametrize("share", [0.15, 0.3, 0.4])
def test_a_training_that_rounding_alone_turns_far_away_vouches_for_no_arm(share):
    nudged = losses(value * (1 - share * (-1) ** at) for at, value in enumerate(FALLING))
    doubled = losses(value * (1 + 3 * share) for value in FALLING)
    found = compared(BF16, own(), doubled, nudged)
    assert isinstance(found, Unknown)
    assert "rounding errors alone move its losses" in found.reason


def test_the_worst_rank_counts():
    good, bad = losses(FALLING), losses([value * 1.5 for value in FALLING])
    ranks = Own(first=good * 2, again=good * 2)
    assert compared(BF16, ranks, good + good).ok
    assert not compared(BF16, ranks, good + bad).ok
    assert "1" in compared(BF16, ranks, good).reason


def test_a_run_that_trains_and_one_that_does_not_are_not_compared():
    outputs = [Reading(what="outputs", outputs=[[]])]
    assert "trains" in compared(BF16, own(), outputs).reason


def test_the_programs_own_precision_widens_what_is_allowed():
    arm = losses([value * 1.015 for value in FALLING])
    layout = [knobs.parse("layout.channels_last=true")]
    assert not compared(layout, own(), arm).ok
    half = losses(FALLING, precision="bfloat16")
    assert compared(layout, Own(first=half, again=half), arm).ok


# What processes say


def test_a_process_that_says_nothing_leaves_it_unknown():
    silent = record([0.1] * 3)
    take(silent, {"event": "error", "where": "results", "error": "device lost"})
    assert "device lost" in readings([silent]).reason
    assert isinstance(readings([]), Unknown)
    empty = record([0.1] * 3)
    take(empty, {"event": "results", "what": "losses", "values": [], "num_captured": 3})
    assert "CUDA graphs" in readings([empty]).reason


@pytest.mark.parametrize("values", [["many"], [1.0, []]])
def test_guard_refuses_values_as_a_damaged_record_when_the_agent_would_not_write_them(values):
    damaged = take(record([0.1] * 3), {"event": "results", "what": "losses", "values": values})
    with pytest.raises(RecordError, match="damaged"):
        readings([damaged])


# A real one: a module that takes its elements from memory in the order in which they lie there.

STRIDES = """
import torch
torch.set_num_threads(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(256, 4)
    def forward(self, x):
        y = self.a(x)
        return self.b(torch.as_strided(y, (2, 256), (256, 1)) if STRIDED else y.flatten(1))
net = Net().requires_grad_(False)
for _ in range(100):
    net(torch.randn(2, 3, 8, 8))
"""


@pytest.mark.long
@pytest.mark.parametrize("strided", [True, False])
def test_a_layout_that_the_program_does_not_stand_is_found_by_its_outputs(tmp_path: Path, strided):
    (tmp_path / "runs").mkdir()
    (tmp_path / "infer.py").write_text(STRIDES.replace("STRIDED", str(strided)))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "infer.py"]
    request = spec(command=command, cwd=tmp_path, env=env, base=tmp_path, seed=0, lock=False, sandbox=False)
    runs_of = Guard(request, tmp_path / "runs", {}, 120.0)
    once = runs_of.computed("once", num_values=8, still=False)
    layout = [knobs.parse("layout.channels_last=true")]
    found = runs_of.compare(layout, Own(first=once, again=once))
    assert found.ok is not strided, found
    assert found.what == "outputs"
    assert found.num_values == 8


# Against a reference


def errors_of(share: float, *, first: float = 1.0) -> list[float]:
    """Losses that lie `share` from `FALLING`, now above and now below it; the first value `first` times as
    far."""
    return [value * (1 + share * (-1) ** at * (first if not at else 1.0)) for at, value in enumerate(FALLING)]


def test_with_a_reference_an_arm_is_judged_by_what_rounding_explains_and_by_no_fixed_tolerance(ask, runs):
    runs.exact = FALLING
    runs.losses = {
        "guard-baseline": errors_of(1e-6),
        "guard-rounded-2e-03": errors_of(2e-3),
        "guard": errors_of(3e-3),
    }
    found = ask("precision.autocast=bf16")
    assert runs.names == ["guard-baseline", "guard", "guard-float64", "guard-rounded-2e-03"]
    assert (found.ok, found.reference) == (True, "float64")
    assert found.difference == pytest.approx(3e-3, rel=0.01)
    assert found.own == pytest.approx(2e-3, rel=0.01)
    assert "no worse" in found.reason
    # Ten times what its bits explain, and yet within what a fixed tolerance lets pass.
    runs.losses["guard"] = errors_of(1.9e-2)
    found = ask("precision.autocast=bf16")
    assert not found.ok
    assert found.ratio == pytest.approx(9.5, rel=0.01)
    assert "worse by 9.5 times" in found.reason


def test_no_training_is_called_wrong_by_one_draw_of_roundings_alone(ask, runs):
    runs.exact = FALLING
    # Errors that wander over several orders of magnitude, as those of a training do that rounding turns
    # elsewhere.
    wild = [value * (1 + 1e-3 * 30.0 ** (at % 3 - 1)) for at, value in enumerate(FALLING)]
    runs.losses = {"guard-rounded-2e-03": errors_of(1e-3), "guard-rounded--2e-03": wild, "guard": wild}
    known = ask("precision.autocast=bf16")
    assert (known.ok, known.reference) == (True, "float64")
    assert runs.names[-1] == "guard-rounded--2e-03"
    assert runs.asked[-1][2].nudge == -(2**-9)
    assert known.ratio < 2


def test_a_program_that_does_not_compute_in_float64_is_judged_by_fixed_tolerances_and_that_is_said(ask, runs):
    found = ask("precision.autocast=bf16")
    assert (found.ok, found.reference) == (True, "")
    assert "expected Float but found Double" in found.reason


def test_a_program_whose_modules_draw_has_no_reference(ask, runs):
    runs.exact, runs.draws = FALLING, ["cpu"]
    found = ask("precision.autocast=bf16")
    assert found.reference == ""
    assert "draw random numbers" in found.reason


def test_values_that_are_missing_are_wrong(runs, ask):
    runs.exact = runs.losses["guard-rounded-1e-06"] = FALLING
    runs.losses["guard"] = FALLING[:-1]
    found = ask("layout.channels_last=true")
    assert not found.ok
    assert "1 of the losses" in found.reason


def test_the_first_module_that_departs_is_named():
    def reading(*errors: float) -> list[Reading]:
        parts = [
            (
                name,
                [
                    {
                        "shape": [2],
                        "sum": 2.0,
                        "magnitudes": 2.0,
                        "root": 2**0.5,
                        "sampled": [1 + error, 1 - error],
                    }
                ],
            )
            for name, error in zip(("first", "attention", "last"), errors, strict=True)
        ]
        fields = {"what": "outputs", "outputs": [part for _, part in parts[-1:]] * 4, "parts": parts}
        return [msgspec.convert(fields, Reading)]

    known = Own(
        first=reading(1e-7, 1e-7, 1e-7), reference=reading(0, 0, 0), rounded={1e-6: reading(1e-6, 1e-6, 1e-6)}
    )
    found = compared([knobs.parse("layout.channels_last=true")], known, reading(1e-6, 0.1, 0.1))
    assert (found.ok, found.module) == (False, "attention")
    assert compared([knobs.parse("layout.channels_last=true")], known, reading(1e-6, 1e-6, 2e-6)).ok
