"""Programs that come with packages from the registry: what is counted and set is what they say themselves."""

import itertools
import json
import os
import socket

import pytest

from lab.programs_not_written_for import PROGRAMS, Program, agrees, compare, run


@pytest.fixture(autouse=True)
def skipped_where_packages_are_missing(program: Program) -> None:
    if missing := program.missing():
        pytest.skip(f"{', '.join(missing)} is not installed")


@pytest.fixture(autouse=True)
def port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks under torchrun meet: by default all of them do at port 29500, whosever they are."""
    # Below those that the kernel hands out by itself, and begun elsewhere by each process that runs tests.
    for port in itertools.count(20000 + os.getpid() % 9000):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        monkeypatch.setenv("PET_MASTER_PORT", str(port))
        return


# In `make test`: the rest start ranks, or more than one training each.
FIRST = ("dynotune.step() in an environment without dynotune",)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=() if program.name in FIRST else pytest.mark.long)
        for program in PROGRAMS
    ],
)
def test_counts_and_sets_what_the_program_says(program, tmp_path):
    row = run(program, tmp_path, "cpu")
    assert agrees(row), json.dumps(row, indent=1)


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [program for program in PROGRAMS if program.num_ranks == 2 and program.samples_a_step],
    ids=lambda p: p.name,
)
def test_measured_runs_time_all_ranks_and_leave_no_process(program, tmp_path):
    row = compare(program, tmp_path, "cpu")
    assert agrees(row), json.dumps(row, indent=1)
    assert row["pairs"] == 2
