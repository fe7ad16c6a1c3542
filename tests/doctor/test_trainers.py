"""The switch of the library that runs the loop: by its name, at the line that makes the trainer."""

import pytest

from dynotune import knobs
from dynotune.doctor import ObservationView, all_rules
from dynotune.doctor.trainers import SWITCHES, with_switch
from dynotune.schema.diagnosis import Finding
from dynotune.schema.knob import by_value
from dynotune.schema.observation import MadeTrainer
from dynotune.schema.setting import Setting

from .devices import on_cpu

HF = MadeTrainer("transformers.TrainingArguments", "hf.py:22")
LIGHTNING = MadeTrainer("lightning.Trainer", "lit.py:29")
ACCELERATE = MadeTrainer("accelerate.Accelerator", "acc.py:16")
ULTRALYTICS = MadeTrainer("ultralytics.train", "yolo.py:4")
FUSED = Setting("optimizer.fused", True)
WORKERS, BF16 = Setting("loader.num_workers", 2), Setting("precision.autocast", "bf16")


def remedy(trainer, id_, *candidates, evidence=(), own="Do this."):
    finding = Finding(
        id=id_,
        severity="high",
        claim="",
        share=0.5,
        remedy=own,
        candidates=list(candidates),
        evidence=list(evidence),
    )
    view = ObservationView(on_cpu(trainers=[] if trainer is None else [trainer]))
    return with_switch(view, finding).remedy


@pytest.mark.parametrize(
    ("trainer", "id_", "candidates", "told"),
    [
        (HF, "num-workers-zero", [WORKERS], "TrainingArguments(dataloader_num_workers=2) at hf.py:22"),
        (HF, "optimizer-forloop", [FUSED], "TrainingArguments(optim='adamw_torch_fused') at hf.py:22"),
        (HF, "padding-waste", [], "TrainingArguments(train_sampling_strategy='group_by_length') at hf.py:22"),
        (LIGHTNING, "amp-absent", [BF16], "Trainer(precision='bf16-mixed') at lit.py:29"),
        (LIGHTNING, "validation-often", [], "Trainer(check_val_every_n_epoch=5) at lit.py:29"),
        (ACCELERATE, "amp-absent", [BF16], "Accelerator(mixed_precision='bf16') at acc.py:16"),
        (ULTRALYTICS, "num-workers-zero", [WORKERS], "model.train(workers=2) at yolo.py:4"),
    ],
)  # fmt: skip
def test_remedy_names_the_trainers_switch_when_the_library_has_one(trainer, id_, candidates, told):
    text = remedy(trainer, id_, *candidates)
    assert text.startswith("Do this. ") and told in text and text.endswith(".")


@pytest.mark.parametrize(("trainer", "id_"), [(None, "num-workers-zero"), (ACCELERATE, "num-workers-zero")])
def test_remedy_stays_when_no_trainer_has_a_switch(trainer, id_):
    assert remedy(trainer, id_, WORKERS) == "Do this."


def test_remedy_says_whose_loop_it_is_when_the_time_is_in_the_librarys_functions():
    evidence = ["13% of a step at lit.py(30): <module>, in lightning.pytorch.trainer.fit: trainer.fit(model)"]
    assert remedy(LIGHTNING, "host-bound", evidence=evidence) == (
        "The loop is that of Lightning, not the program's: give it Trainer(enable_progress_bar=False, "
        "log_every_n_steps=500) at lit.py:29."
    )


def test_switches_are_of_findings_and_knobs_that_exist():
    for name, switches in SWITCHES.items():
        assert set(switches.findings) <= set(all_rules()), name
        for knob, values in switches.knobs.items():
            assert knobs.get(knob).trainers.get(name) is None, "the catalogue has it"
            assert all(by_value(values, value) for value in values)
