"""The page of versions shows what was run, and every row of the matrix was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import versions

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "versions.md"


def test_the_page_of_versions_is_the_one_that_the_result_makes():
    assert PAGE.read_text() == versions.page(json.loads(versions.RESULT.read_text())), (
        "make test-versions writes it"
    )


def test_every_row_of_the_matrix_was_run_or_says_why_not():
    rows = {(row["python"], row["torch"]): row for row in json.loads(versions.RESULT.read_text())["rows"]}
    assert list(rows) == list(versions.MATRIX)
    for row in rows.values():
        assert row.get("reason") or all(row[part]["passed"] > 0 for part in ("programs", "agent"))


def test_a_python_that_is_not_there_is_a_row_with_a_reason():
    row = versions.row("3.99", "2.4.1", keep=False)
    assert row == {"python": "3.99", "torch": "2.4.1", "reason": "no interpreter of Python 3.99 was found"}
    assert "| 3.99 | 2.4.1 | not run: no interpreter" in versions.page({"parent": "3.11.7", "rows": [row]})


@pytest.mark.parametrize("torch", [True, False])
def test_tests_of_the_agent_alone_import_no_other_part_of_dynotune(torch):
    """The row's Python may be too old for the other parts."""
    files = versions.agent_tests(torch=torch)
    assert "tests/agent/steps/test_steps.py" in files
    assert "tests/agent/core/test_writer.py" not in files  # reads records
    assert ("tests/agent/tasks/test_loader_drain.py" in files) is torch


@pytest.mark.long
def test_only_tests_that_start_programs_by_the_target_are_kept_when_it_is_named():
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests/agent/core/test_writer.py"]
    env = {**os.environ, "DYNOTUNE_TEST_PYTHON": sys.executable}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    kept = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert kept == [], done.stdout
