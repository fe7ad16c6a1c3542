"""The torch that the command will import, asked of its own interpreter in a child, without importing it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dynotune.schema.facts import Facts, Unknown

TIMEOUT_S = 60.0
"""A cold network file system makes even an import-free start slow; longer than this is a hang."""

NAMES = (
    "python.version",
    "python.implementation",
    "python.executable",
    "torch.version",
    "torch.cuda",
    "torch.cudnn",
)

_MARK = "dynotune-facts:"

# Runs on any Python since 3.8. The working directory leaves the path first: a folder `torch` or `json` in it
# is not what the command would import, whose own folder comes first instead.
_QUESTION = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import ast, json, platform
from importlib import machinery, metadata
from pathlib import Path

facts, unknown = {}, {}
facts["python.version"] = platform.python_version()
facts["python.implementation"] = platform.python_implementation()
facts["python.executable"] = sys.executable

def literals(path):
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(names[0], ast.Name):
            try:
                found[names[0].id] = ast.literal_eval(node.value)
            except ValueError:
                pass
    return found

def cudnn(cuda):
    packages = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith("nvidia-cudnn-cu"):
            packages[name] = distribution.version
    own = packages.get("nvidia-cudnn-cu" + cuda.partition(".")[0])
    return own or (list(packages.values())[0] if len(packages) == 1 else None)

def ask_torch():
    spec = machinery.PathFinder.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        why = "torch is not installed for " + sys.executable
        unknown.update({"torch.version": why, "torch.cuda": why, "torch.cudnn": why})
        return
    version_file = Path(list(spec.submodule_search_locations)[0]) / "version.py"
    try:
        build = literals(version_file)
        facts["torch.version"] = str(build["__version__"])
        facts["torch.cuda"] = build["cuda"]
    except (OSError, SyntaxError, KeyError) as error:
        why = "%s does not name this build of torch: %r" % (version_file, error)
        unknown.update({"torch.version": why, "torch.cuda": why, "torch.cudnn": why})
        return
    facts["torch.cudnn"] = cudnn(build["cuda"]) if build["cuda"] else None
    if build["cuda"] and facts["torch.cudnn"] is None:
        del facts["torch.cudnn"]
        unknown["torch.cudnn"] = "cuDNN is not installed as a package of its own"

ask_torch()
print("\\nMARK" + json.dumps({"facts": facts, "unknown": unknown}))
""".replace("MARK", _MARK)


def ask(
    python: str | Unknown,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Facts:
    """Facts `python.*` and `torch.*` of one interpreter.

    `torch.cuda` and `torch.cudnn` are None for a build without CUDA. A failure makes every one Unknown.

    Args:
        python: the interpreter, as `interpreter` names it; Unknown is passed on.
        cwd, env: of the command; without the agent.
    """
    if isinstance(python, Unknown):
        return _all_unknown(python.reason)
    environment = {**(os.environ if env is None else env), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        child = subprocess.run(
            [python, "-c", _QUESTION],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _all_unknown(f"{python} did not answer within {timeout_s:g} s")
    except OSError as error:
        return _all_unknown(f"{python} cannot be started: {error.strerror}")
    return _read(python, child)


def _read(python: str, child: subprocess.CompletedProcess[bytes]) -> Facts:
    # A user's sitecustomize may print too.
    lines = child.stdout.decode(errors="replace").splitlines()
    marked = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
    if child.returncode != 0 or not marked:
        last = (child.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        name = Path(python).name
        return _all_unknown(f"{name} did not answer, it ended with exit code {child.returncode}: {last}")
    reply = json.loads(marked[-1])
    return {**reply["facts"], **{name: Unknown(why) for name, why in reply["unknown"].items()}}


def _all_unknown(reason: str) -> Facts:
    return {name: Unknown(reason) for name in NAMES}
