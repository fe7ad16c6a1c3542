"""What is offered to be tried, of which findings and facts, and how much it can save at most."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.schema.attribution import Shares
from dynotune.schema.diagnosis import Diagnosis, Finding, UpperBound
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader
from dynotune.schema.model import Model, Optimizer
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.setting import UNSET, Setting
from dynotune.search import asked, values
from dynotune.search.bounds import worth_trying
from dynotune.search.candidates import Machine, candidates, refuse_unfit
from dynotune.search.values import has, present
from lab.search.studies import study_of

GPU = {"host.num_cores": 16, "gpu.count": 1, "gpu.compute_capability": "9.0", "torch.cuda": "13.0"}
CPU = {"host.num_cores": 8, "gpu.count": 0, "torch.cuda": None}


def finding(id_, *settings, share=0.4, **fields):
    return Finding(id=id_, severity="high", claim="", share=share, candidates=list(settings), **fields)


def diagnosis(*findings, ceilings=None, **shares):
    parts = dict.fromkeys(("input", "transfer", "host", "device", "communication", "other"), 0.0) | shares
    return Diagnosis(
        command=["train"],
        verdict="",
        bottleneck="input",
        shares=Shares(**parts),
        findings=list(findings),
        unknown=[],
        steps=Unknown("the test does not say"),
        upper_bounds=ceilings or Unknown("not asked for"),
    )


def offer(
    *findings, facts=GPU, has=None, objective="throughput", ceilings=None, shares=None, words=None, **machine
):
    found = diagnosis(*findings, ceilings=ceilings, **(shares or {"input": 0.4}))
    machine = Machine(facts=facts, present=has or {}, **machine)
    return candidates(found, machine, asked.parse(**(words or {})), objective=objective)


def names(found):
    return {candidate.id for candidate in found}


def alone(found):
    """Names of those that mean something by themselves."""
    return {candidate.id for candidate in found if not candidate.needs}


WORKERS = Setting("loader.num_workers", 4)
STARVED = finding("num-workers-zero", WORKERS, Setting("loader.num_workers", 8), share=0.6)
BF16 = Setting("precision.autocast", "bf16")
TF32 = finding("fp32-matmul-no-tf32", Setting("matmul.fp32_precision", "high"))
BLOCKING = finding("h2d-blocking", Setting("transfer.non_blocking", True))


# What findings name


def test_an_input_bound_program_is_offered_workers_and_no_tf32():
    found, not_offered = offer(
        STARVED, words={"allow": ["numerics", "semantics"]}, has={"loader.num_workers": 0}
    )
    assert {candidate.setting.knob for candidate in found if not candidate.needs} == {"loader.num_workers"}
    assert all(candidate.setting.knob.startswith("loader.") for candidate in found)
    assert not_offered == []


def test_settings_that_may_change_results_are_not_offered_without_leave():
    found, not_offered = offer(STARVED, TF32, BLOCKING, words={"exact": True})
    assert not names(found) & {"matmul.fp32_precision=high", "transfer.non_blocking=true"}
    reasons = {str(row.setting): row.reason for row in not_offered}
    assert "--exact" in reasons["matmul.fp32_precision=high"]
    assert "--allow semantics" in reasons["transfer.non_blocking=true"]
    assert [row.why for row in not_offered] == [["fp32-matmul-no-tf32"], ["h2d-blocking"]]


EFFECTS = {
    "matmul.fp32_precision": "numerics",
    "transfer.non_blocking": "semantics",
    "loader.pin_memory": "exact",
}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("allow", [[], ["numerics"], ["semantics"], ["numerics", "semantics"]])
@pytest.mark.parametrize("extra", [None, *EFFECTS])
@pytest.mark.parametrize("exclude", [None, *EFFECTS])
def test_allow_try_and_exclude_decide_together(exact, allow, extra, exclude):
    findings = (TF32, BLOCKING, finding("h2d-pageable", Setting("loader.pin_memory", True)))
    words = {
        "exact": exact,
        "allow": allow,
        "extra": [extra] if extra else [],
        "exclude": [exclude] if exclude else [],
    }
    if extra is not None and extra == exclude:
        with pytest.raises(UsageError, match="to be left out"):
            offer(*findings, words=words)
        return
    found, not_offered = offer(*findings, words=words, has={"matmul.fp32_precision": "highest"})
    allowed = {"exact", *allow} | ({"numerics"} if not exact else set())
    wanted = {knob for knob, effect in EFFECTS.items() if effect in allowed or knob == extra} - {exclude}
    assert {candidate.setting.knob for candidate in found} == wanted
    assert {row.setting.knob for row in not_offered} == set(EFFECTS) - wanted


def test_settings_that_the_program_has_already_are_no_candidates():
    env = {"CUDA_LAUNCH_BLOCKING": "1"}
    settings = [Setting("env.CUDA_LAUNCH_BLOCKING", UNSET), Setting("env.NVIDIA_TF32_OVERRIDE", UNSET)]
    words = {"allow": ["semantics"], "extra": ["loader.num_workers=4"]}
    found, not_offered = offer(
        finding("launch-blocking", *settings), env=env, words=words, has={"loader.num_workers": 4}
    )
    assert names(found) == {"env.CUDA_LAUNCH_BLOCKING=@unset"}
    assert {row.reason for row in not_offered} == {"the program has it already"}


@pytest.mark.parametrize(("kind", "objective"), [("memory", "memory"), ("start", "time-to-first-step")])
def test_a_finding_serves_the_objective_that_it_is_about(kind, objective):
    about = finding("some", Setting("alloc.expandable_segments", True), kind=kind)
    found, not_offered = offer(about)
    assert found == [] and objective.split("-")[0] in not_offered[0].reason.replace("the time to", "time to")
    found, _ = offer(about, objective=objective)
    assert names(found) == {"alloc.expandable_segments=true"}
    assert isinstance(found[0].bound, Unknown)


def test_settings_that_cannot_work_on_this_machine_are_not_offered_and_say_why():
    _, not_offered = offer(finding("h2d-pageable", Setting("loader.pin_memory", True)), facts=CPU)
    assert "without CUDA" in not_offered[0].reason
    refused = {"alloc.expandable_segments": "it is set twice"}
    _, not_offered = offer(
        finding("memory-segments", Setting("alloc.expandable_segments", True)),
        refused=lambda setting: refused.get(setting.knob, ""),
    )
    assert not_offered[0].reason == "it is set twice"


def test_worker_settings_are_not_offered_when_a_loader_gets_no_workers():
    settings = Setting("loader.persistent_workers", True), Setting("loader.prefetch_factor", 4)
    found, not_offered = offer(finding("persistent-workers", *settings), has={"loader.num_workers": 0})
    assert found == [] and len(not_offered) == 2
    assert all("--try loader.num_workers" in row.reason for row in not_offered)
    found, _ = offer(finding("persistent-workers", *settings), has={"loader.num_workers": 2})
    assert len(found) == 2 and not any(candidate.needs for candidate in found)


def test_tf32_needs_graphs_when_the_finding_of_launches_alone_names_it() -> None:
    launches = finding(
        "launch-bound", Setting("matmul.fp32_precision", "high"), Setting("compile.mode", "reduce-overhead")
    )
    found, _ = offer(launches)
    needs = {candidate.setting.knob: candidate.needs for candidate in found}
    assert needs["matmul.fp32_precision"] == ["compile.mode=reduce-overhead", "compile.mode=default"]
    assert needs["compile.mode"] == []
    (tf32,) = [one for one in found if one.setting.knob == "matmul.fp32_precision"]
    assert isinstance(tf32.bound, Unknown), "launches hide how much of the device's work it saves"
    both, _ = offer(launches, finding("fp32-matmul-no-tf32", Setting("matmul.fp32_precision", "high")))
    assert all(candidate.needs == [] for candidate in both)
    found, not_offered = offer(finding("launch-bound", Setting("matmul.fp32_precision", "high")))
    assert found == [] and "waits for launches" in not_offered[0].reason


def test_a_loader_without_workers_is_offered_what_means_something_only_beside_them():
    found, _ = offer(STARVED, has={"loader.num_workers": 0})
    workers = [candidate.id for candidate in found if candidate.setting.knob == "loader.num_workers"]
    beside = {candidate.id: candidate for candidate in found if candidate.needs}
    assert set(beside) == {"loader.prefetch_factor=4", "loader.persistent_workers=true"}
    for candidate in beside.values():
        assert sorted(candidate.needs) == sorted(workers)
        assert candidate.why == ["num-workers-zero"] and candidate.bound == pytest.approx(0.4)


@pytest.mark.parametrize("excluded", ["loader.prefetch_factor", "loader.num_workers"])
def test_excluded_settings_are_not_offered_and_nothing_beside_excluded_workers(excluded):
    found, not_offered = offer(STARVED, has={"loader.num_workers": 0}, words={"exclude": [excluded]})
    knobs = {candidate.setting.knob for candidate in found}
    assert excluded not in knobs
    assert ("loader.persistent_workers" in knobs) == (excluded != "loader.num_workers")
    assert excluded in {row.setting.knob for row in not_offered}


def test_of_a_knob_one_value_may_be_left_out_and_the_others_are_tried():
    words = {"exclude": ["loader.num_workers=4", "loader.prefetch_factor=4"]}
    found, not_offered = offer(STARVED, has={"loader.num_workers": 0}, words=words)
    assert names(found) == {
        *(f"loader.num_workers={num}" for num in (2, 8, 16)),
        "loader.persistent_workers=true",
    }
    assert {str(row.setting): (row.reason, row.why) for row in not_offered} == {
        id_: ("left out by --exclude", ["num-workers-zero"]) for id_ in words["exclude"]
    }


def test_a_value_of_a_variable_may_be_left_out():
    again = finding("launch-blocking", Setting("env.CUDA_LAUNCH_BLOCKING", UNSET), Setting("env.A", "b=c"))
    words = {"allow": ["semantics"], "exclude": ["env.CUDA_LAUNCH_BLOCKING=@unset", "env.A=b"]}
    found, not_offered = offer(again, env={"CUDA_LAUNCH_BLOCKING": "1"}, words=words)
    assert names(found) == {"env.A=b=c"}
    assert [str(row.setting) for row in not_offered] == ["env.CUDA_LAUNCH_BLOCKING=@unset"]
    found, _ = offer(again, words={**words, "exclude": ["env.A=b=c"]})
    assert "env.A=b=c" not in names(found)


def test_a_knob_is_tried_at_some_values_without_those_that_are_left_out():
    words = {"extra": ["loader.num_workers"], "exclude": ["loader.num_workers=8", "loader.num_workers=13"]}
    found, not_offered = offer(has={"loader.num_workers": 4}, words=words)
    assert names(found) == {"loader.num_workers=2", "loader.num_workers=16"}
    assert {str(row.setting): row.reason for row in not_offered} == {
        "loader.num_workers=8": "left out by --exclude"
    }
    named = finding("loader-bound", Setting("loader.num_workers", 8))
    found, not_offered = offer(named, has={"loader.num_workers": 4}, words=words)
    assert names(found) == {"loader.num_workers=2", "loader.num_workers=16"}
    assert [row.why for row in not_offered] == [["loader-bound"]]


def test_other_values_of_a_knob_may_be_named_beside_one_that_is_left_out():
    words = {"extra": ["loader.num_workers=4"], "values": ["loader.num_workers=2,8"]}
    found = asked.parse(**words, exclude=[" loader.num_workers = 13", "env.A=x"])
    assert found.excluded == {Setting("loader.num_workers", 13), Setting("env.A", "x")}
    assert not found.excluded_knobs


def test_a_prefetch_factor_of_the_users_own_is_tried_beside_workers_only():
    space = ["loader.prefetch_factor=3,8", "loader.num_workers=2"]
    words = {"values": space, "extra": ["loader.persistent_workers=false"]}
    found, _ = offer(has={"loader.num_workers": 0}, words=words)
    needs = {candidate.id: candidate.needs for candidate in found}
    assert needs == {
        "loader.num_workers=2": [],
        "loader.persistent_workers=false": [],
        "loader.prefetch_factor=3": ["loader.num_workers=2"],
        "loader.prefetch_factor=8": ["loader.num_workers=2"],
    }
    found, not_offered = offer(has={"loader.num_workers": 0}, words={"extra": ["loader.prefetch_factor=3"]})
    assert found == [] and "it needs loader workers" in not_offered[0].reason


def test_two_findings_of_one_setting_make_one_candidate_with_both_reasons():
    again = finding("loader-bound", WORKERS, share=0.1)
    found, _ = offer(STARVED, again, has={"loader.num_workers": 0}, shares={"input": 0.9})
    (four,) = [candidate for candidate in found if candidate.setting == WORKERS]
    assert four.why == ["num-workers-zero", "loader-bound"]
    assert four.bound == pytest.approx(0.7)


# Values


@given(
    cores=st.integers(1, 256),
    ranks=st.integers(1, 16),
    now=st.integers(0, 32),
    named=st.lists(st.integers(1, 64), min_size=1, max_size=2),
)
def test_no_neighbour_goes_beyond_the_cores_of_a_rank_and_what_the_finding_names(cores, ranks, now, named):
    facts = {"host.num_cores": cores}
    found, _ = offer(
        finding("loader-bound", *(Setting("loader.num_workers", num) for num in named)),
        facts=facts, has={"loader.num_workers": now}, num_ranks=ranks,
    )  # fmt: skip
    workers = [candidate.setting.value for candidate in found if not candidate.needs]
    assert all(num <= max(1, cores // ranks, *named) and num != now for num in workers)
    assert len(workers) == len(set(workers)) <= max(values.MOST_VALUES, len(set(named)))
    assert {num for num in named if num != now} <= set(workers)


def test_workers_are_tried_around_what_the_finding_names():
    found, _ = offer(STARVED, has={"loader.num_workers": 0})
    assert alone(found) == {f"loader.num_workers={num}" for num in (2, 4, 8, 16)}
    found, _ = offer(STARVED, facts=GPU | {"host.num_cores": 6}, has={"loader.num_workers": 0})
    assert alone(found) == {f"loader.num_workers={num}" for num in (2, 4, 8)}


def test_fewer_workers_are_tried_as_the_finding_names_them():
    too_many = finding(
        "num-workers-too-many", Setting("loader.num_workers", 8), Setting("loader.num_workers", 4)
    )
    found, _ = offer(too_many, has={"loader.num_workers": 32})
    assert names(found) == {"loader.num_workers=8", "loader.num_workers=4"}


def test_without_known_cores_the_findings_values_stand():
    facts = {"host.num_cores": Unknown("no quota can be read")}
    found, _ = offer(STARVED, facts=facts, has={"loader.num_workers": 0})
    assert alone(found) == {"loader.num_workers=4", "loader.num_workers=8"}


def test_named_settings_are_asked_for_whether_a_finding_names_them_or_not():
    found, _ = offer(TF32, words={"extra": ["matmul.fp32_precision=high", "cudnn.benchmark"]})
    assert {one.id: (one.asked, one.why) for one in found} == {
        "matmul.fp32_precision=high": (True, ["fp32-matmul-no-tf32"]),
        "cudnn.benchmark=true": (True, []),
    }
    named, _ = offer(TF32, words={"allow": ["numerics"]})
    assert [one.asked for one in named] == [False]


@pytest.mark.parametrize(
    ("knob", "has_now", "tried"),
    [
        ("cudnn.benchmark", {}, {"true"}),
        ("cudnn.benchmark", {"cudnn.benchmark": True}, {"false"}),
        ("matmul.fp32_precision", {}, {"high", "medium"}),
        ("loader.in_order", {}, {"false"}),
        ("loader.num_workers", {"loader.num_workers": 4}, {"2", "8", "16"}),
        ("loader.prefetch_factor", {}, {"4", "8"}),
        (
            "compile.mode",
            {"compile.mode": "default"},
            {"off", "reduce-overhead", "max-autotune-no-cudagraphs"},
        ),
    ],
)
def test_a_knob_that_is_named_without_a_value_is_tried_at_some(knob, has_now, tried):
    facts = GPU | {"torch.version": "2.13.0"}
    found, _ = offer(facts=facts, has=has_now, words={"extra": [knob]})
    assert {candidate.id.partition("=")[2] for candidate in found} == tried
    assert all(candidate.why == [] for candidate in found)


def test_the_users_own_values_are_tried_beside_the_others_even_beyond_the_cores():
    words = {"values": ["loader.num_workers=3,40"], "extra": ["env.OMP_NUM_THREADS=1"]}
    found, _ = offer(STARVED, has={"loader.num_workers": 0}, words=words)
    assert {
        "loader.num_workers=3",
        "loader.num_workers=40",
        "loader.num_workers=4",
        "env.OMP_NUM_THREADS=1",
    } < names(found)
    cautions = refuse_unfit(asked.parse(**words), Machine(facts=GPU))
    assert len(cautions) == 1 and "share cores" in cautions[0]


# Bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"allow": ["system"]}, "never applied"),
        ({"allow": ["everything"]}, "no effect"),
        ({"extra": ["num_workers"]}, "loader.num_workers"),
        ({"extra": ["loader.num_workers=many"]}, "whole number"),
        ({"extra": ["env.A"]}, "no value"),
        ({"exclude": ["loader.worker"]}, "loader.num_workers"),
        ({"values": ["loader.num_workers"]}, "--values"),
        ({"values": ["loader.num_workers=2,,4"]}, "--values"),
        ({"values": ["nothing=1,2"]}, "no knob"),
        (
            {"values": ["cudnn.benchmark=true"], "exclude": ["cudnn.benchmark"]},
            "cudnn.benchmark is both to be tried",
        ),
        ({"extra": ["env.A=1"], "exclude": ["env.A"]}, "env.A is both to be tried and to be left out"),
        (
            {"extra": ["cudnn.benchmark=true"], "exclude": ["cudnn.benchmark=on"]},
            "cudnn.benchmark=true is both to be tried",
        ),
        (
            {"values": ["loader.num_workers=2,4"], "exclude": ["loader.num_workers=4"]},
            "loader.num_workers=4 is both to be",
        ),
        ({"exclude": ["num_workers=4"]}, "loader.num_workers"),
        ({"exclude": ["loader.num_workers=many"]}, "whole number"),
        ({"exclude": ["loader.num_workers="]}, "whole number"),
        ({"exclude": ["env.PYTHONPATH=x"]}, "dynotune sets"),
    ],
)
def test_words_that_mean_nothing_are_refused_with_what_is_meant(words, said):
    with pytest.raises(UsageError) as refused:
        asked.parse(**words)
    assert said in f"{refused.value.message} {refused.value.hint}"


def test_a_setting_of_the_system_is_neither_tried_nor_left_out(monkeypatch):
    knob = msgspec.structs.replace(knobs.get("loader.num_workers"), effect="system")
    monkeypatch.setattr(knobs, "get", lambda knob_id: knob)
    for option in ("extra", "exclude", "values"):
        with pytest.raises(UsageError, match="is a setting of the system"):
            asked.parse(**{option: ["loader.num_workers=4"]})


def test_a_knob_without_values_of_its_own_asks_for_one_before_anything_runs():
    with pytest.raises(UsageError, match="names no value"):
        refuse_unfit(asked.parse(extra=["alloc.max_split_size_mb"]), Machine(facts=GPU))


def test_named_settings_are_refused_before_anything_runs_when_they_cannot_work():
    for words in ({"extra": ["loader.pin_memory=true"]}, {"extra": ["loader.pin_memory"]}):
        with pytest.raises(CannotRunHere, match="without CUDA"):
            refuse_unfit(asked.parse(**words), Machine(facts=CPU))
    with pytest.raises(UsageError, match="is not installed"):
        machine = Machine(facts=CPU, refused=lambda setting: "it is not installed")
        refuse_unfit(asked.parse(extra=["host.malloc=jemalloc"]), machine)


INSTALLED = {"python.version": "3.12.1", "package.opencv-python-headless": "5.0", "package.pillow": "13.0"}


def test_of_decoders_those_that_are_installed_are_tried():
    facts = CPU | INSTALLED
    decoding = finding("decode-bound", Setting("loader.num_workers", 4))
    found, refused = offer(decoding, facts=facts, words={"exact": True})
    assert "decode.backend=opencv" not in names(found)
    assert [str(row.setting) for row in refused if row.setting.knob == "decode.backend"] == [
        "decode.backend=opencv"
    ]
    assert "decode.backend=opencv" in names(offer(decoding, facts=facts)[0])
    named = offer(facts=facts, words={"extra": ["decode.backend"]})[0]
    assert names(named) == {"decode.backend=opencv"}
    refuse_unfit(asked.parse(extra=["decode.backend"]), Machine(facts=facts))
    for word in ("decode.backend=simplejpeg", "decode.backend"):
        with pytest.raises(CannotRunHere, match="is not installed in the command's environment"):
            nothing = CPU | {"python.version": "3.12.1"}
            refuse_unfit(asked.parse(extra=[word]), Machine(facts=nothing))


# Bounds


@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=3), waits=st.floats(0, 1), step=st.floats(0.01, 2)
)
def test_a_bound_is_a_share_and_never_more_than_the_wait_for_the_loader(shares, waits, step):
    findings = [finding(f"f{at}", WORKERS, share=share) for at, share in enumerate(shares)]
    ceilings = [
        UpperBound(part="step", step_s=step, num_steps=9),
        UpperBound(part="both", step_s=1.0, num_steps=9),
    ]
    found, _ = offer(*findings, has={"loader.num_workers": 0}, shares={"input": waits}, ceilings=ceilings)
    bound = next(candidate.bound for candidate in found if candidate.setting == WORKERS)
    assert 0 <= bound <= min(1, waits, sum(shares)) + 1e-9
    if step <= 1.05:
        assert bound <= max(0.0, 1 - step + 0.05) + 1e-9


def test_a_ceiling_slower_than_the_program_itself_bounds_nothing():
    ceilings = [
        UpperBound(part="step", step_s=20.0, num_steps=9),
        UpperBound(part="both", step_s=1.0, num_steps=9),
    ]
    found, _ = offer(STARVED, has={"loader.num_workers": 0}, shares={"input": 0.8}, ceilings=ceilings)
    bound = next(candidate.bound for candidate in found if candidate.setting == WORKERS)
    assert bound == pytest.approx(0.6)


def test_a_program_that_waits_12_percent_cannot_gain_more_from_the_loader():
    found, _ = offer(
        words={"extra": ["loader.num_workers=4"]}, has={"loader.num_workers": 0}, shares={"input": 0.12}
    )
    assert found[0].bound == pytest.approx(0.12)
    assert found[0].bound_by == "the wait for the loader"


def test_autocast_may_gain_more_than_the_tf32_that_is_named_beside_it():
    """A ViT in float32 ran 2.9 times as fast with TF32, of which 69% were told, and 5.2 times with
    bfloat16."""
    both = finding("fp32-matmul-no-tf32", Setting("matmul.fp32_precision", "high"), BF16, share=0.686)
    found, _ = offer(both, words={"allow": ["numerics"]}, shares={"device": 0.956})
    assert [(one.setting.knob, one.bound) for one in found] == [
        ("precision.autocast", 0.956), ("matmul.fp32_precision", 0.686),
    ]  # fmt: skip
    assert found[0].bound_by == "all that the device does"
    absent = finding("amp-absent", BF16, share=0.2)
    assert offer(absent, words={"allow": ["numerics"]}, shares={"device": 0.956})[0][0].bound == 0.2


def test_workers_bound_is_the_whole_wait_when_batches_are_expensive_to_make():
    expensive = finding("decode-bound", WORKERS, share=0.2)
    found, _ = offer(expensive, has={"loader.num_workers": 2}, shares={"input": 0.36})
    bounds = {candidate.bound for candidate in found}
    assert bounds == {0.36}


@pytest.mark.parametrize(
    ("now", "asked", "most"),
    # A step that waits for 90%: four workers leave a quarter of the wait, sixteen leave the step itself.
    [(0, 4, 1 - 0.9 / 4), (0, 16, 0.9), (2, 4, 0.5), (2, 3, 1 / 3), (2, 32, 0.9)],
)
def test_so_many_workers_make_batches_no_faster_than_as_many_times_one(now, asked, most):
    words = {"extra": [f"loader.num_workers={asked}"]}
    found, _ = offer(words=words, has={"loader.num_workers": now}, shares={"input": 0.9})
    bound = next(one.bound for one in found if one.id == f"loader.num_workers={asked}")
    assert most <= bound + 1e-9 and bound <= min(0.9, most + 0.05) + 1e-9


def test_of_workers_that_may_all_gain_those_that_may_gain_most_come_first():
    words = {"extra": [f"loader.num_workers={num}" for num in (2, 4, 16)]}
    found, _ = offer(words=words, has={"loader.num_workers": 0}, shares={"input": 0.9})
    bounds = {one.id: one.bound for one in found}
    assert bounds["loader.num_workers=2"] < bounds["loader.num_workers=4"] < bounds["loader.num_workers=16"]
    assert names(worth_trying(study_of(found))[:1]) == {"loader.num_workers=16"}


@pytest.mark.parametrize(("spared", "first"), [(0.0, 6), (0.4, 12), (0.6, 16)])
def test_the_first_count_of_workers_keeps_up_with_the_step_that_the_other_settings_leave(spared, first):
    # Six workers keep up with the step as it is; of a step that is 2.5 times as short, sixteen.
    late = finding("loader-bound", *(Setting("loader.num_workers", num) for num in (6, 12)), share=0.27)
    other = finding("amp-absent", Setting("matmul.fp32_precision", "high"), share=spared)
    found, _ = offer(
        late, other, has={"loader.num_workers": 4}, shares={"input": 0.27}, words={"allow": ["numerics"]}
    )
    of_workers = [one.id for one in worth_trying(study_of(found)) if one.setting.knob == "loader.num_workers"]
    assert of_workers[0] == f"loader.num_workers={first}"


def test_fewer_workers_give_cores_back_so_the_wait_does_not_bound_them():
    found, _ = offer(
        words={"extra": ["loader.num_workers=1"]}, has={"loader.num_workers": 8}, shares={"input": 0.0}
    )
    assert isinstance(found[0].bound, Unknown)


def test_a_finding_that_nothing_bounds_leaves_the_bound_unknown_whatever_others_say():
    open_ = finding("num-workers-too-many", WORKERS, share=Unknown("only a comparison tells"))
    found, _ = offer(STARVED, open_, has={"loader.num_workers": 0})
    bound = next(candidate.bound for candidate in found if candidate.setting == WORKERS)
    assert bound == Unknown("only a comparison tells")


def test_those_that_may_gain_most_come_first():
    small = finding("alloc-retries", Setting("alloc.expandable_segments", True), share=0.02)
    found, _ = offer(small, STARVED, words={"extra": ["env.A=1"]}, has={"loader.num_workers": 0})
    found = [candidate for candidate in found if not candidate.needs]
    knobs = [knob for knob, _ in itertools.groupby(found, key=lambda candidate: candidate.setting.knob)]
    assert knobs == ["env.A", "loader.num_workers", "alloc.expandable_segments"]


# What the program has


def seen(**process):
    return Observation(processes=[ProcessState(pid=1, **process)])


def test_present_settings_are_known_by_the_knobs_names():
    found = present(
        seen(
            live={
                "live.cudnn_benchmark": True,
                "live.num_threads": 4,
                "live.matmul_fp32_precision": "tf32",
                "live.autocast_dtypes": ["bfloat16"],
                "live.deterministic_algorithms": Unknown("it raised"),
            },
            loaders=[Loader(name="L", dataset="D", num_workers=2, prefetch_factor=2, pin_memory=True)],
            models=[Model(name="M", num_parameters=1, parameter_bytes=4)],
            optimizers=[Optimizer(name="Adam", fused=None)],
        ),
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128"},
    )
    assert found == {
        "cudnn.benchmark": True,
        "host.num_threads": 4,
        "matmul.fp32_precision": "high",
        "precision.autocast": "bf16",
        "loader.num_workers": 2,
        "loader.prefetch_factor": 2,
        "loader.pin_memory": True,
        "loader.persistent_workers": False,
        "optimizer.fused": False,
        "compile.mode": "off",
        "alloc.expandable_segments": True,
        "alloc.max_split_size_mb": 128,
    }
    assert has(Setting("cudnn.benchmark", True), found, {})
    assert not has(Setting("loader.num_workers", 4), found, {})


def test_loaders_that_differ_have_no_one_value():
    loaders = [Loader(name="L", dataset="D", num_workers=num) for num in (0, 4)]
    assert "loader.num_workers" not in present(seen(loaders=loaders), {})


def test_nothing_is_known_of_a_program_that_was_not_watched():
    assert present(Observation(), {}) == {}
