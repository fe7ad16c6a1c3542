"""Programs that carry a fault run, with it and without it, and tell their rate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .fault import Fault
from .manifest import CLEAN, FAULTS, PAIRS

PROGRAMS = Path(__file__).parent / "programs"
STEPS = 4
# Programs that take too long for every run of the tests, with the reason.
SLOW: dict[str, str] = {}
EVERY = (*FAULTS, *PAIRS, *CLEAN)
ON_CPU = [found for found in EVERY if "cpu" in found.devices]


def start(fault: Fault, dose: int) -> subprocess.Popen[str]:
    """The program on the CPU for a few steps."""
    # Threads that wait asleep: others may want the cores.
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", **(fault.env if dose else {})}
    launcher = fault.launcher or (sys.executable,)
    if launcher[0] == "torchrun":
        launcher = (sys.executable, "-m", "torch.distributed.run", *launcher[1:])
    command = [*launcher, str(PROGRAMS / fault.program), *fault.args, "--dose", str(dose), "--steps", str(STEPS)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("fault", ON_CPU, ids=lambda fault: fault.program.removesuffix(".py"))
def test_it_ends_by_itself_with_its_rate_at_no_dose_and_at_the_largest(fault: Fault) -> None:
    if fault.program in SLOW:
        pytest.skip(SLOW[fault.program])
    doses = sorted({0, max(fault.doses, default=0)})
    for dose, child in [(dose, start(fault, dose)) for dose in doses]:
        out, err = child.communicate(timeout=200)
        assert child.returncode == 0, f"dose {dose}: {err[-2000:]}"
        rates = re.findall(r"^RATE (\S+)$", out, re.MULTILINE)
        assert len(rates) == 1, f"dose {dose}: {out!r}"
        assert float(rates[0]) > 0


@pytest.mark.parametrize("fault", EVERY, ids=lambda fault: f"{fault.id}-{fault.program}")
def test_the_manifest_names_programs_that_exist_and_doses_that_are_shares(fault: Fault) -> None:
    assert (PROGRAMS / fault.program).is_file()
    assert set(fault.devices) <= {"cpu", "cuda", "cuda-x2"}
    assert all(0 < dose < 100 for dose in fault.doses)
    assert fault.id not in fault.implies


def test_no_two_entries_are_the_same_program_with_the_same_arguments_on_the_same_device() -> None:
    keys = [(found.program, found.args, device) for found in EVERY for device in found.devices]
    assert len(keys) == len(set(keys))


def test_each_pair_plants_ids_that_are_planted_alone_too() -> None:
    alone = {found.id for found in FAULTS}
    assert all(set(pair.plants) <= alone and len(pair.plants) > 1 for pair in PAIRS)
