from __future__ import annotations

import msgspec
import pytest

from dynotune.diagnose.conclusions import bottleneck, conclude, leading_finding, verdict
from dynotune.schema.attribution import Predicted
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Observation
from dynotune.schema.trace_summary import Place

from ..doctor.devices import lost, model, on_gpu
from ..doctor.observations import attribution, loss, observed, timing
from ..doctor.test_loader_rules import loader, waits

HERE = Place("/home/me/project/train.py(31): main", "enumerate(DataLoader)#_Iter.__next__")


@pytest.mark.parametrize(
    ("shares", "busy", "expected"),
    [
        ({"input": 0.6}, 0.4, "input"),
        ({"transfer": 0.2, "input": 0.1}, 0.7, "transfer"),
        ({"host": 0.5, "communication": 0.1}, 0.4, "host"),
        ({"communication": 0.12}, 0.88, "communication"),
        ({"host": 0.09}, 0.91, "device"),
        ({"host": 0.09, "input": 0.09, "other": 0.3}, 0.5, "none"),
        ({"host": 0.09}, None, "device"),
        ({"input": 0.09, "host": 0.09, "other": 0.4}, None, "none"),
        ({"input": 0.1}, 0.9, "input"),
    ],
)
def test_the_bottleneck_is_the_largest_avoidable_part_of_a_tenth_else_a_busy_device(shares, busy, expected):
    assert bottleneck(attribution(busy_share=busy, **shares)) == expected


def test_bottleneck_is_input_when_the_host_queues_work_after_late_batches():
    waits = loss("loader-bound", 0.08)
    found = attribution(waits, busy_share=0.8, input=0.08, host=0.10, without={"loader-bound": 0.18})
    assert bottleneck(found) == "input"
    assert verdict(timing(), found, "input", []).startswith("A step takes 100 ms; 18% of it the device waits")
    assert bottleneck(attribution(waits, busy_share=0.8, input=0.08, host=0.10)) == "host"


def test_a_disturbed_answer_says_so_first():
    facts = {"window.others_cpu_s_per_s": 0.96, "host.num_cores": 2}
    told = conclude(observed(timed=timing(), attributed=attribution(host=0.5), facts=facts))
    assert told.verdict.startswith("Disturbed, as others used 48% of the cores. A step takes 100 ms;")
    assert told.disturbance == "others used 48% of the cores"
    quiet = conclude(
        observed(timed=timing(), attributed=attribution(host=0.5), facts={**facts, "host.num_cores": 8})
    )
    assert quiet.verdict.startswith("A step takes")
    assert quiet.disturbance == ""


def test_the_verdict_says_how_much_of_a_step_is_laid_to_nobody():
    found = attribution(busy_share=0.6, other=0.4)
    assert verdict(timing(), found, "none", []) == (
        "A step takes 100 ms; the device works for 60% of it, and what 40% of it goes to is not known."
    )


def test_bottleneck_is_memory_when_allocating_holds_the_device_up():
    allocating = loss("empty-cache-in-loop", 0.3)
    assert bottleneck(attribution(allocating, busy_share=0.5, host=0.5)) == "memory"
    assert bottleneck(attribution(loss("alloc-retries", 0.1), busy_share=0.5, host=0.5)) == "host"
    # It lies in the host's share: a bound beyond it does not count.
    assert bottleneck(attribution(allocating, busy_share=0.88, host=0.05, input=0.12)) == "input"


def finding(id_: str, share: float | Unknown = 0.5, **fields) -> Finding:
    return Finding(
        **({"id": id_, "severity": "high", "claim": "Batches are loaded here.", "share": share} | fields)
    )


def test_the_verdict_says_how_long_what_where_and_by_what():
    told = attribution(loss("loader-bound", 0.61, where=HERE), busy_share=0.35, input=0.61)
    specific = finding("num-workers-zero", where=HERE, also=["loader-bound"])
    assert verdict(timing(step_s=0.023), told, "input", [specific]) == (
        "A step takes 23 ms; 61% of it the device waits for the data loader (train.py:31): batches are "
        "loaded here."
    )
    general = finding("loader-bound", where=HERE)
    assert verdict(timing(step_s=0.023), told, "input", [general]).endswith("data loader (train.py:31).")
    assert verdict(timing(step_s=0.023), told, "input", []).endswith("data loader (train.py:31).")


def test_place_is_that_of_the_loader_when_the_trace_tells_none():
    told = attribution(loss("loader-bound", 0.61), busy_share=0.35, input=0.61, host=0.0)
    assert "loader (train.py:31)." in verdict(timing(), told, "input", [], of_loader=HERE)
    assert "train.py" not in verdict(
        timing(), attribution(host=0.5, busy_share=0.5), "host", [], of_loader=HERE
    )


def test_without_a_device_the_verdict_names_none():
    told = attribution(input=0.3, host=0.1)
    assert (
        verdict(timing(), told, "input", [])
        == "A step takes 100 ms; 30% of it the program waits for the data loader."
    )
    assert "Python runs" in verdict(timing(), attribution(host=0.3), "host", [])
    assert verdict(timing(), attribution(host=0.05), "device", []) == (
        "A step takes 100 ms; 95% of it operators run on the CPU."
    )


def test_the_verdict_says_what_is_not_known():
    assert (
        verdict(Unknown("it made no step"), Unknown("x"), "none", []) == "No step was timed: it made no step."
    )
    assert verdict(timing(wait_s=0.03), Unknown("the profiler failed"), "none", []) == (
        "A step takes 100 ms and waits 30 ms of it for the data loader; where the rest goes is not known: "
        "the profiler failed."
    )


def test_a_finding_leads_where_it_belongs_to_the_bottleneck():
    loading, syncing = finding("num-workers-zero", 0.2, also=["loader-bound"]), finding("sync-per-step", 0.4)
    jitter = finding("loader-jitter", 0.9, kind="jitter", also=["loader-bound"])
    unknown = finding("host-bound", Unknown("x"))
    all_of_them = [loading, syncing, jitter, unknown]
    assert leading_finding("input", all_of_them) == loading
    assert leading_finding("host", all_of_them) == syncing
    assert leading_finding("transfer", [finding("h2d-blocking"), syncing]).id == "h2d-blocking"
    assert leading_finding("memory", [finding("empty-cache-in-loop"), syncing]).id == "empty-cache-in-loop"
    assert leading_finding("communication", all_of_them) is None


def test_a_claim_that_begins_with_a_name_keeps_its_capitals():
    told = attribution(loss("loader-bound", 0.61), busy_share=0.35, input=0.61)
    named = finding(
        "num-workers-zero", also=["loader-bound"], claim="JPEG files are decoded in the main process."
    )
    assert verdict(timing(), told, "input", [named]).endswith(": JPEG files are decoded in the main process.")


def test_a_diagnosis_carries_findings_shares_and_the_notes_of_all_runs_once():
    told = msgspec.structs.replace(attribution(input=0.5, busy_share=0.5), notes=["slow", "both"])
    seen = msgspec.structs.replace(observed(attributed=told, timed=timing()), notes=["both"])
    found = conclude(seen)
    assert found.bottleneck == "input"
    assert "loader-bound" in {finding.id for finding in found.findings} | {
        general for finding in found.findings for general in finding.also
    }
    assert found.shares == told.shares
    assert found.notes == ["both", "slow", "There is no trace: the test does not say"]
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_of_nothing_that_was_observed_a_diagnosis_says_so():
    found = conclude(Observation())
    assert found.bottleneck == "none"
    assert found.verdict == "No step was timed: no command was run."
    assert isinstance(found.shares, Unknown)
    assert "loader-bound" in {unknown.id for unknown in found.unknown}


def predictions_shown(
    observation: Observation, predicted: dict[str, Predicted]
) -> dict[str, dict[str, Predicted]]:
    """Predictions by finding, of a diagnosis whose timeline predicts these savings."""
    attributed = msgspec.structs.replace(observation.attribution, predicted=predicted)
    told = conclude(msgspec.structs.replace(observation, attribution=attributed))
    return {finding.id: finding.predicted for finding in told.findings}


def test_a_finding_holds_what_its_own_settings_are_predicted_to_save():
    nhwc, workers = Predicted(0.08, 0.16), Predicted(0.1, 0.3)
    predicted = {
        "layout.channels_last=true": nhwc,
        "loader.num_workers": workers,
        "compile.mode=default": nhwc,
    }
    convolutions = on_gpu(lost("channels-last", 0.3), models=[model(num_modules={"convolution": 8})])
    assert predictions_shown(convolutions, predicted)["channels-last"] == {"layout.channels_last=true": nhwc}
    few = waits(0.5, loader(2))
    assert predictions_shown(few, predicted)["loader-bound"] == {
        "loader.num_workers=4": workers,
        "loader.num_workers=8": workers,
    }
    # Fewer workers than there are do not keep up with a step.
    assert predictions_shown(waits(0.4, loader(16)), predicted)["num-workers-too-many"] == {}
    assert predictions_shown(few, {})["loader-bound"] == {}


def test_verdict_says_that_a_server_is_idle_before_anything_else():
    idle = Finding(
        id="service-idle",
        severity="low",
        kind="measurement",
        claim="The program is idle for 77% of a step, as no request is waiting: serve.py(18): <module>.",
        share=0.0,
        where=Place("serve.py(18): <module>"),
    )
    told = verdict(timing(), attribution(busy_share=None, device=0.19, host=0.81), "host", [idle])
    assert told.endswith(
        "; the program is idle for 77% of a step, as no request is waiting: serve.py(18): <module>. "
        "Operators run for 19% of it."
    )
