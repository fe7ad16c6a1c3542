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
