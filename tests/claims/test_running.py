"""One claim tested: real checks in real processes, comparisons as `measure` makes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynotune.claims import named, run, running
from dynotune.measure.comparison import judge
from dynotune.schema import document
from dynotune.schema.claims import Claim, TwoArms
from dynotune.schema.comparison import PRECISION, Comparison, Pair
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.run import RunSpec

from .. import fakes


@pytest.fixture
def spec(tmp_path) -> RunSpec:
    return RunSpec(command=[sys.executable], cwd=tmp_path, base=tmp_path, seed=0)


def checked(spec, check, **fields):
    fields = {"id": "one", "says": "So it is.", "kind": "api", "read": "true", "source": "nobody"} | fields
    return run(Claim(check=check, **fields), spec, fakes.Watcher())


@pytest.mark.parametrize(
    ("id_", "expected"),
    [
        ("jit-cache-4-gb", "holds"),
        ("map-of-256-mb", "refuted"),
        ("transposed-strides", "holds"),
        ("accumulation-is-a-larger-batch", "refuted"),
        ("hand-made-pool", "refuted"),
        ("workers-use-cores", "holds"),
        ("tensorflow-autotune", "refuted"),
        ("measure-each-setting", "not testable here"),
    ],
)
def test_a_check_runs_and_is_judged(spec, id_, expected):
    evidence = run(named([id_])[0], spec, fakes.Watcher())
    assert evidence.verdict == expected, evidence
    assert len(evidence.program) == 64


def test_a_check_that_fails_is_said(spec):
    evidence = checked(spec, "1 / 0")
    assert (evidence.verdict, evidence.seen) == ("failed", "ZeroDivisionError: division by zero")


def test_a_check_that_ends_the_process_is_said(spec):
    assert checked(spec, "os._exit(0)").verdict == "failed"
    assert checked(spec, "print('{') or os._exit(3)").verdict == "failed"


def test_a_check_without_end_is_stopped(spec, monkeypatch):
    monkeypatch.setattr(running, "CHECK_S", 1.0)
    assert checked(spec, "[0 for _ in iter(int, 1)]").seen == "it did not end within 1 s"


def test_an_interpreter_that_is_not_there_is_said(tmp_path):
    spec = RunSpec(command=["/nowhere/python"], cwd=tmp_path, base=tmp_path)
    assert checked(spec, "True").verdict == "failed"


def test_a_package_that_is_not_there_makes_it_untestable(spec):
    evidence = checked(spec, "has('no_such_package.Thing')")
    assert (evidence.verdict, evidence.seen) == ("not testable here", "no_such_package is not installed")


def test_without_a_gpu_what_needs_one_is_not_tested(spec):
    hidden = RunSpec(command=spec.command, cwd=spec.cwd, base=spec.base, env={"CUDA_VISIBLE_DEVICES": ""})
    for id_ in ("benchmark-takes-fastest", "cublas-variable-for-repeatable-results"):
        evidence = run(named([id_])[0], hidden, fakes.Watcher())
        assert (evidence.verdict, evidence.seen) == (
            "not testable here",
            "there is no GPU that torch can use",
        )


def test_a_claim_is_compared_again_only_where_it_was_so(spec, monkeypatch):
    told = []

    def compare(request, watcher):
        told.append(request)
        fate = fates[len(told) - 1]
        return fakes.of_run(
            Comparison,
            id="c",
            candidate_settings=request.candidate,
            verdict=fate,
            command=request.run.command,
        )

    monkeypatch.setattr(running.protocol, "compare", compare)
    arms = TwoArms(settings=["env.NOTHING=1"], fair=["dense"], elsewhere=["small"])
    fates = ["same"]
    assert checked(spec, "", compare=arms).verdict == "no effect here"
    assert len(told) == 1
    told.clear()
    fates = ["faster", "faster", "same"]
    evidence = checked(spec, "", compare=arms)
    assert evidence.verdict == "holds here"
    assert [Path(word).name for request in told for word in request.run.command[1:]] == [
        *("program.py", "dense"),
        *("program.py", "dense"),
        *("program.py", "small"),
    ]
    assert "dense: faster" in evidence.seen
    assert str(spec.base) not in document.encode(evidence).decode(), "a bundle is for others"
    budgets = [request.budget_s for request in told]
    assert budgets[0] <= running.COMPARISONS_S / 2, "the first leaves time for the others"
    assert max(budgets) <= running.COMPARISONS_S


def test_pairs_of_a_claim_end_once_the_verdict_is_shown():
    firsts, candidates = ["baseline", "candidate"] * 2, [0.5, 0.6, 0.55, 0.65]
    pairs = [Pair(first, 1.0, value) for first, value in zip(firsts, candidates, strict=True)]
    told = {"margin": running.MARGIN, "max_pairs": running.MOST_PAIRS}
    assert judge(pairs, **told, precision=running.PRECISION).verdict == "faster"
    assert judge(pairs, **told, precision=PRECISION).verdict is None, "its interval is wide still"


def test_a_comparison_that_cannot_be_made_is_said(spec, monkeypatch):
    def compare(request, watcher):
        raise CannotRunHere("No steps were found.")

    monkeypatch.setattr(running.protocol, "compare", compare)
    evidence = checked(spec, "", compare=TwoArms(settings=["env.NOTHING=1"], fair=["dense"]))
    assert (evidence.verdict, evidence.seen) == ("failed", "No steps were found.")


NOTHING = [
    (["env.NOTHING_READS_THIS=1"], [], "small"),
    (["arg.way=likewise"], ["arg.way=plain"], "dense"),
    (["env.NOR_THIS=:4096:8"], ["env.NOR_THIS=:16:8"], "pointwise"),
    (["env.NOR_THIS_EITHER=0"], [], "attention"),
    (["arg.way=vector-too"], ["arg.way=vector"], "rows"),
    # Both arms are the default; the first is set in the running process, the others by a start of their own.
    (["matmul.fp32_precision=highest"], [], "dense"),
    (["determinism.algorithms=false"], [], "conv"),
    (["loader.persistent_workers=false"], [], "draw"),
    (["loader.num_workers=0"], [], "load"),
    (["loader.in_order=true"], [], "small-loaded"),
]


@pytest.mark.long
@pytest.mark.timeout(900)  # others may hold the machine's lock
@pytest.mark.parametrize(("settings", "baseline", "workload"), NOTHING)
def test_claim_never_holds_when_its_setting_does_nothing(spec, settings, baseline, workload):
    arms = TwoArms(settings=settings, baseline=baseline, fair=[workload])
    evidence = checked(spec, "", compare=arms)
    assert evidence.verdict in ("no effect here", "undecided", "refuted"), evidence.seen


def test_claim_does_not_hold_after_a_few_runs_when_its_setting_does_nothing(spec, monkeypatch):
    monkeypatch.setattr(running, "COMPARISONS_S", 60.0)
    settings, baseline, workload = NOTHING[0]
    evidence = checked(spec, "", compare=TwoArms(settings=settings, baseline=baseline, fair=[workload]))
    assert evidence.verdict in ("no effect here", "undecided", "refuted"), evidence.seen
