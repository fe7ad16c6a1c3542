"""How low a real program's precision can go: results are its own, the times are made up."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dynotune import knobs
from dynotune.measure.checks import guard, lowest_precision
from dynotune.measure.live.outcome import Outcome
from dynotune.report import on_terminal
from dynotune.schema import document
from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.facts import Unknown
from dynotune.schema.precision import Band, Change, Precision, PrecisionArm
from dynotune.schema.run import LIMIT_S
from dynotune.schema.study import Guarded

from ...fakes import Watcher, spec

PROGRAM = """
import gc
gc.disable()
import torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
with torch.no_grad():
    for _ in range(40):
        net(torch.randn(8, 32))
"""
METRIC = """
def largest(output, x):
    assert x.shape == (8, 32)
    return output.amax(-1)
def broken(output, x):
    raise ValueError("no labels")
"""
BF16 = knobs.parse("precision.autocast=bf16")


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, ...], Outcome]:
    """Real runs by all that decides what they compute."""
    return {}


@pytest.fixture
def run_settings(outcomes, monkeypatch):
    """`run_settings` for which tests that ask for the same results share the run."""
    real = guard.run_settings

    def run_once(run, settings, *, results, **more):
        program = (run.cwd / "infer.py").read_text()
        asked = program, *map(str, settings), str(run.seed), msgspec.json.encode(results).decode()
        if asked not in outcomes:
            outcomes[asked] = real(run, settings, results=results, **more)
        return outcomes[asked]

    monkeypatch.setattr(guard, "run_settings", run_once)
    return run_once


@pytest.fixture
def ask(run_settings, tmp_path: Path, monkeypatch):
    (tmp_path / "infer.py").write_text(PROGRAM)
    (tmp_path / "scores.py").write_text(METRIC)
    monkeypatch.setattr(lowest_precision, "ARMS", {"bf16": "precision.autocast=bf16"})
    monkeypatch.setattr(lowest_precision, "QUANTIZED", {})
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "infer.py"]
    run = spec(
        command=command, cwd=tmp_path, env=env, base=tmp_path / "runs", seed=0, lock=False, sandbox=False
    )

    def compare(request, watcher, live):
        assert request.in_process == "auto"
        return Comparison(
            id="made-up",
            run=run.recorded,
            candidate_settings=request.candidate,
            verdict="faster",
            speedup=1.9,
        )

    monkeypatch.setattr(lowest_precision.protocol, "compare", compare)

    def ask(*, timeout_s=None, **more):
        return lowest_precision.boundary(msgspec.structs.replace(run, timeout_s=timeout_s), Watcher(), **more)

    return ask


def test_a_precision_is_judged_by_speed_errors_and_the_users_own_metric(ask):
    found, folder = ask(metric="scores:largest")
    (arm,) = found.arms
    assert (found.own, arm.name, arm.speed.speedup) == ("float32", "bf16", 1.9)
    assert arm.results.reference == "float64"
    assert arm.results.ok
    assert not arm.results.no_worse
    assert 1e-4 < arm.results.difference < 1e-1
    assert arm.results.error_ci[0] < arm.results.difference < arm.results.error_ci[1]
    assert arm.metric.num_samples == 24 * 8
    assert arm.metric.ci[0] < arm.metric.mean < arm.metric.ci[1]
    assert document.read(folder / lowest_precision.FILE, Precision) == found


def test_precisions_with_right_results_share_one_live_run_and_the_time(ask, monkeypatch):
    words = {"bf16": "precision.autocast=bf16", "fp16": "precision.autocast=fp16"}
    monkeypatch.setattr(lowest_precision, "ARMS", words)
    asked, compare = [], lowest_precision.protocol.compare

    def noted(request, watcher, live):
        asked.append((str(request.candidate[0]), live, request.budget_s))
        return compare(request, watcher, live)

    monkeypatch.setattr(lowest_precision.protocol, "compare", noted)
    found, _ = ask(budget_s=100.0)
    assert all(arm.results.ok and arm.speed.verdict == "faster" for arm in found.arms)
    assert [setting for setting, _, _ in asked] == [*words.values()]
    assert asked[0][1] is asked[1][1]
    assert asked[0][2] == 50.0
    assert 50.0 < asked[1][2] <= 100.0


def test_a_baseline_that_computes_no_numbers_is_said(ask, tmp_path):
    (tmp_path / "infer.py").write_text(
        PROGRAM.replace("torch.randn(8, 32)", "torch.full((8, 32), float('nan'))")
    )
    (arm,) = ask()[0].arms
    assert (arm.results, arm.is_worth_it) == (None, False)
    assert arm.reasons == ["none of the baseline's outputs is a finite number"]


def test_a_metric_that_raises_ends_it_with_its_own_words(ask):
    with pytest.raises(CommandFailed, match="ValueError: no labels"):
        ask(metric="scores:broken")


def test_a_precision_that_cannot_be_tried_has_a_reason_and_the_others_go_on(ask, monkeypatch):
    def refuse(request, watcher, live):
        raise CannotRunHere("its steps are too few")

    monkeypatch.setattr(lowest_precision.protocol, "compare", refuse)
    (arm,) = ask()[0].arms
    assert arm.speed is None
    assert arm.results.ok
    assert arm.reasons == ["its steps are too few"]


def test_a_precision_many_times_as_slow_as_the_command_is_not_waited_for(ask, tmp_path, monkeypatch):
    stuck = (
        "net[0].register_forward_hook(lambda *_: time.sleep(600) if torch.is_autocast_enabled('cpu') "
        "else None)\n"
    )
    (tmp_path / "infer.py").write_text(PROGRAM.replace("with torch", "import time\n" + stuck + "with torch"))
    monkeypatch.setattr(lowest_precision, "PATIENCE", (0.0, 3.0))
    (arm,) = ask()[0].arms
    assert (arm.speed, arm.results) == (None, None)
    assert re.search("took longer than|made no step that dynotune can see in", arm.reasons[0]), arm.reasons


def test_the_patience_is_for_precisions_and_not_for_the_references(ask, run_settings, monkeypatch):
    limits = {}

    def noted(run, settings, *, limit_s, folder, **more):
        limits[folder.name] = limit_s
        return run_settings(run, settings, limit_s=limit_s, folder=folder, **more)

    monkeypatch.setattr(guard, "run_settings", noted)
    ask()
    assert {name for name, limit_s in limits.items() if limit_s < LIMIT_S} == {"bf16"}
    assert limits["guard-float64"] == LIMIT_S


# Rounds weights in place of torchao; a layer with a number beyond all others loses the rest, as in 8 bits.
TORCHAO = """
import torch
class Int8WeightOnlyConfig:
    pass
def quantize_(model, config, filter_fn):
    for name, layer in model.named_modules():
        if filter_fn(layer, name):
            step = layer.weight.abs().max() / 127
            layer.weight = torch.nn.Parameter((layer.weight / step).round() * step)
"""
OUTLIER = (
    "with torch.no_grad():\n    net[2].weight[0, 0] = 1e3\n    net[0].weight[0] = net[0].bias[0] = 0.0\n"
)


@pytest.fixture
def quantized(ask, tmp_path, monkeypatch):
    """`ask` of int8 weights alone, with that torchao."""
    folder = tmp_path / "torchao"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "quantization.py").write_text(TORCHAO)
    monkeypatch.setattr(lowest_precision.knobs, "check_applies", lambda setting, facts: None)
    monkeypatch.setattr(lowest_precision, "ARMS", {})
    monkeypatch.setattr(lowest_precision, "QUANTIZED", {"int8-weights": "precision.quantize=int8-weights"})
    return ask


def test_a_module_that_does_not_stand_8_bits_is_kept_and_the_others_are_not(quantized, tmp_path):
    (tmp_path / "infer.py").write_text(
        PROGRAM.replace("with torch.no_grad", OUTLIER + "with torch.no_grad", 1)
    )
    (arm,) = quantized()[0].arms
    assert [str(setting) for setting in arm.settings] == [
        "precision.quantize=int8-weights",
        "precision.quantize_keep=2",
    ]
    assert arm.results.ok
    assert "without 2" in told(arm)


def test_quantization_of_a_model_that_stands_it_keeps_no_module(quantized):
    (arm,) = quantized()[0].arms
    assert len(arm.settings) == 1
    assert arm.results.ok
    assert not arm.results.no_worse


TRAINING = """
import gc
gc.disable()
import torch
torch.set_num_threads(1)
net = torch.nn.Linear(32, 1)
for _ in range(40):
    x = torch.randn(8, 32)
    loss = (net(x) - x[:, :1]).square().mean()
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for weight in net.parameters():
            weight -= 0.01 * weight.grad
"""


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(7200.0, 7200.0), (None, LIMIT_S)])
def test_the_shared_run_may_take_as_long_as_any_run_of_the_command(ask, monkeypatch, timeout_s, limit_s):
    limits = []

    class Noted(lowest_precision.Live):
        def __init__(self, *given, limit_s):
            limits.append(limit_s)
            super().__init__(*given, limit_s=limit_s)

    monkeypatch.setattr(lowest_precision, "Live", Noted)
    ask(timeout_s=timeout_s)
    assert limits == [limit_s]


@pytest.mark.parametrize(("budget_s", "num_seeds"), [(600.0, 3), (1e-9, None)])
def test_seeds_are_run_if_they_fit_into_a_precisions_part_of_the_time(ask, tmp_path, budget_s, num_seeds):
    (tmp_path / "infer.py").write_text(TRAINING)
    (bf16,) = ask(budget_s=budget_s)[0].arms
    assert (bf16.band and bf16.band.num_seeds) == num_seeds


def test_training_is_quantized_by_nobody_and_its_curves_are_paired_over_seeds(ask, tmp_path, monkeypatch):
    (tmp_path / "infer.py").write_text(TRAINING)
    monkeypatch.setattr(lowest_precision, "QUANTIZED", {"int8": "precision.quantize=int8"})
    monkeypatch.setattr(lowest_precision.knobs, "check_applies", lambda setting, facts: None)
    bf16, int8 = ask()[0].arms
    assert (bf16.band.num_seeds, bf16.band.is_within) == (3, True)
    assert bf16.band.baseline[0] < bf16.band.baseline[1]
    assert "within the band of 3 seeds" in told(bf16)
    assert (int8.speed, int8.results) == (None, None)
    assert "torchao's quantization is for inference" in int8.reasons[0]


# Its weights are fitted, and a rate that is too high throws them off: rounding alone turns it elsewhere. No
# float64.
RESIDUAL = """
import os
import torch
from torch.nn import functional as F
torch.set_num_threads(1)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.m, self.n = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8)
    def forward(self, x):
        assert x.dtype != torch.float64
        return F.relu(x + self.n(self.b(F.relu(self.m(self.a(x))))))
parts = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 8)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), *(Block() for _ in range(3)), *parts)
data = torch.Generator().manual_seed(1)
pool = [(torch.randn(8, 3, 8, 8, generator=data), torch.randint(8, (8,), generator=data)) for _ in range(8)]
is_fitted = os.path.exists("fitted.pt")
if is_fitted:
    net.load_state_dict(torch.load("fitted.pt"))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01 if is_fitted else 2e-3)
for step in range(40 if is_fitted else 300):
    x, y = pool[step % 8]
    loss = F.cross_entropy(net(x).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if not is_fitted:
    torch.save(net.state_dict(), "fitted.pt")
"""


@pytest.mark.long
def test_a_training_that_rounding_turns_elsewhere_is_held_against_itself_and_not_against_a_fixed_tolerance(
    ask, tmp_path
):
    (tmp_path / "infer.py").write_text(RESIDUAL)
    subprocess.run([sys.executable, "infer.py"], cwd=tmp_path, check=True)
    found, folder = ask()
    (arm,) = found.arms
    assert (folder / "guard-baseline-again").is_dir()
    assert (folder / "bf16-nudged").is_dir()
    assert (arm.results.ok, arm.results.reference) == (True, ""), arm.results
    assert "rounding errors in its weights alone explain" in arm.results.reason
    assert "results within what rounding makes of them" in told(arm)


def test_precision_is_worth_it_only_within_the_band_of_seeds_when_rounding_alone_moves_results():
    arm = msgspec.structs.replace(arm_of(), results=None)
    assert not arm.is_worth_it
    for mean, is_worth_it in ((1.5, True), (2.5, False)):
        assert msgspec.structs.replace(arm, band=Band(3, (1.0, 2.0), mean)).is_worth_it is is_worth_it


def test_seeds_that_change_nothing_give_no_band():
    same = [[guard.Reading(what="losses", losses=[1.0] * 24)]] * 3
    other = [[guard.Reading(what="losses", losses=[value] * 24)] for value in (1.0, 2.0, 3.0)]
    assert lowest_precision.band(same, other) is None
    assert not lowest_precision.band(other, [[guard.Reading(what="losses", losses=[4.0] * 24)]] * 3).is_within
    for unknown in ([None], []):
        assert lowest_precision.band(other, [[guard.Reading(what="losses", losses=unknown)]] * 3) is None


def test_precisions_that_cannot_be_tried_for_one_reason_share_a_line():
    arms = [
        PrecisionArm(name=name, settings=[BF16], reasons=["torchao is not installed."])
        for name in ("int8", "fp8")
    ]
    assert "int8, fp8: torchao is not installed." in told(*arms)


def test_a_metric_is_paired_over_samples():
    found = lowest_precision.changed([1.0, 2.0, 3.0], [1.1, 2.1, 3.4])
    assert found.mean == pytest.approx(0.2)
    assert found.ci[0] < 0.2 < found.ci[1]
    assert "no pairs" in lowest_precision.changed([1.0, 2.0], [1.0]).reason
    assert lowest_precision.changed([], []) == Unknown("")


# In words


def arm_of(**results) -> PrecisionArm:
    judged = {"arm": str(BF16), "what": "outputs", "difference": 2e-3, "own": 1e-3, "tolerance": 4e-3}
    judged |= {"num_values": 24, "ok": True, "reference": "float64", "baseline_error": 1e-6}
    speed = Comparison(
        id="a", run=spec(), candidate_settings=[BF16], verdict="faster", speedup=1.9, ci=(1.8, 2.0)
    )
    return PrecisionArm(name="bf16", settings=[BF16], speed=speed, results=Guarded(**(judged | results)))


def told(*arms: PrecisionArm) -> str:
    screen = io.StringIO()
    Console(width=300, file=screen).print(
        on_terminal(Precision(command=["train"], own="float32", arms=list(arms)))
    )
    return screen.getvalue()


def test_the_boundary_is_said_in_words():
    assert "errors 2,000× larger, as expected of bf16" in told(arm_of())
    assert "Worth it here: precision.autocast=bf16. --metric shows whether your task" in told(arm_of())
    assert "errors no larger, as expected of bf16" in told(arm_of(difference=4e-7, baseline_error=5e-7))
    assert "results no worse" in told(arm_of(no_worse=True))
    wrong = told(arm_of(ok=False, reason="Outputs lie 18% from float64, from module head on."))
    assert "do not use it here: Outputs lie 18% from float64, from module head on." in wrong
    assert "No other precision is worth it here." in wrong


def test_precision_that_may_be_faster_is_named_with_the_line_that_decides_it():
    arm = arm_of()
    pairs = [Pair("baseline", 1.2, 1.0), Pair("candidate", 1.1, 1.0), Pair("baseline", 0.9, 1.0)]
    speed = msgspec.structs.replace(
        arm.speed, verdict="undecided", speedup=1.1, ci=(0.9, 1.3), pairs=pairs, num_pairs=3
    )
    text = told(msgspec.structs.replace(arm, speed=speed))
    assert "bf16 may be faster (2 of 3 pairs were): more pairs decide it." in text
    assert "dynotune compare precision.autocast=bf16 --pairs 48 -- train" in text


def test_a_loss_of_the_metric_that_is_proved_makes_it_not_worth_it():
    arm = arm_of()
    for ci, is_worth_it in (((-1.6, -0.8), False), ((-0.1, 0.2), True)):
        changed = msgspec.structs.replace(arm, metric=Change(sum(ci) / 2, ci, 500))
        assert changed.is_worth_it is is_worth_it
        assert "over 500 samples" in told(changed)


def test_without_a_reference_no_error_is_shown():
    assert "errors unknown" in told(arm_of(reference=""))
    assert "results within fixed tolerances" in told(arm_of(reference=""))
