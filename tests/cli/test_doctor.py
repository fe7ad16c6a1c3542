"""`dynotune doctor`: from recorded facts, and on this machine as a user starts it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from dynotune import cli, probe
from dynotune.schema.diagnosis import Examination
from dynotune.schema.facts import Facts

RECORDED = Path(__file__).parents[1] / "doctor" / "facts" / "h200.json"


@pytest.fixture
def machine(monkeypatch):
    """`machine(changes)`: doctor finds an H200 with these facts; idle and healthy without."""
    monkeypatch.setenv("COLUMNS", "120")
    facts = msgspec.json.decode(RECORDED.read_bytes(), type=Facts)
    monkeypatch.setattr(probe, "machine", lambda *_, **__: dict(facts))

    def change(changes):
        monkeypatch.setattr(probe, "machine", lambda *_, **__: facts | changes)

    return change


def doctor(capsys, *argv: str, exit_code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", *argv])
    assert end.value.code == exit_code, capsys.readouterr()
    said = capsys.readouterr()
    return said.out, said.err


SLOW = {
    "gpu.power_limit_w": 350.0,
    "env.CUDA_LAUNCH_BLOCKING": "1",
    "env_from.CUDA_LAUNCH_BLOCKING": "inherited from pid 12 (bash)",
    "gpu.persistence": False,
}


def test_a_healthy_machine_costs_nothing_and_what_cannot_be_judged_is_named_with_its_reason(capsys, machine):
    out, _ = doctor(capsys, "--fail-on", "low")
    assert "Nothing here costs speed" in out
    assert "NVIDIA H200, compute capability 9.0" in out
    assert "pcie-width-degraded" in out
    assert "it is idle now" in out


def test_findings_stand_worst_first_with_what_why_and_how(capsys, machine):
    machine(SLOW)
    out, _ = doctor(capsys)
    assert "3 findings: 1 high, 1 medium, 1 low." in out
    places = [out.index(id_) for id_ in ("launch-blocking-on", "gpu-power-capped", "persistence-off")]
    assert places == sorted(places)
    for shown in (
        "inherited from pid 12 (bash)",
        "Host and GPU take turns",
        "dynotune compare env.CUDA_LAUNCH_BLOCKING=@unset -- COMMAND",
        "sudo nvidia-smi -i 0 -pl 700",
    ):
        assert shown in out


@pytest.mark.parametrize(("severity", "exit_code"), [("high", 1), ("medium", 1), ("low", 1)])
def test_a_gate_says_no_where_a_finding_weighs_as_much(capsys, machine, severity, exit_code):
    machine(SLOW)
    doctor(capsys, "--fail-on", severity, exit_code=exit_code)


def test_a_gate_lets_lesser_findings_pass(capsys, machine):
    machine({"gpu.persistence": False})
    doctor(capsys, "--fail-on", "medium")


def test_json_is_one_document_that_reads_back(capsys, machine):
    machine(SLOW)
    out, _ = doctor(capsys, "--json", "-")
    examination = msgspec.json.decode(out.encode(), type=Examination)
    assert examination.schema == "dynotune.examination/2"
    assert [finding.id for finding in examination.findings] == [
        "launch-blocking-on",
        "gpu-power-capped",
        "persistence-off",
    ]
    assert examination.differences is None


def test_against_another_machine_it_says_in_what_they_differ(capsys, machine, tmp_path):
    other = tmp_path / "there.json"
    doctor(capsys, "--json", str(other))
    machine(SLOW | {"gpu.uuid": "GPU-2", "torch.cudnn": "9.1.0"})
    out, _ = doctor(capsys, "--baseline", str(other))
    assert re.search(r"fact +here +there", out)
    assert re.search(r"350\.0 +700\.0", out) and re.search(r"9\.1\.0 +9\.19\.0\.56", out)
    assert "GPU-2" not in out
    out, _ = doctor(capsys, "--baseline", str(other), "--json", "-")
    facts = [each["fact"] for each in json.loads(out)["differences"]]
    assert facts[0] == "gpu.power_limit_w"


def test_doctor_shows_facts_of_another_machine_without_harm_to_a_terminal(capsys, machine, tmp_path):
    facts = {"gpu.name": "\x1b[31mred\x1b[0m", "host.\u202ex": "y" * 5000}
    other = Examination(findings=[], unknown=[], facts=facts)
    (tmp_path / "there.json").write_bytes(msgspec.json.encode(other))
    out, _ = doctor(capsys, "--baseline", str(tmp_path / "there.json"))
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "y" * 200 not in out


@pytest.mark.parametrize(
    ("content", "exit_code", "said"),
    [
        (None, 2, "There is no file"),
        (b"{", 3, "not a complete JSON document"),
        (b'{"schema": "dynotune.comparison/2"}', 3, "is not a dynotune.examination/2"),
        (b'{"schema": "dynotune.examination/3"}', 3, "this dynotune reads dynotune.examination/2"),
        (b'{"schema": "dynotune.examination/2", "findings": 3}', 3, "is not a valid dynotune.examination/2"),
        (b" " * (17 << 20), 2, "too large"),
    ],
)
def test_a_file_that_is_no_examination_is_refused(capsys, machine, tmp_path, content, exit_code, said):
    other = tmp_path / "there.json"
    if content is not None:
        other.write_bytes(content)
    _, err = doctor(capsys, "--baseline", str(other), exit_code=exit_code)
    assert said in err.replace("\n", " ")


def test_a_severity_that_does_not_exist_is_refused_before_anything_is_asked(capsys, machine):
    _, err = doctor(capsys, "--fail-on", "terrible", exit_code=2)
    assert "high, medium or low" in err


def test_about_a_word_asks_no_machine(capsys, monkeypatch):
    monkeypatch.setattr(probe, "machine", lambda *_, **__: pytest.fail("the machine was asked"))
    out, _ = doctor(capsys, "--about", "vm.dirty_ratio")
    assert "These settings do not affect reading." in out


def test_a_setting_that_does_not_do_what_people_say_is_mentioned_unasked(capsys, machine):
    machine({"host.dirty_ratio": 5})
    out, _ = doctor(capsys)
    assert "vm.dirty_ratio is 5 (default 20)" in out
    assert "Does not do what people say" in out


# As a user starts it


def test_doctor_answers_here_in_plain_text_when_piped(user):
    answer = user.types("doctor", "--python", sys.executable)
    assert answer.returncode == 0
    assert "verdict" in answer.stdout
    assert "\x1b" not in answer.stdout


def test_doctor_in_a_fork_examines_the_environment_of_the_user(user):
    answer = user.types("doctor", "--json", "-")
    facts = json.loads(answer.stdout)["facts"]
    assert facts["env.OMP_NUM_THREADS"] == user.env["OMP_NUM_THREADS"]


def test_a_variable_of_the_shell_is_seen_and_taken_from_the_environment(user):
    user.env |= {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    answer = user.types("doctor", "--json", "-", "--fail-on", "medium")
    assert answer.returncode == 1
    document = json.loads(answer.stdout)
    assert "debug-flags-left-on" in [finding["id"] for finding in document["findings"]]


def test_the_interpreter_is_that_of_the_command(user, tmp_path):
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)
    answer = user.types("doctor", "--json", "-", "--", str(other), "train.py")
    assert json.loads(answer.stdout)["facts"]["python.executable"] == str(other)


def test_an_interpreter_without_torch_is_answered_for_too(user, tmp_path):
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    answer = user.types("doctor", "--python", str(tmp_path / "bare/bin/python"))
    assert answer.returncode == 0
    assert "torch is not installed" in answer.stdout.replace("\n", " ").replace("         ", "")


def test_an_interpreter_that_does_not_exist_is_refused(user):
    answer = user.types("doctor", "--python", "/nowhere/python")
    assert answer.returncode == 2
    assert "/nowhere/python" in answer.stderr


def test_a_variable_that_nothing_reads_is_told_to_do_nothing(user):
    user.env |= {"PIN_MEMORY": "False"}
    answer = user.types("doctor")
    assert answer.returncode == 0
    assert "Neither torch nor CUDA reads it." in answer.stdout
