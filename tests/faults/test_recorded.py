"""What the rules say today of programs that were observed on an H200, with torch 2.11; see benchmarks.

`recorded/` holds one observation of each program, made by `diagnosis_accuracy.py --keep`, without its trace.
"""

import gzip
from pathlib import Path

import pytest

from dynotune.diagnose.conclusions import conclude
from dynotune.schema import document
from dynotune.schema.observation import Observation
from lab.faults import manifest

RECORDED = Path(__file__).parent / "recorded"
CASES = sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))
FAULTS = {Path(fault.program).stem: fault for fault in (*manifest.FAULTS, *manifest.PAIRS)}
CLEAN = {Path(fault.program).stem for fault in manifest.CLEAN}

MISSED = {"fp32_matmul_launch_blocking-60-cuda": {"fp32-matmul-no-tf32"}}
"""Cases whose planted fault is not found: here the launches that wait set the pace, not the kernels."""


def diagnosed(case):
    raw = gzip.decompress((RECORDED / f"{case}.json.gz").read_bytes())
    return conclude(document.decode(raw, Observation, name=case))


def named(diagnosis):
    return {id_ for finding in diagnosis.findings for id_ in (finding.id, *finding.also)}


@pytest.mark.parametrize("case", [case for case in CASES if case.split("-")[0] not in CLEAN])
def test_the_planted_fault_is_found(case):
    fault = FAULTS[case.split("-")[0]]
    planted = set(fault.plants or (fault.id,))
    assert planted - named(diagnosed(case)) == MISSED.get(case, set())


@pytest.mark.parametrize("case", [case for case in CASES if case.split("-")[0] in CLEAN])
def test_a_clean_program_deserves_no_finding_of_note(case):
    assert [finding.id for finding in diagnosed(case).findings if finding.severity != "low"] == []


def test_there_is_a_recording_of_most_programs_for_a_gpu():
    programs = {
        Path(fault.program).stem for fault in (*manifest.FAULTS, *manifest.CLEAN) if "cuda" in fault.devices
    }
    assert len(programs & {case.split("-")[0] for case in CASES}) > 0.9 * len(programs)
