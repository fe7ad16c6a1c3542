"""Help of options: each entry of options.toml is that of an option, and each option has one."""

import re
import tomllib
from pathlib import Path

import pytest

import dynotune.cli

CLI = Path(dynotune.cli.__file__).parent


def test_each_entry_is_declared_as_an_option_and_each_option_has_an_entry():
    declared = {
        name
        for path in CLI.glob("*.py")
        for name in re.findall(r'\b(?:option|_of_a_run)\(\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert declared == tomllib.loads((CLI / "options.toml").read_text(encoding="utf-8")).keys()


@pytest.mark.parametrize("name", ["compare", "diagnose", "explain", "knobs", "report"])
def test_help_tells_no_type_of_a_programming_language(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        dynotune.cli.main([name, "--help"])
    assert not re.search(r"<[\w\[\]]+>", capsys.readouterr().out)


@pytest.mark.parametrize(
    "name", ["compare", "diagnose", "tune", "trace", "precision", "memory", "watch", "run"]
)
def test_help_of_a_subcommand_is_short_and_help_all_has_the_rest(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            dynotune.cli.main([name, option])
        texts.append(capsys.readouterr().out)
    assert len(texts[0].splitlines()) <= 70
    assert "--sandbox" not in texts[1] and ("--no-sandbox" in texts[1] or name in ("watch", "run"))
    assert ("--help-all" in texts[0]) == ("--no-sandbox" in texts[1])


def test_help_says_the_default_budget_and_sets_examples_off(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        dynotune.cli.main(["tune", "--help"])
    shown = capsys.readouterr().out
    assert "[default: 3m]" in shown
    assert "\n $ dynotune tune -- python train.py" in shown
