"""What ran is told apart from what the copy-on-write view broke, and a run without a view is said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dynotune.launch.records import Record
from dynotune.measure.live import cautions
from dynotune.measure.live.outcome import Outcome, refuse_failed
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.run import Plan

from ...fakes import run, take

LAUNCH = SimpleNamespace(label="a run of the baseline", plan=Plan())


def failed(folder, stderr, **fields):
    (folder / "stderr").write_text(stderr)
    return Outcome(
        run=run(exit_code=1, ended_by="command", **fields), folder=folder, launched_s=0.0, records=[]
    )


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 18] Invalid cross-device link: 'checkpoint' -> 'checkpoint.old'",
        "cannot open own: Value too large for defined data type",
    ],
)
def test_a_refusal_of_the_view_is_not_blamed_on_the_command(line, tmp_path):
    with pytest.raises(CannotRunHere, match="copy-on-write view") as raised:
        refuse_failed(failed(tmp_path, f"Traceback\n{line}\n", sandbox="overlay"), LAUNCH, 60.0)
    assert line in raised.value.message
    assert "--no-sandbox" in raised.value.hint


@pytest.mark.parametrize(
    ("sandbox", "line"),
    [("none", "OSError: [Errno 18] Invalid cross-device link: 'a' -> 'b'"), ("overlay", "ValueError: x")],
)
def test_a_command_that_fails_by_itself_failed(sandbox, line, tmp_path):
    with pytest.raises(CommandFailed, match="exit code 1"):
        refuse_failed(failed(tmp_path, line, sandbox=sandbox), LAUNCH, 60.0)


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"sandbox": "overlay", "changed_files": ["a"]}, []),
        ({"sandbox": "none"}, []),
        ({"sandbox": "none", "changed_files": ["a", "b"]}, ["changed 2 files there: a, b."]),
        (
            {"sandbox": "none", "sandbox_reason": "trying it on own: no"},
            ["no copy-on-write view of it: trying it on own: no."],
        ),
        (
            {"sandbox": "none", "sandbox_reason": "no", "changed_files": ["a"]},
            ["changed 1 files there: a. There is no"],
        ),
    ],
)
def test_a_run_in_the_users_folder_itself_is_said_once_with_the_reason(fields, texts, tmp_path):
    said = cautions.sandbox_warnings(Outcome(run=run(**fields), folder=tmp_path, launched_s=0.0, records=[]))
    assert len(said) == len(texts)
    for text, line in zip(texts, said, strict=True):
        assert text in line


def test_a_step_function_that_never_returned_is_told_by_its_name(tmp_path):
    (tmp_path / "stderr").write_text("")
    record = take(Record(tmp_path, 1, 0.0), {"event": "torch", "version": "2.13.0", "time_s": 0.1})
    outcome = Outcome(
        run=run(ended_by="timeout"), folder=tmp_path, launched_s=0.0, records=[], all_records=[record]
    )
    for named, said in (
        (None, "no batch, call or update"),
        ("train:stpe", "no call of train:stpe .* returned"),
    ):
        launch = SimpleNamespace(label="a run", plan=Plan(step_function=named))
        with pytest.raises(CannotRunHere, match=said):
            refuse_failed(outcome, launch, 60.0)
