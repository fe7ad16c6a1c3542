"""What a user may do wrong, or a program be like: a clear error, and nothing is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from dynotune.launch import check_run, measuring
from dynotune.probe.facts.host import usable_cpus
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

from .conftest import CALL, CALLS, MARKED, TRAIN, User

PYTHON = sys.executable


@pytest.fixture
def script(user):
    """The script that a command names, which nothing starts."""
    user.write("x.py", "raise SystemExit('it was started')\n")


def said(done, code: int, *texts: str) -> None:
    assert done.returncode == code, done.stderr + done.stdout
    for text in texts:
        assert text in done.stderr, done.stderr


# Settings


@pytest.mark.parametrize(
    ("setting", "texts"),
    [
        ("loader.num_worker=2", ["Did you mean loader.num_workers"]),
        ("num_workers=2", ["loader.num_workers"]),
        ("loader.num_workers=many", ["'many'", "a whole number"]),
        ("loader.num_workers=-1", ["'-1'", "0 or more"]),
        ("loader.num_workers=99999999999999999999999", ["cannot be", "0 or more"]),
        ("matmul.fp32_precision=fast", ["'fast'", "highest, high, medium"]),
        ("loader.num_workers=@unset", ["takes environment variables away"]),
        ("loader.pin_memory", ["names a knob but no value", "loader.pin_memory=VALUE"]),
    ],
)
def test_a_setting_that_does_not_exist_is_told_what_does(user, setting, texts):
    done = user.types("compare", setting, "--run-dir", str(user.runs), "--", PYTHON, "x.py")
    said(done, 2, "next: ", *texts)
    assert not user.runs.exists()


def test_a_knob_that_needs_a_gpu_says_that_there_is_none(user):
    done = user.compares("alloc.expandable_segments=true", "--", PYTHON, "x.py")
    if done.returncode == 2:
        pytest.skip("there is a GPU, and no x.py")
    said(done, 3, "cannot work here", "next: ")
    assert not user.runs.exists()


@pytest.mark.usefixtures("script")
def test_the_same_setting_in_both_arms_is_nothing_to_compare(user):
    said(user.compares("env.A=1", "--baseline", "env.A=1", "--", PYTHON, "x.py"), 2, "Both arms are the same")


def test_contradicting_settings_are_refused_before_anything_runs(user):
    said(user.compares("env.A=1", "env.A=2", "--", PYTHON, "x.py"), 2, "both set env.A")


@pytest.mark.parametrize(
    "option",
    [
        "--pairs=1",
        "--pairs=49",
        "--margin=2",
        "--timeout=soon",
        "--budget=0s",
        "--budget=3",
        "--seed=-1",
        "--steps=99999999999999999999999999",
        "--warmup=99999999999999999999999999",
        "--caches=hot",
    ],
)
def test_an_option_out_of_range_is_refused_before_anything_runs(user, option):
    user.write("touches.py", "open('ran', 'w')")
    assert (
        user.types("compare", "env.A=1", option, "--no-sandbox", "--", PYTHON, "touches.py").returncode == 2
    )
    assert not (user.cwd / "ran").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--steps=0", "it takes 1 or more, not 0"),
        ("--steps=9999999999999", "it takes 1 to 1,000,000,000,000, not"),
        ("--pairs=49", "it takes 2 to 48, not 49"),
    ],
)
def test_a_number_out_of_range_is_told_the_end_that_it_is_beyond(user, option, words):
    said(user.compares("env.A=1", option, "--", PYTHON, "x.py"), 2, words)


def test_a_json_file_that_cannot_be_written_is_refused_before_anything_runs(user):
    user.write("touches.py", "open('ran', 'w')")
    done = user.compares("--json", "no/such/folder.json", "--no-sandbox", "--", PYTHON, "touches.py")
    said(done, 2, "Cannot write no/such/folder.json")
    assert not (user.cwd / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "env.A=1", "--json", "/proc/x.json"),
        ("diagnose", "--json", "/proc/x.json"),
        ("trace", "--json", "/proc/x.json"),
        ("startup", "time", "--json", "/proc/x.json"),
        ("startup", "warm", "--json", "/proc/x.json"),
        ("tune", "--json", "/proc/x.json"),
        ("tune", "--output", "/proc/x.toml"),
        ("tune", "--report", "/proc/x.html"),
        ("run", "--json", "/proc/x.json"),
    ],
    ids=" ".join,
)
def test_an_output_in_a_folder_that_takes_no_files_is_refused_before_anything_runs(user, words):
    """Root may write there by its rights, and no file can be made."""
    user.write("touches.py", "open('ran', 'w')")
    done = user.types(*words, "--", PYTHON, "touches.py")
    said(done, 2, f"Cannot write {words[-1]}", f"Name another file with {words[-2]}")
    assert not (user.cwd / "ran").exists()


def test_asking_whether_an_output_can_be_written_leaves_nothing_and_changes_nothing(user):
    before = user.write("old.json", "old")
    for name in ("new.json", "old.json"):
        said(user.compares("--json", name, "--", "pythn-of-nobody"), 2, "Command not found")
    assert sorted(path.name for path in user.cwd.iterdir()) == ["old.json"]
    assert before.read_text() == "old"


def test_a_recipe_that_could_not_be_left_in_this_folder_is_told_before_anything_runs(user):
    user.cwd.joinpath("recipe.toml").symlink_to(
        "nowhere/recipe.toml"
    )  # as a folder that takes no file of this name
    said(user.types("tune", "--", PYTHON, "x.py"), 2, "Cannot write recipe.toml", "--output")


# Commands


@pytest.fixture
def another_dynotune(user):
    """It measures on all cores and GPUs, and never ends."""
    state = Path(user.env["XDG_STATE_HOME"]) / "dynotune"
    with measuring(state, cpus=usable_cpus(), gpus=None, on_wait=lambda pid: None):
        yield


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "env.A=1"),
        ("diagnose",),
        ("trace",),
        ("tune",),
        ("startup", "time"),
        ("startup", "warm"),
        ("recipe", "verify", "recipe.toml"),
    ],
    ids=" ".join,
)
def test_a_command_that_is_not_found_waits_for_no_other_dynotune(user, another_dynotune, words):
    user.write(
        "recipe.toml", '[recipe]\nschema = "dynotune.recipe/2"\n[settings]\n"loader.num_workers" = 2\n'
    )
    done = user.types(*words, "--", "pythn-of-nobody", "train.py")
    said(done, 2, "Command not found: pythn-of-nobody")
    assert "Waiting" not in done.stderr
    assert not list(Path(user.env["XDG_STATE_HOME"]).glob("*/runs/*"))


@pytest.mark.parametrize("name", ["diagnose", "trace"])
def test_a_run_folder_that_cannot_be_made_waits_for_no_other_dynotune(user, another_dynotune, name):
    said(user.types(name, "--run-dir", "/proc/x", "--", PYTHON, "x.py"), 3, "Cannot make a run folder")


def test_a_command_that_only_a_settings_own_path_finds_is_left_to_the_run(tmp_path):
    run = RunSpec(command=["tool"], cwd=tmp_path, base=tmp_path / "runs", env={"PATH": "/nowhere"})
    check_run(run, [Setting("env.PATH", "/elsewhere")])
    check_run(msgspec.structs.replace(run, command=["{run_dir}/tool"]))
    with pytest.raises(UsageError, match="Command not found: tool"):
        check_run(run, [Setting("env.A", "1")])
    assert not run.base.exists()


def test_a_command_that_is_not_found_is_told(user):
    said(
        user.compares("--", "pythn-of-nobody", "train.py"), 2, "Command not found: pythn-of-nobody", "next: "
    )


def test_a_command_that_is_not_python_is_told(user):
    said(
        user.compares("--", "/bin/echo", "hello"),
        3,
        "No Python of this command began a record",
        "hello",
        "next: ",
    )


@pytest.mark.long
def test_a_python_that_switches_the_agent_off_is_told(user):
    user.write("train.py", CALL.replace("100_000", "30"))
    said(user.compares(*MARKED, "--", PYTHON, "-I", "train.py"), 3, "No Python of this command", "-I")


def test_a_command_that_never_imports_torch_is_told(user):
    said(user.trains("print('done')"), 3, "did not import torch", "done")


def test_a_command_that_fails_at_once_shows_its_last_lines(user):
    done = user.trains("raise SystemExit('no data in /nowhere')")
    said(done, 4, "failed in the baseline")
    assert "no data in /nowhere" in done.stdout
    assert "exit code 1" in done.stdout
    assert user.comparison()["failed"]["last_lines"] == ["no data in /nowhere"]


def test_an_arm_that_fails_alone_is_the_answer(user):
    done = user.trains("import os\nassert 'A' not in os.environ, 'A is not for me'\n" + CALL)
    said(done, 4, "failed in the candidate")
    assert "AssertionError: A is not for me" in done.stdout
    failed = user.comparison()["failed"]
    assert (failed["arm"], failed["exit_code"]) == ("candidate", 1)


@pytest.mark.long
def test_a_command_that_a_signal_ends_says_which(user):
    done = user.trains("import os\nos.kill(os.getpid(), 11)")
    said(done, 4)
    assert "by signal 11" in done.stdout


@pytest.mark.long
def test_a_command_that_hangs_ends_at_its_time_limit(user):
    done = user.trains(
        "import time, torch\nprint('waiting for data', flush=True)\ntime.sleep(1e6)", "--timeout", "6s"
    )
    said(done, 3, "in 6 s", "waiting for data", "--step-function")


@pytest.mark.long
def test_a_command_that_hangs_after_some_steps_is_told_so(user):
    program = CALLS + "for _ in range(12):\n    step()\nimport time\ntime.sleep(1e6)"
    said(user.trains(program, "--timeout", "8s"), 3, "longer than 8 s", "12 steps", "--timeout")


@pytest.mark.long
def test_a_command_without_steps_is_told_how_to_name_one(user):
    said(
        user.trains("import torch\ntorch.ones(3).sum()"),
        3,
        "made no step",
        "--step-function",
        "dynotune.step()",
    )


@pytest.mark.long
def test_a_command_with_fewer_steps_than_the_window_is_told_how_many(user):
    program = CALLS + "for _ in range(15):\n    step()\n"
    said(
        user.trains(program),
        3,
        "ends after 15 steps: too few to time 20 after 3",
        "next: ",
        "at least 23 steps",
    )


@pytest.mark.long
def test_a_command_that_is_over_in_a_moment_is_refused(user):
    user.write("train.py", CALLS.replace("0.01)\n", "0)\n") + "for _ in range(40):\n    step()\n")
    words = [
        "compare",
        "env.A=1",
        *MARKED,
        "--no-lock",
        "--run-dir",
        str(user.runs),
        "--",
        PYTHON,
        "train.py",
    ]
    said(user.types(*words), 3, "too short to tell", "run longer")


def test_a_command_that_goes_on_in_the_background_is_told_so(user):
    program = "import os\nif os.fork():\n    os._exit(0)\n" + CALL
    said(user.trains(program), 3, "background")


def test_a_command_that_ends_before_its_work_in_the_background_is_told_so_also_after_some_steps(user):
    some = (
        "import os\nread, write = os.pipe()\nif os.fork():\n    os.read(read, 1)\n    os._exit(0)\n" + CALLS
    )
    said(
        user.trains(
            some + "for _ in range(3):\n    step()\nos.write(write, b'.')\nwhile True:\n    step()\n"
        ),
        3,
        "background",
    )


def test_a_shell_that_leaves_its_work_in_the_background_is_told_so(user):
    user.write("train.py", CALL)
    said(user.compares(*MARKED, "--", "bash", "-c", f"{PYTHON} train.py & exit 0"), 3, "background")


def test_no_setting_is_nothing_to_compare(user):
    said(user.types("compare", "--", PYTHON, "x.py"), 2, "no setting to compare")


def test_a_missing_command_is_told_how_to_write_it(user):
    said(user.types("compare", "env.A=1"), 2, "-- python train.py")


# Programs with habits


@pytest.fixture(scope="module")
def compared(tmp_path_factory, dynotune_forks):
    """A user with a sitecustomize, and what came of comparing a training with its JSON on standard output."""
    user = User(tmp_path_factory.mktemp("compared"), dynotune_forks)
    user.env["PYTHONPATH"] += ":" + str(user.cwd)
    user.write("sitecustomize.py", "import builtins\nbuiltins.mine = True")
    return user, user.trains("assert mine\n" + TRAIN, "--json", "-")


@pytest.mark.long
def test_a_users_own_sitecustomize_still_runs(compared):
    _, done = compared
    said(done, 0)


def test_modules_that_the_command_brings_are_not_dynotunes_own(user):
    user.write("typing_extensions.py", "WHOSE = 'the command'")
    user.write("typer.py", "raise SystemExit(9)")
    user.env["PYTHONPATH"] = f"{user.cwd}:{user.env['PYTHONPATH']}"
    done = user.types("run", "--", PYTHON, "-c", "import typing_extensions as found; print(found.WHOSE)")
    said(done, 0)
    assert done.stdout == "the command\n"


@pytest.mark.long
def test_an_interpreter_that_is_asked_to_stay_is_the_commands(user):
    user.write("ends.py", "x = 1")
    user.env["PYTHONINSPECT"] = "1"
    assert user.types("run", "--", PYTHON, "ends.py").returncode == 0
    assert user.types("compare", "--", PYTHON, "absent.py").returncode == 2


@pytest.mark.parametrize(
    "words", [["report"], ["recipe", "show"], ["diagnose", "--replay"], ["run", "--recipe"]]
)
def test_subcommands_refuse_a_device_file_and_do_not_read_it_to_its_end(user, words):
    command = ["--", PYTHON, "x.py"] if words[0] == "run" else []
    done = user.types(*words, "/dev/zero", *command)
    assert done.returncode in (2, 3) and "not an ordinary file" in done.stderr


@pytest.mark.long
def test_a_program_may_replace_the_environment_close_all_files_and_leave_by_os_exit(user):
    program = (
        "import os\nos.environ = {'A': '9'}\n"
        + CALLS
        + "os.closerange(0, 4096)\nfor _ in range(30):\n    step()\nos._exit(0)\n"
    )
    done = user.trains(program, "--steps", "15")
    said(done, 0)
    assert user.comparison()["run"]["window_steps"] == 15
    assert user.num_finished() >= 1


@pytest.mark.long
def test_a_program_may_leave_by_os_exit_from_its_atexit(user):
    said(user.trains("import atexit, os\natexit.register(os._exit, 0)\n" + CALL), 0)


def test_the_folder_of_the_command_is_as_it_was(user):
    done = user.trains("open('checkpoint.pt', 'w').write('x')\nraise SystemExit(3)")
    said(done, 4)
    run = msgspec.json.decode((user.comparison_folder() / "pilot-baseline" / "run.json").read_bytes())
    assert run["changed_files"] == ["checkpoint.pt"]
    if run["sandbox"] == "none":
        pytest.skip("this kernel gives no copy-on-write view; the changed files are listed")
    assert sorted(path.name for path in user.cwd.iterdir()) == ["train.py"]


# Output


@pytest.mark.long
def test_json_on_standard_output_is_the_comparison_and_nothing_else(compared):
    user, done = compared
    said(done, 0, "pair  1", "Each run", "The window is")
    document = msgspec.json.decode(done.stdout)
    assert document["schema"] == "dynotune.comparison/2"
    assert document == user.comparison()
    assert user.num_finished() >= 1


@pytest.mark.long
def test_the_json_of_an_arm_that_fails_is_whole_too(user):
    done = user.trains("raise SystemExit('no data')", "--json", "-")
    said(done, 4, "no data")
    assert msgspec.json.decode(done.stdout)["failed"]["arm"] == "baseline"


@pytest.mark.parametrize(
    ("subcommand", "usage"),
    [
        ("compare", "dynotune compare [OPTIONS] [SETTING]... -- COMMAND"),
        ("run", "dynotune run [OPTIONS] -- COMMAND"),
        ("knobs", "dynotune knobs [OPTIONS] [ID]"),
        ("demo", "dynotune demo [OPTIONS]"),
    ],
)
def test_every_subcommand_explains_itself(user, subcommand, usage):
    user.env["COLUMNS"] = "100"
    done = user.types(subcommand, "--help")
    said(done, 0)
    assert usage in done.stdout
    assert done.stderr == ""
