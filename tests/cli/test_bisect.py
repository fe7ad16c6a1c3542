"""`dynotune bisect`: what it refuses, how it ends, and how it goes on."""

from __future__ import annotations

import shutil
import sys

import pytest

from dynotune import cli
from dynotune.measure.bench import protocol as bench
from dynotune.schema import document
from dynotune.schema.bisection import Bisection
from lab.bisected import write_history

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
TRAIN = ["--", sys.executable, "train.py"]


@pytest.fixture
def types(tmp_path, monkeypatch, capsys):
    """Runs `dynotune …` here, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        seen = capsys.readouterr()
        return end.value.code, seen.out, " ".join(seen.err.split())

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--good", "git.ref=a"], "A bisection needs both ends"),
        (["--good", "git.ref=a", "--bad", "git.ref=a"], "Both ends are the same"),
        (["--good", "git.ref=a", "--bad", "arg.x=1"], "are no ends of one kind"),
        (["--good", "git.ref=a", "--bad", "git.ref=b"], "not a git repository"),
        (["--good", "git.ref=a", "--bad", "git.ref=b", "--set", "git.ref=c"], "bisection decide git.ref"),
    ],
)
def test_bisect_is_refused_when_its_ends_make_no_line(types, words, said):
    code, out, err = types("bisect", *words, *TRAIN)
    assert code == 2 and not out and said in err


def test_bisect_goes_on_and_reports_again_after_an_interruption(types, tmp_path, monkeypatch):
    place = tmp_path / "history"
    write_history(place, 5, 3, 1.0)
    monkeypatch.chdir(place)

    def compare(request, watcher):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "compare", compare)
    code, _, err = types("bisect", "--good", "git.ref=HEAD~4", "--bad", "git.ref=HEAD", *TRAIN)
    (folder,) = (tmp_path / "state" / "dynotune" / "runs").iterdir()
    assert code == 130 and f"dynotune bisect --resume {folder.name}" in err
    assert "4 commits from git.ref=HEAD~4" in err
    code, out, _ = types("report", str(folder))
    assert code == 0 and "Not finished" in out
    code, _, err = types("bisect", "--resume", folder.name)
    assert code == 130 and f"dynotune bisect --resume {folder.name}" in err


@pytest.mark.long
def test_bisect_finds_the_commit_that_doubled_the_work(types, tmp_path, monkeypatch):
    place = tmp_path / "history"
    write_history(place, 5, 3, 1.0)
    monkeypatch.chdir(place)
    ends = ["--good", "git.ref=HEAD~4", "--bad", "git.ref=HEAD"]
    answer = tmp_path / "answer.json"
    code, out, err = types(
        "bisect", *ends, "--step-function", "train:step", "--steps", "60", "--json", str(answer), *TRAIN
    )
    found = document.read(answer, Bisection)
    assert code == 0, err
    assert found.first_bad == 3 and "Change 3" in out and "work.py" in out
    assert found.confirmed.ci[0] < 0.5 < found.confirmed.ci[1] or found.confirmed.speedup < 0.7
