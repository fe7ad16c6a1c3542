from __future__ import annotations

import json

import pytest

from dynotune import cli


def explains(capsys, *argv: str, exit_code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["explain", *argv])
    assert end.value.code == exit_code
    said = capsys.readouterr()
    return said.out, said.err


def test_a_finding_is_explained(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out, _ = explains(capsys, "launch-blocking-on")
    for shown in (
        "wait for the end of every kernel",
        "sees",
        "costs",
        "wrong when",
        "env.CUDA_LAUNCH_BLOCKING=@unset",
    ):
        assert shown in out


def test_explain_says_what_is_true_when_it_is_asked_about_advice(capsys):
    out, _ = explains(capsys, "PREEMPT_RT")
    assert "what is true" in out
    assert "preempt-rt-kernel" in out


def test_json_is_one_document_with_its_schema(capsys):
    out, _ = explains(capsys, "vm.dirty_ratio", "--json", "-")
    document = json.loads(out)
    assert document["schema"] == "dynotune.explanation/2"
    assert [each["id"] for each in document["claims"]] == ["dirty-ratio"]


def test_an_unknown_word_is_a_usage_error_that_offers_the_nearest(capsys):
    _, err = explains(capsys, "loader-bond", exit_code=2)
    assert "loader-bound" in err


def test_words_need_no_quotes(capsys):
    assert explains(capsys, "gpu", "utilization") == explains(capsys, "gpu utilization")


@pytest.mark.parametrize(
    ("word", "finding"),
    [
        ("OOM", "memory"),
        ("out of memory", "memory"),
        ("DDP", "ddp-find-unused-on"),
        ("jitter", "gc-jitter"),
        ("container", "cgroup-cpu-quota"),
        ("batch size", "last-batch-shape"),
    ],
)
def test_explain_lists_findings_when_several_speak_of_a_word_that_people_use(capsys, word, finding):
    out, _ = explains(capsys, *word.split())
    assert f"Findings about {word}." in out and finding in out
