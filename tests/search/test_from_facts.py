"""What is offered because facts name it, where no finding does: compiling."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from dynotune.doctor import policy
from dynotune.report.study.tables import not_offered
from dynotune.schema.attribution import Attribution, LostTime, Shares
from dynotune.schema.compilation import Compilation
from dynotune.schema.diagnosis import Diagnosis, Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.setting import Setting
from dynotune.schema.study import NotOffered
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import DeviceTime, Kernels, TraceSummary
from dynotune.search import asked
from dynotune.search.bounds import worth_trying
from dynotune.search.candidates import offered
from dynotune.search.words import nothing_to_try
from lab.search.studies import study_of

from ..fakes import changed, spec

GPU = {
    "host.num_cores": 16,
    "gpu.count": 1,
    "gpu.compute_capability": "9.0",
    "torch.cuda": "13.0",
    "torch.version": "2.13.0",
}
MODE, BF16 = Setting("compile.mode", "default"), Setting("precision.autocast", "bf16")
NAMED = ["kernels.fusable_s", "shares.host"]
COMPILATION = Compilation(
    num_graphs=1, num_graph_breaks=0, num_recompilations=0, num_compilations_in_window=0
)


def trace(fusable_s=0.2, *, device=True, num_steps=10):
    """Ten steps of 0.1 s."""
    row = DeviceTime(
        rank=None,
        device=0,
        window_s=1.0,
        busy_s=0.8,
        compute_s=0.8,
        copy_s=0.0,
        communication_s=0.0,
        idle_s=0.2,
    )
    kernels = Kernels(
        rank=None,
        num=9,
        total_s=0.8,
        mean_s=None,
        median_s=None,
        per_s=9.0,
        per_step=None,
        num_launches=None,
        in_graphs=None,
        mean_queue_depth=None,
        max_queue_depth=None,
        tensor_core_share=None,
        classes=[],
        fusable_s=fusable_s,
    )
    return TraceSummary(
        files=[],
        recorder="",
        verdict="",
        window_s=1.0,
        num_steps=num_steps,
        step_source="profiler",
        shares=None,
        causes=[],
        devices=[row] if device else [],
        gaps=[],
        copies=[],
        syncs=[],
        allocations=[],
        kernels=[kernels] if device else [],
        communication=[],
        ranks=None,
        operators=[],
    )


def shares(**parts):
    zero = dict.fromkeys(("input", "transfer", "host", "communication", "other"), 0.0) | parts
    return Shares(**zero, device=1.0 - sum(zero.values()))


def observed(*losses, traced=None, models=None, parts=None, busy_share=0.8, **process):
    """A model on a GPU; a fifth of a step could be fused away, and for a fifth the device waits for the
    host."""
    model = Model(name="model.Net", num_parameters=9, parameter_bytes=36, devices={"cuda:0": 9})
    timed = Timing(
        num_steps=9, window_s=0.9, step_s=0.1, median_step_s=0.1, p99_step_s=0.1, longest_step_s=0.1
    )
    state = ProcessState(pid=1, timing=timed, models=[model] if models is None else models, **process)
    return Observation(
        processes=[state],
        trace=traced or trace(),
        attribution=Attribution(
            shares=parts or shares(host=0.2), lost_time=list(losses), busy_share=busy_share
        ),
    )


def diagnosis(*findings):
    return Diagnosis(
        command=["train"],
        verdict="",
        bottleneck="host",
        shares=shares(host=0.2),
        findings=list(findings),
        unknown=[],
        steps=Unknown("the test does not say"),
    )


def finding(id_, *settings, **fields):
    return Finding(id=id_, severity="high", claim="", share=0.1, candidates=list(settings), **fields)


def study(*, objective="throughput", facts=GPU, **fields):
    return changed(study_of([]), facts=facts, objective=objective, **fields)


RUN = spec(command=["python", "train.py"])


def offer(observation, *findings, words=None, base=(), run=RUN, **of_study):
    said = asked.parse(**(words or {}))
    run = replace(run, settings=[*run.settings, *base])
    return offered(run, study(**of_study), said, observation, diagnosis(*findings))


def ids(found):
    return [one.id for one in found]


def test_compiling_is_offered_from_facts_where_no_finding_names_it():
    (found,), rest = offer(observed(), finding("host-bound"))
    assert (found.setting, found.why, found.effect, found.needs_warm_cache) == (
        MODE,
        NAMED,
        "numerics",
        True,
    )
    assert found.bound == pytest.approx(0.4)
    assert found.bound_by == "the time that fusing kernels, and launching fewer of them, could save"
    assert found.in_process and not found.by_user and not found.asked
    assert rest == []


def test_candidate_from_facts_stands_among_those_of_findings_by_its_bound():
    small, large = finding("some", Setting("cudnn.benchmark", True)), finding("other", BF16)
    large = msgspec.structs.replace(large, share=0.6)
    found, _ = offer(observed(), small, large, words={"extra": ["env.A=1"]})
    assert ids(found) == ["env.A=1", str(BF16), str(MODE), "cudnn.benchmark=true"]
    assert ids(worth_trying(study_of(found))) == ids(found)


@pytest.mark.parametrize(
    "observation",
    [
        observed(models=[]),
        observed(models=[Model(name="M", num_parameters=9, parameter_bytes=36, compiled=True)]),
        observed(compilation=COMPILATION),
        observed(traced=trace(device=False), models=[Model(name="M", num_parameters=9, parameter_bytes=36)]),
        observed(traced=trace(fusable_s=None)),
        observed(traced=trace(num_steps=None)),
        observed(parts=shares(input=0.7, host=0.1)),
        observed(parts=shares(host=0.04)),
        Observation(),
    ],
    ids=[
        "no model", "a compiled model", "compiled functions", "no device", "an older record", "no steps",
        "a loader that sets the pace", "too little to save", "nothing known",
    ],
)  # fmt: skip
def test_candidate_from_facts_is_not_spoken_of_when_the_facts_do_not_name_it(observation):
    assert offer(observation) == ([], [])


@pytest.mark.parametrize(("host", "is_offered"), [(0.05, False), (0.06, True)])
def test_candidate_from_facts_takes_a_quarter_of_a_step_that_could_be_saved(host, is_offered):
    assert policy.MUCH_TO_COMPILE == 0.25
    found, _ = offer(observed(traced=trace(0.1999), parts=shares(host=host)))
    assert bool(found) == is_offered


def test_pauses_between_queued_kernels_count_too():
    late = LostTime(id="launch-latency", share=0.05, claim="")
    (found,), _ = offer(observed(late, parts=shares(host=0.05, other=0.05)))
    assert found.bound == pytest.approx(0.3)


def test_compiled_modules_of_any_rank_are_enough_to_be_silent():
    first = observed()
    second = observed(models=[Model(name="M", num_parameters=9, parameter_bytes=36, compiled=True)])
    both = msgspec.structs.replace(first, processes=[*first.processes, *second.processes])
    assert offer(both) == ([], [])


def test_a_setting_that_rounds_is_left_out_and_named_when_exact():
    found, (row,) = offer(observed(), words={"exact": True})
    assert found == [] and row.setting == MODE and row.why == NAMED
    assert "--exact" in row.reason and row.forbidden == "numerics"
    waiting = study(not_offered=[row])
    assert nothing_to_try(waiting) == f"Nothing to try: --exact leaves out {MODE}."
    assert not_offered(waiting).rows == [[str(MODE), row.reason, "kernels.fusable_s, shares.host"]]


@pytest.mark.parametrize(("device", "is_said"), [(0.96, True), (0.7, False)])
def test_nothing_to_try_says_that_the_device_is_busy_when_it_works_nearly_all_the_time(device, is_said):
    busy = replace(diagnosis(), shares=shares(host=1 - device))
    told = nothing_to_try(study(diagnosis=busy))
    assert ("the device works for 96% of a step" in told) == is_said
    assert "Nothing to try" in told


def test_nothing_to_try_is_decided_by_what_is_forbidden_when_reasons_read_alike():
    alike = "its reason speaks of --exact and of --allow semantics"
    rows = [NotOffered(MODE, alike), NotOffered(MODE, "other words", forbidden="semantics")]
    assert nothing_to_try(study(not_offered=rows[:1])).endswith(f"not offered: {MODE}: {alike}.")
    assert nothing_to_try(study(not_offered=rows[1:])).endswith("; --allow semantics widens that.")


@pytest.mark.parametrize("excluded", ["compile.mode", "compile.mode=default"])
def test_excluded_settings_are_left_out_when_facts_offer_them(excluded):
    found, (row,) = offer(observed(), words={"exclude": [excluded]})
    assert found == [] and (row.setting, row.reason) == (MODE, "left out by --exclude")


def test_settings_are_not_offered_and_say_why_when_they_cannot_be_applied_here(monkeypatch):
    monkeypatch.setattr(
        "dynotune.search.candidates.refusal", lambda *_: lambda setting: "the module is not found"
    )
    found, (row,) = offer(observed())
    assert found == [] and row.reason == "the module is not found"


@pytest.mark.parametrize(
    ("value", "offered"), [("default", ["default"]), ("reduce-overhead", ["reduce-overhead", "default"])]
)
def test_facts_add_no_mode_but_one_without_cuda_graphs_when_a_finding_names_a_mode(value, offered):
    found, rest = offer(observed(), finding("launch-bound", Setting("compile.mode", value)))
    assert ids(found) == [f"compile.mode={each}" for each in offered] and rest == []
    assert {tuple(one.why) for one in found} == {("launch-bound",)}


def test_facts_name_their_mode_when_the_findings_mode_is_left_out():
    named = finding("launch-bound", Setting("compile.mode", "reduce-overhead"))
    found, (row,) = offer(observed(), named, words={"exclude": ["compile.mode=reduce-overhead"]})
    assert ids(found) == [str(MODE)] and row.why == ["launch-bound"]


def test_a_finding_that_may_not_be_followed_keeps_its_own_row():
    found, (row,) = offer(observed(), finding("compile-default", MODE), words={"exact": True})
    assert found == [] and row.why == ["compile-default"]


def test_facts_add_no_mode_when_the_user_asks_for_one():
    (found,), _ = offer(observed(), words={"extra": ["compile.mode=max-autotune-no-cudagraphs"]})
    assert found.id == "compile.mode=max-autotune-no-cudagraphs" and found.by_user
    (found,), _ = offer(observed(), words={"extra": ["compile.mode=default"]})
    assert found.asked and found.why == []


@pytest.mark.parametrize("objective", ["latency-p99", "energy"])
def test_other_objectives_that_speed_serves_are_not_bounded_by_a_share_of_a_step(objective):
    (found,), _ = offer(observed(), objective=objective)
    assert found.setting == MODE and found.why == NAMED
    assert isinstance(found.bound, Unknown) and found.bound_by == ""


@pytest.mark.parametrize("objective", ["memory", "time-to-first-step"])
def test_objectives_that_speed_does_not_serve_are_not_spoken_of(objective):
    assert offer(observed(), objective=objective) == ([], [])


def test_a_finding_that_names_it_for_a_small_share_does_not_bound_what_facts_leave_to_it():
    (found,), _ = offer(observed(), finding("compile-default", MODE))
    assert found.why == ["compile-default"] and found.bound == pytest.approx(0.4)
    assert "fusing" in found.bound_by


def test_a_finding_that_leaves_it_more_than_the_facts_do_bounds_it():
    named = msgspec.structs.replace(finding("compile-default", MODE), share=0.7)
    (found,), _ = offer(observed(), named)
    assert (found.bound, found.bound_by) == (0.7, "compile-default")


def test_bound_stays_unknown_whatever_facts_say_when_the_findings_share_is():
    unknown = msgspec.structs.replace(finding("graph-breaks", MODE), share=Unknown("it was not counted"))
    (found,), _ = offer(observed(), unknown)
    assert isinstance(found.bound, Unknown)


def in_process(observation, *findings):
    return {str(one.setting): one.in_process for one in offer(observation, *findings)[0]}


def test_arms_take_turns_within_one_process_of_a_program_of_several_ranks_too():
    named = finding("fp32-matmul-no-tf32", BF16, MODE)
    assert in_process(observed(), named) == {str(BF16): True, str(MODE): True}
    two = observed()
    two = msgspec.structs.replace(two, processes=[*two.processes, *two.processes])
    assert in_process(two, named)[str(BF16)]


def test_settings_are_tried_in_fresh_processes_when_they_last_beyond_a_switch():
    lasting = Setting("cudnn.benchmark", True)
    assert not in_process(observed(), finding("conv-cudnn-heuristics", lasting))[str(lasting)]
