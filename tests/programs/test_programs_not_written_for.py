"""Programs that come with packages from the registry: what is counted and set is what they say themselves."""

import json

import pytest
from programs_not_written_for import PROGRAMS, Program, agrees, compare, run


@pytest.fixture(autouse=True)
def skipped_where_packages_are_missing(program: Program) -> None:
    if missing := program.missing():
        pytest.skip(f"{', '.join(missing)} is not installed")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_counts_and_sets_what_the_program_says(program, tmp_path):
    row = run(program, tmp_path, "cpu")
    assert agrees(row), json.dumps(row, indent=1)


@pytest.mark.parametrize(
    "program",
    [program for program in PROGRAMS if program.num_ranks == 2 and program.samples_a_step],
    ids=lambda p: p.name,
)
def test_measured_runs_time_all_ranks_and_leave_no_process(program, tmp_path):
    row = compare(program, tmp_path, "cpu")
    assert agrees(row), json.dumps(row, indent=1)
    assert row["pairs"] == 2
