"""Dialogues of a scripted client with the real server: kept ones held again, a few held anew, and every tool
called."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

anyio = pytest.importorskip("anyio")
mcp = pytest.importorskip("mcp")

from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402

from dynotune.mcp import jobs  # noqa: E402
from dynotune.schema.document import write  # noqa: E402
from lab import mcp_dialogues  # noqa: E402
from lab.mcp_dialogues import CASES, MOST_CALLS, dialogue, held, in_words, is_right, offered, summary  # noqa: E402
from lab.provenance import RESULTS  # noqa: E402

from ..report import answers  # noqa: E402

KEPT = json.loads((RESULTS / "mcp_dialogues_cpu.json").read_text(encoding="utf-8"))
MOST_TOKENS = 2000
FAST = ("num_workers_zero", "persistent_workers", "clean_infer_cpu")
STEPS = """
import torch
net = torch.nn.Linear(64, 64)
while True:
    net(torch.rand(32, 64)).sum().backward()
"""


@pytest.fixture
def server(tmp_path, monkeypatch) -> StdioServerParameters:
    """The real server of a project, in a process of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / "project").mkdir()
    ours = ["-m", "dynotune", "mcp", "--root", str(tmp_path / "project"), "--allow-run"]
    return StdioServerParameters(command=sys.executable, args=ours, env=dict(os.environ))


def kept_job(number: int, answer: dict[str, Any], root: Path) -> str:
    """A job as it lies on the disk when it has ended with this answer; its id."""
    folder = jobs.base() / f"20261129-0800{number:02d}-000-abcdef"
    folder.mkdir(parents=True)
    note = jobs.Note(
        root_digest=jobs._digest(root), subcommand=["diagnose"], command=[], pid=0, started_s=0.0
    )
    write(folder / jobs.FILE, note)
    (folder / "report.txt").write_text(answer["report"], encoding="utf-8")
    (folder / "exit_code").write_text("0")
    names = jobs._Verdict.__struct_fields__
    (folder / "answer.json").write_text(json.dumps({name: answer[name] for name in names if name in answer}))
    return folder.name


def test_kept_dialogues_are_held_again_with_the_answers_of_the_server(server, tmp_path):
    async def again(client: Any, name: str, row: dict[str, Any]) -> list[str]:
        calls = iter(row["calls"])

        async def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            kept = next(calls)
            assert (tool, arguments) == (kept["tool"], kept["arguments"]), name
            if kept["answer"].get("state") != "done":
                return dict(kept["answer"])
            id = kept_job(len(list(jobs.base().glob("*"))), kept["answer"], tmp_path / "project")
            told = dict((await client.call_tool("job", {"id": id})).structured_content)
            assert {key: told[key] for key in told.keys() & kept["answer"].keys() - {"job"}} == {
                key: value for key, value in kept["answer"].items() if key != "job"
            }
            return told

        found = await dialogue(ask, row["command"])
        assert next(calls, None) is None, name
        return found

    async def talk() -> dict[str, list[str]]:
        async with mcp.Client(stdio_client(server)) as client:
            return {name: await again(client, name, row) for name, row in KEPT["dialogues"].items()}

    cases = {case.name: case for case in CASES}
    for name, settings in anyio.run(talk).items():
        row = KEPT["dialogues"][name]
        assert settings == row["settings"]
        assert is_right(cases[name], settings) == row["right"]
    assert summary(KEPT["dialogues"]) == KEPT["summary"]


def test_kept_answers_are_within_their_bound_and_dialogues_within_their_calls():
    for row in KEPT["dialogues"].values():
        assert row["num_calls"] == len(row["calls"]) <= MOST_CALLS
        assert max(call["tokens"] for call in row["calls"]) == row["most_tokens"] < MOST_TOKENS


def test_the_guide_tells_what_the_kept_dialogues_came_to():
    guide = (RESULTS.parents[1] / "docs" / "guides" / "agents.md").read_text(encoding="utf-8")
    assert in_words(KEPT["summary"]) in " ".join(guide.split())


def test_the_cases_are_twenty_programs_that_exist_and_some_are_of_another_hand():
    assert len({case.name for case in CASES}) == len(CASES) == 20
    for case in CASES:
        (script,) = [word for word in case.command if word.endswith(".py")]
        assert (case.programs / script).is_file()
    assert sum(case.programs == mcp_dialogues.THEIRS for case in CASES) >= 5


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case.name in FAST], ids=lambda case: case.name)
def test_a_dialogue_held_anew_ends_within_its_calls_and_bound(case):
    row = held(case)
    assert row["num_calls"] <= MOST_CALLS and row["most_tokens"] < MOST_TOKENS
    assert row["calls"][0]["answer"]["state"] == "done", row["calls"][0]
    # How it ends depends on who else uses the machine; a wrong setting is never called proved.
    assert row["right"] or row["settings"] == []


def client_of(answers_by_tool: dict[str, list[dict[str, Any]]]) -> tuple[Any, list[tuple[str, Any]]]:
    asked: list[tuple[str, Any]] = []

    async def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append((tool, arguments.get("settings")))
        return answers_by_tool[tool].pop(0)

    return ask, asked


REPORT = """
high  num-workers-zero
  dynotune compare loader.num_workers=3 -- python train.py --dose \\
    60
low   optimizer-forloop
  dynotune compare optimizer.fused=true -- python train.py --dose 60
"""


def test_settings_are_read_from_the_lines_that_a_report_tells_its_reader_to_run():
    assert offered(REPORT) == [["loader.num_workers=3"], ["optimizer.fused=true"]]
    assert offered("nothing\n  dynotune compare cut.off=1") == []


def test_the_policy_stops_at_the_first_proof_and_gives_undecided_more_time_last():
    diagnosis = {"state": "done", "report": REPORT}
    undecided, faster = {"state": "done", "verdict": "undecided"}, {"state": "done", "verdict": "faster"}
    ask, asked = client_of({"diagnose": [diagnosis], "compare": [faster]})
    assert anyio.run(dialogue, ask, ["python"]) == ["loader.num_workers=3"]
    ask, asked = client_of({"diagnose": [diagnosis], "compare": [undecided, {"verdict": "same"}, faster]})
    assert anyio.run(dialogue, ask, ["python"]) == ["loader.num_workers=3"]
    settings = [["loader.num_workers=3"], ["optimizer.fused=true"], ["loader.num_workers=3"]]
    assert asked == [("diagnose", None), *(("compare", one) for one in settings)]
    ask, asked = client_of({"diagnose": [{"state": "done", "report": ""}]})
    assert anyio.run(dialogue, ask, ["python"]) == []


def test_waiting_for_a_job_is_a_call_too_and_five_are_the_most():
    running = {"state": "running", "job": "diagnose-1"}
    ask, asked = client_of({"diagnose": [running], "job": [running] * 9})
    assert anyio.run(dialogue, ask, ["python"]) == []
    assert len(asked) == MOST_CALLS


RUN_A_COMMAND = ("account", "bisect", "diagnose", "compare", "tune", "memory", "plan")


def test_every_tool_answers_the_official_client(server, tmp_path):
    project = tmp_path / "project"
    (project / "train.py").write_text(STEPS)
    write(project / "comparison.json", answers.comparison())
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0}]
    (project / "trace.json").write_text(json.dumps({"traceEvents": events}))
    command = {"command": ["python", "train.py"], "wait_s": 0}
    asked: dict[str, dict[str, Any]] = {
        "doctor": {},
        "explain": {"id": "num-workers-zero"},
        "knobs": {"id": "loader.num_workers"},
        "trace": {"file": "trace.json"},
        "report": {"path": "comparison.json"},
        "diagnose": command,
        "account": command,
        "compare": {**command, "settings": ["host.num_threads=1"]},
        "bisect": {**command, "good": "git.ref=v1", "bad": "git.ref=v2"},
        "tune": command,
        "memory": command,
        "plan": {"name": "streams", "command": ["python", "train.py", "{streams}"], "wait_s": 0, "fps": 25},
    }

    async def talk() -> tuple[set[str], dict[str, Any]]:
        async with mcp.Client(stdio_client(server)) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            told = {name: await client.call_tool(name, arguments) for name, arguments in asked.items()}
            for name in RUN_A_COMMAND:
                stop = {"id": told[name].structured_content["job"], "stop": True, "wait_s": 120}
                told[f"job of {name}"] = await client.call_tool("job", stop)
            return names, told

    names, told = anyio.run(talk)
    assert names == {*asked, "job", "jobs"}
    assert [name for name, answer in told.items() if answer.is_error] == []
    states = {name: answer.structured_content["state"] for name, answer in told.items()}
    assert {states[name] for name in ("doctor", "explain", "knobs", "trace", "report")} == {"done"}
    assert all(states[f"job of {name}"] != "running" for name in RUN_A_COMMAND)
    assert "1.42× faster" in told["report"].structured_content["report"]
    size = max(len(json.dumps(answer.structured_content, ensure_ascii=False)) for answer in told.values())
    assert size < mcp_dialogues.CHARACTERS_A_TOKEN * MOST_TOKENS
