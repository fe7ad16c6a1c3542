"""Commands that findings offer, of an observation that somebody else may have written."""

from __future__ import annotations

import shlex

import pytest

from dynotune.doctor import ObservationView, all_rules
from dynotune.doctor.observation_view import Missing

from .machines import NO_GPU, alone, h200

PAYLOAD = "/x; touch PWN #"
PATHS = {"torch.folder": "/env/lib/torch", "python.executable": "/env/bin/python"}
STATES = (
    {"torch.bytecode": False, "torch.bytecode_writable": False},
    {"torch.bytecode": False, **NO_GPU},
    {"gpu.clock_reasons": ["sw-power-cap 0.5"]},
)


def words_of(line: str) -> list[str]:
    """The words and operators of a line, as a shell reads it."""
    return list(shlex.shlex(line, posix=True, punctuation_chars=True))


def offered(facts) -> list[str]:
    view, commands = ObservationView(alone(facts)), []
    for rule in all_rules().values():
        try:
            commands += [line for finding in rule(view) for line in finding.commands]
        except Missing:
            continue
    return commands


@pytest.mark.parametrize("state", STATES)
def test_no_text_of_an_observation_acts_on_the_shell_when_it_stands_in_a_command(state):
    facts = h200(PATHS | state)
    texts = [name for name, value in facts.items() if isinstance(value, str)]
    assert "torch.folder" in texts and "python.executable" in texts
    for name in texts:
        for line in offered(facts | {name: PAYLOAD}):
            assert "touch" not in words_of(line), (name, line)


def test_a_command_keeps_its_words_when_a_path_has_blanks():
    facts = h200(
        {
            "torch.bytecode": False,
            "torch.bytecode_writable": False,
            "python.executable": "/my env/bin/python",
            "torch.folder": "/my env/lib/torch",
        }
    )
    (line,) = [line for line in offered(facts) if "compileall" in line]
    assert shlex.split(line) == ["/my env/bin/python", "-m", "compileall", "-q", "/my env/lib"]


@pytest.mark.parametrize("rule", all_rules().values(), ids=lambda rule: rule.id)
def test_rule_says_that_it_needs_root_when_one_of_its_commands_does(rule):
    """Rules whose commands depend on what was found declare it in their texts alone, which the next test
    covers."""
    if rule.commands:
        assert rule.needs_root == any("sudo" in words_of(command) for command in rule.commands)


def test_finding_says_that_it_needs_root_when_one_of_its_commands_does():
    computed = {"gpu-power-capped", "row-remap-pending"}
    changed = {"gpu.power_limit_w": 350, "gpu.remapped_rows_pending": True}
    view = ObservationView(alone(h200(changed)))
    findings = {}
    for rule in all_rules().values():
        try:
            findings |= {finding.id: finding for finding in rule(view)}
        except Missing:
            continue
    assert computed <= findings.keys()
    for finding in findings.values():
        assert finding.needs_root == any("sudo" in words_of(command) for command in finding.commands)


def test_sysctls_of_a_rule_are_the_commands_that_set_them_when_it_has_some():
    rules = [rule for rule in all_rules().values() if rule.sysctls]
    assert {rule.id for rule in rules} == {"numa-balancing", "zone-reclaim"}
    for rule in rules:
        assert list(rule.commands) == [f"sudo sysctl {name}={value}" for name, value in rule.sysctls.items()]
