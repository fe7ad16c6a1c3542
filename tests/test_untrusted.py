"""No reader of the parent opens a file past `schema.untrusted`, except for those listed here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dynotune

SOURCE = Path(dynotune.__file__).parent
# They run in the user's process, with the user's own files.
APART = ("agent", "runtime", "claims/programs", "api/notebook.py")
OPENERS = {"open", "read_bytes", "read_text"}
# Of which module: what it opens instead, and why nobody else can have written it.
TRUSTED = {
    "schema/untrusted.py": "the one way",
    "schema/private.py": "folders of the user's own state",
    "schema/atomic.py": "new files, and files to write to",
    "probe/facts/host_memory.py": "the kernel's files",
    "probe/facts/gpu.py": "the kernel's files",
    "probe/facts/environment.py": "the kernel's files",
    "probe/facts/torch_build.py": "a program for the user's interpreter, which reads its own torch",
    "probe/gpu_code/code_places.py": "the configuration of the system's linker",
    "probe/sources/container.py": "the kernel's files",
    "probe/sources/counters.py": "the kernel's files",
    "probe/sources/kernel_files.py": "the kernel's files",
    "cli/run_options.py": "the kernel's files",
    "cli/limits.py": "memory",
    "cli/__init__.py": "the null device",
    "mcp/__init__.py": "the package's own page",
    "mcp/jobs.py": "the folder of a job that it has just made",
    "launch/caches/conditions.py": "the kernel's files",
    "launch/caches/pack.py": "files in a temporary folder of this process",
    "launch/process/lock.py": "the kernel's files, and a lock in the user's state folder",
    "launch/process/leases.py": "the kernel's files, and leases in a private folder",
    "launch/process/run_folder.py": "the kernel's files, folders, and the standard input",
    "launch/process/sandbox.py": "the kernel's files",
    "launch/process/overlay.py": "the kernel's files, and folders",
    "launch/process/proof.py": "a folder",
    "launch/process/processes.py": "the kernel's files",
    "launch/process/supervisor.py": "a pipe of its own",
    "launch/process/origin.py": "a new file",
    "launch/records/task_page.py": "a new file",
    "running/attachments.py": "a lock in the user's state folder",
    "running/joined_program.py": "a lock in a run folder that it has just made",
    "running/process_files.py": "the kernel's files",
    "running/shared_folder.py": "folders",
    "watch/signals.py": "the kernel's files",
    "claims/running.py": "the package's own programs",
    "claims/ledger.py": "the package's own table",
    "doctor/variables.py": "the package's own table",
}


def modules() -> list[Path]:
    return [
        path for path in sorted(SOURCE.rglob("*.py")) if not str(path.relative_to(SOURCE)).startswith(APART)
    ]


def reads(tree: ast.AST) -> list[int]:
    """The lines that open a file to read it: `open` in any form, and the methods of paths."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name not in OPENERS:
            continue
        of = ast.unparse(called.value) if isinstance(called, ast.Attribute) else ""
        if of.startswith("files(") or "__file__" in of:  # a file of the package
            continue
        modes = [word.value for word in (*node.args, *(each.value for each in node.keywords))
                 if isinstance(word, ast.Constant) and isinstance(word.value, str)]  # fmt: skip
        if any(mode in ("wb", "xb", "ab", "a", "w") for mode in modes):
            continue
        if any(each.arg == "fileobj" for each in node.keywords):  # of a file that is open
            continue
        found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_opens_files_by_schema_untrusted_when_anyone_may_have_written_them(path):
    lines = reads(ast.parse(path.read_text(encoding="utf-8")))
    if str(path.relative_to(SOURCE)) not in TRUSTED:
        assert not lines, f"{path}: lines {lines} open a file; use schema.untrusted, or say here why not"


def test_a_planted_read_is_found():
    planted = (
        "path.open('rb'); open(name); os.open(path, 0); path.read_text(); gzip.open(path); path.read_bytes()"
    )
    assert len(reads(ast.parse(planted))) == 6
    assert not reads(
        ast.parse("path.open('wb'); files('x').joinpath('y').read_text('utf-8'); tarfile.open(fileobj=f)")
    )
