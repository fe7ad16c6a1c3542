"""What `doctor` shows: at any width, and of facts that are not known."""

from __future__ import annotations

import pytest
from rich.console import Console

from dynotune.report import on_terminal, terminal
from dynotune.schema.diagnosis import Difference, Examination, Finding, NotKnown
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

FINDING = Finding(
    id="launch-blocking-on",
    severity="high",
    claim="CUDA_LAUNCH_BLOCKING makes the program wait.",
    share=0.41,
    evidence=["CUDA_LAUNCH_BLOCKING=1"],
    candidates=[Setting("env.CUDA_LAUNCH_BLOCKING", "@unset")],
    remedy="Take it away.",
    commands=["echo a", "echo b"],
)


def shown(*, width: int = 100, **fields) -> list[str]:
    console = Console(width=width, color_system=None)
    examination = Examination(**({"findings": [], "unknown": [], "facts": {}} | fields))
    with console.capture() as capture:
        console.print(on_terminal(examination, costs={"launch-blocking-on": "host and GPU take turns."}))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_finding_fits_and_says_what_why_and_how(width):
    lines = shown(width=width, findings=[FINDING])
    assert all(len(line) <= width for line in lines)
    text = " ".join(line.strip() for line in lines).replace(" \\ ", " ")
    for part in (
        "up to 41% of a step",
        "Host and GPU take turns.",
        "Take it away.",
        "@unset -- COMMAND",
        "echo b",
    ):
        assert part in text


def test_doctor_report_calls_facts_unknown_when_the_machine_does_not_say():
    lines = shown(facts={"gpu.count": Unknown("the driver does not answer")})
    assert "GPU     unknown: the driver does not answer" in lines
    assert any(line.startswith("python  unknown") for line in lines)


def test_several_gpus_of_one_kind_are_counted():
    facts = {"gpu.count": 3, "gpu.name": "NVIDIA H200", "gpu1.name": "NVIDIA H200", "gpu2.name": "NVIDIA T4"}
    assert "GPU     2 × NVIDIA H200, NVIDIA T4" in shown(facts=facts)


def test_rules_that_lack_the_same_stand_together():
    unknown = [NotKnown(id_, "a busy GPU", "it is idle now") for id_ in ("a", "b")] + [
        NotKnown("c", "x", "y")
    ]
    lines = shown(unknown=unknown)
    assert "a, b" in lines
    assert lines.count("a busy GPU: it is idle now") == 1


def test_doctor_report_names_facts_of_one_machine_alone_once_and_apart():
    differences = [
        Difference(fact="torch.cudnn", here="9.1", there="9.2", matters="other algorithms"),
        Difference(fact="host.governor", here=Unknown("no"), there="powersave", matters="clocks"),
    ]
    lines = shown(differences=differences)
    assert "torch.cudnn  9.1   9.2    other algorithms" in lines
    assert "Known of one machine alone: host.governor." in lines


def test_machines_that_do_not_differ_are_said_not_to():
    assert "No fact that can matter differs." in shown(differences=[])


def test_on_a_terminal_only_what_to_do_is_shown_and_verbose_gives_the_rest(monkeypatch):
    monkeypatch.setattr(terminal, "is_brief", lambda: True)
    text = " ".join(shown(findings=[FINDING], unknown=[NotKnown("other", "fact", "no NVML here")]))
    assert FINDING.remedy in " ".join(text.split())
    assert "no NVML here" not in text and "--verbose" in text
