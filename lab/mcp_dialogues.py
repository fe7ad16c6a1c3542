"""A scripted client of `dynotune mcp`, the programs that it asks about, and how its dialogues are judged.

The client has one policy for all programs and reads only what the server returns.
`benchmarks/mcp_dialogues.py` says how a dialogue goes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client

from lab.faults.manifest import PROGRAMS as OURS
from lab.provenance import without_places

THEIRS = Path(__file__).resolve().parents[1] / "benchmarks" / "programs"
MOST_CALLS = 5
CHARACTERS_A_TOKEN = 4
BUDGET, LONGER_BUDGET, WAIT_S = "2m", "5m", 600
NEEDED = re.compile(r"give at least --budget (\d+[sm])")

Answer = dict[str, Any]
Ask = Callable[[str, dict[str, Any]], Awaitable[Answer]]


@dataclass(frozen=True)
class Case:
    """A program, how it is started, and the knobs that take its fault away; none for a program without a
    fault."""

    name: str
    command: Sequence[str]
    knobs: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    programs: Path = OURS


def _ours(name: str, dose: int, *knobs: str, **env: str) -> Case:
    return Case(name, ["python", f"{name}.py", "--dose", str(dose)], knobs, env)


def _theirs(data_set: str) -> Case:
    """One of the data sets that were written before the rules that judge them were read, without workers."""
    command = ["python", "read_samples.py", data_set, "--workers", "0", "--seconds", "900"]
    return Case(data_set, command, ["loader.num_workers"], {"DATA_SETS": "data_sets"}, THEIRS)


WORKERS, FUSED = "loader.num_workers", ("optimizer.fused", "optimizer.foreach")
THREADS = ("host.num_threads", "env.OMP_NUM_THREADS")
CASES = [
    _ours("num_workers_zero", 60, WORKERS),
    _ours("omp_threads_one", 40, *THREADS, OMP_NUM_THREADS="1"),
    _ours("optimizer_forloop", 30, *FUSED),
    _ours("loader_bound", 60, WORKERS),
    _ours("persistent_workers", 60, "loader.persistent_workers"),
    _ours("cpu_oversubscribed", 60, *THREADS),
    _ours("collate_heavy", 60, WORKERS),
    _ours("num_workers_too_many", 60, WORKERS),
    _ours("prefetch_factor", 60, "loader.prefetch_factor"),
    _ours("decode_bound", 60, WORKERS),
    Case(
        "distributed_debug",
        ["torchrun", "--standalone", "--nproc-per-node=2", "distributed_debug.py", "--dose", "60"],
        ["env.TORCH_DISTRIBUTED_DEBUG"],
        {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ),
    _ours("pair_main_process_and_anomaly", 60, WORKERS),
    _ours("pair_collate_and_forloop", 60, WORKERS, *FUSED),
    _ours("clean_train_cpu", 0),
    _ours("clean_infer_cpu", 0),
    _theirs("remote_store"),
    _theirs("json_parsed_twice"),
    _theirs("pickles_in_gzip"),
    _theirs("npz_compressed"),
    _theirs("tokenized_each_time"),
]


def offered(report: str) -> list[list[str]]:
    """Return the settings of each comparison that a report tells its reader to make, in its order."""
    lines = [line.strip() for line in report.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line) for line in lines if line.startswith("dynotune compare ") and " -- " in line]
    return [words[2 : words.index("--")] for words in found]


async def dialogue(ask: Ask, command: Sequence[str]) -> list[str]:
    """Talk to the server about a command; return the settings that were proved to help, [] for none.

    Args:
        ask: calls a tool; one that is over its time answers with a job's id, and asking for that is a call,
            too.
    """
    left = MOST_CALLS

    async def answered(tool: str, **arguments: Any) -> Answer:
        nonlocal left
        left -= 1
        told = await ask(tool, {**arguments, "wait_s": WAIT_S})
        while told.get("state") == "running" and left:
            left -= 1
            told = await ask("job", {"id": told["job"], "wait_s": WAIT_S})
        return told

    diagnosis = await answered("diagnose", command=list(command))
    asked = [(settings, BUDGET) for settings in offered(diagnosis.get("report", ""))]
    undecided = False
    while asked and left:
        settings, budget = asked.pop(0)
        told = await answered("compare", settings=settings, command=list(command), budget=budget)
        if told.get("verdict") == "faster":
            return settings
        if (
            budget == BUDGET
            and (needed := NEEDED.search(told.get("report", "")))
            and told.get("state") == "failed"
        ):
            asked.insert(0, (settings, needed[1]))
        if budget == BUDGET and told.get("verdict") == "undecided" and not undecided:
            undecided = True
            asked.append((settings, LONGER_BUDGET))
    return []


def is_right(case: Case, settings: Sequence[str]) -> bool:
    if not case.knobs:
        return not settings
    return any(setting.partition("=")[0] in case.knobs for setting in settings)


def held(case: Case) -> dict[str, Any]:
    """Hold the dialogue with a server of its own, on a copy of the program and of what lies beside it."""
    calls: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dynotune-mcp-") as folder:
        root = Path(folder, "project")
        shutil.copytree(case.programs, root, ignore=shutil.ignore_patterns("__pycache__"))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        env = {**os.environ, **case.env, "PATH": path, "XDG_STATE_HOME": str(Path(folder, "state"))}
        ours = ["-m", "dynotune", "mcp", "--root", str(root), "--allow-run"]
        server = StdioServerParameters(command=sys.executable, args=ours, env=env)

        async def talk() -> list[str]:
            async with mcp.Client(stdio_client(server)) as client:

                async def ask(tool: str, arguments: dict[str, Any]) -> Answer:
                    began_s = time.monotonic()
                    result = await client.call_tool(tool, arguments)
                    told = "".join(part.text for part in result.content if hasattr(part, "text"))
                    answer = dict(result.structured_content or {"state": "refused", "report": told})
                    size = len(json.dumps(answer, ensure_ascii=False))
                    kept = json.loads(
                        without_places(json.dumps(answer).replace(str(root), ".").replace(folder, "~"))
                    )
                    kept.pop("json", None)
                    calls.append(
                        {
                            "tool": tool,
                            "arguments": arguments,
                            "answer": kept,
                            "tokens": -(-size // CHARACTERS_A_TOKEN),
                            "took_s": round(time.monotonic() - began_s, 1),
                        }
                    )
                    return answer

                return await dialogue(ask, case.command)

        settings: list[str] = anyio.run(talk)
    verdicts = [{name: call["answer"].get(name) for name in ("verdict", "speedup", "ci")} for call in calls]
    return {
        "command": list(case.command),
        "by": "another hand" if case.programs == THEIRS else "the project's",
        "right_knobs": list(case.knobs),
        "settings": settings,
        "verdict": verdicts[-1] if settings else None,
        "right": is_right(case, settings),
        "num_calls": len(calls),
        "most_tokens": max(call["tokens"] for call in calls),
        "took_s": round(sum(call["took_s"] for call in calls), 1),
        "calls": calls,
    }


def summary(dialogues: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rows = list(dialogues.values())
    return {
        "num_dialogues": len(rows),
        "num_right": sum(row["right"] for row in rows),
        "num_faults": sum(bool(row["right_knobs"]) for row in rows),
        "num_faults_right": sum(row["right"] and bool(row["right_knobs"]) for row in rows),
        "most_calls": max((row["num_calls"] for row in rows), default=0),
        "most_tokens": max((row["most_tokens"] for row in rows), default=0),
        "wrong": [name for name, row in dialogues.items() if not row["right"]],
    }


def in_words(found: Mapping[str, Any]) -> str:
    """Say a summary in one sentence, which the guide repeats."""
    ended = f"{found['num_right']} of {found['num_dialogues']} dialogues ended right"
    return (
        f"{ended}, in at most {found['most_calls']} calls; the largest answer has "
        f"{found['most_tokens']} tokens."
    )
