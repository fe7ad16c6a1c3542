"""Live pages of studies and comparisons: beside the work, and joined by a folder."""

from __future__ import annotations

import io
import re
import urllib.request
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from dynotune import cli
from dynotune.cli import serving
from dynotune.report import Progress
from dynotune.schema import document
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

BEGUN = Comparison(
    id="c",
    run=RunSpec(command=["python", "train.py"], cwd=Path("/"), env={}, base=Path("/runs")),
    candidate_settings=[Setting("loader.num_workers", "2")],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    document.write(tmp_path / "comparison.json", BEGUN)
    return tmp_path


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def test_page_shows_what_is_measured_once_its_folder_is_known(folder, capsys):
    progress = Progress(Console(file=io.StringIO(), force_terminal=False))
    with serving.measured("127.0.0.1:0", None, progress):
        (url,) = re.findall(r"serving (\S+)", capsys.readouterr().err)
        asked = url.replace("/?", "/page.json?")
        assert got(asked) == "{}"
        progress.begun(folder)
        progress.running("pair 1 of at most 12: baseline", left_s=60.0)
        assert "pair 1 of at most 12: baseline" in got(asked)
        assert "Nothing is proved yet" in got(url)


def test_address_is_told_without_a_token_of_the_users_own(folder, capsys):
    progress = Progress(Console(file=io.StringIO(), force_terminal=False))
    with serving.measured("127.0.0.1:0", "a-word", progress):
        assert "a-word" not in capsys.readouterr().err


def test_nothing_is_served_without_an_address_and_a_wrong_one_is_refused_before_the_work(capsys):
    progress = Progress(Console(file=io.StringIO(), force_terminal=False))
    with serving.measured(None, None, progress):
        assert capsys.readouterr().err == ""
    with pytest.raises(UsageError, match="is no address"), serving.measured("nowhere", None, progress):
        raise AssertionError("it has begun")


def test_watch_prints_the_report_of_a_comparison_when_it_has_its_answer(user, folder):
    document.write(folder / "comparison.json", replace(BEGUN, verdict="same", speedup=1.0, ci=(0.99, 1.01)))
    done = user.types("watch", str(folder))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("verdict  no effect")


def test_watch_ends_with_what_is_known_when_nobody_measures_any_more(user, folder):
    done = user.types("watch", str(folder))
    assert done.returncode == 0
    assert "verdict  no verdict" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--fail-on", "stalled:5m"),
        ("--log", "tensorboard"),
        ("--otlp", "http://127.0.0.1:1"),
        ("--exact",),
        ("--step-function", "m:f"),
    ],
)
def test_watch_refuses_what_would_do_nothing_for_a_comparison(folder, capsys, words):
    with pytest.raises(SystemExit) as end:
        cli.main(["watch", *words, str(folder)])
    assert end.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has no alerts and takes no settings" in said and f"{words[0]} would do nothing" in said


@pytest.mark.parametrize(
    "words", [("--exact",), ("--strict",), ("--run-dir", "x"), ("--step-function", "m:f")]
)
def test_watch_refuses_what_would_do_nothing_for_a_run_that_has_begun(tmp_path, capsys, words):
    with pytest.raises(SystemExit) as end:
        cli.main(["watch", *words, str(tmp_path)])
    assert end.value.code == 2
    assert f"{words[0]} is of a command" in " ".join(capsys.readouterr().err.split())
