"""A comparison and a diagnosis with all that their pages tell, for the tests of those."""

from __future__ import annotations

from typing import Any

import msgspec

from dynotune.schema.attribution import Predicted, Shares
from dynotune.schema.comparison import ArmSummary, Comparison, FailedArm, Pair, Voided
from dynotune.schema.diagnosis import Diagnosis, Finding, Forecast, NotKnown, UpperBound
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange, Readback
from dynotune.schema.setting import Setting
from dynotune.schema.timing import SlowStep, Timing
from dynotune.schema.trace_summary import Place

from ..fakes import of_run

FACTS = {
    "host.cpu": "Xeon 8592",
    "host.num_cores": 16,
    "torch.version": "2.11.0",
    "gpu.name": Unknown("no driver"),
}


def comparison(**changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "id": "20261127-101500-123-abcdef",
        "command": ["python", "train.py", "my photographs"],
        "candidate_settings": [Setting("loader.num_workers", 8), Setting("precision.autocast", "bf16")],
        "verdict": "faster",
        "speedup": 1.4162,
        "ci": (1.3811, 1.4523),
        "num_pairs": 4,
        "step": "one batch drawn, one optimizer step",
        "warmup_steps": 12,
        "window_steps": 30,
        "baseline": ArmSummary(samples_per_s=281.4, median_step_s=0.0568, time_to_first_step_s=1.91),
        "candidate": ArmSummary(samples_per_s=398.6, median_step_s=0.0399, time_to_first_step_s=2.04),
        "readback": {
            "loader.num_workers": Readback("loader.num_workers", "8", "8", "the loader drawn from", True),
            "precision.autocast": Readback(
                "precision.autocast", "bf16", Unknown("no call was seen"), "", None
            ),
        },
        "pairs": [
            Pair("baseline", 0.00355, 0.00251),
            Pair("candidate", 0.00360, 0.00250),
            Pair("candidate", 0.00350, 0.00255),
            Pair("baseline", 0.00352, 0.00245),
        ],
        "voided": [Voided(3, "another program used 31% of the GPU")],
        "set_by": [EnvironmentChange("OMP_NUM_THREADS", "1", "train.py", 12, "main", kept=True)],
        "warnings": ["loader.num_workers=8: workers will share cores."],
        "facts": FACTS,
    }
    return of_run(Comparison, **(fields | changes))


def failed() -> Comparison:
    arm = FailedArm("candidate", 1, ["Traceback (most recent call last):", "RuntimeError: out of memory"])
    return comparison(
        verdict=None, failed=arm, speedup=None, ci=None, num_pairs=0, pairs=[], readback={}, voided=[]
    )


def undecided() -> Comparison:
    return comparison(verdict="undecided", speedup=1.02, ci=(0.97, 1.07), num_pairs_to_settle=22, within=True)


def diagnosis(**changes: Any) -> Diagnosis:
    fields: dict[str, Any] = {
        "command": ["python", "train.py", "--data", "my photos"],
        "verdict": "A step takes 23 ms; 61% of it the device waits for the data loader (train.py:31).",
        "bottleneck": "input",
        "shares": Shares(input=0.61, transfer=0.02, host=0.05, device=0.3, communication=0.0, other=0.02),
        "findings": [
            Finding(
                id="num-workers-zero",
                severity="high",
                claim="Batches are made in the training process.",
                share=0.61,
                evidence=["batches drawn: 1 a step, 14 ms each", "DataLoader(batch_size=32, num_workers=0)"],
                where=Place("/home/me/train.py(31): main"),
                candidates=[Setting("loader.num_workers", 4)],
                predicted={"loader.num_workers": Predicted(0.3, 0.55)},
                remedy="Let workers make batches beside the training process.",
                also=["loader-bound"],
            ),
            Finding(
                id="cpu-governor-powersave",
                severity="low",
                kind="measurement",
                claim="Cores save power.",
                share=Unknown("nothing bounds it"),
                commands=["sudo cpupower frequency-set -g performance"],
            ),
        ],
        "unknown": [NotKnown("thermal-throttling", "gpu.clocks", "no driver")],
        "steps": Timing(
            num_steps=120,
            window_s=2.76,
            step_s=0.023,
            median_step_s=0.022,
            p99_step_s=0.05,
            longest_step_s=0.09,
            samples_per_s=1391.0,
            slow=[SlowStep(index=7, step_s=0.09, wait_s=0.01)],
        ),
        "busy_share": 0.32,
        "upper_bounds": [
            UpperBound(part="loader", step_s=0.014, num_steps=60),
            UpperBound(part="step", step_s=0.009, num_steps=60),
            UpperBound(part="both", step_s=0.023, num_steps=120),
        ],
        "forecasts": [
            Forecast(change="4 workers", loader_s=0.004, step_s=0.01, least_step_s=0.009, note="of 16 cores")
        ],
        "facts": FACTS,
        "notes": ["Meanwhile other processes used 1.77 of 2 cores (89%)."],
    }
    return Diagnosis(**(fields | changes))


def nothing_found() -> Diagnosis:
    none = Unknown("the command ended before its steps were timed")
    bare = diagnosis(findings=[], bottleneck="none", verdict="Nothing holds it up.", shares=none, steps=none)
    return msgspec.structs.replace(
        bare, facts={}, unknown=[], notes=[], busy_share=None, upper_bounds=none, forecasts=none
    )
