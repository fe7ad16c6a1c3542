"""The server in the configuration of agents' hosts, as files."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from dynotune import cli
from dynotune.mcp.hosts import HOSTS, setup
from dynotune.schema.errors import UsageError


@pytest.fixture(autouse=True)
def codex_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return tmp_path / "codex"


def servers(host: str, text: str) -> dict[str, dict[str, object]]:
    return tomllib.loads(text)["mcp_servers"] if host == "codex" else json.loads(text)["mcpServers"]


@pytest.mark.parametrize("host", HOSTS)
def test_setup_makes_a_file_that_starts_the_server_when_there_is_none(tmp_path, host):
    found = setup(host, tmp_path, allow_run=True)
    found.write()
    entry = servers(host, found.file.read_text())["dynotune"]
    assert entry["args"][-4:] == ["mcp", "--root", str(tmp_path), "--allow-run"]
    assert Path(entry["command"]).is_file()
    again = setup(host, tmp_path, allow_run=True)
    assert again.text == again.before


@pytest.mark.parametrize(
    ("host", "before"),
    [
        ("claude", '{"mcpServers": {"other": {"command": "x"}}, "more": ["ü"]}'),
        ("cursor", "{}"),
        ("codex", '# mine\nmodel = "o"\n\n[mcp_servers.other]\ncommand = "x"'),
    ],
)
def test_setup_keeps_all_other_entries(tmp_path, host, before):
    file = HOSTS[host].file(tmp_path)
    file.parent.mkdir(exist_ok=True)
    file.write_text(before)
    text = setup(host, tmp_path, allow_run=False).text
    read = tomllib.loads if host == "codex" else json.loads
    (section,) = {"mcp_servers", "mcpServers"} & read(text).keys()
    after = read(text)
    assert "--allow-run" not in after[section].pop("dynotune")["args"]
    assert after == {section: {}, **read(before)}
    assert file.read_text() == before
    assert host != "codex" or text.startswith(before)


@pytest.mark.parametrize(
    ("host", "before", "says"),
    [
        ("claude", "{", "is not understood"),
        ("claude", "[]", "is not understood"),
        ("cursor", '{"mcpServers": []}', "is not understood"),
        ("cursor", '{"mcpServers": {"dynotune": {"command": "mine"}}}', "another server"),
        ("codex", "mcp_servers = {}", "is not understood"),
        ("codex", '[mcp_servers.dynotune]\ncommand = "mine"', "another server"),
        ("codex", "=", "is not understood"),
    ],
)
def test_setup_refuses_a_file_that_it_would_damage(tmp_path, host, before, says):
    file = HOSTS[host].file(tmp_path)
    file.parent.mkdir(exist_ok=True)
    file.write_text(before)
    with pytest.raises(UsageError, match=says):
        setup(host, tmp_path, allow_run=False)
    assert file.read_text() == before


def test_mcp_shows_the_file_and_writes_nothing_when_it_is_a_dry_run(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["mcp", "--setup", "cursor", "--root", str(tmp_path), "--dry-run"])
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    assert "dynotune" in json.loads(said.out)["mcpServers"]
    assert "as it would be" in said.err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", HOSTS)
def test_setup_keeps_the_longest_time_and_names_any_root(tmp_path, host):
    root = tmp_path / "é😀\x7f"
    root.mkdir()
    found = setup(host, root, allow_run=False, longest_s=3600.0)
    found.write()
    args = servers(host, found.file.read_text())["dynotune"]["args"]
    assert args[-4:] == ["--root", str(root), "--longest", "3600s"]


def test_setup_keeps_half_a_surrogate_pair_when_a_file_has_one(tmp_path):
    (tmp_path / ".mcp.json").write_text('{"other": "\\ud800"}')
    setup("claude", tmp_path, allow_run=False).write()
    assert json.loads((tmp_path / ".mcp.json").read_text())["other"] == "\ud800"


def test_setup_is_refused_when_the_root_has_no_name_in_utf8(tmp_path):
    with pytest.raises(UsageError, match="no UTF-8"):
        setup("claude", tmp_path / os.fsdecode(b"\xff"), allow_run=False)


def test_setup_says_so_when_codex_has_no_home(tmp_path, monkeypatch):
    monkeypatch.delenv("CODEX_HOME")
    monkeypatch.setattr("dynotune.schema.home.home", lambda: None)
    with pytest.raises(UsageError, match="home folder"):
        setup("codex", tmp_path, allow_run=False)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("what", ["a pipe", "a device", "deep", "no text"])
def test_setup_refuses_at_once_when_the_file_is_none(tmp_path, host, what):
    """A project's folder may hold anything."""
    file = HOSTS[host].file(tmp_path)
    file.parent.mkdir(exist_ok=True)
    {
        "a pipe": lambda: os.mkfifo(file),
        "a device": lambda: file.symlink_to("/dev/zero"),
        "deep": lambda: file.write_text(("x = " if host == "codex" else "") + "[" * 100_000),
        "no text": lambda: file.write_bytes(b"\xff\xfe"),
    }[what]()
    with pytest.raises(UsageError):
        setup(host, tmp_path, allow_run=False)
