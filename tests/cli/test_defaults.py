"""A project's defaults: found, checked, told, and never able to say what is run, read or written."""

from __future__ import annotations

import os
import sys

import pytest

from dynotune import cli
from dynotune.cli import defaults

from .conftest import CALL, MARKED
from .test_mistakes import is_told

FEW = "warmup = 3\nsteps = 20\npairs = 2\n"


def test_a_file_above_the_working_folder_sets_options_and_the_command_line_wins(user):
    (user.cwd / ".git").mkdir()
    user.write("dynotune.toml", f"[compare]\n{FEW}in-process = 'never'\nlock = false\n")
    user.write("train.py", CALL)
    words = (
        "compare",
        "env.A=1",
        *MARKED,
        "--run-dir",
        str(user.runs),
        "--steps",
        "15",
        "--",
        sys.executable,
    )
    done = user.types(*words, str(user.cwd / "train.py"), cwd=_below(user))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("From ")]
    assert len(told) == 1 and "dynotune.toml: --warmup 3 --pairs 2" in told[0] and "--steps" not in told[0]
    assert user.comparison()["max_pairs"] == 2 and user.comparison()["run"]["window_steps"] == 15


def test_quiet_says_nothing_beside_the_answer_and_changes_no_exit_code(user):
    user.write("dynotune.toml", f"[compare]\n{FEW}fail-on = 'not-faster'\n")
    user.write("train.py", CALL)
    words = (
        "compare",
        "env.A=1",
        *MARKED,
        "--no-lock",
        "--run-dir",
        str(user.runs),
        "-q",
        "--",
        sys.executable,
    )
    done = user.types(*words, "train.py")
    assert done.returncode == (user.comparison()["verdict"] != "faster")
    assert done.stderr == "" and "verdict" in done.stdout


def test_quiet_stands_before_the_subcommand_too_and_errors_are_said(user):
    assert "verdict" in user.types("-q", "doctor").stdout
    assert "no knob" in user.types("--quiet", "knobs", "nonsense.nonsense").stderr


def test_a_table_of_pyproject_does_the_same(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'x'\n[tool.dynotune.startup.time]\nblocks = 3\n"
    )
    found, told = defaults.of_project(tmp_path, cli._parser(["startup"]), ["startup", "time"])
    assert found == {"startup": {"time": {"blocks": "3"}}} and "--blocks 3" in told


@pytest.mark.parametrize("words", [["--resume", "x"], ["--resume=x"]])
def test_resumed_work_keeps_its_budget_when_the_projects_file_names_another(tmp_path, words):
    (tmp_path / "dynotune.toml").write_text("[tune]\nbudget = '3m'\nlock = false\nsteps = 20\n")
    found, told = defaults.of_project(tmp_path, cli._parser(["tune"]), ["tune", *words])
    assert found == {"tune": {"lock": False}}
    assert told.endswith("dynotune.toml: --lock False")


def test_a_pyproject_of_another_shape_is_another_programs(tmp_path):
    (tmp_path / "pyproject.toml").write_text("tool = 1\n")
    assert defaults.of_project(tmp_path, cli._parser(["compare"]), ["compare"]) == ({}, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_working_folder_that_may_not_be_looked_into_has_no_defaults(tmp_path):
    (tmp_path / "project").mkdir()
    tmp_path.chmod(0o700)
    pid = os.fork()
    if pid == 0:
        os.chdir(tmp_path / "project")
        os.setuid(65534)
        try:
            os._exit(defaults.of_project(tmp_path / "project", None, ["compare"]) != ({}, ""))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_files_above_the_repository_or_of_nobodys_folder_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/nowhere")
    (tmp_path / "dynotune.toml").write_text("[compare]\npairs = 3\n")
    below = tmp_path / "repository" / "src"
    below.mkdir(parents=True)

    def taken() -> dict:
        return defaults.of_project(below, cli._parser(["compare"]), ["compare"])[0]

    assert not taken()
    (below.parent / ".git").mkdir()
    assert not taken()
    (tmp_path / ".git").mkdir()
    (below.parent / ".git").rmdir()
    assert taken()


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("[compre]\npairs = 3", "dynotune.toml:1: 'compre' is no subcommand", "compare"),
        ("[compare]\npars = 3", "dynotune.toml:2: 'pars' is no option of dynotune compare", "pairs"),
        ("[compare]\n\npairs = 'many'", "dynotune.toml:3: Invalid value for '--pairs'", "Correct"),
        ("[compare]\npairs = true", "dynotune.toml:2: --pairs takes a value", "Correct"),
        ("[compare]\npairs = [1]", "dynotune.toml:2: Invalid value for '--pairs'", "Correct"),
        ("[compare]\npairs = 200", "dynotune.toml:2: ", "Correct"),
        ("[compare]\nrun-to-end = 'yes'", "dynotune.toml:2: --run-to-end takes true or false", "Correct"),
        ("[compare]\nbudget = 3", "dynotune.toml:2: --budget 3 has no unit", "--budget 3m"),
        ("[compare]\nrun-dir = '/x'", "dynotune.toml:2: --run-dir is not taken from a file", "command line"),
        ("[compare]\nset = ['env.A=1']", "'set' is no option of dynotune compare", ""),
        ("compare = 3", "compare is a subcommand", "[compare]"),
        ("[compare", "cannot be read", "Correct it"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path, monkeypatch, capsys, text, what, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dynotune.toml").write_text(text)
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", "env.A=1", "--", "python", "x.py"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    is_told(said, what, hint)


def test_accepted_defaults_are_neither_commands_nor_places():
    taken = set()
    for name in cli.COMMANDS:
        waiting = [cli._parser([name]).commands[name]]
        while waiting:
            command = waiting.pop()
            waiting.extend(getattr(command, "commands", {}).values())
            flags = {(flag, param.metavar) for param in command.params for flag in param.opts}
            taken |= {
                flag for flag, metavar in flags if flag in defaults.ACCEPTED and "FILE" not in (metavar or "")
            }
    assert taken == defaults.ACCEPTED
    assert not taken & {
        "--set",
        "--baseline",
        "--try",
        "--values",
        "--recipe",
        "--python",
        "--metric",
        "--on-alert",
    }
    assert not taken & {
        "--allow",
        "--allow-run",
        "--trust",
        "--force",
        "--sandbox",
        "--step-function",
        "--ray",
    }
    assert not taken & {
        "--json",
        "--output",
        "--report",
        "--html",
        "--run-dir",
        "--caches",
        "--serve",
        "--storage",
    }


def _below(user):
    folder = user.cwd / "src"
    folder.mkdir()
    return folder


def test_a_file_ends_no_command_when_a_limit_of_watch_stands_in_it(user):
    user.write("dynotune.toml", '[watch]\nfail-on = ["stalled:1s"]\n')
    done = user.types("watch", "--run-dir", str(user.runs), "--", sys.executable, "-c", "print(1)")
    assert done.returncode == 2 and "--fail-on is not taken from a file" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("given", [".git", "dynotune.toml", "both"])
def test_a_file_above_is_not_read_when_it_belongs_to_somebody_else(tmp_path, given):
    below = tmp_path / "shared" / "mine"
    below.mkdir(parents=True)
    (below.parent / ".git").mkdir()
    (below.parent / "dynotune.toml").write_text("[doctor]\nfail-on = 'low'\n")
    assert [path.parent for path, *_ in defaults._tables(below)] == [below.parent]
    for name in (".git", "dynotune.toml"):
        if given in (name, "both"):
            os.chown(below.parent / name, 61002, 61002)
    assert list(defaults._tables(below)) == []
    os.chown(below, 61002, 61002)  # a folder of the same user's, as a volume in a container
    assert [path.parent for path, *_ in defaults._tables(below)] == [below.parent]
