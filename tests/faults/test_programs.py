"""Programs that carry a fault run, with it and without it, and tell their rate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.faults.fault import Fault
from lab.faults.manifest import CLEAN, FAULTS, PAIRS, PROGRAMS

from ..forked import Forked

STEPS = 4
# Programs that take too long for every run of the tests, with the reason.
SLOW: dict[str, str] = {}
EVERY = (*FAULTS, *PAIRS, *CLEAN)
ON_CPU = [found for found in EVERY if "cpu" in found.devices]


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    # The compiler, too: torch imports it for the first optimizer.
    forked = Forked("torch", "torch._dynamo")
    yield forked
    forked.end()


def run(fault: Fault, dose: int, forked: Forked, folder: Path) -> subprocess.CompletedProcess[str]:
    """The program on the CPU for a few steps; started anew where it has a launcher or an environment of its
    own."""
    words = [str(PROGRAMS / fault.program), *fault.args, "--dose", str(dose), "--steps", str(STEPS)]
    env = fault.env if dose else {}
    if not env and not fault.launcher:
        return forked.run(words, cwd=folder, folder=folder)
    launcher = fault.launcher or (sys.executable,)
    if launcher[0] == "torchrun":
        launcher = (sys.executable, "-m", "torch.distributed.run", *launcher[1:])
    return subprocess.run(
        [*launcher, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=200
    )


@pytest.mark.long
@pytest.mark.parametrize("fault", ON_CPU, ids=lambda fault: fault.program.removesuffix(".py"))
def test_program_ends_by_itself_with_its_rate_at_no_dose_and_at_the_largest(
    fault: Fault, forked: Forked, tmp_path: Path
) -> None:
    if fault.program in SLOW:
        pytest.skip(SLOW[fault.program])
    for dose in sorted({0, max(fault.doses, default=0)}):
        done = run(fault, dose, forked, tmp_path)
        assert done.returncode == 0, f"dose {dose}: {done.stderr[-2000:]}"
        rates = re.findall(r"^RATE (\S+)$", done.stdout, re.MULTILINE)
        assert len(rates) == 1, f"dose {dose}: {done.stdout!r}"
        assert float(rates[0]) > 0


@pytest.mark.long
@pytest.mark.parametrize("program", ["profiled_earlier.py", "profiled_by_callback.py"])
def test_a_program_profiles_its_first_steps_when_it_runs_on_the_cpu_where_that_costs_nothing(
    program: str, forked: Forked, tmp_path: Path
) -> None:
    fault = next(fault for fault in FAULTS if fault.program == program)
    for dose in (0, max(fault.doses)):
        done = run(fault, dose, forked, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        assert ("operators" in done.stdout) == (dose > 0)
        assert len(re.findall(r"^RATE (\S+)$", done.stdout, re.MULTILINE)) == 1


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
