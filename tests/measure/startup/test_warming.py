from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dynotune.launch.caches import contents
from dynotune.measure.startup.warming import WarmRequest, warm
from dynotune.schema.caches import Warmed
from dynotune.schema.errors import CannotRunHere, CommandFailed, UsageError

from ...fakes import of_run


class Silent:
    """Somebody who is told how it goes on, and does not listen."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def warmed(tmp_path: Path, script: str, **more) -> Warmed:
    """A shell script in a folder of its own, with all caches below `tmp_path/caches`."""
    cwd = tmp_path / "project"
    cwd.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **contents.environment(tmp_path / "caches")}
    request = of_run(
        WarmRequest,
        command=["sh", "-c", script],
        cwd=cwd,
        env=env,
        base=tmp_path / "runs",
        lock=False,
        sandbox=False,
        **more,
    )
    return warm(request, Silent())


COMPILES_ONCE = 'f="$CUDA_CACHE_PATH/entry"; [ -e "$f" ] || echo code > "$f"; echo ready\n'


def test_warming_runs_until_a_run_adds_nothing(tmp_path):
    found = warmed(tmp_path, COMPILES_ONCE)
    assert found.end == "warm"
    assert [run.num_added for run in found.runs] == [1, 0]
    assert found.runs[0].added_bytes == 5
    (cuda,) = (cache for cache in found.caches if cache.name == "cuda")
    assert (cuda.num_files, cuda.size_bytes) == (1, 5)


def test_a_command_that_compiles_something_else_at_each_start_never_is_warm_and_is_said_why(tmp_path):
    script = 'mkdir -p "$TORCHINDUCTOR_CACHE_DIR/fxgraph"; echo 1 > "$TORCHINDUCTOR_CACHE_DIR/fxgraph/$$"'
    found = warmed(tmp_path, script, max_runs=2)
    assert found.end == "not-warm"
    assert [run.num_added for run in found.runs] == [1, 1]
    (why,) = found.why
    assert "inductor" in why and "fxgraph" in why and "each start" in why


def test_a_cache_that_drops_what_the_next_start_needs_is_too_small(tmp_path):
    script = 'rm -f "$CUDA_CACHE_PATH"/*; echo code > "$CUDA_CACHE_PATH/$$"'
    found = warmed(tmp_path, script, max_runs=2)
    assert found.end == "not-warm"
    assert "CUDA_CACHE_MAXSIZE" in found.why[0]


def test_a_cache_that_is_switched_off_is_named(tmp_path):
    found = warmed(tmp_path, "export CUDA_CACHE_DISABLE=1; true")
    assert not any("CUDA_CACHE_DISABLE" in note for note in found.notes)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CUDA_CACHE_DISABLE": "1"}
    request = of_run(
        WarmRequest,
        command=["true"],
        cwd=tmp_path / "project",
        env=env,
        base=tmp_path / "runs",
        lock=False,
        sandbox=False,
    )
    assert any("CUDA_CACHE_DISABLE" in note for note in warm(request, Silent()).notes)


def test_a_command_that_compiles_nothing_says_so(tmp_path):
    found = warmed(tmp_path, "true")
    assert (found.end, len(found.runs)) == ("nothing", 1)


def test_a_program_that_never_ends_is_over_with_the_line_that_says_it_is_ready(tmp_path):
    script = COMPILES_ONCE + "exec sleep 1000"
    found = warmed(tmp_path, script, ready_pattern="^ready$")
    assert found.end == "warm"
    assert {run.ended_by for run in found.runs} == {"window"}
    assert all(run.time_to_first_step_s is not None for run in found.runs)


def test_a_line_without_an_end_is_a_line_too(tmp_path):
    assert (
        warmed(tmp_path, "printf 'all is ready'", ready_pattern="ready").runs[0].time_to_first_step_s
        is not None
    )


def test_a_line_that_is_never_ended_is_named_as_the_reason(tmp_path):
    with pytest.raises(CannotRunHere, match="did not end the line"):
        warmed(tmp_path, "printf 'all is ready'; exec sleep 1000", ready_pattern="ready", timeout_s=1.0)


def test_a_program_that_ends_without_its_line_was_never_ready(tmp_path):
    with pytest.raises(CannotRunHere, match="without printing a line"):
        warmed(tmp_path, "echo other", ready_pattern="ready")


def test_a_program_that_does_not_get_ready_in_time_is_said(tmp_path):
    with pytest.raises(CannotRunHere, match="did not get to print"):
        warmed(tmp_path, "exec sleep 1000", ready_pattern="ready", timeout_s=0.1)
    with pytest.raises(CannotRunHere) as caught:
        warmed(tmp_path, "exec sleep 1000", timeout_s=0.1)
    assert "--ready-pattern" in caught.value.hint and "--run-to-end" in caught.value.hint


def test_a_command_that_fails_is_an_error_with_its_last_lines(tmp_path):
    with pytest.raises(CommandFailed) as caught:
        warmed(tmp_path, "echo no such model >&2; exit 7")
    assert caught.value.command_exit_code == 7
    assert caught.value.last_lines == ("no such model",)


def test_a_pattern_that_is_none_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(UsageError, match="no regular expression"):
        warmed(tmp_path, "true", ready_pattern="(")
    with pytest.raises(UsageError, match="matches an empty line"):
        warmed(tmp_path, "true", ready_pattern=".*")
    assert not (tmp_path / "runs").exists()


def test_warming_compiles_in_the_environment_of_a_start_without_dynotune(tmp_path):
    """No seed, no hash seed, no other variable that a key could hold."""
    (tmp_path / "project").mkdir()
    script = "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}), flush=True)"
    found = warmed(tmp_path, f'{sys.executable} -c "{script}"', run_to_end=True)
    (printed,) = Path(found.runs[0].folder, "stdout").read_text().splitlines()
    allowed = {
        "PATH",
        "HOME",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "DYNOTUNE_RUN",
        "DYNOTUNE_BYTECODE",
        "PYTHONPATH",
    }
    assert set(eval(printed)) - allowed == set(contents.variables(tmp_path))
