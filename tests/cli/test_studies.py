"""Studies in a database: listed, shown again, shared by real processes, and no password anywhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import pytest
from msgspec.structs import replace

from dynotune import cli
from dynotune.fleet import open_store
from dynotune.schema.setting import Setting
from dynotune.schema.study import Study, Trial

from ..fakes import of_run
from .conftest import DEADLINE_S, MARKED, User, until
from .test_bad_input import said

PYTHON = sys.executable
PASSWORD = "Pg-3ecret-5-studies"
# dynotune with leases that end soon after a worker is killed.
QUICK_LEASES = """
import sys
from dynotune.fleet import store
store.open_store.__kwdefaults__["lease_s"] = 5.0
from dynotune.cli import main
main(sys.argv[1:])
"""
PROGRAM = """
import os, time, dynotune
def step():
    time.sleep(0.005 if os.environ.get("A") else 0.01)
    dynotune.step()
for _ in range(100_000):
    step()
"""


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'studies.db'}"


@pytest.fixture
def kept(url):
    trial = Trial(arm="", phase="pilot", block=0, ended="measured", run="0001-pilot")
    study = of_run(
        Study, id="s", name="night", command=["python", "train.py"], budget_s=900.0, trials=[trial]
    )
    with open_store(url, pytest.fail) as store:
        store.enter(study, "asked", "/runs")
        store.save(replace(study, verdict="Nothing helps.", finished=True, recipe=[Setting("env.A", "1")]))
    return study


def dynotune(*words) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code


def test_studies_are_listed_with_what_became_of_them(url, kept, capsys, monkeypatch):
    assert dynotune("studies", "--storage", url, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "study": "night", "state": "finished", "runs": 1, "workers": 0, "command": "python train.py",
            "verdict": "Nothing helps.",
        }
    ]  # fmt: skip
    monkeypatch.setenv("DYNOTUNE_STORAGE", url)
    assert dynotune("studies") == 0
    assert "night" in capsys.readouterr().out


def test_a_study_of_the_database_is_shown_again_as_report_page_and_json(url, kept, capsys, tmp_path):
    words = ("report", "--storage", url, "--study", "night")
    assert dynotune(*words, "--html", str(tmp_path / "page.html")) == 0
    assert "Nothing helps." in capsys.readouterr().out
    assert "Nothing helps." in (tmp_path / "page.html").read_text()
    # A recipe that lies beside it is of another study.
    (tmp_path / "recipe.toml").write_text("foreign = true")
    assert dynotune(*words, "--html", str(tmp_path / "page.html")) == 0
    assert "foreign" not in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    assert dynotune(*words, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["trials"][0]["run"].endswith(":/runs/0001-pilot")


@pytest.mark.parametrize(
    "words, told",
    [
        (("report", "--storage", "URL", "--study", "\udcff"), "is no name."),
        (("tune", "--storage", "URL", "--study", "n" * 101, "--", "python", "train.py"), "is no name."),
        (("studies",), "There is no database of studies."),
        (("report", "--study", "night"), "There is no database of studies."),
        (("report", "--storage", "URL", "--study", "day"), "There is no study day in this database."),
        (("tune", "--study", "x", "--", "python", "train.py"), "There is no database of studies."),
        (("tune", "--storage", "mysql://h/d", "--", "python", "train.py"), "--storage knows no mysql."),
        (
            ("tune", "--storage", "URL", "--lanes", "2", "--", "python", "train.py"),
            "--lanes, --ray and --storage do not go together.",
        ),
    ],
)
def test_studies_refuse_options_that_make_no_sense_before_anything_runs(
    url, kept, capsys, monkeypatch, tmp_path, words, told
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert dynotune(*(word.replace("URL", url) for word in words)) == 2
    assert told in " ".join(capsys.readouterr().err.split())


TUNE = (
    "--no-lock",
    "--budget",
    "10m",
    *MARKED,
    "--warmup",
    "3",
    "--steps",
    "20",
    "--try",
    "env.A=1",
    "--margin",
    "0.1",
)


def tunes(user: User, url: str, name: str) -> subprocess.Popen[str]:
    words = (
        "tune",
        "--storage",
        url,
        "--study",
        "night",
        *TUNE,
        "--try",
        "env.B=1",
        "--run-dir",
        str(user.runs / name),
    )
    command = [PYTHON, "-c", QUICK_LEASES, *words, "--output", f"{name}.toml", "--", PYTHON, "train.py"]
    null = subprocess.DEVNULL
    return subprocess.Popen(
        command, cwd=user.cwd, env=user.env, text=True, stdin=null, stdout=null, stderr=subprocess.PIPE
    )


@pytest.mark.long
@pytest.mark.parametrize("killed", ["leader", "other"])
def test_two_workers_share_a_study_and_whoever_is_left_ends_it_with_every_result_once(user, url, killed):
    user.write("train.py", PROGRAM)
    with open_store(url, pytest.fail) as store:
        leader = tunes(user, url, "leader")
        until(store.studies, "the study begun")
        other = tunes(user, url, "other")
        try:
            until(
                lambda: any(one.run for one in store.study("night").trials if one.phase == "prune"),
                "a block begun",
            )
            doomed, left = (leader, other) if killed == "leader" else (other, leader)
            before = [one for one in store.study("night").trials if one.block and not one.void]
            doomed.send_signal(signal.SIGKILL)
            _, err = left.communicate(timeout=2 * DEADLINE_S)
            assert left.returncode == 0, err
        finally:
            for process in (leader, other):
                process.kill()
                process.communicate()
        study = store.study("night")
    assert study.finished and study.confirmed.verdict == "faster"
    assert [str(one) for one in study.recipe] == ["env.A=1"]
    counted = Counter((one.phase, one.block, one.arm) for one in study.trials if one.block and not one.void)
    assert counted and set(counted.values()) == {1}
    folder_of = {}
    for one in study.trials:
        if one.block and not one.void:
            folder_of.setdefault((one.phase, one.block), set()).add(one.run.rpartition("/")[0])
    assert all(len(folders) == 1 for folders in folder_of.values())
    # Results that were written before are part of the answer, but for a block that its host did not end.
    lost = [one for one in study.trials if one.void.startswith("its host was lost")]
    assert {one.run for one in before} <= {one.run for one in study.trials}
    assert len({(one.phase, one.block) for one in lost}) <= 1


@pytest.mark.long
def test_the_password_of_a_url_is_shown_and_kept_nowhere(user, tmp_path):
    user.write("train.py", PROGRAM)
    url = f"postgresql://me:{PASSWORD}@127.0.0.1:9/none"
    done = user.types("tune", "--storage", url, *TUNE, "--run-dir", str(user.runs), "--", PYTHON, "train.py")
    said(done, 3, "127.0.0.1:9/none does not answer")
    user.env["DYNOTUNE_STORAGE"] = f"sqlite:///{tmp_path / 'x.db'}?password={PASSWORD}"
    done = user.types("studies")
    assert PASSWORD not in done.stdout + done.stderr
    user.env["DYNOTUNE_STORAGE"] = url
    done = user.types(
        "compare",
        "env.A=1",
        "--pairs",
        "2",
        *MARKED,
        "--no-lock",
        "--run-dir",
        str(user.runs),
        "--",
        PYTHON,
        "train.py",
    )
    assert done.returncode == 0
    held = [
        str(path)
        for path in user.cwd.parent.rglob("*")
        if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
    assert held == [] and PASSWORD not in done.stdout + done.stderr


@pytest.mark.long
def test_a_second_study_of_the_name_is_refused_and_the_same_one_shown(user, url):
    user.write("train.py", PROGRAM)
    words = ("tune", "--storage", url, "--study", "night", *TUNE, "--run-dir", str(user.runs))
    said(user.types(*words, "--exclude", "env.B", "--", PYTHON, "train.py"), 0)
    done = user.types(*words, "--", PYTHON, "train.py")
    said(done, 2, "The study night exists already, with another command")
    done = user.types(*words, "--exclude", "env.B", "--", PYTHON, "train.py")
    said(done, 0)
    assert "faster" in done.stdout and "Fresh runs" not in done.stderr
    user.write("train.py", PROGRAM + "# changed\n")
    done = user.types(*words, "--exclude", "env.B", "--", PYTHON, "train.py")
    said(done, 2, "The study night exists already, with another command, other options or other code.")
