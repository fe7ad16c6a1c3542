"""Report the version and build of torch that the command will import, by a child process of its interpreter.

`ask` imports nothing from torch and answers quickly. `ask_build` imports torch, which may take seconds, and
reports the architectures if `ask` cannot read them.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dynotune.probe.sources.interpreter import MARK, answer
from dynotune.schema.data_file import table
from dynotune.schema.facts import Facts, Unknown

TIMEOUT_S = 60.0
"""Even a start without imports is slow on a cold network file system. A longer time than this is a hang."""

NAMES = (
    "python.version",
    "python.implementation",
    "python.executable",
    "python.include",
    "torch.folder",
    "torch.bytecode",
    "torch.bytecode_writable",
    "torch.version",
    "torch.cuda",
    "torch.cudnn",
    "torch.nccl",
    "torch.arch_list",
)
"""Facts that `ask` always answers; in addition, `package.NAME` for each installed package of
packages.toml."""


class _Packages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file packages.toml."""

    names: list[str]
    prefixes: list[str]


_PACKAGES = table(__package__, "packages.toml", _Packages)

# Runs on any Python since 3.8. The working directory is first removed from the path: the command would not
# import a folder `torch` or `json` in it, since the command's own folder comes first on its path.
_START = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json

facts, unknown = {}, {}

def reply():
    print("\\nMARK" + json.dumps({"facts": facts, "unknown": unknown}))
""".replace("MARK", MARK)

_QUESTION = (
    _START
    + """
import ast, mmap, os, platform, re, sysconfig
from importlib import machinery, metadata, util
from pathlib import Path

facts["python.version"] = platform.python_version()
facts["python.implementation"] = platform.python_implementation()
facts["python.executable"] = sys.executable
facts["python.include"] = sysconfig.get_path("include")

def literals(path):
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        name = node.targets[0] if isinstance(node, ast.Assign) else node.target
        try:
            found[getattr(name, "id", "")] = ast.literal_eval(node.value)
        except (TypeError, ValueError):
            pass
    return found

def packages():
    # By the names of their folders: opening the record of every package would take longer than all the rest.
    found = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in sorted(entries):
            stem, kind = os.path.splitext(entry)
            if kind not in (".dist-info", ".egg-info"):
                continue
            name, _, version = stem.partition("-")
            name = re.sub("[-_.]+", "-", name).lower()
            if name in found or not (name in PACKAGES or name.startswith(PREFIXES)):
                continue
            if kind == ".egg-info":
                version = metadata.Distribution.at(os.path.join(folder, entry)).version
            found[name] = version
    return found

def library(prefix, cuda):
    mine = {name: version for name, version in facts_of_packages.items() if name.startswith(prefix)}
    return mine.get(prefix + cuda.partition(".")[0]) or (list(mine.values())[0] if len(mine) == 1 else None)

def archs(folder):
    # What torch.cuda.get_arch_list tells stands as one string in the library.
    one = rb"(?:sm|compute)_[0-9]+[af]?"
    try:
        with open(os.path.join(folder, "lib", "libtorch_python.so"), "rb") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                found = set(re.findall(rb"\\0(" + one + rb"(?: " + one + rb")*)\\0", content))
    except (OSError, ValueError):
        found = set()
    return found.pop().decode().split() if len(found) == 1 else None

BYTECODE = ("torch.bytecode", "torch.bytecode_writable")

def bytecode(source):
    # Whether a module that every torch imports is there compiled, and whether it could be written.
    compiled = os.path.abspath(util.cache_from_source(source))
    folder = os.path.dirname(compiled)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return os.path.exists(compiled), os.access(folder, os.W_OK)

def ask_torch():
    names = ("torch.folder", *BYTECODE, "torch.version", "torch.cuda", "torch.cudnn", "torch.nccl", "torch.arch_list")
    spec = machinery.PathFinder.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        unknown.update(dict.fromkeys(names, "torch is not installed for " + sys.executable))
        return
    folder = list(spec.submodule_search_locations)[0]
    facts["torch.folder"] = folder
    try:
        facts.update(zip(BYTECODE, bytecode(os.path.join(folder, "_tensor.py"))))
    except (NotImplementedError, OSError) as error:
        unknown.update(dict.fromkeys(BYTECODE, "this interpreter does not say where it keeps it: %r" % (error,)))
    version_file = Path(folder) / "version.py"
    try:
        build = literals(version_file)
        facts["torch.version"] = str(build["__version__"])
        facts["torch.cuda"] = build["cuda"]
    except (OSError, SyntaxError, KeyError) as error:
        why = "%s does not name this build of torch: %r" % (version_file, error)
        unknown.update(dict.fromkeys(names[1 + len(BYTECODE):], why))
        return
    for name, prefix, title in (("torch.cudnn", "nvidia-cudnn-cu", "cuDNN"), ("torch.nccl", "nvidia-nccl-cu", "NCCL")):
        found = library(prefix, build["cuda"]) if build["cuda"] else None
        if build["cuda"] and found is None:
            unknown[name] = title + " is not installed as a package of its own"
        else:
            facts[name] = found
    carried = archs(folder) if build["cuda"] else None
    if build["cuda"] and carried is None:
        unknown["torch.arch_list"] = "the library of torch does not name its architectures where they are looked for"
    else:
        facts["torch.arch_list"] = carried

facts_of_packages = packages()
facts.update({"package." + name: version for name, version in facts_of_packages.items()})
ask_torch()
reply()
""".replace("PACKAGES", repr(_PACKAGES.names)).replace("PREFIXES", repr(tuple(_PACKAGES.prefixes)))  # noqa: E501
)

# The flags themselves: `torch.cuda.get_arch_list` reports them only if a GPU works.
_BUILD_QUESTION = (
    _START
    + """
try:
    import torch
except Exception as error:
    unknown["torch.arch_list"] = "torch cannot be imported: %r" % (error,)
else:
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    facts["torch.arch_list"] = (flags() or "").split() if flags else None
    if torch.version.cuda:
        try:
            facts["torch.nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            version = torch.backends.cudnn.version()
            facts["torch.cudnn"] = "%d.%d.%d" % (version // 10000, version // 100 % 100, version % 100)
        except Exception:
            # Asked besides; `ask` says why they are unknown.
            pass
reply()
"""
)


def ask(
    python: str | Unknown,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Facts:
    """Return facts `python.*`, `torch.*` and `package.*` of an interpreter; an absent package has no fact.

    `torch.cuda`, `torch.cudnn`, `torch.nccl` and `torch.arch_list` (`sm_90`, `compute_90`) are None for a
    build without CUDA. On a failure, all of `NAMES` are Unknown.

    Args:
        python: interpreter as `interpreter` returns it; Unknown is passed on.
        cwd, env: working directory and environment of the command, without the agent.
    """
    return _facts(NAMES, answer(python, _QUESTION, cwd, env, timeout_s))


def ask_build(
    python: str | Unknown,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Facts:
    """Return fact `torch.arch_list` by importing torch, for builds whose architectures `ask` cannot read.

    The fact is None for a build without CUDA. `torch.nccl` and `torch.cudnn` are added if they are not
    separate packages and torch reports them. No CUDA context is created. Arguments as for `ask`.
    """
    return _facts(
        ["torch.arch_list"], answer(python, _BUILD_QUESTION, cwd, env, timeout_s, "did not import torch")
    )


def _facts(names: Sequence[str], reply: Any) -> Facts:
    if isinstance(reply, Unknown):
        return dict.fromkeys(names, reply)
    return {**reply["facts"], **{name: Unknown(why) for name, why in reply["unknown"].items()}}
