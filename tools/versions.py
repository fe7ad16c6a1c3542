"""Run the tests of programs and of the agent on other versions of Python and torch.

    python tools/versions.py [PYTHON[:TORCH] ...] [--keep]
    python tools/versions.py --page > docs/reference/versions.md

Each row of `MATRIX` gets an environment of its own in `.versions/`, which is deleted after its tests. An
interpreter is `pythonX.Y` on PATH, one of pyenv's, or one in a folder that `DYNOTUNE_PYTHONS` lists. pip
installs torch from where it is set up to: a CUDA build takes 5 GB of disk while its row runs, a CPU build
(from an index of its own) 1 GB.

Two runs of pytest make a row:

- `programs`: dynotune stays in the environment that runs this file. The programs that its tests start are run
  by the row's interpreter, with the agent inside.
- `agent`: the tests that import the agent and nothing else of dynotune are run by the row's interpreter
    itself.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "versions.json"
ENVIRONMENTS = ROOT / ".versions"

# torch is None: the interpreter alone.
MATRIX = (
    ("3.9", "2.4.1"),
    ("3.10", "2.6.0"),
    ("3.11", "2.13.0"),
    ("3.12", "2.11.0"),
    ("3.13", "2.8.0"),
    ("3.14", "2.15.0"),
    ("3.15", None),
)
WITH_TORCH = ("tests/agent", "tests/launch", "tests/probe/facts/test_torch_build.py")
WITHOUT_TORCH = ("tests/agent/test_plain_python.py", "tests/launch", "tests/probe/facts/test_torch_build.py")
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
# What programs of the tests import beside torch.
FRAMEWORKS = ("numpy", "pillow", "lightning", "accelerate", "transformers")


def interpreter(version: str) -> str | None:
    """Return the path of a working interpreter of this minor version; None if there is none."""
    folders = os.environ.get("DYNOTUNE_PYTHONS", "").split(os.pathsep) + os.environ["PATH"].split(os.pathsep)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places = [Path(folder) for folder in folders if folder] + sorted(pyenv.glob(f"versions/{version}.*/bin"))
    for place in places:
        python = place / f"python{version}"
        # A name on PATH may be a shim of a version that is not switched on.
        if python.exists() and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return str(python)
    return None


def install(python: str, version: str, torch: str | None) -> Path:
    """Make the environment of a row, unless an earlier call kept it; return its interpreter.

    Raises:
        CalledProcessError: it cannot be had here; `stderr` holds pip's reason.
    """
    folder = ENVIRONMENTS / f"python{version}-torch{torch}"
    inside = folder / "bin" / "python"
    done = folder / "complete"
    if done.exists():
        return inside
    shutil.rmtree(folder, ignore_errors=True)

    def call(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, text=True)

    call(python, "-m", "venv", str(folder))
    pip = [str(inside), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    if torch:
        call(*pip, f"torch=={torch}", *TOOLS, *FRAMEWORKS)
        call(str(inside), "-c", "import torch")
    else:
        call(*pip, *TOOLS)
    done.touch()
    return inside


def run(words: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Run pytest; return how many tests passed, failed and were skipped, and the names of those that
    failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        subprocess.run(
            [*words, f"--junitxml={report}", "-p", "no:cacheprovider"], cwd=ROOT, env={**os.environ, **env}
        )
        cases = list(xml.etree.ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [
        (case, skip) for case in cases if (skip := case.find("skipped")) is not None and case not in failed
    ]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": len(failed),
        "skipped": len(skipped),
        "failures": sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed),
        "skips": sorted(f"{case.get('name')}: {skip.get('message')}" for case, skip in skipped),
    }


def agent_tests(*, torch: bool) -> list[str]:
    """Return the files of tests that import the agent and nothing else of dynotune; without torch, only those
    that do not import torch."""
    found = []
    for file in sorted((ROOT / "tests" / "agent").rglob("test_*.py")):
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
        ours = {name for name in names if name.partition(".")[0] == "dynotune"}
        alone = bool(ours) and all(name.startswith("dynotune.agent") for name in ours)
        if alone and (torch or "torch" not in names):
            found.append(str(file.relative_to(ROOT)))
    return found


def row(version: str, torch: str | None, *, keep: bool) -> dict[str, Any]:
    """Run one row of the matrix; return what is written of it."""
    found: dict[str, Any] = {"python": version, "torch": torch}
    python = interpreter(version)
    if python is None:
        return {**found, "reason": f"no interpreter of Python {version} was found"}
    try:
        inside = install(python, version, torch)
    except subprocess.CalledProcessError as error:
        return {**found, "reason": error.stderr.strip().splitlines()[-1]}
    asks = "import json, platform, sys; from importlib import metadata as m"
    asks += (
        "; print(json.dumps([platform.python_version(), {d.metadata['Name']: d.version for d in "
        "m.distributions()}]))"
    )
    answer = subprocess.run([inside, "-c", asks], capture_output=True, text=True, check=True).stdout
    full, packages = json.loads(answer)
    found |= {
        "python_version": full,
        "packages": {name: packages.get(name) for name in ("torch", *TOOLS, *FRAMEWORKS)},
    }
    tests = WITH_TORCH if torch else WITHOUT_TORCH
    parallel = ["--numprocesses", os.environ.get("WORKERS", "2"), "--dist", "worksteal"]
    found["programs"] = run(
        [sys.executable, "-m", "pytest", "-q", *parallel, *tests], {"DYNOTUNE_TEST_PYTHON": str(inside)}
    )
    found["agent"] = run(
        [str(inside), "-m", "pytest", "-q", "--noconftest", *agent_tests(torch=bool(torch))],
        {"PYTHONPATH": str(ROOT / "src")},
    )
    if not keep:
        shutil.rmtree(inside.parents[1])
    return found


PAGE = """\
# Versions of Python and torch

dynotune itself runs on Python 3.11 to 3.14. The program that it starts may use another Python and another torch. This
page says on which ones the tests of the agent and of the launcher were run. `make test-versions` runs them again, on
the versions that it finds, and makes this page from `benchmarks/results/versions.json`.

- **Programs**: dynotune runs on Python {parent}. The tests start programs with this row's Python and torch, and with
  the agent inside of them.
- **Agent**: this row's Python runs the tests that import the agent directly.

Each cell says how many tests passed, failed, and were skipped. No row used a GPU.

| Python | torch | Programs | Agent |
| --- | --- | --- | --- |
{rows}

The other tests of dynotune start no program, or not with another Python: they are not part of this table.
"""  # noqa: E501


def page(result: dict[str, Any]) -> str:
    """Return the page that shows this result."""
    lines = []
    for found in result["rows"]:
        version, torch = found["python"], found["torch"] or "none"
        if "reason" in found:
            cells = [version, torch, f"not run: {found['reason']}", ""]
        else:
            packages = found["packages"]
            cells = [found["python_version"], packages["torch"] or "none"]
            cells += [" / ".join(str(found[part][word]) for word in COUNTS) for part in ("programs", "agent")]
        lines.append("| " + " | ".join(cells) + " |")
    return PAGE.format(rows="\n".join(lines), parent=result["parent"])


COUNTS = ("passed", "failed", "skipped")


def main() -> int:
    """Run the rows that are asked for, all by default; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "rows", nargs="*", metavar="PYTHON[:TORCH]", help="rows of the matrix, or others; default: all"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments of the rows")
    parser.add_argument(
        "--page", action="store_true", help="print the page of the result that is there; run nothing"
    )
    asked = parser.parse_args()
    if asked.page:
        print(page(json.loads(RESULT.read_text())), end="")
        return 0
    wanted = [(text.partition(":")[0], text.partition(":")[2] or None) for text in asked.rows] or MATRIX
    num_failed = 0
    for version, torch in wanted:
        print(f"Python {version}, torch {torch or 'none'}", flush=True)
        found = row(version, torch, keep=asked.keep)
        num_failed += sum(found[part]["failed"] for part in ("programs", "agent") if part in found)
        write(found)
    return 1 if num_failed else 0


def write(found: dict[str, Any]) -> None:
    """Put a row into the result, in the place of an earlier one of the same versions."""
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    rows = [row for row in rows if (row["python"], row["torch"]) != (found["python"], found["torch"])]
    rows = sorted([*rows, found], key=lambda row: [int(part) for part in row["python"].split(".")])
    result = {
        "command": "python tools/versions.py",
        "machine": f"{platform.system()} {platform.machine()}, CPU only",
        "parent": platform.python_version(),
        "rows": rows,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
