"""Programs by a hand that knew nothing of dynotune: what rules say today of runs on an H200, and that they
still run.

`other_hand/manifest.json` says what they plant; `recorded/` holds one observation of each, made by
`diagnosis_accuracy.py --programs --keep`, without its trace.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynotune.diagnose.conclusions import conclude
from dynotune.schema import document
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.observation import Observation

from ..forked import Forked

FOLDER = Path(__file__).parent / "other_hand"
PROGRAMS = {row["name"]: row for row in json.loads((FOLDER / "manifest.json").read_text())}

COSTS_NOTHING = {"sensor_fusion"}
"""On the H200 it is as fast without its fault: 56.6 ms a step, and 55.3 with it. What it is told is true of
both."""
BEARS_NO_HALF_TYPES = {"pocket_gnn"}
"""It is told of `amp-absent` beside its fault, and fails with it: `index_add_` of two types."""
OBSERVED_ONCE = {"ppo_update"}
"""Whether its cache folder is another one each time was asked of two runs only after it was recorded."""


def diagnosed(name: str) -> Diagnosis:
    raw = gzip.decompress((FOLDER / "recorded" / f"{name}-cuda.json.gz").read_bytes())
    return conclude(document.decode(raw, Observation, name=name))


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in COSTS_NOTHING | OBSERVED_ONCE])
def test_diagnosis_puts_a_planted_fault_first_with_nothing_of_note_beside_it_when_another_hand_planted_it(
    name: str,
) -> None:
    findings = diagnosed(name).findings
    planted = set(PROGRAMS[name]["plants"])
    if planted:
        assert planted & {findings[0].id, *findings[0].also}
    mine = planted | set(PROGRAMS[name]["implies"])
    mine |= {"amp-absent"} if name in BEARS_NO_HALF_TYPES else set()
    assert not [one.id for one in findings if one.severity != "low" and not mine & {one.id, *one.also}]


def test_a_fault_that_costs_nothing_is_not_reported() -> None:
    (finding, *others) = diagnosed("sensor_fusion").findings
    assert finding.id == "launch-bound"
    assert "h2d-blocking" not in {one.id for one in others}


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    forked = Forked("torch", "torch._dynamo")
    yield forked
    forked.end()


@pytest.mark.long
# One compiles anew each time, which takes most of a minute: that is its fault.
@pytest.mark.parametrize(
    "name", [name for name in PROGRAMS if PROGRAMS[name]["plants"] != ["caches-disabled"]]
)
def test_a_program_prints_its_step_time_when_it_is_run_small(
    name: str, forked: Forked, tmp_path: Path
) -> None:
    program = FOLDER / PROGRAMS[name]["program"]
    ran = forked.run([str(program), "--tiny", "--steps", "3"], cwd=tmp_path, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "mean_step_ms=" in ran.stdout
