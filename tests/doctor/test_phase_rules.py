"""Rules on what some steps alone do."""

from __future__ import annotations

import pytest

from dynotune.schema.host import Line, StackLine, Thread
from dynotune.schema.loader import Loader
from dynotune.schema.timing import PeriodicWork, SlowStep
from dynotune.schema.trace_summary import Place

from .devices import found, on_cpu
from .observations import timing


def work(kind: str, share: float, **fields) -> PeriodicWork:
    usual = {"function": "train.py(30): main", "text": "check(model)", "num_steps": 5, "every": 10}
    return PeriodicWork(**({"kind": kind, "share": share} | usual | fields))


@pytest.mark.parametrize(("kind", "id_"), [("validation", "validation-often"), ("other", "periodic-work")])
def test_periodic_finding_tells_the_works_place_and_how_often_it_comes(kind, id_):
    finding = found(on_cpu(periodic=[work(kind, 0.3)]))[id_]
    assert (finding.share, finding.severity, finding.where) == (0.3, "high", Place("train.py(30): main"))
    assert "30% of the time, after every 10 steps" in finding.claim
    assert finding.evidence == ["in 5 of 50 steps, train.py(30): main: check(model)"]


def test_a_small_part_under_an_unknown_name_is_no_alarm():
    assert found(on_cpu(periodic=[work("other", 0.2)]))["periodic-work"].severity == "low"


def test_periodic_finding_is_low_when_the_work_begins_inside_a_library():
    # Every step calls generate() there, and some of them begin with a new prompt.
    prefill = work(
        "other", 0.4, function="/venv/lib/python3.12/site-packages/transformers/utils.py(3208): _sample"
    )
    assert found(on_cpu(periodic=[prefill]))["periodic-work"].severity == "low"
    # What validates is known by its name, wherever it begins.
    inside = work("validation", 0.4, function="/venv/lib/python3.12/site-packages/lightning/loop.py(9): run")
    assert found(on_cpu(periodic=[inside]))["validation-often"].severity == "high"


@pytest.mark.parametrize("one", [work("other", 0.005), work("other", 0.3, num_steps=1, every=None)])
def test_periodic_finding_is_silent_when_work_is_small_or_was_seen_once(one):
    assert "periodic-work" not in found(on_cpu(periodic=[one]))


def test_steps_that_validate_are_not_laid_to_what_they_allocate():
    slow = [SlowStep(index=9, step_s=0.5, wait_s=0.0, causes=["work", "allocation"])]
    timed = timing(slow=slow, typical_step_s=0.1)
    assert "alloc-jitter" not in found(on_cpu(timed=timed, periodic=[work("validation", 0.3)]))


def test_a_checkpoint_counts_as_saving():
    threads = [Thread(of_steps=True, num=100, cpu_s=4.9)]
    finding = found(on_cpu(periodic=[work("checkpoint", 0.2)], threads=threads))["saved-per-step"]
    assert (finding.share, finding.where) == (0.2, Place("train.py(30): main"))


def test_steps_that_save_and_do_more_count_as_saving_for_what_was_seen_of_it():
    saves = Line(function="train.py(64): report", text="torch.save(state, path)", num=10, cpu_s=0.4,
                 callee="/lib/torch/serialization.py(945): save")  # fmt: skip
    threads = [Thread(of_steps=True, num=100, cpu_s=4.9, lines=[saves])]
    finding = found(on_cpu(periodic=[work("checkpoint", 0.27)], threads=threads))["saved-per-step"]
    assert (finding.share, finding.where) == (pytest.approx(0.1), Place("train.py(64): report"))


def test_an_epoch_that_begins_in_its_sampler_wants_no_persistent_workers():
    loaders = [Loader(name="DataLoader", dataset="data.Rows", num_workers=2, persistent_workers=False)]
    timed = timing(epoch_begin_s=0.5, num_epochs=5)
    sampling = work("epoch", 0.4, callee="/lib/torch/utils/data/sampler.py(170): __iter__")
    finding = found(on_cpu(timed=timed, loaders=loaders, periodic=[sampling]))["epoch-jitter"]
    assert finding.candidates == [] and "sampler" in finding.remedy


def test_rare_work_is_told_when_it_was_seen_once_and_an_earlier_step_was_as_long():
    assert (
        "after every 10 steps"
        in found(on_cpu(periodic=[work("validation", 0.9, num_steps=1)]))["validation-often"].claim
    )


NUMPIFIES = (
    "/venv/lib/python3.12/site-packages/transformers/trainer_pt_utils.py(20): torch_pad_and_concatenate"
)


@pytest.mark.parametrize(
    ("callee", "text", "is_kept"),
    [
        (NUMPIFIES, "", True),
        ("train.py(44): evaluate", "kept = torch.cat([kept, logits.cpu()])", True),
        ("train.py(44): evaluate", "rows = np.concatenate((rows, out))", True),
        ("train.py(44): evaluate", "logits = model(batch)", False),
        ("train.py(44): evaluate", "score = category(logits)", False),
        ("net.py(12): forward", "", False),
    ],
)
def test_remedy_is_to_keep_less_when_most_of_a_validation_joins_outputs(callee, text, is_kept):
    stack = [StackLine(function=callee, text=text, num=50)]
    finding = found(on_cpu(periodic=[work("validation", 0.9, callee=callee)], stack=stack))[
        "validation-often"
    ]
    assert ("Do not keep the outputs" in finding.remedy) == is_kept
