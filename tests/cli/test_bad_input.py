"""What a user may do wrong, and what a program may do: a clear answer, and nothing lost."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from dynotune.schema import document
from dynotune.schema.comparison import Comparison

PYTHON = sys.executable


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def left_over(runs: Path) -> list[int]:
    """Processes that carry the mark of a run below `runs`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"DYNOTUNE_RUN={runs}".encode() in environ:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("loader.num_worker=2", "loader.num_workers"),
        ("loader.num_workers=two", "loader.num_workers"),
        ("loader.num_workers=-1", "loader.num_workers"),
        ("matmul.fp32_precision=fast", "highest"),
        ("loader.num_workers", "="),
    ],
)
def test_a_setting_that_does_not_exist_is_named_with_what_does(setting, words, cli):
    done = cli.compare(setting, command=[PYTHON, "-c", "pass"])
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_comparing_nothing_is_wrong_usage(cli):
    assert cli.compare(command=[PYTHON, "-c", "pass"]).returncode == 2


def test_no_command_is_wrong_usage(cli):
    done = cli("compare", "env.A=1")
    assert done.returncode == 2 and "--" in done.stderr


def test_a_knob_that_needs_a_gpu_says_so(cli):
    done = cli.compare("alloc.expandable_segments=true", command=cli.program())
    assert done.returncode == 3
    assert "CUDA" in done.stderr or "GPU" in done.stderr


def test_a_command_that_is_not_found(cli):
    done = cli.compare("env.A=1", command=["no-such-program-here"])
    assert done.returncode == 2 and "no-such-program-here" in done.stderr


def test_a_command_that_is_not_python(cli):
    done = cli.compare("env.A=1", command=["true"])
    assert done.returncode == 3 and "Python" in done.stderr


def test_a_command_that_never_imports_torch(cli):
    done = cli.compare("env.A=1", command=[PYTHON, "-c", "print('hello')"])
    assert done.returncode == 3 and "torch" in done.stderr


def test_an_isolated_python_is_refused_with_the_reason(cli):
    command = cli.program()
    done = cli.compare("env.A=1", command=[command[0], "-I", command[1]])
    assert done.returncode == 3 and "-I" in done.stderr


def test_a_command_that_fails_at_once_shows_its_last_lines(cli):
    done = cli.compare("env.A=1", command=cli.program("raise SystemExit('no such dataset: /data')"))
    assert done.returncode == 4
    assert "no such dataset: /data" in done.stdout + done.stderr


def test_a_command_that_fails_in_one_arm_is_the_answer(cli):
    first = "import os\nif os.environ.get('BREAK'): raise RuntimeError('broken by BREAK')"
    done = cli.compare("env.BREAK=1", "--json", "-", command=cli.program(first))
    assert done.returncode == 4
    comparison = msgspec.json.decode(done.stdout, type=Comparison)
    assert (comparison.failed.arm, comparison.failed.exit_code) == ("candidate", 1)
    assert any("broken by BREAK" in line for line in comparison.failed.last_lines)
    assert comparison.verdict is None


def test_a_command_that_hangs_is_ended_at_the_timeout(cli):
    done = cli.compare("env.A=1", "--timeout", "6s", command=cli.program("import time; time.sleep(600)"))
    assert done.returncode == 3 and "6 s" in done.stderr
    assert left_over(cli.runs) == []


def test_a_command_without_a_step_is_told_of_step_on(cli):
    done = cli.compare("env.A=1", command=[PYTHON, "-c", "import torch; print(torch.ones(3).sum())"])
    assert done.returncode == 3 and "--step-on" in done.stderr


def test_a_command_with_fewer_steps_than_the_window(cli):
    done = cli.compare("env.A=1", command=cli.program("", "", "--epochs", "3"))
    assert done.returncode == 3 and "30 steps" in done.stderr


def test_a_command_that_goes_on_in_the_background(cli):
    command = cli.program()
    done = cli.compare("env.A=1", command=["bash", "-c", f"{command[0]} {command[1]} & exit 0"])
    assert done.returncode == 3 and "background" in done.stderr
    assert left_over(cli.runs) == []


def test_a_run_folder_that_cannot_be_written(cli, tmp_path):
    (tmp_path / "records").write_text("a file where the folder should be")
    done = cli.compare("env.A=1", command=cli.program())
    assert done.returncode == 3 and "--run-dir" in done.stderr


def test_a_full_disk_under_the_run_folder(cli):
    """Files may not grow beyond 64 KiB, as on a full disk."""
    import resource

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))

    done = cli.compare("env.A=1", command=cli.program(), preexec_fn=full)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert left_over(cli.runs) == []


def test_json_on_standard_output_is_json_alone_and_progress_goes_to_stderr(cli):
    done = cli.compare("env.DYNOTUNE_NOTHING=1", "--json", "-", command=cli.program())
    assert done.returncode == 0, done.stderr
    comparison = msgspec.json.decode(done.stdout, type=Comparison)
    assert (comparison.warmup_steps, comparison.window_steps, comparison.unit) == (5, 200, "sample")
    assert comparison.verdict == "undecided"  # two pairs settle nothing
    assert comparison.readback["env.DYNOTUNE_NOTHING"].ok
    assert "Each run" in done.stderr


def test_the_folder_of_the_command_is_as_it_was(cli):
    command = cli.program("open('checkpoint.pt', 'w').write('x')")
    before = sorted(path.name for path in cli.work.iterdir())
    done = cli.compare("env.DYNOTUNE_NOTHING=1", "--json", "-", command=command)
    assert done.returncode == 0, done.stderr
    run = json.loads(next(cli.runs.glob("*/pilot-baseline/run.json")).read_text())
    if run["sandbox"] == "none":
        pytest.skip("no copy-on-write view here; the changed files are listed: " + str(run["changed_files"]))
    assert sorted(path.name for path in cli.work.iterdir()) == before
    assert "checkpoint.pt" in run["changed_files"]


def test_ctrl_c_keeps_the_finished_pairs_and_resume_goes_on(cli):
    command = cli.program()
    words = ["--pairs", "4", "--warmup", "5", "--steps", "200", "--no-lock", "--run-dir", cli.runs]
    running = cli.start("compare", "env.DYNOTUNE_NOTHING=1", *words, "--", *command, start_new_session=True)

    def pairs() -> int:
        found = list(cli.runs.glob("*/comparison.json"))
        if not found:
            return 0
        comparison = document.read(found[0], Comparison)
        return len(comparison.pairs) + len(comparison.voided)

    wait_until(lambda: pairs() >= 1)
    os.killpg(running.pid, signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in stderr and "Traceback" not in stderr
    assert left_over(cli.runs) == []
    file = next(cli.runs.glob("*/comparison.json"))
    before = document.read(file, Comparison)
    assert pairs() >= 1

    done = cli("compare", "--resume", file.parent.name, "--no-lock", "--run-dir", cli.runs)
    assert done.returncode == 0, done.stderr
    after = document.read(file, Comparison)
    assert after.pairs[: len(before.pairs)] == before.pairs
    assert (after.window_steps, after.max_pairs) == (200, 4)
    assert after.verdict is not None


def test_resuming_what_is_not_there_or_of_another_version_or_cut_short(cli):
    assert cli("compare", "--resume", "nothing", "--run-dir", cli.runs).returncode == 2
    folder = cli.runs / "old"
    folder.mkdir(parents=True)
    file = folder / "comparison.json"
    file.write_text('{"schema": "dynotune.comparison/2"}')
    done = cli("compare", "--resume", "old", "--run-dir", cli.runs)
    assert done.returncode == 3 and "comparison/2" in done.stderr
    file.write_text('{"schema": "dynotune.comparison/1", "id": "x", "comm')
    done = cli("compare", "--resume", "old", "--run-dir", cli.runs)
    assert done.returncode == 3 and "complete" in done.stderr


def test_the_second_of_two_that_measure_waits_and_says_so(cli):
    command = cli.program()
    words = ["--pairs", "2", "--warmup", "5", "--steps", "200", "--run-dir", cli.runs, "--", *command]
    first = cli.start("compare", "env.DYNOTUNE_NOTHING=1", *words)
    wait_until(lambda: any(cli.runs.glob("*/pilot-baseline/plan.json")))
    second = cli("compare", "env.DYNOTUNE_NOTHING=2", *words)
    first.communicate(timeout=120)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "Waiting" in second.stderr and "--no-lock" in second.stderr


@pytest.mark.parametrize(
    "first",
    [
        "os.environ = {'PATH': os.environ['PATH']}",
        "os.closerange(3, 4096)",
        "import atexit; atexit.register(os._exit, 0)",
    ],
)
def test_a_program_that_takes_away_what_the_agent_might_need(first, cli):
    done = cli.compare("env.DYNOTUNE_NOTHING=1", "--json", "-", command=cli.program(first))
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout, type=Comparison).warnings == [] or "agent" not in done.stdout


def test_a_recipe_is_applied_and_a_hostile_or_newer_one_refused(cli):
    recipe = cli.work / "recipe.toml"
    recipe.write_text('[recipe]\nschema = "dynotune.recipe/1"\n[settings]\n"host.num_threads" = 1\n')
    program = [PYTHON, "-c", "import torch; print(torch.get_num_threads())"]
    done = cli("run", "--recipe", recipe, "--run-dir", cli.runs, "--", *program)
    assert (done.returncode, done.stdout.strip()) == (0, "1")
    for text, words in [
        ('[recipe]\nschema = "dynotune.recipe/2"\n', "recipe/2"),
        ('[recipe]\nschema = "dynotune.recipe/1"\n[settings]\n"no.knob" = 1\n', "no.knob"),
        ('[recipe]\nschema = "dynotune.recipe/1"\n[settings]\n"host.num_threads" = [1]\n', "recipe"),
        ("not toml", "TOML"),
    ]:
        recipe.write_text(text)
        done = cli("run", "--recipe", recipe, "--run-dir", cli.runs, "--", *program)
        assert done.returncode in (2, 3) and words in done.stderr, done.stderr
        assert done.stdout == ""


def test_run_is_transparent(cli):
    for command, code in [("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM), ("true", 0)]:
        assert cli("run", "--run-dir", cli.runs, "--", "bash", "-c", command).returncode == code
    done = cli("run", "--run-dir", cli.runs, "--", "bash", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


@pytest.mark.parametrize("name", ["", "compare", "run", "knobs", "demo"])
def test_help_is_there(name, cli):
    done = cli(*([name] if name else []), "--help")
    assert done.returncode == 0 and "Usage" in done.stdout
