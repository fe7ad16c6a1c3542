"""`dynotune report`: what was found before, from the files that hold it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from dynotune import cli
from dynotune.schema import document, private
from dynotune.schema.diagnosis import Examination
from dynotune.schema.document import write
from dynotune.schema.study import Study

from ..report import answers, studies
from ..report.accounts import ACCOUNT
from ..report.summaries import summary
from ..report.timed_starts import FOUND

EXAMINED = Examination(facts={}, findings=[], unknown=[])


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A wide terminal."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def folder(tmp_path) -> Path:
    write(tmp_path / "study.json", studies.rich())
    return tmp_path


def report(capsys, *argv: object, exit_code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["report", *map(str, argv)])
    said = capsys.readouterr()
    assert end.value.code == exit_code, said
    return said.out, said.err


def test_of_a_study_the_terminal_and_the_page_tell_it_again(capsys, folder):
    out, err = report(capsys, folder)
    assert "2.31×" in out
    assert "loader.num_workers=8" in out
    assert f"Report: {folder / 'report.html'}" in err.replace("\n", "")
    assert "Three settings make it 2.31× faster" in (folder / "report.html").read_text()


def test_without_a_path_it_is_the_last_run_that_has_a_report(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    _, err = report(capsys, exit_code=2)
    assert "There is no earlier run." in err and "dynotune report PATH" in err
    runs = private.state_folder() / "runs"
    for name in ("20260101-000000-000-aa", "20260102-000000-000-aa", "20260103-000000-000-aa"):
        (runs / name).mkdir(parents=True)
    write(runs / "20260101-000000-000-aa" / "study.json", studies.rich())
    write(
        runs / "20260102-000000-000-aa" / "study.json", msgspec.structs.replace(studies.rich(), recipe=None)
    )
    _, err = report(capsys)
    assert "20260102-000000-000-aa" in err.replace("\n", "")
    assert (runs / "20260102-000000-000-aa" / "report.html").exists()


@pytest.mark.parametrize("option", ["--html", "--sarif", "--speedscope"])
def test_a_page_is_no_file_named_like_standard_output(capsys, folder, monkeypatch, option):
    monkeypatch.chdir(folder)
    _, err = report(capsys, folder, option, "-", exit_code=2)
    assert f"{option} - is no file." in err and "--markdown -" in err
    assert not (folder / "-").exists()


def test_the_file_itself_can_be_named_and_the_page_put_elsewhere(capsys, folder):
    report(capsys, folder / "study.json", "--html", folder / "other.html")
    assert (folder / "other.html").exists()
    assert not (folder / "report.html").exists()


def test_the_recipe_beside_the_study_is_in_the_page(capsys, folder):
    (folder / "recipe.toml").write_text("# proved <here>\n[settings]\n")
    report(capsys, folder)
    assert "# proved &lt;here&gt;" in (folder / "report.html").read_text()


def test_json_on_standard_output_stands_alone(capsys, folder):
    out, _ = report(capsys, folder, "--json", "-")
    assert document.decode(out.encode(), Study, name="stdout") == studies.rich()


def test_a_folder_that_cannot_be_written_to_takes_away_the_page_alone(capsys, folder):
    (folder / "report.html").mkdir()
    out, err = report(capsys, folder, exit_code=3)
    assert "2.31×" in out
    assert "Cannot write" in err
    assert "--html FILE" in err


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write_takes_away_the_page_alone(capsys, folder):
    folder.chmod(0o500)
    out, err = report(capsys, folder, exit_code=3)
    assert "2.31×" in out
    assert "Permission denied" in err


def test_a_comparison_is_told_as_compare_tells_it(capsys, tmp_path):
    confirmed = studies.rich().confirmed
    assert confirmed is not None
    write(tmp_path / "comparison.json", confirmed)
    out, _ = report(capsys, tmp_path)
    assert "2.31× faster" in out
    assert not (tmp_path / "report.html").exists()


def test_a_diagnosis_and_a_trace_are_told_as_they_were(capsys, tmp_path):
    write(tmp_path / "diagnosis.json", studies.diagnosis())
    assert "num-workers-zero" in report(capsys, tmp_path / "diagnosis.json")[0]
    write(tmp_path / "trace.json", summary())
    assert "verdict" in report(capsys, tmp_path / "trace.json")[0]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (summary, "DataLoader"),
        (lambda: ACCOUNT, "8.50 GiB"),
        (lambda: FOUND, "A start takes 5 s"),
        (lambda: EXAMINED, "Nothing here costs speed"),
    ],
)
def test_report_writes_page_and_markdown_of_traces_memory_and_starts(capsys, tmp_path, made, told):
    write(tmp_path / "found.json", made())
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    report(capsys, tmp_path / "found.json", "--html", page, "--markdown", text)
    shown = page.read_text().replace("\u00a0", " ")  # a number and its unit stand on one line
    assert told in shown and told in text.read_text()


@pytest.mark.parametrize(
    ("made", "told"), [(answers.comparison, "1.42× faster"), (answers.diagnosis, "61% of it")]
)
def test_of_a_comparison_and_a_diagnosis_a_page_and_markdown_are_written_where_asked(
    capsys, tmp_path, made, told
):
    write(tmp_path / "found.json", made())
    report(capsys, tmp_path / "found.json")
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    _, err = report(capsys, tmp_path / "found.json", "--html", page, "--markdown", text)
    assert err.count("Report: ") == 2
    assert told in page.read_text() and told in text.read_text()


def test_markdown_on_standard_output_stands_alone(capsys, folder):
    out, _ = report(capsys, folder / "study.json", "--markdown", "-")
    assert out.startswith("# dynotune tune\n") and "Three settings make it 2.31× faster" in out


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_told(capsys, folder):
    out, err = report(capsys, folder, "--markdown", folder / "none" / "x.md", exit_code=2)
    assert out == "" and "there is no folder" in err


def test_markdown_and_json_cannot_both_be_on_standard_output(capsys, folder):
    out, err = report(capsys, folder, "--markdown", "-", "--json", "-", exit_code=2)
    assert out == "" and "Name a file for one of them" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a JSON document"),
        ("{", "is not a JSON document"),
        ("\x00\x01", "is not a JSON document"),
        ("[" * 100_000, "is not a JSON document"),
        ("[]", "is not a JSON document"),
        ("{}", "holds no report"),
        ('{"schema": "other/1"}', "holds no report"),
        ('{"schema": "dynotune.run/1"}', "it is a run"),
        ('{"schema": "dynotune.explanation/1"}', "it is an explanation"),
    ],
)
def test_a_file_that_is_no_document_of_ours_is_refused(text, said, capsys, tmp_path):
    (tmp_path / "some.json").write_text(text)
    assert said in report(capsys, tmp_path / "some.json", exit_code=2)[1]


def test_a_study_of_a_newer_version_or_cut_short_is_refused(capsys, folder):
    made = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(made | {"schema": "dynotune.study/3"}))
    assert "this dynotune reads dynotune.study/2" in report(capsys, folder, exit_code=3)[1]
    (folder / "study.json").write_text(json.dumps(made | {"trials": 3}))
    assert "not a valid dynotune.study/2" in report(capsys, folder, exit_code=3)[1]


def test_a_folder_without_anything_to_tell_says_what_it_looked_for(capsys, tmp_path):
    said = report(capsys, tmp_path, exit_code=2)[1]
    assert "study.json, bisection.json, comparison.json, observation.json" in said
    assert "There is no" in report(capsys, tmp_path / "none", exit_code=2)[1]


def test_strange_names_of_files_do_no_harm(capsys, tmp_path):
    strange = tmp_path / "a\x1b[31mb"
    strange.mkdir()
    write(strange / "study.json", studies.one_candidate())
    _, err = report(capsys, strange)
    assert "\x1b" not in err


def test_report_writes_the_findings_of_a_diagnosis_for_editors(capsys, tmp_path):
    write(tmp_path / "diagnosis.json", answers.diagnosis())
    _, err = report(capsys, tmp_path / "diagnosis.json", "--sarif", tmp_path / "found.sarif")
    (run,) = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["num-workers-zero", "cpu-governor-powersave"]
    assert "Written:" in err


@pytest.mark.parametrize(
    ("option", "says"), [("--sarif", "has no findings"), ("--speedscope", "keeps no lines")]
)
def test_report_refuses_what_a_comparison_does_not_hold(capsys, tmp_path, option, says):
    write(tmp_path / "comparison.json", answers.undecided())
    _, err = report(capsys, tmp_path, option, tmp_path / "out.json", exit_code=2)
    assert says in err and "next:" in err
    assert not (tmp_path / "out.json").exists()
